"""The machine's own place in the network, and free ports of its loopback interface for servers.

Free ports lie below the range from which systems take the local ports of outgoing connections (32768 on Linux, 49152
elsewhere). Inside it, a client that tries a stopped server again and again can be given the server's own port, and
then talks to itself.

A port is free from its choice until a server listens there, which may take seconds: no two processes of a user may be
given the same one meanwhile. So all of them deal from one number in a file, in turn, and a port comes again only after
all the others.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import SystemRandom

# An address of documentation networks (RFC 5737). Connecting a datagram socket sends nothing: it only picks the route.
_SOMEWHERE_ELSE = ("192.0.2.1", 9)
_NO_ADDRESS = "0.0.0.0"  # noqa: S104 - nothing is bound to it: some systems say so when there is no route
LOOPBACK_IPV4 = "127.0.0.1"
_MAPPED = "::ffff:"  # an IPv4 address as a socket of both kinds tells it

PORT_MIN, PORT_MAX = 20_000, 32_000
TRIES = 1_000

# Not where TMPDIR says: programs with folders of their own share the ports all the same.
TURN_FOLDER = Path("/tmp")  # noqa: S108 - opened so that it is followed nowhere, and only its owner writes it
_PORTS = PORT_MAX - PORT_MIN + 1
_NUMBER_BYTES_MAX = 20


def own_ipv4() -> str:
    """The IPv4 address with which this machine reaches others; the loopback address when it has no route."""
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
    status while a message waits to be taken. The library sees the end of the connection.
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


def free_ports(count: int) -> list[int]:
    """`count` different ports on which no process listens. Raises OSError when there are not enough."""
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
