"""The route of the one broker there is."""

from __future__ import annotations

from typing import Any

from hourglass.mq.v1 import common_pb2
from hourglass.mq.v1 import name_service_pb2 as pb
from mq_broker.core.replica_state import BrokerIdentity
from mq_broker.core.topics import TopicTable


class OneBrokerNameService:
    """Answers what clients ask of a name server."""

    def __init__(self, identity: BrokerIdentity, topics: TopicTable) -> None:
        self._identity, self._topics = identity, topics

    async def QueryRoute(self, request: pb.QueryRouteRequest, context: Any) -> pb.QueryRouteResponse:  # noqa: N802
        config = self._topics.get(request.topic)
        if config is None:
            remark = f"no living broker has registered the topic {request.topic!r}"
            return pb.QueryRouteResponse(code=common_pb2.TOPIC_NOT_EXIST, remark=remark)
        queues = pb.QueueData(
            broker_name=self._identity.broker_name,
            read_queue_count=config.read_queue_count,
            write_queue_count=config.write_queue_count,
            perm=config.perm,
        )
        return pb.QueryRouteResponse(route=pb.TopicRoute(queues=[queues], brokers=[self._broker()]))

    async def ListTopics(self, request: pb.ListTopicsRequest, context: Any) -> pb.ListTopicsResponse:  # noqa: N802
        return pb.ListTopicsResponse(topics=[config.topic for config in self._topics.all()])

    async def ListClusters(self, request: pb.ListClustersRequest, context: Any) -> pb.ListClustersResponse:  # noqa: N802
        return pb.ListClustersResponse(brokers=[self._broker()])

    def _broker(self) -> pb.BrokerData:
        identity = self._identity
        return pb.BrokerData(
            cluster_name=identity.cluster_name,
            broker_name=identity.broker_name,
            addresses={identity.broker_id: identity.address},
        )
