"""Ten members that join and leave, about one of them each second, while messages keep coming (mechanism C13).

Real processes: name server, broker, and each member. In the end every acknowledged message has been consumed; how many
were consumed more than once is counted, not judged: a hand-over may repeat what a listener was at.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from hourglass_loadtest.machine import describe_run
from hourglass_local.cluster import Cluster
from hourglass_local.waiting import NotInTimeError, eventually
from mqclient import Admin, Message, MQClientError, Producer

TOPIC, GROUP = "churn", "churners"
QUEUES = 16
TICK_S = 0.01
PATIENCE_S = 60.0  # after the last message, for the last hand-overs
JOINED = b"joined"
ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "docs/evidence/consumer-churn.json"
MEMBER = Path(__file__).with_name("churn_member.py")


@dataclass(frozen=True, slots=True)
class ChurnReport:
    """What one run came to. `duplicates` counts the consumptions after the first, of all messages."""

    members: int
    seconds: float
    sent: int
    not_acknowledged: int
    consumed: int
    unconsumed: int
    duplicates: int
    joins: int


async def churn(folder: Path, *, members: int, rate: int, seconds: float, seed: int) -> ChurnReport:
    """`rate` messages a second for so many seconds. Raises what the cluster raises when it cannot start."""
    async with Cluster(folder / "cluster", orders=False) as cluster, Admin(cluster.url) as admin:
        await admin.update_topic(TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES)
        files = [folder / f"member-{number}" for number in range(members)]
        with ExitStack() as stack:
            processes = [
                stack.enter_context(_member(cluster.url, seed * members + number, file))
                for number, file in enumerate(files)
            ]
            try:
                sent, failed = await _send(cluster.url, rate, seconds)
                await _wait_for(sent, files)
            finally:
                for process in processes:
                    process.stdin.close()  # type: ignore[union-attr]
                for process in processes:
                    process.wait(PATIENCE_S)
        consumed = _consumed(files)
    return ChurnReport(
        members,
        seconds,
        len(sent),
        failed,
        len(consumed),
        len(sent - consumed.keys()),
        consumed.total() - len(consumed),
        sum(_joins(file) for file in files),
    )


def _member(url: str, seed: int, file: Path) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, str(MEMBER), url, TOPIC, GROUP, str(seed), str(file)]
    file.touch()
    return subprocess.Popen(arguments, stdin=subprocess.PIPE)


async def _send(url: str, rate: int, seconds: float) -> tuple[set[bytes], int]:
    """What was acknowledged, and how much was not."""
    acknowledged: set[bytes] = set()
    failed = 0

    async def send(body: bytes) -> None:
        nonlocal failed
        try:
            await producer.send(Message(TOPIC, body))
        except MQClientError:
            failed += 1
        else:
            acknowledged.add(body)

    clock = asyncio.get_running_loop().time
    async with Producer("churn-senders", url) as producer, asyncio.TaskGroup() as group:
        began, begun = clock(), 0
        while (passed := clock() - began) < seconds:
            due = round(rate * passed)
            for number in range(begun, due):
                group.create_task(send(b"%d" % number))
            begun = due
            await asyncio.sleep(TICK_S)
    return acknowledged, failed


async def _wait_for(sent: set[bytes], files: list[Path]) -> None:
    """Until everything is consumed, or nothing is to be hoped for any more."""
    with contextlib.suppress(NotInTimeError):  # what is missing then is in the report
        await eventually(lambda: not sent - _consumed(files).keys(), PATIENCE_S, "every message is consumed")


def _consumed(files: list[Path]) -> Counter[bytes]:
    return Counter(line for file in files for line in file.read_bytes().splitlines() if line != JOINED)


def _joins(file: Path) -> int:
    return file.read_bytes().splitlines().count(JOINED)


def main() -> int:
    """Run it and write what came of it. The exit code: 1 when something was not consumed."""
    parser = argparse.ArgumentParser(prog="churn.py", description="Members that join and leave under load.")
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--rate", type=int, default=2_000, help="messages a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=EVIDENCE, metavar="FILE")
    options = parser.parse_args()
    head = describe_run(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(
            churn(Path(folder), members=options.members, rate=options.rate, seconds=options.seconds, seed=options.seed)
        )
    document = {**head, "seed": options.seed, "rate": options.rate, **asdict(report)}
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{report}\n")
    return int(report.unconsumed > 0)


if __name__ == "__main__":
    sys.exit(main())
