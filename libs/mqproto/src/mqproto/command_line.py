"""The command line of name server and broker, which is one: RocketMQ's options and `key=value` pairs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from mqproto.conf import ConfigError, config_pairs
from mqproto.config_source import ConfigFormat, ConfigSource
from mqproto.properties_file import format_properties, parse_assignments

T = TypeVar("T")

NAME_SERVERS_VARIABLE = "NAMESRV_ADDR"  # RocketMQ's MixAll.NAMESRV_ADDR_ENV
NAME_SERVERS_KEY = "namesrvAddr"
EXIT_BAD_CONFIGURATION = 2


@dataclass(frozen=True, slots=True)
class Started(Generic[T]):
    """What a service starts with. `warning` names keys without effect, or is empty."""

    source: ConfigSource[T]
    config: T
    warning: str


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """The command of one service. One that `has_name_servers` takes them from `-n`, or from the environment too."""

    name: str
    description: str
    version: str
    file_name: str
    format: ConfigFormat[T]
    has_name_servers: bool = False

    def main(self, arguments: Sequence[str] | None, run: Callable[[Started[T]], int]) -> int:
        """Start with these arguments; returns what `run` does, or 0 after printing, or 2 for a bad configuration."""
        options = self._parser().parse_args(arguments)
        try:
            started = self._start(options)
        except ConfigError as error:
            print(f"{self.name}: {error}", file=sys.stderr)
            return EXIT_BAD_CONFIGURATION
        if options.print_all or options.print_important:
            print(format_properties(config_pairs(started.config, important_only=not options.print_all)), end="")
            return 0
        return run(started)

    def _start(self, options: argparse.Namespace) -> Started[T]:
        given = parse_assignments(options.overrides)
        environment = {}
        if self.has_name_servers:
            if options.name_servers:
                given = {NAME_SERVERS_KEY: options.name_servers} | given
            if from_outside := os.environ.get(NAME_SERVERS_VARIABLE):
                environment = {NAME_SERVERS_KEY: from_outside}
        source = ConfigSource(self.format, environment, options.config_file, given)
        return Started(source, *source.read())

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog=self.name, description=self.description)
        parser.add_argument(
            "-c",
            "--configFile",
            dest="config_file",
            type=Path,
            metavar="FILE",
            help=f"key=value lines, as in {self.file_name}; SIGHUP reads it again",
        )
        if self.has_name_servers:
            parser.add_argument(
                "-n",
                "--namesrvAddr",
                dest="name_servers",
                metavar="HOST:PORT;...",
                help=f"name servers; wins over the file, and the file over the variable {NAME_SERVERS_VARIABLE}",
            )
        parser.add_argument(
            "-p",
            "--printConfigItem",
            dest="print_all",
            action="store_true",
            help="print every key with its value, as a file, and exit",
        )
        parser.add_argument(
            "-m",
            "--printImportantConfig",
            dest="print_important",
            action="store_true",
            help="print the important ones, and exit",
        )
        parser.add_argument("overrides", nargs="*", metavar="key=value", help="win over everything else")
        parser.add_argument("--version", action="version", version=f"%(prog)s {self.version}")
        return parser
