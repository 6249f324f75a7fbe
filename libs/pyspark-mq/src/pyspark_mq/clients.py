"""Clients of the queue in Spark's processes, and how long they wait."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from mqclient import MQClientError, OutcomeUnknownError, RetryableError
from mqclient.sync import SyncAdmin, SyncPullConsumer
from mqproto.names import TOOLS_CONSUMER_GROUP
from pyspark_mq.errors import BrokerAwayError, ReadRefusedError

# ----------------------------------------------------------------------------------------------------------------------
# Questions to brokers and name servers that may be away for a moment.
#
# What can be asked again is asked again, a number of times, with a pause before each; reading changes nothing, so an
# answer that was lost is no harm. What would not help is raised at once.


logger = logging.getLogger("pyspark_mq.clients")

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


# ----------------------------------------------------------------------------------------------------------------------
# The queue's client in a process of Spark's: made at first use, kept for the tasks that follow.
#
# Spark forks its Python workers from a daemon, and gRPC does not survive a fork: nothing here happens at import. A
# worker runs one task after the other, mostly about the same cluster, so the client of the last one stays: a name
# server, a broker's connection and an event loop are not looked up anew for each partition. When Spark ends the worker
# its connections end with it; a pull consumer is no member of a group, so that no broker waits for it.
#
# Invariant: of those that nobody uses at most one is kept.


@dataclass(frozen=True, slots=True)
class ClientKey:
    """Whose client it is. Without a group it pulls as RocketMQ's tools do, and makes none."""

    url: str
    group: str = ""
    prefers_slaves: bool = False


@dataclass(slots=True)
class Client:
    """`ahead` pulls while the task's own thread decodes; `users` are tasks that have it now."""

    key: ClientKey
    consumer: SyncPullConsumer = field(init=False)
    admin: SyncAdmin = field(init=False)
    ahead: ThreadPoolExecutor = field(init=False)
    users: int = 0

    def __post_init__(self) -> None:
        group = self.key.group or TOOLS_CONSUMER_GROUP
        self.consumer = SyncPullConsumer(group, self.key.url, prefers_slaves=self.key.prefers_slaves)
        self.admin = SyncAdmin(self.key.url)
        self.consumer.start()
        self.admin.start()
        self.ahead = ThreadPoolExecutor(1, thread_name_prefix="pyspark_mq ahead")

    def close(self) -> None:
        """Nothing of it is left, and a pull that is under way ends with an error."""
        self.consumer.shutdown()
        self.admin.shutdown()
        self.ahead.shutdown()


_clients: dict[ClientKey, Client] = {}
_lock = threading.Lock()


@contextmanager
def client_of(key: ClientKey) -> Iterator[Client]:
    """The process's client of this key. Raises mqclient's IllegalArgumentError for a URL that makes no sense."""
    with _lock:
        for other in [one for one in _clients.values() if not one.users and one.key != key]:
            _clients.pop(other.key).close()
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = Client(key)
        client.users += 1
    try:
        yield client
    finally:
        with _lock:
            client.users -= 1


def close_idle() -> None:
    """Close what nobody uses."""
    with _lock:
        for client in [one for one in _clients.values() if not one.users]:
            _clients.pop(client.key).close()


def _forget() -> None:
    """A forked process has its parent's clients, and not their threads."""
    global _lock  # noqa: PLW0603 - it may be held by a thread that is not there
    _lock = threading.Lock()
    _clients.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
