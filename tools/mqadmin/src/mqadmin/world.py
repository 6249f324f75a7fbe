"""A command's environment: the time, files, an event loop for the cluster, and the choice of brokers.

Invariant: a broker that fails does not keep the others from being asked; its error is told, and the exit code is 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import typer

from mqadmin.errors import EXIT_FAILED, SENSELESS, say
from mqclient import Admin, MQClientError, NoRouteError
from mqclient.admin import BrokerStatus, ClusterBroker
from osenv import Clock, Disk, RealClock, RealDisk

MASTER_ID = 0

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The real one by default; tests bring their own as the context's `obj`."""

    clock: Clock = field(default_factory=RealClock)
    open_disk: Callable[[], Disk] = RealDisk
    run: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run

    @staticmethod
    def of(context: typer.Context) -> World:
        """The world that the command runs in."""
        return context.ensure_object(World)

    def read_file(self, path: Path) -> bytes:
        """What the file holds. Raises BadParameter."""
        path = path.absolute()
        try:
            file = self.open_disk().open(path, read_only=True)
            try:
                return file.pread(file.size(), 0)
            finally:
                file.close()
        except OSError as error:
            raise typer.BadParameter(f"{path} cannot be read: {error.strerror or error}") from None

    def ask(self, url: str, question: Callable[[Admin], Awaitable[T]]) -> T:
        """What the cluster behind `url` answers. Raises MQClientError."""

        async def asked() -> T:
            async with Admin(url) as admin:
                return await question(admin)

        return cast("T", self.run(asked()))


def require_one_target(broker_address: str | None, cluster: str | None) -> None:
    """Raises BadParameter unless exactly one of -b and -c is given, as in RocketMQ."""
    if (broker_address is None) == (cluster is None):
        raise typer.BadParameter("name a broker with -b or a cluster with -c, one of the two")


async def brokers_of(
    admin: Admin, *, broker_address: str | None = None, cluster: str | None = None, replicas: bool = False
) -> list[ClusterBroker]:
    """The broker at the address or of the name, or those of one cluster, or all; masters, unless replicas are wanted
    too.

    A broker that no name server knows can still be asked at its address; its names are empty. Raises NoRouteError for a
    cluster without brokers, and MQClientError.
    """
    known = await admin.cluster_list()
    if broker_address is not None and ":" in broker_address:
        found = [one for one in known if one.address == broker_address]
        return found[:1] or [ClusterBroker("", "", MASTER_ID, broker_address)]
    if broker_address is not None:
        found = [one for one in known if one.broker_name == broker_address and (replicas or one.broker_id == MASTER_ID)]
        if not found:
            names = ", ".join(sorted({one.broker_name for one in known})) or "none"
            raise NoRouteError(f"no broker {broker_address!r} is registered; brokers are: {names}")
        return found
    found = [one for one in known if cluster in (None, one.cluster_name) and (replicas or one.broker_id == MASTER_ID)]
    if cluster is not None and not found:
        names = ", ".join(sorted({one.cluster_name for one in known})) or "none"
        raise NoRouteError(f"no broker of a cluster {cluster!r} is registered; clusters are: {names}")
    return found


async def broker_names_of(admin: Admin, cluster: str | None) -> set[str] | None:
    """The names of a cluster's brokers; None, which stands for all, without a cluster. Raises as `brokers_of`."""
    return None if cluster is None else {one.broker_name for one in await brokers_of(admin, cluster=cluster)}


@dataclass
class Answers(Generic[T]):
    """What each broker answered, and the error of each that did not."""

    given: list[tuple[ClusterBroker, T]] = field(default_factory=list)
    failed: list[tuple[ClusterBroker, MQClientError]] = field(default_factory=list)

    def failures(self) -> list[dict[str, Any]]:
        """For the JSON document."""
        return [{**broker_fields(broker), "error": str(error)} for broker, error in self.failed]

    def end(self) -> None:
        """Tell the errors, if there are any. Raises typer.Exit then."""
        for broker, error in self.failed:
            say(f"{broker.broker_name or broker.address}: {error}")
        if self.failed:
            raise typer.Exit(EXIT_FAILED)


async def ask_each(brokers: Sequence[ClusterBroker], step: Callable[[ClusterBroker], Awaitable[T]]) -> Answers[T]:
    """Ask the brokers one after the other. Raises what the client rejects before it asks."""
    answers = Answers[T]()
    for broker in brokers:
        try:
            answers.given.append((broker, await step(broker)))
        except SENSELESS:
            raise
        except MQClientError as error:
            answers.failed.append((broker, error))
    return answers


async def ask_status(
    admin: Admin, *, broker_address: str | None = None, cluster: str | None = None, replicas: bool = False
) -> Answers[BrokerStatus]:
    """What each of these brokers says of itself; which ones they are, and what is raised, as in `brokers_of`."""
    brokers = await brokers_of(admin, broker_address=broker_address, cluster=cluster, replicas=replicas)
    return await ask_each(brokers, lambda broker: admin.broker_status(broker.address))


def broker_fields(broker: ClusterBroker) -> dict[str, Any]:
    """Its identity, in a JSON document."""
    return {
        "cluster_name": broker.cluster_name,
        "broker_name": broker.broker_name,
        "broker_id": broker.broker_id,
        "broker_address": broker.address,
    }
