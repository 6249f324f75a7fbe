"""The timer of a connection: it ends overdue requests, connections to silent peers, and idle connections.

Invariant: one timer of the clock for a connection, set to the earliest of these times or before. A request that ends in
time does not touch it: requests of one time-out, one after the other, cost one timer for all that begin within it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqremoting.command import Command
from mqremoting.config import PING
from mqremoting.errors import ConnectionLostError
from osenv import Timer
from osenv.clock import REST_MIN_S

if TYPE_CHECKING:
    from mqremoting.connection import Connection

_NEVER = float("inf")
_PING_OPAQUE = -1  # no request has a negative one


class Liveness:
    """The times of one connection, in seconds of its clock."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._monotonic = connection.clock.monotonic
        self._timer: Timer | None = None
        self._due = _NEVER
        self._heard = self._used = 0.0
        self._pinged: float | None = None  # when, if nothing has come since
        self.is_over = False
        """Whether the connection has ended, or has never begun."""

    def begin(self) -> None:
        self._heard = self._used = self._monotonic()
        self._look()

    def heard(self) -> None:
        """Bytes have come."""
        self._heard = self._monotonic()
        self._pinged = None

    def used(self) -> None:
        """A request or stream begins or ends."""
        self._used = self._monotonic()

    def ping(self) -> None:
        """Ask the peer for a sign of life."""
        config = self._connection.config
        self._connection.write_command(Command(0, _PING_OPAQUE, PING, serialization=config.serialization))

    def expect(self, deadline: float) -> None:
        """Something in flight has this deadline."""
        if deadline < self._due:
            self._set(deadline)

    def end(self) -> None:
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._connection.clock.call_later(max(REST_MIN_S, due - self._monotonic()), self._look)

    def _look(self) -> None:
        """End what is over, and set the timer to what comes next."""
        if self.is_over or self._connection.error is not None:
            return
        self._due, now = _NEVER, self._monotonic()
        times = (self._requests(now), self._peer(now), self._idle(now))
        if (due := min(times)) < self._due:
            self._set(due)

    def _requests(self, now: float) -> float:
        earliest = _NEVER
        for sent in self._connection.requests_sent:
            if sent.deadline <= now:
                sent.expire()
            else:
                earliest = min(earliest, sent.deadline)
        return earliest

    def _peer(self, now: float) -> float:
        connection, config = self._connection, self._connection.config
        if config.keepalive_s is None:
            return _NEVER
        if self._pinged is None:
            if now < self._heard + config.keepalive_s:
                return self._heard + config.keepalive_s
            self._pinged = now
            self.ping()
        if now < self._pinged + config.ping_timeout_s:
            return self._pinged + config.ping_timeout_s
        silent_s = now - self._heard
        connection.fail(ConnectionLostError(f"{connection.peer} has been silent for {silent_s:.1f} s, also to a ping"))
        return _NEVER

    def _idle(self, now: float) -> float:
        connection, idle_s = self._connection, self._connection.config.idle_s
        if idle_s is None:
            return _NEVER
        if connection.in_flight:
            return now + idle_s
        if now < self._used + idle_s:
            return self._used + idle_s
        connection.close_soon()
        return _NEVER
