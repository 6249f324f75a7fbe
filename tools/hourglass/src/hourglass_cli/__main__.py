"""The command line: `hourglass dev`, and the other programs of the queue under one name.

A program is imported when it is asked for. What is not installed is named, so that a developer's queue needs neither
the operator's tools nor the shop.
"""

from __future__ import annotations

import argparse
import importlib.util
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

DISTRIBUTION = "hourglass-cli"
EXIT_USAGE = 2


@dataclass(frozen=True, slots=True)
class Program:
    """What `python -m MODULE` runs, with its first arguments, and the distribution that has it."""

    module: str
    distribution: str
    description: str
    arguments: tuple[str, ...] = ()


PROGRAMS = {
    "dev": Program("hourglass_cli.dev", DISTRIBUTION, "run a name server and a broker in one process"),
    "namesrv": Program("mq_namesrv", "hourglass-mq-namesrv", "run a name server"),
    "broker": Program("mq_broker", "hourglass-mq-broker", "run a broker"),
    "admin": Program("mqadmin", "hourglass-mqadmin", "look at a cluster and change it, as mqadmin does"),
    "dump-log": Program("mq_broker.tools.dump_log", "hourglass-mq-broker", "look into a store folder"),
    "demo": Program("hourglass_local", "hourglass-local", "place 200 orders, pay half, let the rest close", ("demo",)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one program with the arguments behind its name; returns 0, or 2 where it is not installed.

    Raises SystemExit with the exit code of a program that ends with one.
    """
    options = _parser().parse_args(arguments)
    program = PROGRAMS[options.command]
    if importlib.util.find_spec(program.module.partition(".")[0]) is None:
        print(
            f"hourglass: {options.command} is not installed; install the package {program.distribution}",
            file=sys.stderr,
        )
        return EXIT_USAGE
    sys.argv = [f"hourglass {options.command}", *program.arguments, *options.arguments]
    runpy.run_module(program.module, run_name="__main__", alter_sys=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, PROGRAMS))
    listed = "\n".join(f"  {name:{width}}  {program.description}" for name, program in PROGRAMS.items())
    parser = argparse.ArgumentParser(
        prog="hourglass",
        description="The Hourglass queue: durable messages, and timers of up to 40 days.",
        epilog=f"commands:\n{listed}\n\nhourglass COMMAND --help says what each takes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version(DISTRIBUTION)}")
    parser.add_argument("command", choices=PROGRAMS, metavar="COMMAND", help="one of those below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="what the command takes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
