"""RocketMQ's configuration files: `key=value` lines, turned once into a frozen dataclass.

A field `listen_port` is the key `listenPort`; a field whose key does not follow that rule says so with
`key("brokerIP1")`. Unknown keys are refused by name, with the nearest known one as a suggestion.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_KEY = "key"


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key, the value and what is allowed."""


def key(name: str, **field_arguments: Any) -> Any:
    """A dataclass field whose key in the file is `name`."""
    return dataclasses.field(metadata={_KEY: name}, **field_arguments)


def parse_properties(lines: Iterable[str], source: str) -> dict[str, str]:
    """The pairs of a properties file; `#` and `!` open comments. Raises ConfigError with `source` and the line."""
    pairs: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"{source}, line {number}: {text!r} is not of the form key=value")
        pairs[name.strip()] = value.strip()
    return pairs


def read_properties(path: Path) -> dict[str, str]:
    """The pairs of the file at `path`. Raises ConfigError when it cannot be read or parsed."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error}") from error
    return parse_properties(text.splitlines(), str(path))


def build_config(config_type: type[T], pairs: Mapping[str, str]) -> T:
    """A `config_type` from text. Its own `__post_init__` checks relations between values. Raises ConfigError."""
    fields = {_file_key(field): field for field in dataclasses.fields(config_type)}  # type: ignore[arg-type]
    types = typing.get_type_hints(config_type)
    values = {}
    for name, text in pairs.items():
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known keys: {', '.join(sorted(fields))}"
            raise ConfigError(f"unknown configuration key {name!r}{hint}")
        field = fields[name]
        values[field.name] = _convert(name, text, types[field.name])
    missing = [name for name, field in fields.items() if field.name not in values and _is_required(field)]
    if missing:
        raise ConfigError(f"configuration keys without a value: {', '.join(missing)}")
    return config_type(**values)


def _file_key(field: dataclasses.Field[Any]) -> str:
    if _KEY in field.metadata:
        return str(field.metadata[_KEY])
    first, *rest = field.name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _convert(name: str, text: str, kind: Any) -> Any:
    if kind is bool:
        if text.lower() not in {"true", "false"}:
            raise ConfigError(f"{name}={text!r}: allowed are true and false")
        return text.lower() == "true"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind[text]
        except KeyError:
            raise ConfigError(f"{name}={text!r}: allowed are {', '.join(kind.__members__)}") from None
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not {'a whole number' if kind is int else kind.__name__}") from None
