"""Which process of a cluster has which port."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hourglass_local.ports import LOOPBACK, free_ports


@dataclass(frozen=True, slots=True)
class ClusterPorts:
    """`replication` are those at which brokers are reached by their slaves: of the brokers, then of the slaves.
    `balancers` are those before the instances of a service.
    """

    name_servers: Sequence[int]
    brokers: Sequence[int]
    services: Sequence[int]
    slaves: Sequence[int]
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
        slaves: int,
        balancers: int = 0,
    ) -> ClusterPorts:
        """From `ports`, in the order of the fields, or from free ones.

        Raises ValueError for another number of ports than there is need for, OSError without free ports.
        """
        counts = (name_servers, brokers, services, slaves, 2 * slaves, balancers)
        if ports is None:
            ports = free_ports(sum(counts))
        if len(ports) != sum(counts):
            raise ValueError(f"this cluster needs {sum(counts)} ports, not {len(ports)}")
        numbers = iter(ports)
        return cls(*([next(numbers) for _ in range(count)] for count in counts))

    @property
    def all(self) -> list[int]:
        """Every port that somebody will listen at."""
        return [*self.name_servers, *self.brokers, *self.services, *self.slaves, *self.replication, *self.balancers]


def addresses(ports: Sequence[int]) -> list[str]:
    """host:port of each."""
    return [f"{LOOPBACK}:{port}" for port in ports]
