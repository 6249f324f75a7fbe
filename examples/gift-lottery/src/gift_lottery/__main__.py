"""`python -m gift_lottery` takes part in the shop's events; `python -m gift_lottery winners` tells who has won."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence

import telemetry
from gift_lottery.app import Config, ConfigError, from_environment, serve, show_winners
from mqclient import MQClientError
from osenv.process import stop_event

EXIT_FAILED = 1
EXIT_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 after an orderly stop, 1 after a failure, 2 for a configuration that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m gift_lottery",
        description="Gifts for buyers who have paid. Configuration: GIFT_LOTTERY_* variables.",
    )
    parser.add_argument("command", nargs="?", choices=("serve", "winners"), default="serve")
    command = parser.parse_args(arguments).command
    try:
        config = from_environment(os.environ)
    except ConfigError as error:
        print(f"gift_lottery: {error}", file=sys.stderr)
        return EXIT_USAGE
    if command == "winners":
        print(asyncio.run(show_winners(config)))
        return 0
    telemetry.configure("gift-lottery", config.log_level)
    exit_code = 0
    try:
        asyncio.run(_serve(config))
    except* MQClientError as group:
        print(f"gift_lottery: {group.exceptions[0]}", file=sys.stderr)
        exit_code = EXIT_FAILED
    return exit_code


async def _serve(config: Config) -> None:
    await serve(config, stop_event())


if __name__ == "__main__":
    sys.exit(main())
