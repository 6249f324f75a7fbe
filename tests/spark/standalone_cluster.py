"""A standalone Spark cluster from the pip package: one master, two workers, each a process, on loopback only.

Invariant: after the `with` block none of its processes runs, nor an executor that they have started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from urllib.error import URLError

import psutil
import pyspark

from hourglass_local.ports import LOOPBACK, free_ports

SPARK_HOME = Path(pyspark.__file__).parent
WORKERS = 2
READY_LOOKS = 600
LOOK_INTERVAL_S = 0.1
STOP_TIMEOUT_S = 30
SUBMIT_TIMEOUT_S = 600
# Every Java process of the cluster is small: four of them run at once, beside the driver.
SETTINGS: Mapping[str, str] = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.memory": "1g",
    "spark.executor.memory": "700m",
    "spark.executor.cores": "1",
    "spark.pyspark.python": sys.executable,
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
}


class StandaloneCluster:
    """A context manager; inside, both workers have registered."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._page, *self._worker_ports = free_ports(2 + 2 * WORKERS)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = os.environ | {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_PUBLIC_DNS": LOOPBACK,
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }

    @property
    def url(self) -> str:
        return f"spark://{LOOPBACK}:{self._port}"

    def __enter__(self) -> StandaloneCluster:
        self._folder.mkdir(parents=True)
        try:
            where = ["--host", LOOPBACK, "--port", str(self._port), "--webui-port", str(self._page)]
            self._start("master", ["org.apache.spark.deploy.master.Master", *where])
            self._wait_until_registered(0)
            for number in range(WORKERS):
                port, page = self._worker_ports[2 * number : 2 * number + 2]
                where = ["--host", LOOPBACK, "--port", str(port), "--webui-port", str(page)]
                where += ["--cores", "1", "--memory", "1g", "--work-dir", str(self.work_folder(number))]
                self._start(f"worker-{number}", ["org.apache.spark.deploy.worker.Worker", *where, self.url])
            self._wait_until_registered(WORKERS)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def work_folder(self, number: int) -> Path:
        """What the worker's executors leave: a folder for each application."""
        return self._folder / f"work-{number}"

    def submit(self, program: Path, arguments: Sequence[str]) -> int:
        """Run it with spark-submit, the driver here; its exit code. What it says is in `submit.log`."""
        settings = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
        command = [str(SPARK_HOME / "bin/spark-submit"), "--master", self.url, *settings, str(program), *arguments]
        with (self._folder / "submit.log").open("ab") as log:
            return subprocess.run(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=SUBMIT_TIMEOUT_S,
                check=False,
            ).returncode

    def _start(self, name: str, arguments: list[str]) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [str(SPARK_HOME / "bin/spark-class"), *arguments],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )

    def _wait_until_registered(self, workers: int) -> None:
        for _ in range(READY_LOOKS):
            if self._living_workers() == workers:
                return
            for process in self._processes:
                assert process.poll() is None, f"a process of the cluster has ended; its log is in {self._folder}"
            try:
                self._processes[-1].wait(LOOK_INTERVAL_S)
            except subprocess.TimeoutExpired:
                continue
        raise AssertionError(f"{workers} workers have not registered; the logs are in {self._folder}")

    def _living_workers(self) -> int:
        """As the master's page says; -1 while there is no master."""
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self._page}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (URLError, ConnectionError, TimeoutError):
            return -1

    def _stop(self) -> None:
        left = [child for one in self._processes if one.poll() is None for child in _below(one.pid)]
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_TIMEOUT_S)
        _, alive = psutil.wait_procs(left, STOP_TIMEOUT_S)
        for child in alive:
            child.kill()


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
