"""Ports of the loopback interface: whether they are free, and free ones."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from osenv.free_ports import free_ports
from osenv.network import LOOPBACK_IPV4 as LOOPBACK

__all__ = ["LOOPBACK", "PortInUseError", "check_free", "free_ports"]


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
