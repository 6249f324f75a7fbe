"""Metrics: whatever an alert or a dashboard asks for is told by the code, under that name and with these labels.

The programs' own instruments are made, and the exporter for Prometheus writes their page; there is no list of names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.exporter.prometheus._mapping import sanitize_attribute
from opentelemetry.metrics import CallbackOptions, Instrument, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry

import telemetry
from mq_broker.telemetry import BrokerMetrics
from mq_namesrv.app import observe
from mq_namesrv.core.route_table import RouteTable
from mqclient.observed.spans import client_metrics
from orders.adapters.outside import OtelOrderMeter, orders_by_status
from orders.service.queries import Queries
from osenv import SimClock
from payments.adapters.outside import OtelPaymentMeter, failed_refunds, outbox_waiting, unfinished
from servicekit.http.application import build_api
from servicekit.http.limits import AdmissionLimit
from servicekit.monitoring import Health
from telemetry.providers import PROVIDERS
from telemetry.testing.recorder import Recorder

ROOT = Path(__file__).parents[2]
OF_PROMETHEUS = {"up"}
LABELS_OF_PROMETHEUS = {"job", "instance", "le", "alertname"}
UNREAD: Any = None  # to make a gauge reads no database
KEYWORDS = {"and", "or", "unless", "on", "by", "offset", "bool", "ignoring", "without"}

WORDS = re.compile(r"[a-zA-Z_:][\w:]*")


async def told_by_everybody() -> tuple[dict[str, Instrument], set[str]]:
    """Name -> instrument of all programs, and the labels of a request over HTTP."""
    clock = SimClock()
    with Recorder() as recorder:
        BrokerMetrics(telemetry.meter("mq_broker"))
        observe(telemetry.meter("mq_namesrv"), RouteTable(), {True: 1})
        client_metrics()  # a second one would have the same instruments, which would not read it
        OtelOrderMeter()
        OtelPaymentMeter()
        orders_by_status(Queries(UNREAD), clock)
        outbox_waiting(UNREAD, clock)
        failed_refunds(UNREAD, clock)
        unfinished(UNREAD)
        app = build_api(
            title="shop",
            summary="",
            routers=[],
            health=Health({}, clock),
            problem_of_error={},
            tokens=None,
            rate_limit=None,
            clock=clock,
            untraced_urls=(),
            admission_limit=AdmissionLimit(1, 1),
        )
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as http:
            await http.get("/health/live")
            await http.get("/nothing")
        labels = {
            sanitize_attribute(key)
            for metric in recorder.metrics()
            if metric.name.startswith("http.")
            for key in metric.attributes
        }
        provider = PROVIDERS.meter_provider
        assert provider is not None
        made = [one for meter in provider._meters.values() for one in meter._instrument_id_instrument.values()]
    return {one.name: one for one in made}, labels


def page_of(instruments: dict[str, Instrument]) -> set[str]:
    """The names on the page of a process that has measured something with each of the instruments."""
    registry = CollectorRegistry()
    provider = MeterProvider([PrometheusMetricReader(registry=registry)], shutdown_on_exit=False)
    meter = provider.get_meter("all")
    for name, one in instruments.items():
        _measure(meter, type(one).__name__.removeprefix("_"), name, one.unit)  # type: ignore[attr-defined]
    names = {sample.name for family in registry.collect() for sample in family.samples}
    provider.shutdown()
    return names


def _measure(meter: Meter, kind: str, name: str, unit: str) -> None:
    def one(_: CallbackOptions) -> Iterator[Observation]:
        yield Observation(1)

    match kind:
        case "Counter":
            meter.create_counter(name, unit).add(1)
        case "UpDownCounter":
            meter.create_up_down_counter(name, unit).add(1)
        case "Histogram":
            meter.create_histogram(name, unit).record(1)
        case "ObservableCounter":
            meter.create_observable_counter(name, [one], unit)
        case "ObservableUpDownCounter":
            meter.create_observable_up_down_counter(name, [one], unit)
        case "ObservableGauge":
            meter.create_observable_gauge(name, [one], unit)
        case _:
            raise AssertionError(f"{name} is a {kind}, of which this test knows nothing")


def metrics_in(expression: str) -> set[str]:
    """The names of metrics in PromQL: what is no label, no function, no keyword and no number with a unit."""
    text = re.sub(r'"[^"]*"', '""', expression)
    text = re.sub(r"\{[^}]*\}|\[[^]]*\]", " ", text)
    text = re.sub(r"\b(by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)", " ", text)
    return {
        word[0]
        for word in WORDS.finditer(text)
        if word[0] not in KEYWORDS
        and not re.match(r"\s*\(", text[word.end() :])
        and not re.search(r"[\d.]$", text[: word.start()])
    }


def labels_in(expression: str) -> set[str]:
    """The names of labels in PromQL, in selectors and in groupings."""
    text = re.sub(r'"[^"]*"', '""', expression)
    selected = {name for block in re.findall(r"\{([^}]*)\}", text) for name in re.findall(r"(\w+)\s*[=!]", block)}
    grouped = re.findall(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)", text)
    return selected | {name for block in grouped for name in WORDS.findall(block)}


def test_the_reading_of_expressions() -> None:
    text = 'sum by (job, le) (rate(a_total{x=~"y|b_total", z!="1"}[5m] offset 1h)) > 0.5 and on (job) c unless d == 1e3'
    assert metrics_in(text) == {"a_total", "c", "d"}
    assert labels_in(text) == {"job", "le", "x", "z"}


async def test_every_metric_that_is_asked_for_is_one_that_the_code_tells(expressions: dict[str, str]) -> None:
    instruments, _ = await told_by_everybody()
    page = page_of(instruments) | OF_PROMETHEUS
    missing = {where: metrics_in(text) - page for where, text in expressions.items() if metrics_in(text) - page}
    assert missing == {}
    assert sum(len(metrics_in(text)) for text in expressions.values()) > 80


async def test_every_label_that_is_asked_for_is_an_attribute_that_the_code_sets(expressions: dict[str, str]) -> None:
    _, of_http = await told_by_everybody()
    known = {sanitize_attribute(text) for text in dotted_texts()} | of_http | LABELS_OF_PROMETHEUS
    missing = {where: labels_in(text) - known for where, text in expressions.items() if labels_in(text) - known}
    assert missing == {}
    assert {"http_route", "http_response_status_code", "http_request_method"} <= of_http


def dotted_texts() -> set[str]:
    """What may be an attribute's name in the sources."""
    found: set[str] = set()
    for folder in ("libs", "services"):
        for path in ROOT.glob(f"{folder}/*/src/**/*.py"):
            found.update(re.findall(r'"([a-z_]+(?:\.[a-z_]+)+)"', path.read_text(encoding="utf-8")))
    return found


async def test_a_metric_has_one_name_on_a_process_s_own_page_and_behind_the_collector() -> None:
    instruments, _ = await told_by_everybody()
    units = {name: getattr(one, "unit", "") for name, one in instruments.items()}
    # The collector writes _ratio behind the name of a gauge with this unit, and Python's exporter does not.
    assert {name for name, unit in units.items() if unit == "1"} == set()
