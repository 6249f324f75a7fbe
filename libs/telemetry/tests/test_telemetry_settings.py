"""OpenTelemetry's variables, as a table: what they ask for, and what is rejected with a sentence that names them."""

from __future__ import annotations

from typing import Any

import pytest

from telemetry.settings import BatchSettings, TelemetryConfigError, read_settings

OTLP = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"}


@pytest.mark.parametrize(
    ("variables", "traces", "metrics"),
    [
        ({}, False, set()),
        ({"PATH": "/bin", "OTEL_SERVICE_NAME": "x"}, False, set()),
        (OTLP, True, {"otlp"}),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "  "}, False, set()),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://collector:4317"}, True, set()),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://[::1]:4317/"}, False, {"otlp"}),
        ({"OTEL_TRACES_EXPORTER": "OTLP"}, True, set()),
        ({**OTLP, "OTEL_TRACES_EXPORTER": "none"}, False, {"otlp"}),
        ({**OTLP, "OTEL_METRICS_EXPORTER": "none"}, True, set()),
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, False, {"prometheus"}),
        ({"OTEL_METRICS_EXPORTER": " otlp, prometheus ,"}, False, {"otlp", "prometheus"}),
        ({"OTEL_EXPORTER_PROMETHEUS_PORT": "9464"}, False, {"prometheus"}),
        ({**OTLP, "OTEL_EXPORTER_PROMETHEUS_PORT": "0"}, True, {"otlp", "prometheus"}),
        ({**OTLP, "OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_PROMETHEUS_PORT": "1"}, True, {"otlp"}),
        ({**OTLP, "OTEL_SDK_DISABLED": "true"}, False, set()),
        ({**OTLP, "OTEL_SDK_DISABLED": "False"}, True, {"otlp"}),
    ],
)
def test_what_is_recorded_and_where_it_goes(variables: dict[str, str], traces: bool, metrics: set[str]) -> None:
    settings = read_settings(variables)
    assert (settings.traces, settings.metrics) == (traces, frozenset(metrics))


@pytest.mark.parametrize(
    ("variables", "field", "value"),
    [
        ({}, "sampler", "parentbased_always_on"),
        ({"OTEL_TRACES_SAMPLER": "Always_Off"}, "sampler", "always_off"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}, "sampling_ratio", 0.01),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}, "sampling_ratio", 1.0),
        ({"OTEL_TRACES_SAMPLER_ARG": "whatever"}, "sampling_ratio", 1.0),
        ({}, "batch", BatchSettings(2048, 512, 5000)),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "100"}, "batch", BatchSettings(100, 100, 5000)),
        ({"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "7", "OTEL_BSP_SCHEDULE_DELAY": "1"}, "batch", BatchSettings(2048, 7, 1)),
        ({}, "metric_interval_ms", 60_000),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "500"}, "metric_interval_ms", 500),
        ({"OTEL_METRIC_EXPORT_TIMEOUT": "250"}, "metric_timeout_ms", 250),
        ({}, "prometheus_host", "localhost"),
        ({"OTEL_EXPORTER_PROMETHEUS_HOST": "0.0.0.0"}, "prometheus_host", "0.0.0.0"),
        ({}, "prometheus_port", 9464),
    ],
)
def test_how_it_is_recorded(variables: dict[str, str], field: str, value: Any) -> None:
    assert getattr(read_settings(variables), field) == value


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("OTEL_SDK_DISABLED", "yes", "'yes' is none of true, false"),
        ("OTEL_TRACES_EXPORTER", "jaeger", "'jaeger' is none of otlp, none"),
        ("OTEL_METRICS_EXPORTER", "otlp,statsd", "'statsd' is none of otlp, prometheus, none"),
        ("OTEL_METRICS_EXPORTER", "otlp,none", "'otlp,none' asks for none and for others"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "127.0.0.1:4317", "is not an address like http://127.0.0.1:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://:4317", "is not an address"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:99999", "is not an address"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://a:4318/v1/traces", "is not an address"),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "ftp://a", "is not an address"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "'http/protobuf' is not grpc"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "'zstd' is not gzip"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "'soon' is not a number of seconds above 0"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "nan", "'nan' is not a number of seconds above 0"),
        ("OTEL_TRACES_SAMPLER", "sometimes", "'sometimes' is none of always_on, always_off"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "'0' is not a whole number above 0"),
        ("OTEL_BSP_SCHEDULE_DELAY", "-5", "'-5' is not a whole number above 0"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5000", "5000 is more than the queue holds"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "1.5", "'1.5' is not a whole number above 0"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "often", "'often' is not a whole number above 0"),
        ("OTEL_EXPORTER_PROMETHEUS_PORT", "65536", "'65536' is not a port from 0 to 65535"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=1,b", "'b' is not name=value"),
    ],
)
def test_what_cannot_be_followed_is_named(name: str, value: str, sentence: str) -> None:
    with pytest.raises(TelemetryConfigError) as rejection:
        read_settings({name: value})
    assert str(rejection.value).startswith(f"{name}: ")
    assert sentence in str(rejection.value)


@pytest.mark.parametrize("ratio", ["1.1", "-0.1", "much", "nan"])
def test_a_ratio_is_a_number_from_0_to_1(ratio: str) -> None:
    with pytest.raises(TelemetryConfigError, match=r"OTEL_TRACES_SAMPLER_ARG: .* is not a number from 0 to 1"):
        read_settings({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": ratio})
