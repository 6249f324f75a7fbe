"""How many topics or groups there may be, and how many of them one client may have made by naming them.

A client is whatever ends with its connection, so that one program that names ever new topics is stopped long before
it has used up what all may have; a program that connects anew begins anew, and the total holds for it, too. What
exists already, also beyond a limit, stays and works.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from mq_broker.core.limits import COUNTED_CLIENTS_MAX


class TooManyError(ValueError):
    """A topic or group would be one too many; the message names the limit and its key. Nothing has changed."""


@dataclass(frozen=True, slots=True)
class CountLimits:
    """`total` of one kind, and those that one client may have made; the keys are the configuration's."""

    kind: str
    total: int
    total_key: str
    per_client: int
    per_client_key: str


class Creations:
    """What clients have made of one kind."""

    def __init__(self, limits: CountLimits) -> None:
        self.limits = limits
        self._by_client: OrderedDict[str, int] = OrderedDict()  # the one that made something last is the last

    def check_total(self, count: int) -> None:
        """Raise TooManyError unless there may be one more than `count`."""
        limits = self.limits
        if count >= limits.total:
            raise TooManyError(
                f"this broker has {count} {limits.kind}s and makes no more: {limits.total_key}={limits.total}; "
                f"delete {limits.kind}s that are not needed, or raise the limit"
            )

    def check(self, count: int, client: str) -> None:
        """Raise TooManyError unless there may be one more than `count`, made by this client."""
        self.check_total(count)
        limits = self.limits
        if client and self._by_client.get(client, 0) >= limits.per_client:
            raise TooManyError(
                f"this connection has made {limits.per_client} {limits.kind}s by naming them and makes no more: "
                f"{limits.per_client_key}={limits.per_client}; an operator can create them (mqadmin)"
            )

    def made(self, client: str) -> None:
        """The client has made one; a client without a name is the broker itself, or an operator."""
        if not client:
            return
        self._by_client[client] = self._by_client.pop(client, 0) + 1
        if len(self._by_client) > COUNTED_CLIENTS_MAX:
            self._by_client.popitem(last=False)
