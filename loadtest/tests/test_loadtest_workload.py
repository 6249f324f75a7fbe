"""Workload files: those of the project can be run, and bad ones are rejected with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from hourglass_loadtest.bench import choose, comparisons, turns
from hourglass_loadtest.measure.clients import latency_metrics, percentile
from hourglass_loadtest.measure.latency import lag_metrics
from hourglass_loadtest.run import Result, Spread
from hourglass_loadtest.workload import Flush, Kind, WorkloadError, load_workload, load_workloads, parse_workload

WORKLOADS = Path(__file__).parents[1] / "workloads"
GOOD = "name: w\nkind: produce\nmessages: 10\n"
DUE, WAITING, LAG = (GOOD.replace("produce", kind) for kind in ("due", "waiting", "lag"))


def test_every_workload_file_of_the_project_can_be_run() -> None:
    workloads = load_workloads(WORKLOADS)
    assert {workload.name for workload in workloads} >= {
        "produce-1", "produce-64", "produce-256", "produce-64-sync", "produce-1-sync",
        "consume-backlog-50000", "end-to-end-500-per-s", "memory", "delay-lateness", "delay-timed-lateness",
        "delay-same-millisecond", "delay-waiting-1000000", "delay-waiting-1000000-level",
        "produce-64-no-slave", "produce-64-async-slave", "produce-64-sync-slave",
        "replication-lag", "replication-catch-up",
    }  # fmt: skip
    compared = [workload for workload in workloads if workload.kind not in (Kind.WAITING, Kind.CATCH_UP)]
    assert all(workload.body_bytes == 1024 and workload.runs >= 3 for workload in compared)
    assert all((workload.flush is Flush.SYNC_FLUSH) == workload.name.endswith("-sync") for workload in workloads)
    assert all(workload.description for workload in workloads)


def test_a_workload_survives_the_way_to_the_client() -> None:
    for workload in load_workloads(WORKLOADS):
        assert parse_workload(workload.to_dict()).to_dict() == workload.to_dict()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: [", "is not YAML: .*line 1"),
        ("- name", "a workload is a list of fields"),
        ("", "a workload is a list of fields"),
        (GOOD + "in_fligth: 3", "unknown field 'in_fligth'; did you mean in_flight"),
        (GOOD + "zzz: 3", "unknown field 'zzz'; there are: name, kind, messages"),
        ("name: w\nkind: produce", "fields without a value: messages"),
        (
            "name: w\nkind: producer\nmessages: 1",
            "kind is 'producer'; allowed are produce, consume, latency, memory, due, waiting, lag, catch-up",
        ),
        (GOOD + "flush: NONE", "flush is 'NONE'; allowed are ASYNC_FLUSH, SYNC_FLUSH"),
        (GOOD + "flush: no", "flush is False; allowed are ASYNC_FLUSH, SYNC_FLUSH"),
        (GOOD + "in_flight: 0", "in_flight is 0; allowed are 1 to 100,000"),
        (GOOD + "in_flight: many", "in_flight is 'many'; it has to be a whole number"),
        (GOOD + "in_flight: true", "in_flight is True; it has to be a whole number"),
        (GOOD + "in_flight: 1.5", "in_flight is 1.5; it has to be a whole number"),
        (GOOD + "description: 1", "description is 1; it has to be text"),
        (GOOD + "body_bytes: 7", "body_bytes is 7; allowed are 8 to 4,194,304"),
        (GOOD + "rate_per_s: 10", "rate_per_s means nothing for a workload of kind produce"),
        (GOOD + "listener_batch: 10", "listener_batch means nothing for a workload of kind produce"),
        (GOOD + "delay_level: 1", "delay_level means nothing for a workload of kind produce"),
        (GOOD + "due_within_ms: 1", "due_within_ms means nothing for a workload of kind produce"),
        (GOOD + "beside_per_s: 1", "beside_per_s means nothing for a workload of kind produce"),
        (GOOD + "plain_messages: 1", "plain_messages means nothing for a workload of kind produce"),
        (GOOD + "runs: 2", "runs is 2; the median needs at least 3"),
        (GOOD.replace("w", "v"), "the name is 'v'; it has to be that of the file, 'w'"),
        ("name: w\nkind: latency\nmessages: 10", "rate_per_s is 0; allowed are 1 to"),
        (
            "name: w\nkind: latency\nmessages: 10\nrate_per_s: 5\ndelay_level: 9",
            "delay_level is 9; allowed are 0, 1, 2$",
        ),
        (WAITING + "delay_level: 1", "delay_level is 1; allowed are 0, 16, 17, 18$"),
        (WAITING + "plain_messages: 0", "plain_messages is 0; allowed are 1 to 10,000,000"),
        (WAITING + "due_within_ms: 5", "due_within_ms means nothing for a workload of kind waiting"),
        (WAITING + "rate_per_s: 5", "rate_per_s means nothing for a workload of kind waiting"),
        (DUE + "due_within_ms: -1", "due_within_ms is -1; allowed are 0 to 600,000"),
        (DUE + "beside_per_s: 100001", "beside_per_s is 100,001; allowed are 0 to 100,000"),
        (DUE + "delay_level: 1", "delay_level means nothing for a workload of kind due"),
        (DUE + "runs: 1", "runs is 1; the median needs at least 3"),
        (DUE + "slave: ASYNC", "slave means nothing for a workload of kind due"),
        (DUE + "rounds: 2", "rounds means nothing for a workload of kind due"),
        (DUE + "comparison: slaves", "comparison means nothing for a workload of kind due"),
        (GOOD + "slave: both", "slave is 'both'; allowed are NONE, ASYNC, SYNC"),
        (LAG, "slave is NONE; a workload of kind lag needs ASYNC"),
        (LAG + "slave: SYNC", "slave is SYNC; a workload of kind lag needs ASYNC"),
    ],
)
def test_bad_workload_file_is_rejected(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=sentence) as rejected:
        load_workload(path)
    assert str(path) in str(rejected.value)


def test_folder_without_workloads_and_a_file_that_is_no_text_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="there is no workload file"):
        load_workloads(tmp_path)
    (tmp_path / "w.yaml").write_bytes(b"\xff")
    with pytest.raises(WorkloadError, match="cannot be read"):
        load_workloads(tmp_path)


def test_chosen_workloads_are_those_that_were_named() -> None:
    workloads = load_workloads(WORKLOADS)
    assert choose(workloads, [], quick=False) == workloads
    (one,) = choose(workloads, ["produce-1"], quick=True)
    assert (one.name, one.runs, one.messages) == ("produce-1", 1, 200)
    (waiting,) = choose(workloads, ["delay-waiting-1000000"], quick=True)
    assert (waiting.runs, waiting.messages, waiting.warm_up_messages, waiting.plain_messages) == (1, 200, 50, 200)
    with pytest.raises(WorkloadError, match=r"there is no workload 'produce-2'; there are: .*produce-256"):
        choose(workloads, ["produce-2"], quick=False)


def test_workloads_of_one_comparison_take_turns() -> None:
    one, other, alone = (
        parse_workload({"name": name, "kind": "produce", "messages": 1, "runs": runs, "comparison": comparison})
        for name, runs, comparison in (("one", 3, "slaves"), ("other", 2, "slaves"), ("alone", 2, ""))
    )
    names = [workload.name for workload in turns([one, alone, other])]
    assert names == ["one", "other", "one", "other", "one", "alone", "alone"]


def test_report_says_what_replicas_cost() -> None:
    results = [
        Result(parse_workload({"name": name, "kind": "produce", "messages": 1} | fields), [{"msg_per_s": rate}])
        for name, rate, fields in (
            ("no-slave", 200.0, {"comparison": "slaves"}),
            ("sync-slave", 150.0, {"comparison": "slaves", "slave": "SYNC"}),
            ("lonely", 100.0, {"comparison": "others", "slave": "SYNC"}),
            ("plain", 400.0, {}),
        )
    ]
    assert comparisons(results) == ["sync-slave: 25% fewer messages a second than with no replica"]


# Acknowledged at 1.0, 2.0 and 3.0 s; the tests say when the replica was seen with how much of the log.
ACKNOWLEDGED = [(1.0, 0), (2.0, 100), (3.0, 200)]


def test_lag_counts_from_the_acknowledgement_to_the_first_answer_with_the_message() -> None:
    metrics = lag_metrics(ACKNOWLEDGED, [(0.5, 0), (1.5, 50), (2.5, 100), (2.75, 150), (5.0, 300)])
    assert (metrics["lag_p50_ms"], metrics["lag_p99_ms"], metrics["lag_max_ms"]) == (750.0, 2000.0, 2000.0)


def test_what_the_replica_has_before_the_acknowledgement_has_no_lag() -> None:
    metrics = lag_metrics(ACKNOWLEDGED, [(0.9, 300), (3.5, 300)])
    assert (metrics["lag_max_ms"], metrics["lag_max_bytes"]) == (0.0, 0.0)


def test_lag_in_bytes_is_what_was_acknowledged_and_is_not_there() -> None:
    metrics = lag_metrics(ACKNOWLEDGED, [(0.5, 0), (2.5, 40), (3.0, 50), (4.0, 300)])
    assert (metrics["lag_p50_bytes"], metrics["lag_max_bytes"]) == (60.0, 150.0)  # of 0, 60 and 150
    assert metrics["look_p50_ms"] == 1000.0


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert [percentile(values, percent) for percent in (0, 1, 50, 99, 100)] == [1, 1, 50, 99, 100]
    assert percentile([7.0], 99) == 7
    assert latency_metrics([0.001, 0.002, 0.003]) == {"p50_ms": 2, "p99_ms": 3, "max_ms": 3}


def test_result_has_the_median_and_the_extremes_of_its_runs() -> None:
    workload = parse_workload({"name": "w", "kind": "produce", "messages": 1})
    result = Result(workload, [{"msg_per_s": rate} for rate in (3.0, 1.0, 9.0)])
    assert result.spreads == {"msg_per_s": Spread(median=3, min=1, max=9)}
    assert result.to_dict()["runs"] == [{"msg_per_s": 3}, {"msg_per_s": 1}, {"msg_per_s": 9}]
    assert workload.kind is Kind.PRODUCE
