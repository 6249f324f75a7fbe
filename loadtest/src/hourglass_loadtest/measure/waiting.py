"""Very many messages that wait: what they take of the broker, and what a producer notices of them.

The starts of the broker that follow are measured by the bench itself (restarts.py).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator

from hourglass_loadtest.measure.broker_meter import BrokerMeter
from hourglass_loadtest.measure.cpu_use import CpuUse
from hourglass_loadtest.measure.sending import GROUP, make_topic, send_all, send_messages
from hourglass_loadtest.workload import Workload
from mqclient import Message, Producer

TOPIC, WAITING_TOPIC = "bench", "bench-waiting"
DELAY_MS_MIN, DELAY_MS_MAX = 3_600_000, 40 * 24 * 3_600_000  # no benchmark lasts an hour; 40 days are the most
PLAIN_ROUNDS = 5
SCATTER = 2_654_435_761  # a prime near 2**32 / 1.618, as for hashes: neighbours come to lie far apart


async def measure(url: str, workload: Workload, broker: BrokerMeter) -> dict[str, float]:
    """Plain messages alone, then those that wait, then plain messages beside them."""
    idle_mib = broker.rss_mib()
    for topic in (TOPIC, WAITING_TOPIC):
        await make_topic(url, topic, workload)
    async with Producer(GROUP, url) as producer:
        await send_all(producer, TOPIC, workload.warm_up_messages, workload)
        alone = await _plain(producer, workload, broker, "alone_")
        before_mib, begin = broker.rss_mib(), time.perf_counter()
        await send_messages(producer, _waiting(workload), workload.in_flight)
        seconds, waiting_mib = time.perf_counter() - begin, broker.rss_mib()
        beside = await _plain(producer, workload, broker, "beside_")
    return {
        "rss_idle_mib": idle_mib,
        "rss_before_mib": before_mib,
        "rss_waiting_mib": waiting_mib,
        "waiting_msg_per_s": workload.messages / seconds,
        **alone,
        **beside,
    }


async def _plain(producer: Producer, workload: Workload, broker: BrokerMeter, prefix: str) -> dict[str, float]:
    """The median of some rounds: the two throughputs are a minute apart, and the machine is not always the same."""
    cpu, rates = CpuUse(broker), list[float]()
    for _ in range(PLAIN_ROUNDS):
        begin = time.perf_counter()
        await send_all(producer, TOPIC, workload.plain_messages, workload)
        rates.append(workload.plain_messages / (time.perf_counter() - begin))
    metrics = {"msg_per_s": statistics.median(rates)} | cpu.per_1000(PLAIN_ROUNDS * workload.plain_messages)
    return {f"{prefix}{name}": value for name, value in metrics.items()}


def _waiting(workload: Workload) -> Iterator[Message]:
    """Of the delay level, or each with a delay of its own, scattered over all that there can be."""
    body = os.urandom(workload.body_bytes)
    for number in range(workload.messages):
        if workload.delay_level:
            yield Message(WAITING_TOPIC, body, delay_level=workload.delay_level)
        else:
            delay_ms = DELAY_MS_MIN + number * SCATTER % (DELAY_MS_MAX - DELAY_MS_MIN + 1)
            yield Message(WAITING_TOPIC, body, delay_ms=delay_ms)
