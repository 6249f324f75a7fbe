"""The three layers of sending (MISSION P20), as mqclient.producer's docstring names them: imports go down only."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "libs/mqclient/src/mqclient/producer"
BUSINESS, HANDLING, TRANSPORT = "business", "message handling", "transport"

LAYERS: dict[str, tuple[str, ...]] = {
    BUSINESS: ("producer", "transaction_producer", "send_callback", "transaction_checks", "numbered_producer"),
    HANDLING: (
        "sender", "outgoing", "message_encoder", "batch_splitter", "body_compressor", "queue_choice", "selectors",
        "latency_fault", "retry", "hooks", "try_watch", "in_flight",
    ),
    TRANSPORT: ("produce_streams", "produce_stream", "frames", "waiting", "resending", "reopening", "numbering"),
}  # fmt: skip
VALUES = ("producer_config", "send_result", "transaction_listener")

# Layer -> the layers that its modules may not know.
FORBIDDEN = {BUSINESS: (), HANDLING: (BUSINESS,), TRANSPORT: (BUSINESS, HANDLING)}


def producer_imports(text: str) -> set[str]:
    """The modules of mqclient.producer that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (
            match := re.fullmatch(r"mqclient\.producer\.(\w+)", node.module or "")
        ):
            found.add(match[1])
    return found


def wrong_imports(layer: str, text: str) -> list[str]:
    above = {module for name in FORBIDDEN[layer] for module in LAYERS[name]}
    return sorted(producer_imports(text) & above)


def test_every_module_has_its_layer_and_the_docstring_names_it() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert modules == {module for layer in LAYERS.values() for module in layer} | set(VALUES)
    docstring = ast.get_docstring(ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))) or ""
    business, handling, rest = re.split(r"^\d\. ", docstring, flags=re.MULTILINE)[1:]
    transport, _, values = rest.partition("\n\n")
    named = [set(re.findall(r"`(\w+)`", part)) for part in (business, handling, transport, values)]
    assert named == [set(LAYERS[BUSINESS]), set(LAYERS[HANDLING]), set(LAYERS[TRANSPORT]), set(VALUES)]


@pytest.mark.parametrize(("layer", "module"), [(layer, module) for layer in LAYERS for module in LAYERS[layer]])
def test_a_layer_knows_none_above_it(layer: str, module: str) -> None:
    assert wrong_imports(layer, (PACKAGE / f"{module}.py").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("module", VALUES)
def test_values_know_no_layer(module: str) -> None:
    assert producer_imports((PACKAGE / f"{module}.py").read_text(encoding="utf-8")) <= set(VALUES)


def test_an_import_of_a_higher_layer_is_seen() -> None:
    assert wrong_imports(TRANSPORT, "from mqclient.producer.sender import Sender") == ["sender"]
    assert wrong_imports(HANDLING, "from mqclient.producer.producer import Producer") == ["producer"]
    assert wrong_imports(BUSINESS, "from mqclient.producer.sender import Sender") == []
