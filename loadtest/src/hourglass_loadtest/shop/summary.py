"""What a load did, what the processes used meanwhile, and what can be said of the shop when every order has ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NoReturn

import psutil

from hourglass_loadtest.measure.clients import percentile
from hourglass_loadtest.shop.options import Target
from hourglass_loadtest.users.plan import DONE, PLACE_ORDER, Records, Request, Stage
from hourglass_local.process import MIB
from hourglass_local.shop import CLOSED, PENDING, Order, Shop
from hourglass_local.waiting import NotInTimeError, eventually
from mqclient import Admin, MQClientError

LAG_INTERVAL_S = 2.0
DIGITS = 4
LOCUST = "locust"
# The generator shares the machine with the shop: beyond these its own slowness is in the figures.
GENERATOR_BUSY_SHARE, GENERATOR_LATE_P99_S = 0.85, 0.1
REJECTED_FOR_LOAD = ("503 overloaded", "429 rate-limited")
WRONG_SHOWN_MAX = 20
SETTLE_MAX_S = 240.0  # after the last expiry; a message that failed three times comes back after 1 min 40 s
LOOK_INTERVAL_S = 1.0
NOT_CHECKED = "not checked: the databases' URLs were not given (LOAD_ORDERS_DATABASE_URL and the two others)"


@dataclass(frozen=True, slots=True)
class Ending:
    """`checked` is how many invariants were looked at, 0 without access; `complaints` are sentences: what is wrong.

    `orders` are those that were placed since the load began, by status. Lateness is from expiry to close, in seconds.
    """

    settled_s: float
    checked: int
    complaints: Sequence[str]
    orders: Mapping[str, int]
    close_lateness_s: Sequence[float]


# Second by second: what each process uses, and how far each consumer group is behind.
#
# A group says how far it is every five seconds (mechanism L9): up to five seconds of messages in a lag have been
# handled.

INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """Processor time since the start of the process, and resident memory now, with all children's."""

    at: float
    cpu_s: float
    rss_mib: float


@dataclass(slots=True)
class Watched:
    """`processes` by name and `lags` by group are in the order of time, which is seconds since 1970."""

    processes: dict[str, list[ProcessSample]] = field(default_factory=dict)
    lags: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    machine_cpu: list[tuple[float, float]] = field(default_factory=list)  # share of all cores

    def cpu_shares(self, name: str) -> list[tuple[float, float]]:
        """(time, share of one core since the sample before); a process that was started anew begins at zero."""
        samples = self.processes.get(name, [])
        shares = []
        for before, after in pairwise(samples):
            used = after.cpu_s - before.cpu_s if after.cpu_s >= before.cpu_s else after.cpu_s
            shares.append((after.at, used / max(1e-9, after.at - before.at)))
        return shares

    def cpu_seconds(self, name: str) -> float:
        """Of all lives of the process, while it was watched."""
        samples = self.processes.get(name, [])
        return sum(
            after.cpu_s - before.cpu_s if after.cpu_s >= before.cpu_s else after.cpu_s
            for before, after in pairwise(samples)
        )


async def watch_processes(pids: Callable[[], Mapping[str, int]], watched: Watched) -> NoReturn:
    """Sample for ever."""
    psutil.cpu_percent()  # the first one has nothing to compare with
    while True:
        now = time.time()
        watched.machine_cpu.append((now, psutil.cpu_percent() / 100))
        for name, pid in pids().items():
            if (sample := _sample(now, pid)) is not None:
                watched.processes.setdefault(name, []).append(sample)
        await asyncio.sleep(INTERVAL_S)


async def watch_lags(queue_url: str, watched: Watched) -> NoReturn:
    """Ask for ever; while no broker answers there is nothing to write down."""
    async with Admin(queue_url) as admin:
        while True:
            try:
                for group, lag in (await lags(admin)).items():
                    watched.lags.setdefault(group, []).append((time.time(), lag))
            except MQClientError:
                pass  # it is being killed, or has just been: the gap in the chart says so
            await asyncio.sleep(LAG_INTERVAL_S)


async def lags(admin: Admin) -> dict[str, int]:
    """Messages that wait, by group, over all masters. Raises MQClientError."""
    groups: set[str] = set()
    for status in await admin.broker_statuses():
        groups.update(one.group for one in await admin.subscription_groups(status.address))
    found = {}
    for group in sorted(groups):
        stats = await admin.consume_stats(group)
        if stats.queues:
            found[group] = stats.lag
    return found


def _sample(now: float, pid: int) -> ProcessSample | None:
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return None
    ended = _ended_children_s(process)
    cpu_s, rss = ended or 0.0, 0
    for one in family:
        try:
            with one.oneshot():
                times, memory = one.cpu_times(), one.memory_info()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        cpu_s += times.user + times.system
        rss += memory.rss
    return None if ended is None else ProcessSample(now, float(cpu_s), rss / MIB)


def _ended_children_s(process: psutil.Process) -> float | None:
    """What children used that have ended, which is their parent's to count."""
    try:
        times = process.cpu_times()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return None
    return float(times.children_user + times.children_system)


# What a load came to, as a document: figures only, computed from records and samples.
#
# Latency is told twice: from sending a request, as Locust's own page tells it, and from when it was intended. A shop
# that stalls makes every user late, and the second one says so; the first one sees only the users that were let in.

PERCENTS = (50.0, 90.0, 99.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was done to the shop; times are seconds since 1970, `back` is when the process was ready again."""

    what: str
    at: float
    back: float


@dataclass(slots=True)
class Evidence:
    """Everything that was seen in one load. `begun` is when its first stage began, in seconds since 1970."""

    begun: float
    stages: Sequence[Stage]
    records: Records
    watched: Watched
    ending: Ending | None = None
    faults: list[Fault] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long visits began."""
        if self.stages:
            return sum(stage.seconds for stage in self.stages)
        return max((visit.intended for visit in self.records.visits), default=self.begun) - self.begun

    def between(self, begin: float, end: float) -> list[Request]:
        """The requests that were intended then, in seconds since the begin."""
        return [one for one in self.records.requests if begin <= one.intended - self.begun < end]


def summarize(evidence: Evidence) -> dict[str, Any]:
    """The whole load, and each of its stages."""
    records, seconds = evidence.records, max(evidence.seconds, 1e-9)
    requests = records.requests
    placed = _placed(requests)
    ending = evidence.ending
    return {
        "seconds": _short(seconds),
        "orders_placed": placed,
        "orders_per_s": _short(placed / seconds),
        "requests_per_s": _short(len(requests) / seconds),
        "visits": _visits(evidence),
        "requests": {name: _requests(of) for name, of in _by_name(requests).items()},
        "answers": dict(Counter(one.answer for one in requests).most_common()),
        "retries": sum(one.number > 1 for one in requests),
        "wrong_answers": list(records.wrong[:WRONG_SHOWN_MAX]),
        "stages": _stages(evidence),
        "generator": generator(evidence),
        "processes": _processes(evidence.watched),
        "machine_cpu_share": _mean([share for _, share in evidence.watched.machine_cpu]),
        "message_lag": {
            group: {"max": max(lag for _, lag in lags), "end": lags[-1][1]}
            for group, lags in sorted(evidence.watched.lags.items())
        },
        "faults": [
            {"what": one.what, "after_s": _short(one.at - evidence.begun), "back_after_s": _short(one.back - one.at)}
            | {"first_order_after_s": _first_order_after(evidence, one)}
            for one in evidence.faults
        ],
        **({} if ending is None else _ended(ending)),
    }


def complaints(evidence: Evidence) -> list[str]:
    """What must not be, whatever the figures are."""
    found = list(evidence.records.wrong)
    return found + (list(evidence.ending.complaints) if evidence.ending is not None else [])


def generator(evidence: Evidence) -> dict[str, Any]:
    """What the load cost, and whether it was the limit itself."""
    shares = _generator_shares(evidence.records.generator)
    late = [visit.begun - visit.intended for visit in evidence.records.visits]
    late_p99_s = percentile(late, 99) if late else 0.0
    busy = max((percentile(shares, 90) if shares else 0.0), 0.0)
    reasons = []
    if busy > GENERATOR_BUSY_SHARE:
        reasons.append(f"Locust was busy for {busy:.0%} of a core")
    if late_p99_s > GENERATOR_LATE_P99_S:
        reasons.append(f"one visit of a hundred began {late_p99_s * 1000:.0f} ms late or later")
    return {
        "cpu_share_mean": _mean(shares),
        "cpu_share_p90": _short(busy),
        "late_p99_ms": _short(late_p99_s * 1000),
        "was_the_limit": bool(reasons),
        "why": "; ".join(reasons),
    }


def latency_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles in milliseconds; empty for nothing."""
    if not seconds:
        return {}
    return {f"p{percent:g}": _short(percentile(seconds, percent) * 1000) for percent in PERCENTS} | {
        "max": _short(max(seconds) * 1000)
    }


def rejected_share(requests: Sequence[Request]) -> float:
    """How many of the first tries to place an order were rejected because of too much work."""
    first = [one for one in requests if one.name == PLACE_ORDER and one.number == 1]
    return sum(one.answer in REJECTED_FOR_LOAD for one in first) / len(first) if first else 0.0


def _requests(requests: Sequence[Request]) -> dict[str, Any]:
    good = [one for one in requests if one.is_new]
    return {
        "count": len(requests),
        "answers": dict(Counter(one.answer for one in requests).most_common()),
        "from_sending_ms": latency_ms([one.seconds for one in good]),
        "from_intended_ms": latency_ms([one.since_intended for one in good]),
    }


def _visits(evidence: Evidence) -> dict[str, Any]:
    kinds: dict[str, Counter[str]] = {}
    for visit in evidence.records.visits:
        kinds.setdefault(visit.kind, Counter())[visit.outcome] += 1
    total = sum((counts for counts in kinds.values()), Counter[str]())
    return {
        "per_s": _short(total.total() / max(evidence.seconds, 1e-9)),
        "outcomes": dict(total.most_common()),
        "kinds": {kind: dict(counts.most_common()) for kind, counts in sorted(kinds.items())},
    }


def _stages(evidence: Evidence) -> list[dict[str, Any]]:
    stages, begin = [], 0.0
    for stage in evidence.stages:
        end = begin + stage.seconds
        requests = evidence.between(begin, end)
        orders = [one for one in requests if one.name == PLACE_ORDER]
        good = [one for one in orders if one.is_new]
        at = evidence.begun
        ended = [one for one in evidence.records.visits if begin <= one.ended - at < end and one.outcome == DONE]
        answered = [one for one in evidence.records.requests if begin <= one.begun + one.seconds - at < end]
        stages.append(
            {
                "visits_per_s_intended": stage.visits_per_s,
                "seconds": stage.seconds,
                "orders_per_s": _short(_placed(answered) / stage.seconds),
                "visits_done_per_s": _short(len(ended) / stage.seconds),
                "post_orders_from_sending_ms": latency_ms([one.seconds for one in good]),
                "post_orders_from_intended_ms": latency_ms([one.since_intended for one in good]),
                "orders_refused_share": _short(rejected_share(requests)),
            }
        )
        begin = end
    return stages


def _processes(watched: Watched) -> dict[str, Any]:
    return {
        name: {
            "cpu_s": _short(watched.cpu_seconds(name)),
            "cpu_share_mean": _mean([share for _, share in watched.cpu_shares(name)]),
            "rss_peak_mib": _short(max(sample.rss_mib for sample in samples)),
        }
        for name, samples in watched.processes.items()
    }


def _ended(ending: Ending) -> dict[str, Any]:
    return {
        "orders_by_status": dict(ending.orders),
        "close_lateness_ms": {"count": len(ending.close_lateness_s)} | latency_ms(ending.close_lateness_s),
        "at_rest_after_s": _short(ending.settled_s),
        "invariants": {"checked": ending.checked, "violations": list(ending.complaints)}
        if ending.checked
        else {"checked": 0, "violations": list(ending.complaints), "why": NOT_CHECKED},
    }


def _first_order_after(evidence: Evidence, fault: Fault) -> float | None:
    """Seconds from the fault until an order that was asked for after it was placed."""
    ends = [
        one.begun + one.seconds
        for one in evidence.records.requests
        if one.name == PLACE_ORDER and one.is_new and one.begun >= fault.at
    ]
    return _short(min(ends) - fault.at) if ends else None


def _generator_shares(samples: Sequence[tuple[float, float]]) -> list[float]:
    return [
        (after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(samples) if after[0] > before[0]
    ]


def _by_name(requests: Sequence[Request]) -> dict[str, list[Request]]:
    found: dict[str, list[Request]] = {}
    for one in requests:
        found.setdefault(one.name, []).append(one)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _placed(requests: Sequence[Request]) -> int:
    return sum(one.name == PLACE_ORDER and one.answer == "201" for one in requests)


def _mean(values: Sequence[float]) -> float:
    return _short(sum(values) / len(values)) if values else 0.0


def _short(value: float) -> float:
    return round(value, DIGITS)


def orders_per_s(evidence: Evidence, begin: float, end: float) -> float:
    """Orders that were placed in a span of seconds since the begin."""
    at = evidence.begun
    answered = [one for one in evidence.records.requests if begin <= one.begun + one.seconds - at < end]
    return _placed(answered) / (end - begin)


Summary = Mapping[str, Any]


async def wait_for_the_end(target: Target, begun: float, payment_window_s: float) -> Ending:
    """Wait until no order waits for its payment any more and, where one may look, everything adds up.

    `begun` is when the load began, in seconds since 1970.
    """
    begin, complaints = time.monotonic(), []
    async with Shop(target.orders_url, target.badges) as shop:

        async def has_ended() -> bool:
            if target.cluster is not None:
                target.cluster.check()
            if target.standing is None:
                return not (await shop.statistics()).orders.get(PENDING, 0)
            return await target.standing.is_settled(shop, shipped_complete=False)

        try:
            await eventually(has_ended, payment_window_s + SETTLE_MAX_S, interval_s=LOOK_INTERVAL_S)
        except NotInTimeError:
            statuses = (await shop.statistics()).orders
            complaints.append(f"not at rest {payment_window_s + SETTLE_MAX_S:g} s after the load: {dict(statuses)}")
        settled_s = time.monotonic() - begin
        results = [] if target.standing is None else await target.standing.results()
        orders = (await shop.orders()).values()
    complaints += [str(violation) for result in results for violation in result.violations]
    placed = [order for order in orders if order.expires_at_ms / 1000 - payment_window_s >= begun - 1.0]
    return Ending(settled_s, len(results), complaints, _by_status(placed), close_lateness_s(placed))


def close_lateness_s(orders: Sequence[Order]) -> list[float]:
    """Of orders that closed unpaid at their expiry. One that its buyer cancels closes before it expires."""
    return [
        (order.closed_at_ms - order.expires_at_ms) / 1000
        for order in orders
        if order.status == CLOSED and order.closed_at_ms is not None and order.closed_at_ms >= order.expires_at_ms
    ]


def _by_status(orders: Sequence[Order]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for order in orders:
        counts[order.status] = counts.get(order.status, 0) + 1
    return dict(sorted(counts.items()))
