"""The queue as a FastAPI application sees it: declared beside the routes, alive in the application's lifespan.

Invariants: producers start before consumers, and are shut down after them, so that a handler can always send; a start
that fails shuts down what had been started; one MQ lives one life at a time, and may have any number one after another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import Generic, TypedDict, TypeVar, Unpack

from fastapi import FastAPI, HTTPException

from mqclient.admin import Admin
from mqclient.config import ClientConfig, ProducerConfig
from mqclient.consumer.push_consumer import PushConsumer
from mqclient.errors import IllegalArgumentError, IllegalStateError, MQClientError
from mqclient.fastapi.handlers import (
    ConsumerOptions,
    DeclaredConsumer,
    JsonSerializer,
    MessageHandler,
    MessageHandlers,
    Serializer,
    checked_options,
    endpoint_of,
    install_error_handlers,
)
from mqclient.message import Message
from mqclient.producer.producer import Producer
from mqclient.producer.transaction_producer import TransactionListener, TransactionProducer

logger = logging.getLogger("mqclient.fastapi")

ProducerT_co = TypeVar("ProducerT_co", bound=Producer, covariant=True)

HandlerT = TypeVar("HandlerT", bound=MessageHandler)
AppT = TypeVar("AppT", bound=FastAPI)
ProducerT = TypeVar("ProducerT", bound=Producer)
StateT = TypeVar("StateT")


class ProducerDependency(Generic[ProducerT_co]):
    """What `Depends` takes. There is one for each group, so that it is also the key for `app.dependency_overrides`."""

    def __init__(self, group: str, make: Callable[[], ProducerT_co]) -> None:
        """`make` makes a producer for one life of the application."""
        self.group = group
        self._make = make
        self._running: ProducerT_co | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self) -> ProducerT_co:
        """The running producer. Raises IllegalStateError outside the lifespan, and on another event loop than its."""
        if self._running is None:
            raise IllegalStateError(
                f"the producer {self.group} runs inside the application's lifespan only; httpx's ASGITransport enters"
                " none: put `async with mq.lifespan(app):` around the client"
            )
        if asyncio.get_running_loop() is not self._loop:
            raise IllegalStateError(
                f"the producer {self.group} runs on another event loop than this request, which would wait forever;"
                " starlette's TestClient has a loop of its own: use httpx.AsyncClient with httpx.ASGITransport(app)"
                " inside `async with mq.lifespan(app):`"
            )
        return self._running

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """One life of it. Raises as its start does."""
        async with self._make() as producer:
            self._running, self._loop = producer, asyncio.get_running_loop()
            try:
                yield
            finally:
                self._running = None


class MessageFields(TypedDict, total=False):
    """Message's fields beside topic and body."""

    tag: str | None
    keys: str | Sequence[str]
    properties: Mapping[str, str] | None
    delay_level: int
    delay_ms: int
    deliver_at: datetime | None
    flag: int
    wait_store_msg_ok: bool


class MQ:
    """Declares producers and consumers; `lifespan` runs them.

    What is declared while it runs would never start, so that raises IllegalStateError; so does entering a lifespan
    while another one of the same MQ runs. `url` may be set until then. `serializer` makes bodies of values, and values
    of bodies: JSON by Pydantic unless it is given.
    """

    def __init__(
        self, url: str, *, client_config: ClientConfig | None = None, serializer: Serializer | None = None
    ) -> None:
        self.url = url
        self._serializer = serializer or JsonSerializer()
        self._client_config = client_config
        self._producers: dict[str, ProducerDependency[Producer]] = {}
        self._consumers: dict[str, DeclaredConsumer] = {}
        self._handlers = MessageHandlers()
        self._is_running = False

    # ----------------------------------------------------------------------------------------------- declarations

    def producer(self, group: str, *, producer_config: ProducerConfig | None = None) -> ProducerDependency[Producer]:
        """The dependency on the producer of `group`: `Annotated[Producer, Depends(mq.producer("shop"))]`.

        The same one however often it is asked for; a configuration can only be given the first time. Raises
        IllegalArgumentError when it is given later.
        """
        known = self._producers.get(group)
        if known is not None and producer_config is None:
            return known

        def make() -> Producer:
            return Producer(group, self.url, client_config=self._client_config, producer_config=producer_config)

        return self._declare(ProducerDependency(group, make))

    def transaction_producer(
        self,
        group: str,
        transaction_listener: TransactionListener,
        *,
        producer_config: ProducerConfig | None = None,
    ) -> ProducerDependency[TransactionProducer]:
        """The dependency on a producer whose checks `transaction_listener` answers; keep it, it is made once.

        Raises IllegalArgumentError when the group is declared already.
        """

        def make() -> TransactionProducer:
            return TransactionProducer(
                group,
                self.url,
                transaction_listener=transaction_listener,
                client_config=self._client_config,
                producer_config=producer_config,
            )

        return self._declare(ProducerDependency(group, make))

    def consumer(
        self, group: str, topic: str, expression: str = "*", **options: Unpack[ConsumerOptions]
    ) -> Callable[[HandlerT], HandlerT]:
        """Decorates a handler of a consumer group; the function itself stays what it is.

        One parameter is annotated MessageExt, or one with a Pydantic model, which is then read from the body, or one
        with each; the others are FastAPI's: `Depends`, `Request`, `BackgroundTasks`. What it returns from is consumed.
        When it raises, also an HTTPException, or a dependency does, also on the way out, or the body is no such model,
        the message is consumed again later. A message may come more than once: mqclient.sqlalchemy.InboxTable.

        A group may have several handlers, of different topics or tags. With `orderly=True` each queue is consumed in
        its order: what follows a message that fails waits.

        Raises IllegalArgumentError for unknown options, for messages that another handler of the group gets, and for
        another kind of function.
        """
        checked = checked_options(group, {**options})

        def declare(handler: HandlerT) -> HandlerT:
            self._require_not_running()
            endpoint = endpoint_of(handler, self._serializer)
            declared = self._consumers.get(group) or DeclaredConsumer(group, checked)
            self._handlers.add(declared.add(topic, expression, checked), endpoint)
            self._consumers[group] = declared
            return handler

        return declare

    def message(self, topic: str, body: object, **fields: Unpack[MessageFields]) -> Message:
        """A Message whose body the serializer makes: `mq.message("orders", OrderPaid(order_id="17"), tag="paid")`."""
        return Message(topic, self._serializer.encode(body), **fields)

    def install_error_handlers(self, app: FastAPI) -> None:
        """Have routes answer 503 with Retry-After when nothing was stored, and 504 when the outcome is unknown:
        problem+json."""
        install_error_handlers(app)

    # --------------------------------------------------------------------------------------------------- the life

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """For `FastAPI(lifespan=mq.lifespan)`, for `async with` inside another lifespan, and for tests.

        Needs no broker to be there. Raises IllegalStateError when it runs already, and as PushConsumer.start does.
        """
        self._require_not_running()
        self._is_running = True
        self._handlers.join(app)
        try:
            async with AsyncExitStack() as stack:
                for producer in self._producers.values():
                    await stack.enter_async_context(producer.running())
                consumers: list[PushConsumer] = []
                stack.push_async_callback(_shut_down, consumers)
                for declared in self._consumers.values():
                    consumer = declared.make(self.url, self._client_config, self._handlers.handle)
                    await consumer.start()
                    consumers.append(consumer)
                yield
        finally:
            self._is_running = False

    def around(
        self, lifespan: Callable[[AppT], AbstractAsyncContextManager[StateT]]
    ) -> Callable[[AppT], AbstractAsyncContextManager[StateT]]:
        """`lifespan` with this one inside: what it opens is there before the consumers start, until they have ended.

        What `lifespan` yields is the application's state, as without this one.
        """

        @asynccontextmanager
        async def both(app: AppT) -> AsyncIterator[StateT]:
            async with lifespan(app) as state, self.lifespan(app):
                yield state

        return both

    # ----------------------------------------------------------------------------------------------------- health

    async def problems(self) -> list[str]:
        """Why messages cannot be sent or consumed now, as sentences; none when the queue answers."""
        if not self._is_running:
            return ["the application's lifespan has not begun, or is over"]
        try:
            async with Admin(self.url, client_config=self._client_config) as admin:
                await admin.broker_statuses()
        except MQClientError as error:
            return [str(error)]
        return []

    async def ready(self) -> None:
        """A dependency for a readiness route: `@app.get("/ready", dependencies=[Depends(mq.ready)])`.

        Raises HTTPException 503 with the problems.
        """
        if problems := await self.problems():
            raise HTTPException(503, detail=problems)

    # ----------------------------------------------------------------------------------------------------- inside

    def _declare(self, dependency: ProducerDependency[ProducerT]) -> ProducerDependency[ProducerT]:
        self._require_not_running()
        if dependency.group in self._producers:
            raise IllegalArgumentError(
                f"producer {dependency.group} is declared already, with the configuration that it has"
            )
        self._producers[dependency.group] = dependency
        return dependency

    def _require_not_running(self) -> None:
        if self._is_running:
            raise IllegalStateError("this MQ runs already; declare before its lifespan, and enter one at a time")


async def _shut_down(consumers: list[PushConsumer]) -> None:
    """All at once: together they may take as long as one of them."""
    results = await asyncio.gather(*(consumer.shutdown() for consumer in consumers), return_exceptions=True)
    for consumer, result in zip(consumers, results, strict=True):
        if result is not None:
            logger.error("consumer %s did not shut down in order", consumer.group, exc_info=result)
