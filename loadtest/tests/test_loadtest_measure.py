"""Parts of the measurements by themselves: what is no figure is rejected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from hourglass_loadtest.measure.clients import MeasureError, start_on_time
from hourglass_loadtest.measure.latency import Arrivals, numbered_body
from hourglass_loadtest.measure.waiting import beside_metrics, due_times_ms, require_none_early
from hourglass_loadtest.workload import parse_workload
from mqclient import ConsumeStatus, MessageExt
from mqproto.record import decode_record, encode_record

PAST = 0.0  # on perf_counter


def message(number: int) -> MessageExt:
    record = encode_record(
        topic=b"t", body=numbered_body(number, b"..."), properties=b"", queue_id=0, born_timestamp_ms=0, born_ip=0
    )
    return MessageExt(decode_record(record), "broker")


async def test_arrivals_are_noted_by_number() -> None:
    arrivals = Arrivals(3)
    begin = time.perf_counter()
    assert await arrivals([message(2), message(0)]) is ConsumeStatus.CONSUME_SUCCESS
    with pytest.raises(MeasureError, match="1 of 3 messages did not arrive"):
        await arrivals.wait(PAST)
    await arrivals([message(1)])
    await arrivals.wait(PAST)
    assert begin <= arrivals.at[2] == arrivals.at[0] <= arrivals.at[1]
    assert [one.body[7] for one in arrivals.messages if one is not None] == [0, 1, 2]


async def test_message_that_arrives_twice_fails_the_run() -> None:
    arrivals = Arrivals(2)
    await arrivals([message(0), message(0)])
    await arrivals([message(1)])
    with pytest.raises(MeasureError, match="1 messages arrived twice"):
        await arrivals.wait(PAST)


async def test_work_is_started_in_order_and_never_too_soon() -> None:
    begin = time.perf_counter()
    times = [begin, begin + 0.01, begin + 0.01, begin + 0.02]
    started: list[tuple[int, float]] = []

    async def work(number: int) -> None:
        started.append((number, time.perf_counter()))

    await start_on_time(times, work)
    assert [number for number, _ in started] == [0, 1, 2, 3]
    assert all(at >= due for (_, at), due in zip(started, times, strict=True))


async def test_failed_work_ends_the_pacing() -> None:
    asked: list[float] = []

    def times() -> Iterator[float]:
        while True:
            asked.append(time.perf_counter())
            yield asked[-1] + 0.001

    async def work(number: int) -> None:
        raise MeasureError(f"number {number}")

    async with asyncio.timeout(10):
        with pytest.raises(ExceptionGroup) as failed:
            await start_on_time(times(), work)
    assert failed.group_contains(MeasureError, match="number 0")


def test_due_times_lie_evenly_behind_those_of_the_warm_up() -> None:
    due = {"name": "w", "kind": "due", "messages": 4, "warm_up_messages": 2}
    assert due_times_ms(1000, parse_workload(due | {"due_within_ms": 10})) == [1000, 1500, 3000, 3002, 3005, 3008]
    assert due_times_ms(1000, parse_workload(due)) == [1000, 1500, 3000, 3000, 3000, 3000]


def test_message_that_comes_early_fails_the_run() -> None:
    require_none_early([0.0, 0.001])
    with pytest.raises(MeasureError, match=r"1 of 2 messages came up to 0\.500 ms before they were due"):
        require_none_early([0.001, -0.0005])


def test_sends_beside_count_by_the_time_at_which_they_were_to_begin() -> None:
    sent = [(1.0, 0.001), (2.0, 0.002), (3.0, 0.003), (4.0, 0.004)]
    metrics = beside_metrics(sent, (1.5, 2.5), (2.5, 3.5))
    assert (metrics["send_before_p99_ms"], metrics["send_meanwhile_p99_ms"]) == (2, 3)
    with pytest.raises(MeasureError, match=r"sent nothing for 1\.000 s"):
        beside_metrics(sent, (1.5, 2.5), (5.0, 6.0))
