"""What a processor refuses, and what the disk refuses, as an answer of the method's own type; and room for answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from hourglass.mq.v1 import common_pb2
from mq_broker.core.limits import RESPONSE_BYTES, RESPONSE_COPIES, RefusedError
from mq_broker.processor.long_polling import ResponseMemory, Share
from mq_broker.processor.topic_administration import code_of
from mq_broker.store.errors import StoreError

ServiceT = TypeVar("ServiceT")
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

UnaryMethod = Callable[[ServiceT, RequestT, Any], Awaitable[ResponseT]]


def answering(
    response_type: Callable[..., ResponseT],
) -> Callable[[UnaryMethod[ServiceT, RequestT, ResponseT]], UnaryMethod[ServiceT, RequestT, ResponseT]]:
    """Let a method raise RefusedError, StoreError and OSError: they become answers with a code and a sentence."""

    def decorate(method: UnaryMethod[ServiceT, RequestT, ResponseT]) -> UnaryMethod[ServiceT, RequestT, ResponseT]:
        @wraps(method)
        async def answered(service: ServiceT, request: RequestT, context: Any) -> ResponseT:
            try:
                return await method(service, request, context)
            except RefusedError as error:
                return response_type(code=error.code, remark=str(error))
            except StoreError as error:
                return response_type(code=code_of(error), remark=str(error))
            except OSError as error:
                return response_type(code=common_pb2.SYSTEM_ERROR, remark=f"the disk has refused: {error}")

        return answered

    return decorate


async def room(memory: ResponseMemory, context: Any) -> Share:
    """Room for the response to a unary call, until the client has it."""
    share = memory.share(context.peer())
    context.add_done_callback(lambda _: share.close())
    await share.reserve()
    return share


def within_memory(
    method: UnaryMethod[ServiceT, RequestT, ResponseT],
) -> UnaryMethod[ServiceT, RequestT, ResponseT]:
    """Build a response of any length only when there is room, as those to consumers are; the service has it."""

    @wraps(method)
    async def built(service: ServiceT, request: RequestT, context: Any) -> ResponseT:
        share = await room(cast(Any, service).response_memory, context)
        response = await method(service, request, context)
        share.give_back(RESPONSE_BYTES - RESPONSE_COPIES * cast(Message, response).ByteSize())
        return response

    return built
