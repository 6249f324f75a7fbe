"""What a replica has and its master has not is cut off for good and kept aside, at whatever call the power goes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mq_broker.core.batches import Batch, check_batch
from mq_broker.core.documents import DELAY_OFFSETS, TOPICS
from mq_broker.core.replica_state import Cut
from mq_broker.store.commit_log import SegmentFiles
from mq_broker.store.durability import read_watermark
from mq_broker.store.layout import StoreLayout
from mq_broker.store.log_scan import scan_whole
from mq_broker.store.message_store import MessageStore
from mq_broker.store.state_files import LOG_OFFSET, encode_document, read_document, write_document
from mq_broker.testing import STORE_ROOT, producer_record, store_options
from mq_broker.testing_replication import (
    START_MS,
    copy_all,
    entries,
    fork_of,
    found_by_key,
    log_bytes,
    running_store,
)
from mqproto.record import BODY_BYTES_MAX, Record
from osenv import SeededRng, SimClock, SimDisk
from osenv.disk import read_file

LOG_FILE_BYTES = 8_192
LAYOUT = StoreLayout(STORE_ROOT)
OPTIONS = store_options(log_file_bytes=LOG_FILE_BYTES)
COMMON, OWN = 5, 15  # batches


class PlugPulled(BaseException):
    """The machine has no power any more."""


@dataclass
class Told:
    """A state that the log tells: which records there are."""

    offsets: set[int] = field(default_factory=set)
    data_version: int = 0

    def add(self, record: Record) -> None:
        self.offsets.add(record.log_offset)
        self.data_version += 1

    def to_json(self) -> dict[str, Any]:
        return {"offsets": sorted(self.offsets), "version": self.data_version}

    def load_json(self, document: dict[str, Any]) -> None:
        self.offsets, self.data_version = set(document["offsets"]), document["version"]


@dataclass(frozen=True)
class Found:
    """What a store is after it was opened."""

    log_begin: int
    log: bytes
    entries: dict[tuple[str, int], tuple[int, bytes]]
    told: frozenset[int]


@contextlib.contextmanager
def opened(disk: SimDisk, cut: Cut | None = None) -> Iterator[tuple[MessageStore, Told]]:
    told = Told()
    states = {DELAY_OFFSETS: told, TOPICS: Told()}
    rebuilt_from_log = frozenset({DELAY_OFFSETS})
    store = MessageStore(disk, SimClock(START_MS), OPTIONS, states, rebuilt_from_log=rebuilt_from_log)
    try:
        store.open(told.add, cut)
        yield store, told
    finally:
        with contextlib.suppress(OSError):
            store.release()
        disk.kill()


def found_in(disk: SimDisk, cut: Cut | None = None) -> Found:
    with opened(disk, cut) as (store, told):
        return Found(store.log_begin, log_bytes(store), entries(store), frozenset(told.offsets))


def tails(disk: SimDisk) -> dict[str, bytes]:
    """What was cut, by the name of the file that keeps it."""
    names = [name for name in disk.list_dir(LAYOUT.quarantine) if name.endswith(".tail")]
    return {name: read_file(disk, LAYOUT.quarantine / name) for name in names}


@cache
def diverged(checkpointed: bool) -> tuple[SimDisk, int, SimDisk]:
    """A replica with a tail of its own over several files, where it begins, and a replica without one."""
    disk, rng = SimDisk(), SeededRng(7)
    with opened(disk) as (store, told):
        store.on_copied = told.add
        write(store, rng, COMMON)
        end = store.log_end
        without = disk.fork()
        write(store, rng, OWN)
        for record in store_records(store):
            told.add(record)
        if checkpointed:
            run(store.checkpoint())
        else:
            run(store.sync())
        assert len(store.log.files.starts) >= 3
    without.kill()
    return disk, end, without


def write(store: MessageStore, rng: SeededRng, count: int) -> None:
    for _ in range(count):
        bodies = [rng.randbytes(rng.randrange(1, 1_500)) for _ in range(rng.randrange(1, 3))]
        store.put([plain(*bodies, topic=rng.choice(("t", "u", "v")))], START_MS)


def run(work: Coroutine[Any, Any, object]) -> None:
    asyncio.run(work)


def store_records(store: MessageStore) -> list[Record]:
    return [one for one in scan_whole(store.log.files, 0, store.log_end) if isinstance(one, Record)]


def plain(*bodies: bytes, topic: str = "t") -> Batch:
    return check_batch(topic, 0, len(bodies), b"".join(producer_record(topic, one) for one in bodies), BODY_BYTES_MAX)


def case(checkpointed: bool, anew: int | None) -> tuple[SimDisk, Cut, Found]:
    """A disk, the cut to be made on it, and what has to come of it."""
    disk, end, without = diverged(checkpointed)
    if anew is not None:
        return disk.fork(), Cut(end, anew), Found(anew, b"", {}, frozenset())
    wanted = found_in(without.fork())
    assert wanted.told
    assert len(wanted.log) == end
    return disk.fork(), Cut(end), wanted


BOTH = pytest.mark.parametrize("checkpointed", [False, True])
LATER = 9 * LOG_FILE_BYTES
ENDS = pytest.mark.parametrize("anew", [None, 0, LATER])


@BOTH
@ENDS
def test_the_store_is_as_if_the_tail_had_never_been(checkpointed: bool, anew: int | None) -> None:
    disk, cut, wanted = case(checkpointed, anew)
    before = read_file(disk, LAYOUT.commit_log / ("0" * 20))
    assert found_in(disk, cut) == wanted
    assert found_in(disk.fork()) == wanted
    assert found_in(disk, cut) == wanted, "the same cut again changes nothing"
    kept = tails(disk)
    first = min(kept)
    assert int(first[:20]) == cut.end
    assert before[cut.end : cut.end + len(kept[first])] == kept[first]
    assert {len(data) for data in kept.values()} == {int(name.split("-")[1]) for name in kept}


@pytest.mark.parametrize(
    ("checkpointed", "anew", "step"), [(False, None, 3), (True, None, 1), (False, 0, 3), (True, LATER, 1)]
)
def test_power_that_goes_at_any_call_changes_nothing_of_it(checkpointed: bool, anew: int | None, step: int) -> None:
    base, cut, wanted = case(checkpointed, anew)
    clean = base.fork()
    found_in(clean, cut)
    kept = tails(clean)
    for call in count(step=step):
        disk = base.fork()
        tried = pull_plug(disk, call)
        with contextlib.suppress(PlugPulled):
            found_in(disk, cut)
            break
        disk.before = lambda _call, _path: None
        assert len(tried) == call + 1
        disk.kill()
        # A SIGKILL, the cut once more, and then a power cut that leaves nothing of what was not synced.
        killed = disk.fork()
        assert found_in(killed, cut) == wanted, call
        assert found_in(next(killed.lost_states(SeededRng(0), exhaustive_units_max=0))) == wanted, call
        left_behind = list(disk.lost_states(SeededRng(call), exhaustive_units_max=0, samples=3))
        for left in (left_behind[0], *left_behind[2:]):
            assert found_in(left, cut) == wanted, call
            assert kept.items() <= tails(left).items(), call
    assert call > 30


def pull_plug(disk: SimDisk, calls: int) -> list[str]:
    """Let so many calls through that may change something; the list gets all that were tried."""
    tried: list[str] = []

    def before(call: str, _path: Path) -> None:
        if call in {"pread", "exists", "list_dir", "size"}:
            return
        tried.append(call)
        if len(tried) > calls:
            raise PlugPulled

    disk.before = before
    return tried


def wrong_after_a_power_cut(checkpointed: bool, anew: int | None) -> list[Found]:
    """What does not come up as it was when the power goes after the cut, whose note has gone."""
    disk, cut, wanted = case(checkpointed, anew)
    assert found_in(disk, cut) == wanted
    left = disk.lost_states(SeededRng(1), exhaustive_units_max=0, samples=12)
    return [found for one in left if (found := found_in(one)) != wanted]


@BOTH
@ENDS
def test_a_power_cut_after_it_brings_nothing_back(checkpointed: bool, anew: int | None) -> None:
    assert wrong_after_a_power_cut(checkpointed, anew) == []


@BOTH
def test_a_cut_that_were_not_synced_would_come_back(checkpointed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zoo bug 8: so the test above would see it."""
    monkeypatch.setattr(SegmentFiles, "take_sync", lambda self: lambda: None)
    assert wrong_after_a_power_cut(checkpointed, anew=None)


@BOTH
@ENDS
def test_the_winner_s_records_get_the_numbers_of_those_that_were_cut(checkpointed: bool, anew: int | None) -> None:
    """Also after a power cut that takes everything but the log from what came after the cut."""
    disk, cut, _ = case(checkpointed, anew)
    master_disk = diverged(checkpointed)[2].fork() if anew is None else SimDisk()
    with opened(master_disk, None if anew is None else cut) as (master, _), opened(disk, cut) as (replica, told):
        replica.on_copied = told.add
        write(master, SeededRng(99), 20)
        run(copy_all(master, replica, SeededRng(3)))
        run(replica.sync())
        wanted = Found(replica.log_begin, log_bytes(replica), entries(replica), frozenset(told.offsets))
        assert (wanted.log, wanted.entries) == (log_bytes(master), entries(master))
        left = list(disk.lost_states(SeededRng(5), exhaustive_units_max=0, samples=6))
    for one in left:
        assert found_in(one) == wanted


@BOTH
async def test_the_index_forgets_what_was_cut(checkpointed: bool) -> None:
    disk = SimDisk()
    async with running_store(disk, clean_stop=checkpointed) as store:
        store.put([keyed("stays")], START_MS)
        end = store.log_end
        store.put([keyed("goes")], START_MS)
        assert await found_by_key(store, "t", "goes") == [end]
        await store.sync()
    disk.kill()
    async with running_store(disk, cut=Cut(end)) as store:
        assert await found_by_key(store, "t", "goes") == []
        assert await found_by_key(store, "t", "stays") == [0]


def keyed(key: str) -> Batch:
    return check_batch("t", 0, 1, producer_record("t", b"x", key=key), BODY_BYTES_MAX)


def test_the_watermark_says_nothing_beyond_the_cut() -> None:
    disk, cut, _ = case(True, None)
    before = read_watermark(disk, LAYOUT)
    assert before is not None
    assert before > cut.end
    with opened(disk, cut):
        assert read_watermark(disk, LAYOUT) == cut.end
        assert not disk.exists(LAYOUT.checkpoint)


def test_no_document_says_that_it_covers_what_was_cut() -> None:
    """Not the previous version either: after damage to the newest one it is what a start reads."""
    disk, cut, _ = case(True, None)
    path = LAYOUT.config / TOPICS
    for log_offset in (cut.end - 1, cut.end + 1, cut.end + 2):
        write_document(disk, path, encode_document({"offsets": [], "version": log_offset}, log_offset))
    with opened(disk, cut) as (store, _):
        run(store.checkpoint())
    for name in (TOPICS, f"{TOPICS}.bak"):
        document = read_document(disk, LAYOUT.config / name)
        assert document is not None
        assert document[LOG_OFFSET] <= cut.end, name


def test_the_note_of_where_queues_ended_goes() -> None:
    disk, cut, _ = case(True, None)
    assert disk.exists(LAYOUT.queue_ends)
    with opened(disk, cut):
        assert not disk.exists(LAYOUT.queue_ends)


def test_the_timer_is_made_anew() -> None:
    disk, cut, _ = case(True, None)
    disk.make_dirs(LAYOUT.timer)
    disk.open(LAYOUT.timer_manifest, create=True).pwrite(b"{}", 0)
    found_in(disk, cut)
    assert not disk.exists(LAYOUT.timer_manifest)


def test_a_cut_in_the_middle_of_a_record_is_rejected_and_changes_nothing() -> None:
    disk, cut, _ = case(True, None)
    for end in (cut.end - 1, cut.end + 1):
        one = disk.fork()
        before = one.fingerprint()
        with pytest.raises(ValueError, match=f"the log cannot end at offset {end}"), opened(one, Cut(end)):
            pass
        assert one.fingerprint() == before


def test_a_beginning_that_is_no_file_of_ours_is_rejected_and_changes_nothing() -> None:
    disk, _, _ = case(True, None)
    before = disk.fingerprint()
    with pytest.raises(ValueError, match="mappedFileSizeCommitLog"), opened(disk, Cut(0, LOG_FILE_BYTES + 1)):
        pass
    assert disk.fingerprint() == before


def test_a_log_without_its_first_files_can_be_cut_whole() -> None:
    disk, _, _ = case(True, None)
    with opened(disk) as (store, _):
        store.log.files.drop(store.log.files.starts[:1])
    found = found_in(disk, Cut(LOG_FILE_BYTES))
    assert (found.log_begin, found.log, found.told) == (LOG_FILE_BYTES, b"", frozenset())
    assert tails(disk)


def test_a_log_that_ends_before_the_cut_stays_as_it_is() -> None:
    disk, _, _ = case(True, None)
    wanted = found_in(disk.fork())
    assert found_in(disk, Cut(len(wanted.log) + 100)) == wanted
    assert tails(disk) == {}


def test_a_disk_without_room_for_what_is_cut_keeps_the_log() -> None:
    disk, cut, _ = case(True, None)
    wanted = found_in(disk.fork())

    def full(call: str, path: Path) -> None:
        if call == "pwrite" and path.parent == LAYOUT.quarantine:
            raise OSError(28, "full")

    disk.before = full
    with pytest.raises(OSError, match="full"), opened(disk, cut):
        pass
    disk.before = lambda call, path: None
    assert found_in(disk) == wanted


def test_two_tails_from_the_same_place_are_both_kept() -> None:
    disk = SimDisk()
    for body in (b"one", b"two"):
        with opened(disk, Cut(0)) as (store, _):
            store.put([plain(body)], START_MS)
            run(store.sync())
    with opened(disk, Cut(0)):
        assert len(tails(disk)) == 2


def damaged_tail(disk: SimDisk) -> tuple[int, int]:
    """A store of two records, of which the second is quarantined; where that one stands, and how long it is."""
    with opened(disk) as (store, _):
        store.put([plain(b"one")], START_MS)
        begin = store.log_end
        store.put([plain(b"two")], START_MS)
        end = store.log_end
        store.put([plain(b"three")], START_MS)
        run(store.sync())
    file = disk.open(LAYOUT.commit_log / ("0" * 20))
    file.pwrite(b"\xff", begin + 90)
    file.sync_data()
    found_in(disk)
    return begin, end - begin


def test_a_damaged_stretch_that_was_cut_hides_nothing_that_stands_there_now() -> None:
    disk = SimDisk()
    begin, size = damaged_tail(disk)
    with opened(disk, Cut(begin)) as (store, _):
        assert list(store.quarantine) == []
        store.put([plain(b"new")], START_MS)
        run(store.sync())
    with opened(disk) as (store, _):
        assert not store.quarantine.covers(begin, size)
        assert [record.body for record in store_records(store)] == [b"one", b"new"]
    assert any(name.endswith(".cut") for name in disk.list_dir(LAYOUT.quarantine))


def test_a_note_of_numbers_of_cut_records_does_not_count() -> None:
    """A crash came into a rebuild that had noted them."""
    disk = SimDisk()
    with opened(disk) as (store, _):
        store.put([plain(b"one")], START_MS)
        end = store.log_end
        store.put([plain(b"two"), plain(b"other", topic="u")], START_MS)
        run(store.sync())
        store.numbers.note({("t", 0): (2, end), ("u", 0): (1, end)})
    with opened(disk, Cut(end)) as (store, _):
        assert (store.queue_end("t", 0), store.queue_end("u", 0)) == (1, 0)
        assert store.numbers.read() == {("t", 0): (1, 0)}


@pytest.mark.parametrize("kept", [1, 2])
def test_files_behind_the_cut_that_a_power_cut_left_behind_a_gap_go(kept: int) -> None:
    disk, cut, wanted = case(True, None)
    names = disk.list_dir(LAYOUT.commit_log)
    disk.remove_tree(LAYOUT.commit_log / names[kept])
    assert found_in(disk, cut) == wanted


def test_a_file_behind_a_gap_that_lost_its_length_goes_too() -> None:
    """The search for records in it came to no end."""
    disk, cut, wanted = case(True, None)
    names = disk.list_dir(LAYOUT.commit_log)
    disk.remove_tree(LAYOUT.commit_log / names[1])
    disk.open(LAYOUT.commit_log / names[-1]).truncate(100)
    assert found_in(disk, cut) == wanted


def test_a_new_store_can_begin_in_the_middle_of_its_master_s_log() -> None:
    disk = SimDisk()
    with opened(disk, Cut(0, 3 * LOG_FILE_BYTES)) as (store, _):
        assert (store.log_begin, store.log_end, store.flusher.durable_end) == (3 * LOG_FILE_BYTES,) * 3
        assert store.is_new
    assert found_in(fork_of(disk)) == Found(3 * LOG_FILE_BYTES, b"", {}, frozenset())
