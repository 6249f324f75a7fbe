"""Who this broker is."""

from __future__ import annotations

from dataclasses import dataclass

MASTER_ID = 0


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """What it registers as. Several brokers of one name are a master (id 0) and its slaves."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str  # host:port that clients can reach
