"""`make shape`: how the code is cut, in figures: lines and modules of each package, and what an executed path touches.

    python tests/architecture/shape.py [--out docs/evidence/shape.json]

Lines are those of `git ls-files '*.py'` without generated stubs. A path is executed once warm, in one process: an
embedded broker (its fsync included), a client that reaches it by memory://, orders on SQLite over ASGI. A file counts
when a function of it was called; functions of the embedding itself, of simulations and of tests do not count.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import httpx

from hourglass_loadtest.machine import describe_code
from mq_broker.embedded import EmbeddedBroker
from mqclient import Admin, ConsumeStatus, Message, Producer, PushConsumer
from orders.app import MIGRATIONS
from orders.bootstrap import bootstrap
from orders.config import Config
from orders.pages.testing import ScriptedDeadLetters, ScriptedDesk
from orders.testing import AUTH_KEYS, BUYER, PRODUCT
from osenv import SeededRng
from servicekit.auth import ROLES
from servicekit.process.queue import MqParkedTransactions, MqPublisher
from servicekit.sql.database import Database
from servicekit.testing.migrations import migrate

ROOT = Path(__file__).parents[2]
NOT_COUNTED = ("/embedded/", "/testing", "/tests/", "sim_")  # parts of a path that no production process executes
LARGE_LINES = 500
CONSUME = "consume and report progress, without the files of send"


@dataclass(frozen=True, slots=True)
class Cut:
    """One package, or all of them: `import_lines` are those of import statements outside of functions."""

    modules: int
    lines: int
    import_lines: int
    median_lines: int
    modules_over_500_lines: int
    longest_function_lines: int


def is_test(path: str) -> bool:
    return path.startswith("tests/") or "/tests/" in path or path.endswith("conftest.py")


def package_of(path: str) -> str:
    """The folder that is installed, or the first one for what is not."""
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] in {"libs", "services", "tools", "examples", "deploy"} else parts[0]


def measure(paths: list[str], root: Path) -> Cut:
    lines, imports, longest = zip(*(_of_file(root / path) for path in paths), strict=True)
    large = sum(count > LARGE_LINES for count in lines)
    return Cut(len(lines), sum(lines), sum(imports), round(statistics.median(lines)), large, max(longest))


@cache
def _of_file(path: Path) -> tuple[int, int, int]:
    """Its lines, those of its import statements, and those of its longest function."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    imports = sum(_length(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return text.count("\n"), imports, max(map(_length, functions), default=0)


def _length(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def cuts(root: Path) -> dict[str, dict[str, Any]]:
    """`source` and `tests` as a whole, and the source of each package."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=root, check=True, capture_output=True, text=True)
    paths = [path for path in listed.stdout.split() if not path.endswith(("_pb2.py", "_pb2_grpc.py"))]
    source = [path for path in paths if not is_test(path)]
    packages = sorted({package_of(path) for path in source})
    return {
        "source": asdict(measure(source, root)),
        "tests": asdict(measure([path for path in paths if is_test(path)], root)),
        "packages": {
            name: asdict(measure([path for path in source if package_of(path) == name], root)) for name in packages
        },
    }


Touched = set[tuple[str, str]]  # a function: its file and its name


class Recorder:
    """Notes the functions of this repository that run, in every thread, while it is on."""

    def __init__(self) -> None:
        self._codes: set[CodeType] | None = None
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and self._codes is not None:
            self._codes.add(frame.f_code)

    async def record(self, path: Callable[[], Awaitable[object]]) -> Touched:
        """What one execution touches."""
        codes = self._codes = set()
        try:
            await path()
        finally:
            self._codes = None
        return {(name, code.co_qualname) for code in codes if (name := _counted(code)) is not None}


def _counted(code: CodeType) -> str | None:
    """The file of a function that counts, below the repository. A module's own code runs once, and does not count."""
    path = Path(code.co_filename)
    if code.co_name in {"<module>", "<genexpr>", "<lambda>"} or not path.is_relative_to(ROOT) or ".venv" in path.parts:
        return None
    name = str(path.relative_to(ROOT))
    return None if name == "tests/architecture/shape.py" or any(part in name for part in NOT_COUNTED) else name


async def executed_paths(recorder: Recorder) -> dict[str, Touched]:
    """Each path by its name, executed a second time."""
    async with EmbeddedBroker("shape") as broker:
        async with Admin(broker.url) as admin:
            for topic in ("told", "order-events", "order-timeouts"):
                await admin.update_topic(topic, read_queue_count=1, write_queue_count=1)
        consumed = asyncio.Event()

        async def listen(_messages: object) -> ConsumeStatus:
            consumed.set()
            return ConsumeStatus.CONSUME_SUCCESS

        consumer = PushConsumer("shape-group", broker.url)
        consumer.subscribe("told")
        consumer.register_message_listener(listen)
        async with Producer("shape-producer", broker.url) as producer:

            async def send() -> None:
                await producer.send(Message("told", b"body", tag="tag", keys=["key"]))

            async def send_and_consume() -> None:
                consumed.clear()
                await send()
                await broker.clock.until(consumed.is_set)
                await broker.clock.advance(5)  # the progress is reported

            await send()
            sent = await recorder.record(send)
            async with consumer:
                await send_and_consume()
                both = await recorder.record(send_and_consume)
        files = {name for name, _ in sent}
        consumed_only = {one for one in both if one[0] not in files}
        return {"send": sent, CONSUME: consumed_only, "POST /orders": await _orders(recorder, broker)}


async def _orders(recorder: Recorder, broker: EmbeddedBroker) -> Touched:
    with tempfile.TemporaryDirectory(prefix="hourglass-shape-") as folder:
        config = Config(database_url=f"sqlite+aiosqlite:///{folder}/orders.db", auth_keys=AUTH_KEYS, rate_limit=None)
        database, clock = Database(config.database_url), broker.clock
        queue = MqPublisher(broker.url, "orders", clock)
        try:
            await migrate(database, config.database_url, MIGRATIONS)
            application = bootstrap(
                config,
                database,
                queue,
                clock,
                SeededRng(1),
                payment_desk=ScriptedDesk(clock),
                dead_letters=ScriptedDeadLetters(),
                parked=MqParkedTransactions(broker.url, "orders", clock),
                health_parts={},
            )
            await queue.start(application.transactions.check)
            await application.use_cases.add_product(PRODUCT)
            token = application.tokens.issue(BUYER.subject, ROLES["buyer"])
            transport = httpx.ASGITransport(application.api)
            async with httpx.AsyncClient(transport=transport, base_url="http://orders") as http:

                async def post(key: str) -> None:
                    order = {"items": [{"product_id": PRODUCT.product_id, "quantity": 1}]}
                    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
                    answer = await http.post("/orders", json=order, headers=headers)
                    answer.raise_for_status()

                await post("warm")
                return await recorder.record(lambda: post("measured"))
        finally:
            await queue.shutdown()
            await database.dispose()


def _in_figures(touched: Touched) -> dict[str, Any]:
    return {"files": sorted({name for name, _ in touched}), "functions": len(touched)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="shape.py", description="How the code is cut, in figures.")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all of it as JSON")
    options = parser.parse_args(arguments)
    paths = asyncio.run(executed_paths(Recorder()))
    sys.setprofile(None)
    document = describe_code(ROOT) | {"paths": {name: _in_figures(path) for name, path in paths.items()}} | cuts(ROOT)
    for name, path in document["paths"].items():
        print(f"{name}: {len(path['files'])} files, {path['functions']} functions")
    for name, cut in {"source": document["source"], "tests": document["tests"], **document["packages"]}.items():
        print(f"{name}: {', '.join(f'{value:,} {key}' for key, value in cut.items())}")
    if options.out is not None:
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
