"""The three layers of sending, as mqclient.producer's docstring names them: imports go down only.

A module of `mqclient.producer` that defines a producer (a class `...Producer`) is of the business layer, every other
one handles messages; `mqclient.connection` is the transport layer.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[2] / "libs/mqclient/src/mqclient"
BUSINESS, HANDLING, TRANSPORT = "business", "message handling", "transport"
VALUES = ("message", "errors", "config", "lifecycle")  # what all layers speak of


def business_modules() -> set[str]:
    """The modules of mqclient.producer that define a producer."""
    defined = re.compile(r"^class \w*Producer\b", re.MULTILINE)
    return {path.stem for path in (CLIENT / "producer").glob("*.py") if defined.search(path.read_text("utf-8"))}


def modules() -> list[tuple[str, Path]]:
    """Each module of the layers with its layer."""
    business = business_modules()
    sending = [(BUSINESS if path.stem in business else HANDLING, path) for path in (CLIENT / "producer").glob("*.py")]
    return sorted(sending + [(TRANSPORT, path) for path in (CLIENT / "connection").glob("*.py")])


def client_imports(text: str) -> set[str]:
    """The modules of mqclient that a module imports, without `mqclient.` in front."""
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom))
    imported = {node.module or "" for node in nodes}
    return {name.removeprefix("mqclient.") for name in imported if name.startswith("mqclient.")}


def wrong_imports(layer: str, text: str) -> list[str]:
    """What the module imports although its layer may not."""
    imported = client_imports(text)
    business = {f"producer.{module}" for module in business_modules()}
    if layer == HANDLING:
        return sorted(imported & business)
    if layer == TRANSPORT:
        return sorted(module for module in imported if re.match(r"(producer|consumer)\b", module))
    return []


@pytest.mark.mechanism("P20")
def test_every_module_has_its_layer_and_the_docstring_names_it() -> None:
    docstring = ast.get_docstring(ast.parse((CLIENT / "producer/__init__.py").read_text(encoding="utf-8"))) or ""
    business, handling, transport = re.split(r"^\d\. ", docstring, flags=re.MULTILINE)[1:]
    named = [set(re.findall(r"`(\w+)`", part)) for part in (business, handling)]
    assert named == [business_modules(), {path.stem for layer, path in modules() if layer == HANDLING} - {"__init__"}]
    assert "mqclient.connection" in transport


@pytest.mark.mechanism("P20")
@pytest.mark.parametrize(
    ("layer", "path"), [pytest.param(layer, path, id=f"{layer}-{path.stem}") for layer, path in modules()]
)
def test_a_layer_knows_none_above_it(layer: str, path: Path) -> None:
    assert wrong_imports(layer, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("module", VALUES)
def test_values_know_no_layer(module: str) -> None:
    assert client_imports((CLIENT / f"{module}.py").read_text(encoding="utf-8")) <= set(VALUES)


def test_an_import_of_a_higher_layer_is_seen() -> None:
    assert wrong_imports(TRANSPORT, "from mqclient.producer.sender import Sender") == ["producer.sender"]
    assert wrong_imports(HANDLING, "from mqclient.producer.producer import Producer") == ["producer.producer"]
    assert wrong_imports(BUSINESS, "from mqclient.producer.sender import Sender") == []
