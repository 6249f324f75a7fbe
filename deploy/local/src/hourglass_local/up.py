"""`make up`: everything in the foreground, on the usual ports, until it is asked to stop. What is stored stays."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from rich.console import Console

from hourglass_local.cluster import SYNC_MASTER, Cluster
from hourglass_local.cluster_shop import ShopSettings
from hourglass_local.process import ManagedProcess, ProcessDiedError

NAME_SERVER_PORT, BROKER_PORT = 9876, 10911  # these are the services' own defaults
ORDERS_PORT, PAYMENTS_PORT, GATEWAY_PORT = 8001, 8002, 8003
REPLICA_PORT, REPLICATION_PORT, REPLICAS_REPLICATION_PORT = 10921, 10912, 10922  # as in deploy/conf/one-pair
SERVING_PORTS = (NAME_SERVER_PORT, BROKER_PORT, ORDERS_PORT, PAYMENTS_PORT, GATEWAY_PORT, REPLICA_PORT)
USUAL_PORTS = (*SERVING_PORTS, REPLICATION_PORT, REPLICAS_REPLICATION_PORT)
COMMIT_LOG_FILE_BYTES = 64 * 1024 * 1024
RESTARTS_MAX, RESTARTS_WINDOW_S = 3, 60.0  # of one process
SHOP = ShopSettings(rate_limit="600/60", sandbox_sign_in=True, sample_catalogue=True)


class Restarts:
    """Starts a process again that has ended by itself, or leaves it down.

    Invariant: a process that ends `RESTARTS_MAX` times within `RESTARTS_WINDOW_S` is not started again.
    """

    def __init__(self, console: Console, *, leave_down: bool) -> None:
        self._console = console
        self._leave_down = leave_down
        self._ends: dict[str, list[float]] = {}  # monotonic, by the process's name

    async def __call__(self, process: ManagedProcess, error: ProcessDiedError) -> None:
        """Raises ProcessDiedError for one that ends again and again, ProcessNotReadyError for one that cannot start."""
        ended = f"{process.name} has ended with code {process.exit_code}"
        if self._leave_down:
            process.give_up()
            self._say(f"{ended} and stays down (--leave-down); the log is {process.log_path}")
            return
        now = time.monotonic()
        ends = self._ends[process.name] = [
            at for at in self._ends.get(process.name, []) if now - at < RESTARTS_WINDOW_S
        ]
        ends.append(now)
        if len(ends) > RESTARTS_MAX:
            raise error
        self._say(f"{ended}; starting it again. The log is {process.log_path}")
        await process.start()
        self._say(f"{process.name} is ready again after {time.monotonic() - now:.1f} s")

    def _say(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False, soft_wrap=True)


async def run_up(
    folder: Path,
    delay_levels: str,
    ports: Sequence[int] | None,
    console: Console,
    *,
    leave_down: bool = False,
    metrics_port: int | None = None,
) -> None:
    """Run until cancelled, on free ports without `ports`; `metrics_port` as for a Cluster.

    A process that dies is started again, unless `leave_down`. Raises PortInUseError, and ProcessError when a process
    cannot be started, or dies again and again; everything is stopped then.
    """
    begin = time.monotonic()
    cluster = Cluster(
        folder,
        replicas_of=SYNC_MASTER,
        delay_levels=delay_levels,
        commit_log_file_bytes=COMMIT_LOG_FILE_BYTES,
        shop=SHOP,
        ports=ports,
        metrics_port=metrics_port,
    )
    with contextlib.ExitStack() as stack:
        async with cluster:
            console.print(_addresses(cluster, time.monotonic() - begin), highlight=False, soft_wrap=True)
            stack.callback(console.print, "Everything has stopped.")
            await cluster.watch(Restarts(console, leave_down=leave_down))


def _addresses(cluster: Cluster, seconds: float) -> str:
    window = timedelta(milliseconds=cluster.payment_window_ms)
    return (
        f"Started in {seconds:.1f} s. An unpaid order closes after {window} h.\n"
        f"  shop         {cluster.orders_url}/shop   in a browser; choose a name there\n"
        f"  orders       {_described(cluster.orders_url)}\n"
        f"  payments     {_described(cluster.payments_url)}\n"
        f"  gateway      {cluster.gateway_url}   takes no money; declines and delays as PUT /v1/failures says\n"
        f"  a token      .venv/bin/python -m servicekit.token --keys-file {cluster.shop.secrets.auth_keys}"
        " --subject buyer-1 --role buyer\n"
        f"  queue        {cluster.url}\n"
        f"  broker       {', '.join(cluster.broker_addresses)}\n"
        f"  its replica  {', '.join(cluster.replica_addresses)}  .venv/bin/python -m mqadmin haStatus -n"
        f" {cluster.name_server_addresses[0]}\n"
        f"{_metrics(cluster)}"
        f"  files, logs  {cluster.folder}\n"
        "Ctrl-C stops everything."
    )


def _metrics(cluster: Cluster) -> str:
    pages = ", ".join(f"{name} http://{address}/metrics" for name, address in cluster.metrics_addresses.items())
    return f"  metrics      {pages}\n" if pages else ""


def _described(url: str) -> str:
    return f"{url}   described at {url}/docs"
