"""What a broker remembers of replication: decisions at a start, and its file through crashes and damage."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from mq_broker.core.replica_state import (
    FORMER_MASTER_ID,
    NO_EPOCH,
    BrokerRole,
    Cut,
    Epoch,
    EpochBegin,
    EpochHistory,
    InSyncSet,
    ReplicaState,
)
from mq_broker.replication.node import ReplicaFile
from mq_broker.store.errors import StoreDamagedError
from mq_broker.store.layout import StoreLayout
from osenv import SeededRng, SimDisk
from osenv.disk import make_durable_dirs, read_file

ME, OTHER = "0" * 32, "f" * 32
MASTER = ReplicaState(ME, BrokerRole.SYNC_MASTER, BrokerRole.SYNC_MASTER, 0)
SLAVE = ReplicaState(ME, BrokerRole.SLAVE, BrokerRole.SLAVE, 1)
LAYOUT = StoreLayout(Path("/store"))


def test_a_master_begins_a_new_epoch_whenever_it_starts() -> None:
    first = MASTER.begun(0)
    assert first.epoch == Epoch(1, 1)
    assert first.in_sync == InSyncSet(1, frozenset({ME}))
    second = first.begun(500)
    assert second.epoch == Epoch(1, 2)
    assert second.history == EpochHistory((EpochBegin(Epoch(1, 1), 0), EpochBegin(Epoch(1, 2), 500)))
    assert second.in_sync == first.in_sync


def test_a_promoted_replica_begins_its_term_once() -> None:
    promoted = SLAVE.following(Epoch(1, 3), OTHER, EpochHistory()).promoted(2, BrokerRole.SYNC_MASTER)
    assert (promoted.broker_id, promoted.master_id, promoted.role) == (0, ME, BrokerRole.SYNC_MASTER)
    begun = promoted.begun(700)
    assert begun.epoch == Epoch(2, 0)
    assert begun.begun(700).epoch == Epoch(2, 1)


def test_a_replica_knows_who_began_its_log_and_keeps_that_when_it_is_promoted() -> None:
    assert MASTER.begun(0).first_master_id == ME
    replica = SLAVE.following(Epoch(1, 3), OTHER, EpochHistory(), first_master_id=OTHER)
    assert replica.promoted(2, BrokerRole.SYNC_MASTER).begun(0).first_master_id == OTHER
    assert (
        replica.following(Epoch(2, 0), ME, EpochHistory()).first_master_id == OTHER
    )  # an earlier version does not tell


def test_who_steps_down_is_a_replica_without_a_place() -> None:
    down = MASTER.begun(0).stepped_down()
    assert (down.role, down.broker_id) == (BrokerRole.SLAVE, FORMER_MASTER_ID)
    assert down.stepped_down() == down
    assert SLAVE.stepped_down() == SLAVE


def test_a_switch_outlives_a_restart_until_the_configuration_changes() -> None:
    switched = SLAVE.promoted(2, BrokerRole.SYNC_MASTER)
    assert switched.started(BrokerRole.SLAVE, 1) == switched
    edited = switched.started(BrokerRole.ASYNC_MASTER, 0)
    assert (edited.role, edited.epoch) == (BrokerRole.ASYNC_MASTER, Epoch(2, 0))
    down = MASTER.begun(0).stepped_down()
    assert down.started(BrokerRole.SYNC_MASTER, 0).role is BrokerRole.SLAVE


def test_a_replica_that_its_configuration_makes_a_master_begins_a_term() -> None:
    replica = SLAVE.following(Epoch(1, 3), OTHER, EpochHistory())
    master = replica.started(BrokerRole.ASYNC_MASTER, 0)
    assert (master.role, master.epoch, master.broker_id) == (BrokerRole.ASYNC_MASTER, Epoch(2, 0), 0)
    assert MASTER.begun(0).started(BrokerRole.SLAVE, 1).role is BrokerRole.SLAVE


def test_a_cut_takes_epochs_and_what_is_confirmed_with_it() -> None:
    history = EpochHistory((EpochBegin(Epoch(1, 1), 0), EpochBegin(Epoch(1, 2), 500)))
    state = replace(SLAVE, history=history, confirmed=600, cut=Cut(400))
    after = state.after_cut()
    assert (after.cut, after.confirmed, after.history) == (None, 400, EpochHistory(history.begins[:1]))
    anew = replace(state, cut=Cut(600, begin=9_000)).after_cut()
    assert (anew.cut, anew.confirmed, anew.history) == (None, 600, EpochHistory())
    assert SLAVE.after_cut() == SLAVE


def test_a_master_without_a_record_says_nothing_of_earlier_epochs() -> None:
    """It has followed a master, and nothing of that one's log has reached it."""
    history = EpochHistory((EpochBegin(Epoch(1, 1), 0), EpochBegin(Epoch(1, 2), 300)))
    promoted = SLAVE.following(Epoch(1, 2), OTHER, history).promoted(2, BrokerRole.SYNC_MASTER)
    assert promoted.begun(900, 900).history == EpochHistory((EpochBegin(Epoch(2, 0), 900),))


@pytest.mark.parametrize(("cut", "begin"), [(Cut(300), 0), (Cut(300, begin=900), 900)])
def test_a_cut_leaves_the_epoch_that_a_master_has_begun_behind_it(cut: Cut, begin: int) -> None:
    history = EpochHistory((EpochBegin(Epoch(1, 1), 0), EpochBegin(Epoch(1, 2), 500)))
    replica = replace(SLAVE.following(Epoch(1, 2), OTHER, history), cut=cut)
    begun = replica.started(BrokerRole.SYNC_MASTER, 0).begun(max(begin, 300), begin)
    assert begun.after_cut().history.newest == begun.epoch == Epoch(2, 0)
    assert begun.after_cut().begun(1_000, begin).epoch == Epoch(2, 1)


@pytest.mark.parametrize("cut", [None, Cut(5), Cut(5, begin=70)])
def test_what_is_written_is_read_again(cut: Cut | None) -> None:
    state = replace(MASTER.begun(0).begun(77), master_ha_address="b:10912", confirmed=9, cut=cut)
    assert ReplicaState.from_json(state.to_json()) == state


@pytest.mark.parametrize("field", sorted(MASTER.to_json()))
@pytest.mark.parametrize("value", [None, "x", -1, [1], {}])
def test_a_document_of_another_form_is_no_state(field: str, value: object) -> None:
    document = MASTER.begun(0).to_json() | {field: value}
    try:
        state = ReplicaState.from_json(document)
    except (KeyError, TypeError, ValueError):
        return
    assert ReplicaState.from_json(state.to_json()) == state


def replica_file(disk: SimDisk, role: BrokerRole = BrokerRole.SYNC_MASTER) -> ReplicaFile:
    make_durable_dirs(disk, LAYOUT.config)
    return ReplicaFile(disk, LAYOUT, SeededRng(1), role, 0)


def test_a_store_keeps_its_id() -> None:
    disk = SimDisk()
    file = replica_file(disk)
    asyncio.run(file.change(lambda state: state.begun(0)))
    again = ReplicaFile(disk, LAYOUT, SeededRng(2), BrokerRole.SYNC_MASTER, 0)
    assert again.state == file.state
    assert again.state.epoch == Epoch(1, 1)
    assert replica_file(SimDisk()).state.epoch == NO_EPOCH


def begun_often(state: ReplicaState) -> ReplicaState:
    """After many starts, each with something written."""
    end = max((begin.log_offset for begin in state.history.begins), default=0)
    for number in range(30):
        state = state.begun(end + number + 1)
    return state


class PowerLost(BaseException):
    """The machine has no power any more."""


def test_no_power_cut_takes_an_epoch_back_or_tears_it() -> None:
    """Bug zoo 25: at every call of the disk, whatever of the unsynced is lost."""
    disk = SimDisk()
    asyncio.run(replica_file(disk).change(begun_often))  # several sectors long
    before = replica_file(disk.fork()).state
    after = begun_often(before.promoted(2, BrokerRole.SYNC_MASTER))
    found, call, is_over = set[ReplicaState](), 0, False
    while not is_over:
        call += 1
        is_over = not _change_until(attempt := disk.fork(), call, after)
        for left in attempt.lost_states(SeededRng(call), exhaustive_units_max=8, samples=100):
            left.kill()
            state = replica_file(left).state
            assert state == after or not is_over
            found.add(state)
    assert found == {before, after}


def _change_until(disk: SimDisk, call: int, state: ReplicaState) -> bool:
    """Write `state`, and lose the power at this call; whether there were so many."""
    file, calls = replica_file(disk), 0

    def lose_power(_call: str, _path: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise PowerLost

    disk.before = lose_power
    try:
        asyncio.run(file.change(lambda _: state))
    except PowerLost:
        return True
    return False


@pytest.mark.parametrize("name", ["replica.json", "replica.json.bak"])
def test_a_damaged_byte_of_one_of_the_two_costs_nothing_and_is_mended(name: str) -> None:
    disk = SimDisk()
    asyncio.run(replica_file(disk).change(lambda state: state.begun(0)))
    path, other = (LAYOUT.config / one for one in (name, OTHER_NAME[name]))
    for at in range(len(read_file(disk, path))):
        damaged = disk.fork()
        flip(damaged, path, at)
        file = replica_file(damaged)
        assert file.state.epoch == Epoch(1, 1)
        asyncio.run(file.change(lambda state: state))
        assert read_file(damaged, path) == read_file(damaged, other) == read_file(disk, path)


def test_damage_to_both_is_rejected_with_a_sentence() -> None:
    disk = SimDisk()
    asyncio.run(replica_file(disk).change(lambda state: state.begun(0)))
    for name in OTHER_NAME:
        flip(disk, LAYOUT.config / name, 7)
    with pytest.raises(StoreDamagedError, match=r"replica\.json is damaged .* and .*replica\.json\.bak is damaged"):
        replica_file(disk)


OTHER_NAME = {"replica.json": "replica.json.bak", "replica.json.bak": "replica.json"}


def flip(disk: SimDisk, path: Path, at: int) -> None:
    file = disk.open(path)
    file.pwrite(bytes([file.pread(1, at)[0] ^ 1]), at)
    file.close()
