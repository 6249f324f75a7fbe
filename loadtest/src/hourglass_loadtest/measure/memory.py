"""Resident memory of the broker."""

from __future__ import annotations

from hourglass_loadtest.measure.broker_meter import BrokerMeter
from hourglass_loadtest.measure.sending import GROUP, make_topic, send_all
from hourglass_loadtest.workload import Workload
from mqclient import Producer

TOPIC = "bench"


async def measure(url: str, workload: Workload, broker: BrokerMeter) -> dict[str, float]:
    """Before anybody has connected, and after `messages` were acknowledged."""
    idle_mib = broker.rss_mib()
    await make_topic(url, TOPIC, workload)
    async with Producer(GROUP, url) as producer:
        await send_all(producer, TOPIC, workload.messages, workload)
        stored_mib = broker.rss_mib()
    return {"rss_idle_mib": idle_mib, "rss_stored_mib": stored_mib}
