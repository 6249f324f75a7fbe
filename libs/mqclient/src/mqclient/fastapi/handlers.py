"""What runs the handlers of messages, with FastAPI's own dependencies, for the consumer groups that were declared.

The handlers are path operations of an inner application that has no address: a message is its request. So a handler's
parameters are resolved as those of a route are, with `Depends`, dependencies that yield, and overrides. Each life of
the application makes a consumer of a declared group.

Invariant: `handle` returns only after the handler and the exit code of its dependencies have ended well, and otherwise
raises what they raised: a commit that fails while a dependency is left makes the message come again.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, NoReturn, Protocol, TypedDict, cast, get_type_hints

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, TypeAdapter
from starlette.exceptions import HTTPException

from mqclient.config import ClientConfig, ConsumerConfig
from mqclient.consumer.listener import ConsumeFromWhere, ConsumeOrderlyStatus, ConsumeStatus, MessageModel
from mqclient.consumer.pulling import ALL, OR, Subscription, parse_subscription
from mqclient.consumer.push_consumer import PushConsumer
from mqclient.consumer.rebalance import AllocateMessageQueueStrategy
from mqclient.errors import IllegalArgumentError, OutcomeUnknownError, RetryableError
from mqclient.message import MessageExt

logger = logging.getLogger("mqclient.fastapi")

# A coroutine function, or a plain one, which runs in a thread. It returns nothing; when it raises, the message comes
# again.
MessageHandler = Callable[..., Awaitable[None]] | Callable[..., None]

_MESSAGE = "mqclient.message"

# The key of a handler and a message for it.
MessageHandling = Callable[[str, MessageExt], Awaitable[None]]

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1


class Serializer(Protocol):
    """Both directions; what `encode` makes, `decode` reads."""

    def encode(self, body: object) -> bytes:
        """The body as it travels."""

    def decode(self, body: bytes, type_: Any) -> Any:
        """A value of `type_`, which is what a handler's parameter is annotated with. Raises ValueError for others."""


class JsonSerializer:
    """JSON as Pydantic writes and validates it. `decode` raises pydantic.ValidationError, a ValueError."""

    def encode(self, body: object) -> bytes:
        return TypeAdapter(type(body)).dump_json(body)

    def decode(self, body: bytes, type_: Any) -> Any:
        return TypeAdapter(type_).validate_json(body)


class MessageHandlers:
    """The handlers by their keys, which are paths without the slash in front."""

    def __init__(self) -> None:
        # A message is no request: its handler runs in the span of the message, and the metrics of HTTP don't count it.
        self._inner = FastAPI(openapi_url=None, telemetry={"tracing": False, "metrics": False, "logs": False})
        for kind in (HTTPException, RequestValidationError):  # FastAPI would answer them, and nothing reads the answer
            self._inner.add_exception_handler(kind, _raise)

    def add(self, key: str, endpoint: Callable[..., Any]) -> None:
        """Have `endpoint_of` a handler called by `key`."""
        self._inner.add_api_route(_path(key), endpoint, methods=["POST"], status_code=204, response_class=Response)

    def join(self, app: FastAPI) -> None:
        """Share the application's state and its overrides of dependencies."""
        self._inner.state = app.state
        self._inner.dependency_overrides = app.dependency_overrides

    async def handle(self, key: str, message: MessageExt) -> None:
        """Give `message` to the handler of `key`. Raises what the handler and its dependencies raise."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "mq",
            "path": _path(key),
            "query_string": b"",
            "headers": [],
            _MESSAGE: message,
        }
        await self._inner(scope, _receive, _send)


def _path(key: str) -> str:
    return f"/{key}"


async def _receive() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _send(event: Mapping[str, Any]) -> None:
    """The answer says nothing that an exception would not have said."""


async def _raise(_request: Request, error: Exception) -> NoReturn:
    raise error


async def _message_of(request: Request) -> MessageExt:  # async, because FastAPI hands a plain function to a thread
    return cast("MessageExt", request.scope[_MESSAGE])


def endpoint_of(handler: MessageHandler, serializer: Serializer) -> Callable[..., Any]:
    """The handler as FastAPI sees it: its message and its body are dependencies.

    Raises IllegalArgumentError unless it has one parameter that is annotated MessageExt, one that is annotated with a
    Pydantic model, or both.
    """
    name = getattr(handler, "__qualname__", repr(handler))
    endpoint: Any
    if inspect.iscoroutinefunction(handler):

        async def endpoint(**arguments: Any) -> None:
            _require_nothing(name, await handler(**arguments))

    else:

        def endpoint(**arguments: Any) -> None:
            _require_nothing(name, handler(**arguments))

    endpoint.__signature__ = _signature(name, handler, serializer)
    return cast("Callable[..., Any]", endpoint)


def _signature(name: str, handler: MessageHandler, serializer: Serializer) -> inspect.Signature:
    hints = get_type_hints(handler, include_extras=True) if inspect.isroutine(handler) else {}
    signature = inspect.signature(handler)
    parameters = [one.replace(annotation=hints.get(one.name, one.annotation)) for one in signature.parameters.values()]
    messages = [one.name for one in parameters if one.annotation is MessageExt]
    bodies = [one.name for one in parameters if _is_model(one.annotation)]
    if len(messages) > 1 or len(bodies) > 1 or not messages + bodies:
        raise IllegalArgumentError(
            f"{name} has {len(messages)} parameters annotated MessageExt and {len(bodies)} annotated with a Pydantic"
            " model; a handler of messages is a function with one of either kind, or one of each"
        )

    def resolved(parameter: inspect.Parameter) -> inspect.Parameter:
        annotation: Any = parameter.annotation
        if parameter.name in messages:
            annotation = Annotated[MessageExt, Depends(_message_of)]
        elif parameter.name in bodies:
            annotation = Annotated[annotation, Depends(_reader_of(annotation, serializer))]
        return parameter.replace(annotation=annotation)

    return signature.replace(parameters=[resolved(one) for one in parameters], return_annotation=None)


def _is_model(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _reader_of(type_: Any, serializer: Serializer) -> Callable[[Request], Awaitable[Any]]:
    async def body_of(request: Request) -> Any:
        return serializer.decode((await _message_of(request)).body, type_)

    return body_of


def _require_nothing(name: str, result: object) -> None:
    if result is not None:
        raise TypeError(
            f"{name} returned {result!r}; a handler of messages returns nothing, and raises to have the message again"
        )


class ConsumerOptions(TypedDict, total=False):
    """What a consumer may be told beside group, topic and expression: PushConsumer's own arguments and defaults.

    With `orderly` each queue is consumed in its order.
    """

    consumer_config: ConsumerConfig
    consume_from_where: ConsumeFromWhere
    message_model: MessageModel
    allocate_strategy: AllocateMessageQueueStrategy
    orderly: bool


def checked_options(group: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options. Raises IllegalArgumentError for unknown ones, and for batches.

    A handler gets one message, and only that one can come again.
    """
    unknown = sorted(options.keys() - ConsumerOptions.__annotations__.keys())
    if unknown:
        raise IllegalArgumentError(
            f"consumer {group} has no option {', '.join(unknown)}; there are"
            f" {', '.join(ConsumerOptions.__annotations__)}"
        )
    if not isinstance(options.get("orderly", False), bool):
        raise IllegalArgumentError(f"orderly of consumer {group} is True or False, not {options['orderly']!r}")
    config = options.get("consumer_config")
    if config is not None and config.consume_message_batch_max_size != 1:
        raise IllegalArgumentError(
            f"consumer {group} gets batches of {config.consume_message_batch_max_size} messages;"
            " consume_message_batch_max_size has to be 1 for a handler of one message"
        )
    return options


@dataclass(slots=True)
class DeclaredConsumer:
    """A group with its handlers. Invariant: a message of a topic and a tag belongs to one of them at most."""

    group: str
    options: dict[str, Any]
    _handled: dict[str, Subscription] = field(default_factory=dict)  # by the handler's key

    def add(self, topic: str, expression: str, options: dict[str, Any]) -> str:
        """One more handler, which is called by the key that is returned.

        Options are given with the first handler of a group; a later one may repeat them. Raises IllegalArgumentError
        for others, and when messages would belong to two handlers.
        """
        subscription = parse_subscription(topic, expression)
        if self._handled and options and options != self.options:
            raise IllegalArgumentError(
                f"consumer {self.group} has other options already; give them with its first handler"
            )
        for other in self._handled.values():
            shared = sorted(subscription.tags & other.tags)
            if other.topic == topic and (shared or not subscription.tags or not other.tags):
                what = f"tag {', '.join(shared)}" if shared else f"topic {topic}"
                raise IllegalArgumentError(
                    f"consumer {self.group} has a handler already for {what}; handlers of one group have different"
                    " topics or tags, and another group gets the same messages as well"
                )
        key = f"{self.group}/{len(self._handled)}"
        self._handled[key] = subscription
        return key

    def make(self, url: str, client_config: ClientConfig | None, handle: MessageHandling) -> PushConsumer:
        """A consumer that is not started yet: what `handle(key, message)` returns from is consumed."""
        options = dict(self.options)
        is_orderly = options.pop("orderly", False)
        consumer = PushConsumer(self.group, url, client_config=client_config, **options)
        for topic in {one.topic for one in self._handled.values()}:
            tags = sorted({tag for one in self._handled.values() if one.topic == topic for tag in one.tags})
            consumer.subscribe(topic, f" {OR} ".join(tags) or ALL)

        async def handled(messages: list[MessageExt]) -> None:
            for message in messages:
                await handle(self._key_of(message), message)  # an exception is "later", and the consumer logs it

        async def listener(messages: list[MessageExt]) -> ConsumeStatus:
            await handled(messages)
            return ConsumeStatus.CONSUME_SUCCESS

        async def orderly_listener(messages: list[MessageExt]) -> ConsumeOrderlyStatus:
            await handled(messages)
            return ConsumeOrderlyStatus.SUCCESS

        if is_orderly:
            consumer.register_message_listener_orderly(orderly_listener)
        else:
            consumer.register_message_listener(listener)
        return consumer

    def _key_of(self, message: MessageExt) -> str:
        for key, subscription in self._handled.items():
            if subscription.topic == message.topic and subscription.matches(message):
                return key
        raise LookupError(f"consumer {self.group} has no handler for topic {message.topic} and tag {message.tag}")


def install_error_handlers(app: FastAPI) -> None:
    """Have routes of `app` answer RetryableError with 503 and Retry-After, OutcomeUnknownError with 504.

    The error itself goes to the log, because it may name brokers. Other errors of the queue stay mistakes (500).
    """
    app.add_exception_handler(RetryableError, _not_stored)
    app.add_exception_handler(OutcomeUnknownError, _unknown)


async def _not_stored(request: Request, error: Exception) -> JSONResponse:
    detail = "the message queue has stored nothing; send the same request again"
    return _problem(request, error, HTTPStatus.SERVICE_UNAVAILABLE, detail, {"Retry-After": str(RETRY_AFTER_S)})


async def _unknown(request: Request, error: Exception) -> JSONResponse:
    detail = "the message queue gave no answer in time: the message may be stored, and it may not"
    return _problem(request, error, HTTPStatus.GATEWAY_TIMEOUT, detail)


def _problem(
    request: Request, error: Exception, status: HTTPStatus, detail: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    logger.warning("%s %s is answered %d: %s", request.method, request.url.path, status, error)
    body = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": detail}
    return JSONResponse(body, status, headers, media_type=MEDIA_TYPE)
