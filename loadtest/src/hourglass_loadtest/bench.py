"""The bench: chosen workloads, one after the other, every run on a store of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from hourglass_loadtest.machine import describe_code, describe_machine
from hourglass_loadtest.report import print_report
from hourglass_loadtest.run import Profiles, Result, run_once, write_profile, write_results
from hourglass_loadtest.workload import Kind, Workload, WorkloadError


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
    code, machine = describe_code(Path.cwd()), describe_machine()
    runs: dict[str, list[dict[str, float]]] = {workload.name: [] for workload in workloads}
    for workload in turns(workloads):
        done = runs[workload.name]
        with console.status(f"{workload.name}, run {len(done) + 1} of {workload.runs}", refresh_per_second=1):
            done.append(await run_once(workload))
    results = [Result(workload, runs[workload.name]) for workload in workloads]
    print_report(console, results, machine)
    if out is not None:
        write_results(out, results, code, machine)
        console.print(f"Written to {out}.", highlight=False, soft_wrap=True)


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
