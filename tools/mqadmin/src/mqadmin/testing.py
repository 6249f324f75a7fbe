"""For tests: mqadmin at work on an embedded broker.

    with operated(EmbeddedBroker("shop")) as operator:
        assert operator("topicList").exit_code == 0

The broker lives on an event loop in a thread; commands run in the test's own thread, as they do in a process, and ask
through that loop. No command waits for real time: the broker's clock is the command's clock too.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast
from unittest.mock import patch

import typer.testing
from typer.main import get_command

from mqadmin.__main__ import app
from mqadmin.options import NAME_SERVER_VARIABLE
from mqadmin.world import World
from mqclient import (
    ClientConfig,
    ConsumeFromWhere,
    ConsumeStatus,
    MessageExt,
    MessageListenerConcurrently,
    PushConsumer,
)
from mqclient.testing import FakeBroker, FakeCluster
from mqclient.testing.fake_admin import make_pair
from osenv import SimClock, SimDisk

T = TypeVar("T")
ANSWER_TIMEOUT_S = 30
STEP_S = 0.1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one run of mqadmin."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """stdout as the one document that it has to be."""
        return json.loads(self.stdout)

    @property
    def rows(self) -> list[list[str]]:
        """stdout as the cells of a table, the head first; cells are two spaces or more apart."""
        return [re.split(r"\s{2,}", line.strip()) for line in self.stdout.splitlines()]


class Broker(Protocol):
    """What has to be known of a broker that runs in this process."""

    url: str
    clock: SimClock


@dataclass
class Operator:
    """Runs commands: `operator("topicRoute", "-t", "orders")`."""

    url: str
    clock: SimClock
    loop: asyncio.AbstractEventLoop
    disk: SimDisk = field(default_factory=SimDisk)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns on the broker's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(ANSWER_TIMEOUT_S)

    def run_while_time_passes(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The same for what waits for the time, such as a member that has to be given queues by another one."""

        async def passing() -> T:
            task = asyncio.ensure_future(coroutine)
            while not task.done():
                await self.clock.advance(STEP_S)
            return task.result()

        return self.run(passing())

    def advance(self, seconds: float) -> None:
        """Let time pass for the broker and its clients."""
        self.run(self.clock.advance(seconds))

    def __call__(self, *arguments: str) -> Outcome:
        """Run mqadmin with the broker as its name server. Raises what a process would have died of."""
        world = World(clock=self.clock, open_disk=lambda: self.disk, run=self.run)
        return run_command(*arguments, world=world, environment={NAME_SERVER_VARIABLE: self.url})


_command = functools.cache(get_command)  # all sub-commands are built from their annotations, which takes 100 ms


def run_command(*arguments: str, world: World | None = None, environment: Mapping[str, str | None]) -> Outcome:
    """Run mqadmin in this process, in a process's own world without `world`. Raises what a process would have died of;
    None in `environment` takes a variable away.
    """
    with patch.object(typer.testing, "_get_command", _command):
        result = typer.testing.CliRunner().invoke(
            app, arguments, prog_name="mqadmin", obj=world, env=environment, catch_exceptions=False
        )
    return Outcome(result.exit_code, result.stdout, result.stderr)


async def succeed(_: list[MessageExt]) -> ConsumeStatus:
    """A listener that has always consumed."""
    return ConsumeStatus.CONSUME_SUCCESS


async def started_consumer(
    url: str, group: str, *, instance: str = "one", listener: MessageListenerConcurrently = succeed, tags: str = "*"
) -> PushConsumer:
    """A member of the group that has begun to consume the topic `orders`, from its first message."""
    consumer = PushConsumer(
        group,
        url,
        client_config=ClientConfig(instance_name=instance),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    consumer.subscribe("orders", tags)
    consumer.register_message_listener(listener)
    await consumer.start()
    return consumer


@contextmanager
def operated_pair() -> Iterator[tuple[Operator, FakeBroker, FakeBroker]]:
    """An operator of a fake master and its replica `broker-a`, with those two; what they do is FakeReplica's."""
    cluster = _HastyCluster()
    with operated(cluster) as operator:
        master, replica = make_pair(cluster, "broker-a")
        yield operator, master, replica


class _HastyClock(SimClock):
    """Time passes with each sleep."""

    async def sleep(self, seconds: float) -> None:
        await self.advance(seconds)


class _HastyCluster(FakeCluster, AbstractAsyncContextManager[None]):
    def __init__(self) -> None:
        super().__init__("operated")
        self.clock = _HastyClock()

    async def __aexit__(self, *_: object) -> None:
        """Nothing to give back."""


@contextmanager
def operated(broker: AbstractAsyncContextManager[Any]) -> Iterator[Operator]:
    """An operator of this broker, which is entered and left on a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="broker of an operator")
    thread.start()
    known = cast("Broker", broker)
    operator = Operator(known.url, known.clock, loop)
    try:
        operator.run(_entered(broker))
        try:
            yield operator
        finally:
            operator.run(_left(broker))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _entered(broker: AbstractAsyncContextManager[Any]) -> None:
    await broker.__aenter__()


async def _left(broker: AbstractAsyncContextManager[Any]) -> None:
    await broker.__aexit__(None, None, None)
