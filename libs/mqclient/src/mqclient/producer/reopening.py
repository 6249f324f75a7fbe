"""When a broken stream is opened again, and when its broker is better avoided."""

from __future__ import annotations

from mqclient.errors import BrokerRefusedError, BrokerUnreachableError, MQClientError

# Streams in a row that broke without an answer: a broker that takes connections and ends them does not listen either.
FRUITLESS_STREAMS_MAX = 4
_DOUBLINGS_MAX = 32  # far beyond any backoff's maximum


class Reopening:
    """What the last streams to one broker have come to. Backoffs are in seconds."""

    def __init__(self, backoff_min_s: float, backoff_max_s: float) -> None:
        self._backoff_min_s = backoff_min_s
        self._backoff_max_s = backoff_max_s
        self._fruitless = 0  # in a row, without an answer
        self._refused = 0  # in a row, with nobody who listened, or with a broker that is no master
        self.last_error: MQClientError | None = None  # since the last answer

    def opened(self) -> None:
        """A stream begins; it is fruitless until there is an answer."""
        self._fruitless += 1

    def answered(self) -> None:
        """The broker lives."""
        self._fruitless = self._refused = 0
        self.last_error = None

    def broke(self, error: MQClientError) -> None:
        """The stream has ended with `error`."""
        self.last_error = error
        self._refused = self._refused + 1 if isinstance(error, (BrokerUnreachableError, BrokerRefusedError)) else 0

    def moved(self) -> None:
        """The next stream goes to another broker, of which nothing bad is known."""
        self._fruitless = self._refused = 0

    @property
    def broker_is_gone(self) -> bool:
        """Whether messages that may go elsewhere had better do so."""
        return self._refused > 0 or self._fruitless >= FRUITLESS_STREAMS_MAX

    def pause_s(self, left_s: float) -> float:
        """How long to wait before the next stream, when the next deadline is `left_s` away.

        Not at all the first time that a connection breaks; longer and longer while nobody listens, but never so long
        that a message is left to its deadline.
        """
        if self._fruitless <= 1 and not self._refused:
            return 0.0
        pause_s = self._backoff_min_s * float(1 << min(max(0, self._refused - 1), _DOUBLINGS_MAX))
        return min(pause_s, self._backoff_max_s, max(self._backoff_min_s, left_s / 2))
