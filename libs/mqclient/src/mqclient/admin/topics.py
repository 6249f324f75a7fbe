"""Topics: created, changed, deleted, listed (mechanism N11)."""

from __future__ import annotations

from dataclasses import dataclass

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.admin.brokers import AdminCalls, Target, answer_of, on_each
from mqclient.errors import IllegalArgumentError, NoRouteError, broker_answer_error
from mqclient.message import MessageQueue
from mqclient.name_servers import TOPICS_PER_PAGE, TopicRoute
from mqclient.transport.methods import DELETE_TOPIC, GET_TOPIC_STATS, LIST_TOPIC_CONFIGS, UPDATE_TOPIC
from mqproto.codes import Permission, ResponseCode
from mqproto.names import IllegalNameError, check_user_topic
from mqproto.values import to_value


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic as one broker has it; `perm` has RocketMQ's bits: 4 read, 2 write, 1 inherit."""

    topic: str
    read_queue_count: int
    write_queue_count: int
    perm: int


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue of a topic. Offsets from `min_offset` to `max_offset` - 1 can be read.

    `last_update_timestamp_ms` is when the last message was stored; 0 for a queue that holds none.
    `about_bytes` is what the messages take of the broker's log, of more than 4,096 messages by samples; 0 from a broker
    of an earlier version.
    """

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update_timestamp_ms: int
    about_bytes: int = 0


class TopicAdmin(AdminCalls):
    """Calls about topics."""

    async def update_topic(
        self,
        topic: str,
        *,
        read_queue_count: int = 4,
        write_queue_count: int = 4,
        perm: int = Permission.READ_WRITE,
        cluster_name: str | None = None,
        broker_address: str | None = None,
    ) -> None:
        """Create or change the topic; durable, and known to the name servers, on return.

        Raises IllegalArgumentError, NoRouteError when there is no broker, and the first rejection of a broker.
        """
        _check_topic(topic)
        request = admin_pb.UpdateTopicRequest(
            config=common_pb.TopicConfig(
                topic=topic, read_queue_count=read_queue_count, write_queue_count=write_queue_count, perm=perm
            )
        )
        await on_each(
            await self._targets(cluster_name, broker_address), lambda target: answer_of(target, UPDATE_TOPIC, request)
        )

    async def update_topic_perm(
        self, topic: str, perm: int, *, cluster_name: str | None = None, broker_address: str | None = None
    ) -> None:
        """Change the permission of the topic where it is, and keep each broker's queue counts.

        Raises as `update_topic`; a broker without the topic is passed over unless none has it.
        """
        _check_topic(topic)

        async def step(target: Target) -> None:
            config = next((one for one in await _configs(target) if one.topic == topic), None)
            if config is None:
                remark = f"topic {topic!r} does not exist"
                raise broker_answer_error(ResponseCode.TOPIC_NOT_EXIST, remark, target.name)
            config.perm = perm
            await answer_of(target, UPDATE_TOPIC, admin_pb.UpdateTopicRequest(config=config))

        targets = await self._targets(cluster_name, broker_address)
        await on_each(targets, step, passing_over={ResponseCode.TOPIC_NOT_EXIST})

    async def delete_topic(
        self, topic: str, *, cluster_name: str | None = None, broker_address: str | None = None
    ) -> None:
        """Delete the topic with what it holds and the groups' offsets in it; the name servers know it on return.

        A topic of the same name goes on counting where this one was. What waits for its delay, or for the end of its
        transaction, is not lost: when it comes, it makes the topic anew, with the broker's defaultTopicQueueNums.
        A broker without the topic is passed over; when none has it, TOPIC_NOT_EXIST is raised. Raises
        IllegalArgumentError, NoRouteError when there is no broker, and the first other rejection of a broker.
        """
        _check_topic(topic)
        request = admin_pb.DeleteTopicRequest(topic=topic)
        await on_each(
            await self._targets(cluster_name, broker_address),
            lambda target: answer_of(target, DELETE_TOPIC, request),
            passing_over={ResponseCode.TOPIC_NOT_EXIST},
        )

    async def topic_list(self, *, with_away: bool = False) -> list[str]:
        """Every topic that a registered broker has, sorted; `with_away`: or that a broker had which left a moment ago.

        Raises NoRouteError when no name server answers.
        """
        self._lifecycle.require_running()
        return await self._instance.name_servers.list_topics(with_away=with_away)

    async def away_brokers(self, topic: str) -> list[str]:
        """The broker names that had the topic, of which the last process left within 10 minutes, and none is back.

        A name server that has started since knows nothing of them. Raises NoRouteError when no name server answers.
        """
        self._lifecycle.require_running()
        return await self._instance.name_servers.away_brokers(topic)

    async def topic_configs(self, broker_address: str) -> list[TopicConfig]:
        """Every topic of one broker, by name. Raises MQClientError when it does not answer."""
        return [to_value(TopicConfig, one) for one in await _configs(self._target_at(broker_address))]

    async def topic_route(self, topic: str) -> TopicRoute:
        """The topic's route, from a name server. Raises NoRouteError when it does not exist."""
        self._lifecycle.require_running()
        route = await self._instance.name_servers.query_route(topic)
        if route is None:
            raise NoRouteError(f"no registered broker has the topic {topic!r}")
        return route

    async def topic_stats(self, topic: str) -> list[QueueStats]:
        """Every queue of the topic on every master, sorted by queue.

        Raises NoRouteError when there is no broker, TOPIC_NOT_EXIST as a rejection when none has the topic, and the
        first other rejection.
        """
        request = admin_pb.GetTopicStatsRequest(topic=topic)
        answers = await on_each(
            await self._targets(),
            lambda target: answer_of(target, GET_TOPIC_STATS, request),
            passing_over={ResponseCode.TOPIC_NOT_EXIST},
        )
        return sorted(
            (
                to_value(QueueStats, one, queue=MessageQueue(topic, target.name, one.queue_id))
                for target, answer in answers
                for one in answer.queues
            ),
            key=lambda stats: stats.queue,
        )


async def _configs(target: Target) -> list[common_pb.TopicConfig]:
    configs: list[common_pb.TopicConfig] = []
    more_follow = True
    while more_follow:
        after = configs[-1].topic if configs else ""
        request = admin_pb.ListTopicConfigsRequest(after=after, topics_max=TOPICS_PER_PAGE)
        response = await target.ask(LIST_TOPIC_CONFIGS, request)
        configs += response.topics
        more_follow = response.more_follow
    return configs


def _check_topic(topic: str) -> None:
    try:
        check_user_topic(topic)
    except IllegalNameError as error:
        raise IllegalArgumentError(str(error)) from error
