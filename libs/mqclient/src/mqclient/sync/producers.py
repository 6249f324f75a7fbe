"""Producers without `await` (MISSION P1, P2, P3, P18, T1)."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from mqclient.config import ClientConfig, ProducerConfig
from mqclient.lifecycle import WorkerThreads
from mqclient.message import LocalTransactionState, Message, MessageExt, TransactionSendResult
from mqclient.producer.producer import Producer
from mqclient.producer.transaction_producer import CHECKS_AT_ONCE, TransactionProducer
from mqclient.sync.caller_thread import CallerThread
from mqclient.sync.faces import Face, at_once, blocking, made_like

CHECKS_TIMEOUT_S = 1.0  # how long a shutdown waits for the threads whose checks it has stopped waiting for


class SyncProducer(Face[Producer]):
    """Producer for any number of threads. Callbacks of `send_async` run in a thread of their own."""

    @made_like(Producer)
    def __init__(self, inner: Producer) -> None:
        super().__init__(inner)

    send = blocking(Producer.send)
    send_batch = blocking(Producer.send_batch)
    send_oneway = blocking(Producer.send_oneway)
    send_async = at_once(Producer.send_async)
    fetch_publish_message_queues = blocking(Producer.fetch_publish_message_queues)
    recall = blocking(Producer.recall)
    reschedule = blocking(Producer.reschedule)
    register_send_message_hook = at_once(Producer.register_send_message_hook)


class SyncTransactionListener(Protocol):
    """TransactionListener with plain functions."""

    def execute_local_transaction(self, message: Message, transaction_id: str, arg: Any) -> LocalTransactionState:
        """Do the local work, in the thread that has called `send_message_in_transaction`. As in TransactionListener."""

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """What has become of `message.transaction_id`? Runs in a thread of its own. As in TransactionListener."""


class SyncTransactionProducer(Face[TransactionProducer]):
    """TransactionProducer for any number of threads."""

    def __init__(
        self,
        group: str,
        url: str,
        *,
        transaction_listener: SyncTransactionListener,
        client_config: ClientConfig | None = None,
        producer_config: ProducerConfig | None = None,
    ) -> None:
        """As TransactionProducer, with a listener of plain functions."""
        self._checks = WorkerThreads("mqclient check", CHECKS_AT_ONCE)
        super().__init__(
            TransactionProducer(
                group,
                url,
                transaction_listener=_ListenerInThreads(transaction_listener, self._checks),
                client_config=client_config,
                producer_config=producer_config,
            )
        )

    send = blocking(TransactionProducer.send)
    send_batch = blocking(TransactionProducer.send_batch)
    send_oneway = blocking(TransactionProducer.send_oneway)
    send_async = at_once(TransactionProducer.send_async)
    fetch_publish_message_queues = blocking(TransactionProducer.fetch_publish_message_queues)
    recall = blocking(TransactionProducer.recall)
    reschedule = blocking(TransactionProducer.reschedule)
    register_send_message_hook = at_once(TransactionProducer.register_send_message_hook)

    def send_message_in_transaction(
        self,
        message: Message,
        arg: Any = None,
        *,
        timeout: float | None = None,
        check_immunity_s: int | None = None,
    ) -> TransactionSendResult:
        """As TransactionProducer.send_message_in_transaction; the local transaction runs here, in the calling thread.

        KeyboardInterrupt before it ran means that it never will, and KeyboardInterrupt in it goes through it, as in any
        function: either way a check asks what has become of it.
        """
        caller = CallerThread()
        send = partial(
            self._inner.send_message_in_transaction,
            message,
            _ForTheCaller(caller, arg),
            timeout=timeout,
            check_immunity_s=check_immunity_s,
        )
        return self._run("send_message_in_transaction", send, caller.result_of)

    def _close_threads(self) -> None:
        self._checks.close(CHECKS_TIMEOUT_S)


class _ForTheCaller:
    """An argument on its way through the event loop, and the thread that waits for the result."""

    def __init__(self, caller: CallerThread, arg: Any) -> None:
        self.caller = caller
        self.arg = arg


class _ListenerInThreads:
    """Implements `TransactionListener` with one of plain functions."""

    def __init__(self, listener: SyncTransactionListener, checks: WorkerThreads) -> None:
        self._listener = listener
        self._checks = checks

    async def execute_local_transaction(
        self, message: Message, transaction_id: str, arg: _ForTheCaller
    ) -> LocalTransactionState:
        return await arg.caller.run(self._listener.execute_local_transaction, message, transaction_id, arg.arg)

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return await self._checks.run(self._listener.check_local_transaction, message)
