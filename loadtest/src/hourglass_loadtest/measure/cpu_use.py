"""What a message costs the two processes that have to do with it."""

from __future__ import annotations

import time

from hourglass_loadtest.measure.broker_meter import BrokerMeter


class CpuUse:
    """Processor time of broker and client, in user and system mode, of all their threads, since this was made."""

    def __init__(self, broker: BrokerMeter) -> None:
        self._broker = broker
        self._broker_begin, self._client_begin = broker.cpu_seconds(), time.process_time()

    def per_1000(self, messages: int) -> dict[str, float]:
        """Seconds for 1,000 messages when there were so many; the broker's clock has steps of 10 ms."""
        broker_s, client_s = self._broker.cpu_seconds() - self._broker_begin, time.process_time() - self._client_begin
        return {
            "broker_cpu_s_per_1000": broker_s / messages * 1000,
            "client_cpu_s_per_1000": client_s / messages * 1000,
        }
