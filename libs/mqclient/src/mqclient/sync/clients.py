"""Producers, consumers and admins without `await`."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from mqclient.admin import Admin
from mqclient.config import ClientConfig, ProducerConfig
from mqclient.consumer.listener import ConsumeMessageHook, MessageListenerConcurrently, MessageListenerOrderly
from mqclient.consumer.pull_consumer import PullConsumer
from mqclient.consumer.pulling import ALL, MessageSelector
from mqclient.consumer.push_consumer import PushConsumer
from mqclient.lifecycle import WorkerThreads
from mqclient.message import LocalTransactionState, Message, MessageExt, MessageQueue, TransactionSendResult
from mqclient.producer.producer import Producer
from mqclient.producer.transaction_producer import CHECKS_AT_ONCE, TransactionProducer
from mqclient.sync.faces import CallerThread, SyncFacade, at_once, blocking, iterating, made_like

CHECKS_TIMEOUT_S = 1.0  # how long a shutdown waits for the threads whose checks it has stopped waiting for

LISTENERS_TIMEOUT_S = 1.0  # how long a shutdown waits for the threads whose listeners it has stopped waiting for


class SyncProducer(SyncFacade[Producer]):
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
        """The outcome of `message.transaction_id`. Runs in a thread of its own. As in TransactionListener."""


class SyncTransactionProducer(SyncFacade[TransactionProducer]):
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


class SyncPushConsumer(SyncFacade[PushConsumer]):
    """PushConsumer for programs without an event loop; its listener is a plain function, and runs in threads."""

    @made_like(PushConsumer)
    def __init__(self, inner: PushConsumer) -> None:
        super().__init__(inner)

    def subscribe(self, topic: str, expression: str | MessageSelector | None = ALL) -> None:
        """As PushConsumer.subscribe: before the start."""
        self._inner.subscribe(topic, expression)

    def register_message_listener(self, listener: MessageListenerConcurrently) -> None:
        """As PushConsumer.register_message_listener: before the start."""
        self._inner.register_message_listener(listener)

    def register_message_listener_orderly(self, listener: MessageListenerOrderly) -> None:
        """As PushConsumer.register_message_listener_orderly: before the start."""
        self._inner.register_message_listener_orderly(listener)

    def register_consume_message_hook(self, hook: ConsumeMessageHook) -> None:
        """As PushConsumer.register_consume_message_hook; the hook is called on the shared thread."""
        self._inner.register_consume_message_hook(hook)

    def unsubscribe(self, topic: str) -> None:
        """As PushConsumer.unsubscribe: before the start, or while running."""
        if self._thread is None:
            self._inner.unsubscribe(topic)
        else:
            self._unsubscribe(topic)

    _unsubscribe = at_once(PushConsumer.unsubscribe)
    wait_assigned = blocking(PushConsumer.wait_assigned)
    suspend = at_once(PushConsumer.suspend)
    resume = at_once(PushConsumer.resume)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member consumes now. Raises IllegalStateError unless running."""

        async def of_the_loop() -> list[MessageQueue]:
            return self._inner.queues

        return self._run("queues", of_the_loop)

    def _close_threads(self) -> None:
        self._inner.close_listener_threads(LISTENERS_TIMEOUT_S)


class SyncPullConsumer(SyncFacade[PullConsumer]):
    """Every call of PullConsumer, for any number of threads."""

    @made_like(PullConsumer)
    def __init__(self, inner: PullConsumer) -> None:
        super().__init__(inner)

    assign = at_once(PullConsumer.assign)
    commit = blocking(PullConsumer.commit)
    commit_all = blocking(PullConsumer.commit_all)
    committed = blocking(PullConsumer.committed)
    fetch_subscribe_message_queues = blocking(PullConsumer.fetch_subscribe_message_queues)
    max_offset = blocking(PullConsumer.max_offset)
    min_offset = blocking(PullConsumer.min_offset)
    pause = at_once(PullConsumer.pause)
    poll = blocking(PullConsumer.poll)
    position = at_once(PullConsumer.position)
    pull = blocking(PullConsumer.pull)
    pull_frame = blocking(PullConsumer.pull_frame)
    reset = blocking(PullConsumer.reset)
    resume = at_once(PullConsumer.resume)
    search_offset = blocking(PullConsumer.search_offset)
    seek = at_once(PullConsumer.seek)
    seek_to_begin = blocking(PullConsumer.seek_to_begin)
    seek_to_end = blocking(PullConsumer.seek_to_end)
    seek_to_time = blocking(PullConsumer.seek_to_time)


class SyncAdmin(SyncFacade[Admin]):
    """Every call of Admin."""

    @made_like(Admin)
    def __init__(self, inner: Admin) -> None:
        super().__init__(inner)

    away_brokers = blocking(Admin.away_brokers)
    backup_store = blocking(Admin.backup_store)
    broker_config = blocking(Admin.broker_config)
    broker_status = blocking(Admin.broker_status)
    broker_statuses = blocking(Admin.broker_statuses)
    cluster_list = blocking(Admin.cluster_list)
    consume_stats = blocking(Admin.consume_stats)
    consume_message_directly = blocking(Admin.consume_message_directly)
    consumer_connections = blocking(Admin.consumer_connections)
    consumer_running_info = blocking(Admin.consumer_running_info)
    dead_letter_marks = blocking(Admin.dead_letter_marks)
    dead_letters = iterating(Admin.dead_letters)
    decide_transaction = blocking(Admin.decide_transaction)
    delete_subscription_group = blocking(Admin.delete_subscription_group)
    delete_topic = blocking(Admin.delete_topic)
    edit_dead_letter = blocking(Admin.edit_dead_letter)
    explain = blocking(Admin.explain)
    ha_status = blocking(Admin.ha_status)
    list_transactions = blocking(Admin.list_transactions)
    preview_reset_by_time = blocking(Admin.preview_reset_by_time)
    pull = blocking(Admin.pull)
    query_message = blocking(Admin.query_message)
    query_message_by_unique_key = blocking(Admin.query_message_by_unique_key)
    queue_offsets = blocking(Admin.queue_offsets)
    read_queue = iterating(Admin.read_queue)
    recall_message = blocking(Admin.recall_message)
    replay_dead_letter = blocking(Admin.replay_dead_letter)
    reschedule_message = blocking(Admin.reschedule_message)
    reset_offset_by_queue = blocking(Admin.reset_offset_by_queue)
    reset_offset_by_time = blocking(Admin.reset_offset_by_time)
    search_offset = blocking(Admin.search_offset)
    subscription_groups = blocking(Admin.subscription_groups)
    switch_master = blocking(Admin.switch_master)
    topic_configs = blocking(Admin.topic_configs)
    topic_list = blocking(Admin.topic_list)
    topic_route = blocking(Admin.topic_route)
    topic_stats = blocking(Admin.topic_stats)
    transaction = blocking(Admin.transaction)
    update_subscription_group = blocking(Admin.update_subscription_group)
    update_topic = blocking(Admin.update_topic)
    update_topic_perm = blocking(Admin.update_topic_perm)
    view_message = blocking(Admin.view_message)
