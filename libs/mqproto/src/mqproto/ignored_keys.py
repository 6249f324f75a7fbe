"""RocketMQ's configuration keys that switch nothing here.

A file that ran RocketMQ starts Hourglass too: such a key is taken, and named once with the reason. Where a value asks
for something that Hourglass does not do and that somebody would miss, such as access control, it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mqproto.conf import ConfigError


@dataclass(frozen=True, slots=True)
class IgnoredKey:
    """Why a key has no effect. `allowed` are the values that ask for what holds here anyway; empty: any value."""

    reason: str
    allowed: frozenset[str] = frozenset()


def ignored(reason: str, names: str, *, allowed: str = "") -> dict[str, IgnoredKey]:
    """The table's rows for the keys in `names`, which share a reason; blanks separate names and values."""
    return {name: IgnoredKey(reason, frozenset(allowed.split())) for name in names.split()}


NETTY_KEYS: Mapping[str, IgnoredKey] = ignored(
    "gRPC takes the place of Netty and has no such setting",
    "serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads serverOnewaySemaphoreValue"
    " serverAsyncSemaphoreValue serverChannelMaxIdleTimeSeconds serverSocketSndBufSize serverSocketRcvBufSize"
    " serverSocketBacklog serverPooledByteBufAllocatorEnable useEpollNativeSelector writeBufferHighWaterMark"
    " writeBufferLowWaterMark clientWorkerThreads clientCallbackExecutorThreads clientOnewaySemaphoreValue"
    " clientAsyncSemaphoreValue connectTimeoutMillis channelNotActiveInterval clientChannelMaxIdleTimeSeconds"
    " clientSocketSndBufSize clientSocketRcvBufSize clientPooledByteBufAllocatorEnable clientCloseSocketIfTimeout",
) | ignored("connections are not encrypted", "useTLS", allowed="false")


def take_ignored(pairs: Mapping[str, str], table: Mapping[str, IgnoredKey]) -> tuple[dict[str, str], str]:
    """`pairs` without the keys of `table`, and a sentence that names those; empty when there are none.

    Raises ConfigError for a value that asks for something that is not done here.
    """
    found: dict[str, list[str]] = {}
    for name in table.keys() & pairs.keys():
        row = table[name]
        if row.allowed and pairs[name].lower() not in {value.lower() for value in row.allowed}:
            raise ConfigError(f"{name}={pairs[name]!r}: {row.reason}; allowed is {' or '.join(sorted(row.allowed))}")
        found.setdefault(row.reason, []).append(name)
    sentence = "; ".join(f"{', '.join(sorted(names))} ({reason})" for reason, names in sorted(found.items()))
    rest = {name: text for name, text in pairs.items() if name not in table}
    return rest, f"keys of RocketMQ that have no effect here: {sentence}" if found else ""
