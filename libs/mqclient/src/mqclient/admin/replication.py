"""Masters and replicas: their status, and a change of masters step by step.

    the old master steps down -> the target has its whole log -> the target is promoted -> the old one becomes its
    replica

What has to be done is decided from what the replicas say of themselves.

Invariants: no replica is promoted while another master may be writing, nor before the old master has said where its log
ends, for good, and the target has it all on disk; the target has, or is going to get, everything that is on any disk
that can be asked, unless the operator forces it; once a promotion may have happened, no other replica is promoted. Each
step can be repeated, and a run that ends between two of them loses nothing: another one goes on, by a plan of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mqclient.admin.brokers import BrokerAdmin, ClusterBroker
from mqclient.admin.replicas import (
    FORMER_MASTER_ID,
    BrokerRole,
    Change,
    Epoch,
    HaAnswer,
    HandOver,
    HaStatus,
    Patience,
    ReplicaCalls,
    ReplicaStatus,
)
from mqclient.errors import (
    IllegalArgumentError,
    IllegalStateError,
    MQClientError,
    NoRouteError,
    RequestTimeoutError,
    with_more,
)
from mqclient.name_servers import MASTER_ID

# What a replica is expected to get: that much every modest disk writes. A plan that was too hopeful does no harm, for
# the old master is promoted again when the replica has not caught up in time.
CATCH_UP_BYTES_PER_S = 16 * 1024 * 1024
AFTER_A_LOSS = "repeat the switch with old_master_is_lost=True (mqadmin: --oldMasterIsLost)"

SWITCH_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class SwitchPlan:
    """`target` becomes the master of `term`, unless it is (`promote` is False then).

    `giver` steps down first, and the target has to have its whole log; None when no master is left. Afterwards the
    `leftovers` become replicas, each with the id beside it.
    """

    target: HaStatus
    giver: HaStatus | None
    leftovers: tuple[tuple[HaStatus, int], ...]
    term: int
    promote: bool = True


def plan_switch(answers: Sequence[HaAnswer], to: int | str, *, force: bool, timeout_s: float) -> SwitchPlan:
    """With an old master that answers. Raises IllegalStateError, IllegalArgumentError, and the target's own error."""
    target = _named(answers, to)
    leader = _leader(answers, target)
    if leader is None:
        return _without_leader(answers, target)
    if leader is target:
        return _plan(answers, target, giver=None, promote=False)
    if target.has_lost_its_place and not target.connected:
        raise IllegalStateError(
            f"{target.address} has lost its place as master and is not a replica yet; "
            f"switch to {leader.address}, the master, which makes a replica of it"
        )
    _check_replica(leader, target, force=force, timeout_s=timeout_s)
    return _plan(answers, target, giver=leader)


def plan_after_loss(answers: Sequence[HaAnswer], to: int | str | None, *, force: bool) -> SwitchPlan:
    """With an old master that is gone for good. Raises as `plan_switch`."""
    living = _statuses(answers)
    if not living:
        raise IllegalStateError(f"no replica answers: {_silent(answers)}")
    best = max(living, key=lambda one: one.progress)
    target = best if to is None else _named(answers, to)
    leader = _leader(answers, target)
    if leader is target and to is not None:
        return _plan(answers, target, giver=None, promote=False)
    if leader is not None:
        raise IllegalStateError(f"the master answers, at {leader.address}; switch as if nothing were lost")
    for one in living:
        if one.connected:
            raise IllegalStateError(
                f"the master is running: {one.address} hears from it, at {one.master_ha_address}; stop it first"
            )
    if best.progress > target.progress and not force:
        raise IllegalStateError(
            f"{best.address} has more than {target.address}: its log is on disk up to {best.durable_end} in epoch "
            f"{best.epoch}, the other up to {target.durable_end} in {target.epoch}; the difference would be lost"
        )
    return _plan(answers, target, giver=None)


def _named(answers: Sequence[HaAnswer], to: int | str) -> HaStatus:
    """The replica that `to` names, by id or by address."""
    for answer in answers:
        status = answer.status
        broker_id = answer.broker.broker_id if status is None else status.broker_id
        if to in (broker_id, answer.broker.address):
            if answer.error is not None:
                raise with_more(answer.error, f"; so {answer.broker.address} cannot become the master")
            if status is not None:
                return status
    known = ", ".join(f"{_id_of(answer)} at {answer.broker.address}" for answer in answers)
    raise IllegalArgumentError(f"{answers[0].broker.broker_name} has no replica {to}; there are: {known}")


def _leader(answers: Sequence[HaAnswer], target: HaStatus) -> HaStatus | None:
    """The one that is the master now; of two the one with the higher epoch, when it is the target."""
    leaders = sorted((one for one in _statuses(answers) if one.leads), key=lambda one: one.epoch)
    if len(leaders) > 1 and leaders[-1] is not target:
        told = ", ".join(f"{one.address} in epoch {one.epoch}" for one in leaders)
        raise IllegalStateError(f"there are {len(leaders)} masters: {told}; switch to the last one first")
    return leaders[-1] if leaders else None


def _without_leader(answers: Sequence[HaAnswer], target: HaStatus) -> SwitchPlan:
    """A switch that was not finished is finished, or taken back when it goes to the old master itself."""
    if silent := _silent(answers):
        raise IllegalStateError(
            f"no broker that answers is the master; one that does not answer may be: {silent}; "
            f"when it is lost for good, {AFTER_A_LOSS}"
        )
    former = [one for one in _statuses(answers) if one.has_lost_its_place]
    if not former:
        raise IllegalStateError(f"no master of {target.broker_name} answers; when it is lost for good, {AFTER_A_LOSS}")
    giver = max(former, key=lambda one: one.progress)
    if target is giver:
        if len(answers) == 1:
            raise IllegalStateError(
                f"{target.address} has lost its place as master to one that no name server knows now; "
                f"when that is lost for good, {AFTER_A_LOSS}"
            )
        return _plan(answers, target, giver=None)
    _check_epoch(giver, target)
    return _plan(answers, target, giver=giver)


def _check_replica(leader: HaStatus, target: HaStatus, *, force: bool, timeout_s: float) -> None:
    _check_epoch(leader, target)
    replica = _as_seen(leader, target)
    if replica is None or not replica.connected:
        raise IllegalStateError(f"{target.address} is no replica that is connected to the master at {leader.address}")
    if not replica.in_sync and not force:
        raise IllegalStateError(f"{target.address} is not in sync: it is {replica.lag_bytes} bytes behind")
    if replica.lag_bytes > timeout_s * CATCH_UP_BYTES_PER_S:
        raise IllegalStateError(
            f"{target.address} is {replica.lag_bytes} bytes behind: more than it can get in {timeout_s:g} s"
        )


def _as_seen(leader: HaStatus, target: HaStatus) -> ReplicaStatus | None:
    found = [one for one in leader.replicas if one.replica_id == target.replica_id]
    return next((one for one in found if one.connected), found[0] if found else None)


def _check_epoch(master: HaStatus, target: HaStatus) -> None:
    if target.epoch > master.epoch:
        raise IllegalStateError(
            f"{target.address} has followed a master of epoch {target.epoch}; {master.address} is of {master.epoch}"
        )


def _plan(answers: Sequence[HaAnswer], target: HaStatus, giver: HaStatus | None, *, promote: bool = True) -> SwitchPlan:
    living = _statuses(answers)
    former = [one for one in living if one is not target and (one is giver or one.leads or one.has_lost_its_place)]
    taken = {_id_of(answer) for answer in answers if answer.status not in (target, *former)}
    ids = _free_ids(target.broker_id, taken, len(former))
    return SwitchPlan(target, giver, tuple(zip(former, ids, strict=True)), _highest_term(living) + 1, promote)


def _free_ids(first_choice: int, taken: set[int], count: int) -> list[int]:
    """Ids for replicas: the one that the new master had, then the lowest that no broker of the pair has."""
    good = [first_choice] if first_choice not in {MASTER_ID, FORMER_MASTER_ID, *taken} else []
    free = (number for number in range(MASTER_ID + 1, FORMER_MASTER_ID) if number not in {*taken, *good})
    return [*good, *(next(free) for _ in range(count))][:count]


def _highest_term(living: Sequence[HaStatus]) -> int:
    return max(one.epoch.term for one in living)


def _statuses(answers: Sequence[HaAnswer]) -> list[HaStatus]:
    return [answer.status for answer in answers if answer.status is not None]


def _silent(answers: Sequence[HaAnswer]) -> str:
    return "; ".join(f"{one.broker.address} ({one.error})" for one in answers if one.error is not None)


def _id_of(answer: HaAnswer) -> int:
    return answer.broker.broker_id if answer.status is None else answer.status.broker_id


@dataclass(frozen=True, slots=True)
class MasterSwitch:
    """The outcome of a switch. `promoted` is False when the target was the master already.

    `replicas` are those that were made replicas, with their ids; `log_end` is where the log of the new epoch begins.
    """

    broker_name: str
    master: str
    role: BrokerRole
    epoch: Epoch
    log_end: int
    promoted: bool
    replicas: tuple[tuple[int, str], ...]


class Switching:
    """One run of one plan. `timeout_s` is how long it waits for each step; `role` is the new master's, where the old
    one cannot be asked for its own.
    """

    def __init__(self, calls: ReplicaCalls, plan: SwitchPlan, role: BrokerRole, timeout_s: float) -> None:
        self._calls = calls
        self._plan = plan
        self._role = role
        self._timeout_s = timeout_s
        self._again = f"run the switch to {plan.target.address} again"

    async def run(self) -> MasterSwitch:
        """Raises IllegalStateError when the old master is the master still or again, and MQClientError."""
        plan = self._plan
        master, log_end = plan.target, plan.target.log_end
        if plan.promote:
            master, log_end = await self._promote_target()
        for former, broker_id in plan.leftovers:
            await self._make_replica(former, broker_id, master)
        return MasterSwitch(
            broker_name=plan.target.broker_name,
            master=master.address,
            role=master.role,
            epoch=master.epoch,
            log_end=log_end,
            promoted=plan.promote,
            replicas=tuple((broker_id, former.address) for former, broker_id in plan.leftovers),
        )

    # ----------------------------------------------------------------------------------------------- promotion

    async def _promote_target(self) -> tuple[HaStatus, int]:
        """The new master, and where its epoch begins."""
        plan = self._plan
        giver, target = plan.giver, plan.target
        if giver is None:
            role = target.role if target.role.is_master else self._role
            left = HandOver(target.epoch, target.durable_end, role)
            return await self._promoted(target, left), left.log_end
        left = await self._step_down(giver)
        problem = await self._catch_up(giver, left.log_end)
        if problem:
            await self._give_back(giver, left, problem)
        try:
            return await self._promoted(target, left), left.log_end
        except RequestTimeoutError:
            raise
        except MQClientError as error:
            await self._give_back(giver, left, f"{target.address} was not promoted: {error}")
            raise

    async def _step_down(self, giver: HaStatus) -> HandOver:
        """What it hands over. One that has started again since is a replica already, and may have lost its log's
        end.
        """
        if not giver.role.is_master:
            return HandOver(giver.epoch, giver.log_end, self._role)
        change, patience = Change(), self._patience()
        while True:
            try:
                return await self._calls.step_down(giver.address, giver.epoch)
            except MQClientError as error:
                change.failed(error)
                if not await patience.pause():
                    raise with_more(error, f"; {giver.address} may have stepped down: {self._again}") from error

    async def _catch_up(self, giver: HaStatus, log_end: int) -> str:
        """Wait until the target has everything; why it has not, when the time is over."""
        target, patience = self._plan.target.address, self._patience()
        while True:
            if (status := await self._calls.look(target)) is None:
                problem = f"{target} does not answer"
            else:
                if status.progress == (giver.epoch, log_end):
                    return ""
                problem = f"{target} has the log of epoch {status.epoch} up to {status.durable_end}, not to {log_end}"
                if not giver.role.is_master:
                    return f"{problem}, and {giver.address} gives it no more"
            if not await patience.pause():
                return f"{problem}, after {self._timeout_s:g} s"

    async def _give_back(self, giver: HaStatus, left: HandOver, problem: str) -> None:
        """Promote the old master again, in a new epoch. Raises IllegalStateError, or why that failed too."""
        try:
            again = await self._promoted(giver, replace(left, whole=False))
        except MQClientError as error:
            raise with_more(error, f"; before that: {problem}; no broker takes writes until it is repeated") from error
        raise IllegalStateError(f"{problem}; {giver.address} is the master again, in epoch {again.epoch}")

    async def _promoted(self, replica: HaStatus, left: HandOver) -> HaStatus:
        """Its status as the master of the plan's term. Raises RequestTimeoutError when that is not known."""
        change, patience, term = Change(), self._patience(), self._plan.term
        while True:
            if not change.accepted:
                try:
                    await self._calls.promote(replica.address, term, left)
                    change.accepted = change.may_have_been_made = True
                except MQClientError as error:
                    change.failed(error)
            status = await self._calls.look(replica.address)
            if status is not None and status.role.is_master and status.epoch.term >= term and _is_at_work(status):
                return status
            if await patience.pause():
                continue
            if change.problem is not None and not change.may_have_been_made:
                raise change.problem
            raise RequestTimeoutError(
                f"{replica.address} was promoted, and has not said for {self._timeout_s:g} s that it is the master of "
                f"term {term}; it may be: when it answers, run the switch to {replica.address} again"
            )

    # -------------------------------------------------------------------------------------------- the old master

    async def _make_replica(self, former: HaStatus, broker_id: int, master: HaStatus) -> None:
        change, patience = Change(), self._patience()
        told = f"; {master.address} is the master, in epoch {master.epoch}, and {former.address} no replica of it yet"
        while True:
            try:
                if not change.accepted:
                    await self._ask_to_follow(former, broker_id, master)
                    change.accepted = change.may_have_been_made = True
            except MQClientError as error:
                try:
                    change.failed(error)
                except MQClientError:
                    raise with_more(error, f"{told}: {self._again}") from error
            status = await self._calls.look(former.address)
            if status is not None and (status.role, status.broker_id) == (BrokerRole.SLAVE, broker_id):
                return
            if not await patience.pause():
                raise RequestTimeoutError(f"{former.address} does not answer as a replica{told}: {self._again}")

    async def _ask_to_follow(self, former: HaStatus, broker_id: int, master: HaStatus) -> None:
        if former.leads and former is not self._plan.giver:  # it has not heard that there is another master
            await self._calls.step_down(former.address, former.epoch)
        await self._calls.become_replica(former.address, broker_id, master)

    def _patience(self) -> Patience:
        return Patience(self._calls.clock, self._timeout_s)


def _is_at_work(status: HaStatus) -> bool:
    """It takes writes, or would if enough replicas were there, which is what comes next."""
    return status.writable or status.in_sync_replicas < status.min_in_sync_replicas


class ReplicationAdmin(BrokerAdmin):
    """Calls about replication."""

    async def ha_status(self, *, cluster_name: str | None = None, broker: str | None = None) -> list[HaAnswer]:
        """The replication status of each broker process, masters and replicas, by cluster, name and id.

        Those of all clusters or of one; `broker` is a broker's name or an address, which no name server has to know.
        A process that does not answer is in the list with the error. Raises NoRouteError when no such broker is known.
        """
        known = [one for one in await self.cluster_list() if cluster_name in (None, one.cluster_name)]
        if broker is not None:
            known = [one for one in known if broker in (one.broker_name, one.address)]
        if not known and broker is not None and ":" in broker and cluster_name is None:
            known = [ClusterBroker("", "", 0, broker)]
        if not known:
            where = "" if cluster_name is None else f" in the cluster {cluster_name!r}"
            named = "" if broker is None else f" {broker!r}"
            raise NoRouteError(f"no broker{named} is registered{where}")
        return await self._ask_all(known)

    async def switch_master(
        self,
        broker_name: str,
        to: int | str | None = None,
        *,
        old_master_is_lost: bool = False,
        force: bool = False,
        role: BrokerRole = BrokerRole.SYNC_MASTER,
        timeout_s: float = SWITCH_TIMEOUT_S,
    ) -> MasterSwitch:
        """Make the replica `to`, given by its id or its address, the master of `broker_name`; nothing is lost.

        The old master steps down, the other gets the rest of its log and is promoted with the old one's role, the old
        one becomes its replica. A replica that does not get everything within `timeout_s` is not promoted: the old
        master is the master again. A switch that was broken off is finished by asking for it again, or taken back by
        asking for one to the old master. `timeout_s` holds for each step.

        `old_master_is_lost`: it will never come back with its log. Then the replica that has most is promoted, or `to`;
        what no other replica had on disk is lost. `role` is the new master's when the old one's is not known:
        SYNC_MASTER, because it weakens nothing. `force` allows a target that is not in sync, and after a loss one that
        has less than another.

        Raises IllegalStateError when it is not possible now, and says why; IllegalArgumentError, NoRouteError,
        RequestTimeoutError when it is not known whether a step was made, and MQClientError.
        """
        if to is None and not old_master_is_lost:
            raise IllegalArgumentError("name the replica that becomes the master, by its id or its address")
        if not role.is_master:
            raise IllegalArgumentError(f"{role.name} is no role of a master; allowed are ASYNC_MASTER and SYNC_MASTER")
        if not timeout_s > 0:
            raise IllegalArgumentError(f"timeout_s={timeout_s!r}: it has to be above 0")
        answers = await self._replicas(broker_name, to if isinstance(to, str) else None)
        if old_master_is_lost:
            plan = plan_after_loss(answers, to, force=force)
        elif to is not None:
            plan = plan_switch(answers, to, force=force, timeout_s=timeout_s)
        return await Switching(self._replica_calls(), plan, role, timeout_s).run()

    async def _replicas(self, broker_name: str, address: str | None) -> list[HaAnswer]:
        """Every broker of this name that a name server or a master knows, and the one at the address.

        A master that was replaced is known to no name server any more. Raises NoRouteError, IllegalArgumentError.
        """
        known = [one for one in await self.cluster_list() if one.broker_name == broker_name]
        if not known and address is None:
            raise NoRouteError(f"no broker is registered as {broker_name!r}")
        cluster = known[0].cluster_name if known else ""
        if address is not None and address not in {one.address for one in known}:
            known.append(ClusterBroker(cluster, broker_name, 0, address))
        answers = await self._ask_all(known)
        seen = [replica for answer in answers if answer.status is not None for replica in answer.status.replicas]
        more = {one.address: ClusterBroker(cluster, broker_name, one.broker_id, one.address) for one in seen}
        for one in known:
            more.pop(one.address, None)
        answers += await self._ask_all(list(more.values()))
        for answer in answers:
            if answer.status is not None and answer.status.broker_name != broker_name:
                raise IllegalArgumentError(
                    f"{answer.status.address} is no replica of {broker_name}, but of {answer.status.broker_name}"
                )
        return answers

    async def _ask_all(self, brokers: Sequence[ClusterBroker]) -> list[HaAnswer]:
        """All at once: those that do not answer take the time of one."""
        calls = self._replica_calls()

        async def ask(broker: ClusterBroker) -> HaAnswer:
            try:
                return HaAnswer(broker, await calls.status(broker.address), None)
            except MQClientError as error:
                return HaAnswer(broker, None, error)

        return list(await asyncio.gather(*map(ask, brokers)))

    def _replica_calls(self) -> ReplicaCalls:
        return ReplicaCalls(self._target_at, self._instance.clock)
