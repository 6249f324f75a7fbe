"""What a cluster says about its queues: which there are, and which offsets they have.

Masters are asked, for a slave may be behind; only while a broker has no master its slave answers, and then the end that
it tells is not the last word.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from mqclient import BrokerRefusedError, MessageQueue, NoRouteError
from mqproto.codes import ResponseCode
from pyspark_mq.clients import Client
from pyspark_mq.errors import BrokerAwayError, UnknownTopicError
from pyspark_mq.patience import Patience
from pyspark_mq.topic_choice import TopicChoice

MASTER_ID = 0
PROPERTY_FILTER = "enablePropertyFilter"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first offset that can be read, and the offset of the next message to come.

    `by_slave`: nobody but a slave could be asked, and there may be more. `is_closed`: its topic's permission or number
    of read queues does not allow to read it now.
    """

    first: int
    end: int
    by_slave: bool = False
    is_closed: bool = False


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """The questions, asked through `client` with `patience`. Every method raises BrokerAwayError, ReadRefusedError."""

    client: Client
    patience: Patience

    def of(
        self, choice: TopicChoice, needed: Iterable[MessageQueue] = (), *, topics_may_be_gone: bool = False
    ) -> dict[MessageQueue, Bounds]:
        """Of every queue that is chosen and can be read, and of those of `needed` that are closed; sorted.

        `needed` are queues that an earlier answer has named: as long as their broker is silent there is no answer.
        Raises UnknownTopicError when a topic or queue that is named does not exist, unless
        `topics_may_be_gone`.
        """
        needed = frozenset(needed)

        def ask() -> dict[MessageQueue, Bounds]:
            found = self._of_topics(choice, needed, topics_may_be_gone)
            self._check_brokers(needed - found.keys())
            return found

        return dict(sorted(self.patience.ask("asking for the queues' offsets", ask).items()))

    def _of_topics(
        self, choice: TopicChoice, needed: frozenset[MessageQueue], may_be_gone: bool
    ) -> dict[MessageQueue, Bounds]:
        existing = self.client.admin.topic_list()
        missing = sorted(set(choice.named_topics) - set(existing))
        if missing:
            self._check_brokers(queue for queue in needed if queue.topic in missing)
            self._judge_missing(missing, may_be_gone)
        found: dict[MessageQueue, Bounds] = {}
        for topic in choice.topics_of(existing):
            found.update({queue: one for queue, one in self._of_topic(topic, needed).items() if choice.takes(queue)})
        absent = sorted(choice.queues - found.keys())
        if absent:
            self._check_brokers(absent)
            if not may_be_gone:
                names = ", ".join(map(str, absent))
                raise UnknownTopicError(f"assign names {names}, which cannot be read: no such queue")
        return found

    def _of_topic(self, topic: str, needed: frozenset[MessageQueue]) -> dict[MessageQueue, Bounds]:
        queues = self.client.consumer.fetch_subscribe_message_queues(topic)
        try:
            stats = {one.queue: Bounds(one.min_offset, one.max_offset) for one in self.client.admin.topic_stats(topic)}
        except NoRouteError:
            stats = {}  # there is no master at all
        except BrokerRefusedError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            stats = {}  # no master has it, so those who have it are slaves
        closed = {queue: replace(stats[queue], is_closed=True) for queue in needed & stats.keys()}
        return closed | {queue: stats.get(queue) or self._by_slave(queue) for queue in queues}

    def _by_slave(self, queue: MessageQueue) -> Bounds:
        return Bounds(self.client.consumer.min_offset(queue), self.client.consumer.max_offset(queue), by_slave=True)

    def _judge_missing(self, topics: list[str], may_be_gone: bool) -> None:
        """No broker has these. Without any broker they may be there in a moment."""
        brokers = sorted({one.broker_name for one in self.client.admin.cluster_list()})
        if not brokers:
            raise BrokerAwayError("no broker lives that a name server knows")
        if may_be_gone:
            return
        names = ", ".join(map(repr, topics))
        raise UnknownTopicError(f"no living broker has the topic {names}; the brokers {', '.join(brokers)} live")

    def _check_brokers(self, missing: Iterable[MessageQueue]) -> None:
        """Raise BrokerAwayError unless the masters of these queues live: only they can say that it is not there."""
        living = self.client.admin.cluster_list()
        masters = {one.broker_name for one in living if one.broker_id == MASTER_ID}
        away = sorted({queue.broker_name for queue in missing} - masters)
        if away:
            slaves = {one.broker_name for one in living}
            where = "has no master that lives" if slaves.issuperset(away) else "is with no name server"
            raise BrokerAwayError(f"broker {', '.join(away)}, which has queues of this read, {where}")

    def filters_by_sql(self, broker_names: Collection[str]) -> bool:
        """Whether every broker of these names, masters and slaves, evaluates conditions in SQL92."""

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
