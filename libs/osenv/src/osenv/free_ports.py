"""Free ports of the loopback interface, for servers that are told their port.

They lie below the range from which systems take the local ports of outgoing connections (32768 on Linux, 49152
elsewhere). Inside it, a client that tries a stopped server again and again can be given the server's own port, and
then talks to itself.

A port is free from its choice until somebody listens there, which may take seconds: no two processes of a user may be
given the same one meanwhile. So all of them deal from one number in a file, in turn, and a port comes again only after
all the others.
"""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom

from osenv.network import LOOPBACK_IPV4

PORT_MIN, PORT_MAX = 20_000, 32_000
TRIES = 1_000
# Not where TMPDIR says: programs with folders of their own share the ports all the same.
TURN_FOLDER = Path("/tmp")  # noqa: S108 - opened so that it is followed nowhere, and only its owner writes it
_PORTS = PORT_MAX - PORT_MIN + 1
_NUMBER_BYTES_MAX = 20


def free_ports(count: int) -> list[int]:
    """`count` different ports that nobody listens at. Raises OSError when there are not enough."""
    ports: list[int] = []
    with _next_number() as turn:
        for _ in range(TRIES):
            if len(ports) == count:
                return ports
            port = PORT_MIN + next(turn) % _PORTS
            if _is_free(port):
                ports.append(port)
    raise OSError(f"{TRIES} tries found only {len(ports)} of {count} free ports from {PORT_MIN} to {PORT_MAX}")


def turn_file() -> Path:
    """Where the processes of this user keep the number of the next port."""
    return TURN_FOLDER / f"hourglass-next-port-{os.getuid()}"


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((LOOPBACK_IPV4, port))
        except OSError:
            return False
    return True


@contextmanager
def _next_number() -> Iterator[Iterator[int]]:
    """Numbers that no other process of this user gets at the same time; where files have no locks, random ones."""
    if importlib.util.find_spec("fcntl") is None:
        yield _from(_anywhere())
        return
    import fcntl  # noqa: PLC0415 - not there on every system

    file = os.open(turn_file(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        numbers = _from(_number_in(os.pread(file, _NUMBER_BYTES_MAX, 0)))
        try:
            yield numbers
        finally:
            os.ftruncate(file, 0)
            os.pwrite(file, str(next(numbers) % _PORTS).encode(), 0)
    finally:
        os.close(file)


def _number_in(text: bytes) -> int:
    return int(text) if text.isdigit() else _anywhere()


def _anywhere() -> int:
    return SystemRandom().randrange(_PORTS)


def _from(number: int) -> Iterator[int]:
    while True:
        yield number
        number += 1
