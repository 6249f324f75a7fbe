"""Docstrings of this project are plain prose: paragraphs, lists, `names` in backticks, and indented examples.

Sphinx reads reStructuredText. This turns the one into the other: names become literals, what is indented becomes code,
and a sign that means something to reStructuredText means itself.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

from sphinx.application import Sphinx

INDENTED = re.compile(r"^ {4}")
LIST_ITEM = re.compile(r"^(- |\d+\. )")
NAME = re.compile(r"`([^`]+)`")
SPECIAL = re.compile(r"([\\*|_`])")


def restructured(lines: list[str]) -> list[str]:
    """The docstring as reStructuredText."""
    return [line for block in _blocks(lines) for line in (*_block(block), "")]


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Paragraphs, and stretches of code with the empty lines within them."""
    block: list[str] = []
    for line in [*lines, ""]:
        is_code = bool(block) and bool(INDENTED.match(block[0]))
        if is_code and line.strip() and not INDENTED.match(line):
            yield _without_empty_end(block)
            block = [line]
        elif line.strip() or is_code:
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield _without_empty_end(block)


def _without_empty_end(block: list[str]) -> list[str]:
    while not block[-1].strip():
        block = block[:-1]
    return block


def _block(block: list[str]) -> list[str]:
    if INDENTED.match(block[0]):
        text = textwrap.dedent("\n".join(block))
        return [f".. code-block:: {_language(text)}", "", *(f"   {line}".rstrip() for line in text.splitlines())]
    lines = _prose("\n".join(block)).splitlines()
    # A list may follow its sentence at once; here it takes an empty line before it.
    starts = [index for index, line in enumerate(block) if LIST_ITEM.match(line)]
    if starts and starts[0] > 0:
        lines.insert(starts[0], "")
    return lines


def _language(text: str) -> str:
    try:
        ast.parse(text)
    except SyntaxError:
        return "text"
    return "python"


def _prose(text: str) -> str:
    parts = NAME.split(text)  # prose, name, prose, name, ...
    return "".join(
        f"``{' '.join(part.split())}``" if index % 2 else SPECIAL.sub(r"\\\1", part) for index, part in enumerate(parts)
    )


def _process(_app: Sphinx, _what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    lines[:] = restructured(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True}
