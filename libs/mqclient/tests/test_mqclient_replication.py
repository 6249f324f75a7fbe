"""Masters and replicas as an operator sees them, and every step of a change between them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import pytest

from hourglass.mq.v1 import admin_service_pb2 as pb
from mqclient import (
    Admin,
    BrokerRejectedError,
    BrokerUnavailableError,
    BrokerUnreachableError,
    ConnectionLostError,
    IllegalArgumentError,
    IllegalStateError,
    MQClientError,
    NoRouteError,
    RequestTimeoutError,
)
from mqclient.admin import BrokerRole, Epoch, MasterSwitch
from mqclient.testing import FakeBroker, FakeCluster
from mqclient.testing.fake_admin import FakeReplica, make_pair
from mqclient.transport import methods
from mqproto.codes import ResponseCode

A, B, C = "127.0.0.1:10911", "127.0.0.1:10912", "127.0.0.1:10913"
STEP_S = 0.5
T = TypeVar("T")


@dataclasses.dataclass
class Pair:
    cluster: FakeCluster
    admin: Admin
    brokers: tuple[FakeBroker, ...]

    @property
    def old(self) -> FakeReplica:
        return self.brokers[0].admin.replica

    @property
    def new(self) -> FakeReplica:
        return self.brokers[1].admin.replica

    def add_replica(self, broker_id: int) -> FakeReplica:
        broker = self.cluster.add_broker("a")
        broker.admin.replica.follow(self.old, broker_id)
        self.brokers += (broker,)
        return broker.admin.replica

    async def run(self, call: Awaitable[T]) -> T:
        """What comes of it while time passes."""
        task = asyncio.ensure_future(call)
        while not task.done():
            await self.cluster.clock.advance(STEP_S)
        return task.result()

    async def switch(self, to: int | str | None = B, **how: Any) -> MasterSwitch:
        return await self.run(self.admin.switch_master("a", to, **how))

    def masters(self) -> list[str]:
        """The brokers that take writes."""
        return [broker.address for broker in self.brokers if broker.admin.replica.writable]

    async def half_way(self, **how: Any) -> asyncio.Task[MasterSwitch]:
        """A switch to B that waits for the rest of the log: no broker takes writes."""
        self.new.behind = 10
        switching = asyncio.create_task(self.admin.switch_master("a", B, **how))
        await self.cluster.clock.advance(STEP_S)
        assert self.masters() == []
        return switching

    def requests(self) -> list[str]:
        """Which changes were asked for, by the message's name."""
        return [type(one).__name__ for broker in self.brokers for one in broker.admin.replica.requests]

    async def is_swapped(self) -> None:
        """B is the master, and A its replica that has everything."""
        by_address = {one.broker.address: one.status for one in await self.admin.ha_status(broker="a")}
        new, old = by_address[B], by_address[A]
        assert new is not None
        assert old is not None
        assert (new.role, new.broker_id, new.leads) == (BrokerRole.SYNC_MASTER, 0, True)
        assert (old.role, old.broker_id, old.connected) == (BrokerRole.SLAVE, 1, True)
        assert [replica.address for replica in new.replicas] == [A]
        assert old.log_end == new.log_end == 1_000
        assert old.epoch == new.epoch

    async def is_as_before(self) -> None:
        """A is the master again, with B as its replica."""
        assert self.masters() == [A]
        assert (self.old.role, self.old.broker_id) == (pb.SYNC_MASTER, 0)
        assert self.new.role == pb.SLAVE


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    cluster = FakeCluster()
    brokers = make_pair(cluster, "a")
    brokers[0].admin.replica.role = pb.SYNC_MASTER
    async with Admin(cluster.url) as admin:
        yield Pair(cluster, admin, brokers)


class TestStatus:
    async def test_masters_and_replicas_tell_everything(self, pair: Pair) -> None:
        pair.new.behind, pair.new.in_sync = 100, False
        master, replica = [one.status for one in await pair.admin.ha_status()]
        assert master is not None
        assert replica is not None
        assert (master.address, master.broker_id, master.role, master.leads) == (A, 0, BrokerRole.SYNC_MASTER, True)
        assert (master.epoch, str(master.epoch), master.log_end, master.in_sync_replicas) == ((1, 1), "1.1", 1_000, 1)
        (seen,) = master.replicas
        assert (seen.broker_id, seen.address, seen.connected, seen.in_sync) == (1, B, True, False)
        assert (seen.durable_offset, seen.lag_bytes, seen.lag_seconds) == (900, 100, 1.5)
        assert (replica.address, replica.broker_id, replica.role, replica.leads) == (B, 1, BrokerRole.SLAVE, False)
        assert (replica.connected, replica.in_sync, replica.lag_bytes, replica.lag_seconds) == (True, False, 100, 1.5)
        assert (replica.reason, replica.master_ha_address) == ("it is a replica", master.ha_address)

    async def test_who_does_not_answer_is_in_the_list(self, pair: Pair) -> None:
        pair.brokers[1].unary_errors[methods.GET_REPLICA_STATUS.path].append(BrokerUnreachableError("nothing listens"))
        master, replica = await pair.admin.ha_status()
        assert master.error is None
        assert (replica.broker.address, replica.status, str(replica.error)) == (B, None, "nothing listens")

    async def test_of_one_cluster_one_name_or_one_address(self, pair: Pair) -> None:
        pair.cluster.add_broker("b")

        async def asked(**which: str) -> list[str]:
            return [answer.broker.address for answer in await pair.admin.ha_status(**which)]

        assert await asked() == await asked(cluster_name="fake") == [A, B, C]
        assert await asked(broker="a") == [A, B]
        assert await asked(broker=B) == [B]
        pair.brokers[1].registered = False
        assert await asked(broker=B) == [B]
        for which, sentence in [
            ({"cluster_name": "x"}, "no broker is registered in the cluster 'x'"),
            ({"broker": "x"}, "no broker 'x' is registered"),
            ({"broker": B, "cluster_name": "fake"}, "no broker '127.0.0.1:10912' is registered in the cluster 'fake'"),
        ]:
            with pytest.raises(NoRouteError, match=sentence):
                await asked(**which)


class TestSwitch:
    @pytest.mark.parametrize("to", [1, B])
    async def test_roles_swap_and_nothing_is_lost(self, pair: Pair, to: int | str) -> None:
        outcome = await pair.switch(to)
        assert outcome == MasterSwitch("a", B, BrokerRole.SYNC_MASTER, Epoch(2, 0), 1_000, True, ((1, A),))
        await pair.is_swapped()
        assert pair.requests() == ["StepDownRequest", "BecomeSlaveRequest", "PromoteRequest"]  # A's, then B's

    async def test_the_successor_gets_the_queue_locks_of_the_old_master(self, pair: Pair) -> None:
        await pair.switch()
        promoted = [one for one in pair.new.requests if isinstance(one, pb.PromoteRequest)]
        assert [one.queue_locks for one in promoted] == [b"of 1"]

    async def test_a_master_that_is_promoted_again_gets_its_own_queue_locks_back(self, pair: Pair) -> None:
        switching = await pair.half_way(timeout_s=2)
        with pytest.raises(IllegalStateError, match="is the master again"):
            await pair.run(switching)
        promoted = [one for one in pair.old.requests if isinstance(one, pb.PromoteRequest)]
        assert [one.queue_locks for one in promoted] == [b"of 1"]

    async def test_there_and_back_again(self, pair: Pair) -> None:
        await pair.switch(B)
        assert (await pair.switch(A)).epoch == (3, 0)
        await pair.is_as_before()
        assert (pair.new.broker_id, pair.new.epoch) == (1, (3, 0))

    async def test_the_new_term_is_above_every_other(self, pair: Pair) -> None:
        pair.old.epoch = Epoch(7, 3)
        assert (await pair.switch()).epoch == (8, 0)

    async def test_the_rest_of_the_log_is_waited_for(self, pair: Pair) -> None:
        switching = await pair.half_way()
        await pair.cluster.clock.advance(20)
        assert pair.masters() == []
        pair.new.behind = 0
        assert (await pair.run(switching)).log_end == 1_000
        await pair.is_swapped()

    async def test_a_log_of_another_epoch_is_not_the_same_at_the_same_length(self, pair: Pair) -> None:
        switching = await pair.half_way(timeout_s=5)
        pair.new.master_ha_address = "127.0.0.1:1"  # it has no master, and 1,000 bytes of its own
        pair.new.epoch, pair.new.log_end = Epoch(1, 0), 1_000
        with pytest.raises(IllegalStateError, match=r"has the log of epoch 1\.0 up to 1000"):
            await pair.run(switching)
        assert not pair.new.writable

    async def test_the_old_one_gets_an_unused_id(self, pair: Pair) -> None:
        pair.add_replica(2)
        assert (await pair.switch(C)).replicas == ((2, A),)
        pair.new.broker_id = 2  # as the operator has said in broker.conf
        pair.new.behind = 0
        pair.new.follow(pair.brokers[2].admin.replica, 2)
        pair.old.broker_id = (1 << 31) - 1
        assert (await pair.switch(A)).replicas == ((1, C),)


class TestRejected:
    @pytest.mark.parametrize(
        ("name", "to", "how", "sentence"),
        [
            ("a", None, {}, "name the replica"),
            ("a", 1, {"timeout_s": 0}, "above 0"),
            ("a", 1, {"role": BrokerRole.SLAVE}, "SLAVE is no role of a master"),
            ("a", 7, {}, f"a has no replica 7; there are: 0 at {A}, 1 at {B}"),
            ("b", A, {}, f"{A} is no replica of b, but of a"),
        ],
    )
    async def test_what_makes_no_sense(
        self, pair: Pair, name: str, to: int | str | None, how: dict[str, Any], sentence: str
    ) -> None:
        with pytest.raises(IllegalArgumentError, match=sentence):
            await pair.admin.switch_master(name, to, **how)
        assert pair.requests() == []

    async def test_an_unknown_name_is_an_error(self, pair: Pair) -> None:
        with pytest.raises(NoRouteError, match="registered as 'b'"):
            await pair.admin.switch_master("b", 1)

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"master_ha_address": ""}, "is no replica that is connected to the master at 127.0.0.1:10911"),
            ({"in_sync": False, "behind": 70}, "is not in sync: it is 70 bytes behind"),
            ({"behind": 1 << 40}, "1099511627776 bytes behind: more than it can get in 30 s"),
            ({"epoch": Epoch(9, 0)}, "has followed a master of epoch 9.0; 127.0.0.1:10911 is of 1.1"),
        ],
    )
    async def test_a_target_that_cannot_take_over(self, pair: Pair, change: dict[str, Any], sentence: str) -> None:
        for field, value in change.items():
            setattr(pair.new, field, value)
        with pytest.raises(IllegalStateError, match=sentence):
            await pair.admin.switch_master("a", 1)
        assert pair.requests() == []
        assert pair.masters() == [A]

    async def test_a_target_that_does_not_answer(self, pair: Pair) -> None:
        pair.brokers[1].unary_errors[methods.GET_REPLICA_STATUS.path].append(BrokerUnreachableError("nothing listens"))
        with pytest.raises(BrokerUnreachableError, match=f"nothing listens; so {B} cannot become the master"):
            await pair.admin.switch_master("a", 1)

    async def test_a_target_that_is_not_in_sync_can_be_forced(self, pair: Pair) -> None:
        pair.new.in_sync = False
        await pair.switch(force=True)
        assert pair.masters() == [B]

    async def test_a_master_that_is_lost(self, pair: Pair) -> None:
        pair.brokers[0].down = True
        with pytest.raises(IllegalStateError, match=r"no master of a answers; when it is lost for good, repeat"):
            await pair.admin.switch_master("a", 1)

    async def test_two_masters(self, pair: Pair) -> None:
        pair.new.role, pair.new.writable, pair.new.epoch = pb.ASYNC_MASTER, True, Epoch(2, 0)
        with pytest.raises(IllegalStateError, match=r"there are 2 masters: .* switch to the last one first"):
            await pair.admin.switch_master("a", A)
        assert (await pair.switch(B)).promoted is False  # A had not heard of it
        assert pair.masters() == [B]
        assert (pair.old.role, pair.old.epoch) == (pb.SLAVE, (2, 0))

    async def test_a_former_master_is_made_a_replica_before_it_is_the_master_again(self, pair: Pair) -> None:
        pair.old.writable = False
        pair.new.role, pair.new.writable, pair.new.epoch = pb.SYNC_MASTER, True, Epoch(2, 0)
        with pytest.raises(IllegalStateError, match=f"not a replica yet; switch to {B}, the master"):
            await pair.admin.switch_master("a", A)


class TestFailuresBetweenSteps:
    @pytest.mark.parametrize("method", [methods.STEP_DOWN, methods.PROMOTE, methods.BECOME_SLAVE])
    async def test_a_lost_answer_is_asked_for_again(self, pair: Pair, method: Any) -> None:
        for replica in (pair.old, pair.new):
            replica.lost_answers.append(method.path)
        await pair.switch()
        await pair.is_swapped()

    @pytest.mark.parametrize("method", [methods.STEP_DOWN, methods.PROMOTE, methods.BECOME_SLAVE])
    async def test_a_lost_request_is_sent_again(self, pair: Pair, method: Any) -> None:
        for broker in pair.brokers:
            broker.unary_errors[method.path].append(ConnectionLostError("the connection broke"))
        await pair.switch()
        await pair.is_swapped()

    @pytest.mark.parametrize("made", [False, True])
    @pytest.mark.parametrize("method", [methods.STEP_DOWN, methods.PROMOTE, methods.BECOME_SLAVE])
    async def test_a_run_dies_and_another_run_finishes(self, pair: Pair, method: Any, made: bool) -> None:
        switching = asyncio.create_task(pair.admin.switch_master("a", B))
        for broker in pair.brokers:
            _die(broker, method.path, switching, made=made)
        await asyncio.gather(switching, return_exceptions=True)
        assert switching.cancelled()
        assert len(pair.masters()) <= 1
        await pair.switch(B)
        if not pair.brokers[0].registered:
            pair.old.hear_of(pair.new)
            assert (await pair.switch(B)).replicas == ((1, A),)
        await pair.is_swapped()

    async def test_a_rejected_step_down_changes_nothing(self, pair: Pair) -> None:
        pair.brokers[0].unary_errors[methods.STEP_DOWN.path].append(
            BrokerUnavailableError(ResponseCode.SYSTEM_ERROR, "its epoch is 1.2", "a")
        )
        with pytest.raises(BrokerUnavailableError, match=r"its epoch is 1\.2"):
            await pair.switch()
        await pair.is_as_before()

    async def test_an_old_master_that_falls_silent_may_have_stepped_down(self, pair: Pair) -> None:
        pair.brokers[0].unary_errors[methods.STEP_DOWN.path] += [RequestTimeoutError("no answer")] * 200
        with pytest.raises(RequestTimeoutError, match=f"{A} may have stepped down: run the switch to {B} again"):
            await pair.switch()

    async def test_a_replica_that_does_not_catch_up_is_not_promoted(self, pair: Pair) -> None:
        pair.new.behind = 10
        sentence = (
            rf"{B} has the log of epoch 1\.1 up to 990, not to 1000, after 5 s; {A} is the master again, in epoch 2\.0"
        )
        with pytest.raises(IllegalStateError, match=sentence):
            await pair.switch(timeout_s=5)
        await pair.is_as_before()
        pair.new.behind = 0
        assert (await pair.switch()).epoch == (3, 0)

    async def test_a_replica_that_dies_is_not_promoted(self, pair: Pair) -> None:
        switching = await pair.half_way(timeout_s=5)
        pair.brokers[1].down = True
        with pytest.raises(IllegalStateError, match=f"{B} does not answer, after 5 s; {A} is the master again"):
            await pair.run(switching)
        await pair.is_as_before()

    async def test_a_rejected_promotion_gives_the_place_back(self, pair: Pair) -> None:
        pair.brokers[1].unary_errors[methods.PROMOTE.path].append(
            BrokerUnavailableError(ResponseCode.SYSTEM_ERROR, "its disk is full", "b")
        )
        with pytest.raises(IllegalStateError, match=r"was not promoted: .*its disk is full; .* is the master again"):
            await pair.switch()
        await pair.is_as_before()

    async def test_a_promotion_that_never_left_gives_the_place_back(self, pair: Pair) -> None:
        pair.brokers[1].unary_errors[methods.PROMOTE.path] += [BrokerUnreachableError("nothing listens")] * 200
        with pytest.raises(IllegalStateError, match=r"was not promoted: nothing listens; .* is the master again"):
            await pair.switch()
        await pair.is_as_before()

    async def test_after_a_promotion_that_may_have_been_made_no_other_replica_is_promoted(self, pair: Pair) -> None:
        pair.brokers[1].unary_errors[methods.PROMOTE.path] += [RequestTimeoutError("no answer")] * 200
        with pytest.raises(RequestTimeoutError, match=f"it may be: when it answers, run the switch to {B} again"):
            await pair.switch()
        assert pair.masters() == []
        pair.brokers[1].down = True
        with pytest.raises(IllegalStateError, match=f"one that does not answer may be: {B}"):
            await pair.switch(A)
        pair.new.master_ha_address = ""
        with pytest.raises(IllegalStateError, match="to one that no name server knows now"):
            await pair.switch(A)
        assert pair.masters() == []
        pair.brokers[1].down = False
        pair.brokers[1].unary_errors.clear()
        pair.new.master_ha_address = pair.old.ha_address
        await pair.switch(B)
        await pair.is_swapped()

    async def test_a_promotion_that_is_lost_with_its_target_is_taken_back(self, pair: Pair) -> None:
        pair.old.writable = False
        pair.brokers[1].down = True
        outcome = await pair.switch(A, old_master_is_lost=True)
        assert (outcome.master, outcome.role) == (A, BrokerRole.SYNC_MASTER)

    async def test_when_the_place_cannot_be_given_back_both_reasons_are_told(self, pair: Pair) -> None:
        pair.new.behind = 10
        pair.brokers[0].unary_errors[methods.PROMOTE.path].append(
            BrokerRejectedError(ResponseCode.NO_PERMISSION, "not today", "a")
        )
        with pytest.raises(BrokerRejectedError, match=r"not today; before that: .* to 990, .* no broker takes writes"):
            await pair.switch()
        pair.new.behind = 0
        await pair.switch(B)
        await pair.is_swapped()

    async def test_a_switch_that_was_broken_off_can_be_taken_back(self, pair: Pair) -> None:
        pair.old.writable = False
        outcome = await pair.switch(A)
        assert (outcome.master, outcome.epoch, outcome.replicas) == (A, (2, 0), ())
        await pair.is_as_before()

    async def test_an_old_master_that_has_started_again_after_it_stepped_down(self, pair: Pair) -> None:
        pair.old.writable = False
        pair.old.restart()
        await pair.switch(B)
        await pair.is_swapped()

    async def test_one_that_gives_its_log_no_more_is_the_master_again(self, pair: Pair) -> None:
        pair.old.writable = False
        pair.new.behind = 10
        pair.new.catch_up()
        pair.old.restart()
        with pytest.raises(IllegalStateError, match=f"{A} gives it no more; {A} is the master again"):
            await pair.switch(B)
        await pair.is_as_before()

    async def test_an_old_master_that_is_down_becomes_a_replica_later(self, pair: Pair) -> None:
        pair.brokers[0].unary_errors[methods.BECOME_SLAVE.path] += [BrokerUnreachableError("nothing listens")] * 200
        with pytest.raises(RequestTimeoutError, match=f"no replica of it yet: run the switch to {B} again"):
            await pair.switch()
        assert pair.masters() == [B]
        pair.brokers[0].unary_errors.clear()
        pair.old.restart()  # known to the name servers with the id of a former master
        outcome = await pair.switch(B)
        assert (outcome.promoted, outcome.replicas, outcome.epoch) == (False, ((1, A),), (2, 0))
        await pair.is_swapped()

    async def test_a_rejection_to_become_a_replica_says_who_the_master_is(self, pair: Pair) -> None:
        pair.brokers[0].unary_errors[methods.BECOME_SLAVE.path].append(
            BrokerUnavailableError(ResponseCode.SYSTEM_ERROR, "its disk is full", "a")
        )
        with pytest.raises(BrokerUnavailableError, match=rf"disk is full; {B} is the master, in epoch 2\.0"):
            await pair.switch()

    async def test_a_finished_switch_is_not_made_again(self, pair: Pair) -> None:
        await pair.switch(B)
        before = pair.requests()
        outcome = await pair.switch(B)
        assert (outcome.promoted, outcome.replicas, outcome.epoch) == (False, (), (2, 0))
        assert pair.requests() == before


class TestLostMaster:
    async def lost(self, pair: Pair, to: int | str | None = None, **how: Any) -> MasterSwitch:
        return await pair.switch(to, old_master_is_lost=True, **how)

    async def test_the_replica_becomes_the_master(self, pair: Pair) -> None:
        pair.brokers[0].down = True
        assert await self.lost(pair) == MasterSwitch("a", B, BrokerRole.SYNC_MASTER, Epoch(2, 0), 1_000, True, ())
        assert pair.new.writable

    async def test_the_role_can_be_chosen(self, pair: Pair) -> None:
        pair.brokers[0].down = True
        assert (await self.lost(pair, role=BrokerRole.ASYNC_MASTER)).role is BrokerRole.ASYNC_MASTER

    async def test_the_one_that_has_most_is_chosen(self, pair: Pair) -> None:
        pair.new.behind = 10
        pair.new.catch_up()
        pair.add_replica(2)
        pair.brokers[0].down = True
        assert (await self.lost(pair)).master == C

    async def test_one_that_has_less_has_to_be_forced(self, pair: Pair) -> None:
        pair.new.behind = 10
        pair.new.catch_up()
        pair.add_replica(2)
        pair.brokers[0].down = True
        with pytest.raises(
            IllegalStateError, match=f"{C} has more than {B}: its log is on disk up to 1000 .* up to 990"
        ):
            await self.lost(pair, 1)
        outcome = await self.lost(pair, 1, force=True)
        assert (outcome.master, outcome.log_end) == (B, 990)

    async def test_a_newer_epoch_counts_for_more_than_a_longer_log(self, pair: Pair) -> None:
        pair.new.log_end, pair.new.epoch = 2_000, Epoch(1, 0)
        pair.add_replica(2)
        pair.brokers[0].down = True
        assert (await self.lost(pair)).master == C

    async def test_a_master_that_answers_is_not_lost(self, pair: Pair) -> None:
        for to in (None, B):
            with pytest.raises(IllegalStateError, match=f"the master answers, at {A}"):
                await self.lost(pair, to)
        assert pair.requests() == []

    async def test_a_master_that_its_replica_hears_from_is_not_lost(self, pair: Pair) -> None:
        pair.brokers[0].unary_errors[methods.GET_REPLICA_STATUS.path].append(BrokerUnreachableError("nothing listens"))
        with pytest.raises(IllegalStateError, match=f"the master is running: {B} hears from it"):
            await self.lost(pair)

    async def test_no_replica_is_left(self, pair: Pair) -> None:
        pair.brokers[0].down = pair.brokers[1].down = True
        with pytest.raises(NoRouteError, match="registered as 'a'"):
            await self.lost(pair)
        with pytest.raises(IllegalStateError, match=f"no replica answers: {B}"):
            await self.lost(pair, B)

    async def test_a_run_that_was_broken_off_is_finished(self, pair: Pair) -> None:
        pair.brokers[0].down = True
        await self.lost(pair)
        assert (await self.lost(pair, B)).promoted is False

    async def test_the_lost_one_that_comes_back_becomes_a_replica(self, pair: Pair) -> None:
        pair.brokers[0].down = True
        await self.lost(pair)
        pair.brokers[0].down = False  # it still believes that it is the master; no name server lists it
        pair.brokers[0].registered = True
        assert (await pair.switch(B)).replicas == ((1, A),)
        await pair.is_swapped()

    async def test_a_promotion_that_fails_is_told(self, pair: Pair) -> None:
        pair.brokers[0].down = True
        pair.brokers[1].unary_errors[methods.PROMOTE.path].append(
            BrokerUnavailableError(ResponseCode.SYSTEM_ERROR, "its disk is full", "b")
        )
        with pytest.raises(MQClientError, match="its disk is full"):
            await self.lost(pair)
        assert not pair.new.writable


def _die(broker: FakeBroker, path: str, caller: asyncio.Task[Any], *, made: bool) -> None:
    """Have the next call of this path be the last thing that its caller does, and made, or not."""
    call = broker._unary[path]

    def answer(request: Any) -> Any:
        broker._unary[path] = call
        caller.cancel()
        if made:
            call(request)
        raise ConnectionLostError(f"{broker.address}: the connection broke")

    broker._unary[path] = answer
