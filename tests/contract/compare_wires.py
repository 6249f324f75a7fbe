"""Messages per second through a real broker, by RocketMQ's frames and by gRPC, in one run on the same broker.

    .venv/bin/python tests/contract/compare_wires.py [ROUNDS]

Name server and broker are processes (ASYNC_FLUSH), the client is this one, on uvloop. Bodies have 1 KiB; producers have
1 or 64 sends in flight. The rounds alternate between the wires. The table has medians with least and most, and the
processor time of client and broker for one message, which a busy machine changes less. The results go to
docs/evidence/frames.json. Not a test: `make test` does not run it.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil
import uvloop

from hourglass_loadtest.machine import describe_run
from hourglass_local.cluster import ASYNC_FLUSH, Cluster
from mqclient import Message, Producer

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence" / "frames.json"
SECONDS, WARM_UP_S = 2.0, 0.5
IN_FLIGHT = (1, 64)
BODY = bytes(1_024)
TOPIC = "compare"


async def send_for(producer: Producer, in_flight: int, seconds: float) -> int:
    """How many messages were acknowledged."""
    end, count = time.perf_counter() + seconds, 0

    async def one_after_another() -> None:
        nonlocal count
        while time.perf_counter() < end:
            await producer.send(Message(TOPIC, BODY))
            count += 1

    await asyncio.gather(*(one_after_another() for _ in range(in_flight)))
    return count


def processor_s(process: psutil.Process) -> float:
    used = process.cpu_times()
    return used.user + used.system


async def measure(producer: Producer, broker: psutil.Process, in_flight: int) -> dict[str, float]:
    """Messages per second, and microseconds of processor time for a message."""
    await send_for(producer, in_flight, WARM_UP_S)
    own = psutil.Process()
    before = time.perf_counter(), processor_s(own), processor_s(broker)
    count = await send_for(producer, in_flight, SECONDS)
    seconds, client_s, broker_s = (
        after - first
        for after, first in zip((time.perf_counter(), processor_s(own), processor_s(broker)), before, strict=True)
    )
    return {
        "messages_per_s": count / seconds,
        "client_us": 1e6 * client_s / count,
        "broker_us": 1e6 * broker_s / count,
    }


async def compare(rounds: int) -> dict[str, dict[str, list[float]]]:
    """By wire and number in flight, each figure of each round."""
    results: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with Cluster(Path(folder), orders=False, broker_settings={"flushDiskType": ASYNC_FLUSH}) as cluster:
            (pid, *_) = cluster.brokers[0].pids
            broker = psutil.Process(pid)
            urls = {"frames": cluster.frames_url, "grpc": cluster.url}
            for _ in range(rounds):
                for in_flight in IN_FLIGHT:
                    for wire, url in urls.items():
                        async with Producer(f"{wire}-{in_flight}", url) as producer:
                            found = await measure(producer, broker, in_flight)
                        kept = results.setdefault(f"{wire}, {in_flight} in flight", {})
                        for name, value in found.items():
                            kept.setdefault(name, []).append(value)
    return results


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    head = describe_run() | {"load": [round(one, 1) for one in os.getloadavg()]}
    results = uvloop.run(compare(rounds))
    table = {
        case: {
            name: {
                "median": round(statistics.median(values), 1),
                "min": round(min(values), 1),
                "max": round(max(values), 1),
            }
            for name, values in found.items()
        }
        for case, found in results.items()
    }
    for case, found in table.items():
        rate, client, broker = (found[name] for name in ("messages_per_s", "client_us", "broker_us"))
        print(
            f"{case:22} {rate['median']:9,.0f} msg/s ({rate['min']:,.0f} to {rate['max']:,.0f}), "
            f"client {client['median']:.0f} us, broker {broker['median']:.0f} us"
        )
    ratios = {
        str(count): round(
            table[f"frames, {count} in flight"]["messages_per_s"]["median"]
            / table[f"grpc, {count} in flight"]["messages_per_s"]["median"],
            2,
        )
        for count in IN_FLIGHT
    }
    print(
        "frames beside gRPC: " + ", ".join(f"{ratio} times with {count} in flight" for count, ratio in ratios.items())
    )
    settings = {"rounds": rounds, "seconds": SECONDS, "body_bytes": len(BODY), "flush": ASYNC_FLUSH}
    EVIDENCE.write_text(json.dumps(head | settings | {"results": table, "ratios": ratios}, indent=2) + "\n")


if __name__ == "__main__":
    main()
