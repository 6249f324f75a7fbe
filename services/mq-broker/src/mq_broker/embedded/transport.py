"""The transport behind `memory://name`, found through the entry-point group `mqclient.transports`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from mq_broker.embedded.embedded_broker import (
    NAME_SERVER_ADDRESS,
    AbortedCallError,
    BrokenStream,
    CallContext,
    EmbeddedBroker,
    MemoryStream,
    broken,
    find,
)
from mqclient.errors import RequestTimeoutError
from mqclient.lifecycle import ServiceState
from mqclient.sync.faces import CallerThread, SyncFacade, made_like
from mqclient.transport import Method, RequestT, ResponseT
from osenv.clock import timeout


class MemoryTransport:
    """Implements `mqclient.transport.Transport`: the broker's own clock and chance are the client's too."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self.clock = broker.clock
        self.rng = broker.rng
        self.local_ip = "127.0.0.1"
        self.name_servers = (NAME_SERVER_ADDRESS,)
        self.name_server_source = None
        self.uses_frames = False

    def open_channel(self, address: str) -> MemoryChannel:
        """Name server and broker answer at any address."""
        return MemoryChannel(self._broker)


class MemoryChannel:
    """Implements `mqclient.transport.Channel`."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._streams: list[MemoryStream | BrokenStream] = []

    async def unary(self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float) -> ResponseT:
        try:
            async with timeout(self._broker.clock, timeout_s):
                response: ResponseT = await asyncio.shield(self._broker.call(method.path, request, CallContext()))
                return response
        except TimeoutError as error:
            raise RequestTimeoutError(f"{method.path}: no answer within {timeout_s:g} s") from error
        except AbortedCallError as error:
            raise error.as_client_error() from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise broken() from None  # the server's task was cancelled, not ours

    def stream(self, method: Method[RequestT, ResponseT]) -> MemoryStream | BrokenStream:
        stream = self._broker.stream(method.path)
        self._streams.append(stream)
        return stream

    async def close(self) -> None:
        for stream in self._streams:
            stream.cancel()
        self._streams.clear()


def open_transport(rest: str) -> MemoryTransport:
    """The transport to the running embedded broker named `rest`.

    Raises IllegalArgumentError; IllegalStateError on another event loop than the broker's.
    """
    broker = find(rest)
    broker.require_its_loop()
    return MemoryTransport(broker)


class _BrokerLife(EmbeddedBroker):
    """An EmbeddedBroker with the lifecycle of mqclient's objects."""

    _state = ServiceState.CREATE_JUST

    @property
    def state(self) -> ServiceState:
        """RUNNING also while its process is dead: it can be started again."""
        return self._state

    async def start(self) -> None:
        await super().start()
        self._state = ServiceState.RUNNING

    async def shutdown(self, *, timeout_s: float) -> None:
        """Stop cleanly; takes no time of the clock."""
        del timeout_s
        await self.stop()
        self._state = ServiceState.SHUTDOWN


class SyncEmbeddedBroker(SyncFacade[_BrokerLife]):
    """Start it, or enter it as a context; `url` is what mqclient.sync's classes take, and `clock` its time."""

    @made_like(_BrokerLife)
    def __init__(self, inner: _BrokerLife) -> None:
        super().__init__(inner)
        self.name, self.url = inner.name, inner.url
        self.clock = SyncSimClock(self)

    def idle(self, *, within_s: float = 10.0) -> None:
        """Return when its clients have nothing under way, as EmbeddedBroker.idle. Raises TimeoutError."""
        self._run("idle", partial(self._inner.idle, within_s=within_s))

    def kill(self) -> None:
        """Die as by SIGKILL: calls break, and what was written stays on the disk."""
        self._run("kill", self._inner.kill)

    def lose_power(self) -> None:
        """Die with the machine: of what was not synced, a random part stays on the disk."""
        self._run("lose_power", self._inner.lose_power)

    def restart(self) -> None:
        """Start it again after `kill` or `lose_power`. Raises ValueError while it runs."""
        self._run("restart", self._inner.start)


class SyncSimClock:
    """The embedded broker for programs without an event loop: it runs on the loop of mqclient's synchronous faces.

    The broker's clock: it moves when the test moves it, and its methods return when that is done.

        with SyncEmbeddedBroker("shop") as broker, SyncProducer("writers", broker.url) as producer:
            producer.send(Message("orders", b"close me", delay_level=16))
            broker.clock.advance(30 * 60)
            broker.idle()

    Listeners are plain functions, which work in threads: `idle` waits for them, and `clock.until` does before each
    step. A call that waits for the clock itself (a send while the broker is away, a start right after a `restart`)
    returns when another thread moves the clock.
    """

    def __init__(self, broker: SyncEmbeddedBroker) -> None:
        self._broker = broker

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment."""
        return self._broker._inner.clock.monotonic()

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        return self._broker._inner.clock.wall_ms()

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, as SimClock.advance. Raises IllegalStateError unless the broker was started."""
        self._broker._run("clock.advance", partial(self._broker._inner.clock.advance, seconds))

    def until(self, condition: Callable[[], object], *, within_s: float = 600.0, step_s: float = 0.5) -> None:
        """Let time pass until `condition()` is true, as SimClock.until; it is called in this thread.

        Raises what it raises, TimeoutError, and IllegalStateError unless the broker was started.
        """
        caller = CallerThread()
        waiting = partial(
            self._broker._inner.clock.until, partial(caller.run, condition), within_s=within_s, step_s=step_s
        )
        self._broker._run("clock.until", waiting, caller.result_of)
