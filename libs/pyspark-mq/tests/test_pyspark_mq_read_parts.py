"""What plans a read: ranges, ends of batches, offsets as JSON, positions, and filters that are taken over."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from mqclient import BrokerUnreachableError, IllegalArgumentError, MessageQueue, MessageSelector, RequestTimeoutError
from pyspark_mq import batch_reader
from pyspark_mq.clients import Bounds, Patience
from pyspark_mq.errors import BrokerAwayError, DataLossError, OptionError, ReadRejectedError
from pyspark_mq.offsets import OffsetRange, from_json, split, to_json
from pyspark_mq.options import NoMatchStrategy, Position, PositionKind
from pyspark_mq.pushdown import VALUES_MAX, Wanted, push
from pyspark_mq.stream_reader import batch_ends, waiting_records

Q0, Q1, Q10 = (MessageQueue("orders", "broker-a", number) for number in (0, 1, 10))
queues = st.builds(MessageQueue, st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"]), st.integers(0, 3))
ranges = st.dictionaries(queues, st.tuples(st.integers(0, 50), st.integers(0, 300)), max_size=8).map(
    lambda found: [OffsetRange(queue, start, start + size) for queue, (start, size) in found.items()]
)


class TestSplit:
    @settings(deadline=None)
    @given(ranges, st.integers(0, 40), st.integers(0, 60))
    def test_every_offset_is_in_exactly_one_part(self, wanted: list[OffsetRange], least: int, most: int) -> None:
        parts = split(wanted, min_partitions=least, max_records_per_partition=most)
        offsets = [(part.queue, offset) for part in parts for offset in range(part.start, part.end)]
        assert offsets == [(one.queue, offset) for one in wanted for offset in range(one.start, one.end)]
        assert all(part.size > 0 for part in parts)
        assert len(parts) >= min(least, len(offsets))
        assert all(part.size <= most for part in parts) or not most

    def test_without_bounds_a_queue_is_a_partition(self) -> None:
        wanted = [OffsetRange(Q0, 0, 1_000_000), OffsetRange(Q1, 5, 6), OffsetRange(Q10, 7, 7)]
        assert split(wanted) == wanted[:2]

    def test_large_ranges_are_split_first_and_alike(self) -> None:
        sizes = [part.size for part in split([OffsetRange(Q0, 0, 900), OffsetRange(Q1, 0, 100)], min_partitions=4)]
        assert sizes == [300, 300, 300, 100]


class TestBatchEnds:
    @settings(deadline=None)
    @given(ranges, st.integers(1, 500))
    def test_a_limit_is_kept_exactly_and_nothing_goes_back(self, waiting: list[OffsetRange], limit: int) -> None:
        begin = {one.queue: one.start for one in waiting}
        end = {one.queue: one.end for one in waiting}
        ends = batch_ends(begin, end, limit)
        assert waiting_records(begin, ends) == min(limit, waiting_records(begin, end))
        assert all(begin[queue] <= ends[queue] <= end[queue] for queue in end)
        assert ends.keys() == end.keys()

    def test_queues_get_their_share_of_what_waits(self) -> None:
        assert batch_ends({Q0: 0, Q1: 10}, {Q0: 300, Q1: 110}, 40) == {Q0: 30, Q1: 20}

    @pytest.mark.parametrize("limit", [1, 2, 3, 40])
    def test_a_quiet_queue_is_read_beside_queues_that_are_filled_as_fast_as_they_are_read(self, limit: int) -> None:
        at = dict.fromkeys((Q0, Q1, Q10), 0)
        for _ in range(3):
            at = batch_ends(at, {Q0: at[Q0] + 1_000_000, Q1: 1, Q10: at[Q10] + 1_000_000}, limit)
        assert at[Q1] == 1

    def test_one_at_a_time_everything_is_read_in_the_end(self) -> None:
        at, end = {Q0: 0, Q1: 0, Q10: 5}, {Q0: 2, Q1: 3, Q10: 5}
        steps = 0
        while at != end:
            at = batch_ends(at, end, 1)
            steps += 1
        assert steps == 5


class TestOffsetsAsJson:
    @settings(deadline=None)
    @given(st.dictionaries(queues, st.integers(0, 1 << 62)))
    def test_what_was_written_is_read(self, offsets: dict[MessageQueue, int]) -> None:
        assert from_json(json.loads(json.dumps(to_json(offsets))), "x") == offsets

    def test_equal_offsets_are_equal_text_with_queues_by_number(self) -> None:
        text = json.dumps(to_json({Q10: 3, Q0: 1, Q1: 2}))
        assert text == '{"orders": {"broker-a": {"0": 1, "1": 2, "10": 3}}}'
        assert text == json.dumps(to_json({Q0: 1, Q1: 2, Q10: 3}))


class Cluster:
    """Answers questions for times: by queue, the store times of its messages."""

    def __init__(self, times: Mapping[MessageQueue, list[int]]) -> None:
        self._times = times

    def at_times(self, times: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        return {queue: sum(stored < at for stored in self._times[queue]) for queue, at in times.items()}


BOUNDS = {Q0: Bounds(2, 4), Q1: Bounds(0, 3)}
CLUSTER: Any = Cluster({Q0: [1, 1, 10, 20], Q1: [5, 6, 7]})


def place(kind: PositionKind, **options: Any) -> dict[MessageQueue, int]:
    return batch_reader.beginning(Position(kind, "startingOffsets", **options), BOUNDS, CLUSTER)


class TestPositions:
    def test_words_are_the_bounds(self) -> None:
        assert place(PositionKind.EARLIEST) == {Q0: 2, Q1: 0}
        assert place(PositionKind.LATEST) == {Q0: 4, Q1: 3}

    def test_offsets_stand_for_themselves_and_two_of_them_for_words(self) -> None:
        assert place(PositionKind.OFFSETS, numbers={Q0: 3, Q1: -2}) == {Q0: 3, Q1: 0}
        assert place(PositionKind.OFFSETS, numbers={Q0: -1, Q1: 1}) == {Q0: 4, Q1: 1}

    def test_a_time_is_the_first_message_of_then_or_later(self) -> None:
        assert place(PositionKind.TIMESTAMP, timestamp_ms=6) == {Q0: 2, Q1: 1}
        assert place(PositionKind.TIMESTAMPS, numbers={Q0: 11, Q1: 5}) == {Q0: 3, Q1: 0}

    def test_a_beginning_that_no_message_has_is_an_error_or_the_end(self) -> None:
        assert place(PositionKind.TIMESTAMP, timestamp_ms=8) == {Q0: 2, Q1: 3}
        with pytest.raises(OptionError, match=r"orders@broker-a:1 has no message of that time or later; set starting"):
            place(PositionKind.TIMESTAMP, timestamp_ms=8, strategy=NoMatchStrategy.ERROR)

    def test_all_queues_have_to_be_named_and_no_others(self) -> None:
        with pytest.raises(OptionError, match="startingOffsets says nothing about orders@broker-a:1; name every queue"):
            place(PositionKind.OFFSETS, numbers={Q0: 3})
        with pytest.raises(OptionError, match="names orders@broker-a:10, which this read does not have"):
            place(PositionKind.OFFSETS, numbers={Q0: 3, Q1: 1, Q10: 0})

    def test_a_read_does_not_begin_behind_the_end(self) -> None:
        with pytest.raises(OptionError, match="orders@broker-a:0 would be read from offset 5, and it ends at 4"):
            place(PositionKind.OFFSETS, numbers={Q0: 5, Q1: 1})


class TestWithinBounds:
    def test_what_is_there_is_read_and_empty_queues_are_left_out(self) -> None:
        found = batch_reader.within_bounds({Q0: 2, Q1: 3}, {Q0: 4, Q1: 3}, BOUNDS, fail_on_data_loss=True)
        assert found == {Q0: (2, 4)}

    @pytest.mark.parametrize(
        ("begin", "end", "lost", "left"),
        [
            (
                0,
                4,
                "the offsets 0 to 1 of topic 'orders', broker 'broker-a', queue 0, are lost: the queue begins",
                (2, 4),
            ),
            (0, 1, "the offsets 0 to 0 of topic", None),
            (
                3,
                9,
                "the offsets 4 to 8 of topic 'orders', broker 'broker-a', queue 0, are lost: the queue ends",
                (3, 4),
            ),
        ],
    )
    def test_what_is_not_there_is_a_loss_or_passed_over(
        self, begin: int, end: int, lost: str, left: tuple[int, int] | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(DataLossError, match=f"{lost}.*set failOnDataLoss=false to read what is left"):
            batch_reader.within_bounds({Q0: begin}, {Q0: end}, BOUNDS, fail_on_data_loss=True)
        found = batch_reader.within_bounds({Q0: begin}, {Q0: end}, BOUNDS, fail_on_data_loss=False)
        assert found == ({Q0: left} if left else {})
        assert lost in caplog.text

    def test_what_only_a_replica_has_told_may_be_more(self) -> None:
        bounds = {Q0: Bounds(2, 4, by_replica=True)}
        assert batch_reader.within_bounds({Q0: 0}, {Q0: 9}, bounds, fail_on_data_loss=True) == {Q0: (0, 9)}


TAG, KEY, TOPIC, BROKER, QUEUE_ID, OFFSET, STORED = (
    (name,) for name in ("tag", "key", "topic", "broker", "queueId", "queueOffset", "storeTimestamp")
)
WHEN = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
WHEN_MS = 1_767_323_045_678


class TestPushdown:
    def test_what_is_taken_over_spark_does_not_look_at_again(self) -> None:
        filters: list[Filter] = [
            IsNotNull(TAG),
            In(TAG, ("paid", "created")),
            EqualTo(KEY, "order-1"),
            EqualTo(TOPIC, "orders"),
            Not(In(BROKER, ("broker-b",))),
            GreaterThan(QUEUE_ID, 0),
            LessThan(OFFSET, 10),
            GreaterThanOrEqual(OFFSET, 3),
            IsNotNull(OFFSET),
        ]
        pushed, left = push(filters)
        assert left == []
        assert (pushed.tags, pushed.keys) == (frozenset({"paid", "created"}), frozenset({"order-1"}))
        assert pushed.within(0, 100) == (3, 10)
        assert [pushed.takes(queue) for queue in (Q0, Q1, Q1._replace(broker_name="broker-b"))] == [False, True, False]

    def test_what_only_narrows_the_read_stays_with_spark(self) -> None:
        filters: list[Filter] = [GreaterThanOrEqual(STORED, WHEN), In(OFFSET, (3, 9))]
        pushed, left = push(filters)
        assert left == filters
        assert (pushed.from_ms, pushed.to_ms, pushed.within(0, 100)) == (WHEN_MS, None, (3, 10))

    @pytest.mark.parametrize(
        "one",
        [
            IsNull(TAG),
            IsNotNull(TAG),
            IsNotNull(KEY),
            Not(EqualTo(TAG, "paid")),
            StringStartsWith(KEY, "order-"),
            StringContains(TOPIC, "x"),
            GreaterThan(TOPIC, "a"),
            EqualTo(TAG, ""),
            EqualTo(TAG, "*"),
            EqualTo(TAG, " paid"),
            EqualTo(TAG, "a||b"),
            EqualNullSafe(TAG, None),
            In(KEY, ("a", None)),
            In(KEY, tuple(str(number) for number in range(VALUES_MAX + 1))),
            EqualTo(("body",), b"x"),
            EqualTo(("properties", "region"), "east"),
            EqualTo(OFFSET, None),
            EqualTo(STORED, WHEN.replace(tzinfo=None)),
            EqualTo(("bornTimestamp",), WHEN),
        ],
        ids=repr,
    )
    def test_what_it_cannot_do_it_leaves_alone(self, one: Filter) -> None:
        pushed, left = push([one])
        assert left == [one]
        assert pushed == push([])[0]

    def test_two_conditions_on_a_tag_are_both_fulfilled(self) -> None:
        pushed, left = push([In(TAG, ("a", "b")), In(TAG, ("b", "c")), EqualTo(TAG, "d")])
        assert (pushed.tags, left) == (frozenset(), [])
        assert Wanted().pushed(pushed).is_nothing

    @pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=8))])
    @pytest.mark.parametrize(
        ("make", "from_ms", "to_ms"),
        [
            (GreaterThan, WHEN_MS, None),
            (LessThan, None, WHEN_MS + 1),
            (LessThanOrEqual, None, WHEN_MS + 1),
            (EqualTo, WHEN_MS, WHEN_MS + 1),
        ],
    )
    def test_times_are_rounded_so_that_no_message_is_missed(
        self, make: Callable[..., Filter], from_ms: int | None, to_ms: int | None, zone: timezone
    ) -> None:
        pushed, _ = push([make(STORED, WHEN.astimezone(zone))])
        assert (pushed.from_ms, pushed.to_ms) == (from_ms, to_ms)

    @settings(deadline=None)
    @given(st.data())
    def test_a_row_passes_as_the_filters_say(self, data: st.DataObject) -> None:
        """Against their meaning, written down once more, for columns of whole numbers."""
        comparisons = {
            EqualTo: int.__eq__,
            GreaterThan: int.__gt__,
            GreaterThanOrEqual: int.__ge__,
            LessThan: int.__lt__,
            LessThanOrEqual: int.__le__,
        }
        chosen = data.draw(
            st.lists(
                st.tuples(st.sampled_from(list(comparisons)), st.sampled_from([OFFSET, QUEUE_ID]), st.integers(-1, 6))
            )
        )
        pushed, left = push([kind(column, value) for kind, column, value in chosen])
        assert left == []
        for queue_id in range(4):
            start, end = pushed.within(0, 5)
            taken = pushed.takes(Q0._replace(queue_id=queue_id))
            for offset in range(5):
                row = {OFFSET: offset, QUEUE_ID: queue_id}
                wanted = all(comparisons[kind](row[column], value) for kind, column, value in chosen)
                assert (taken and start <= offset < end) == wanted


class TestWanted:
    def test_a_broker_is_asked_for_tags_by_their_hashes(self) -> None:
        assert Wanted().selector == "*"
        assert Wanted(tags=frozenset({"b", "a"})).selector == "a || b"
        assert Wanted(keys=frozenset({"k"})).selector == "*"
        assert Wanted(keys=frozenset({"k"})).gets_everything

    def test_where_brokers_can_it_is_asked_for_keys_and_all_the_rest_in_one_condition(self) -> None:
        wanted = Wanted(tags=frozenset({"t"}), keys=frozenset({"it's", "k"}), sql="a > 1 OR b = 2", asks_for_keys=True)
        condition = "(a > 1 OR b = 2) AND TAGS IN ('t') AND KEYS IN ('it''s', 'k')"
        assert wanted.selector == MessageSelector.by_sql(condition)

    def test_tags_of_an_option_and_of_a_filter_are_both_wanted(self) -> None:
        wanted = Wanted(tags=frozenset({"a", "b"}))
        assert wanted.pushed(push([In(TAG, ("b", "c"))])[0]).tags == frozenset({"b"})
        assert wanted.pushed(push([])[0]).tags == frozenset({"a", "b"})


class TestPatience:
    def test_what_may_help_is_asked_again_and_the_answer_is_the_answer(self) -> None:
        errors = [BrokerUnreachableError("no"), RequestTimeoutError("silent"), BrokerAwayError("gone")]

        def call() -> str:
            if errors:
                raise errors.pop()
            return "yes"

        assert Patience(3, 0.0).ask("asking", call) == "yes"

    def test_after_so_many_tries_the_last_error_is_told(self) -> None:
        tries = []

        def call() -> None:
            tries.append(1)
            raise BrokerUnreachableError("nothing listens")

        with pytest.raises(BrokerAwayError, match="asking is not possible, tried 3 times: nothing listens"):
            Patience(2, 0.0).ask("asking", call)
        assert len(tries) == 3

    def test_what_would_not_help_is_asked_once(self) -> None:
        def call() -> None:
            raise IllegalArgumentError("senseless")

        with pytest.raises(ReadRejectedError, match="asking is not possible: senseless"):
            Patience(9, 99.0).ask("asking", call)

    def test_who_is_given_up_does_not_wait(self) -> None:
        given_up = threading.Event()
        given_up.set()

        def call() -> None:
            raise BrokerUnreachableError("no")

        with pytest.raises(BrokerAwayError):
            Patience(9, 99.0, given_up).ask("asking", call)
