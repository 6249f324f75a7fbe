"""Queue locks: one holder at a time, through renewals, expiry, hand-overs, restarts and lost files (mechanism O2)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mq_broker.core.limits import RejectedError
from mq_broker.core.members import LOCK_EXPIRY_MS, LockedQueue, QueueLocks
from mq_broker.core.topics import TopicConfig
from mq_broker.processor.broker import Broker
from mq_broker.testing import STORE_ROOT, RecordingSession, client, incoming, produce, running_broker
from mqproto.codes import ResponseCode
from osenv import SeededRng, SimClock, SimDisk

Q0, Q1, Q2 = (LockedQueue("t", number) for number in range(3))
EXPIRY_S = LOCK_EXPIRY_MS / 1_000
FILE = STORE_ROOT / "config" / "queueLocks.json"


class TestTable:
    def test_a_queue_has_one_holder_and_each_group_its_own(self) -> None:
        locks = QueueLocks()
        assert locks.lock("g", "a", [Q0, Q1], 0) == [Q0, Q1]
        assert locks.lock("g", "b", [Q1, Q2], 1) == [Q2]
        assert locks.lock("h", "b", [Q0, Q1], 1) == [Q0, Q1]
        assert locks.still_held("g", "a", [Q0, Q1, Q2], 1) == [Q0, Q1]

    @pytest.mark.parametrize(
        ("asked_again_ms", "now_ms", "holder"), [(0, 59_999, "a"), (0, 60_000, "b"), (20_000, 79_999, "a")]
    )
    def test_a_lock_lasts_60_s_from_the_last_time_it_was_asked_for(
        self, asked_again_ms: int, now_ms: int, holder: str
    ) -> None:
        locks = QueueLocks()
        locks.lock("g", "a", [Q0], 0)
        locks.lock("g", "a", [Q0], asked_again_ms)
        assert locks.lock("g", "b", [Q0], now_ms) == ([Q0] if holder == "b" else [])
        assert locks.lock("g", "a", [Q0], now_ms) == ([Q0] if holder == "a" else [])

    def test_only_the_holder_gives_a_queue_back(self) -> None:
        locks = QueueLocks()
        locks.lock("g", "a", [Q0, Q1], 0)
        assert not locks.unlock("g", "b", [Q0, Q1])
        assert not locks.unlock("h", "a", [Q0])
        assert locks.unlock("g", "a", [Q0, Q0, Q2])
        assert locks.lock("g", "b", [Q0, Q1], 0) == [Q0]

    def test_renewals_change_nothing_that_has_to_be_written(self) -> None:
        locks = QueueLocks()
        held = locks.lock("g", "a", [Q0, Q1], 0)
        version = locks.data_version
        assert locks.granted_version("g", held) == version
        assert locks.lock("g", "a", [Q1, Q0, Q1], 20_000) == [Q1, Q0]
        assert locks.data_version == version
        locks.lock("g", "b", [Q2], 20_000)
        assert locks.granted_version("g", held) == version < locks.granted_version("g", [Q2])

    def test_locks_that_are_over_leave_the_table_with_the_next_grant(self) -> None:
        locks = QueueLocks()
        locks.lock("g", "a", [Q0, Q1], 0)
        locks.lock("h", "b", [Q2], LOCK_EXPIRY_MS)
        assert locks.to_json()["holderTable"] == {"h": {"t": {"2": "b"}}}

    def test_the_table_survives_its_document_and_counts_from_the_start(self) -> None:
        locks, other = QueueLocks(), QueueLocks()
        locks.lock("g", "a", [Q0, Q1], 5_000)
        other.load_json(locks.to_json())
        other.begin(1_000_000, lost=False)
        assert other.lock("g", "b", [Q0, Q2], 1_059_999) == [Q2]
        assert other.lock("g", "a", [Q0], 1_059_999) == [Q0]
        assert other.lock("g", "b", [Q1], 1_060_000) == [Q1]

    def test_a_lost_table_grants_nothing_to_any_member_for_60_s(self) -> None:
        locks = QueueLocks()
        locks.begin(1_000, lost=True)
        assert locks.lock("g", "a", [Q0], 60_999) == []
        assert locks.lock("g", "a", [Q0], 61_000) == [Q0]
        assert locks.lock("g", "b", [Q0], 61_001) == []

    def test_a_table_that_was_lost_says_so_until_it_is_complete_again(self) -> None:
        locks = QueueLocks()
        locks.begin(0, lost=True)
        document = locks.to_json()
        after_a_crash = QueueLocks()
        after_a_crash.load_json(document)
        after_a_crash.begin(0, lost=False)
        assert after_a_crash.lock("g", "a", [Q0], 59_999) == []
        assert after_a_crash.lock("g", "a", [Q0], 60_000) == [Q0]
        later = QueueLocks()
        later.load_json(after_a_crash.to_json())
        later.begin(0, lost=False)
        assert later.lock("g", "b", [Q1], 0) == [Q1]

    @pytest.mark.parametrize(("term", "held"), [(4, [Q0]), (5, [])])
    def test_a_table_names_all_holders_in_its_own_term_only(self, term: int, held: list[LockedQueue]) -> None:
        locks, other = QueueLocks(), QueueLocks()
        locks.begin(0, lost=False, term=4)
        locks.lock("g", "a", [Q0], 0)
        other.load_json(locks.to_json())
        other.begin(0, lost=False, term=term)
        assert other.lock("g", "a", [Q0], 0) == held

    @pytest.mark.parametrize(
        "table", [None, {"g": 1}, {"g": {"t": 1}}, {"g": {"t": {"0": 1}}}, {"g": {"t": {"x": "a"}}}]
    )
    def test_a_document_of_another_form_is_rejected_and_changes_nothing(self, table: object) -> None:
        locks = QueueLocks()
        locks.lock("g", "a", [Q0], 0)
        with pytest.raises((KeyError, TypeError, ValueError)):
            locks.load_json({"dataVersion": {"counter": 9}, "holderTable": table, "incomplete": False})
        assert locks.lock("g", "b", [Q0], 0) == []


def join(broker: Broker, *client_ids: str) -> dict[str, RecordingSession]:
    sessions = {client_id: RecordingSession() for client_id in client_ids}
    for client_id, session in sessions.items():
        broker.sessions.heartbeat(session, client(client_id, "g"))
    return sessions


@asynccontextmanager
async def group(disk: SimDisk, clock: SimClock, *, clean_stop: bool = True) -> AsyncIterator[Broker]:
    """A broker with the topic `t` of two queues, and the members a and b of the group g."""
    async with running_broker(disk, clock, clean_stop=clean_stop) as broker:
        broker.topics.update(TopicConfig("t", 2, 2))
        join(broker, "a", "b")
        yield broker


class TestMembers:
    async def test_who_is_no_member_is_rejected_and_told_why(self) -> None:
        async with group(SimDisk(), SimClock()) as broker:
            codes = {"g": ResponseCode.CONSUMER_NOT_ONLINE, "h": ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}
            for group_, code in codes.items():
                with pytest.raises(RejectedError) as rejected:
                    await broker.queue_locking.lock(group_, "stranger", [Q0])
                assert (rejected.value.code, group_ in str(rejected.value)) == (code, True)

    async def test_queues_that_are_not_there_cannot_be_locked(self) -> None:
        async with group(SimDisk(), SimClock()) as broker:
            wanted = [Q0, Q2, LockedQueue("t", -1), LockedQueue("missing", 0)]
            assert await broker.queue_locking.lock("g", "a", wanted) == [Q0]

    async def test_the_end_of_a_session_gives_nothing_back(self) -> None:
        clock = SimClock()
        async with group(SimDisk(), clock) as broker:
            session = join(broker, "a")["a"]
            await broker.queue_locking.lock("g", "a", [Q0])
            broker.sessions.ended(session, "a")
            await clock.advance(EXPIRY_S - 0.001)
            assert await broker.queue_locking.lock("g", "b", [Q0]) == []
            await clock.advance(0.001)
            assert await broker.queue_locking.lock("g", "b", [Q0]) == [Q0]

    async def test_who_gives_a_queue_back_wakes_the_others_and_only_then(self) -> None:
        async with group(SimDisk(), SimClock()) as broker:
            sessions = join(broker, "a", "b")
            await broker.queue_locking.lock("g", "a", [Q0])
            for session in sessions.values():
                session.changed.clear()
            broker.queue_locking.unlock("g", "b", [Q0])
            assert (sessions["a"].changed, sessions["b"].changed) == ([], [])
            broker.queue_locking.unlock("g", "a", [Q0, Q1])
            assert (sessions["a"].changed, sessions["b"].changed) == ([], ["g"])
            assert await broker.queue_locking.lock("g", "b", [Q0]) == [Q0]

    async def test_who_has_left_the_group_still_gives_back_what_it_held(self) -> None:
        async with group(SimDisk(), SimClock()) as broker:
            await broker.queue_locking.lock("g", "a", [Q0])
            broker.sessions.heartbeat(RecordingSession(), client("a"))
            broker.queue_locking.unlock("g", "a", [Q0])
            assert await broker.queue_locking.lock("g", "b", [Q0]) == [Q0]

    async def test_of_racing_members_each_queue_has_one(self) -> None:
        async with group(SimDisk(), SimClock()) as broker:
            names = [f"c{number}" for number in range(8)]
            join(broker, *names)
            held = await asyncio.gather(*(broker.queue_locking.lock("g", name, [Q0, Q1]) for name in names))
            assert sorted(queue for queues in held for queue in queues) == [Q0, Q1]


class TestDurability:
    @pytest.mark.parametrize("seed", range(8))
    async def test_after_a_power_cut_a_lock_is_still_its_holder_s(self, seed: int) -> None:
        disk, clock = SimDisk(), SimClock()
        async with group(disk, clock, clean_stop=False) as broker:
            await produce(broker, incoming("t", [b"x"]))
            assert await broker.queue_locking.lock("g", "a", [Q0]) == [Q0]
            assert await broker.queue_locking.lock("g", "b", [Q1]) == [Q1]
        disk.crash(SeededRng(seed))
        async with group(disk, clock) as broker:
            await clock.advance(EXPIRY_S - 0.001)
            assert await broker.queue_locking.lock("g", "b", [Q0, Q1]) == [Q1]
            assert await broker.queue_locking.lock("g", "a", [Q0]) == [Q0]

    async def test_a_lock_that_is_not_on_disk_is_not_told_and_no_other_member_gets_it(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with group(disk, clock) as broker:

            def full(call: str, path: Path) -> None:
                if call == "pwrite" and path.name.startswith(FILE.name):
                    raise OSError(errno.ENOSPC, "No space left on device")

            disk.before = full
            for _ in range(2):
                with pytest.raises(OSError, match="No space left"):
                    await broker.queue_locking.lock("g", "a", [Q0])
                assert await broker.queue_locking.lock("g", "b", [Q0]) == []
            disk.before = lambda call, path: None
            assert await broker.queue_locking.lock("g", "a", [Q0]) == [Q0]

    async def test_a_second_request_for_a_lock_that_is_being_written_waits_for_the_disk_too(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with group(disk, clock) as broker:
            both = await asyncio.gather(*(broker.queue_locking.lock("g", "a", [Q0]) for _ in range(2)))
            assert both == [[Q0], [Q0]]
            written = disk.open(FILE).pread(1 << 16, 0)
            assert b'"0": "a"' in written

    async def test_a_lock_that_expired_while_it_was_written_is_not_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = SimClock()
        async with group(SimDisk(), clock) as broker:
            persist, others = broker.store.persist, list[list[LockedQueue]]()

            async def slow(name: str) -> None:
                monkeypatch.setattr(broker.store, "persist", persist)
                await clock.advance(EXPIRY_S)
                others.append(await broker.queue_locking.lock("g", "b", [Q0]))
                await persist(name)

            monkeypatch.setattr(broker.store, "persist", slow)
            assert await broker.queue_locking.lock("g", "a", [Q0, Q1]) == [], "asked for too long ago"
            assert others == [[Q0]]

    async def test_renewals_write_nothing(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with group(disk, clock) as broker:
            await broker.queue_locking.lock("g", "a", [Q0])
            calls: list[str] = []
            disk.before = lambda call, path: calls.append(call) if path.name.startswith(FILE.name) else None
            assert await broker.queue_locking.lock("g", "a", [Q0]) == [Q0]
            assert calls == []

    @pytest.mark.parametrize("lost", [[FILE.name, f"{FILE.name}.bak"], [FILE.name]], ids=["both", "newest"])
    async def test_without_its_file_a_broker_grants_nothing_for_60_s(self, lost: list[str]) -> None:
        """The version before the newest may lack the newest grant, and is no better than none."""
        disk, clock = SimDisk(), SimClock()
        async with group(disk, clock) as broker:
            await broker.queue_locking.lock("g", "a", [Q0])
            await broker.queue_locking.lock("g", "b", [Q1])
        for name in lost:
            disk.open(FILE.with_name(name)).truncate(3)
        async with group(disk, clock, clean_stop=False) as broker:
            assert await broker.queue_locking.lock("g", "b", [Q0]) == []
            await clock.advance(EXPIRY_S / 2)
        disk.kill()
        async with group(disk, clock) as broker:
            await clock.advance(EXPIRY_S - 0.001)
            assert await broker.queue_locking.lock("g", "a", [Q0]) == []
            await clock.advance(0.001)
            assert await broker.queue_locking.lock("g", "a", [Q0]) == [Q0]

    async def test_a_new_store_has_lost_nothing(self) -> None:
        async with group(SimDisk(), SimClock()) as broker:
            assert await broker.queue_locking.lock("g", "a", [Q0]) == [Q0]
