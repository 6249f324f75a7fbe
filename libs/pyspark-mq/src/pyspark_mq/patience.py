"""Questions to brokers and name servers that may be away for a moment.

What can be asked again is asked again, a number of times, with a pause before each; reading changes nothing, so an
answer that was lost is no harm. What would not help is raised at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from mqclient import MQClientError, OutcomeUnknownError, RetryableError
from pyspark_mq.errors import BrokerAwayError, ReadRefusedError

logger = logging.getLogger("pyspark_mq.patience")

T = TypeVar("T")


@dataclass(slots=True)
class Patience:
    """`retries` after the first try, `interval_s` apart. `given_up` ends every pause, and then the call fails."""

    retries: int
    interval_s: float
    given_up: threading.Event = field(default_factory=threading.Event)

    def ask(self, what: str, call: Callable[[], T]) -> T:
        """The answer. `what` says in the error what could not be done.

        Raises BrokerAwayError when nobody answers, ReadRefusedError for an answer that will not change.
        """
        tries = 0
        while True:
            try:
                return call()
            except (RetryableError, OutcomeUnknownError, BrokerAwayError) as error:
                tries += 1
                if tries > self.retries or self.given_up.is_set():
                    raise BrokerAwayError(f"{what} is not possible, tried {tries} times: {error}") from error
                logger.info("%s is tried again in %g s: %s", what, self.interval_s, error)
                self.given_up.wait(self.interval_s)
            except MQClientError as error:
                raise ReadRefusedError(f"{what} is not possible: {error}") from error
