"""What a processor refuses, and what the disk refuses, as an answer of the method's own type."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

from hourglass.mq.v1 import common_pb2
from mq_broker.core.refusals import RefusedError
from mq_broker.processor.refusals import code_of
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
