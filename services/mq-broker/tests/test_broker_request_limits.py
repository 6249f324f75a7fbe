"""Every text and repeated field of a request has a limit, and what is beyond it is rejected before any work is done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from hourglass.mq.v1 import admin_service_pb2, broker_service_pb2, common_pb2, replication_service_pb2
from hourglass.mq.v1 import broker_service_pb2 as pb
from mq_broker.core.limits import FRAME_BATCHES_MAX, GROUPS_PER_REQUEST_MAX, SENTENCES_MAX
from mq_broker.embedded.embedded_broker import AbortedCallError, CallContext
from mq_broker.processor.broker import Broker
from mq_broker.rpc.admin_service import AdminService
from mq_broker.rpc.broker_service import BrokerService
from mq_broker.rpc.calls import REQUEST_LIMITS
from mq_broker.rpc.registration import Registration
from mq_broker.rpc.replication_conversions import replica_frame
from mq_broker.testing import RecordingSession, broker_options, client, incoming, produce, running_broker
from mqproto.codes import ResponseCode
from mqproto.grpc_options import FieldLimitError, limited_fields
from osenv import SimClock, SimDisk

BROKER = broker_service_pb2.DESCRIPTOR.services_by_name["BrokerService"]
ADMIN = admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"]
REPLICATION = replication_service_pb2.DESCRIPTOR.services_by_name["ReplicationService"]
GRPC_S = {"RecordBatch.records"}  # limited by the size of a frame, before anything of ours sees it

Path = tuple[Any, ...]  # field descriptors


def paths(message: Descriptor, above: Path = ()) -> Iterator[Path]:
    """The way to each limited field of a request."""
    for field in message.fields:
        name = f"{message.name}.{field.name}"
        if name in set(REQUEST_LIMITS) - GRPC_S:
            yield (*above, field)
        if field.message_type is not None:
            yield from paths(field.message_type, (*above, field))


def beyond(path: Path) -> Any:
    """A request with one more than is allowed at the end of the path."""
    request = message = GetMessageClass(path[0].containing_type)()
    for field in path[:-1]:
        message = getattr(message, field.name)
        message = message.add() if field.is_repeated else message
    last = path[-1]
    count = REQUEST_LIMITS[f"{last.containing_type.name}.{last.name}"].most + 1
    if last.is_repeated:
        getattr(message, last.name).extend([GetMessageClass(last.message_type)()] * count)
    else:
        setattr(message, last.name, b"x" * count if last.type == FieldDescriptor.TYPE_BYTES else "x" * count)
    return request


def requests(service: ServiceDescriptor, *, streams: bool) -> list[Any]:
    return [
        pytest.param(method.name, path, id=f"{method.name}-{'.'.join(field.name for field in path)}")
        for method in service.methods
        if method.client_streaming == streams
        for path in paths(method.input_type)
    ]


def services(broker: Broker) -> tuple[BrokerService, AdminService]:
    registration = Registration(broker_options().identity, broker.topics, [], SimClock(), 30)
    return BrokerService(broker, asyncio.Event()), AdminService(broker, registration, dict)


@pytest.mark.parametrize("service", [BROKER, ADMIN, REPLICATION], ids=lambda one: one.name)
def test_every_text_and_repeated_field_of_a_request_has_a_limit(service: ServiceDescriptor) -> None:
    assert set(limited_fields(service)) - set(REQUEST_LIMITS) == set(), "give the new fields limits"


def test_no_limit_is_left_over() -> None:
    fields = {name for service in (BROKER, ADMIN, REPLICATION) for name in limited_fields(service)}
    assert set(REQUEST_LIMITS) - fields == set()


async def test_a_call_beyond_a_limit_is_rejected_by_name() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        for service, descriptor in zip(services(broker), (BROKER, ADMIN), strict=True):
            for one in requests(descriptor, streams=False):
                name, path = one.values
                field = path[-1]
                with pytest.raises(AbortedCallError, match=f"{field.containing_type.name}.{field.name} has") as caught:
                    await getattr(service, name)(beyond(path), CallContext())
                assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(("name", "path"), requests(BROKER, streams=True))
async def test_a_request_of_a_stream_beyond_a_limit_is_rejected(
    name: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        topics = broker.topics.data_version
        context = CallContext()
        for request in (beyond(path), grpc.aio.EOF):
            context.requests.put_nowait(request)
        call = getattr(services(broker)[0], name)(None, context)
        if name == "Produce":
            await call
            results = (await context.responses.get()).results
            assert {result.code for result in results} == {common_pb2.MESSAGE_ILLEGAL}
            assert len(results) <= FRAME_BATCHES_MAX
        elif path[0].name == "progress":
            with caplog.at_level(logging.WARNING):
                await call
            assert "are allowed" in caplog.text
        else:
            with pytest.raises(AbortedCallError, match="are allowed") as caught:
                await call
            assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
        assert context.responses.empty()
        assert broker.topics.data_version == topics


@pytest.mark.parametrize(("_name", "path"), requests(REPLICATION, streams=True))
def test_a_frame_of_a_replica_beyond_a_limit_is_rejected(_name: str, path: Path) -> None:
    with pytest.raises(ValueError):
        replica_frame(beyond(path))


def test_texts_together_have_a_limit_too() -> None:
    limit = REQUEST_LIMITS["Subscription.expression"]
    assert limit.total is not None
    one = pb.Subscription(topic="t", expression="x" * limit.most)
    allowed = pb.Heartbeat(consumers=[pb.ConsumerData(subscriptions=[one] * (limit.total // limit.most))])
    REQUEST_LIMITS.check(allowed)
    allowed.consumers.add(subscriptions=[pb.Subscription(expression="x")])
    with pytest.raises(FieldLimitError, match=f"Subscription.expression has {limit.total + 1} characters"):
        REQUEST_LIMITS.check(allowed)


async def test_the_remark_on_many_rejected_groups_has_the_first_few_and_a_count() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        bad = [f"no good {n:04d}" for n in range(GROUPS_PER_REQUEST_MAX)]
        code, remark = broker.sessions.heartbeat(RecordingSession(), client("a", *bad))
        assert code is ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert remark.count("is not allowed") == SENTENCES_MAX
        assert remark.endswith(f"; and {GROUPS_PER_REQUEST_MAX - SENTENCES_MAX} more")


async def test_of_a_frame_with_too_many_batches_nothing_is_stored() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        await produce(broker, incoming("t", [b"x"]))
        end = broker.store.log_end
        one = incoming("t", [b"y"])
        frame = pb.ProduceRequest(
            batches=[pb.RecordBatch(topic="t", count=1, records=one.records)] * (FRAME_BATCHES_MAX + 1)
        )
        context = CallContext()
        for request in (frame, grpc.aio.EOF):
            context.requests.put_nowait(request)
        await services(broker)[0].Produce(None, context)
        assert broker.store.log_end == end
