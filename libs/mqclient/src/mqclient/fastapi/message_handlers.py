"""What runs the handlers of messages, with FastAPI's own dependencies.

The handlers are path operations of an inner application that has no address: a message is its request. So a handler's
parameters are resolved as those of a route are, with `Depends`, dependencies that yield, and overrides.

Invariant: `handle` returns only after the handler and the exit code of its dependencies have ended well, and otherwise
raises what they raised: a commit that fails while a dependency is left makes the message come again.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, NoReturn, cast, get_type_hints

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from mqclient.errors import IllegalArgumentError
from mqclient.fastapi.serializer import Serializer
from mqclient.message import MessageExt

# A coroutine function, or a plain one, which runs in a thread. It returns nothing; when it raises, the message comes
# again.
MessageHandler = Callable[..., Awaitable[None]] | Callable[..., None]

_MESSAGE = "mqclient.message"


class MessageHandlers:
    """The handlers by their keys, which are paths without the slash in front."""

    def __init__(self) -> None:
        # A message is no request: its handler runs in the span of the message, and the metrics of HTTP don't count it.
        self._inner = FastAPI(openapi_url=None, telemetry={"tracing": False, "metrics": False, "logs": False})
        for kind in (HTTPException, RequestValidationError):  # FastAPI would answer them, and nobody reads the answer
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
