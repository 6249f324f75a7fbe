"""The bench: chosen workloads, every run on a store of its own; the results as a table, and checkouts side by side."""

from __future__ import annotations

import asyncio
import json
import math
import statistics
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hourglass_loadtest.machine import describe_code, describe_machine, describe_run, write_evidence
from hourglass_loadtest.run import Profiles, Result, RunError, Spread, run_once, write_profile
from hourglass_loadtest.workload import Kind, Replica, Workload, WorkloadError, load_workloads

WIDTH_MIN = 120  # also where the output is no terminal
PAIRS_MIN, PAIRS_DEFAULT = 6, 8
METRICS = ("msg_per_s", "p50_ms", "p99_ms", "broker_cpu_s_per_1000", "client_cpu_s_per_1000")
ERROR_LINES = 10


def choose(workloads: Sequence[Workload], only: Sequence[str], *, quick: bool) -> list[Workload]:
    """Those that are wanted, all of them without `only`. Raises WorkloadError for a name that there is not."""
    known = {workload.name for workload in workloads}
    for name in only:
        if name not in known:
            raise WorkloadError(f"there is no workload {name!r}; there are: {', '.join(sorted(known))}")
    chosen = [workload for workload in workloads if not only or workload.name in only]
    return [workload.quick() for workload in chosen] if quick else chosen


def turns(workloads: Sequence[Workload]) -> Iterator[Workload]:
    """Each as often as it is to be run: one after the other, but those of one comparison in turns."""
    groups: dict[str, list[Workload]] = {}
    for workload in workloads:
        groups.setdefault(f"comparison {workload.comparison}" if workload.comparison else workload.name, []).append(
            workload
        )
    for group in groups.values():
        for number in range(max(workload.runs for workload in group)):
            yield from (workload for workload in group if number < workload.runs)


async def run_bench(workloads: Sequence[Workload], out: Path | None, console: Console) -> None:
    """Run, print the table, and write the results to `out`. Raises RunError, ProcessError, OSError."""
    head = describe_run()
    runs: dict[str, list[dict[str, float]]] = {workload.name: [] for workload in workloads}
    for workload in turns(workloads):
        done = runs[workload.name]
        with console.status(f"{workload.name}, run {len(done) + 1} of {workload.runs}", refresh_per_second=1):
            done.append(await run_once(workload))
    results = [Result(workload, runs[workload.name]) for workload in workloads]
    print_report(console, results, head["machine"])
    if out is not None:
        write_evidence(out, head | {"results": {result.workload.name: result.to_dict() for result in results}}, console)


async def run_profile(workload: Workload, out: Path, console: Console) -> None:
    """One run with broker and client under cProfile; their statistics go to `out`.

    Raises WorkloadError unless it is a produce workload, and what `run_bench` raises.
    """
    if workload.kind is not Kind.PRODUCE:
        raise WorkloadError(f"{workload.name} is of kind {workload.kind}; only produce workloads are profiled")
    code = describe_code(Path.cwd())
    with TemporaryDirectory(prefix="hourglass-profile-") as folder:
        profiles = Profiles(Path(folder) / "broker.prof", Path(folder) / "client.prof")
        with console.status(f"{workload.name} under cProfile"):
            metrics = await run_once(workload, profiles)
        write_profile(out, workload, profiles, metrics, code)
    console.print(f"Written to {out}.", highlight=False, soft_wrap=True)


# Column -> the metric in it, and how it is written.
_COLUMNS = {
    "msg/s": ("msg_per_s", "{:,.0f}"),
    "p50 ms": ("p50_ms", "{:.2f}"),
    "p99 ms": ("p99_ms", "{:.2f}"),
    "broker CPU": ("broker_cpu_s_per_1000", "{:.4f}"),
    "client CPU": ("client_cpu_s_per_1000", "{:.4f}"),
    "peak MiB": ("broker_rss_peak_mib", "{:.0f}"),
}


def print_report(console: Console, results: Sequence[Result], machine: Mapping[str, Any]) -> None:
    """Of each workload the median, and below it the smallest and the largest of its runs."""
    console.width = max(console.width, WIDTH_MIN)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("workload", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        spreads = result.spreads
        table.add_row(
            f"{result.workload.name}\n[dim]{len(result.runs)} runs[/dim]",
            *(_cell(spreads.get(metric), form) for metric, form in _COLUMNS.values()),
        )
    console.print(table)
    for line in (*filter(None, map(_remark, results)), *comparisons(results), _machine(machine)):
        console.print(line, highlight=False, soft_wrap=True)


def _cell(spread: Spread | None, form: str) -> str:
    if spread is None:
        return ""
    return f"{form.format(spread.median)}\n[dim]{form.format(spread.min)}-{form.format(spread.max)}[/dim]"


def _remark(result: Result) -> str | None:
    """What has no column."""
    workload = result.workload
    make = _REMARKS.get(workload.kind)
    sentence = make(workload, result.spreads) if make else None
    return f"{workload.name}: {sentence}" if sentence else None


def _of_memory(workload: Workload, spreads: Mapping[str, Spread]) -> str:
    idle, stored = spreads["rss_idle_mib"].median, spreads["rss_stored_mib"].median
    return f"{idle:.0f} MiB idle, {stored:.0f} MiB with {workload.messages:,} messages stored"


def _of_lateness(workload: Workload, spreads: Mapping[str, Spread]) -> str | None:
    if "broker_p50_ms" not in spreads:
        return None
    sentence = (
        f"{spreads['early'].max:,.0f} of {workload.messages:,} messages came early; the broker delivered them "
        f"{spreads['broker_p50_ms'].median:.0f} / {spreads['broker_p99_ms'].median:.0f} ms late (p50 / p99), "
        f"and none arrived more than {spreads['max_ms'].max:.1f} ms late"
    )
    if workload.beside_per_s:
        before, meanwhile = spreads["send_before_p99_ms"].median, spreads["send_meanwhile_p99_ms"].median
        sentence += f"; {workload.beside_per_s} sends a second beside it took {before:.2f} ms (p99) before, and "
        sentence += f"{meanwhile:.2f} ms meanwhile"
    return sentence


def _of_waiting(workload: Workload, spreads: Mapping[str, Spread]) -> str:
    now = {name: spread.median for name, spread in spreads.items()}
    return (
        f"{now['rss_before_mib']:.0f} MiB before, {now['rss_waiting_mib']:.0f} MiB with {workload.messages:,} messages "
        f"waiting, {now['rss_restarted_mib']:.0f} MiB after a restart; started in {now['start_after_stop_s']:.2f} s "
        f"after a stop, {now['start_after_kill_s']:.2f} s after a kill, {now['start_empty_s']:.2f} s when empty; plain "
        f"messages {now['alone_msg_per_s']:,.0f} a second alone, {now['beside_msg_per_s']:,.0f} beside them"
    )


def _of_lag(workload: Workload, spreads: Mapping[str, Spread]) -> str:
    now = {name: spread.median for name, spread in spreads.items()}
    return (
        f"at {now['msg_per_s']:,.0f} messages a second the replica was "
        f"{now['lag_p50_ms']:.1f} / {now['lag_p99_ms']:.1f} ms behind (p50 / p99), "
        f"{now['lag_p50_bytes'] / 1024:,.0f} / {now['lag_p99_bytes'] / 1024:,.0f} KiB; it was "
        f"asked every {now['look_p50_ms']:.1f} ms"
    )


def _of_catch_up(workload: Workload, spreads: Mapping[str, Spread]) -> str:
    now = {name: spread.median for name, spread in spreads.items()}
    return (
        f"an empty replica had all {now['log_mib']:,.0f} MiB {now['catch_up_s']:.1f} s after its start "
        f"({now['catch_up_max_s']:.1f} s at the most): {now['catch_up_mib_per_s']:,.0f} MiB a second"
    )


def comparisons(results: Sequence[Result]) -> list[str]:
    """What replicas cost, of all comparisons of which the variant without a replica was run too."""
    rates = [(one.workload, one.spreads["msg_per_s"].median) for one in results if one.workload.comparison]
    plain = {workload.comparison: rate for workload, rate in rates if workload.slave is Replica.NONE}
    return [
        f"{workload.name}: {1 - rate / plain[workload.comparison]:.0%} fewer messages a second than with no replica"
        for workload, rate in rates
        if workload.slave is not Replica.NONE and workload.comparison in plain
    ]


_REMARKS: Mapping[Kind, Callable[[Workload, Mapping[str, Spread]], str | None]] = {
    Kind.MEMORY: _of_memory,
    Kind.LATENCY: _of_lateness,
    Kind.DUE: _of_lateness,
    Kind.WAITING: _of_waiting,
    Kind.LAG: _of_lag,
    Kind.CATCH_UP: _of_catch_up,
}


def _machine(machine: Mapping[str, Any]) -> str:
    return (
        "Medians, and smallest-largest run. CPU is in seconds for 1,000 messages, memory the broker's; latency counts "
        "from the intended time.\n"
        f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, Python {machine['python']}, "
        f"grpcio {machine['grpcio']}, uvloop {machine['uvloop']}, fdatasync {machine['fdatasync_ms']} ms"
    )


# Two checkouts side by side: the same workloads in turns, and the ratio of each pair of runs.
#
# A machine that gets slower or faster meanwhile does so for both checkouts of a pair, and which of the two runs first
# alternates. The interval is distribution-free: between the k-th smallest and the k-th largest ratio, with the largest
# k that still covers the median of all ratios in 95 % of cases; with fewer than six pairs no k does.

COVERAGE = 0.95


@dataclass(frozen=True, slots=True)
class Ratio:
    """Here divided by there, over all pairs; `low` and `high` are the interval's ends."""

    median: float
    low: float
    high: float


def ratio_of(here: Sequence[float], there: Sequence[float]) -> Ratio:
    """Of paired values above 0. Raises ValueError with fewer than six pairs."""
    if len(here) != len(there) or len(here) < PAIRS_MIN:
        raise ValueError(f"{len(here)} and {len(there)} values; an interval needs at least {PAIRS_MIN} pairs")
    ratios = sorted(mine / other for mine, other in zip(here, there, strict=True))
    count = len(ratios)
    outside, k = 0.0, 0  # the chance that fewer than k ratios lie on one side of the median
    while outside + math.comb(count, k) / 2**count <= (1 - COVERAGE) / 2:
        outside += math.comb(count, k) / 2**count
        k += 1
    return Ratio(statistics.median(ratios), ratios[k - 1], ratios[count - k])


def add_compare_parser(commands: Any, workloads: Path) -> None:
    """The command `compare`."""
    parser: ArgumentParser = commands.add_parser("compare", help="run workloads here and in another checkout, in turns")
    parser.add_argument("other", type=Path, help="folder of the other checkout, with a .venv of its own")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this workload; may be repeated")
    parser.add_argument("--pairs", type=int, default=PAIRS_DEFAULT, help=f"default: {PAIRS_DEFAULT}; from {PAIRS_MIN}")
    parser.add_argument("--out", type=Path, metavar="FILE", help="for the results")
    parser.add_argument("--workloads", type=Path, default=workloads, metavar="FOLDER", help=f"default: {workloads}")


async def run_compare(options: Namespace, console: Console) -> None:
    """Run, print the table, write the results. Raises WorkloadError, RunError, OSError."""
    if options.pairs < PAIRS_MIN:
        raise WorkloadError(f"--pairs {options.pairs}: an interval needs at least {PAIRS_MIN}")
    here, there = Path.cwd(), options.other.resolve()
    if not _python(there).exists():
        raise WorkloadError(f"{there} has no .venv: run make setup there")
    folder = options.workloads.resolve()
    known = [workload.name for workload in load_workloads(folder)]
    if unknown := sorted(set(options.only) - set(known)):
        raise WorkloadError(f"there is no workload {unknown[0]!r}; there are: {', '.join(known)}")
    names = options.only or known
    runs: dict[str, dict[Path, list[dict[str, float]]]] = {name: {here: [], there: []} for name in names}
    for number in range(options.pairs):
        for name in names:
            for checkout in (here, there) if number % 2 else (there, here):
                with console.status(f"{name}, pair {number + 1} of {options.pairs}, in {checkout}"):
                    runs[name][checkout].append(await _medians(checkout, folder, name))
    ratios = {name: _ratios(pairs[here], pairs[there]) for name, pairs in runs.items()}
    _print(console, ratios)
    if options.out is not None:
        document = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "here": describe_code(here),
            "there": describe_code(there),
            "machine": describe_machine(),
            "pairs": options.pairs,
            "ratios": {name: {metric: asdict(one) for metric, one in found.items()} for name, found in ratios.items()},
            "here_runs": {name: pairs[here] for name, pairs in runs.items()},
            "there_runs": {name: pairs[there] for name, pairs in runs.items()},
        }
        write_evidence(options.out, document, console)


async def _medians(checkout: Path, workloads: Path, name: str) -> dict[str, float]:
    """One bench of one workload in that checkout, by its own code; the medians of its runs."""
    with TemporaryDirectory(prefix="hourglass-compare-") as folder:
        out = Path(folder) / "results.json"
        process = await asyncio.create_subprocess_exec(
            _python(checkout), "-m", "hourglass_loadtest", "bench",
            "--workloads", workloads, "--only", name, "--out", out,
            cwd=checkout, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            _, errors = await process.communicate()
        except asyncio.CancelledError:
            process.terminate()  # it stops its own processes
            await process.wait()
            raise
        if process.returncode != 0:
            end = "\n".join(errors.decode(errors="replace").splitlines()[-ERROR_LINES:])
            raise RunError(f"{name} in {checkout}: the bench ended with code {process.returncode}:\n{end}")
        summary = json.loads(out.read_text(encoding="utf-8"))["results"][name]["summary"]
        return {metric: summary[metric]["median"] for metric in METRICS if metric in summary}


def _python(checkout: Path) -> Path:
    return checkout / ".venv" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def _ratios(here: Sequence[dict[str, float]], there: Sequence[dict[str, float]]) -> dict[str, Ratio]:
    metrics = [one for one in METRICS if all(run.get(one, 0) > 0 for run in (*here, *there))]
    return {one: ratio_of([run[one] for run in here], [run[one] for run in there]) for one in metrics}


def _print(console: Console, ratios: dict[str, dict[str, Ratio]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, title="this checkout divided by the other one; 95 % interval of the median")
    for column in ("workload", "metric", "median", "interval"):
        table.add_column(column, no_wrap=True)
    for name, found in ratios.items():
        for metric, one in found.items():
            table.add_row(name, metric, f"{one.median:.3f}", f"{one.low:.3f} to {one.high:.3f}")
    console.print(table)
