"""The command line: `python -m hourglass_local demo`, `up`, and `reopen`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read on import; a server that is not there yet is no news

from rich.console import Console

from hourglass_local.cluster_shop import REAL_DELAY_LEVELS, payment_window_ms
from hourglass_local.demo import DemoConfigError, parse_demo_config, run_demo
from hourglass_local.http_client import ShopError
from hourglass_local.left import PLACEHOLDERS, FolderError, NothingLeftError, empty_folder, run_reopened
from hourglass_local.ports import PortInUseError
from hourglass_local.process import ProcessError
from hourglass_local.up import USUAL_PORTS, run_up
from osenv.process import stop_event
from telemetry.settings import DEFAULT_PROMETHEUS_PORT, PROMETHEUS_PORT

PROGRAM = "hourglass"
METRICS_PORT_MAX = 65_500
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 all well, 1 something failed, 2 bad settings, 130 a demonstration that was interrupted.

    Of `reopen` it is its command's.
    """
    options = _parser().parse_args(arguments)
    console = Console()
    try:
        return asyncio.run(WORK[options.command](options, console))
    except (DemoConfigError, FolderError, NothingLeftError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except (PortInUseError, ProcessError, ShopError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return EXIT_FAILED


async def _demo(options: argparse.Namespace, console: Console) -> int:
    config = parse_demo_config(os.environ, options.folder)
    with empty_folder(config.folder):
        code = await _until_asked_to_stop(run_demo(config, console))
    if code is None:
        console.print("Interrupted; everything has been stopped.")
        return EXIT_INTERRUPTED
    return code


async def _up(options: argparse.Namespace, console: Console) -> int:
    ports = None if options.free_ports else USUAL_PORTS
    up = run_up(
        options.folder,
        options.delay_levels,
        ports,
        console,
        leave_down=options.leave_down,
        metrics_port=_metrics_port(os.environ),
    )
    await _until_asked_to_stop(up)
    return 0


def _metrics_port(environment: Mapping[str, str]) -> int | None:
    """Where the first process shows its metrics; None when the environment asks for no page.

    Raises DemoConfigError for a port that leaves no room for one page each.
    """
    asked = "prometheus" in environment.get("OTEL_METRICS_EXPORTER", "").replace(" ", "").split(",")
    text = environment.get(PROMETHEUS_PORT, str(DEFAULT_PROMETHEUS_PORT) if asked else "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) <= METRICS_PORT_MAX):
        raise DemoConfigError(
            f"{PROMETHEUS_PORT}: {text!r} is no port from 0 to {METRICS_PORT_MAX}; each process gets the next one"
        )
    return int(text)


async def _reopen(options: argparse.Namespace, _console: Console) -> int:
    command = options.of_command[1:] if options.of_command[:1] == ["--"] else options.of_command
    if not command:
        raise DemoConfigError(
            "reopen needs a command, such as: reopen --folder .demo -- mqadmin topicList -n {namesrv}"
        )
    try:
        return await run_reopened(options.folder, command)
    except OSError as error:
        raise DemoConfigError(f"{command[0]!r} cannot be started: {error}") from error


WORK = {"demo": _demo, "up": _up, "reopen": _reopen}


async def _until_asked_to_stop(work: Coroutine[Any, Any, int | None]) -> int | None:
    """What `work` returns, or None when it was cancelled by SIGINT or SIGTERM; it stops its processes itself.

    Only the first signal counts: a second one must not interrupt the stopping, which takes its time and no longer.
    """
    asked = asyncio.create_task(stop_event().wait())
    working = asyncio.create_task(work)
    await asyncio.wait({asked, working}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if working.done():
        return working.result()
    working.cancel()
    await asyncio.wait({working})
    return None if working.cancelled() else working.result()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hourglass_local", description="Hourglass as local processes.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="orders are placed, and paid or close by themselves (DEMO_ORDERS=200)")
    demo.add_argument("--folder", type=Path, default=Path(".demo"), help="emptied at the start, kept afterwards")
    up = commands.add_parser("up", help="run everything until Ctrl-C")
    up.add_argument("--folder", type=Path, default=Path(".up"), help="kept from one run to the next")
    up.add_argument(
        "--delay-levels",
        type=_delay_levels,
        default=REAL_DELAY_LEVELS,
        metavar="TEXT",
        help=f"the broker's messageDelayLevel; level 16 is the time to pay (default: {REAL_DELAY_LEVELS})",
    )
    reopen = commands.add_parser(
        "reopen", help="the queue that a demonstration or load has left, for as long as a command runs"
    )
    reopen.add_argument("--folder", type=Path, default=Path(".demo"), help="where it was left")
    reopen.add_argument(
        "of_command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help=f"in which {', '.join(PLACEHOLDERS)} stand for what is there",
    )
    usual = ", ".join(map(str, USUAL_PORTS))
    up.add_argument("--leave-down", action="store_true", help="a process that dies is not started again")
    up.add_argument("--free-ports", action="store_true", help=f"any free ports instead of {usual}")
    return parser


def _delay_levels(text: str) -> str:
    try:
        payment_window_ms(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


if __name__ == "__main__":
    sys.exit(main())
