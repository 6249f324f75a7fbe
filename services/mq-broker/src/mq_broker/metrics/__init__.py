"""What the broker tells a metrics collector, by OpenTelemetry; one module for each area.

Read when a collector asks, so the observed ones cost nothing otherwise; without a configured meter provider nobody
asks. What is counted on the way of a message is counted in plain numbers. The instruments are the process's: a broker
that is closed and opened anew in another role is observed by the same ones.
"""

from mq_broker.metrics.broker_metrics import COUNTERS, GAUGES, METER_NAME, BrokerMetrics

__all__ = ["COUNTERS", "GAUGES", "METER_NAME", "BrokerMetrics"]
