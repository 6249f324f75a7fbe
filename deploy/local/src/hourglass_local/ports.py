"""Free ports on the loopback interface.

They lie below the range from which systems take the local ports of outgoing connections (32768 on Linux, 49152
elsewhere). Inside it, a client that tries a stopped server again and again can be given the server's own port, and
then talks to itself.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import ExitStack
from random import SystemRandom

LOOPBACK = "127.0.0.1"
PORT_MIN, PORT_MAX = 20_000, 32_000
TRIES = 1_000


class PortInUseError(RuntimeError):
    """Somebody else listens on the port."""


def check_free(ports: Iterable[int]) -> None:
    """Raise PortInUseError for the first port that cannot be listened on."""
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what a listener left in TIME_WAIT is free
            try:
                probe.bind((LOOPBACK, port))
            except OSError as error:
                raise PortInUseError(
                    f"port {port} is in use; is Hourglass, or something else, running there already?"
                ) from error


def free_ports(count: int) -> list[int]:
    """`count` different ports that were free a moment ago. Raises OSError when there are not enough."""
    rng = SystemRandom()
    ports: list[int] = []
    with ExitStack() as held:
        for _ in range(TRIES):
            if len(ports) == count:
                return ports
            probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            port = rng.randint(PORT_MIN, PORT_MAX)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            ports.append(port)
    raise OSError(f"{TRIES} tries found only {len(ports)} of {count} free ports from {PORT_MIN} to {PORT_MAX}")
