"""Masters with epochs: which one stands in the routes, what the other is told, and what is remembered of both."""

from __future__ import annotations

import dataclasses

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mq_namesrv.core.registration import (
    NO_EPOCH,
    BrokerIdentity,
    Epoch,
    Fence,
    NotLeaderError,
    Registration,
    TopicConfig,
)
from mq_namesrv.core.route_table import (
    InvariantError,
    RouteTable,
    SupersededError,
    check_invariants,
    close_session,
    cluster_list,
    expire,
    register,
    route,
    unregister,
)

EXPIRE_SECONDS = 120.0
NAME, A, B, C = "broker-a", 1001, 1002, 1003


def master(port: int, term: int, start: int = 0) -> Registration:
    """The process at this port as the master."""
    return replica(port, 0, Epoch(term, start))


def restored(port: int, start: int) -> Registration:
    """A master whose store was put back from a backup."""
    return dataclasses.replace(master(port, 1, start), is_restored=True)


def replica(port: int, broker_id: int, epoch: Epoch = NO_EPOCH) -> Registration:
    who = BrokerIdentity("c1", NAME, broker_id, f"10.0.0.1:{port}")
    return Registration(who, f"10.0.0.1:{port + 1000}", {"orders": TopicConfig("orders", 4, 4, 6)}, 1, epoch)


@pytest.fixture
def table() -> RouteTable:
    return RouteTable()


def addresses(table: RouteTable) -> dict[int, str]:
    found = route(table, "orders")
    return {} if found is None else dict(found.brokers[0].addresses)


def rejected(table: RouteTable, registration: Registration, session: int) -> NotLeaderError:
    """The rejection; it has changed nothing."""
    before = addresses(table), table.fences.epoch(NAME)
    with pytest.raises(NotLeaderError) as caught:
        register(table, registration, session, now=0)
    assert (addresses(table), table.fences.epoch(NAME)) == before
    check_invariants(table)
    return caught.value


class TestTwoMasters:
    def test_higher_epoch_replaces_the_master_while_its_stream_is_open(self, table: RouteTable) -> None:
        register(table, master(A, 7, 3), session=1, now=0)
        outcome = register(table, master(B, 8), session=2, now=0)
        assert (outcome.is_new, outcome.master_epoch, outcome.ha_address) == (True, (8, 0), "10.0.0.1:2002")
        assert addresses(table) == {0: "10.0.0.1:1002"}
        assert close_session(table, 1, 0) == []
        assert addresses(table) == {0: "10.0.0.1:1002"}

    def test_heartbeat_of_the_old_master_is_rejected_with_its_successor(self, table: RouteTable) -> None:
        register(table, master(A, 7, 3), session=1, now=0)
        register(table, master(B, 8), session=2, now=0)
        error = rejected(table, master(A, 7, 3), session=1)
        assert (error.epoch, error.ha_address) == ((8, 0), "10.0.0.1:2002")
        assert "at 10.0.0.1:1001 is a master of epoch 7.3; its successor of 8.0 is at 10.0.0.1:1002" in str(error)

    def test_lower_epoch_is_rejected_from_a_newer_session_too(self, table: RouteTable) -> None:
        register(table, master(B, 8), session=1, now=0)
        assert rejected(table, master(A, 7, 9), session=2).epoch == (8, 0)

    def test_higher_epoch_wins_from_an_older_session_too(self, table: RouteTable) -> None:
        register(table, master(A, 7, 3), session=2, now=0)
        register(table, master(B, 8), session=1, now=0)
        assert addresses(table) == {0: "10.0.0.1:1002"}

    def test_same_epoch_from_another_address_is_rejected_while_the_first_is_registered(self, table: RouteTable) -> None:
        register(table, master(A, 7), session=1, now=0)
        error = rejected(table, master(B, 7), session=2)
        assert (error.epoch, error.ha_address) == ((7, 0), "10.0.0.1:2001")
        assert "so does 10.0.0.1:1001, which is registered" in str(error)
        close_session(table, 1, 0)
        register(table, master(B, 7), session=2, now=0)
        assert addresses(table) == {0: "10.0.0.1:1002"}

    def test_same_master_comes_again_on_a_newer_stream(self, table: RouteTable) -> None:
        register(table, master(A, 7), session=1, now=0)
        register(table, master(A, 7), session=2, now=0)
        assert close_session(table, 1, 0) == []
        with pytest.raises(SupersededError, match="newer session"):
            register(table, master(A, 7), session=1, now=0)
        assert addresses(table) == {0: "10.0.0.1:1001"}

    def test_master_that_has_started_again_has_a_higher_epoch(self, table: RouteTable) -> None:
        register(table, master(A, 7, 3), session=1, now=0)
        register(table, master(A, 7, 4), session=2, now=0)
        assert table.fences.epoch(NAME) == (7, 4)


class TestAnotherStore:
    @pytest.mark.parametrize("gone", [True, False])
    def test_master_that_has_lost_its_store_begins_anew_at_its_address(self, table: RouteTable, gone: bool) -> None:
        """Its old stream may not have ended yet."""
        register(table, master(A, 7, 3), session=1, now=0)
        if gone:
            close_session(table, 1, 0)
        assert register(table, master(A, 1, 1), session=2, now=0).master_epoch == (1, 1)
        check_invariants(table)
        assert addresses(table) == {0: "10.0.0.1:1001"}

    def test_but_not_while_a_replica_knows_better(self, table: RouteTable) -> None:
        register(table, master(A, 7, 3), session=1, now=0)
        register(table, replica(B, 1), session=2, now=0)
        close_session(table, 1, 0)
        assert rejected(table, master(A, 1, 1), session=3).epoch == (7, 3)

    def test_and_not_on_an_older_stream(self, table: RouteTable) -> None:
        register(table, master(A, 7, 4), session=2, now=0)
        assert rejected(table, master(A, 7, 3), session=1).epoch == (7, 4)

    def test_without_epochs_it_is_an_older_version(self, table: RouteTable) -> None:
        register(table, master(A, 7, 3), session=1, now=0)
        close_session(table, 1, 0)
        register(table, replica(A, 0), session=2, now=0)
        assert table.fences == {}


class TestRestoredMaster:
    def test_it_is_rejected_while_a_replica_lives_that_has_followed_a_master(self, table: RouteTable) -> None:
        """Whatever the epochs are: they begin anew with the store."""
        register(table, master(A, 1, 1), session=1, now=0)
        register(table, replica(B, 1, Epoch(1, 1)), session=2, now=0)
        close_session(table, 1, 0)
        for start in (1, 2):
            error = rejected(table, restored(A, start), session=3)
            assert "replica 1 at 10.0.0.1:1002 is active" in str(error)
            assert "--oldMasterIsLost" in str(error)
            assert "--to 10.0.0.1:1001" in str(error)
            assert error.ha_address == ""
        register(table, master(A, 2), session=3, now=0)  # an operator has promoted it
        assert addresses(table)[0] == "10.0.0.1:1001"

    def test_it_is_told_of_the_replica_that_was_promoted(self, table: RouteTable) -> None:
        register(table, master(B, 2), session=2, now=0)
        error = rejected(table, restored(A, 1), session=3)
        assert (error.epoch, error.ha_address) == ((2, 0), "10.0.0.1:2002")

    def test_it_is_the_master_beside_replicas_that_are_new_and_when_there_are_none(self, table: RouteTable) -> None:
        register(table, replica(B, 1), session=1, now=0)
        register(table, restored(A, 1), session=2, now=0)
        register(table, restored(A, 1), session=2, now=9)
        assert addresses(table)[0] == "10.0.0.1:1001"


class TestOlderVersions:
    def test_masters_without_an_epoch_replace_each_other_by_session(self, table: RouteTable) -> None:
        register(table, replica(A, 0), session=1, now=0)
        register(table, replica(B, 0), session=2, now=0)
        assert addresses(table) == {0: "10.0.0.1:1002"}
        assert table.fences == {}

    def test_master_without_an_epoch_gives_way_to_one_with_an_epoch(self, table: RouteTable) -> None:
        register(table, replica(A, 0), session=1, now=0)
        register(table, master(B, 1), session=2, now=0)
        assert addresses(table) == {0: "10.0.0.1:1002"}
        assert rejected(table, replica(A, 0), session=1).epoch == (1, 0)


class TestReplicas:
    def test_replica_hears_where_its_master_is_and_its_epoch(self, table: RouteTable) -> None:
        alone = register(table, replica(B, 1), session=2, now=0)
        assert (alone.ha_address, alone.master_epoch) == ("", NO_EPOCH)
        register(table, master(A, 7, 3), session=1, now=0)
        outcome = register(table, replica(B, 1, Epoch(7, 2)), session=2, now=0)
        assert (outcome.ha_address, outcome.master_epoch) == ("10.0.0.1:2001", (7, 3))

    def test_epoch_of_a_replica_is_no_master_s(self, table: RouteTable) -> None:
        register(table, replica(B, 1, Epoch(9, 0)), session=1, now=0)
        register(table, master(A, 7), session=2, now=0)
        assert addresses(table) == {0: "10.0.0.1:1001", 1: "10.0.0.1:1002"}

    @pytest.mark.mechanism("N12")
    def test_replicas_stay_readable_without_a_master_which_is_remembered(self, table: RouteTable) -> None:
        register(table, master(A, 7, 3), session=1, now=0)
        register(table, replica(B, 1), session=2, now=0)
        close_session(table, 1, 0)
        assert addresses(table) == {1: "10.0.0.1:1002"}
        outcome = register(table, replica(B, 1), session=2, now=0)
        assert (outcome.ha_address, outcome.master_epoch) == ("", (7, 3))
        error = rejected(table, master(C, 7, 2), session=3)
        assert (error.epoch, error.ha_address) == ((7, 3), "")
        assert "its successor of 7.3 is not registered now" in str(error)

    def test_switch_swaps_the_ids_whichever_registers_first(self, table: RouteTable) -> None:
        register(table, master(A, 7), session=1, now=0)
        register(table, replica(B, 1), session=2, now=0)
        register(table, master(B, 8), session=3, now=0)
        assert addresses(table) == {0: "10.0.0.1:1002"}
        register(table, replica(A, 1), session=4, now=0)
        assert addresses(table) == {0: "10.0.0.1:1002", 1: "10.0.0.1:1001"}

    def test_late_heartbeat_from_before_the_promotion_cannot_remove_the_master(self, table: RouteTable) -> None:
        register(table, replica(B, 1), session=2, now=0)
        register(table, master(B, 8), session=3, now=0)
        with pytest.raises(SupersededError, match="with id 0 was registered by a newer session"):
            register(table, replica(B, 1), session=2, now=0)
        assert addresses(table) == {0: "10.0.0.1:1002"}


class TestMemory:
    def test_epoch_is_remembered_for_the_expiry_time_after_the_last_broker_has_gone(self, table: RouteTable) -> None:
        register(table, master(A, 7, 3), session=1, now=0)
        close_session(table, 1, 0)
        expire(table, 10, EXPIRE_SECONDS)  # the first scan that finds no broker
        expire(table, 130, EXPIRE_SECONDS)
        rejected(table, master(B, 7, 2), session=2)
        expire(table, 130.001, EXPIRE_SECONDS)
        assert table.fences == {}
        register(table, master(B, 7, 2), session=2, now=131)
        assert addresses(table) == {0: "10.0.0.1:1002"}

    def test_a_broker_of_the_name_keeps_the_memory_for_ever(self, table: RouteTable) -> None:
        register(table, master(A, 7, 3), session=1, now=0)
        close_session(table, 1, 0)
        expire(table, 10, EXPIRE_SECONDS)
        for now in range(100, 10_000, 30):
            register(table, replica(B, 1), session=2, now=now)
            expire(table, now, EXPIRE_SECONDS)
        assert table.fences == {NAME: Fence(Epoch(7, 3), "10.0.0.1:1001")}

    def test_rejected_master_does_not_prolong_the_memory_of_another(self, table: RouteTable) -> None:
        register(table, master(A, 7, 3), session=1, now=0)
        unregister(table, master(A, 7, 3).identity, 0)
        for now in range(0, 140, 10):
            expire(table, now, EXPIRE_SECONDS)
            if now <= EXPIRE_SECONDS:
                rejected(table, master(B, 7, 2), session=2)
        assert table.fences == {}


@pytest.mark.parametrize("damage", ["older master", "forgotten", "vacant"])
def test_damaged_fence_is_noticed(table: RouteTable, damage: str) -> None:
    register(table, master(A, 7), session=1, now=0)
    check_invariants(table)
    if damage == "older master":
        table.fences[NAME] = Fence(Epoch(8, 0), "10.0.0.1:1001")
    elif damage == "forgotten":
        table.fences.clear()
    else:
        table.fences[NAME] = dataclasses.replace(table.fences[NAME], vacant_since=1.0)
    with pytest.raises(InvariantError):
        check_invariants(table)


class RandomSwitches(RuleBasedStateMachine):
    """Whatever order masters and replicas come in: the master in the route has the highest epoch ever seen, and only
    one process ever has it. Only the process that had it can begin again with a lower one, while no other broker is
    there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable()
        self.now = 0.0
        self.highest = NO_EPOCH
        self.holder = ""

    @rule(
        port=st.sampled_from([A, B, C]),
        broker_id=st.integers(0, 2),
        session=st.integers(1, 12),
        epoch=st.builds(Epoch, st.integers(0, 3), st.integers(0, 1)),
    )
    def registers(self, port: int, broker_id: int, session: int, epoch: Epoch) -> None:
        one = replica(port, broker_id, epoch)
        before, master_before = set(addresses(self.table).values()), addresses(self.table).get(0)
        try:
            outcome = register(self.table, one, session, self.now)
        except NotLeaderError:
            assert broker_id == 0
            assert epoch <= self.highest
            assert epoch < self.highest or master_before not in (None, one.identity.address)
            return
        except SupersededError:
            assert broker_id != 0 or epoch <= self.highest or one.identity.address in addresses(self.table).values()
            return
        if broker_id == 0:
            begins_anew = one.identity.address == self.holder and before <= {self.holder}
            assert begins_anew or epoch >= self.highest
            assert epoch != self.highest or epoch == NO_EPOCH or master_before in (None, one.identity.address)
            self.highest, self.holder = epoch, one.identity.address
        assert outcome.master_epoch == self.highest
        if broker_id and 0 in addresses(self.table):
            assert outcome.ha_address == self.table.brokers[NAME][0].registration.ha_address

    @rule(session=st.integers(1, 12))
    def ends(self, session: int) -> None:
        close_session(self.table, session, self.now)

    @rule(seconds=st.floats(0, 70))
    def waits(self, seconds: float) -> None:
        self.now += seconds
        expire(self.table, self.now, EXPIRE_SECONDS)
        if NAME not in self.table.fences:
            assert not addresses(self.table) or self.highest == NO_EPOCH
            self.highest = NO_EPOCH
            if not addresses(self.table):  # a master without an epoch leaves nothing to remember, but is there
                self.holder = ""

    @invariant()
    def the_master_has_the_highest_epoch(self) -> None:
        check_invariants(self.table)
        assert len(cluster_list(self.table)) <= 1
        found = self.table.brokers.get(NAME, {}).get(0)
        if found is not None:
            assert (found.registration.epoch, found.registration.identity.address) == (self.highest, self.holder)
        assert self.table.fences.epoch(NAME) == self.highest


RandomSwitches.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
test_random_switches = RandomSwitches.TestCase
