"""What is tried again, and within which time: a row for each code and error (mechanisms P4-P8, P10)."""

from __future__ import annotations

import asyncio

import pytest

from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient import (
    BrokerRejectedError,
    BrokerUnreachableError,
    CommunicationMode,
    ConnectionLostError,
    EarlierSendFailedError,
    IllegalArgumentError,
    Message,
    MessageRejectedError,
    MQClientError,
    NoRouteError,
    NotSentError,
    Producer,
    ProducerConfig,
    RequestTimeoutError,
    SendResult,
    SendStatus,
    TooManyRequestsError,
)
from mqclient.errors import broker_answer_error
from mqclient.producer.attempts import may_retry
from mqclient.testing import FakeBroker, FakeCluster
from mqproto.codes import ResponseCode
from osenv.sim_clock import settle

SYNC, ASYNC = CommunicationMode.SYNC, CommunicationMode.ASYNC

# Code -> is it tried again when it is the answer to a synchronous send. Codes that mean "stored" are no answers here.
CODES: dict[int, bool] = {
    ResponseCode.SYSTEM_ERROR: True,
    ResponseCode.SYSTEM_BUSY: True,
    ResponseCode.SERVICE_NOT_AVAILABLE: True,
    ResponseCode.NO_PERMISSION: True,
    ResponseCode.TOPIC_NOT_EXIST: True,
    ResponseCode.NO_BUYER_ID: True,
    ResponseCode.NOT_IN_CURRENT_UNIT: True,
    ResponseCode.NOT_LEADER_FOR_QUEUE: True,
    ResponseCode.GO_AWAY: True,
    ResponseCode.MESSAGE_ILLEGAL: False,
    ResponseCode.QUERY_NOT_FOUND: False,
    ResponseCode.INVALID_PARAMETER: False,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: False,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: False,
    ResponseCode.TRANSACTION_STATE_UNKNOW: False,
    ResponseCode.CONSUMER_NOT_ONLINE: False,
    ResponseCode.SUBSCRIPTION_NOT_CONSISTENT: False,
    ResponseCode.CLIENT_ID_IN_USE: False,
}
STORED = {
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
}

# Error -> (tried again by a synchronous, by an asynchronous send).
ERRORS: list[tuple[MQClientError, bool, bool]] = [
    (BrokerUnreachableError("x"), True, True),
    (ConnectionLostError("x"), True, True),
    (RequestTimeoutError("x"), True, True),
    (NotSentError("x"), True, True),
    (NoRouteError("x"), True, True),
    (EarlierSendFailedError("x"), True, True),
    (TooManyRequestsError("x"), False, False),
    (MessageRejectedError("x"), False, False),
    (IllegalArgumentError("x"), False, False),
]


@pytest.mark.mechanism("P7")
def test_the_table_has_every_code() -> None:
    assert set(CODES) | STORED == set(ResponseCode)


@pytest.mark.mechanism("P7")
@pytest.mark.parametrize("code", CODES)
def test_a_code_is_retried_as_the_table_says_and_hardly_ever_by_an_asynchronous_send(code: int) -> None:
    error = broker_answer_error(code, "why", "broker-a")
    assert may_retry(error, SYNC) is CODES[code]
    assert may_retry(error, ASYNC) is (code == ResponseCode.NOT_LEADER_FOR_QUEUE)
    assert may_retry(broker_answer_error(9_999, "a code of tomorrow", "broker-a"), SYNC) is False


@pytest.mark.mechanism("P7")
@pytest.mark.parametrize(("error", "sync", "asynchronous"), ERRORS, ids=lambda value: type(value).__name__)
def test_an_error_is_retried_as_the_table_says(error: MQClientError, sync: bool, asynchronous: bool) -> None:
    assert (may_retry(error, SYNC), may_retry(error, ASYNC)) == (sync, asynchronous)


class Recorder:
    """A callback that remembers."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[SendResult | Exception] = asyncio.get_running_loop().create_future()

    async def on_success(self, result: SendResult) -> None:
        self.outcome.set_result(result)

    async def on_exception(self, error: Exception) -> None:
        self.outcome.set_result(error)


async def two_brokers() -> tuple[FakeCluster, list[FakeBroker], Producer]:
    """A producer whose next message goes to the first of the brokers."""
    cluster, brokers = FakeCluster.of("broker-a", "broker-b", queue_count=1)
    producer = Producer("shop", cluster.url)
    await producer.start()
    while (await producer.send(Message("orders", b"before"))).message_queue.broker_name != "broker-b":
        pass
    return cluster, brokers, producer


@pytest.mark.mechanism("P5")
@pytest.mark.parametrize("code", [code for code in CODES if code in common_pb.ResponseCode.values()])
async def test_a_synchronous_send_goes_elsewhere_after_a_retryable_code_and_raises_after_others(code: int) -> None:
    _, (first, second), producer = await two_brokers()
    async with asyncio.timeout(5):
        first.next_codes = [code]
        (outcome,) = await asyncio.gather(producer.send(Message("orders", b"x")), return_exceptions=True)
        if CODES[code]:
            assert isinstance(outcome, SendResult)
            assert outcome.message_queue.broker_name == "broker-b"
        else:
            assert isinstance(outcome, BrokerRejectedError)
            assert outcome.code == code
        assert (b"x" in second.bodies) is CODES[code]
        await producer.shutdown()


ANSWERS = [code for code in CODES if code != ResponseCode.NOT_LEADER_FOR_QUEUE]  # that one counts as no answer


@pytest.mark.mechanism("P8")
@pytest.mark.parametrize("code", [code for code in ANSWERS if code in common_pb.ResponseCode.values()])
async def test_an_asynchronous_send_takes_a_brokers_answer_for_an_answer(code: int) -> None:
    _, (first, second), producer = await two_brokers()
    first.next_codes = [code]
    recorder = Recorder()
    producer.send_async(Message("orders", b"x"), recorder)
    error = await recorder.outcome
    assert isinstance(error, MQClientError)
    assert getattr(error, "code", None) == code
    assert b"x" not in second.bodies
    await producer.shutdown()


@pytest.mark.mechanism("P6")
async def test_an_asynchronous_send_goes_elsewhere_when_its_broker_is_gone() -> None:
    _, (first, second), producer = await two_brokers()
    first.down = True
    first.break_streams()
    recorder = Recorder()
    producer.send_async(Message("orders", b"x"), recorder)
    result = await recorder.outcome
    assert isinstance(result, SendResult)
    assert result.message_queue.broker_name == "broker-b"
    assert second.bodies[-1] == b"x"
    await producer.shutdown()


@pytest.mark.mechanism("P6")
async def test_an_asynchronous_send_has_its_own_number_of_tries() -> None:
    cluster, brokers = FakeCluster.of("broker-a", "broker-b", "broker-c")
    config = ProducerConfig(retry_times_when_send_async_failed=1)
    async with Producer("shop", cluster.url, producer_config=config) as producer:
        await producer.send(Message("orders", b"before"))
        for broker in brokers[:2]:
            broker.down = True
            broker.break_streams()
        recorders = [Recorder() for _ in range(12)]
        for recorder in recorders:
            producer.send_async(Message("orders", b"x"), recorder)
        await cluster.clock.advance(3.1)
        outcomes = [await recorder.outcome for recorder in recorders]
    failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert failed  # those that met the two dead brokers one after the other
    assert len(failed) < len(outcomes)
    assert all(isinstance(error, BrokerUnreachableError) for error in failed)


@pytest.mark.mechanism("P4")
async def test_the_budget_shrinks_over_the_tries() -> None:
    """Two tries are rejected after 1 s each; the third one has what is left of 3 s."""
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    async with Producer("shop", cluster.url) as producer:
        send = asyncio.create_task(producer.send(Message("orders", b"x"), timeout=3.0))
        for number in range(2):
            await cluster.clock.advance(0.3)
            broker.next_codes = [common_pb.SYSTEM_BUSY]
            broker.answer_frame(broker.frames[number])
            await cluster.clock.advance((0.2, 1.5)[number])
        assert len(broker.frames) == 3
        await cluster.clock.advance(0.6)
        assert not send.done()
        await cluster.clock.advance(0.11)
        assert isinstance(send.exception(), RequestTimeoutError)


@pytest.mark.mechanism("P4")
async def test_one_try_may_have_a_bound_of_its_own_so_that_a_hung_broker_leaves_time_for_another() -> None:
    cluster, brokers = FakeCluster.of("broker-a", "broker-b")
    config = ProducerConfig(send_msg_max_timeout_per_request_s=0.5)
    async with Producer("shop", cluster.url, producer_config=config) as producer:
        for broker in brokers:
            broker.silent = True
        send = asyncio.create_task(producer.send(Message("orders", b"x")))
        await settle()
        hung, other = sorted(brokers, key=lambda broker: not broker.frames)
        other.silent = False
        await cluster.clock.advance(0.49)
        assert not send.done()
        await cluster.clock.advance(0.02)
        assert (await send).message_queue.broker_name == other.name
        hung.silent = False
        hung.break_streams()  # what has moved is not sent again
        await settle()
    assert (hung.bodies, other.bodies) == ([], [b"x"])


async def test_a_batch_of_which_one_message_has_moved_is_not_sent_again_and_the_rest_moves_too() -> None:
    cluster, brokers = FakeCluster.of("broker-a", "broker-b", queue_count=1)
    config = ProducerConfig(send_msg_max_timeout_per_request_s=1.0)
    async with Producer("shop", cluster.url, producer_config=config) as producer:
        await asyncio.gather(*(producer.send(Message("orders", b"before")) for _ in range(2)))
        for broker in brokers:
            broker.silent = True
        early = [asyncio.create_task(producer.send(Message("orders", b"early"), timeout=0.6)) for _ in range(2)]
        late = [asyncio.create_task(producer.send(Message("orders", b"late"))) for _ in range(2)]
        await cluster.clock.advance(0.9)
        assert all(isinstance(send.exception(), RequestTimeoutError) for send in early)
        assert not any(send.done() for send in late)
        await cluster.clock.advance(0.2)  # now the late ones have moved, each to the other broker
        for broker in brokers:
            broker.silent = False
            broker.break_streams()
        await asyncio.gather(*late)
    assert sorted(body for broker in brokers for body in broker.bodies) == [b"before"] * 2 + [b"late"] * 2


async def test_the_only_broker_has_the_whole_budget() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    config = ProducerConfig(send_msg_max_timeout_per_request_s=0.5)
    async with Producer("shop", cluster.url, producer_config=config) as producer:
        send = asyncio.create_task(producer.send(Message("orders", b"x")))
        await cluster.clock.advance(2.9)
        broker.answer_frame(broker.frames[0])
        assert (await send).queue_offset == 0
    assert len(broker.frames) == 1


@pytest.mark.mechanism("P7")
async def test_a_cancelled_send_is_over() -> None:
    cluster, (first, second), producer = await two_brokers()
    first.silent = True
    send = asyncio.create_task(producer.send(Message("orders", b"x")))
    await settle()
    send.cancel()
    await settle()
    assert send.cancelled()
    first.silent = False
    first.break_streams()
    await cluster.clock.advance(3.1)
    assert b"x" not in first.bodies + second.bodies
    await producer.shutdown()


@pytest.mark.parametrize("status", [SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE])
@pytest.mark.parametrize("wished", [True, False])
async def test_another_broker_may_be_asked_to_store_it_more_safely(status: SendStatus, wished: bool) -> None:
    cluster, brokers = FakeCluster.of("broker-a", "broker-b")
    config = ProducerConfig(retry_another_broker_when_not_store_ok=wished)
    async with Producer("shop", cluster.url, producer_config=config) as producer:
        for broker in brokers:
            broker.next_codes = [common_pb.ResponseCode.Value(status.value)]
        result = await producer.send(Message("orders", b"x"))
        assert result.send_status is status  # both brokers store it less safely
        for broker in brokers:
            broker.next_codes = []
        assert (await producer.send(Message("orders", b"y"))).send_status is SendStatus.SEND_OK
    copies = [broker.bodies.count(b"x") for broker in brokers]
    assert sorted(copies) == ([1, 1] if wished else [0, 1])


async def test_the_only_broker_is_not_asked_twice_to_store_it_more_safely() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.next_codes = [common_pb.FLUSH_DISK_TIMEOUT]
    config = ProducerConfig(retry_another_broker_when_not_store_ok=True)
    async with Producer("shop", cluster.url, producer_config=config) as producer:
        result = await producer.send(Message("orders", b"x"))
    assert result.send_status is SendStatus.FLUSH_DISK_TIMEOUT
    assert broker.bodies == [b"x"]


async def test_a_broker_that_was_not_available_is_not_asked_again_while_there_is_another() -> None:
    """It may have written the message and failed to sync it."""
    cluster, (first, second), producer = await two_brokers()
    frames = len(first.frames)
    first.next_codes = [common_pb.SERVICE_NOT_AVAILABLE]
    second.next_codes = [common_pb.SYSTEM_BUSY]
    send = asyncio.create_task(producer.send(Message("orders", b"x")))
    await cluster.clock.advance(2.0)
    assert (await send).message_queue.broker_name == "broker-b"
    assert len(first.frames) == frames + 1
    await producer.shutdown()
