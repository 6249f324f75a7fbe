"""The report as one HTML page: no scripts, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light; --ink: #0f172a; --soft: #64748b; --line: #e2e8f0; --good: #15803d; --bad: #be123c; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: #f8fafc; margin: 0; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 26px; margin: 0 0 2px; } h2 { font-size: 18px; margin: 34px 0 10px; }
.soft { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px; margin: 20px 0; }
.card { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; }
.card b { display: block; font-size: 24px; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: 13px; }
.sheet { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 8px; overflow-x: auto; }
.sheet svg { width: 100%; height: auto; display: block; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: right; padding: 6px 10px; border-bottom: 1px solid var(--line); }
td { font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 600; } th:first-child, td:first-child { text-align: left; }
td.left { text-align: left; } tr:last-child td { border-bottom: 0; }
.note { border-left: 4px solid #d97706; background: #fffbeb; padding: 10px 14px; border-radius: 6px; }
"""


def page_of(document: Mapping[str, Any], svg: str) -> str:
    """The whole page."""
    results = document["results"]
    parts = [
        f"<h1>Hourglass: {escape(document['title'])}</h1>",
        f'<p class="soft">{escape(_origin(document))}</p>',
        _cards(results),
        _limit(results),
        *_more(results),
        f'<h2>How it went</h2><div class="sheet">{svg}</div>',
        "<h2>Requests</h2>",
        _requests(results["requests"]),
        "<h2>Stages</h2>",
        _stages(results["stages"]),
        "<h2>Faults</h2>" + _faults(results["faults"]) if results["faults"] else "",
        "<h2>Visits</h2>",
        _visits(results["visits"]),
        "<h2>Processes</h2>",
        _processes(results["processes"]),
        "<h2>Consumer groups</h2>" + _lags(results["message_lag"]) if results["message_lag"] else "",
        _ending(results),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Hourglass: {escape(document['title'])}</title><style>{_STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _origin(document: Mapping[str, Any]) -> str:
    machine, run = document["machine"], document["run"]
    commit = f"commit {str(document['commit'])[:10]}{' with changes' if document['dirty'] else ''}"
    settings = ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in run.items() if name != "stages")
    return f"{document['time']} · {commit} · {machine['cores']} cores, {machine['cpu']} · {settings}"


def _cards(results: Mapping[str, Any]) -> str:
    orders = results["requests"].get("POST /orders", {})
    intended, sent = orders.get("from_intended_ms", {}), orders.get("from_sending_ms", {})
    invariants = results.get("invariants", {})
    cards = [
        (f"{results['orders_per_s']:.1f}/s", f"orders placed, {results['orders_placed']:,} in all", ""),
        (_ms(intended.get("p99")), "p99 of placing an order, from when it was intended", ""),
        (_ms(sent.get("p99")), "p99 of the same from its sending", ""),
        (_ms(results.get("close_lateness_ms", {}).get("p99")), "p99 from expiry to close", ""),
        (f"{results['retries']:,}", f"of {sum(results['answers'].values()):,} requests were made again", ""),
    ]
    if invariants:
        found = len(invariants["violations"])
        if not invariants["checked"]:
            cards.append(("not checked", invariants.get("why", "").removeprefix("not checked: "), "bad"))
        else:
            word = "all hold" if not found else f"{found} violated"
            cards.append((word, f"{invariants['checked']} invariants of the shop", "bad" if found else "good"))
    return (
        '<div class="cards">'
        + "".join(
            f'<div class="card"><b class="{kind}">{escape(value)}</b><span>{escape(text)}</span></div>'
            for value, text, kind in cards
        )
        + "</div>"
    )


def _limit(results: Mapping[str, Any]) -> str:
    generator = results["generator"]
    if not generator["was_the_limit"]:
        return ""
    return (
        f'<p class="note">The load generator was at its limit: {escape(generator["why"])}. It shares the machine with'
        " the shop; what is measured from the intended time contains its own slowness.</p>"
    )


def _more(results: Mapping[str, Any]) -> Iterable[str]:
    if "overload" in results:
        found = results["overload"]
        rows = [
            [
                f"{step['visits_per_s']:g}",
                f"{step['orders_per_s']:.1f}",
                _ms(step["p99_ms"]),
                f"{step['refused_share']:.1%}",
                "yes" if step["sustained"] else "no",
            ]
            for step in found["steps"]
        ]
        yield "<h2>Overload</h2>"
        yield (
            f"<p>Sustainable: {found['sustainable_visits_per_s']:g} visits a second. At {found['times']:g} times that,"
            f" {found['goodput_orders_per_s']:.1f} orders a second were placed:"
            f" <b>{found['share_of_peak']:.0%} of the peak</b> of {found['peak_orders_per_s']:.1f}."
            f" {found['refused']:,} requests were refused, every one with a reason and with when to come back"
            f" (Retry-After: {escape(', '.join(found['retry_after_s']) or 'none')} s).</p>"
        )
        yield _table(["visits/s", "orders/s", "p99 from intended", "refused", "sustained"], rows)


def _requests(requests: Mapping[str, Any]) -> str:
    rows = []
    for name, one in requests.items():
        sent, intended = one["from_sending_ms"], one["from_intended_ms"]
        answers = ", ".join(f"{answer}: {count:,}" for answer, count in one["answers"].items())
        numbers = [_ms(times.get(percent)) for times in (sent, intended) for percent in ("p50", "p99", "max")]
        rows.append([name, f"{one['count']:,}", *numbers, answers])
    heads = [
        "request",
        "count",
        *(f"{percent} {since}" for since in ("sent", "intended") for percent in ("p50", "p99", "max")),
    ]
    return _table([*heads, "answers"], rows, left=(8,))


def _stages(stages: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            f"{one['visits_per_s_intended']:g}/s for {one['seconds']:g} s",
            f"{one['visits_done_per_s']:.1f}",
            f"{one['orders_per_s']:.1f}",
            _ms(one["post_orders_from_intended_ms"].get("p50")),
            _ms(one["post_orders_from_intended_ms"].get("p99")),
            f"{one['orders_refused_share']:.1%}",
        ]
        for one in stages
    ]
    return _table(
        ["visits intended", "visits done/s", "orders/s", "p50 intended", "p99 intended", "refused at first"], rows
    )


def _faults(faults: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            one["what"],
            f"{one['after_s']:.1f} s",
            f"{one['back_after_s']:.1f} s",
            "none" if one["first_order_after_s"] is None else f"{one['first_order_after_s']:.1f} s",
        ]
        for one in faults
    ]
    return _table(["fault", "at", "process ready again after", "first order asked for and placed after"], rows)


def _visits(visits: Mapping[str, Any]) -> str:
    outcomes = list(visits["outcomes"])
    rows = [
        [kind, *(f"{counts.get(outcome, 0):,}" for outcome in outcomes)] for kind, counts in visits["kinds"].items()
    ]
    return _table(["kind", *outcomes], rows)


def _processes(processes: Mapping[str, Any]) -> str:
    rows = [
        [name, f"{one['cpu_s']:.1f} s", f"{one['cpu_share_mean']:.0%}", f"{one['rss_peak_mib']:.0f} MiB"]
        for name, one in processes.items()
    ]
    return _table(["process", "processor time", "of one core", "peak memory"], rows)


def _lags(lags: Mapping[str, Any]) -> str:
    return _table(
        ["group", "most that waited", "at the end"],
        [[group, f"{one['max']:,}", f"{one['end']:,}"] for group, one in lags.items()],
    )


def _ending(results: Mapping[str, Any]) -> str:
    if "orders_by_status" not in results:
        return ""
    statuses = ", ".join(f"{status} {count:,}" for status, count in results["orders_by_status"].items())
    text = (
        f"<h2>The end</h2><p>At rest {results['at_rest_after_s']:.1f} s after the load. Orders: {escape(statuses)}.</p>"
    )
    sentences = [*results["wrong_answers"], *results["invariants"]["violations"]]
    return text + "".join(f'<p class="bad">{escape(sentence)}</p>' for sentence in sentences)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join(
        "<tr>" + "".join(
            f"<td{' class=left' if number in left else ''}>{escape(cell)}</td>" for number, cell in enumerate(row)
        ) + "</tr>"
        for row in rows
    )  # fmt: skip
    return f'<div class="sheet"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.0f} ms"
