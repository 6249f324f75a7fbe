"""RocketMQ's configuration keys and the frozen dataclasses that they become, once, at start.

A field `listen_port` is the key `listenPort`; a field whose key does not follow that rule, or of which more has to be
said, says so with `key(...)`. Unknown keys are rejected by name, with the nearest known ones as a suggestion.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

_KEY = "key"
_SUGGESTIONS_MAX = 3
_ALIKE_MIN = 0.6  # difflib's own cutoff
_AS_GOOD = 0.05  # a suggestion this much worse than the best one is still shown


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key, the value and what is allowed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """How a field stands in the file. `name` is empty where the field's own name tells it."""

    name: str = ""
    aliases: tuple[str, ...] = ()  # spellings of older RocketMQ versions
    reloadable: bool = False  # may change while the process runs
    important: bool = False  # RocketMQ's -m shows it


@dataclasses.dataclass(frozen=True, slots=True)
class Changes:
    """Where two configurations differ: the keys that may change in a running process, and those that may not."""

    reloadable: tuple[str, ...]
    fixed: tuple[str, ...]


def key(
    name: str = "",
    *,
    aliases: tuple[str, ...] = (),
    reloadable: bool = False,
    important: bool = False,
    **field_arguments: Any,
) -> Any:
    """A dataclass field with what `Key` says of it."""
    metadata = {_KEY: Key(name, aliases, reloadable, important)}
    return dataclasses.field(metadata=metadata, **field_arguments)


def canonical_pairs(config_type: type, pairs: Mapping[str, str], source: str) -> dict[str, str]:
    """`pairs` with today's spelling of every key. Raises ConfigError when `source` gives a key in two spellings."""
    names = {alias: name for name, field in _fields(config_type).items() for alias in _key_of(field).aliases}
    for alias in names.keys() & pairs.keys():
        if names[alias] in pairs:
            raise ConfigError(f"{source}: {alias} is the older spelling of {names[alias]}; give only one of them")
    return {names.get(name, name): text for name, text in pairs.items()}


def build_config(config_type: type[T], pairs: Mapping[str, str]) -> T:
    """A `config_type` from text. Its own `__post_init__` checks relations between values. Raises ConfigError."""
    fields = _fields(config_type)
    types = typing.get_type_hints(config_type)
    values = {}
    for name, text in pairs.items():
        if name not in fields:
            raise ConfigError(f"unknown configuration key {name!r}; {_hint(name, fields)}")
        field = fields[name]
        values[field.name] = _convert(name, text, types[field.name])
    missing = [name for name, field in fields.items() if field.name not in values and _is_required(field)]
    if missing:
        raise ConfigError(f"configuration keys without a value: {', '.join(missing)}")
    return config_type(**values)


def config_pairs(config: Any, *, important_only: bool = False) -> dict[str, str]:
    """The configuration as text by its keys, in the order of the fields: `build_config` makes the same of it again."""
    return {
        name: _text(getattr(config, field.name))
        for name, field in _fields(type(config)).items()
        if not important_only or _key_of(field).important
    }


def changes(before: T, after: T) -> Changes:
    """The keys in which `after` differs."""
    was, now = config_pairs(before), config_pairs(after)
    differ = [(name, _key_of(field)) for name, field in _fields(type(before)).items() if was[name] != now[name]]
    return Changes(
        reloadable=tuple(name for name, key_ in differ if key_.reloadable),
        fixed=tuple(name for name, key_ in differ if not key_.reloadable),
    )


def reloaded(before: T, after: T) -> T:
    """`before` with what may change taken from `after`. Raises ConfigError when that makes no sense together."""
    taken = {
        field.name: getattr(after, field.name) for field in _fields(type(before)).values() if _key_of(field).reloadable
    }
    return dataclasses.replace(before, **taken)  # type: ignore[type-var]  # every configuration is a dataclass


def _fields(config_type: type) -> dict[str, dataclasses.Field[Any]]:
    return {_file_key(field): field for field in dataclasses.fields(config_type)}


def _key_of(field: dataclasses.Field[Any]) -> Key:
    found: Key = field.metadata.get(_KEY, Key())
    return found


def _file_key(field: dataclasses.Field[Any]) -> str:
    if name := _key_of(field).name:
        return name
    first, *rest = field.name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _hint(name: str, known: Iterable[str]) -> str:
    near = _nearest(name, known)
    if not near:
        return f"known keys: {', '.join(sorted(known))}"
    *firsts, last = near
    return f"did you mean {', '.join(firsts)}{' or ' if firsts else ''}{last}?"


def _nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known keys that are similar to `name`, the most similar first."""
    matcher = difflib.SequenceMatcher(a=_letters(name))
    scores = {}
    for one in known:
        matcher.set_seq2(_letters(one))
        scores[one] = matcher.ratio()
    best = max(scores.values())
    likely = [one for one, score in scores.items() if score >= max(_ALIKE_MIN, best - _AS_GOOD)]
    return sorted(likely, key=lambda one: (-scores[one], one))[:_SUGGESTIONS_MAX]


def _letters(name: str) -> str:
    """What makes a key alike to another: neither case nor underscores count."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


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


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.name if isinstance(value, enum.Enum) else str(value)
