"""Clients of the queue in Spark's processes, how long they wait, and what a cluster says about its queues.

Masters are asked which queues there are, and which offsets they have, for a replica may be behind; only while a broker
has no master its replica answers, and then the end that it tells is not the last word.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from mqclient import (
    BrokerUnavailableError,
    MessageQueue,
    MQClientError,
    NoRouteError,
    OutcomeUnknownError,
    RetryableError,
)
from mqclient.sync import SyncAdmin, SyncPullConsumer
from mqproto.codes import ResponseCode
from mqproto.names import TOOLS_CONSUMER_GROUP
from pyspark_mq.errors import BrokerAwayError, ReadRejectedError, UnknownTopicError
from pyspark_mq.options import TopicChoice

MASTER_ID = 0
PROPERTY_FILTER = "enablePropertyFilter"

logger = logging.getLogger("pyspark_mq.clients")

T = TypeVar("T")

# Questions to brokers and name servers that may be away for a moment.
#
# What can be asked again is asked again, a number of times, with a pause before each; reading changes nothing, so an
# answer that was lost is no harm. What would not help is raised at once.


@dataclass(slots=True)
class Patience:
    """`retries` after the first try, `interval_s` apart. `given_up` ends every pause, and then the call fails."""

    retries: int
    interval_s: float
    given_up: threading.Event = field(default_factory=threading.Event)

    def ask(self, what: str, call: Callable[[], T]) -> T:
        """The answer. `what` says in the error what could not be done.

        Raises BrokerAwayError without an answer, ReadRejectedError for an answer that will not change.
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
                raise ReadRejectedError(f"{what} is not possible: {error}") from error


# The queue's client in a process of Spark's: made at first use, kept for the tasks that follow.
#
# Spark forks its Python workers from a daemon, and gRPC does not survive a fork: nothing here happens at import. A
# worker runs one task after the other, mostly about the same cluster, so the client of the last one stays: a name
# server, a broker's connection and an event loop are not looked up anew for each partition. When Spark ends the worker
# its connections end with it; a pull consumer is no member of a group, so that no broker waits for it.
# Invariant: at most one unused client is kept.


@dataclass(frozen=True, slots=True)
class ClientKey:
    """The key of a client. Without a group it pulls as RocketMQ's tools do, and makes none."""

    url: str
    group: str = ""
    prefers_replicas: bool = False


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
        self.consumer = SyncPullConsumer(group, self.key.url, prefers_replicas=self.key.prefers_replicas)
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
    """Close unused clients."""
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


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first offset that can be read, and the offset of the next message to come.

    `by_replica`: only a replica could be asked, and there may be more. `is_closed`: its topic's permission or number of
    read queues does not allow to read it now, or its broker is away, and then the offsets are 0.
    """

    first: int
    end: int
    by_replica: bool = False
    is_closed: bool = False


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """The questions, asked through `client` with `patience`. Every method raises BrokerAwayError, ReadRejectedError."""

    client: Client
    patience: Patience

    def of(
        self, choice: TopicChoice, needed: Iterable[MessageQueue] | None = None, *, waits: bool = False
    ) -> dict[MessageQueue, Bounds]:
        """Of every queue that is chosen and can be read, and of those of `needed` that are closed; sorted.

        `needed` are queues that an earlier answer has named. While the broker of one is away there is no answer or, if
        the caller `waits` for it, the queue is closed. None: this is the first answer, and no broker may be away that a
        name server remembers to have had one of the topics.
        Raises UnknownTopicError when a topic or queue that is named does not exist, unless the caller `waits`.
        """
        known = frozenset(needed or ())

        def ask() -> dict[MessageQueue, Bounds]:
            found = self._of_topics(choice, known, waits=waits, is_first=needed is None)
            absent = known - found.keys()
            away = self._away(absent)
            if away and not waits:
                raise _away_error(away)
            return found | {queue: Bounds(0, 0, is_closed=True) for queue in absent if queue.broker_name in away}

        return dict(sorted(self.patience.ask("asking for the queues' offsets", ask).items()))

    def _of_topics(
        self, choice: TopicChoice, known: frozenset[MessageQueue], *, waits: bool, is_first: bool
    ) -> dict[MessageQueue, Bounds]:
        existing = self.client.admin.topic_list(with_away=is_first)
        missing = sorted(set(choice.named_topics) - set(existing))
        if missing:
            self._judge_missing(missing, known, waits)
        found: dict[MessageQueue, Bounds] = {}
        for topic in choice.topics_of(existing):
            if is_first and not choice.queues:
                self._check_whole(topic)
            found.update({queue: one for queue, one in self._of_topic(topic, known).items() if choice.takes(queue)})
        absent = sorted(choice.queues - found.keys())
        if absent and not waits:
            if away := self._away(absent):
                raise _away_error(away)
            names = ", ".join(map(str, absent))
            raise UnknownTopicError(f"assign names {names}, which cannot be read: no such queue")
        return found

    def _of_topic(self, topic: str, known: frozenset[MessageQueue]) -> dict[MessageQueue, Bounds]:
        queues = self.client.consumer.fetch_subscribe_message_queues(topic)
        try:
            stats = {one.queue: Bounds(one.min_offset, one.max_offset) for one in self.client.admin.topic_stats(topic)}
        except NoRouteError:
            stats = {}  # there is no master at all
        except BrokerUnavailableError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            stats = {}  # no master has it, so the brokers that have it are replicas
        closed = {queue: replace(stats[queue], is_closed=True) for queue in known & stats.keys()}
        return closed | {queue: stats.get(queue) or self._by_replica(queue) for queue in queues}

    def _by_replica(self, queue: MessageQueue) -> Bounds:
        return Bounds(self.client.consumer.min_offset(queue), self.client.consumer.max_offset(queue), by_replica=True)

    def _check_whole(self, topic: str) -> None:
        """Raise BrokerAwayError while a broker that had the topic a moment ago is away: nothing tells of its queues."""
        away = self.client.admin.away_brokers(topic)
        if away:
            raise BrokerAwayError(
                f"broker {', '.join(away)}, which has queues of topic {topic!r}, has left all name servers within the "
                f"last 10 minutes. Start it again, or name the queues to read without it with the option assign"
            )

    def _judge_missing(self, topics: list[str], known: frozenset[MessageQueue], waits: bool) -> None:
        """No broker has these. Without any broker, or without theirs, they may be there in a moment."""
        if not waits and (away := self._away(queue for queue in known if queue.topic in topics)):
            raise _away_error(away)
        brokers = sorted({one.broker_name for one in self.client.admin.cluster_list()})
        if not brokers:
            raise BrokerAwayError("no broker is registered at a name server")
        if not waits:
            names = ", ".join(map(repr, topics))
            raise UnknownTopicError(
                f"no registered broker has the topic {names}; the brokers {', '.join(brokers)} are registered"
            )

    def _away(self, missing: Iterable[MessageQueue]) -> list[str]:
        """The brokers of these queues that have no master now: only it can say that a queue is not there."""
        names = {queue.broker_name for queue in missing}
        if not names:
            return []
        masters = {one.broker_name for one in self.client.admin.cluster_list() if one.broker_id == MASTER_ID}
        return sorted(names - masters)

    def filters_by_sql(self, broker_names: Collection[str]) -> bool:
        """Whether every broker of these names, masters and replicas, evaluates conditions in SQL92."""

        def ask() -> bool:
            admin = self.client.admin
            addresses = [one.address for one in admin.cluster_list() if one.broker_name in broker_names]
            return all(admin.broker_config(address).get(PROPERTY_FILTER) == "true" for address in addresses)

        return self.patience.ask("asking for the brokers' configuration", ask)

    def at_times(self, times: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """The first offset of each queue that was stored at or after its time; the queue's end when all are older."""
        search = self.client.consumer.search_offset
        return {
            queue: self.patience.ask(f"searching {queue} for a time", lambda queue=queue: search(queue, times[queue]))  # type: ignore[misc]
            for queue in sorted(times)
        }


def _away_error(broker_names: Collection[str]) -> BrokerAwayError:
    names = ", ".join(broker_names)
    return BrokerAwayError(f"broker {names}, which has queues of this read, has no master with a name server")
