"""What telemetry costs a producer: `python -m hourglass_loadtest telemetry`.

One client with 64 messages under way, against a broker of its own for each variant; all brokers stay up, and the
variants take turns, forth and back, so that whatever the machine does meanwhile happens to all of them:

    before      the code of a commit without telemetry, broker and client
    off         this code, with nothing of OpenTelemetry's set
    metrics     metrics over OTLP, and no traces
    1 percent   traces and metrics over OTLP, one trace in a hundred sampled
    all         the same, everything sampled

The receiver counts spans and keeps nothing; it runs in this process, on the same machine.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hourglass_loadtest.machine import describe_run, write_evidence
from hourglass_loadtest.run import COMMIT_LOG_FILE_BYTES, Result, RunError, run_client
from hourglass_loadtest.workload import Flush, Kind, Workload
from hourglass_local.cluster import Cluster
from telemetry.testing.otlp_receiver import OtlpReceiver

WITHOUT_TELEMETRY = "0738947"  # the last commit before the client was traced
SOURCES = ("libs/*/src", "services/*/src", "deploy/local/src", "loadtest/src", "tools/*/src")
ROUNDS, ROUNDS_QUICK = 9, 1
MESSAGES, MESSAGES_QUICK = 60_000, 200
WARM_UP_MESSAGES, WARM_UP_QUICK = 5_000, 50
COST_PERCENT_MAX = 3.0
BEFORE, OFF, METRICS, ONE_PERCENT, ALL = "before", "off", "metrics", "1 percent", "all"
FILE_NAME = "telemetry-benchmarks.json"


@dataclass(frozen=True, slots=True)
class Cost:
    """How much less one variant does than another, over the pairs of one round each; in percent, below 0 is more."""

    throughput_median: float
    throughput_min: float
    throughput_max: float
    client_cpu_median: float  # processor time for a message: how much more
    broker_cpu_median: float

    @classmethod
    def of(cls, one: Sequence[Mapping[str, float]], other: Sequence[Mapping[str, float]]) -> Cost:
        """Of `one`, compared with `other`."""
        slower = [100 * (1 - a["msg_per_s"] / b["msg_per_s"]) for a, b in zip(one, other, strict=True)]
        return cls(
            statistics.median(slower),
            min(slower),
            max(slower),
            *(_more(one, other, process) for process in ("client", "broker")),
        )


def _more(one: Sequence[Mapping[str, float]], other: Sequence[Mapping[str, float]], process: str) -> float:
    name = f"{process}_cpu_s_per_1000"
    return statistics.median(100 * (a[name] / b[name] - 1) for a, b in zip(one, other, strict=True) if b[name])


def turns(names: Sequence[str], rounds: int) -> list[str]:
    """The order of the runs: forth in one round and back in the next."""
    return [name for number in range(rounds) for name in (names if number % 2 == 0 else reversed(names))]


def add_telemetry_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], evidence: Path) -> None:
    """The command and its options."""
    command = commands.add_parser("telemetry", help="what telemetry costs a producer: off, sampled, and without it")
    command.add_argument("--rounds", type=int, default=ROUNDS, help=f"of all variants; default {ROUNDS}")
    command.add_argument("--messages", type=int, default=MESSAGES, help=f"of one run; default {MESSAGES:,}")
    command.add_argument(
        "--before", default=WITHOUT_TELEMETRY, metavar="COMMIT", help=f"without telemetry; default {WITHOUT_TELEMETRY}"
    )
    command.add_argument("--quick", action="store_true", help="a few messages and one round: shows that it works")
    command.add_argument(
        "--out", type=Path, metavar="FILE", help=f"for the results; default {evidence}/{FILE_NAME} unless --quick"
    )
    command.set_defaults(evidence=evidence)


async def run_telemetry(options: argparse.Namespace, console: Console) -> int:
    """Measure, print, write; 1 when telemetry that is off costs too much. Raises RunError, ProcessError, OSError."""
    workload = _workload(options)
    head = describe_run()
    with TemporaryDirectory(prefix="hourglass-telemetry-") as folder, OtlpReceiver(keep=False) as receiver:
        tree = unpack(Path.cwd(), options.before, Path(folder) / "before")
        environments = variants(tree, receiver.endpoint)
        runs = await _measure(Path(folder), environments, workload, receiver, console)
    results = [Result(workload, runs[name]) for name in environments]
    document = head | _document(environments, results, options.before)
    _print(console, list(environments), results, document)
    out = options.out or (None if options.quick else options.evidence / FILE_NAME)
    if out is not None:
        write_evidence(out, document, console)
    return 0 if options.quick or document["claim"]["holds"] else 1


def variants(tree: Path, endpoint: str) -> dict[str, dict[str, str]]:
    """What the processes of each variant find in their environment; nothing of OpenTelemetry's from outside."""
    cleared = {name: "" for name in os.environ if name.startswith("OTEL_")}
    sources = [str(source) for pattern in SOURCES for source in sorted(tree.glob(pattern))]
    exporting = cleared | {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
    return {
        BEFORE: cleared | {"PYTHONPATH": os.pathsep.join(sources)},
        OFF: cleared,
        METRICS: exporting | {"OTEL_TRACES_EXPORTER": "none"},
        ONE_PERCENT: exporting | {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"},
        ALL: exporting | {"OTEL_TRACES_SAMPLER": "parentbased_always_on"},
    }


def unpack(root: Path, commit: str, folder: Path) -> Path:
    """The files of a commit of the repository at `root`, in `folder`. Raises RunError when it has no such commit."""
    made = subprocess.run(["git", "archive", "--format=tar", commit], cwd=root, capture_output=True, check=False)
    if made.returncode != 0:
        raise RunError(f"the code of {commit} cannot be had: {made.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


async def _measure(
    folder: Path,
    environments: Mapping[str, Mapping[str, str]],
    workload: Workload,
    receiver: OtlpReceiver,
    console: Console,
) -> dict[str, list[dict[str, float]]]:
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in environments}
    async with AsyncExitStack() as stack:
        clusters = {}
        for name, environment in environments.items():
            cluster = Cluster(
                folder / name.replace(" ", "-"),
                orders=False,
                flush=Flush.ASYNC_FLUSH,
                commit_log_file_bytes=COMMIT_LOG_FILE_BYTES,
                environment=environment,
            )
            clusters[name] = await stack.enter_async_context(cluster)
        for name in turns(list(environments), workload.runs):
            cluster = clusters[name]
            with console.status(f"{name}, round {len(runs[name]) + 1} of {workload.runs}", refresh_per_second=1):
                receiver.clear()
                metrics = await run_client(cluster.url, cluster.brokers[0].pid, workload, None, environments[name])
                cluster.check()
            runs[name].append(metrics | {"spans_received": float(receiver.span_count)})
    return runs


def _workload(options: argparse.Namespace) -> Workload:
    return Workload(
        name="telemetry",
        description="one producer with 64 messages under way",
        kind=Kind.PRODUCE,
        messages=MESSAGES_QUICK if options.quick else options.messages,
        warm_up_messages=WARM_UP_QUICK if options.quick else WARM_UP_MESSAGES,
        in_flight=64,
        flush=Flush.ASYNC_FLUSH,
        runs=ROUNDS_QUICK if options.quick else options.rounds,
    )


def _document(names: Mapping[str, Any], results: Sequence[Result], commit: str) -> dict[str, Any]:
    runs = {name: result.runs for name, result in zip(names, results, strict=True)}
    costs = {name: Cost.of(runs[name], runs[BEFORE]) for name in names if name != BEFORE}
    off = costs[OFF]
    return {
        "before": commit,
        "claim": {
            "sentence": f"telemetry that is off costs under {COST_PERCENT_MAX:g} % of produce throughput",
            "cost_percent": round(off.throughput_median, 2),
            "holds": off.throughput_median < COST_PERCENT_MAX,
        },
        "costs_percent": {
            name: {field: round(getattr(cost, field), 2) for field in cost.__dataclass_fields__}
            for name, cost in costs.items()
        },
        "results": {name: result.to_dict() for name, result in zip(names, results, strict=True)},
    }


def _print(console: Console, names: Sequence[str], results: Sequence[Result], document: Mapping[str, Any]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("telemetry", "msg/s", "p99 ms", "client CPU", "broker CPU", "spans", "cost %"):
        table.add_column(name, justify="left" if name == "telemetry" else "right", no_wrap=True)
    for name, result in zip(names, results, strict=True):
        now = {metric: spread.median for metric, spread in result.spreads.items()}
        cost = document["costs_percent"].get(name)
        table.add_row(
            name,
            f"{now['msg_per_s']:,.0f}",
            f"{now['p99_ms']:.2f}",
            f"{now['client_cpu_s_per_1000']:.4f}",
            f"{now['broker_cpu_s_per_1000']:.4f}",
            f"{now['spans_received']:,.0f}",
            "" if cost is None else f"{cost['throughput_median']:.1f}",
        )
    console.print(table)
    claim = document["claim"]
    verdict = "holds" if claim["holds"] else "DOES NOT HOLD"
    console.print(
        f"{claim['sentence']}: {verdict}, {claim['cost_percent']:.1f} % (median of {len(results[0].runs)} pairs).",
        highlight=False,
        soft_wrap=True,
    )
