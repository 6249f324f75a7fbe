"""How long a broker with many queues takes to start again, with the usual limit of 1,024 descriptors:

    .venv/bin/python tests/robustness/restart_time.py [--topics 5000] [--rounds 5]

Each topic has four queues, and each queue messages. The broker is stopped and started, then killed and started, in
turns. A start lasts from the launch of the process, its imports included, until it serves and a name server knows it. A
start counts only if the newest queue's message can be read after it. What it takes is reported and judges nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hourglass_loadtest.machine import describe_run
from hourglass_loadtest.run import STOP_TIMEOUT_S, timed_start
from hourglass_local.cluster import Cluster
from mqclient import Admin, Message, MessageQueue, Producer

EVIDENCE = Path("docs/evidence/restarts.json")
TOPICS, QUEUES, MESSAGES, ROUNDS = 5_000, 4, 2, 5
DESCRIPTORS = 1_024
AT_ONCE = 64  # requests of this program under way


async def fill(cluster: Cluster, topics: int) -> dict[str, float]:
    """`topics` topics, and MESSAGES messages in each of their queues; how long each send took meanwhile."""
    took: list[float] = []
    gate = asyncio.Semaphore(AT_ONCE)

    async def create(admin: Admin, number: int) -> None:
        async with gate:
            await admin.update_topic(topic_name(number), read_queue_count=QUEUES, write_queue_count=QUEUES)

    async def send(producer: Producer, queue: MessageQueue) -> None:
        async with gate:
            begin = time.perf_counter()
            await producer.send(Message(queue.topic, b"a message"), queue=queue)
            took.append((time.perf_counter() - begin) * 1000)

    async with Admin(cluster.url) as admin:
        await asyncio.gather(*(create(admin, number) for number in range(topics)))
    async with Producer("restarts", cluster.url) as producer:
        for number in range(topics):
            queues = await producer.fetch_publish_message_queues(topic_name(number))
            await asyncio.gather(*(send(producer, queue) for queue in queues for _ in range(MESSAGES)))
    return {"send_median_ms": round(statistics.median(took), 2), "send_max_ms": round(max(took), 1), "sends": len(took)}


def topic_name(number: int) -> str:
    return f"topic-{number}"


async def require_messages(cluster: Cluster, topics: int) -> None:
    """Every queue of the last topic has what was sent. Raises SystemExit."""
    async with Admin(cluster.url) as admin:
        stats = await admin.topic_stats(topic_name(topics - 1))
    ends = [one.max_offset for one in stats]
    if ends != [MESSAGES] * QUEUES:
        raise SystemExit(f"the queues of {topic_name(topics - 1)} end at {ends} after the start, not at {MESSAGES}")


async def measure(folder: Path, topics: int, rounds: int) -> dict[str, Any]:
    starts: dict[str, list[float]] = {"stop": [], "kill": []}
    async with Cluster(folder, orders=False) as cluster:
        (broker,) = cluster.brokers
        found: dict[str, Any] = {"filling": await fill(cluster, topics)}
        for _ in range(rounds):
            for after in starts:
                await (broker.terminate(STOP_TIMEOUT_S) if after == "stop" else broker.kill())
                starts[after].append(await timed_start(broker))
                await require_messages(cluster, topics)
    for after, seconds in starts.items():
        found[f"start_after_{after}_s"] = {
            name: round(of(seconds), 2) for name, of in (("min", min), ("median", statistics.median), ("max", max))
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures starts of a broker with many queues.")
    parser.add_argument("--topics", type=int, default=TOPICS, help=f"of {QUEUES} queues each; default: {TOPICS}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of a stop and a kill; default: {ROUNDS}")
    parser.add_argument("--out", type=Path, help=f"for the results; without it {EVIDENCE}, if the topics are {TOPICS}")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))  # the broker inherits it
    document = describe_run() | {
        "topics": options.topics,
        "queues": options.topics * QUEUES,
        "descriptors": DESCRIPTORS,
    }
    with tempfile.TemporaryDirectory(prefix="hourglass-restarts-") as folder:
        results = asyncio.run(measure(Path(folder), options.topics, options.rounds))
    print(json.dumps(results))
    out = options.out or (EVIDENCE if options.topics == TOPICS else None)
    if out is not None:
        out.write_text(json.dumps(document | {"results": results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
