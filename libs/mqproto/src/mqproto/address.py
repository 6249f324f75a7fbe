"""Addresses of processes: host:port."""

from __future__ import annotations

import re
from typing import NamedTuple

_HOST = re.compile(r"[A-Za-z0-9._-]+")


class Address(NamedTuple):
    """Where a process listens or is reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def is_host(text: str) -> bool:
    """Whether `text` can name a host: an IPv4 address or a host name."""
    return _HOST.fullmatch(text) is not None


def parse_address(text: str) -> Address:
    """`host:port` taken apart. Raises ValueError with what is allowed."""
    host, _, port = text.strip().rpartition(":")
    if not is_host(host) or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65_536:
        raise ValueError(f"{text!r} is not an address; write host:port with a port from 1 to 65535")
    return Address(host, int(port))


def parse_address_list(text: str) -> tuple[Address, ...]:
    """RocketMQ's list of name servers, `host:port;host:port`. Raises ValueError, also for an empty list."""
    addresses = tuple(parse_address(part) for part in text.split(";") if part.strip())
    if not addresses:
        raise ValueError("the list of addresses is empty; write host:port, or several separated by ;")
    return addresses
