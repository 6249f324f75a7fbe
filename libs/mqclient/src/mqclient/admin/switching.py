"""A change of masters, step by step (RELIABILITY.md, part b).

    the old master steps down -> the target has its whole log -> the target is promoted -> the old one becomes its slave

Invariants: nobody is promoted before the old master has said where its log ends, for good, and the target has it all on
disk; once a promotion may have happened, nobody else is promoted. Each step can be repeated, and a run that ends
between two of them loses nothing: another one goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mqclient.admin.ha_status import BrokerRole, Epoch, HaStatus
from mqclient.admin.replica_calls import Change, HandOver, Patience, ReplicaCalls
from mqclient.admin.switch_plan import SwitchPlan
from mqclient.errors import IllegalStateError, MQClientError, RequestTimeoutError, with_more


@dataclass(frozen=True, slots=True)
class MasterSwitch:
    """What has come of a switch. `promoted` is False when the target was the master already.

    `slaves` are those that were made slaves, with their ids; `log_end` is where the log of the new epoch begins.
    """

    broker_name: str
    master: str
    role: BrokerRole
    epoch: Epoch
    log_end: int
    promoted: bool
    slaves: tuple[tuple[int, str], ...]


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
            await self._make_slave(former, broker_id, master)
        return MasterSwitch(
            broker_name=plan.target.broker_name,
            master=master.address,
            role=master.role,
            epoch=master.epoch,
            log_end=log_end,
            promoted=plan.promote,
            slaves=tuple((broker_id, former.address) for former, broker_id in plan.leftovers),
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
        """What it leaves. One that has started again since is a slave already, and may have lost its log's end."""
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
        """Have the old master go on, in a new epoch. Raises IllegalStateError, or why that failed too."""
        try:
            again = await self._promoted(giver, replace(left, whole=False))
        except MQClientError as error:
            raise with_more(error, f"; before that: {problem}; nobody takes writes until it is repeated") from error
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

    async def _make_slave(self, former: HaStatus, broker_id: int, master: HaStatus) -> None:
        change, patience = Change(), self._patience()
        told = f"; {master.address} is the master, in epoch {master.epoch}, and {former.address} no slave of it yet"
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
                raise RequestTimeoutError(f"{former.address} does not answer as a slave{told}: {self._again}")

    async def _ask_to_follow(self, former: HaStatus, broker_id: int, master: HaStatus) -> None:
        if former.leads and former is not self._plan.giver:  # nobody has told it that there is another master
            await self._calls.step_down(former.address, former.epoch)
        await self._calls.become_slave(former.address, broker_id, master)

    def _patience(self) -> Patience:
        return Patience(self._calls.clock, self._timeout_s)


def _is_at_work(status: HaStatus) -> bool:
    """It takes writes, or would if enough slaves were there, which is what comes next."""
    return status.writable or status.in_sync_replicas < status.min_in_sync_replicas
