"""What the client asks of the network beside gRPC. The only module of the client that knows sockets."""

from __future__ import annotations

import socket


def ipv4_addresses(name: str) -> tuple[str, ...]:
    """Every A record of the name, sorted. Blocks. Raises OSError when it has none, or nobody can be asked."""
    found = socket.getaddrinfo(name, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    return tuple(sorted({str(address[0]) for *_, address in found}))


def abort(connection: socket.socket) -> None:
    """End the connection, so that a thread which waits for it does not wait any longer."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended already, which is all that this call wanted to reach
