"""A stream's offsets: the ends of batches, new queues, lost queues, and when a query that reads what is there ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

from mqclient import BrokerUnavailableError, MessageQueue, NoRouteError
from mqclient.admin import ClusterBroker, QueueStats
from mqproto.codes import ResponseCode
from osenv import SimClock
from pyspark_mq.clients import Bounds, Patience, QueueBounds
from pyspark_mq.errors import BrokerAwayError, DataLossError, UnknownTopicError
from pyspark_mq.offsets import OffsetRange, to_json
from pyspark_mq.options import TopicChoice, read_options
from pyspark_mq.partition_reader import RangePartition
from pyspark_mq.pushdown import Wanted
from pyspark_mq.schema import SCHEMA
from pyspark_mq.stream_reader import StreamReader

Q0, Q1, Q2 = (MessageQueue("orders", "broker-a", number) for number in range(3))
ALL = ReadAllAvailable()


class Reader(StreamReader):
    """What it hears about the queues is `there`."""

    def __init__(self, there: dict[MessageQueue, Bounds], **options: Any) -> None:
        self.clock = SimClock()
        self.there = there
        where = {"namesrvAddr": "nowhere:1", "subscribe": "orders"}
        super().__init__(read_options(where | options, streaming=True), SCHEMA, Wanted(), self.clock)

    def _ask_bounds(self, begin: dict[MessageQueue, int]) -> dict[MessageQueue, Bounds]:
        return dict(self.there)

    def latest(self, start: dict[MessageQueue, int], limit: ReadLimit = ALL) -> dict[str, int]:
        """By queue id."""
        return self.latestOffset(to_json(start), limit).get("orders", {}).get("broker-a", {})


class TestLatestOffset:
    def test_everything_or_as_much_as_the_limit(self) -> None:
        reader = Reader({Q0: Bounds(0, 10), Q1: Bounds(0, 30)})
        assert reader.latest({Q0: 0, Q1: 0}) == {"0": 10, "1": 30}
        assert reader.latest({Q0: 0, Q1: 0}, ReadMaxRows(8)) == {"0": 2, "1": 6}
        assert reader.latest({Q0: 10, Q1: 30}, ReadMaxRows(8)) == {"0": 10, "1": 30}

    def test_a_queue_that_is_met_is_in_an_offset_before_anything_of_it_is_read(self) -> None:
        reader = Reader({Q0: Bounds(0, 4), Q1: Bounds(3, 9)})
        assert reader.latest({Q0: 0}) == {"0": 4, "1": 3}
        assert reader.partitions(to_json({Q0: 0}), to_json({Q0: 4, Q1: 3}))[0].value == str(OffsetRange(Q0, 0, 4))
        assert reader.latest({Q0: 4, Q1: 3}) == {"0": 4, "1": 9}

    def test_a_queue_that_is_gone_is_a_loss_or_left_out(self, caplog: pytest.LogCaptureFixture) -> None:
        start = {Q0: 4, Q1: 3}
        with pytest.raises(DataLossError, match="what followed offset 3 of topic 'orders', broker 'broker-a', queue 1"):
            Reader({Q0: Bounds(0, 5)}).latest(start)
        assert Reader({Q0: Bounds(0, 5)}, failOnDataLoss="false").latest(start) == {"0": 5}
        assert "the broker has no such queue any more; it is passed over" in caplog.text

    def test_a_queue_that_is_closed_keeps_its_place_until_it_can_be_read_again(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its topic's number of read queues or its permission was reduced, and given back later."""
        reader = Reader({Q0: Bounds(0, 5), Q1: Bounds(0, 7, is_closed=True)}, failOnDataLoss="false")
        assert reader.latest({Q0: 4, Q1: 3}) == {"0": 5, "1": 3}
        assert reader.latest({Q0: 5, Q1: 3}) == {"0": 5, "1": 3}
        assert caplog.text.count("orders@broker-a:1 cannot be read now; it is read on from offset 3") == 1
        reader.there[Q1] = Bounds(0, 7)
        assert reader.latest({Q0: 5, Q1: 3}) == {"0": 5, "1": 7}

    def test_a_closed_queue_is_an_error_only_while_it_has_unread_messages(self) -> None:
        reader = Reader({Q0: Bounds(0, 5), Q1: Bounds(0, 3, is_closed=True)})
        assert reader.latest({Q0: 4, Q1: 3}) == {"0": 5, "1": 3}
        reader.there[Q1] = Bounds(0, 7, is_closed=True)
        with pytest.raises(
            DataLossError, match=r"the offsets 3 to 6 of topic 'orders', .* cannot be read: the topic's"
        ):
            reader.latest({Q0: 5, Q1: 3})

    def test_a_queue_that_has_become_shorter_is_a_loss_or_read_from_its_end(self) -> None:
        """What was not copied to a replica that became the master is gone, and its offsets are given anew."""
        with pytest.raises(DataLossError, match=r"the offsets 4 to 8 .* they were read before, and the queue ends at"):
            Reader({Q0: Bounds(0, 4)}).latest({Q0: 9})
        lenient = Reader({Q0: Bounds(0, 4)}, failOnDataLoss="false")
        assert lenient.latest({Q0: 9}) == {"0": 4}
        assert lenient.partitions(to_json({Q0: 9}), to_json({Q0: 4})) == []

    def test_a_replica_s_word_is_not_the_last_one(self) -> None:
        assert Reader({Q0: Bounds(0, 4, by_replica=True)}).latest({Q0: 9}) == {"0": 9}

    def test_what_was_heard_is_reported(self) -> None:
        reader = Reader({Q0: Bounds(0, 4)})
        assert reader.reportLatestOffset() is None
        reader.latest({Q0: 0}, ReadMaxRows(1))
        assert reader.reportLatestOffset() == to_json({Q0: 4})


class TestAvailableNow:
    def test_a_query_ends_at_what_was_there_when_it_began(self) -> None:
        reader = Reader({Q0: Bounds(0, 10), Q1: Bounds(0, 2)})
        reader.prepareForTriggerAvailableNow()
        reader.there = {Q0: Bounds(0, 99), Q1: Bounds(0, 2), Q2: Bounds(0, 7)}
        assert reader.latest({Q0: 0, Q1: 0}, ReadMaxRows(6)) == {"0": 5, "1": 1}
        assert reader.latest({Q0: 5, Q1: 1}) == {"0": 10, "1": 2}
        assert reader.latest({Q0: 10, Q1: 2}) == {"0": 10, "1": 2}

    def test_a_queue_that_came_before_the_query_began_is_read_to_its_end(self) -> None:
        reader = Reader({Q0: Bounds(0, 10), Q1: Bounds(3, 5)})
        reader.prepareForTriggerAvailableNow()
        assert reader.latest({Q0: 10}) == {"0": 10, "1": 3}
        assert reader.latest({Q0: 10, Q1: 3}) == {"0": 10, "1": 5}

    def test_a_queue_that_was_unknown_at_first_is_read_as_far_as_it_was_heard_of(self) -> None:
        """Its broker was away for the moment in which the query began."""
        reader = Reader({Q0: Bounds(0, 10)})
        reader.prepareForTriggerAvailableNow()
        reader.there[Q1] = Bounds(0, 6)
        assert reader.latest({Q0: 10, Q1: 2}) == {"0": 10, "1": 6}
        reader.there[Q1] = Bounds(0, 8)
        assert reader.latest({Q0: 10, Q1: 6}) == {"0": 10, "1": 6}

    def test_a_query_that_begins_at_an_end_that_has_moved_ends_at_once(self) -> None:
        reader = Reader({Q0: Bounds(0, 10)})
        reader.prepareForTriggerAvailableNow()
        reader.there = {Q0: Bounds(0, 12)}
        assert reader.latest({Q0: 11}) == {"0": 11}

    def test_nothing_waits_for_more(self) -> None:
        reader = Reader({Q0: Bounds(0, 3)}, minOffsetsPerTrigger="100")
        reader.prepareForTriggerAvailableNow()
        assert reader.latest({Q0: 0}, ReadMinRows(100)) == {"0": 3}


class TestLimits:
    def test_options_say_which_limit_spark_asks_with(self) -> None:
        assert Reader({}).getDefaultReadLimit() == ReadAllAvailable()
        assert Reader({}, maxOffsetsPerTrigger="7", minOffsetsPerTrigger="3").getDefaultReadLimit() == ReadMaxRows(7)
        assert Reader({}, minOffsetsPerTrigger="3").getDefaultReadLimit() == ReadMinRows(3)

    async def test_a_small_batch_waits_for_more_but_not_for_ever(self) -> None:
        reader = Reader({Q0: Bounds(0, 2)}, minOffsetsPerTrigger="10", maxTriggerDelay="60s")
        limit = ReadMinRows(10)
        assert reader.latest({Q0: 0}, limit) == {"0": 2}  # the first batch does not wait, as in Spark's Kafka source
        reader.there = {Q0: Bounds(0, 5)}
        assert reader.latest({Q0: 2}, limit) == {"0": 2}
        await reader.clock.advance(59.0)
        assert reader.latest({Q0: 2}, limit) == {"0": 2}
        assert reader.latest({Q0: 2}, ALL) == {"0": 5}  # all that there is
        reader.there = {Q0: Bounds(0, 12)}
        assert reader.latest({Q0: 2}, limit) == {"0": 12}
        reader.there = {Q0: Bounds(0, 13)}
        assert reader.latest({Q0: 12}, limit) == {"0": 12}
        await reader.clock.advance(61.0)
        assert reader.latest({Q0: 12}, limit) == {"0": 13}


class TestPartitions:
    def test_ranges_are_split_and_empty_ones_left_out(self) -> None:
        reader = Reader({}, minPartitions="3")
        parts = reader.partitions(to_json({Q0: 0, Q1: 5}), to_json({Q0: 30, Q1: 5, Q2: 4}))
        assert [part.range for part in parts if isinstance(part, RangePartition)] == [
            OffsetRange(Q0, 0, 10), OffsetRange(Q0, 10, 20), OffsetRange(Q0, 20, 30),
        ]  # fmt: skip
        assert reader.partitions(to_json({Q0: 3}), to_json({Q0: 3})) == []


class FakeClient:
    """Brokers by name, whether each has a master, and the queues of each topic; `closed` ones cannot be read.

    The name server remembers that the brokers `away` have left.
    """

    def __init__(
        self,
        topics: dict[str, dict[MessageQueue, Bounds]],
        brokers: dict[str, bool],
        closed: frozenset[MessageQueue] = frozenset(),
        away: Sequence[str] = (),
    ) -> None:
        self.topics = topics
        self.closed = closed
        self.away = away
        self.brokers = brokers
        self.admin = self.consumer = self
        self.configurations: dict[str, str] = {}

    def topic_list(self, *, with_away: bool) -> list[str]:
        return [
            topic
            for topic, queues in self.topics.items()
            if any(one.broker_name in self.brokers for one in queues) or (with_away and self.away_brokers(topic))
        ]

    def away_brokers(self, topic: str) -> list[str]:
        return sorted({one.broker_name for one in self.topics[topic]} & set(self.away))

    def cluster_list(self) -> list[ClusterBroker]:
        return [ClusterBroker("c", name, 0 if master else 1, name) for name, master in self.brokers.items()]

    def broker_config(self, address: str) -> dict[str, str]:
        return {"enablePropertyFilter": self.configurations.get(address, "false")}

    def fetch_subscribe_message_queues(self, topic: str) -> list[MessageQueue]:
        return [queue for queue in self.topics[topic] if queue.broker_name in self.brokers and queue not in self.closed]

    def topic_stats(self, topic: str) -> list[QueueStats]:
        masters = [name for name, master in self.brokers.items() if master]
        if not masters:
            raise NoRouteError("no master is registered in any cluster")
        queues = {queue: one for queue, one in self.topics[topic].items() if queue.broker_name in masters}
        if not queues:
            raise BrokerUnavailableError(ResponseCode.TOPIC_NOT_EXIST, "no such topic", masters[0])
        return [QueueStats(queue, one.first, one.end, 0) for queue, one in queues.items()]

    def min_offset(self, queue: MessageQueue) -> int:
        return self.topics[queue.topic][queue].first

    def max_offset(self, queue: MessageQueue) -> int:
        return self.topics[queue.topic][queue].end


OTHER = MessageQueue("orders", "broker-b", 0)
CARTS = MessageQueue("carts", "broker-b", 0)


def asked(
    brokers: dict[str, bool],
    choice: TopicChoice,
    needed: Sequence[MessageQueue] | None = None,
    closed: Sequence[MessageQueue] = (),
    away: Sequence[str] = (),
    **options: Any,
) -> dict[MessageQueue, Bounds]:
    topics = {"orders": {OTHER: Bounds(1, 2), Q0: Bounds(3, 4)}, "carts": {CARTS: Bounds(5, 6)}}
    client: Any = FakeClient(topics, brokers, frozenset(closed), away)
    return QueueBounds(client, Patience(2, 0.0)).of(choice, needed, **options)


ORDERS = TopicChoice(topics=("orders",))
CARTS_CHOICE = TopicChoice(topics=("carts",))
AWAY = Bounds(0, 0, is_closed=True)
BOTH = {"broker-a": True, "broker-b": True}


class TestQueueBounds:
    def test_masters_tell_of_the_chosen_topics_sorted(self) -> None:
        assert list(asked(BOTH, ORDERS).items()) == [(Q0, Bounds(3, 4)), (OTHER, Bounds(1, 2))]
        assert asked(BOTH, TopicChoice(pattern=".ar.s")) == {CARTS: Bounds(5, 6)}
        assert asked(BOTH, TopicChoice(queues=frozenset({OTHER}))) == {OTHER: Bounds(1, 2)}

    def test_a_pattern_leaves_out_what_belongs_to_the_queue_itself(self) -> None:
        existing = ["orders", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "%RETRY%g"]
        assert TopicChoice(pattern=".*").topics_of(existing) == ("%RETRY%g", "orders")
        assert TopicChoice(pattern="SCHEDULE.*", with_system_topics=True).topics_of(existing) == (
            "SCHEDULE_TOPIC_XXXX",
        )
        assert TopicChoice(topics=("SCHEDULE_TOPIC_XXXX",)).topics_of(existing) == ("SCHEDULE_TOPIC_XXXX",)

    @pytest.mark.parametrize("brokers", [{"broker-b": False}, {"broker-b": False, "broker-c": True}])
    def test_a_replica_tells_where_there_is_no_master(self, brokers: dict[str, bool]) -> None:
        assert asked(brokers, ORDERS) == {OTHER: Bounds(1, 2, by_replica=True)}

    def test_an_unknown_topic_is_named_with_the_brokers_that_were_asked(self) -> None:
        with pytest.raises(
            UnknownTopicError, match="no registered broker has the topic 'nope'; the brokers broker-a, brok"
        ):
            asked(BOTH, TopicChoice(topics=("nope", "orders")))
        assert asked(BOTH, TopicChoice(pattern="nope")) == {}

    def test_a_broker_that_a_query_needs_is_waited_for_and_named(self) -> None:
        sentence = "tried 3 times: broker broker-b, which has queues of this read, has no master with a name server"
        with pytest.raises(BrokerAwayError, match=sentence):
            asked({"broker-a": True}, ORDERS, [Q0, OTHER])
        with pytest.raises(BrokerAwayError, match=sentence):
            asked({"broker-a": True}, TopicChoice(topics=("carts",)), [CARTS])
        assert asked({"broker-a": True}, ORDERS, [Q0]) == {Q0: Bounds(3, 4)}

    def test_a_caller_that_waits_reads_the_other_brokers_queues_meanwhile(self) -> None:
        assert asked({"broker-a": True}, ORDERS, [Q0, OTHER], waits=True) == {Q0: Bounds(3, 4), OTHER: AWAY}
        replica_alone = {"broker-a": True, "broker-b": False}
        assert asked(replica_alone, ORDERS, [Q0, OTHER], waits=True)[OTHER] == Bounds(1, 2, by_replica=True)

    @pytest.mark.parametrize(
        ("choice", "topic"), [(ORDERS, "orders"), (TopicChoice(pattern=".*"), "carts"), (CARTS_CHOICE, "carts")]
    )
    def test_a_first_read_waits_for_a_broker_that_has_just_left(self, choice: TopicChoice, topic: str) -> None:
        sentence = f"broker broker-b, which has queues of topic '{topic}', has left all name servers within the last 10"
        for waits in (False, True):
            with pytest.raises(BrokerAwayError, match=sentence):
                asked({"broker-a": True}, choice, away=["broker-b"], waits=waits)
        assert asked({"broker-a": True}, ORDERS, [Q0], away=["broker-b"]) == {Q0: Bounds(3, 4)}
        assert asked({"broker-a": True}, TopicChoice(queues=frozenset({Q0})), away=["broker-b"]) == {Q0: Bounds(3, 4)}

    def test_a_queue_that_its_running_broker_does_not_have_is_the_caller_s_to_judge(self) -> None:
        assert asked(BOTH, ORDERS, [Q1]).keys() == {Q0, OTHER}

    def test_a_query_may_pass_over_a_topic_that_was_deleted(self) -> None:
        both = TopicChoice(topics=("nope", "orders"))
        gone = MessageQueue("nope", "broker-a", 0)
        assert asked(BOTH, both, [gone], waits=True).keys() == {Q0, OTHER}
        without_master = asked(BOTH | {"broker-a": False}, both, [gone], waits=True)
        assert without_master == {gone: AWAY, OTHER: Bounds(1, 2), Q0: Bounds(3, 4, by_replica=True)}
        with pytest.raises(BrokerAwayError, match="no broker is registered at a name server"):
            asked({}, both, waits=True)
        with pytest.raises(BrokerAwayError, match="broker broker-a, which has queues of this read, has no master with"):
            asked(BOTH | {"broker-a": False}, both, [gone])
        assigned = TopicChoice(queues=frozenset({Q0, Q1}))
        assert asked(BOTH, assigned, [Q1], waits=True).keys() == {Q0}

    def test_a_closed_queue_that_a_query_needs_is_told_by_its_master(self) -> None:
        assert asked(BOTH, ORDERS, [Q0, OTHER], [Q0])[Q0] == Bounds(3, 4, is_closed=True)
        assert asked(BOTH, ORDERS, [OTHER], [Q0]).keys() == {OTHER}
        with pytest.raises(
            BrokerAwayError, match="broker broker-a, which has queues of this read, has no master with a name"
        ):
            asked(BOTH | {"broker-a": False}, ORDERS, [Q0, OTHER], [Q0])

    def test_queues_that_were_assigned_have_to_be_there(self) -> None:
        with pytest.raises(
            UnknownTopicError, match="assign names orders@broker-a:1, which cannot be read: no such queue"
        ):
            asked(BOTH, TopicChoice(queues=frozenset({Q0, Q1})))
        with pytest.raises(BrokerAwayError, match="broker broker-b, which has queues"):
            asked({"broker-a": True}, TopicChoice(queues=frozenset({Q0, OTHER})))

    def test_without_any_broker_it_is_asked_again(self) -> None:
        with pytest.raises(BrokerAwayError, match="tried 3 times: no broker is registered at a name server"):
            asked({}, ORDERS)

    def test_conditions_are_for_brokers_that_all_evaluate_them(self) -> None:
        client: Any = FakeClient({}, BOTH)
        bounds = QueueBounds(client, Patience(0, 0.0))
        client.configurations = {"broker-a": "true"}
        assert bounds.filters_by_sql({"broker-a"})
        assert not bounds.filters_by_sql({"broker-a", "broker-b"})
