"""The machine's own place in the network."""

from __future__ import annotations

import socket

# An address of documentation networks (RFC 5737). Connecting a datagram socket sends nothing: it only picks the route.
_SOMEWHERE_ELSE = ("192.0.2.1", 9)
_NO_ADDRESS = "0.0.0.0"  # noqa: S104 - nothing is bound to it: some systems say so when there is no route
LOOPBACK_IPV4 = "127.0.0.1"


def own_ipv4() -> str:
    """The IPv4 address with which this machine reaches others; the loopback address when it reaches nobody."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_SOMEWHERE_ELSE)
            address = str(probe.getsockname()[0])
    except OSError:  # no route, or no IPv4 at all
        return LOOPBACK_IPV4
    return LOOPBACK_IPV4 if address == _NO_ADDRESS else address
