"""A managed process: started, watched, stopped, killed, restarted, measured."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from hourglass_local.process import ManagedProcess, ProcessDiedError, ProcessError, ProcessNotReadyError
from hourglass_local.up import RESTARTS_MAX, Restarts
from hourglass_local.waiting import eventually

GOOD = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
sum(range(3_000_000))  # something to measure
sys.stdout.write(" ".join(["ready", *sys.argv[1:]]) + "\\n")  # at once: print would write word by word
sys.stdout.flush()
while True:
    time.sleep(60)
"""
STUBBORN = GOOD.replace("lambda *_: sys.exit(0)", "signal.SIG_IGN")
BROKEN = 'print("cannot start: no luck today"); raise SystemExit(3)'

pytestmark = pytest.mark.processes


@asynccontextmanager
async def managed(
    folder: Path, text: str, monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> AsyncIterator[ManagedProcess]:
    """A process that runs `text` and is ready when it has printed so."""
    (folder / "helper.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    log = folder / "logs/helper.log"

    async def ready() -> bool:
        return log.read_text().count("ready") == len(process.pids)

    process = ManagedProcess("helper", "helper", arguments, ready=ready, log_path=log)
    try:
        yield process
    finally:
        if process.running:
            await process.kill()


async def test_process_runs_the_module_with_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with managed(tmp_path, GOOD, monkeypatch, "a=1", "b c") as process:
        before = process.exit_code
        await process.start()
        assert process.running
        assert before is None
        assert process.tail() == "ready a=1 b c"
        process.check()
        await process.terminate()
        assert (process.exit_code, process.was_killed_to_stop) == (0, False)
        process.check()  # an end that was asked for is no death
        assert not psutil.pid_exists(process.pid)


async def test_process_that_ends_at_its_start_is_reported_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with managed(tmp_path, BROKEN, monkeypatch) as process:
        with pytest.raises(ProcessDiedError, match=r"(?s)helper has ended with code 3.*cannot start: no luck today"):
            await process.start()


async def test_process_that_never_gets_ready_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with managed(tmp_path, GOOD.replace('"ready"', '"soon"'), monkeypatch) as process:
        with pytest.raises(ProcessNotReadyError, match=r"helper is not ready after 0\.2 s"):
            await process.start(timeout_s=0.2)
        assert process.running


async def test_process_that_ignores_sigterm_is_killed_and_that_is_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with managed(tmp_path, STUBBORN, monkeypatch) as process:
        await process.start()
        await process.terminate(timeout_s=0.2)
        assert (process.exit_code, process.was_killed_to_stop) == (-signal.SIGKILL, True)


async def test_process_killed_on_purpose_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with managed(tmp_path, GOOD, monkeypatch) as process:
        await process.start()
        await process.kill()
        process.check()
        assert (process.exit_code, process.was_killed_to_stop) == (-signal.SIGKILL, False)
        await process.start()
        with pytest.raises(ProcessError, match="runs already"):
            process.launch()
        await process.terminate()
        assert len(set(process.pids)) == 2
        assert process.tail() == "ready\nready"


async def test_process_that_dies_by_itself_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with managed(tmp_path, GOOD, monkeypatch) as process:
        await process.start()
        os.kill(process.pid, signal.SIGKILL)
        await eventually(lambda: not process.running, 10)
        with pytest.raises(ProcessDiedError, match="code -9"):
            process.check()
        await process.terminate()
        assert not process.was_killed_to_stop


async def test_usage_counts_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with managed(tmp_path, GOOD, monkeypatch) as process:
        await process.start()
        await process.terminate()
        first = process.usage
        assert first.rss_peak_bytes > 1_000_000
        assert first.cpu_seconds > 0
        await process.start()
        await process.terminate()
        assert process.usage.cpu_seconds > first.cpu_seconds


def test_process_stops_when_its_parent_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = """
import asyncio
from pathlib import Path
from hourglass_local.process import ManagedProcess

async def main():
    async def ready(): return log.exists() and "ready" in log.read_text()
    log = Path("child.log")
    process = ManagedProcess("helper", "helper", ready=ready, log_path=log)
    await process.start()
    print(process.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""
    (tmp_path / "helper.py").write_text(GOOD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", parent], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        child = int(running.stdout.readline())
        assert psutil.pid_exists(child)
        running.kill()
        running.wait()
    asyncio.run(eventually(lambda: not is_alive(child), 10, "the child has stopped"))


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_process_that_dies_is_started_again_until_it_dies_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = io.StringIO()
    restarts = Restarts(Console(file=output, width=200), leave_down=False)
    async with managed(tmp_path, GOOD, monkeypatch) as process:
        await process.start()
        for _ in range(RESTARTS_MAX):
            await restarts(process, await died(process))
            assert process.running
        error = await died(process)
        with pytest.raises(ProcessDiedError, match="helper has ended with code -9"):
            await restarts(process, error)
    assert output.getvalue().count("helper has ended with code -9; starting it again") == RESTARTS_MAX
    assert output.getvalue().count("helper is ready again") == RESTARTS_MAX


async def test_process_that_dies_stays_down_when_that_is_wished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = io.StringIO()
    async with managed(tmp_path, GOOD, monkeypatch) as process:
        await process.start()
        await Restarts(Console(file=output, width=200), leave_down=True)(process, await died(process))
        process.check()
        assert not process.running
        await process.start()
        with pytest.raises(ProcessDiedError):
            raise await died(process)
    assert "helper has ended with code -9 and stays down (--leave-down)" in output.getvalue()


async def died(process: ManagedProcess) -> ProcessDiedError:
    """What `check` says after another process has killed it."""
    os.kill(process.pid, signal.SIGKILL)
    await eventually(lambda: asyncio.sleep(0, not process.running), 10.0, "the end of the process")
    with pytest.raises(ProcessDiedError) as caught:
        process.check()
    return caught.value
