"""Reading a range: every offset is in a batch, passed over by the filter, or told as lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqclient import (
    BrokerUnreachableError,
    IllegalArgumentError,
    MessageQueue,
    MessageSelector,
    NoRouteError,
    PulledFrame,
    PullStatus,
    RequestTimeoutError,
)
from mqproto.properties import TAGS, encode_properties
from mqproto.record import OFFSETS, OFFSETS_AT, encode_record, pack_ip, seal
from pyspark_mq.clients import ClientKey
from pyspark_mq.errors import BrokerAwayError, DataLossError, ReadRejectedError
from pyspark_mq.offsets import OffsetRange
from pyspark_mq.partition_reader import RangePartition, RangeReader, ReadPlan, gaps
from pyspark_mq.pushdown import Wanted
from pyspark_mq.schema import SCHEMA

QUEUE = MessageQueue("orders", "broker-a", 0)
PLAN = ReadPlan(
    key=ClientKey("mq://nowhere:1"),
    schema=SCHEMA,
    wanted=Wanted(),
    fail_on_data_loss=True,
    pull_batch_size=1_024,
    pull_timeout_s=30.0,
)
LENIENT = replace(PLAN, fail_on_data_loss=False)
IMPATIENT = replace(PLAN, pull_timeout_s=0.0)


def record(offset: int, tag: str = "t") -> bytes:
    properties = encode_properties({TAGS: tag})
    data = bytearray(
        encode_record(
            topic=b"orders",
            body=b"%d" % offset,
            properties=properties,
            queue_id=0,
            born_timestamp_ms=1,
            born_ip=pack_ip("10.0.0.1"),
        )
    )
    OFFSETS.pack_into(data, OFFSETS_AT, offset, 100 * offset)
    seal(data, 0, len(data))
    return bytes(data)


@dataclass
class FakeQueue:
    """A broker's queue of `first` to before `end`, without the `damaged` ones; gives up to `frame` messages at once.

    `answers` come before its own: what each makes of the right answer.
    """

    first: int = 0
    end: int = 100
    frame: int = 7
    damaged: frozenset[int] = frozenset()
    tags: Callable[[int], str] = lambda _: "t"
    answers: list[Callable[[PulledFrame], PulledFrame]] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    master_end: int | None = None  # of the master; None: it is the one that answers
    has_master: bool = True

    def queue_offsets(self, queue: MessageQueue) -> tuple[int, int]:
        if not self.has_master:
            raise NoRouteError("no master is registered as 'broker-a'")
        return self.first, self.end if self.master_end is None else self.master_end

    def pull_frame(
        self, queue: MessageQueue, offset: int, *, expression: str | MessageSelector, max_messages: int
    ) -> PulledFrame:
        assert queue == QUEUE
        self.asked.append(offset)
        right = self._answer(offset, expression, max_messages)
        return self.answers.pop(0)(right) if self.answers else right

    def _answer(self, offset: int, expression: str | MessageSelector, max_messages: int) -> PulledFrame:
        if not self.first <= offset <= self.end:
            nearest = self.first if offset < self.first else self.end
            return PulledFrame(PullStatus.OFFSET_ILLEGAL, nearest, self.first, self.end, b"")
        following = min(offset + min(self.frame, max_messages), self.end)
        if following == offset:
            return PulledFrame(PullStatus.NO_NEW_MSG, offset, self.first, self.end, b"")
        wanted = {tag.strip() for tag in str(expression).split("||")}
        found = [
            record(at, self.tags(at))
            for at in range(offset, following)
            if at not in self.damaged and (expression == "*" or self.tags(at) in wanted)
        ]
        status = PullStatus.FOUND if found else PullStatus.NO_MATCHED_MSG
        return PulledFrame(status, following, self.first, self.end, b"".join(found))


class FakeClient:
    """As much of a Client as a RangeReader needs."""

    def __init__(self, queue: FakeQueue, ahead: ThreadPoolExecutor) -> None:
        self.consumer = self.admin = queue
        self.ahead = ahead


@pytest.fixture(scope="module")
def ahead() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def read(queue: FakeQueue, start: int, end: int, ahead: ThreadPoolExecutor, plan: ReadPlan = PLAN) -> list[int]:
    """The offsets of the rows."""
    client: Any = FakeClient(queue, ahead)
    batches = list(RangeReader(OffsetRange(QUEUE, start, end), plan, client).batches())
    return [offset for batch in batches for offset in batch.column("queueOffset").to_pylist()]


def fail(error: Exception) -> Callable[[PulledFrame], PulledFrame]:
    def answer(_: PulledFrame) -> PulledFrame:
        raise error

    return answer


def spoiled(frame: PulledFrame) -> PulledFrame:
    return replace(frame, records=frame.records[:-1] + b"?")


class TestEveryOffset:
    @settings(deadline=None)
    @given(
        first=st.integers(0, 20),
        size=st.integers(1, 40),
        frame=st.integers(1, 9),
        part=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    )
    def test_of_the_range_comes_once_and_no_other(
        self, first: int, size: int, frame: int, part: tuple[float, float]
    ) -> None:
        queue = FakeQueue(first=first, end=first + size, frame=frame)
        start, end = sorted(first + int(one * size) for one in part)
        with ThreadPoolExecutor(1) as ahead:
            assert read(queue, start, end, ahead) == list(range(start, end))

    def test_with_a_filter_those_that_are_wanted_come_and_nothing_beyond_the_end(
        self, ahead: ThreadPoolExecutor
    ) -> None:
        plan = replace(PLAN, wanted=Wanted(tags=frozenset({"even"})))
        queue = FakeQueue(tags=lambda at: "even" if at % 2 == 0 else "odd", frame=20)
        assert read(queue, 3, 31, ahead, plan) == list(range(4, 31, 2))

    def test_where_the_filter_finds_nothing_the_read_goes_on(self, ahead: ThreadPoolExecutor) -> None:
        plan = replace(PLAN, wanted=Wanted(tags=frozenset({"last"})))
        queue = FakeQueue(tags=lambda at: "last" if at == 99 else "other")
        assert read(queue, 0, 100, ahead, plan) == [99]
        assert queue.asked == list(range(0, 100, 7))

    def test_an_empty_range_asks_no_broker(self, ahead: ThreadPoolExecutor) -> None:
        queue = FakeQueue()
        assert (read(queue, 5, 5, ahead), queue.asked) == ([], [])

    def test_the_next_pull_is_under_way_while_rows_are_made(self, ahead: ThreadPoolExecutor) -> None:
        queue = FakeQueue(end=21)
        client: Any = FakeClient(queue, ahead)
        batches = RangeReader(OffsetRange(QUEUE, 0, 21), PLAN, client).batches()
        assert isinstance(next(batches), pa.RecordBatch)
        ahead.submit(lambda: None).result()  # what was submitted before is done
        assert queue.asked == [0, 7]
        assert len(list(batches)) == 2


class TestLoss:
    def test_what_retention_has_deleted_is_named(self, ahead: ThreadPoolExecutor) -> None:
        with pytest.raises(DataLossError) as error:
            read(FakeQueue(first=40), 10, 60, ahead)
        assert str(error.value) == (
            "the offsets 10 to 39 of topic 'orders', broker 'broker-a', queue 0, are lost: the queue begins at offset "
            "40 now; set failOnDataLoss=false to read what is left"
        )

    def test_or_what_is_left_is_read_and_the_loss_is_logged(
        self, ahead: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING):
            assert read(FakeQueue(first=40), 10, 60, ahead, LENIENT) == list(range(40, 60))
        assert "the offsets 10 to 39 of topic 'orders'" in caplog.text
        assert "they are passed over, because failOnDataLoss is false" in caplog.text

    def test_a_range_that_is_deleted_as_a_whole(self, ahead: ThreadPoolExecutor) -> None:
        with pytest.raises(DataLossError, match=r"the offsets 10 to 19 .* begins at offset 40 now"):
            read(FakeQueue(first=40), 10, 20, ahead)
        assert read(FakeQueue(first=40), 10, 20, ahead, LENIENT) == []

    def test_deletion_in_the_middle_of_the_read(self, ahead: ThreadPoolExecutor) -> None:
        queue = FakeQueue(end=60)

        def delete(frame: PulledFrame) -> PulledFrame:
            queue.first = 30
            return frame

        queue.answers.append(delete)
        assert read(queue, 0, 60, ahead, LENIENT) == [*range(7), *range(30, 60)]

    def test_a_damaged_message_is_lost_and_named(
        self, ahead: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = FakeQueue(damaged=frozenset({3, 14, 15}))
        with pytest.raises(DataLossError, match=r"the offsets 3 to 3 .* the broker has left them out as damaged"):
            read(queue, 0, 20, ahead)
        assert read(queue, 0, 20, ahead, LENIENT) == [at for at in range(20) if at not in queue.damaged]
        assert "the offsets 14 to 15 of topic" in caplog.text

    def test_a_frame_of_damaged_messages_only(self, ahead: ThreadPoolExecutor) -> None:
        queue = FakeQueue(damaged=frozenset(range(7, 14)))
        with pytest.raises(DataLossError, match="the offsets 7 to 13 "):
            read(queue, 0, 21, ahead)
        assert read(queue, 0, 21, ahead, LENIENT) == [*range(7), *range(14, 21)]

    def test_a_queue_that_is_shorter_than_the_range(self, ahead: ThreadPoolExecutor) -> None:
        queue = FakeQueue(end=10)
        with pytest.raises(DataLossError, match=r"the offsets 15 to 19 .* the queue ends at offset 10"):
            read(queue, 15, 20, ahead)
        with pytest.raises(DataLossError, match=r"the offsets 10 to 19 .* the queue ends at offset 10 since 0 s"):
            read(queue, 5, 20, ahead, IMPATIENT)
        assert read(queue, 5, 20, ahead, replace(IMPATIENT, fail_on_data_loss=False)) == list(range(5, 10))


class TestTrouble:
    def test_a_broker_that_is_away_for_a_moment_is_asked_again(self, ahead: ThreadPoolExecutor) -> None:
        queue = FakeQueue(answers=[fail(BrokerUnreachableError("away")), fail(RequestTimeoutError("silent"))])
        assert read(queue, 0, 20, ahead) == list(range(20))
        assert queue.asked[:3] == [0, 0, 0]

    def test_one_that_stays_away_is_told(self, ahead: ThreadPoolExecutor) -> None:
        queue = FakeQueue(answers=[fail(BrokerUnreachableError("away"))])
        with pytest.raises(BrokerAwayError, match="orders@broker-a:0 could not be read at offset 0 for 0 s: away"):
            read(queue, 0, 20, ahead, IMPATIENT)

    def test_a_rejection_for_good_is_told_at_once(self, ahead: ThreadPoolExecutor) -> None:
        queue = FakeQueue(answers=[fail(IllegalArgumentError("no such thing"))])
        with pytest.raises(ReadRejectedError, match="orders@broker-a:0 cannot be read at offset 0: no such thing"):
            read(queue, 0, 20, ahead)

    def test_bytes_that_were_damaged_on_their_way_are_asked_for_again(self, ahead: ThreadPoolExecutor) -> None:
        queue = FakeQueue(answers=[lambda frame: frame, spoiled])
        assert read(queue, 0, 20, ahead) == list(range(20))
        assert queue.asked.count(7) == 2

    @pytest.mark.parametrize("plan", [IMPATIENT, replace(IMPATIENT, fail_on_data_loss=False)])
    def test_one_that_keeps_back_what_it_has_has_lost_nothing(self, ahead: ThreadPoolExecutor, plan: ReadPlan) -> None:
        """A replica does so with what its master has not told it is confirmed."""

        def keep_back(frame: PulledFrame) -> PulledFrame:
            return replace(frame, status=PullStatus.NO_NEW_MSG, next_begin_offset=9, records=b"")

        queue = FakeQueue(end=10, frame=9, answers=[lambda frame: frame, keep_back])
        sentence = (
            "orders@broker-a:0 could not be read at offset 9 for 0 s: the queue has messages up to 9, "
            "and its broker keeps this one back as not confirmed"
        )
        with pytest.raises(BrokerAwayError, match=sentence):
            read(queue, 0, 10, ahead, plan)

    @pytest.mark.parametrize("plan", [IMPATIENT, replace(IMPATIENT, fail_on_data_loss=False)])
    @pytest.mark.parametrize(
        ("master", "sentence"),
        [
            (
                {"has_master": False},
                "only a replica has answered, which does not have it, and no master: no master is registered",
            ),
            ({"master_end": 20}, "the queue has messages up to 19"),
        ],
    )
    def test_what_a_replica_does_not_have_is_not_lost(
        self, ahead: ThreadPoolExecutor, plan: ReadPlan, master: dict[str, Any], sentence: str
    ) -> None:
        with pytest.raises(BrokerAwayError, match=f"could not be read at offset 10 for 0 s: {sentence}"):
            read(FakeQueue(end=10, **master), 5, 20, ahead, plan)

    def test_a_message_that_cannot_be_read_by_others_yet_is_waited_for(self, ahead: ThreadPoolExecutor) -> None:
        queue = FakeQueue(end=5)

        def grow(frame: PulledFrame) -> PulledFrame:
            queue.end = 10
            return frame

        queue.answers += [lambda frame: frame, grow]
        assert read(queue, 0, 10, ahead) == list(range(10))

    def test_an_answer_with_other_offsets_is_rejected(self, ahead: ThreadPoolExecutor) -> None:
        twice = FakeQueue(answers=[lambda frame: replace(frame, records=frame.records + record(3))])
        with pytest.raises(ReadRejectedError, match="has answered a pull at 0 with offsets"):
            read(twice, 0, 20, ahead)

    def test_who_stops_reading_ends_the_pull_that_waits(self, ahead: ThreadPoolExecutor) -> None:
        queue = FakeQueue(end=7)
        client: Any = FakeClient(queue, ahead)
        batches: Any = RangeReader(OffsetRange(QUEUE, 0, 21), replace(PLAN, pull_timeout_s=1e6), client).batches()
        next(batches)
        batches.close()
        ahead.submit(lambda: None).result()


def test_gaps_are_what_lies_between() -> None:
    assert list(gaps([2, 3, 6], 1, 9)) == [(1, 2), (4, 6), (7, 9)]
    assert list(gaps([], 1, 3)) == [(1, 3)]
    assert list(gaps([1, 2], 1, 3)) == []


def test_a_partition_says_what_it_is() -> None:
    assert "orders@broker-a:0 from offset 3 to before 9" in repr(RangePartition(OffsetRange(QUEUE, 3, 9)))
