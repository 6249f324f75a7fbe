"""The errors of every service, split by what the caller should do. A service derives its own errors from these.

ServiceError
├── RejectedError                the request cannot be carried out as it stands; repeating it changes nothing
│   ├── KeyReusedError
│   ├── InvalidCursorError
│   └── ConsumedBeforeError
└── TryAgainError                nothing was changed; the same request may succeed a moment later
    ├── RequestInFlightError
    ├── StorageUnavailableError
    ├── PublishError
    ├── QueueUnreachableError
    └── TransactionGivenUpError

MalformedMessageError            a message that no retry mends
"""

from __future__ import annotations

import warnings
from typing import Any


class ServiceError(Exception):
    """Every error that a service raises on purpose; its text is a sentence for the person who made the request."""


class RejectedError(ServiceError):
    """The request cannot be carried out as it stands."""


class TryAgainError(ServiceError):
    """Nothing was changed; the same request may succeed a moment later."""


class KeyReusedError(RejectedError):
    """The idempotency key belongs to an earlier request with another payload."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the idempotency key {key!r} was used for another payload; a new request needs a new key")


class InvalidCursorError(RejectedError):
    """The cursor is not one that a list answered."""

    def __init__(self, cursor: str) -> None:
        super().__init__(f"{cursor!r} is not a cursor; use next_cursor of the page before, or none for the first page")


class ConsumedBeforeError(RejectedError):
    """The message was carried out before; the only effect is that what it would do again is rolled back."""

    def __init__(self, consumer_group: str, business_key: str) -> None:
        super().__init__(f"{consumer_group} has consumed {business_key!r} before")


class RequestInFlightError(TryAgainError):
    """A request with this idempotency key is being carried out right now."""

    def __init__(self, key: str) -> None:
        super().__init__(f"a request with the idempotency key {key!r} is being carried out; repeat it for its answer")


class StorageUnavailableError(TryAgainError):
    """The database does not answer; whatever was begun is rolled back."""


class PublishError(TryAgainError):
    """The queue did not take the message, or did not say that it did."""


class QueueUnreachableError(TryAgainError):
    """The queue did not answer an operator's question."""


class TransactionGivenUpError(TryAgainError):
    """The queue asked about the transaction before it was committed, was told that there is none, and dropped it."""

    def __init__(self, transaction_id: str) -> None:
        super().__init__(f"the transaction {transaction_id} took too long and was given up; nothing of it was kept")


class MalformedMessageError(ValueError):
    """A message body that is not what its topic promises; no retry mends it."""


def __getattr__(name: str) -> Any:
    if name != "RefusedError":  # the name before; it goes with the next version
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.RefusedError is {__name__}.RejectedError now", DeprecationWarning, stacklevel=2)
    return RejectedError
