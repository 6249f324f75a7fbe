"""The sources of a server's configuration: RocketMQ's files and command line, read at start and again later.

A file that ran RocketMQ starts Hourglass too: a key that switches nothing here is taken, and named once with the
reason. Where a value asks for something that Hourglass does not do and that an operator would miss, such as access
control, it is rejected.

The format of the file is that of java.util.Properties:

    # a comment; so is a line that begins with !
    brokerName = broker-a
    namesrvAddr=10.0.0.1:9876;\\
        10.0.0.2:9876

A key ends at the first `=` or `:`; blanks around key and value do not count, as RocketMQ trims them; of a key that
comes twice the last one counts. A backslash at the end of a line continues it on the next one. Elsewhere it begins an
escape: `\\\\`, `\\uXXXX`, `\\t`, `\\n`, `\\r`, `\\f`, or a separator, comment character or blank that stands for
itself.

Where Java reads something that was not meant, the line is rejected: a key that ends at a blank, and a backslash before
any other character, which Java drops without a word (`D:\\store` would be `D:store`). The file is UTF-8, as editors
write it.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from mqproto.conf import ConfigError, canonical_pairs, changes, config_pairs, reloaded

_BLANKS = " \t\f"
_PAIR = re.compile(rf"([^\s\\=:]+)[{_BLANKS}]*[=:](.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "\\": "\\", "=": "=", ":": ":", "#": "#", "!": "!", " ": " "}
_TO_ESCAPE = str.maketrans({character: f"\\{letter}" for letter, character in _ESCAPED.items() if letter in "tnrf\\"})

T = TypeVar("T")

log = logging.getLogger(__name__)

NAME_SERVERS_VARIABLE = "NAMESRV_ADDR"  # RocketMQ's MixAll.NAMESRV_ADDR_ENV
NAME_SERVERS_KEY = "namesrvAddr"
EXIT_BAD_CONFIGURATION = 2


def read_properties(path: Path) -> dict[str, str]:
    """The pairs of the file at `path`. Raises ConfigError when it cannot be read or parsed."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error}") from error
    return parse_properties(text, str(path))


def parse_properties(text: str, source: str) -> dict[str, str]:
    """The pairs of a properties file. Raises ConfigError with `source` and the line."""
    pairs: dict[str, str] = {}
    for number, line in _logical_lines(text):
        found = _PAIR.fullmatch(line)
        if found is None:
            raise ConfigError(f"{source}, line {number}: {line.strip()!r} is not of the form key=value")
        try:
            pairs[found[1]] = _unescaped(found[2]).strip()
        except ValueError as error:
            raise ConfigError(f"{source}, line {number}: {error}") from None
    return pairs


def parse_assignments(arguments: Iterable[str]) -> dict[str, str]:
    """The pairs of a command line, `key=value` each, without escapes. Raises ConfigError."""
    pairs = {}
    for argument in arguments:
        name, separator, value = argument.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"command line: {argument!r} is not of the form key=value")
        pairs[name.strip()] = value.strip()
    return pairs


def format_properties(pairs: Mapping[str, str]) -> str:
    """The file, a line for each pair, from which `parse_properties` makes the same pairs."""
    return "".join(f"{name}={value.translate(_TO_ESCAPE)}\n" for name, value in pairs.items())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Each line that is neither blank nor a comment, joined with those that continue it, and its first number."""
    first, line = 0, ""
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        part = natural.lstrip(_BLANKS)
        if not line:
            if not part or part[0] in "#!":
                continue
            first = number
        line += part
        if (len(line) - len(line.rstrip("\\"))) % 2:  # the last backslash is not escaped itself
            line = line[:-1]
        else:
            yield first, line
            line = ""
    if line:
        yield first, line


def _unescaped(text: str) -> str:
    """Raises ValueError with a sentence."""
    try:
        return _ESCAPE.sub(_meaning, text).encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError(f"{text.strip()!r} has half a character: \\u escapes of surrogates come in pairs") from None


def _meaning(escape: re.Match[str]) -> str:
    letter = escape[1]
    if len(letter) > 1:
        return chr(int(letter[1:], 16))
    if letter not in _ESCAPED:
        raise ValueError(f"\\{letter} is no escape; a backslash itself is written as \\\\")
    return _ESCAPED[letter]


@dataclass(frozen=True, slots=True)
class IgnoredKey:
    """Why a key has no effect. `allowed` are the values that ask for what holds here anyway; empty: any value."""

    reason: str
    allowed: frozenset[str] = frozenset()


def ignored(reason: str, names: str, *, allowed: str = "") -> dict[str, IgnoredKey]:
    """The table's rows for the keys in `names`, which share a reason; blanks separate names and values."""
    return {name: IgnoredKey(reason, frozenset(allowed.split())) for name in names.split()}


NETTY_KEYS: Mapping[str, IgnoredKey] = ignored(
    "gRPC takes the place of Netty and has no such setting",
    "serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads serverOnewaySemaphoreValue"
    " serverAsyncSemaphoreValue serverChannelMaxIdleTimeSeconds serverSocketSndBufSize serverSocketRcvBufSize"
    " serverSocketBacklog serverPooledByteBufAllocatorEnable useEpollNativeSelector writeBufferHighWaterMark"
    " writeBufferLowWaterMark clientWorkerThreads clientCallbackExecutorThreads clientOnewaySemaphoreValue"
    " clientAsyncSemaphoreValue connectTimeoutMillis channelNotActiveInterval clientChannelMaxIdleTimeSeconds"
    " clientSocketSndBufSize clientSocketRcvBufSize clientPooledByteBufAllocatorEnable clientCloseSocketIfTimeout",
) | ignored("connections are not encrypted", "useTLS", allowed="false")


def take_ignored(pairs: Mapping[str, str], table: Mapping[str, IgnoredKey]) -> tuple[dict[str, str], str]:
    """`pairs` without the keys of `table`, and a sentence that names those; empty when there are none.

    Raises ConfigError for a value that asks for something that is not done here.
    """
    found: dict[str, list[str]] = {}
    for name in table.keys() & pairs.keys():
        row = table[name]
        if row.allowed and pairs[name].lower() not in {value.lower() for value in row.allowed}:
            raise ConfigError(f"{name}={pairs[name]!r}: {row.reason}; allowed is {' or '.join(sorted(row.allowed))}")
        found.setdefault(row.reason, []).append(name)
    sentence = "; ".join(f"{', '.join(sorted(names))} ({reason})" for reason, names in sorted(found.items()))
    rest = {name: text for name, text in pairs.items() if name not in table}
    return rest, f"keys of RocketMQ that have no effect here: {sentence}" if found else ""


@dataclass(frozen=True, slots=True)
class ConfigFormat(Generic[T]):
    """What a service's configuration is: its dataclass, how pairs become one, and RocketMQ's keys without effect."""

    config_type: type[T]
    parse: Callable[[Mapping[str, str]], T]
    ignored: Mapping[str, IgnoredKey]


@dataclass(frozen=True, slots=True)
class ConfigSource(Generic[T]):
    """The same key may come from several places; of `environment`, `file` and `options` the later one wins."""

    format: ConfigFormat[T]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    file: Path | None = None
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def read(self) -> tuple[T, str]:
        """The configuration, and a sentence about keys without effect or "". Raises ConfigError."""
        config_type = self.format.config_type
        in_file = canonical_pairs(config_type, read_properties(self.file), str(self.file)) if self.file else {}
        options = canonical_pairs(config_type, self.options, "command line")
        pairs, warning = take_ignored({**self.environment, **in_file, **options}, self.format.ignored)
        return self.format.parse(pairs), warning


class ReloadableConfig(Generic[T]):
    """The configuration of a running process. `apply` makes the process follow a new one; it must not fail half-way."""

    def __init__(self, source: ConfigSource[T], config: T, apply: Callable[[T], None]) -> None:
        self._source = source
        self._apply = apply
        self.config = config

    async def follow(self, asked: asyncio.Event) -> None:
        """Reload whenever `asked` is set, for ever."""
        while True:
            await asked.wait()
            asked.clear()
            self.reload()

    def reload(self) -> None:
        """Read the source again and take over what may change; all of it, or nothing when it makes no sense."""
        if self._source.file is None:
            log.warning("asked to read the configuration again, but this process was started without a file")
            return
        before = self.config
        try:
            wanted, ignored = self._source.read()
            config = reloaded(before, wanted)
        except ConfigError as error:
            log.error("%s; the configuration stays as it was", error)  # noqa: TRY400 - the sentence says it all
            return
        if ignored:
            log.warning("%s", ignored)
        self._apply(config)
        self.config = config
        differ, was, now = changes(before, wanted), config_pairs(before), config_pairs(wanted)
        if differ.fixed:
            kept = ", ".join(f"{name}={was[name]} (not {now[name]})" for name in differ.fixed)
            log.warning("only a restart changes these keys, which keep their values: %s", kept)
        told = ", ".join(f"{name}={now[name]} (was {was[name]})" for name in differ.reloadable)
        log.info("%s was read again: %s", self._source.file, told or "nothing that may change has changed")


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
        parser.add_argument("overrides", nargs="*", metavar="key=value", help="take precedence over every other source")
        parser.add_argument("--version", action="version", version=f"%(prog)s {self.version}")
        return parser
