"""The queues that can be measured, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from hourglass_loadtest.peers import (
    apache_kafka,
    apache_rocketmq,
    beanstalk,
    hourglass_queue,
    jetstream,
    postgresql,
    rabbitmq,
    redis_streams,
)
from hourglass_loadtest.peers.apache_kafka import KafkaPeer
from hourglass_loadtest.peers.apache_rocketmq import RocketPeer
from hourglass_loadtest.peers.beanstalk import BeanstalkPeer
from hourglass_loadtest.peers.hourglass_queue import HourglassPeer
from hourglass_loadtest.peers.jetstream import JetStreamPeer
from hourglass_loadtest.peers.peer import Connect, Peer
from hourglass_loadtest.peers.postgresql import PostgresPeer
from hourglass_loadtest.peers.rabbitmq import RabbitPeer
from hourglass_loadtest.peers.redis_streams import RedisPeer

OURS, OURS_DURABLE = "Hourglass", "Hourglass, synced"

Make = Callable[[], Peer]

_MAKERS: tuple[tuple[Make, Connect], ...] = (
    (partial(HourglassPeer, OURS, frames=True, durable=False), hourglass_queue.connect),
    (partial(HourglassPeer, OURS_DURABLE, frames=True, durable=True), hourglass_queue.connect),
    (partial(HourglassPeer, "Hourglass gRPC", frames=False, durable=False), hourglass_queue.connect),
    (partial(HourglassPeer, "Hourglass gRPC, synced", frames=False, durable=True), hourglass_queue.connect),
    (partial(RedisPeer, "Redis", durable=False), redis_streams.connect),
    (partial(RedisPeer, "Redis, always", durable=True), redis_streams.connect),
    (JetStreamPeer, jetstream.connect),
    (partial(RabbitPeer, "RabbitMQ, classic", quorum=False), rabbitmq.connect),
    (partial(RabbitPeer, "RabbitMQ, quorum", quorum=True), rabbitmq.connect),
    (PostgresPeer, postgresql.connect),
    (partial(BeanstalkPeer, "beanstalkd", durable=False), beanstalk.connect),
    (partial(BeanstalkPeer, "beanstalkd, synced", durable=True), beanstalk.connect),
    (partial(RocketPeer, "RocketMQ, Java", durable=False, proxy=False), apache_rocketmq.connect),
    (partial(RocketPeer, "RocketMQ, Java, synced", durable=True, proxy=False), apache_rocketmq.connect),
    (partial(RocketPeer, "RocketMQ, Python", durable=False, proxy=True), apache_rocketmq.connect),
    (partial(KafkaPeer, "Kafka", durable=False), apache_kafka.connect),
    (partial(KafkaPeer, "Kafka, synced", durable=True), apache_kafka.connect),
)
PEERS: Mapping[str, tuple[Make, Connect]] = {make().name: (make, connect) for make, connect in _MAKERS}
