"""Messages that wait: a broker that holds very many, and how exactly they come when they are due."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

from hourglass_loadtest.measure.clients import (
    GROUP,
    TOPIC,
    BrokerMeter,
    CpuUse,
    MeasureError,
    all_queues,
    latency_metrics,
    make_consumer,
    make_topic,
    send_all,
    send_messages,
)
from hourglass_loadtest.measure.latency import NUMBER_BYTES, Arrivals, numbered_body
from hourglass_loadtest.measure.throughput import BESIDE_TOPIC, ProducerBeside, Sent
from hourglass_loadtest.workload import Workload
from mqclient import Admin, Message, Producer

# Very many messages that wait: what they take of the broker, and what a producer notices of them.
#
# The starts of the broker that follow are measured by the bench itself (run.py).

WAITING_TOPIC = "bench-waiting"
DELAY_MS_MIN, DELAY_MS_MAX = 3_600_000, 40 * 24 * 3_600_000  # no benchmark lasts an hour; 40 days are the most
PLAIN_ROUNDS = 5
SCATTER = 2_654_435_761  # a prime near 2**32 / 1.618, as for hashes: neighbours come to lie far apart


async def waiting(url: str, workload: Workload, broker: BrokerMeter) -> dict[str, float]:
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


# From the time that a message was to be delivered at until the listener has it.
#
# All messages are stored before the first of them is due, so that nothing is measured but their delivery; a producer
# that sends beside it is a process of its own, and measured by itself. The broker's clock is this machine's.

EPOCH = datetime.fromtimestamp(0, UTC)
SENDING_S_MIN, SENT_PER_S_MIN = 2.0, 2_000  # how long the sending may take
QUIET_S = 0.5  # at least, between the last acknowledgement and the first due time
WARM_UP_S = 1.0  # in which the messages of the warm-up come due
ARRIVAL_TIMEOUT_S = 60.0  # after the last message is due
BESIDE_S_MIN = 0.1  # of a producer beside it, so much is looked at, though everything may have arrived sooner


async def due(url: str, workload: Workload, broker: BrokerMeter) -> dict[str, float]:
    """Raises MeasureError also for a message that came early, twice, or was stored twice, and when sending was slow."""
    await make_topic(url, TOPIC, workload)
    await make_topic(url, BESIDE_TOPIC, workload)
    count = workload.warm_up_messages + workload.messages
    arrivals = Arrivals(count)
    consumer = make_consumer(url, TOPIC, workload, arrivals)
    beside = ProducerBeside(url, workload) if workload.beside_per_s else None
    async with Producer(GROUP, url) as producer, consumer, beside or nullcontext():
        await all_queues(consumer, TOPIC, workload)
        clock = _WallClock()
        due_ms = due_times_ms(clock.now_ms() + _sending_s(workload) * 1000, workload)
        due_at = list(map(clock.on_perf_counter, due_ms))
        await send_messages(producer, _messages(due_ms, workload), workload.in_flight)
        if (quiet_from := time.perf_counter()) + QUIET_S > due_at[0]:
            raise MeasureError(f"sending {count:,} messages took longer than {_sending_s(workload) - QUIET_S:.1f} s")
        cpu = CpuUse(broker)
        await arrivals.wait(due_at[-1] + ARRIVAL_TIMEOUT_S)
        cpu_seconds = cpu.per_1000(count)
        sent_beside = await beside.stop() if beside else []
    await _require_once(url, count)
    measured = range(workload.warm_up_messages, count)
    begin, end = due_at[measured[0]], max(*arrivals.at, due_at[measured[0]] + BESIDE_S_MIN)
    lateness_s = [arrivals.at[number] - due_at[number] for number in measured]
    require_none_early(lateness_s)
    return {
        **latency_metrics(lateness_s),
        "early": 0.0,
        **latency_metrics(_broker_lateness_s(arrivals, due_ms, measured), "broker_"),
        # What the broker does for the producer beside it is no part of a message.
        **(beside_metrics(sent_beside, (quiet_from, due_at[0]), (begin, end)) if beside else cpu_seconds),
    }


class _WallClock:
    """The wall clock, from now on without its jumps."""

    def __init__(self) -> None:
        self._wall_s, self._perf_s = time.time_ns() / 1e9, time.perf_counter()

    def now_ms(self) -> float:
        """Since 1970."""
        return (self._wall_s - self._perf_s + time.perf_counter()) * 1000

    def on_perf_counter(self, wall_ms: int) -> float:
        """When perf_counter shows the moment that is so many milliseconds after 1970."""
        return wall_ms / 1000 - self._wall_s + self._perf_s


def _sending_s(workload: Workload) -> float:
    return SENDING_S_MIN + (workload.warm_up_messages + workload.messages) / SENT_PER_S_MIN


def due_times_ms(begin_ms: float, workload: Workload) -> list[int]:
    """Those of the warm-up first, evenly, and the others after a second of quiet."""
    warm_up, count = workload.warm_up_messages, workload.messages
    second = begin_ms + 2 * WARM_UP_S * 1000
    return [round(begin_ms + number * WARM_UP_S * 1000 / warm_up) for number in range(warm_up)] + [
        round(second + number * workload.due_within_ms / count) for number in range(count)
    ]


def require_none_early(lateness_s: Sequence[float]) -> None:
    """Raises MeasureError for a message that came before its time: no figure of such a run means anything."""
    if early := sum(late_s < 0 for late_s in lateness_s):
        raise MeasureError(
            f"{early:,} of {len(lateness_s):,} messages came up to {-min(lateness_s) * 1000:.3f} ms before they were "
            "due, or the wall clock was set meanwhile"
        )


def _messages(due_ms: Sequence[int], workload: Workload) -> Iterator[Message]:
    padding = os.urandom(workload.body_bytes - NUMBER_BYTES)
    for number, ms in enumerate(due_ms):
        yield Message(TOPIC, numbered_body(number, padding), deliver_at=EPOCH + timedelta(milliseconds=ms))


def _broker_lateness_s(arrivals: Arrivals, due_ms: Sequence[int], measured: range) -> list[float]:
    """Store time of what was delivered, which the broker rounds up to milliseconds, minus due time."""
    messages = [(arrivals.messages[number], due_ms[number]) for number in measured]
    return [(message.store_timestamp_ms - due) / 1000 for message, due in messages if message is not None]


def beside_metrics(
    sent: Sequence[Sent], quiet: tuple[float, float], delivering: tuple[float, float]
) -> dict[str, float]:
    """What sends took that were to begin in the quiet, and while the messages were delivered: begin and end of each.

    Raises MeasureError when there were none.
    """
    metrics: dict[str, float] = {}
    for prefix, (begin, end) in (("send_before_", quiet), ("send_meanwhile_", delivering)):
        took_s = [took_s for intended, took_s in sent if begin <= intended <= end]
        if not took_s:
            raise MeasureError(f"the producer beside it sent nothing for {end - begin:.3f} s")
        metrics |= latency_metrics(took_s, prefix)
    return metrics


async def _require_once(url: str, count: int) -> None:
    """Raises MeasureError unless so many messages stand in the topic's queues."""
    async with Admin(url) as admin:
        delivered = sum(queue.max_offset for queue in await admin.topic_stats(TOPIC))
    if delivered != count:
        raise MeasureError(f"{count:,} messages were sent, and {delivered:,} delivered")
