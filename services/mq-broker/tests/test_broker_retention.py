"""Old files go when they have to, the newest never; what is left stands where it stood."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from hourglass.mq.v1 import admin_service_pb2 as pb
from mq_broker.config import BrokerConfig
from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.limits import HOUR_MS, GuardMode, Reason, RetentionOptions, parse_delete_when, reason_to_delete
from mq_broker.core.topics import TopicConfig
from mq_broker.processor.broker import Broker
from mq_broker.processor.consuming import ConsumeFromWhere
from mq_broker.rpc.admin_service import AdminService
from mq_broker.store.durability import WriteGate
from mq_broker.store.message_store import StoreOptions
from mq_broker.testing import (
    FILE_BYTES,
    FORCED,
    IN_FILE,
    clean,
    flush_and_index,
    incoming,
    numbered_bodies,
    produce,
    read_all,
    running_broker,
    store_options,
)
from mqproto.codes import ResponseCode
from osenv import SimClock, SimDisk
from osenv.clock import local_hour

HOUR_S = 3_600


def at_hour(hour: int) -> int:
    """A moment (ms since 1970) at which this hour of the day begins on this machine."""
    first = 1_700_000_000_000 // HOUR_MS * HOUR_MS
    return next(first + n * HOUR_MS for n in range(24) if local_hour(first + n * HOUR_MS) == hour)


def options(**retention: Any) -> StoreOptions:
    return replace(store_options(log_file_bytes=FILE_BYTES), retention=RetentionOptions(**retention))


LAYOUT = options().layout


def quiet_broker(
    disk: SimDisk, clock: SimClock, store: StoreOptions | None = None, *, clean_stop: bool = True
) -> AbstractAsyncContextManager[Broker]:
    """A broker that does nothing by itself but flush, so that days pass quickly; rounds are the test's."""
    return running_broker(disk, clock, store=store or options(), clean_stop=clean_stop, work=flush_and_index)


async def fill(broker: Broker, count: int, topic: str = "t", first: int = 0) -> None:
    for body in numbered_bodies(count, first):
        (outcome,) = await produce(broker, incoming(topic, [body]))
        assert outcome.code is ResponseCode.SUCCESS


async def clean_all(broker: Broker, clock: SimClock, disk: SimDisk) -> None:
    """Everything that can go has gone."""
    while len(broker.store.log.files.starts) > 1 and broker.store.log.files.starts[1] <= broker.store.log_end:
        await clean(broker, clock, disk, FORCED)
    disk.used_share = 0.0


def log_files(disk: SimDisk) -> list[int]:
    return [int(name) // FILE_BYTES for name in disk.list_dir(LAYOUT.commit_log)]


async def numbers(broker: Broker, topic: str = "t") -> list[int]:
    records = await read_all(broker, topic)
    assert all(record.body == numbered_bodies(1, int(record.body[:6]))[0] for record in records)
    low, high = broker.store.queue_bounds(topic, 0)
    assert [record.queue_offset for record in records] == list(range(low, high))
    return [int(record.body[:6]) for record in records]


class TestDecisions:
    @pytest.mark.parametrize(
        ("age_h", "hour", "used", "wanted"),
        [
            (72, 4, 0.0, Reason.EXPIRED),
            (72 - 1 / HOUR_MS, 4, 0.0, None),  # a millisecond too young
            (1_000, 3, 0.0, None),
            (1_000, 5, 0.75, None),  # up to 75 % only in the hour
            (72, 5, 0.7501, Reason.EXPIRED),
            (71.9, 5, 0.8499, None),
            (0, 5, 0.85, Reason.FORCED),
            (0, 5, 1.0, Reason.FORCED),
            (100, 4, 0.85, Reason.FORCED),
        ],
    )
    def test_a_file_goes_by_age_in_its_hour_or_by_how_full_the_disk_is(
        self, age_h: float, hour: int, used: float, wanted: Reason | None
    ) -> None:
        now = 1_700_000_000_000
        stored = now - round(age_h * HOUR_MS)
        found = reason_to_delete(
            RetentionOptions(), newest_store_ms=stored, now_ms=now, local_hour=hour, used_share=used
        )
        assert found is wanted

    def test_without_force_a_full_disk_takes_expired_files_only(self) -> None:
        options = RetentionOptions(clean_forcibly=False)
        decided = [
            reason_to_delete(
                options, newest_store_ms=hour * HOUR_MS, now_ms=100 * HOUR_MS, local_hour=12, used_share=0.99
            )
            for hour in (28, 29)
        ]
        assert decided == [Reason.EXPIRED, None]

    @pytest.mark.mechanism("E4")
    def test_writes_stop_at_90_and_go_on_at_85(self) -> None:
        gate = WriteGate(RetentionOptions())
        rejected = []
        for used in (0.0, 0.8999, 0.90, 0.8999, 0.86, 0.8501, 0.85, 0.86, 0.8999, 0.95, 0.2):
            gate.measured(used)
            rejected.append(gate.rejection is not None)
        assert rejected == [False, False, True, True, True, True, False, False, False, True, False]

    def test_enough_free_bytes_count_for_more_than_the_share_that_is_used(self) -> None:
        options = RetentionOptions(free_bytes_enough=1000)
        gate = WriteGate(options)
        rejected = []
        for free_bytes in (1000, 999, 999, 5000):
            gate.measured(0.99, free_bytes)
            rejected.append(gate.rejection)
        sentence = "the disk is 99% full; writes are accepted again at 85%, or with 1000 bytes free"
        assert rejected == [None, sentence, sentence, None]
        assert gate.used_share == 0.99
        assert [options.counted_share(0.99, free_bytes) for free_bytes in (1000, 999)] == [0.0, 0.99]
        assert RetentionOptions().counted_share(0.99, 1 << 40) == 0.99

    def test_the_rejection_says_how_full_the_disk_is_and_when_it_ends(self) -> None:
        gate = WriteGate(RetentionOptions())
        gate.measured(0.93)
        assert gate.rejection == "the disk is 93% full; writes are accepted again at 85%"
        gate.blocked_by = "something waits"
        assert gate.rejection == "something waits"

    @pytest.mark.parametrize(("text", "hours"), [("04", {4}), ("4", {4}), ("00;23", {0, 23}), (" 04 ; 16 ", {4, 16})])
    def test_delete_when_names_hours(self, text: str, hours: set[int]) -> None:
        assert parse_delete_when(text) == hours

    @pytest.mark.parametrize("text", ["", "24", "-1", "4,5", "four", "04;", "²"])
    def test_delete_when_that_names_no_hour_is_rejected(self, text: str) -> None:
        with pytest.raises(ValueError, match="hours of the day from 00 to 23"):
            parse_delete_when(text)

    def test_defaults_are_72_hours_at_4_o_clock_75_85_and_90_percent(self) -> None:
        found = BrokerConfig().store_options(0).retention
        assert (found.reserved_hours, found.delete_hours, found.clean_forcibly) == (72, frozenset({4}), True)
        assert (found.normal_share, found.forced_share, found.reject_share) == (0.75, 0.85, 0.90)
        assert found == RetentionOptions()


class TestExpiry:
    @pytest.mark.mechanism("E1")
    async def test_a_file_goes_72_hours_after_its_newest_message(self) -> None:
        disk, clock = SimDisk(), SimClock(at_hour(4))
        async with quiet_broker(disk, clock) as broker:
            await fill(broker, IN_FILE - 1)
            await clock.advance(HOUR_S / 2)
            await fill(broker, 2, first=IN_FILE - 1)  # one more into the first file, one into the second
            assert log_files(disk) == [0, 1]
            await clock.advance(72 * HOUR_S - 0.001)
            await clean(broker, clock, disk, 0.0)
            assert log_files(disk) == [0, 1]
            await clock.advance(0.001)
            await clean(broker, clock, disk, 0.0)
            assert log_files(disk) == [1]
            assert await numbers(broker) == [7]

    @pytest.mark.mechanism("E1")
    async def test_how_old_the_next_file_is_does_not_matter(self) -> None:
        """Mechanism E1: age is the newest store timestamp in the file itself; traffic may have paused behind it."""
        disk, clock = SimDisk(), SimClock(at_hour(4))
        async with quiet_broker(disk, clock) as broker:
            await fill(broker, IN_FILE)
            await clock.advance(71 * HOUR_S)
            await fill(broker, 1, first=IN_FILE)
            await clock.advance(HOUR_S)
            await clean(broker, clock, disk, 0.0)
            assert log_files(disk) == [1]

    @pytest.mark.mechanism("E2")
    async def test_an_expired_file_waits_for_its_hour(self) -> None:
        disk, clock = SimDisk(), SimClock(at_hour(5))
        async with quiet_broker(disk, clock) as broker:
            await fill(broker, 15)
            await clock.advance(72 * HOUR_S)
            for _ in range(23):
                await clean(broker, clock, disk, 0.0)
                assert log_files(disk) == [0, 1, 2]
                await clock.advance(HOUR_S)
            await clean(broker, clock, disk, 0.0)
            assert log_files(disk) == [2]

    @pytest.mark.mechanism("E4")
    async def test_above_75_percent_an_expired_file_goes_at_any_hour(self) -> None:
        disk, clock = SimDisk(), SimClock(at_hour(5))
        async with quiet_broker(disk, clock) as broker:
            await fill(broker, 15)
            await clock.advance(72 * HOUR_S)
            await clean(broker, clock, disk, 0.75)
            assert log_files(disk) == [0, 1, 2]
            await clean(broker, clock, disk, 0.76)
            assert log_files(disk) == [2]

    @pytest.mark.mechanism("E1")
    async def test_a_step_of_the_wall_clock_makes_nothing_old(self) -> None:
        disk, clock = SimDisk(), SimClock(at_hour(4))
        async with quiet_broker(disk, clock) as broker:
            await fill(broker, 15)
            clock.set_wall_ms(clock.wall_ms() + 100 * 24 * HOUR_MS)
            await clean(broker, clock, disk, 0.0)
            assert log_files(disk) == [0, 1, 2]


class TestFullDisk:
    @pytest.mark.mechanism("E4")
    async def test_from_85_percent_the_oldest_go_and_the_newest_stays_whatever_happens(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            await fill(broker, 15)
            await clean(broker, clock, disk, 0.8499)
            assert log_files(disk) == [0, 1, 2]
            await clean(broker, clock, disk, 1.0)
            assert log_files(disk) == [2]
            for _ in range(3):
                await clean(broker, clock, disk, 1.0)
            assert (log_files(disk), await numbers(broker)) == ([2], [14])

    async def test_it_stops_as_soon_as_there_is_room(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            await fill(broker, 50)

            def room(call: str, path: Path) -> None:
                if call == "unlink" and path.parent == LAYOUT.commit_log:
                    disk.used_share -= 0.02

            disk.after = room
            await clean(broker, clock, disk, 0.90)
            assert log_files(disk)[0] == 3  # 0.90, 0.88, 0.86, and 0.84 is enough
            assert broker.retention.files_deleted == 3

    @pytest.mark.mechanism("E2")
    async def test_at_most_10_files_a_round_and_100_ms_between_them(self) -> None:
        disk, clock, gone = SimDisk(), SimClock(), list[float]()
        async with quiet_broker(disk, clock) as broker:
            await fill(broker, 14 * IN_FILE + 1)

            def note(call: str, path: Path) -> None:
                if call == "unlink" and path.parent == LAYOUT.commit_log:
                    gone.append(clock.monotonic())

            disk.before = note
            await clean(broker, clock, disk, 1.0)
            assert (len(gone), log_files(disk)[0]) == (10, 10)
            assert [round(after - before, 6) for before, after in pairwise(gone)] == [0.1] * 9

    @pytest.mark.mechanism("E2")
    async def test_the_cleaner_looks_every_10_seconds(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, store=options()) as broker:
            await fill(broker, 15)
            disk.used_share = FORCED
            await clock.advance(9.9)
            assert log_files(disk) == [0, 1, 2]
            await clock.advance(0.5)
            assert log_files(disk)[0] == 2

    @pytest.mark.mechanism("E4")
    async def test_at_90_percent_writes_are_rejected_and_reads_go_on(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock, options(clean_forcibly=False)) as broker:
            await fill(broker, 3)
            answers = []
            for used in (0.89, 0.90, 0.86, 0.85, 0.86):
                await clean(broker, clock, disk, used)
                (outcome,) = await produce(broker, incoming("t", numbered_bodies(1, first=3)))
                answers.append((outcome.code, outcome.remark))
                assert (await numbers(broker))[:3] == [0, 1, 2]
                assert (await status(broker)).store.write_rejection == outcome.remark
            ok, full = (ResponseCode.SUCCESS, ""), "the disk is {}% full; writes are accepted again at 85%"
            rejected = [(ResponseCode.SYSTEM_ERROR, full.format(used)) for used in (90, 86)]
            assert answers == [ok, *rejected, ok, ok]


async def status(broker: Broker) -> pb.GetBrokerStatusResponse:
    return await AdminService(broker, cast(Any, None), dict).GetBrokerStatus(pb.GetBrokerStatusRequest(), None)


class TestGuard:
    async def filled(self, broker: Broker, *, consumed: int) -> None:
        await fill(broker, 15)
        broker.offsets.commit("late", [("t", 0, Progress(consumed))])

    async def test_reject_keeps_what_a_group_has_not_consumed_and_rejects_writes_when_it_should_go(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock, options(guard=GuardMode.REFUSE)) as broker:
            await self.filled(broker, consumed=IN_FILE - 1)
            await clean(broker, clock, disk, FORCED)
            assert log_files(disk) == [0, 1, 2]
            (outcome,) = await produce(broker, incoming("t", numbered_bodies(1)))
            assert outcome.code is ResponseCode.SYSTEM_ERROR
            assert "not consumed by late (queue 0 of t)" in outcome.remark
            broker.offsets.commit("late", [("t", 0, Progress(IN_FILE))])
            await clean(broker, clock, disk, FORCED)
            assert log_files(disk) == [1, 2]  # the second one still has something for it
            broker.offsets.commit("late", [("t", 0, Progress(15))])
            await clean(broker, clock, disk, FORCED)
            assert log_files(disk) == [2]
            (outcome,) = await produce(broker, incoming("t", numbered_bodies(1)))
            assert outcome.code is ResponseCode.SUCCESS

    async def test_reject_lets_files_go_when_an_operator_deletes_the_group_on_the_full_disk(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock, options(guard=GuardMode.REFUSE)) as broker:
            await self.filled(broker, consumed=0)
            await clean(broker, clock, disk, 0.95)
            assert log_files(disk) == [0, 1, 2]
            await broker.group_administration.delete("late", clean_offsets=True)
            await clean(broker, clock, disk, 0.95)
            assert log_files(disk) == [2]
            await clean(broker, clock, disk, 0.5)
            await fill(broker, 1)

    async def test_reject_keeps_a_queue_that_was_added_while_the_group_was_away(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock, options(guard=GuardMode.REFUSE)) as broker:
            await broker.topic_administration.update(TopicConfig("t", 1, 1))
            last = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
            await broker.offsets.begin("away", "t", 0, last, whole_topic=True)
            await broker.topic_administration.update(TopicConfig("t", 2, 2))
            for body in numbered_bodies(15):
                await produce(broker, incoming("t", [body], queue_id=1))
            await clean(broker, clock, disk, FORCED)
            assert log_files(disk) == [0, 1, 2]
            (outcome,) = await produce(broker, incoming("t", numbered_bodies(1)))
            assert "not consumed by away (queue 1 of t)" in outcome.remark
            assert await broker.offsets.begin("away", "t", 1, last, whole_topic=True) == Progress(0)

    async def test_reject_keeps_an_expired_file_and_writes_go_on(self) -> None:
        disk, clock = SimDisk(), SimClock(at_hour(4))
        async with quiet_broker(disk, clock, options(guard=GuardMode.REFUSE)) as broker:
            await self.filled(broker, consumed=0)
            await clock.advance(72 * HOUR_S)
            await clean(broker, clock, disk, 0.0)
            assert log_files(disk) == [0, 1, 2]
            await fill(broker, 1)

    @pytest.mark.parametrize("hour", [4, 5], ids=["while it is expired", "while it is not"])
    async def test_writes_go_on_when_the_disk_has_room_again_although_the_file_stays(self, hour: int) -> None:
        disk, clock = SimDisk(), SimClock(at_hour(hour))
        async with quiet_broker(disk, clock, options(guard=GuardMode.REFUSE)) as broker:
            await self.filled(broker, consumed=0)
            await clock.advance(72 * HOUR_S)
            await clean(broker, clock, disk, 0.95)
            assert broker.store.gate.rejection is not None
            await clean(broker, clock, disk, 0.5)
            await fill(broker, 1)
            assert log_files(disk) == [0, 1, 2]

    @pytest.mark.parametrize(("mode", "says_so"), [(GuardMode.WARN, True), (GuardMode.OFF, False)])
    async def test_warn_says_so_and_off_does_not_and_both_delete(
        self, mode: GuardMode, says_so: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock, options(guard=mode)) as broker:
            await self.filled(broker, consumed=0)
            await clean(broker, clock, disk, FORCED)
            assert log_files(disk) == [2]
            assert ("not consumed by late (queue 0 of t)" in caplog.text) is says_so

    @pytest.mark.parametrize("mode", GuardMode)
    async def test_a_group_that_is_behind_a_queue_of_which_nothing_is_left_stops_nothing(self, mode: GuardMode) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock, options(guard=GuardMode.OFF)) as broker:
            await fill(broker, 3)
            broker.offsets.commit("late", [("t", 0, Progress(1))])
            await fill(broker, 15, topic="u")
            await clean_all(broker, clock, disk)
            assert broker.store.queue_bounds("t", 0) == (3, 3)
            broker.retention.store.options = options(guard=mode)
            await fill(broker, 15, topic="u", first=15)
            await clean_all(broker, clock, disk)
            assert (await numbers(broker, "u"))[-1] == 29
