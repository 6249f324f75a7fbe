"""The report of a warehouse: one HTML page, the pictures, summary.json, and what the program says of it at its end.

The page has no scripts and nothing from elsewhere; its pictures are inside.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from pyspark.sql import functions as F
from rich.console import Console

from analytics.jobs.gold import STOCK_TURNOVER
from analytics.report.figures import Tables, compare_books, compare_lateness, findings_of
from analytics.report.pictures import draw, duration
from analytics.tables import Made, TablesOptions
from analytics.warehouse import HadoopFiles, Warehouse

TITLE = "what the shop's messages tell"
PAGE, SUMMARY = "report.html", "summary.json"
EXIT_GOOD, EXIT_FOUND = 0, 1
FINDINGS_SAID_MAX = 20
TEMPLATE = "page.html.j2"

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """Where the page is, and what it says."""

    page: str
    document: Mapping[str, Any]


def write_report(
    warehouse: Warehouse,
    made: Made,
    options: TablesOptions,
    broker_lateness: Mapping[str, Mapping[str, int]],
    now: datetime,
) -> Report:
    """Make and write it. Raises what Spark and the file system raise."""
    spark = made.bronze.sparkSession
    document = document_of(warehouse, made, options, broker_lateness, now)
    pictures = draw(document)
    files, folder = HadoopFiles(spark), warehouse.report
    for name, data in pictures.items():
        files.write(f"{folder}/{name}", data)
    files.write(f"{folder}/{SUMMARY}", (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())
    files.write(f"{folder}/{PAGE}", page_of(document, pictures).encode())
    return Report(f"{folder}/{PAGE}", document)


def document_of(
    warehouse: Warehouse,
    made: Made,
    options: TablesOptions,
    broker_lateness: Mapping[str, Mapping[str, int]],
    now: datetime,
) -> dict[str, Any]:
    """Every figure. Only `made_at`, and `as_of` unless it was given, differ when nothing new was read."""
    spark = made.bronze.sparkSession
    figures = Tables(spark, warehouse, made.silver_orders).figures()
    turnover = warehouse.read(spark, warehouse.gold("stock_turnover"), STOCK_TURNOVER)
    compares = made.books is not None and made.since is None
    (stored,) = made.bronze.agg(
        F.unix_millis(F.min("storeTimestamp")).alias("first"),
        F.unix_millis(F.max("storeTimestamp")).alias("last"),
        F.count("*").alias("rows"),
    ).collect()
    return {
        "title": TITLE,
        "made_at": _iso(now),
        "as_of": _iso(made.as_of),
        "since": None if made.since is None else _iso(made.since),
        "at_rest": options.at_rest,
        "spark": spark.version,
        "warehouse": warehouse.root,
        "first_stored_at": _iso_ms(stored["first"]),
        "last_stored_at": _iso_ms(stored["last"]),
        **figures,
        "findings": findings_of(made.findings),
        "books": compare_books(figures["totals"], turnover, made.books) if compares and made.books else [],
        "lateness": compare_lateness(figures["timers"], broker_lateness),
        "tables": {"bronze": stored["rows"], **made.rows},
    }


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")


def _iso_ms(at_ms: int | None) -> str | None:
    return None if at_ms is None else _iso(datetime.fromtimestamp(at_ms / 1000, UTC))


def say_verdict(document: Mapping[str, Any], page: str, console: Console) -> int:
    """0 when everything adds up; else 1, and what does not, in sentences."""
    console.print(_summary(document), highlight=False, soft_wrap=True)
    console.print(f"Report: {page} (and summary.json, and the pictures)", highlight=False, soft_wrap=True)
    wrong = list(problems(document))
    for sentence in wrong:
        console.print(f"FOUND: {sentence}", highlight=False, soft_wrap=True, markup=False)
    return EXIT_FOUND if wrong else EXIT_GOOD


def problems(document: Mapping[str, Any]) -> Iterator[str]:
    """Everything that is not as it has to be."""
    findings = document["findings"]
    for one in findings["first"][:FINDINGS_SAID_MAX]:
        which = ", ".join(f"{name} {one[f'{name}_id']}" for name in ("order", "payment") if one[f"{name}_id"])
        yield f"{one['kind']}: {which}: {one['detail']} (in {one['found_in']})"
    if findings["count"] > FINDINGS_SAID_MAX:
        yield f"{findings['count'] - FINDINGS_SAID_MAX:,} more, in gold/reconciliation"
    for one in document["books"]:
        if not one["equal"]:
            yield f"{one['figure']}: {one['messages']:,} in messages, {one['databases']:,} in the databases"


def _summary(document: Mapping[str, Any]) -> str:
    totals = document["totals"]
    orders, paid, closed = (sum(row[name] for row in totals) for name in ("orders", "paid", "closed"))
    revenue = " and ".join(
        f"{row['revenue_minor'] / 100:,.2f} {row['currency']}" for row in totals if row["revenue_minor"]
    )
    compared = ", all figures equal to the databases'" if document["books"] else ""
    compared = "" if any(not one["equal"] for one in document["books"]) else compared
    return (
        f"{orders:,} orders, {paid:,} paid ({revenue or 'nothing'}), {closed:,} closed;"
        f" reconciliation found {document['findings']['count']:,}{compared}."
    )


def page_of(document: Document, pictures: Mapping[str, bytes]) -> str:
    """The whole page."""
    environment = Environment(
        loader=PackageLoader("analytics", "report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["count"] = _count
    return environment.get_template(TEMPLATE).render(
        document=document,
        origin=_origin(document),
        cards=list(_cards(document)),
        judged=_judged(document),
        notes=list(_notes(document)),
        pictures=[
            {"name": name.removesuffix(".png").replace("-", " "), "data": base64.b64encode(data).decode()}
            for name, data in pictures.items()
            if name != "findings.png" or document["findings"]["count"]
        ],
        findings=[_finding(one) for one in document["findings"]["first"]],
        books=[_book(one) for one in document["books"]],
        lateness=[_lateness(one) for one in document["lateness"]],
        totals=[_total(one) for one in document["totals"]],
        times=list(_times(document)),
        stock=[_product(one) for one in document["stock"]],
        messages=[
            [one["topic"], one["kind"] or "no tag", one["outcome"], _count(one["messages"])]
            for one in document["messages"]["by_kind"]
        ],
        tables=[[name, _count(rows)] for name, rows in document["tables"].items()],
    )


def _origin(document: Document) -> str:
    parts = [
        f"made {_said(document['made_at'])}",
        f"reconciled as of {_said(document['as_of'])}",
        f"Spark {document['spark']}",
    ]
    if document["first_stored_at"]:
        parts.insert(1, f"messages of {_said(document['first_stored_at'])} to {_said(document['last_stored_at'])}")
    return " · ".join(parts)


def _said(iso: str) -> str:
    return iso.replace("T", " ").replace("+00:00", " UTC")


def _cards(document: Document) -> Iterator[dict[str, str]]:
    totals, count = document["totals"], document["findings"]["count"]
    orders, paid = (sum(row[name] for row in totals) for name in ("orders", "paid"))
    yield _card(_count(orders), f"orders, {_count(sum(row['closed_expired'] for row in totals))} of them expired")
    yield _card(_count(paid), f"paid, {_share(paid, orders)} of all")
    for row in totals[:2]:
        if row["revenue_minor"]:
            yield _card(_money(row["revenue_minor"], None), f"{row['currency']} of paid orders")
    yield _card(_time(document["time_to_pay"], "p50_ms"), "median from order to payment")
    yield _card(_time(document["close_lateness"], "p99_ms"), "p99 from expiry to close")
    yield _card("nothing" if not count else _count(count), "found by reconciliation", "bad" if count else "good")
    if document["books"]:
        wrong = sum(not one["equal"] for one in document["books"])
        words = "all equal" if not wrong else f"{wrong} differ"
        yield _card(words, "figures, in messages and databases", "bad" if wrong else "good")


def _card(value: str, text: str, kind: str = "") -> dict[str, str]:
    return {"value": value, "text": text, "kind": kind}


def _judged(document: Document) -> str:
    words = "every order adds up with its payments and refunds"
    words += ", in the messages and in both databases" if document["books"] else ", as far as the messages tell"
    return words + (", and nothing is under way any more." if document["at_rest"] else ".")


def _notes(document: Document) -> Iterator[str]:
    if document["since"]:
        yield (
            f"Not every message of before {_said(document['since'])} has been read: older orders were not judged, and"
            " nothing was compared with the databases."
        )
    if rejected := document["messages"]["rejected"]:
        yield f"{_count(rejected)} messages could not be read; they are in silver/rejects, each with its problem."
    if newer := document["messages"]["newer"]:
        yield f"{_count(newer)} messages are of a later version than this program knows; what it knows was read."
    if any(not one["agrees"] for one in document["lateness"]):
        yield "The broker's own lateness is another one than that of the messages: see below."


def _finding(one: Mapping[str, Any]) -> list[str]:
    amount = "" if one["amount_minor"] is None else _money(one["amount_minor"], None)
    return [one["kind"], one["order_id"] or "", one["payment_id"] or "", amount, one["found_in"], one["detail"]]


def _book(one: Mapping[str, Any]) -> list[str]:
    figure, _, currency = one["figure"].partition(" minor ")
    values = [_money(one[side], currency) if currency else _count(one[side]) for side in ("messages", "databases")]
    return [figure, *values, "equal" if one["equal"] else "DIFFERENT"]


def _lateness(one: Mapping[str, Any]) -> list[str]:
    name = "its own time" if one["level"] == -1 else str(one["level"])
    values = [duration(one[f"{side}{name}_ms"]) for name in ("p50", "p99", "max") for side in ("", "broker_")]
    words = "agrees" if one["agrees"] else "DIFFERENT"
    return [name, _count(one["count"]), _count(one["broker_count"]), *values, words]


def _total(row: Mapping[str, Any]) -> list[str]:
    cancelled = f"{_count(row['closed_cancelled'])} / {_count(row['closed_seller_cancelled'])}"
    counts = (row[name] for name in ("orders", "paid", "pending_payment", "shipped", "completed", "closed_expired"))
    money = (_money(row[f"{name}_minor"], None) for name in ("revenue", "captured", "refunded"))
    return [row["currency"] or "not told", *map(_count, counts), cancelled, *money]


def _times(document: Document) -> Iterator[list[str]]:
    named = [
        ("order … payment", document["time_to_pay"]),
        ("expiry … close", document["close_lateness"]),
        *((_timer_name(one["level"]), one) for one in document["timers"]),
    ]
    for name, found in named:
        values = [_time(found, f"{quantile}_ms") for quantile in ("p50", "p90", "p95", "p99", "max")]
        yield [name, _count(found["count"]), *values]


def _timer_name(level: int | None) -> str:
    if level is None:
        return "timeout due … delivered"
    return "timeout due … delivered, own time" if level < 0 else f"timeout due … delivered, level {level}"


def _product(one: Mapping[str, Any]) -> list[str]:
    names = ("reserved", "sold", "kept", "taken_back", "released", "waiting")
    return [one["product_id"], *(_count(one[f"units_{name}"]) for name in names)]


def _time(found: Mapping[str, Any], name: str) -> str:
    return duration(found[name]) if found["count"] else "–"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "–"


def _count(value: int) -> str:
    return f"{value:,}"


def _money(minor: int, currency: str | None) -> str:
    sign = "-" if minor < 0 else ""
    text = f"{sign}{abs(minor) // 100:,}.{abs(minor) % 100:02}"
    return f"{text} {currency}" if currency else text
