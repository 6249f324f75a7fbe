"""The machine's own place in the network."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Collection
from contextlib import suppress

# An address of documentation networks (RFC 5737). Connecting a datagram socket sends nothing: it only picks the route.
_SOMEWHERE_ELSE = ("192.0.2.1", 9)
_NO_ADDRESS = "0.0.0.0"  # noqa: S104 - nothing is bound to it: some systems say so when there is no route
LOOPBACK_IPV4 = "127.0.0.1"
_MAPPED = "::ffff:"  # an IPv4 address as a socket of both kinds tells it


def own_ipv4() -> str:
    """The IPv4 address with which this machine reaches others; the loopback address when it reaches nobody."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_SOMEWHERE_ELSE)
            address = str(probe.getsockname()[0])
    except OSError:  # no route, or no IPv4 at all
        return LOOPBACK_IPV4
    return LOOPBACK_IPV4 if address == _NO_ADDRESS else address


def break_connections(peers: Collection[str]) -> int:
    """Shut this process's IPv4 connections to `peers` down, in gRPC's notation ("ipv4:host:port"); how many there were.

    For a server whose library offers no other way: streams that a client does not read take memory, and gRPC sends no
    status while a message waits to be taken. Whoever uses the connection sees its end.
    """
    wanted = set(peers)
    broken = 0
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - names are wanted, not paths
        with suppress(OSError):  # closed meanwhile, or no connection
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as connection:
                    if connection.family in {socket.AF_INET, socket.AF_INET6}:
                        host, port = connection.getpeername()[:2]
                        if f"ipv4:{host.removeprefix(_MAPPED)}:{port}" in wanted:
                            connection.shutdown(socket.SHUT_RDWR)
                            broken += 1
    return broken
