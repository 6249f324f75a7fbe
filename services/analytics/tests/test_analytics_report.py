"""The report's page, pictures and verdict, and what is asked of the programs: without Spark."""

from __future__ import annotations

import base64
import copy
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from rich.console import Console

from analytics import __main__ as program
from analytics import options as wanted
from analytics.adapters import BooksUrls, LatenessFileError, StoppedError, read_broker_lateness
from analytics.options import OptionsError
from analytics.report.figures import compare_lateness
from analytics.report.pictures import CHARTS, draw, duration
from analytics.report.write import EXIT_FOUND, EXIT_GOOD, page_of, say_verdict
from analytics.session import SessionOptions, master_of, settings_of
from analytics.stream import TOPIC_PATTERN, batch_of
from analytics.tables import TablesOptions
from analytics.warehouse import Warehouse, WarehouseError

AT = "2026-11-22T10:00:00+00:00"
LATE = {"count": 3, "p50_ms": 40, "p90_ms": 90, "p95_ms": 90, "p99_ms": 90, "max_ms": 90, "sum_ms": 140}
UNITS = {
    "units_reserved": 5, "units_sold": 3, "units_kept": 2, "units_taken_back": 1, "units_released": 1,
    "units_waiting": 1,
}  # fmt: skip
DOCUMENT: dict[str, Any] = {
    "title": "what <b>the</b> messages tell",
    "made_at": AT,
    "as_of": AT,
    "since": None,
    "at_rest": True,
    "spark": "4.3.0",
    "warehouse": "/somewhere",
    "first_stored_at": AT,
    "last_stored_at": AT,
    "messages": {
        "by_kind": [{"topic": "order-events", "kind": "created", "outcome": "read", "messages": 4}],
        "read": 4, "newer": 0, "rejected": 0,
    },
    "totals": [
        {
            "currency": "CNY", "orders": 4, "pending_payment": 1, "awaiting_shipment": 1, "shipped": 0, "completed": 0,
            "closed": 2, "closed_expired": 1, "closed_cancelled": 0, "closed_seller_cancelled": 1, "paid": 2,
            "unknown": 0, "revenue_minor": 123_456, "captured_minor": 123_456, "refunded_minor": 23_456,
            "kept_minor": 100_000,
        }
    ],
    "funnel": [{"step": "created", "orders": 4}, {"step": "paid", "orders": 2}],
    "orders_over_time": {"bucket_s": 1, "points": [{"at": AT, "created": 4, "paid": 2, "closed": 2}]},
    "revenue_over_time": {
        "bucket_s": 1, "currency": "CNY", "products": ["tea", "others"], "others": "others",
        "points": [{"at": AT, "revenue_minor": {"tea": 123_000, "others": 456}}],
    },
    "abandoned_over_time": {"bucket_s": 1, "points": [{"at": AT, "created": 4, "abandoned": 1}]},
    "time_to_pay": LATE | {"curve": [[40, 0.5], [90, 1.0]]},
    "close_lateness": LATE | {"curve": [[40, 0.5], [90, 1.0]]},
    "timers": [LATE | {"level": 16, "p50_to_ms": 41, "p99_to_ms": 95}],
    "delivery": {"curve": [[41, 0.5], [95, 1.0]]},
    "stock": [{"product_id": "tea", **UNITS}],
    "findings": {"count": 0, "by_kind": {}, "first": []},
    "books": [{"figure": "orders", "messages": 4, "databases": 4, "equal": True}],
    "lateness": [
        {
            "level": 16, "count": 3, "broker_count": 3, "agrees": True, "p50_ms": 40, "broker_p50_ms": 41,
            "p99_ms": 90, "broker_p99_ms": 90, "max_ms": 90, "broker_max_ms": 90,
        }
    ],
    "tables": {"bronze": 9, "silver/orders": 4},
}  # fmt: skip
FINDING = {
    "kind": "refund-missing", "order_id": "o-1", "payment_id": "p-1", "detail": "5 <of> 10", "amount_minor": 1_000,
    "found_in": "messages",
}  # fmt: skip


def document(**members: Any) -> dict[str, Any]:
    return copy.deepcopy(DOCUMENT) | members


def found() -> dict[str, Any]:
    return document(findings={"count": 1, "by_kind": {"refund-missing": 1}, "first": [FINDING]})


def empty() -> dict[str, Any]:
    """Of a queue without orders."""
    nothing: dict[str, Any] = {"count": 0, "curve": []}
    over: dict[str, Any] = {"bucket_s": 1, "points": []}
    return document(
        totals=[], funnel=[], stock=[], timers=[], lateness=[], books=[], time_to_pay=nothing, close_lateness=nothing,
        orders_over_time=over, abandoned_over_time=over, delivery={"curve": []},
        revenue_over_time=over | {"currency": "", "products": [], "others": "others"},
    )  # fmt: skip


def test_page_holds_its_pictures_and_needs_nothing_from_elsewhere() -> None:
    pictures = draw(DOCUMENT)
    assert list(pictures) == [f"{name}.png" for name in CHARTS]
    page = page_of(DOCUMENT, pictures)
    inside = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert [base64.b64decode(data) for data in inside] == [
        data for name, data in pictures.items() if name != "findings.png"
    ]
    assert all(data.startswith(b"\x89PNG") for data in pictures.values())
    assert "<script" not in page
    assert not re.search(r"(?:src|href)=[\"'](?!data:)", page)
    assert "what &lt;b&gt;the&lt;/b&gt; messages tell" in page


def test_page_says_that_everything_adds_up_and_with_what_it_was_compared() -> None:
    page = page_of(DOCUMENT, {})
    assert "Reconciliation found nothing:" in page
    assert "in the messages and in both databases, and nothing is under way any more." in page
    assert "as far as the messages tell." in page_of(document(books=[], at_rest=False), {})
    assert "1,234.56" in page
    assert "all equal" in page


def test_page_shows_what_was_found() -> None:
    pictures = draw(found())
    page = page_of(found(), pictures)
    assert "Reconciliation found 1</b> thing that should not be" in page
    assert "refund-missing" in page
    assert "5 &lt;of&gt; 10" in page
    assert page.count("data:image/png") == len(pictures)


def test_page_says_what_limits_the_result() -> None:
    limited = document(since=AT, messages=DOCUMENT["messages"] | {"rejected": 2, "newer": 3})
    page = page_of(limited, {})
    assert "Not every message of before 2026-11-22 10:00:00 UTC has been read" in page
    assert "2 messages could not be read" in page
    assert "3 messages are of a later version" in page


def test_report_of_an_empty_queue_says_so_instead_of_failing() -> None:
    pictures = draw(empty())
    assert set(pictures) == {f"{name}.png" for name in CHARTS}
    assert "<td" in page_of(empty(), pictures)


def test_the_same_figures_make_the_same_pictures() -> None:
    assert draw(DOCUMENT) == draw(DOCUMENT)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (999, "999 ms"), (1_500, "1.5 s"), (90_000, "90 s"), (600_000, "10 min"), (7_200_000, "2 h")],
)
def test_durations_are_said_as_people_say_them(ms: float, text: str) -> None:
    assert duration(ms) == text


def test_verdict_is_good_only_when_nothing_was_found_and_every_figure_is_equal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = Console(width=200)
    assert say_verdict(DOCUMENT, "report.html", console) == EXIT_GOOD
    assert "4 orders, 2 paid (1,234.56 CNY), 2 closed; reconciliation found 0, all figures" in capsys.readouterr().out
    assert say_verdict(found(), "report.html", console) == EXIT_FOUND
    assert "FOUND: refund-missing: order o-1, payment p-1: 5 <of> 10 (in messages)" in capsys.readouterr().out
    differs = document(books=[{"figure": "paid", "messages": 1, "databases": 2, "equal": False}])
    assert say_verdict(differs, "report.html", console) == EXIT_FOUND
    assert "FOUND: paid: 1 in messages, 2 in the databases" in capsys.readouterr().out
    many = document(findings={"count": 1_000, "by_kind": {"refund-missing": 1_000}, "first": [FINDING] * 100})
    assert say_verdict(many, "report.html", console) == EXIT_FOUND
    said = capsys.readouterr().out
    assert said.count("FOUND: refund-missing") == 20
    assert "FOUND: 980 more, in gold/reconciliation" in said


@pytest.mark.parametrize(
    ("broker", "agrees"),
    [
        ({"delivered": 3, "p50": 41, "p99": 95, "max": 90}, True),  # the ends of the classes
        ({"delivered": 3, "p50": 39, "p99": 89, "max": 89}, True),  # rounded down where the record is rounded up
        ({"delivered": 3, "p50": 42, "p99": 90, "max": 90}, False),
        ({"delivered": 3, "p50": 40, "p99": 87, "max": 90}, False),
        ({"delivered": 3, "p50": 40, "p99": 90, "max": 91}, False),
        ({"delivered": 4, "p50": 40, "p99": 90, "max": 90}, False),
    ],
)
def test_lateness_agrees_within_the_brokers_resolution_only(broker: dict[str, int], agrees: bool) -> None:
    (compared,) = compare_lateness(DOCUMENT["timers"], {"16": broker, "3": broker})
    assert compared["agrees"] is agrees
    assert (compared["p50_ms"], compared["broker_p50_ms"]) == (40, broker["p50"])


def test_lateness_file_is_that_of_a_demonstration(tmp_path: Path) -> None:
    file = tmp_path / "left.json"
    file.write_text('{"lateness_ms_by_level": {"16": {"delivered": 4, "p50": 1, "p99": 2, "max": 3}}, "other": 1}')
    assert read_broker_lateness(file) == {"16": {"delivered": 4, "p50": 1, "p99": 2, "max": 3}}
    for text in ("", "[]", "{}", '{"lateness_ms_by_level": {"16": {"p50": 1}}}'):
        file.write_text(text)
        with pytest.raises(LatenessFileError, match=r"left\.json does not tell how late"):
            read_broker_lateness(file)


def test_options_of_a_run_are_read() -> None:
    options = wanted.parse(
        [
            "run", "--namesrv-addr", "127.0.0.1:9876", "--warehouse", "/w", "--orders", "sqlite+aiosqlite:///o.db",
            "--payments", "sqlite+aiosqlite:///p.db", "--at-rest", "--conf", "spark.a=b=c", "--as-of", "2026-11-22",
        ]
    )  # fmt: skip
    assert wanted.warehouse_of(options) == Warehouse("/w")
    assert wanted.queue_of(options).namesrv_addr == "127.0.0.1:9876"
    assert wanted.tables_options(options) == TablesOptions(
        at_rest=True,
        as_of=datetime(2026, 11, 22, tzinfo=UTC),
        books=BooksUrls("sqlite+aiosqlite:///o.db", "sqlite+aiosqlite:///p.db"),
    )
    assert wanted.session_options(options) == SessionOptions(settings={"spark.a": "b=c"})


def test_databases_that_were_not_left_are_not_compared() -> None:
    options = wanted.parse(["run", "--namesrv-addr", "x:1", "--orders", "", "--payments", "", "--broker-lateness", ""])
    assert wanted.tables_options(options) == TablesOptions()


def test_wrong_options_are_rejected_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionsError, match="--orders and --payments are given together"):
        wanted.tables_options(wanted.parse(["run", "--namesrv-addr", "x:1", "--orders", "sqlite:///o.db"]))
    with pytest.raises(OptionsError, match="--namesrv-addr is empty"):
        wanted.queue_of(wanted.parse(["run", "--namesrv-addr", " "]))
    with pytest.raises(OptionsError, match="allowed is KEY=VALUE"):
        wanted.session_options(wanted.parse(["report", "--conf", "spark.a"]))
    with pytest.raises(OptionsError, match="is no folder of its own"):
        wanted.warehouse_of(wanted.parse(["report", "--warehouse", "/"]))
    for arguments in (
        ["backfill", "--namesrv-addr", "x:1", "--from", "yesterday"],
        ["live", "--namesrv-addr", "x:1", "--trigger", "0"],
        ["run", "--namesrv-addr", "x:1", "--offsets-per-batch", "-1"],
    ):
        with pytest.raises(SystemExit) as ended:
            wanted.parse(arguments)
        assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "'yesterday' is no time such as 2026-11-01T00:00Z" in said
    assert "'0' is no number above 0" in said


def test_time_without_a_zone_is_utc() -> None:
    options = wanted.parse(
        ["backfill", "--namesrv-addr", "x:1", "--from", "2026-11-01T00:00", "--to", "2026-11-02T00Z"]
    )
    assert (options.begin, options.end) == (datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC))


def test_warehouse_knows_its_tables_by_path() -> None:
    warehouse = Warehouse("hdfs://name:9000/shop")
    assert warehouse.events == "hdfs://name:9000/shop/bronze/events"
    assert warehouse.silver("orders") == "hdfs://name:9000/shop/silver/orders"
    assert warehouse.gold("funnel") == "hdfs://name:9000/shop/gold/funnel"
    assert all(path.startswith(f"{warehouse.root}/") for path in warehouse.parts)
    with pytest.raises(WarehouseError):
        Warehouse("//")


def test_session_leaves_alone_what_spark_submit_has_said() -> None:
    submitted = {"PYSPARK_GATEWAY_PORT": "1"}
    assert master_of(SessionOptions(), {}) == "local[*]"
    assert master_of(SessionOptions(), submitted) is None
    assert master_of(SessionOptions(master="local[2]"), submitted) == "local[2]"
    assert settings_of(SessionOptions(), {})["spark.driver.bindAddress"] == "127.0.0.1"
    assert not any(name.startswith("spark.driver") for name in settings_of(SessionOptions(), submitted))
    assert settings_of(SessionOptions(settings={"spark.ui.enabled": "true"}), {})["spark.ui.enabled"] == "true"


def test_interrupted_program_says_so_although_java_is_gone_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class GoneSession:
        def stop(self) -> None:
            raise Py4JError("SparkSession does not exist in the JVM")

    def interrupted(*_: object) -> None:
        raise StoppedError("SIGTERM")

    monkeypatch.setattr(program, "open_session", lambda *_: GoneSession())
    monkeypatch.setattr(program, "run_tables", interrupted)
    assert program.main(["report"]) == program.EXIT_INTERRUPTED
    assert capsys.readouterr().err == "analytics: interrupted; what was being written is left out\n"


def test_what_waits_is_read_with_what_was_told() -> None:
    for topic in ("order-events", "payment-events", "order-timeouts", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"):
        assert re.fullmatch(TOPIC_PATTERN, topic)
    assert not re.fullmatch(TOPIC_PATTERN, "%RETRY%order-feed")


def test_lag_of_a_batch_is_what_was_there_and_not_read() -> None:
    progress = {
        "batchId": 3, "numInputRows": 5, "inputRowsPerSecond": float("nan"), "processedRowsPerSecond": 2.5,
        "batchDuration": 2_000,
        "sources": [
            {
                "endOffset": '{"order-events": {"a": {"0": 5, "1": 2}}}',
                "latestOffset": '{"order-events": {"a": {"0": 9, "1": 2}, "b": {"0": 1}}}',
            }
        ],
    }  # fmt: skip
    batch = batch_of(progress)
    assert (batch.number, batch.rows, batch.duration_ms) == (3, 5, 2_000)
    assert (batch.input_rows_per_s, batch.processed_rows_per_s) == (0.0, 2.5)
    assert batch.read_until == {"order-events": 7}
    assert batch.lag == {"order-events": 5}
    progress["sources"][0]["latestOffset"] = "null"  # type: ignore[index]
    assert batch_of(progress).lag == {}
