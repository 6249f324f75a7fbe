"""The comparison with other queues: order, arrivals, meters, tables; and each installed queue for a moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hourglass_loadtest.measure.clients import MeasureError
from hourglass_loadtest.peers.command import choose, orders
from hourglass_loadtest.peers.load import BACKLOG, PACED, Arrivals, body_of
from hourglass_loadtest.peers.meter import counted
from hourglass_loadtest.peers.registry import OURS, OURS_DURABLE, PEERS
from hourglass_loadtest.peers.report import draw, figures_of, lost, ratios, summary, write_page
from hourglass_loadtest.workload import WorkloadError

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 180


def test_every_round_has_every_queue_once_and_a_seed_gives_the_same_order_again() -> None:
    rounds = orders(["a", "b", "c", "d"], 5, seed=7)
    assert all(sorted(names) == ["a", "b", "c", "d"] for names in rounds)
    assert len({tuple(names) for names in rounds}) > 1
    assert rounds == orders(["a", "b", "c", "d"], 5, seed=7) != orders(["a", "b", "c", "d"], 5, seed=8)


def test_words_choose_and_leave_out_queues() -> None:
    names = ["Redis", "Redis, always", "Kafka"]
    assert choose(names, [], []) == names
    assert choose(names, ["redis"], ["ALWAYS"]) == ["Redis"]
    with pytest.raises(WorkloadError, match="no peer with 'sqs' in its name; there are: Redis, Redis, always, Kafka"):
        choose(names, [], ["sqs"])


def test_backlog_is_counted_and_other_messages_are_told_apart() -> None:
    arrivals = Arrivals()
    arrivals.backlog_left = 3
    arrivals([body_of(BACKLOG, 0), body_of(BACKLOG, 0), body_of(PACED, 4)])
    assert (arrivals.backlog_left, arrivals.first_batch) == (1, 2)
    assert set(arrivals.at) == {(PACED, 4)}
    assert arrivals.last_at <= time.perf_counter()


async def test_message_that_comes_twice_spoils_the_figure() -> None:
    arrivals = Arrivals()
    arrivals([body_of(PACED, 0)])
    assert len(await arrivals.wait_for(PACED, 1)) == 1
    arrivals([body_of(PACED, 0)])
    with pytest.raises(MeasureError, match="1 messages arrived twice"):
        await arrivals.wait_for(PACED, 1)


def test_fsyncs_are_counted_only_when_perf_has_counted_all_calls() -> None:
    lines = [f"{count},,syscalls:sys_enter_{call},1,100.00,," for count, call in ((3, "fsync"), (4, "fdatasync"))]
    assert counted("\n".join([*lines, "5,,syscalls:sys_enter_msync,1,100.00,,"])) == 12
    assert counted("\n".join([*lines, "<not supported>,,syscalls:sys_enter_msync,0,100.00,,"])) is None
    assert counted("Error: no permission") is None


def peer(rate: float, p99_ms: float, *, durable: bool = False) -> dict[str, Any]:
    runs = [
        {
            "figures": {"produce_1": {"msg_per_s": rate * factor}, "end_to_end": {"p99_ms": p99_ms}},
            "load_average_before": 0.5,
        }
        for factor in (1.0, 0.5, 2.0)
    ]
    return {
        "durable": durable, "settings": {"sync": "no"}, "versions": {"server": "1", "client": "2"},
        "figures": summary(runs), "runs": runs,
    }  # fmt: skip


def document() -> dict[str, Any]:
    peers = {OURS: peer(100, 2.0), OURS_DURABLE: peer(50, 4.0, durable=True), "X": peer(200, 4.0),
             "Y": peer(25, 2.0, durable=True)}  # fmt: skip
    return {
        "time": "2026-01-01", "commit": "0123456789", "filesystem": "ext4", "seed": 1, "rounds": [[]] * 3,
        "seconds": 1.0, "machine": {"cores": 2, "cpu": "one", "python": "3.11", "fdatasync_ms": 0.1},
        "peers": peers, "ratios": ratios(peers), "left_out": {"Z": "not installed: z"}, "failed": {},
    }  # fmt: skip


def test_summary_has_median_smallest_and_largest() -> None:
    assert peer(100, 2.0)["figures"]["produce_1"]["msg_per_s"] == {"median": 100, "min": 50, "max": 200}


def test_ratios_compare_what_is_synced_with_what_is_synced_and_losses_are_named() -> None:
    found = document()
    assert found["ratios"]["1 in flight, msg/s"] == {"X": 0.5, "Y": 2.0}
    assert found["ratios"]["end to end p99, ms"] == {"X": 0.5, "Y": 2.0}
    assert lost(found) == {"1 in flight, msg/s": ["X"], "end to end p99, ms": ["Y"]}


def test_page_and_plot_have_every_queue(tmp_path: Path) -> None:
    text = figures_of(document(), "peers.svg")
    assert "| Y (d) | 25 |" in text
    assert "- 1 in flight, msg/s: behind X." in text
    assert "Left out: Z: not installed: z." in text
    draw(tmp_path / "peers.svg", document())
    assert all(f">{name}<" in (tmp_path / "peers.svg").read_text() for name in (OURS, OURS_DURABLE, "X", "Y"))


def test_page_and_plot_are_written_when_every_queue_has_failed(tmp_path: Path) -> None:
    nothing = document() | {"peers": {}, "ratios": {}, "failed": {"X": ["round 1: broken"]}}
    write_page(tmp_path / "peers.md", tmp_path / "peers.svg", nothing)
    assert "Failed: X, 1 rounds" in (tmp_path / "peers.md").read_text()


def test_peers_say_their_settings() -> None:
    for name, (make, _) in PEERS.items():
        assert make().name == name
        assert make().settings


def measured(name: str, folder: Path) -> dict[str, Any]:
    """One round of about a second a figure, in a process of its own."""
    out = folder / "peers.json"
    command = [sys.executable, "-m", "hourglass_loadtest", "peers", "--only", name, "--out", str(out)]
    run = subprocess.run(
        [*command, "--seconds", "0.5", "--rounds", "1"],
        cwd=ROOT, env=os.environ | {"TMPDIR": str(folder)}, capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    assert not list(folder.glob("hourglass-peers-*"))
    return found


@pytest.mark.system
@pytest.mark.processes
@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.parametrize("name", ["Hourglass, synced"])
def test_queue_does_all_the_work_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    found = measured(name, tmp_path)
    figures = found["peers"][name]["figures"]
    assert set(figures) == {"produce_1", "produce_64", "drain", "end_to_end", "delay", "memory"}
    assert figures["produce_64"]["msg_per_s"]["min"] > 0
    assert figures["delay"]["early"]["max"] == 0
    assert figures["memory"]["idle_mib"]["min"] > 0
