"""A Spark driver as a process that a test kills: Python, its Java side, and the Python workers below that.

Invariant: `kill` and `end` return when nothing of it runs any more.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

PROGRAM = Path(__file__).with_name("spark_job.py")
JOB_TIMEOUT_S = 300
GONE_TIMEOUT_S = 30
LOOK_INTERVAL_S = 0.002  # far less than any step of a batch takes
TAIL_LINES = 25
DAEMON = "pyspark.daemon"


class JobProcess:
    """A context manager: on the way out nothing is left."""

    def __init__(self, kind: str, log_path: Path, **settings: Any) -> None:
        self.log_path = log_path
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), kind, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
                start_new_session=True,
            )
        self._tree = psutil.Process(self._process.pid)

    def __enter__(self) -> JobProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def wait(self) -> None:
        """Until it has done its work. Fails with the end of its log when it does not."""
        code = self._process.wait(JOB_TIMEOUT_S)
        assert code == 0, f"the job ended with {code}:\n{self._tail()}"

    def wait_for(self, state: Callable[[], bool]) -> bool:
        """Look again and again; False when the job has ended without it."""
        while not state():
            try:
                code = self._process.wait(LOOK_INTERVAL_S)
            except subprocess.TimeoutExpired:
                continue
            assert code == 0, f"the job ended too early:\n{self._tail()}"
            return state()
        return True

    def pause(self) -> None:
        """Stop Python and Java where they are; the Python workers of Spark have a process group of their own."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL for Python and Java at once. The workers lose their sockets, and end by themselves."""
        left = self._descendants()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(GONE_TIMEOUT_S)
        _, alive = psutil.wait_procs(left, GONE_TIMEOUT_S)
        assert not alive, f"{alive} still run {GONE_TIMEOUT_S} s after their driver was killed"

    def kill_workers(self) -> int:
        """SIGKILL for the Python workers that read; how many there were."""
        daemons = {one.pid for one in self._descendants() if DAEMON in " ".join(_command(one))}
        workers = [one for one in self._descendants() if _parent(one) in daemons]
        for worker in workers:
            worker.kill()
        return len(workers)

    def _descendants(self) -> list[psutil.Process]:
        try:
            return self._tree.children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _tail(self) -> str:
        return "\n".join(self.log.splitlines()[-TAIL_LINES:])


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return None
