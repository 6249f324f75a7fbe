"""From a URL to its transport, through the entry-point group `mqclient.transports`."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from mqclient.errors import IllegalArgumentError, UnknownTransportError
from mqclient.transport.base import Transport

ENTRY_POINT_GROUP = "mqclient.transports"


def open_transport(url: str) -> Transport:
    """The transport of `scheme://rest`; its entry point is a function that takes the rest.

    Raises UnknownTransportError, or IllegalArgumentError for a rest that the transport cannot use.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise IllegalArgumentError(f"{url!r} is not a URL of the queue; write mq://host:port, several separated by ;")
    transport = _installed().get(scheme)
    if transport is None:
        known = ", ".join(sorted(_installed())) or "none"
        raise UnknownTransportError(f"no transport is installed for {scheme}://; there is: {known}")
    return cast("Transport", transport.load()(rest))


@cache
def _installed() -> dict[str, EntryPoint]:
    """By scheme; read once, because every file of every installed package is looked at for it."""
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
