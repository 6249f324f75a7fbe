"""The embedded broker for programs without an event loop: it runs on the loop of mqclient's synchronous faces.

    with SyncEmbeddedBroker("shop") as broker, SyncProducer("writers", broker.url) as producer:
        producer.send(Message("orders", b"close me", delay_level=16))
        broker.clock.advance(30 * 60)
        broker.idle()

Listeners are plain functions, which work in threads: `idle` waits for them, and `clock.until` does before each step. A
call that waits for the clock itself (a send while the broker is away, a start right after a `restart`) returns when
another thread moves the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mq_broker.embedded.embedded_broker import EmbeddedBroker
from mqclient.lifecycle import ServiceState
from mqclient.sync.faces import CallerThread, Face, made_like


class _BrokerLife(EmbeddedBroker):
    """An EmbeddedBroker that lives as mqclient's objects do."""

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


class SyncEmbeddedBroker(Face[_BrokerLife]):
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
    """The broker's clock: it moves when the test moves it, and its methods return when that is done."""

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
