"""What the name server tells a metrics collector, as OpenTelemetry observable instruments.

Read by the exporter's own thread when a collector asks; without a configured meter provider nobody asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from mq_namesrv.core.route_table import RouteTable

METER_NAME = "mq_namesrv"
ROUTE_FOUND = "hourglass.namesrv.route.found"


def observe(meter: Meter, table: RouteTable, route_queries: Mapping[bool, int]) -> None:
    """Tell of this table from now on, and how many queries for routes were answered with one (True) or without."""

    def brokers(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(sum(len(siblings) for siblings in list(table.brokers.values())))]

    def topics(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(len(table.offers))]

    def queries(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(count, {ROUTE_FOUND: found}) for found, count in route_queries.items()]

    meter.create_observable_gauge("hourglass.namesrv.brokers", [brokers], "{broker}", "Brokers, slaves included")
    meter.create_observable_gauge("hourglass.namesrv.topics", [topics], "{topic}", "Topics that have a route")
    meter.create_observable_counter("hourglass.namesrv.route.queries", [queries], "{query}", "Queries for routes")
