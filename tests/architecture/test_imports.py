"""The import directions of ARCHITECTURE.md, and the one door to the operating system.

The tables below are the rules. `violations` reads a module's text, so that the last tests can show it bad modules.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    source
    for folder in ("libs/*", "services/*", "tools/*", "examples/*", "deploy/*", "loadtest")
    for source in ROOT.glob(f"{folder}/src")
)

# ---------------------------------------------------------------------------------------------------------- the rules

STUBS = "hourglass.mq"  # the generated stubs; they come with mqproto

SERVICEKIT = {"servicekit", "servicekit.http", "servicekit.sql", "servicekit.process", "servicekit.testing"}

# Package -> the packages of the project that it may import, beside itself. An inner package comes first.
MAY_IMPORT = {
    "osenv": set(),
    "telemetry": set(),
    "mqproto": {"mqremoting", STUBS},
    "mqfilter": set(),
    "mqremoting": {"osenv"},
    "mqclient": {"osenv", "mqproto", "mqremoting", "telemetry", STUBS},
    "mq_namesrv": {"osenv", "mqproto", "mqremoting", "telemetry", STUBS},
    # memory:// is a transport of mqclient, found by its entry point; mqclient never imports it.
    "mq_broker.embedded": {"osenv", "mqproto", "telemetry", "mqclient", "mq_broker", STUBS},
    "mq_broker.pytest_plugin": {"osenv", "mq_broker.embedded"},
    "mq_broker": {"osenv", "mqproto", "mqremoting", "mqfilter", "telemetry", STUBS},
    "servicekit.http": {"servicekit", "osenv", "telemetry"},
    "servicekit.sql": {"servicekit", "mqclient", "osenv", "telemetry"},
    "servicekit.process": {"servicekit", "servicekit.http", "servicekit.sql", "mqclient", "osenv", "telemetry"},
    "servicekit.testing": SERVICEKIT | {"mqclient", "osenv", "telemetry"},
    "servicekit": {"servicekit.http", "osenv", "telemetry"},  # config: the limits of http
    "orders": SERVICEKIT | {"mqclient", "osenv", "telemetry"},
    "payments": SERVICEKIT | {"mqclient", "osenv", "telemetry"},
    # The gateway stands for an external system: it shares no code with payments but the service kit.
    "sandbox_gateway": SERVICEKIT | {"osenv", "telemetry"},
    "gift_lottery": {"mqclient", "osenv", "telemetry"},
    "order_timers": {"mqclient", "mq_broker.embedded", "osenv", "telemetry"},
    "bank_transfer": {"mqclient", "osenv", "telemetry"},
    "hourglass_invariants": set(),
    "pyspark_mq": {"osenv", "mqproto", "mqclient"},
    "analytics": {"pyspark_mq", "mqclient", "osenv", "telemetry", "hourglass_invariants"},
    "mqadmin": {"osenv", "mqproto", "mqclient"},
    "hourglass_cli": {"osenv", "mqproto", "telemetry", "mq_namesrv", "mq_broker", STUBS},
    "hourglass_loadtest": {
        "osenv",
        "mqproto",
        "telemetry",
        "mqclient",
        "servicekit",
        "servicekit.testing",
        "hourglass_local",
        STUBS,
    },
    "hourglass_local": {"osenv", "mqproto", "telemetry", "mqclient", "mq_namesrv", "mq_broker", "orders", "payments"}
    | SERVICEKIT
    | {"sandbox_gateway", "hourglass_invariants"}
    | {STUBS},
}

# The broker's layers; each may import those before it. A module in none of them is a root module and comes last.
BROKER_LAYERS = ("core", "store", "schedule", "replication", "processor", "rpc")

# These packages know the standard library, themselves, and these others; nothing else.
PURE_MQPROTO = {f"mqproto.{name}" for name in ("record", "properties", "names", "codes", "conf")}
PURE_PACKAGES = {
    "mq_broker.core": PURE_MQPROTO | {"mqfilter"},
    "mq_broker.replication.in_sync": PURE_MQPROTO | {"mq_broker.core"},
    "mq_namesrv.core": PURE_MQPROTO,
    "mqfilter": {"lark"},
    "mqremoting": {"osenv"},
}

# Protobuf and gRPC inside the servers: these modules and what lies below them.
WIRE_ROOTS = ("grpc", "grpc_health", "google.protobuf", STUBS)
WIRE_MODULES = {
    "mq_broker": ("mq_broker.rpc", "mq_broker.app", "mq_broker.embedded"),
    "mq_namesrv": ("mq_namesrv.rpc", "mq_namesrv.app"),
}

# The operating system: who may go past osenv. A module below a package `adapters` may, and so may the local runner.
OS_MODULES = {"time", "socket", "random", "fcntl", "mmap", "shutil", "tempfile"}
OS_FILE_CALLS = {
    "open", "fdopen", "read", "write", "pread", "pwrite", "fsync", "fdatasync", "ftruncate", "truncate", "rename",
    "replace", "renames", "remove", "unlink", "mkdir", "makedirs", "rmdir", "removedirs", "listdir", "scandir", "walk",
    "stat", "lstat", "fstat", "statvfs", "link", "symlink", "readlink", "posix_fallocate", "chmod", "utime", "access",
}  # fmt: skip
PATH_FILE_CALLS = {"read_text", "write_text", "read_bytes", "write_bytes", "touch", "iterdir", "rglob"}
CLOCK_CALLS = {"now", "utcnow", "today"}  # of datetime and date
OS_PACKAGES = ("osenv", "hourglass_local", "hourglass_loadtest")

# Module -> what it may use although the rules above say no.
EXCEPTIONS = {
    "mqproto.record": {"socket"},  # inet_aton and inet_ntoa: arithmetic that happens to live there
    "mqproto.config_source": {"read_text"},  # reads the configuration file
    "servicekit.config": {"read_text"},  # the text of the variables that end with _FILE
    "servicekit.http.server": {"socket"},  # takes its address before anything else starts
    "servicekit.testing.migrations": {"shutil", "write_text"},  # writes a later version's, in a test's folder
    # Runs a server, in a folder of its own and on a port that is free.
    "servicekit.testing.postgresql": {"read_text", "shutil", "tempfile", "time"},
    "hourglass_cli.dev": {"tempfile"},  # a developer's messages, which end with the process
    "analytics.benchmarks": {"iterdir", "read_text", "tempfile", "time"},  # logs of each run, a clock around the reader
    "hourglass_invariants.__main__": {"time"},  # the moment that is checked
    "hourglass_invariants.checking": {"iterdir", "read_text"},  # its own SQL files
    "order_timers.__main__": {"write_text"},  # --out
    "pyspark_mq.data_source": {"shutil"},  # which Python Spark's workers will run
}
# One module of mqclient asks the resolver for the name servers (mechanism L6).
SOCKET_MODULES_MAX = {"mqclient": 1}

# -------------------------------------------------------------------------------------------------------- the reading


def modules() -> Iterator[tuple[str, str]]:
    """Dotted name and text of each module that is written by hand."""
    for source in SOURCES:
        for path in sorted(source.rglob("*.py")):
            parts = path.relative_to(source).with_suffix("").parts
            if parts[:2] != tuple(STUBS.split(".")):
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path.read_text(encoding="utf-8")


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def imports(module: str, tree: ast.AST) -> Iterator[str]:
    """What the module imports, each `from a import b` as `a.b`: b may be a module or a name in one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def violations(module: str, text: str) -> list[str]:
    """Each rule that the module breaks, as a sentence."""
    tree = ast.parse(text)
    imported = sorted(set(imports(module, tree)))
    found = [
        *_wrong_packages(module, imported),
        *_wrong_layers(module, imported),
        *_impurities(module, imported),
        *_wire_types(module, imported),
        *_past_osenv(module, imported, tree),
    ]
    return [f"{module} {sentence}" for sentence in found]


def _package_of(name: str) -> str | None:
    return next((package for package in (*MAY_IMPORT, STUBS) if is_within(name, package)), None)


def _wrong_packages(module: str, imported: list[str]) -> Iterator[str]:
    own = _package_of(module)
    if own is None:
        yield "belongs to a package that this test does not know: give it a row in MAY_IMPORT"
        return
    for name in imported:
        other = _package_of(name)
        if other is not None and other != own and other not in MAY_IMPORT[own]:
            yield f"imports {name}; {own} may import {', '.join(sorted(MAY_IMPORT[own])) or 'none of the project'}"


def _layer(module: str) -> int:
    parts = module.split(".")
    known = len(parts) > 1 and parts[1] in BROKER_LAYERS
    return BROKER_LAYERS.index(parts[1]) if known else len(BROKER_LAYERS)


def _wrong_layers(module: str, imported: list[str]) -> Iterator[str]:
    if not is_within(module, "mq_broker"):
        return
    for name in imported:
        if is_within(name, "mq_broker") and name != "mq_broker" and _layer(name) > _layer(module):
            yield f"imports {name}, which lies above it: {' <- '.join(BROKER_LAYERS)} <- the root modules"


def _impurities(module: str, imported: list[str]) -> Iterator[str]:
    pure = next((package for package in PURE_PACKAGES if is_within(module, package)), None)
    if pure is None:
        return
    for name in imported:
        is_standard = name.split(".")[0] in sys.stdlib_module_names
        if not is_standard and not any(is_within(name, allowed) for allowed in {pure, *PURE_PACKAGES[pure]}):
            yield f"imports {name}; {pure} knows the standard library and {', '.join(sorted(PURE_PACKAGES[pure]))} only"


def _wire_types(module: str, imported: list[str]) -> Iterator[str]:
    allowed = WIRE_MODULES.get(module.split(".")[0])
    if allowed is None or any(is_within(module, one) for one in allowed):
        return
    for name in imported:
        if any(is_within(name, root) for root in WIRE_ROOTS):
            yield f"imports {name}; protobuf and gRPC stop in {' and '.join(allowed)}"


def _past_osenv(module: str, imported: list[str], tree: ast.AST) -> Iterator[str]:
    parts = module.split(".")
    if parts[0] in OS_PACKAGES or "adapters" in parts:
        return
    allowed = EXCEPTIONS.get(module, set())
    if parts[0] in SOCKET_MODULES_MAX:
        allowed = allowed | {"socket"}  # counted over the whole package below
    used = {name.split(".")[0] for name in imported} & OS_MODULES
    used |= {f"os.{call}" for call in OS_FILE_CALLS if f"os.{call}" in imported}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            used.add("open")
        elif isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else getattr(node.value, "attr", "")
            if owner == "os" and node.attr in OS_FILE_CALLS:
                used.add(f"os.{node.attr}")
            elif node.attr in PATH_FILE_CALLS:
                used.add(node.attr)
            elif owner in {"datetime", "date"} and node.attr in CLOCK_CALLS:
                used.add(f"{owner}.{node.attr}")
    for use in sorted(used - allowed):
        yield f"uses {use}; time, files, sockets and chance come through osenv or an adapter"


# ---------------------------------------------------------------------------------------------------------- the tests


@pytest.mark.mechanism("U8")
def test_imports_point_one_way_and_the_operating_system_has_one_door() -> None:
    found = [sentence for module, text in modules() for sentence in violations(module, text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", sorted(SOCKET_MODULES_MAX))
def test_sockets_stay_in_one_module(package: str) -> None:
    users = [
        module
        for module, text in modules()
        if is_within(module, package) and any(is_within(name, "socket") for name in imports(module, ast.parse(text)))
    ]
    assert len(users) <= SOCKET_MODULES_MAX[package], users


def test_every_source_folder_was_read() -> None:
    packages = {module.split(".")[0] for module, _ in modules()}
    assert packages >= {"osenv", "mqproto", "telemetry", "mqclient", "servicekit", "mq_namesrv", "mq_broker", "orders"}
    assert packages <= set(MAY_IMPORT)


BAD_MODULES = [
    ("osenv.disk", "import mqproto.record", "imports mqproto.record; osenv may import none of the project"),
    ("telemetry.providers", "from osenv import Clock", "imports osenv.Clock"),
    ("mqproto.record", "from osenv import Disk", "imports osenv.Disk; mqproto may import hourglass.mq"),
    ("mqclient.producer", "from mq_broker.core import topics", "imports mq_broker.core.topics"),
    ("mqclient.producer", "if True:\n    def f():\n        import mq_broker", "imports mq_broker"),
    ("orders.service.close", "from mq_broker import app", "imports mq_broker.app"),
    ("orders.service.close", "from mqproto import names", "imports mqproto.names"),
    ("orders.service.close", "import payments.domain", "imports payments.domain"),
    ("servicekit.process.runner", "from orders.config import Config", "imports orders.config.Config"),
    ("servicekit.sql.tables", "from servicekit.http import problem", "imports servicekit.http.problem"),
    ("servicekit.http.problem", "import servicekit.sql.database", "imports servicekit.sql.database"),
    ("servicekit.message", "import servicekit.process.queue", "imports servicekit.process.queue"),
    ("servicekit.process.runner", "import socket", "uses socket;"),
    ("orders.app", "import socket", "uses socket;"),
    ("mq_namesrv.app", "import mqclient", "imports mqclient"),
    ("mq_broker.app", "from mq_namesrv.core import route_table", "imports mq_namesrv.core.route_table"),
    ("mq_broker.app", "import hourglass_local", "imports hourglass_local"),
    ("newcomer.app", "import os", "belongs to a package that this test does not know"),
    ("mq_broker.core.topics", "from mq_broker.store import commit_log", "which lies above it"),
    ("mq_broker.core.topics", "from ..store import commit_log", "imports mq_broker.store.commit_log, which lies above"),
    ("mq_broker.store.commit_log", "import mq_broker.schedule.delivery", "which lies above it"),
    ("mq_broker.processor.pull", "from mq_broker.config import BrokerConfig", "which lies above it"),
    ("mq_broker.core.topics", "import structlog", "mq_broker.core knows the standard library and mqfilter, mqproto."),
    ("mq_broker.core.topics", "import lark", "mq_broker.core knows the standard library and mqfilter, mqproto."),
    ("mq_broker.core.topics", "from mqproto.grpc_options import SERVER_OPTIONS", "mq_broker.core knows the standard"),
    ("mq_namesrv.core.route_table", "from osenv import Clock", "mq_namesrv.core knows the standard library and"),
    ("mq_namesrv.core.route_table", "import mqfilter", "mq_namesrv may import"),
    ("mqclient.consumer.pulling", "import mqfilter", "mqclient may import"),
    ("mqfilter.parser", "from mqproto import properties", "mqfilter may import none of the project"),
    ("mqfilter.parser", "import regex", "mqfilter knows the standard library and lark only"),
    ("mqremoting.connection", "from mqproto import names", "mqremoting may import osenv"),
    ("mqremoting.connection", "import uvloop", "mqremoting knows the standard library and osenv only"),
    ("mq_broker.processor.pull", "import grpc", "protobuf and gRPC stop in mq_broker.rpc and mq_broker.app"),
    ("mq_broker.store.state", "from google.protobuf import message", "protobuf and gRPC stop in"),
    ("mq_broker.store.state", "from hourglass.mq.v1 import common_pb2", "protobuf and gRPC stop in"),
    ("mq_broker.store.state", "import time", "uses time;"),
    ("mq_broker.core.members", "from random import choice", "uses random;"),
    ("mq_namesrv.rpc", "import socket", "uses socket;"),
    ("mq_broker.store.state", "import os\nos.fdatasync(3)", "uses os.fdatasync;"),
    ("mq_broker.store.state", "from os import replace", "uses os.replace;"),
    ("mq_broker.store.state", "with open('x') as f: pass", "uses open;"),
    ("orders.service.close", "from pathlib import Path\nPath('x').write_text('')", "uses write_text;"),
    ("orders.domain.order", "import datetime\ndatetime.datetime.now()", "uses datetime.now;"),
    ("mqproto.record", "import time", "uses time;"),
]


@pytest.mark.parametrize(("module", "text", "sentence"), BAD_MODULES)
def test_bad_module_is_caught(module: str, text: str, sentence: str) -> None:
    assert any(sentence in found for found in violations(module, text)), violations(module, text)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("osenv.disk", "import os, time, socket, random\nos.fsync(1)\nopen('x')"),
        ("orders.adapters.gateway", "import socket, time"),
        ("servicekit.http.server", "import socket, uvicorn"),
        ("hourglass_local.runner", "import time, mq_broker.app, orders.app"),
        ("mqproto.record", "import socket"),
        ("mqproto.config_source", "def read(path): return path.read_text()"),
        ("mqclient.client_id", "import os, socket\nos.getpid()"),
        ("mq_broker.core.topics", "import json\nfrom mqproto.names import check_topic\nfrom mq_broker.core import x"),
        ("mq_broker.rpc.produce", "import grpc\nfrom mq_broker.processor import send\nfrom osenv import Clock"),
        ("mq_broker.app", "import grpc\nfrom mq_broker.config import BrokerConfig"),
        ("mq_broker.core.pulling", "from mqfilter import parse"),
        ("mqfilter.parser", "import re\nfrom lark import Lark\nfrom mqfilter.parser import FilterSyntaxError"),
        ("mq_broker.store.state", "def f(disk): disk.replace('a', 'b'); disk.open('x')"),
        ("orders.app", "from mqclient import Producer\nfrom orders.config import Config"),
    ],
)
def test_good_module_passes(module: str, text: str) -> None:
    assert violations(module, text) == []
