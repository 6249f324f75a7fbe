"""Ports of a cluster."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from osenv.network import LOOPBACK_IPV4 as LOOPBACK
from osenv.network import free_ports

__all__ = ["LOOPBACK", "PortInUseError", "check_free", "free_ports"]


class PortInUseError(RuntimeError):
    """Another process listens on the port."""


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


@dataclass(frozen=True, slots=True)
class ClusterPorts:
    """`replication` are those at which brokers are reached by their replicas: of the brokers, then of the replicas.
    `balancers` are those before the instances of a service.
    """

    name_servers: Sequence[int]
    brokers: Sequence[int]
    services: Sequence[int]
    replicas: Sequence[int]
    replication: Sequence[int]
    balancers: Sequence[int]

    @classmethod
    def dealt(
        cls,
        ports: Sequence[int] | None,
        *,
        name_servers: int,
        brokers: int,
        services: int,
        replicas: int,
        balancers: int = 0,
    ) -> ClusterPorts:
        """From `ports`, in the order of the fields, or from free ones.

        Raises ValueError for another number of ports than there is need for, OSError without free ports.
        """
        counts = (name_servers, brokers, services, replicas, 2 * replicas, balancers)
        if ports is None:
            ports = free_ports(sum(counts))
        if len(ports) != sum(counts):
            raise ValueError(f"this cluster needs {sum(counts)} ports, not {len(ports)}")
        numbers = iter(ports)
        return cls(*([next(numbers) for _ in range(count)] for count in counts))

    @property
    def all(self) -> list[int]:
        """Every port of the cluster."""
        return [*self.name_servers, *self.brokers, *self.services, *self.replicas, *self.replication, *self.balancers]


def addresses(ports: Sequence[int]) -> list[str]:
    """host:port of each."""
    return [f"{LOOPBACK}:{port}" for port in ports]
