"""Masters and slaves: how they are, and which of them is the master (MISSION H1-H5, N12)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mqclient.admin.brokers import BrokerAdmin, ClusterBroker
from mqclient.admin.ha_status import BrokerRole, HaAnswer
from mqclient.admin.replica_calls import ReplicaCalls
from mqclient.admin.switch_plan import plan_after_loss, plan_switch
from mqclient.admin.switching import MasterSwitch, Switching
from mqclient.errors import IllegalArgumentError, MQClientError, NoRouteError

SWITCH_TIMEOUT_S = 30.0


class ReplicationAdmin(BrokerAdmin):
    """Calls about replication."""

    async def ha_status(self, *, cluster_name: str | None = None, broker: str | None = None) -> list[HaAnswer]:
        """What each broker process says of its replication, masters and slaves, by cluster, name and id.

        Those of all clusters or of one; `broker` is a broker's name or an address, which no name server has to know.
        Who does not answer is in the list with the error. Raises NoRouteError when no such broker is known.
        """
        known = [one for one in await self.cluster_list() if cluster_name in (None, one.cluster_name)]
        if broker is not None:
            known = [one for one in known if broker in (one.broker_name, one.address)]
        if not known and broker is not None and ":" in broker and cluster_name is None:
            known = [ClusterBroker("", "", 0, broker)]
        if not known:
            where = "" if cluster_name is None else f" in the cluster {cluster_name!r}"
            raise NoRouteError(f"no broker lives{where}" if broker is None else f"no broker {broker!r} lives{where}")
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
        one becomes its slave. A slave that does not get everything within `timeout_s` is not promoted: the old master
        is the master again. A switch that was broken off is finished by asking for it again, or taken back by asking
        for one to the old master. `timeout_s` holds for each step.

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
        """Every replica of this name that a name server or a master knows, and the one at the address.

        A master that was replaced is known to no name server any more. Raises NoRouteError, IllegalArgumentError.
        """
        known = [one for one in await self.cluster_list() if one.broker_name == broker_name]
        if not known and address is None:
            raise NoRouteError(f"no broker lives that is called {broker_name!r}")
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
