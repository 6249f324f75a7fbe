"""The queue's client in a process of Spark's: made at first use, kept for the tasks that follow.

Spark forks its Python workers from a daemon, and gRPC does not survive a fork: nothing here happens at import. A worker
runs one task after the other, mostly about the same cluster, so the client of the last one stays: a name server, a
broker's connection and an event loop are not looked up anew for each partition. When Spark ends the worker its
connections end with it; a pull consumer is no member of a group, so that no broker waits for it.

Invariant: of those that nobody uses at most one is kept.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from mqclient.sync import SyncAdmin, SyncPullConsumer
from mqproto.names import TOOLS_CONSUMER_GROUP


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
