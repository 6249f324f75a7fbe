"""The synchronous faces, used by threads of this process; the fakes behind gRPC are served by its event loop.

Mechanism P18.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from mqclient import (
    Admin,
    ConsumeFromWhere,
    ConsumeStatus,
    IllegalArgumentError,
    IllegalGroupError,
    IllegalStateError,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageRejectedError,
    NoRouteError,
    Producer,
    PushConsumer,
    SendResult,
    SendStatus,
    TransactionProducer,
)
from mqclient.lifecycle import WorkerThreads
from mqclient.sync import SyncAdmin, SyncProducer, SyncPushConsumer, SyncTransactionProducer, faces
from mqclient.testing.loopback import loopback_server

THREADS, MESSAGES = 8, 25
WAIT_S = 10


def own_threads() -> list[str]:
    """Those that mqclient has started."""
    for thread in threading.enumerate():
        if thread.name.startswith("mqclient-callback"):  # idle, and told to end, without a wait for it
            thread.join(WAIT_S)
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("mqclient"))


@contextmanager
def no_thread_is_left() -> Iterator[None]:
    assert own_threads() == []
    yield
    assert own_threads() == []


class Results:
    """A callback that remembers."""

    def __init__(self) -> None:
        self.results: list[SendResult] = []
        self.errors: list[Exception] = []
        self.threads: set[str] = set()
        self.called = threading.Event()

    def on_success(self, result: SendResult) -> None:
        self.results.append(result)
        self._note()

    def on_exception(self, error: Exception) -> None:
        self.errors.append(error)
        self._note()

    def _note(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.called.set()


class Listener:
    """A transaction listener that remembers where it ran."""

    def __init__(self, state: LocalTransactionState = LocalTransactionState.COMMIT_MESSAGE) -> None:
        self.state = state
        self.executed: list[tuple[bytes, str, Any, int]] = []
        self.checked: list[tuple[str, str]] = []
        self.check_came = threading.Event()

    def execute_local_transaction(self, message: Message, transaction_id: str, arg: Any) -> LocalTransactionState:
        self.executed.append((message.body, transaction_id, arg, threading.get_ident()))
        return self.state

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        self.checked.append((message.transaction_id, threading.current_thread().name))
        self.check_came.set()
        return LocalTransactionState.COMMIT_MESSAGE


async def in_a_thread(script: Callable[..., Any], *arguments: Any) -> Any:
    """Run `script` where no event loop runs, while this one serves the fakes."""
    with ThreadPoolExecutor(1, thread_name_prefix="script") as executor:
        return await asyncio.get_running_loop().run_in_executor(executor, script, *arguments)


async def test_messages_go_through_from_a_plain_function_to_another_one() -> None:
    def script(url: str) -> tuple[list[bytes], set[str]]:
        got: list[bytes] = []
        threads: set[str] = set()
        all_came = threading.Event()

        def listener(messages: list[MessageExt]) -> ConsumeStatus:
            got.extend(message.body for message in messages)
            threads.add(threading.current_thread().name)
            if len(got) == 20:
                all_came.set()
            return ConsumeStatus.CONSUME_SUCCESS

        consumer = SyncPushConsumer("closers", url, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        consumer.subscribe("orders")
        consumer.register_message_listener(listener)
        with no_thread_is_left(), consumer, SyncProducer("shop", url) as producer, SyncAdmin(url) as admin:
            assert own_threads().count("mqclient sync") == 1  # one for all faces
            assert {queue.queue_id for queue in consumer.queues if queue.topic == "orders"} == {0, 1, 2, 3}
            assert "orders" in admin.topic_list()
            results = [producer.send(Message("orders", b"%d" % number)) for number in range(20)]
            assert {result.send_status for result in results} == {SendStatus.SEND_OK}
            assert all_came.wait(WAIT_S)
        return sorted(got), threads

    async with loopback_server() as loopback:
        got, threads = await in_a_thread(script, loopback.url)
        assert got == sorted(b"%d" % number for number in range(20))
        assert threads
        assert all(name.startswith("mqclient consume") for name in threads)
        assert sum(loopback.broker.offsets["closers", "orders", queue] for queue in range(4)) == 20


@pytest.mark.mechanism("P18")
async def test_any_number_of_threads_share_one_producer() -> None:
    def script(url: str) -> list[SendResult]:
        with no_thread_is_left(), SyncProducer("shop", url) as producer:

            def send(number: int) -> list[SendResult]:
                return [producer.send(Message("orders", b"%d-%d" % (number, one))) for one in range(MESSAGES)]

            with ThreadPoolExecutor(THREADS) as executor:
                return [result for results in executor.map(send, range(THREADS)) for result in results]

    async with loopback_server() as loopback:
        results = await in_a_thread(script, loopback.url)
        assert len({result.message_id for result in results}) == THREADS * MESSAGES
        assert len(set(loopback.broker.bodies)) == THREADS * MESSAGES


async def test_batches_one_way_messages_and_callbacks() -> None:
    def script(url: str) -> Results:
        callback = Results()
        with no_thread_is_left(), SyncProducer("shop", url) as producer:
            assert (
                producer.send_batch([Message("orders", b"a"), Message("orders", b"b")]).send_status
                is SendStatus.SEND_OK
            )
            producer.send_oneway(Message("orders", b"c"))
            producer.send_async(Message("orders", b"d"), callback)
            assert callback.called.wait(WAIT_S)
            with pytest.raises(MessageRejectedError):
                producer.send_async(Message("orders", b""), callback)
        return callback

    async with loopback_server() as loopback:
        callback = await in_a_thread(script, loopback.url)
        assert sorted(loopback.broker.bodies) == [b"a", b"b", b"c", b"d"]
        assert len(callback.results) == 1
        assert not any("sync" in name for name in callback.threads)  # a callback that blocks does not hold the loop


async def test_a_local_transaction_runs_in_the_thread_of_its_caller_and_checks_in_another() -> None:
    listener = Listener()

    def script(url: str, in_between: Callable[[str], None]) -> int:
        with no_thread_is_left(), SyncTransactionProducer("payers", url, transaction_listener=listener) as producer:
            result = producer.send_message_in_transaction(Message("orders", b"at once"), "argument")
            assert result.local_transaction_state is LocalTransactionState.COMMIT_MESSAGE
            listener.state = LocalTransactionState.UNKNOW
            asked = producer.send_message_in_transaction(Message("orders", b"when asked"))
            in_between(asked.transaction_id)
            assert listener.check_came.wait(WAIT_S)
            assert producer.send(Message("orders", b"plain")).send_status is SendStatus.SEND_OK
        return threading.get_ident()

    async with loopback_server() as loopback:
        loop = asyncio.get_running_loop()

        def ask(transaction_id: str) -> None:
            loop.call_soon_threadsafe(loopback.broker.check, transaction_id)

        caller = await in_a_thread(script, loopback.url, ask)
        assert [(body, arg, thread) for body, _, arg, thread in listener.executed] == [
            (b"at once", "argument", caller),
            (b"when asked", None, caller),
        ]
        assert [name for _, name in listener.checked] == ["mqclient check 0"]
        assert sorted(loopback.broker.bodies) == [b"at once", b"plain", b"when asked"]


@pytest.mark.parametrize("error", [ValueError("no stock"), KeyboardInterrupt()])
async def test_what_a_local_transaction_raises_reaches_its_caller_and_leaves_the_half_open(
    error: BaseException,
) -> None:
    class Failing(Listener):
        def execute_local_transaction(self, message: Message, transaction_id: str, arg: Any) -> LocalTransactionState:
            raise error

    def script(url: str) -> None:
        with no_thread_is_left(), SyncTransactionProducer("payers", url, transaction_listener=Failing()) as producer:
            with pytest.raises(type(error)):
                producer.send_message_in_transaction(Message("orders", b"x"))
            assert producer.send(Message("orders", b"plain")).send_status is SendStatus.SEND_OK

    async with loopback_server() as loopback:
        await in_a_thread(script, loopback.url)
        assert len(loopback.broker.transactions.open) == 1


async def test_errors_are_those_of_the_asyncio_classes() -> None:
    def script(url: str) -> None:
        with pytest.raises(IllegalGroupError):
            SyncProducer("bad group", url)
        with pytest.raises(IllegalArgumentError, match="subscription and a listener"):
            SyncPushConsumer("closers", url).start()
        with no_thread_is_left(), SyncProducer("shop", url) as producer, SyncAdmin(url) as admin:
            with pytest.raises(MessageRejectedError):
                producer.send(Message("orders", b""))
            with pytest.raises(NoRouteError):
                admin.topic_route("nowhere")
            with pytest.raises(IllegalStateError, match="has a producer of the group 'shop' already"):
                SyncProducer("shop", url).start()

    async with loopback_server() as loopback:
        await in_a_thread(script, loopback.url)


def test_a_start_that_fails_leaves_no_thread() -> None:
    with no_thread_is_left():
        producer = SyncProducer("shop", "mq://nonsense")
        for _ in range(2):
            with pytest.raises((IllegalArgumentError, IllegalStateError)):
                producer.start()


def test_a_start_that_is_interrupted_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with no_thread_is_left():
        consumer = SyncPushConsumer("closers", "mq://127.0.0.1:1")
        consumer.subscribe("orders")
        consumer.register_message_listener(lambda _: ConsumeStatus.CONSUME_SUCCESS)
        with monkeypatch.context() as while_waiting:
            while_waiting.setattr(faces, "result_of", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.start()
        with pytest.raises(IllegalStateError, match="START_FAILED"):
            consumer.start()


def test_a_face_that_does_not_run_says_so() -> None:
    with no_thread_is_left():
        producer = SyncProducer("shop", "mq://127.0.0.1:1")
        for call in (lambda: producer.send(Message("orders", b"x")), producer.shutdown):
            with pytest.raises(IllegalStateError, match="this SyncProducer is not running"):
                call()
        producer.start()
        producer.shutdown()
        with pytest.raises(IllegalStateError, match="not running"):
            producer.send(Message("orders", b"x"))
        with pytest.raises(IllegalStateError, match="SHUTDOWN"):
            producer.start()


async def test_a_thread_that_runs_an_event_loop_is_rejected() -> None:
    producer = SyncProducer("shop", "mq://127.0.0.1:1")
    with pytest.raises(IllegalStateError, match=r"SyncProducer\.start would block the event loop"):
        producer.start()
    await asyncio.to_thread(producer.start)
    for call in (lambda: producer.send(Message("orders", b"x")), producer.shutdown):
        with pytest.raises(IllegalStateError, match=r"would block the event loop.*own classes"):
            call()
    await asyncio.to_thread(producer.shutdown)
    assert own_threads() == []


def test_of_several_threads_that_start_or_shut_down_at_once_one_succeeds() -> None:
    with no_thread_is_left():
        for _ in range(10):
            producer = SyncProducer("shop", "mq://127.0.0.1:1")
            for call in (producer.start, producer.shutdown):
                outcomes: list[Exception | None] = []

                def attempt(call: Callable[[], None] = call, outcomes: list[Exception | None] = outcomes) -> None:
                    try:
                        call()
                    except IllegalStateError as error:
                        outcomes.append(error)
                    else:
                        outcomes.append(None)

                threads = [threading.Thread(target=attempt) for _ in range(5)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(WAIT_S)
                assert outcomes.count(None) == 1
                assert len(outcomes) == 5


async def test_a_listener_that_hangs_holds_up_the_shutdown_no_longer_than_it_may(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release, began = threading.Event(), threading.Event()

    def listener(_: list[MessageExt]) -> ConsumeStatus:
        began.set()
        release.wait(WAIT_S)
        return ConsumeStatus.CONSUME_SUCCESS

    def script(url: str) -> None:
        consumer = SyncPushConsumer("closers", url, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        consumer.subscribe("orders")
        consumer.register_message_listener(listener)
        consumer.start()
        assert began.wait(WAIT_S)
        consumer.shutdown(timeout_s=0.2)
        (left,) = [thread for thread in threading.enumerate() if thread.name == "mqclient consume closers 0"]
        release.set()
        left.join(WAIT_S)
        assert own_threads() == []

    async with loopback_server() as loopback:
        loopback.broker.put("orders", 0, b"x")
        await in_a_thread(script, loopback.url)
        assert "mqclient consume closers 0 does not return; it is left behind" in caplog.text
        assert loopback.broker.offsets["closers", "orders", 0] == 0


async def test_worker_threads_are_no_more_than_allowed_and_end_when_they_are_closed() -> None:
    workers = WorkerThreads("mqclient test", 3)
    assert own_threads() == []
    together = threading.Barrier(3, timeout=WAIT_S)
    await asyncio.gather(*(workers.run(together.wait) for _ in range(6)))
    assert own_threads() == [f"mqclient test {number}" for number in range(3)]
    with pytest.raises(ZeroDivisionError):
        await workers.run(lambda: 1 // 0)
    workers.close(WAIT_S)
    assert own_threads() == []
    with pytest.raises(IllegalStateError, match="told to end"):
        await workers.run(print)


@pytest.mark.parametrize(
    ("face", "inner", "without"),
    [
        (SyncAdmin, Admin, set()),
        (SyncProducer, Producer, {"check_transaction", "in_flight"}),
        (SyncTransactionProducer, TransactionProducer, {"check_transaction", "in_flight"}),
        (
            SyncPushConsumer,
            PushConsumer,
            {
                "close_listener_threads",
                "consume_directly",
                "consumer_data",
                "in_flight",
                "persist_offsets",
                "rebalance_now",
                "reset_offsets",
                "running_info",
                "session_opened",
            },
        ),
    ],
)
def test_a_face_has_what_its_asyncio_class_has(face: type, inner: type, without: set[str]) -> None:
    """`without` is what the client instance asks of them."""
    public = {name for name in dir(inner) if not name.startswith("_")} - without
    assert public <= set(dir(face))
    for name in public - {"queues", "state", "start", "shutdown", "register_message_listener"}:
        theirs, ours = (inspect.signature(getattr(one, name)).parameters for one in (inner, face))
        assert [*theirs.items()][1:] == [*ours.items()][1:], name
    assert set(inspect.signature(inner).parameters) == set(inspect.signature(face).parameters)
