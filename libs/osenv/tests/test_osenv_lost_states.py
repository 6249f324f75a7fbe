"""Everything that a power cut could leave: all subsets, no bytes that were never written, and folders are names too."""

from __future__ import annotations

from pathlib import Path

from hypothesis import assume, given
from hypothesis import strategies as st

from osenv import SeededRng, SimDisk
from osenv.disk import read_file
from osenv.sim_files import SECTOR_BYTES, PowerCut, copy_tree

ROOT = Path("/store")
LOG = ROOT / "log"


def new_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_dirs(ROOT)
    disk.sync_dir(ROOT.parent)
    return disk


def put(disk: SimDisk, path: Path, content: bytes, *, at: int = 0, sync: bool = True) -> None:
    file = disk.open(path, create=True)
    file.pwrite(content, at)
    if sync:
        file.sync_data()
    file.close()


def states(disk: SimDisk, **options: int) -> list[dict[Path, bytes]]:
    return [state.contents() for state in disk.lost_states(SeededRng(0), **options)]


def test_nothing_in_doubt_is_one_state() -> None:
    disk = new_disk()
    put(disk, LOG, b"x" * 2_000)
    disk.sync_dir(ROOT)
    assert states(disk) == [disk.contents()]


def test_all_subsets_of_three_sectors_are_found() -> None:
    disk = new_disk()
    put(disk, LOG, b"o" * SECTOR_BYTES * 4)
    disk.sync_dir(ROOT)
    put(disk, LOG, b"n" * SECTOR_BYTES * 3, sync=False)
    found = ["".join(chr(state[LOG][at]) for at in range(0, SECTOR_BYTES * 4, SECTOR_BYTES)) for state in states(disk)]
    assert found[:2] == ["oooo", "nnno"]
    assert sorted(found) == ["nnno", "nnoo", "nono", "nooo", "onno", "onoo", "oono", "oooo"]


def test_subsets_that_leave_the_same_disk_are_one_state() -> None:
    disk = new_disk()
    put(disk, LOG, b"n" * SECTOR_BYTES * 2, sync=False)
    found = states(disk)  # units: the name, the length, two sectors
    assert {len(state) for state in found} == {0, 1}
    assert sorted(len(state[LOG]) for state in found if state) == [0, 1024, 1024, 1024, 1024]
    assert len(found) == 6


def test_many_units_are_sampled_with_both_ends() -> None:
    disk = new_disk()
    put(disk, LOG, b"o" * SECTOR_BYTES * 50)
    disk.sync_dir(ROOT)
    put(disk, LOG, b"n" * SECTOR_BYTES * 50, sync=False)
    found = states(disk, samples=100)
    assert found[0] == {LOG: b"o" * SECTOR_BYTES * 50}
    assert found[1] == {LOG: b"n" * SECTOR_BYTES * 50}
    assert 90 <= len(found) <= 100
    kept = sorted(state[LOG].count(b"n") // SECTOR_BYTES for state in found[2:])
    assert kept[0] < 15
    assert kept[-1] > 35
    assert states(disk, samples=100) == found


def test_exhaustive_limit_is_kept() -> None:
    disk = new_disk()
    put(disk, LOG, b"o" * SECTOR_BYTES * 8)
    disk.sync_dir(ROOT)
    put(disk, LOG, b"n" * SECTOR_BYTES * 8, sync=False)
    assert len(states(disk, exhaustive_units_max=8)) == 256
    assert len(states(disk, exhaustive_units_max=7, samples=20)) <= 20


def test_states_are_those_of_the_moment_of_the_call() -> None:
    disk = new_disk()
    put(disk, LOG, b"old")
    disk.sync_dir(ROOT)
    found = disk.lost_states(SeededRng(0))
    put(disk, LOG, b"new")
    assert [state.contents() for state in found] == [{LOG: b"old"}]


def test_states_and_forks_are_independent() -> None:
    disk = new_disk()
    put(disk, LOG, b"o" * SECTOR_BYTES * 2)
    disk.sync_dir(ROOT)
    put(disk, LOG, b"n" * SECTOR_BYTES * 2, sync=False)
    fork = disk.fork()
    first, second, *_ = disk.lost_states(SeededRng(0))
    put(first, LOG, b"first", sync=False)
    put(fork, ROOT / "other", b"fork")
    fork.open(LOG).truncate(3)
    assert read_file(second, LOG) == b"n" * SECTOR_BYTES * 2
    assert disk.contents() == {LOG: b"n" * SECTOR_BYTES * 2}
    assert fork.contents() == {LOG: b"nnn", ROOT / "other": b"fork"}
    fork.sync_dir(ROOT)
    fork.open(LOG).sync_data()
    fork.crash(SeededRng(0))
    assert fork.contents() == {LOG: b"nnn", ROOT / "other": b"fork"}
    assert len(states(disk)) == 4


def test_fork_keeps_what_is_in_doubt_in_doubt() -> None:
    disk = new_disk()
    put(disk, LOG, b"o" * SECTOR_BYTES)
    disk.sync_dir(ROOT)
    put(disk, LOG, b"n" * SECTOR_BYTES * 2, sync=False)
    disk.replace(LOG, ROOT / "moved")
    disk.make_dirs(ROOT / "young")
    fork = disk.fork()
    assert states(fork) == states(disk)
    assert len(states(fork)) > 10
    fork.sync_dir(ROOT)
    fork.open(ROOT / "moved").sync_data()
    assert states(fork) == [{ROOT / "moved": b"n" * SECTOR_BYTES * 2}]


def test_fingerprints_are_equal_for_equal_disks_only() -> None:
    disk = new_disk()
    put(disk, LOG, b"x")
    disk.make_dirs(ROOT / "young")
    same, other, another = disk.fork(), disk.fork(), disk.fork()
    put(other, LOG, b"y")
    another.replace(LOG, ROOT / "young" / "log")
    assert disk.fingerprint() == same.fingerprint()
    assert len({disk.fingerprint(), other.fingerprint(), another.fingerprint()}) == 3
    assert disk.fingerprint(without={"log"}) == other.fingerprint(without={"log"}) != disk.fingerprint()
    assert disk.fingerprint(without={"store"}) == SimDisk().fingerprint()


def test_fork_holds_its_locks_until_it_is_killed() -> None:
    disk = new_disk()
    disk.lock(ROOT / "lock")
    fork = disk.fork()
    assert fork.locks == {ROOT / "lock"}
    fork.kill()
    fork.lock(ROOT / "lock")
    assert disk.locks == {ROOT / "lock"}


def test_folder_whose_parent_was_not_synced_is_lost_with_its_files() -> None:
    disk = new_disk()
    disk.make_dirs(ROOT / "queue" / "0")
    put(disk, ROOT / "queue" / "0" / "file", b"synced")
    disk.sync_dir(ROOT / "queue" / "0")
    disk.sync_dir(ROOT / "queue")
    outcomes = [
        (state.exists(ROOT / "queue"), state.exists(ROOT / "queue" / "0" / "file"))
        for state in disk.lost_states(SeededRng(0))
    ]
    assert outcomes == [(False, False), (True, True)]
    disk.sync_dir(ROOT)
    assert [state.contents() for state in disk.lost_states(SeededRng(0))] == [
        {ROOT / "queue" / "0" / "file": b"synced"}
    ]


def test_each_missing_parent_may_be_lost_by_itself() -> None:
    disk = SimDisk()
    disk.make_dirs(ROOT / "a" / "b")
    folders = [ROOT, ROOT / "a", ROOT / "a" / "b"]
    found = [sum(state.exists(folder) for folder in folders) for state in disk.lost_states(SeededRng(0))]
    assert sorted(found) == [0, 1, 2, 3]


def test_rename_between_folders_is_one_change() -> None:
    disk = new_disk()
    for name in ("from", "to"):
        disk.make_dirs(ROOT / name)
    disk.sync_dir(ROOT)
    put(disk, ROOT / "from" / "x", b"x")
    disk.sync_dir(ROOT / "from")
    disk.replace(ROOT / "from" / "x", ROOT / "to" / "y")
    assert states(disk) == [{ROOT / "from" / "x": b"x"}, {ROOT / "to" / "y": b"x"}]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 5_000), st.integers(1, 1_500)),
        st.tuples(st.just("truncate"), st.integers(0, 5_000), st.just(0)),
        st.tuples(st.just("allocate"), st.integers(0, 3_000), st.integers(1, 3_000)),
        st.tuples(st.just("sync"), st.just(0), st.just(0)),
    ),
    max_size=12,
)


@given(OPERATIONS, st.integers(0, 1_000))
def test_no_state_has_bytes_that_are_neither_durable_nor_present(
    operations: list[tuple[str, int, int]], seed: int
) -> None:
    disk = new_disk()
    file = disk.open(LOG, create=True)
    disk.sync_dir(ROOT)
    durable = b""
    for number, (operation, offset, length) in enumerate(operations, 1):
        if operation == "write":
            file.pwrite(bytes([number]) * length, offset)
        elif operation == "truncate":
            file.truncate(offset)
        elif operation == "allocate":
            file.allocate(offset, length)
        else:
            file.sync_data()
            durable = read_file(disk, LOG)
    present = read_file(disk, LOG)
    found = [state[LOG] for state in states_of(disk, seed)]
    assert len(set(found)) == len(found)
    longest = max(len(durable), len(present))
    was, now = durable.ljust(longest, b"\0"), present.ljust(longest, b"\0")
    for content in found:
        assert len(content) in {len(durable), len(present)}
        for at in range(0, len(content), SECTOR_BYTES):
            end = min(at + SECTOR_BYTES, len(content))
            # A sector that the old length cuts is compared as far as it goes.
            assert content[at:end] in {was[at:end], now[at:end]}
    assert found[0] == durable
    if len(found) > 1:
        assert found[1] == present
    else:
        assert present == durable


EXHAUSTIVE_UNITS = 12


def states_of(disk: SimDisk, seed: int) -> list[dict[Path, bytes]]:
    return [state.contents() for state in disk.lost_states(SeededRng(seed), exhaustive_units_max=6, samples=50)]


@given(st.integers(0, 200), st.integers(1, 12))
def test_crash_finds_one_of_the_lost_states(seed: int, steps: int) -> None:
    disk, rng = new_disk(), SeededRng(seed)
    for _ in range(steps):
        name = ROOT / rng.choice("abc")
        match rng.randrange(0, 5):
            case 0 | 1:
                put(disk, name, rng.randbytes(5), at=rng.randrange(0, 700), sync=rng.random() < 0.5)
            case 2 if disk.exists(name):
                disk.unlink(name)
            case 3 if disk.exists(name):
                disk.replace(name, ROOT / rng.choice("abc"))
            case _:
                disk.sync_dir(ROOT)
    # Only when all the subsets are looked at is one that is not among them wrong.
    assume(PowerCut(*copy_tree(disk._root, disk._changes)).units <= EXHAUSTIVE_UNITS)
    possible = states(disk, exhaustive_units_max=EXHAUSTIVE_UNITS)
    for crash in range(5):
        fork = disk.fork()
        fork.crash(SeededRng(crash))
        assert fork.contents() in possible
