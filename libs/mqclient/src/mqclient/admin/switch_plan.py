"""Who becomes the master, and what has to be done for it: decided from what the replicas say of themselves.

Invariants: nobody is promoted while another master may be writing; who is promoted has, or is going to get, everything
that is on any disk that can be asked, unless the operator forces it; a plan that was followed in part leads to another
one that goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mqclient.admin.ha_status import FORMER_MASTER_ID, HaAnswer, HaStatus, ReplicaStatus
from mqclient.errors import IllegalArgumentError, IllegalStateError, with_more
from mqclient.name_servers import MASTER_ID

# What a slave is expected to get: that much every modest disk writes. A plan that was too hopeful does no harm, for the
# old master is promoted again when the slave has not caught up in time.
CATCH_UP_BYTES_PER_S = 16 * 1024 * 1024
AFTER_A_LOSS = "repeat the switch with old_master_is_lost=True (mqadmin: --oldMasterIsLost)"


@dataclass(frozen=True, slots=True)
class SwitchPlan:
    """`target` becomes the master of `term`, unless it is (`promote` is False then).

    `giver` steps down first, and the target has to have its whole log; None when there is nobody. Afterwards the
    `leftovers` become slaves, each with the id beside it.
    """

    target: HaStatus
    giver: HaStatus | None
    leftovers: tuple[tuple[HaStatus, int], ...]
    term: int
    promote: bool = True


def plan_switch(answers: Sequence[HaAnswer], to: int | str, *, force: bool, timeout_s: float) -> SwitchPlan:
    """With an old master that lives. Raises IllegalStateError, IllegalArgumentError, and why the target is silent."""
    target = _named(answers, to)
    leader = _leader(answers, target)
    if leader is None:
        return _without_leader(answers, target)
    if leader is target:
        return _plan(answers, target, giver=None, promote=False)
    if target.has_lost_its_place and not target.connected:
        raise IllegalStateError(
            f"{target.address} has lost its place as master and is nobody's slave yet; "
            f"switch to {leader.address}, the master, which makes a slave of it"
        )
    _check_slave(leader, target, force=force, timeout_s=timeout_s)
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
                f"the master lives: {one.address} hears from it, at {one.master_ha_address}; stop it for good before"
            )
    if best.progress > target.progress and not force:
        raise IllegalStateError(
            f"{best.address} has more than {target.address}: its log is on disk up to {best.durable_end} in epoch "
            f"{best.epoch}, the other up to {target.durable_end} in {target.epoch}; the difference would be lost"
        )
    return _plan(answers, target, giver=None)


def _named(answers: Sequence[HaAnswer], to: int | str) -> HaStatus:
    """The replica that the operator means, by id or by address."""
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
            f"nobody is the master, and it could be one that does not answer: {silent}; "
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


def _check_slave(leader: HaStatus, target: HaStatus, *, force: bool, timeout_s: float) -> None:
    _check_epoch(leader, target)
    replica = _as_seen(leader, target)
    if replica is None or not replica.connected:
        raise IllegalStateError(f"{target.address} is no slave that is connected to the master at {leader.address}")
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
    """Ids for slaves: the one that the new master had, then the lowest that nobody has."""
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
