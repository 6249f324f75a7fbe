"""Loads of a whole shop: their options, stages, records and figures."""

from __future__ import annotations

import argparse
import ast
import stat
from dataclasses import replace
from pathlib import Path

import pytest

import hourglass_loadtest.users
from hourglass_loadtest.shop import page
from hourglass_loadtest.shop.command import add_parsers
from hourglass_loadtest.shop.load import document_of
from hourglass_loadtest.shop.options import LoadOptions, OptionsError, read_options, read_outside
from hourglass_loadtest.shop.overload import Step, overload_results, step_of
from hourglass_loadtest.shop.summary import (
    Ending,
    Evidence,
    Fault,
    ProcessSample,
    Watched,
    close_lateness_s,
    complaints,
    generator,
    summarize,
)
from hourglass_loadtest.users.plan import (
    DONE,
    MIX,
    LoadPlan,
    Records,
    RecordWriter,
    Request,
    Stage,
    Visit,
    parse_stages,
    read_records,
    stage_at,
    users_of,
    usual_stages,
)
from hourglass_local.testing import closed, paid

BEGUN = 1_700_000_000.0
OUTSIDE = {
    "LOAD_ORDERS_URL": "http://127.0.0.1:8001/",
    "LOAD_PAYMENTS_URL": "http://127.0.0.1:8002",
    "LOAD_AUTH_KEYS_FILE": "/run/keys",
}
DATABASES = {
    f"LOAD_{name}_DATABASE_URL": f"sqlite+aiosqlite:///{name}.db" for name in ("ORDERS", "PAYMENTS", "GATEWAY")
}


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_parsers(parser.add_subparsers(dest="command"))
    return parser.parse_args(arguments)


def order(at: float, seconds: float = 0.1, answer: str = "201", number: int = 1, late: float = 0.0) -> Request:
    """POST /orders, intended `at` seconds after the begin and sent `late` seconds after that."""
    retry_after = "1" if answer.startswith("503") else ""
    return Request("POST /orders", BEGUN + at, BEGUN + at + late, seconds, answer, number, retry_after)


def evidence(*requests: Request, stages: tuple[Stage, ...] = (Stage(10.0, 10.0),)) -> Evidence:
    visits = [Visit("Payer", one.intended, one.begun, one.begun + one.seconds, DONE) for one in requests]
    return Evidence(BEGUN, stages, Records(requests, visits, [], [(BEGUN, 1.0), (BEGUN + 1, 1.25)]), Watched())


def test_stages_are_rates_and_times() -> None:
    stages = parse_stages("10x30, 20.5x60")
    assert stages == [Stage(10.0, 30.0), Stage(20.5, 60.0)]
    assert [stage_at(stages, elapsed) for elapsed in (0.0, 29.9, 30.0, 89.9, 90.0)] == [
        stages[0], stages[0], stages[1], stages[1], None,
    ]  # fmt: skip
    assert [users_of(stage, 2.0) for stage in (*stages, Stage(0.1, 1.0))] == [20, 41, 1]


@pytest.mark.parametrize("text", ["", "10", "10x", "x10", "10x30;20x60", "-1x5", "1e3x5", "10x30,"])
def test_what_is_no_stage_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is no stage; allowed is visits a second x seconds, such as 20x60"):
        parse_stages(text)


@pytest.mark.parametrize("text", ["0x5", "5x0", "10001x5", "5x90000"])
def test_a_stage_has_its_limits(text: str) -> None:
    with pytest.raises(ValueError, match="more than 0 and at most"):
        parse_stages(text)


def test_the_usual_stages_take_the_whole_time_and_most_of_it_at_the_rate() -> None:
    stages = usual_stages(20.0, 300.0)
    assert sum(stage.seconds for stage in stages) == pytest.approx(300.0)
    assert max(stages, key=lambda stage: stage.seconds) == Stage(20.0, 180.0)


def test_options_without_a_word_are_the_usual_stages_on_local_processes() -> None:
    options = read_options(parsed("load"), {"PATH": "/bin"})
    assert (options.database, options.outside, options.page_port) == ("sqlite", None, None)
    assert list(options.stages) == usual_stages(20.0, 300.0)
    assert list(read_options(parsed("load", "--stages", "1x2"), {}).stages) == [Stage(1.0, 2.0)]


def test_with_a_page_people_say_how_many_users_there_are() -> None:
    options = read_options(parsed("load", "--page"), {})
    assert (options.page_port, list(options.stages)) == (8089, [])
    assert read_options(parsed("load", "--page", "9000", "--stages", "1x2"), {}).page_port == 9000


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rate", "0"], "'0' is no number above 0"),
        (["--seconds", "inf"], "'inf' is no number above 0"),
        (["--stages", "5"], "'5' is no stage"),
        (["--database", "mysql"], "invalid choice: 'mysql'"),
        (["--payment-window", "soon"], "soon"),
    ],
)
def test_an_option_that_cannot_be_is_rejected_with_what_is_allowed(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed("load", *arguments)
    assert complaint in capsys.readouterr().err


def test_a_shop_that_runs_already_is_named_by_variables() -> None:
    outside = read_outside(OUTSIDE | DATABASES | {"LOAD_QUEUE_URL": "mq://127.0.0.1:9876"})
    assert outside is not None
    assert outside.orders_url == "http://127.0.0.1:8001"
    assert outside.queue_url == "mq://127.0.0.1:9876"
    assert set(outside.databases) == {"orders", "payments", "gateway"}
    without = read_outside(OUTSIDE)
    assert without is not None
    assert without.databases == {}


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"LOAD_ORDERS_URL": "http://a"}, "LOAD_PAYMENTS_URL, LOAD_AUTH_KEYS_FILE is not set"),
        (OUTSIDE | {"LOAD_ORDERS_URL": "a:1"}, "LOAD_ORDERS_URL='a:1': allowed is a URL such as"),
        (OUTSIDE | {"LOAD_ORDERS_DATABASE_URL": "x"}, "LOAD_PAYMENTS_DATABASE_URL, LOAD_GATEWAY_DATABASE_URL is not"),
        (OUTSIDE | {"LOAD_ORDER_URL": "x"}, "unknown variable LOAD_ORDER_URL; known are LOAD_ORDERS_URL"),
    ],
)
def test_variables_that_do_not_go_together_are_rejected(variables: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionsError, match=complaint):
        read_outside(variables)


def test_the_users_know_neither_grpc_nor_asyncio_nor_a_service() -> None:
    """gevent changes sockets and threads under whatever is in its process."""
    allowed = {"__future__", "gevent", "geventhttpclient", "locust", "hourglass_loadtest"}
    standard = {"collections", "dataclasses", "itertools", "json", "math", "os", "pathlib", "random", "re", "signal"}
    (folder,) = hourglass_loadtest.users.__path__
    for path in Path(folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.partition(".")[0] in allowed | standard | {"time", "typing", "uuid"}, (path.name, name)
                assert not name.startswith("hourglass_loadtest") or name.startswith("hourglass_loadtest.users")


def test_the_mix_is_in_percent() -> None:
    assert sum(MIX.values()) == 100


def test_a_plan_travels_as_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    plan = LoadPlan(
        orders_url="http://o", payments_url="http://p", tokens=["t"], product_ids=["a"], records="r",
        stages=[Stage(1.0, 2.0)], tries=1,
    )  # fmt: skip
    plan.write(tmp_path / "plan")
    assert LoadPlan.read(tmp_path / "plan") == plan
    assert stat.S_IMODE((tmp_path / "plan").stat().st_mode) == 0o600
    assert "'t'" not in repr(plan)


def test_records_travel_as_lines_and_a_torn_last_line_is_none(tmp_path: Path) -> None:
    path = tmp_path / "records"
    writer = RecordWriter(path)
    request, visit = order(1.0, answer="503 overloaded"), Visit("Payer", BEGUN, BEGUN + 0.5, BEGUN + 1.0, DONE)
    writer.request(request)
    writer.visit(visit)
    writer.wrong("one key has made two orders")
    writer.generator(BEGUN, 0.5)
    writer.close()
    writer.wrong("after the end")
    whole = Records([request], [visit], ["one key has made two orders"], [(BEGUN, 0.5)])
    assert read_records(path) == whole
    path.write_text(path.read_text() + '["wrong", "torn')
    assert read_records(path) == whole
    path.write_text(path.read_text() + "\n")
    with pytest.raises(ValueError, match="line 5"):
        read_records(path)


def test_a_request_that_was_sent_late_is_late_from_its_intended_time() -> None:
    results = summarize(evidence(order(1.0, seconds=0.2, late=3.0)))
    found = results["requests"]["POST /orders"]
    assert found["from_sending_ms"]["p99"] == pytest.approx(200.0)
    assert found["from_intended_ms"]["p99"] == pytest.approx(3200.0)


def test_a_second_try_waits_since_the_first_one_was_intended_and_a_rejection_is_no_latency() -> None:
    seen = evidence(order(1.0, seconds=0.01, answer="503 overloaded"), order(1.0, number=2, late=1.0))
    results = summarize(seen)
    found = results["requests"]["POST /orders"]
    assert found["answers"] == {"503 overloaded": 1, "201": 1}
    assert found["from_intended_ms"]["max"] == pytest.approx(1100.0)
    assert (results["retries"], results["orders_placed"]) == (1, 1)
    assert results["stages"][0]["orders_refused_share"] == 1.0


def test_the_second_click_of_two_is_no_second_order_and_no_latency() -> None:
    results = summarize(evidence(order(1.0), order(1.0, seconds=1.5, answer="201 replayed")))
    assert results["orders_placed"] == 1
    assert results["requests"]["POST /orders"]["from_sending_ms"]["max"] == pytest.approx(100.0)


def test_each_stage_has_its_own_figures() -> None:
    stages = (Stage(2.0, 5.0), Stage(4.0, 5.0))
    results = summarize(evidence(*(order(number * 0.5) for number in range(20)), order(7.0, 2.9), stages=stages))
    assert [stage["orders_per_s"] for stage in results["stages"]] == [2.0, 2.2]
    assert results["stages"][1]["post_orders_from_sending_ms"]["max"] == pytest.approx(2900.0)
    assert results["seconds"] == 10.0


def test_a_generator_that_is_late_or_busy_was_the_limit() -> None:
    on_time = evidence(*(order(number / 10) for number in range(100)))
    assert generator(on_time) | {"late_p99_ms": 0.0} == {
        "cpu_share_mean": 0.25, "cpu_share_p90": 0.25, "late_p99_ms": 0.0, "was_the_limit": False, "why": "",
    }  # fmt: skip
    late = evidence(*(order(number / 10, late=0.3 * (number > 90)) for number in range(100)))
    assert generator(late)["was_the_limit"]
    assert "began 300 ms late" in generator(late)["why"]
    busy = replace(on_time, records=on_time.records._replace(generator=[(0.0, 0.0), (1.0, 0.9), (2.0, 1.8)]))
    assert generator(busy)["why"] == "Locust was busy for 90% of a core"


def test_a_process_that_was_started_anew_begins_at_zero() -> None:
    samples = [(0, 5.0), (1, 5.5), (2, 0.25), (3, 0.5)]
    watched = Watched(processes={"broker-a": [ProcessSample(at, cpu_s, 70.0) for at, cpu_s in samples]})
    assert watched.cpu_seconds("broker-a") == pytest.approx(1.0)
    assert watched.cpu_shares("broker-a") == [(1, 0.5), (2, 0.25), (3, 0.25)]


def test_lateness_is_of_orders_that_were_not_paid_in_time() -> None:
    cancelled = replace(closed("x"), closed_at_ms=closed("x").expires_at_ms - 1)
    assert close_lateness_s([closed("a", 20), paid("b", "pay"), cancelled, closed("c", 0)]) == [0.02, 0.0]


def test_what_is_wrong_is_said_whatever_the_figures_are() -> None:
    seen = evidence(order(1.0))
    assert complaints(seen) == []
    seen.ending = Ending(1.0, 25, ["stuck_orders: order_id=1"], {}, [])
    seen.records = seen.records._replace(wrong=["POST /orders was answered 500"])
    assert complaints(seen) == ["POST /orders was answered 500", "stuck_orders: order_id=1"]


def test_the_first_order_after_a_fault_was_asked_for_after_it() -> None:
    seen = evidence(order(1.0), order(2.0, seconds=4.0), order(5.0, seconds=0.5))
    seen.faults.append(Fault("broker: kill -9", BEGUN + 3.0, BEGUN + 4.5))
    (fault,) = summarize(seen)["faults"]
    assert fault == {"what": "broker: kill -9", "after_s": 3.0, "back_after_s": 1.5, "first_order_after_s": 2.5}


@pytest.mark.parametrize(
    ("requests", "sustained"),
    [
        ([order(number / 10) for number in range(30, 80)], True),
        ([order(number / 10, late=2.0 * (number > 70)) for number in range(30, 80)], False),
        ([order(number / 10, answer="201" if number % 20 else "503 overloaded") for number in range(30, 80)], False),
        ([], False),
    ],
)
def test_a_step_is_sustained_when_nearly_none_is_late_or_rejected(requests: list[Request], sustained: bool) -> None:
    assert step_of(evidence(*requests), 10.0, 8.0).sustained is sustained


def test_goodput_is_orders_placed_in_the_overloaded_stage_against_the_best_step() -> None:
    stages = (Stage(10.0, 5.0), Stage(20.0, 10.0), Stage(5.0, 5.0))
    served = [order(5.0 + number / 9, seconds=0.01) for number in range(90)]
    rejected = [order(5.0 + number / 9, seconds=0.01, answer="503 overloaded") for number in range(90)]
    steps = [Step(10.0, 10.0, 100.0, 0.0, True), Step(15.0, 8.0, 3_000.0, 0.1, False)]
    found = overload_results(evidence(*served, *rejected, stages=stages), steps, 5.0, 10.0)
    assert (found["peak_orders_per_s"], found["sustainable_visits_per_s"]) == (10.0, 10.0)
    assert found["share_of_peak"] == pytest.approx(0.9, abs=0.02)
    assert (found["refused"], found["retry_after_s"], found["refusals_that_say_too_little"]) == (90, ["1"], [])


def test_a_rejection_without_a_reason_or_a_time_is_a_complaint() -> None:
    stages = (Stage(10.0, 5.0), Stage(20.0, 10.0))
    steps = [Step(10.0, 10.0, 100.0, 0.0, True)]
    silent = [order(6.0, answer="503"), order(6.0, answer="503 overloaded")._replace(retry_after="")]
    found = overload_results(evidence(order(6.0), *silent, stages=stages), steps, 5.0, 10.0)
    assert found["refusals_that_say_too_little"] == ["2 rejections lack a reason or Retry-After"]


def test_the_report_is_a_page_without_scripts_and_a_picture(tmp_path: Path) -> None:
    requests = [order(number / 4, seconds=0.05 + number / 1000) for number in range(40)]
    seen = evidence(*requests, order(3.0, answer="503 overloaded"), order(4.0, answer="409 <b>odd</b>"))
    seen.faults.append(Fault("broker: kill -9", BEGUN + 3.0, BEGUN + 5.0))
    seen.watched.lags["payable-orders"] = [(BEGUN, 3), (BEGUN + 2, 0)]
    seen.watched.processes["orders"] = [ProcessSample(BEGUN + at, at * 0.4, 120.0) for at in range(10)]
    seen.ending = Ending(2.0, 25, [], {"CLOSED": 7}, [0.01, 0.03, 0.5])
    options = LoadOptions(stages=[Stage(10.0, 10.0)])
    document = document_of("load", options, {"shop": "local processes"}, summarize(seen))
    text = page.page_of(document, page.draw(seen, document, tmp_path / "report.png"))
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in text
    assert "<script" not in text
    assert "<b>odd" not in text
    assert "all hold" in text
    assert "broker: kill -9" in text
