"""The format of RocketMQ's configuration files, which is that of java.util.Properties.

    # a comment; so is a line that begins with !
    brokerName = broker-a
    namesrvAddr=10.0.0.1:9876;\\
        10.0.0.2:9876

A key ends at the first `=` or `:`; blanks around key and value do not count, as RocketMQ trims them; of a key that
comes twice the last one counts. A backslash at the end of a line continues it on the next one. Elsewhere it begins an
escape: `\\\\`, `\\uXXXX`, `\\t`, `\\n`, `\\r`, `\\f`, or a separator, comment character or blank that stands for
itself.

Where Java reads something that nobody means, the line is refused: a key that ends at a blank, and a backslash before
any other character, which Java drops without a word (`D:\\store` would be `D:store`). The file is UTF-8, as editors
write it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from mqproto.conf import ConfigError

_BLANKS = " \t\f"
_PAIR = re.compile(rf"([^\s\\=:]+)[{_BLANKS}]*[=:](.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "\\": "\\", "=": "=", ":": ":", "#": "#", "!": "!", " ": " "}
_TO_ESCAPE = str.maketrans({character: f"\\{letter}" for letter, character in _ESCAPED.items() if letter in "tnrf\\"})


def read_properties(path: Path) -> dict[str, str]:
    """The pairs of the file at `path`. Raises ConfigError when it cannot be read or parsed."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error}") from error
    return parse_properties(text, str(path))


def parse_properties(text: str, source: str) -> dict[str, str]:
    """The pairs of a properties file. Raises ConfigError with `source` and the line."""
    pairs: dict[str, str] = {}
    for number, line in _logical_lines(text):
        found = _PAIR.fullmatch(line)
        if found is None:
            raise ConfigError(f"{source}, line {number}: {line.strip()!r} is not of the form key=value")
        try:
            pairs[found[1]] = _unescaped(found[2]).strip()
        except ValueError as error:
            raise ConfigError(f"{source}, line {number}: {error}") from None
    return pairs


def parse_assignments(arguments: Iterable[str]) -> dict[str, str]:
    """The pairs of a command line, `key=value` each, without escapes. Raises ConfigError."""
    pairs = {}
    for argument in arguments:
        name, separator, value = argument.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"command line: {argument!r} is not of the form key=value")
        pairs[name.strip()] = value.strip()
    return pairs


def format_properties(pairs: Mapping[str, str]) -> str:
    """The file, a line for each pair, from which `parse_properties` makes the same pairs."""
    return "".join(f"{name}={value.translate(_TO_ESCAPE)}\n" for name, value in pairs.items())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Each line that is neither blank nor a comment, joined with those that continue it, and its first number."""
    first, line = 0, ""
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        part = natural.lstrip(_BLANKS)
        if not line:
            if not part or part[0] in "#!":
                continue
            first = number
        line += part
        if (len(line) - len(line.rstrip("\\"))) % 2:  # the last backslash is not escaped itself
            line = line[:-1]
        else:
            yield first, line
            line = ""
    if line:
        yield first, line


def _unescaped(text: str) -> str:
    """Raises ValueError with a sentence."""
    try:
        return _ESCAPE.sub(_meaning, text).encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError(f"{text.strip()!r} has half a character: \\u escapes of surrogates come in pairs") from None


def _meaning(escape: re.Match[str]) -> str:
    letter = escape[1]
    if len(letter) > 1:
        return chr(int(letter[1:], 16))
    if letter not in _ESCAPED:
        raise ValueError(f"\\{letter} is no escape; a backslash itself is written as \\\\")
    return _ESCAPED[letter]
