"""Where the configuration of one process comes from, so that it can be read at start and again later."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from mqproto.conf import ConfigError, canonical_pairs, changes, config_pairs, reloaded
from mqproto.ignored_keys import IgnoredKey, take_ignored
from mqproto.properties_file import read_properties

T = TypeVar("T")

log = logging.getLogger(__name__)


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


class ConfigInForce(Generic[T]):
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
