"""The properties of many records, taken apart together.

All texts of a frame are decoded and split at once. Which name stands where is worked out once for each sequence of
names, of which a topic has few. A frame with a text that is unusual in any way (not UTF-8, a name twice, a separator
too many) is read record by record, as mqclient does it.

Invariant: both ways give the same: of a name that comes twice the later value, and null for what cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import pyarrow as pa

from mqproto.properties import KEYS, TAGS, UNIQ_KEY, PropertiesError, decode_properties

_MAP = pa.map_(pa.string(), pa.string())
_BOTH_SEPARATORS = b"\x01\x02"
_NOT_SEPARATORS = bytes(set(range(256)) - set(_BOTH_SEPARATORS))
SHAPES_MAX = 1_024  # sequences of names that are remembered

Unreadable = Callable[[int, Exception], None]


@dataclass(slots=True)
class PropertyTable:
    """Of each record its keys, its tag, its unique key, and all of them; `sizes` is None for what cannot be read."""

    keys: pa.Array
    tags: pa.Array
    unique_keys: list[str | None]
    names: Sequence[str]
    values: Sequence[str]
    sizes: Sequence[int | None]

    def maps(self) -> pa.Array:
        """A map for each record."""
        offsets: list[int | None] = []
        at = 0
        for size in self.sizes:
            offsets.append(None if size is None else at)
            at += size or 0
        return pa.MapArray.from_arrays(
            pa.array([*offsets, at], pa.int32()), pa.array(self.names, pa.string()), pa.array(self.values, pa.string())
        )


@dataclass(frozen=True, slots=True)
class _Shape:
    """Where the values stand of a record with these names; -1: it has none."""

    keys: int
    tag: int
    unique_key: int


_Texts = list[str | None]
_Chosen = tuple[_Texts, _Texts, _Texts]  # keys, tags, unique keys


def property_table(texts: Sequence[bytes], unreadable: Unreadable) -> PropertyTable:
    """Of texts without the CRC property. `unreadable` is told of each record that cannot be read, and may raise."""
    return _together(texts) or _one_by_one(texts, unreadable)


def _together(texts: Sequence[bytes]) -> PropertyTable | None:
    """None when there is a text that is not as nearly all are."""
    joined = b"".join(texts)
    sizes = [text.count(b"\x02") for text in texts]
    if joined.translate(None, _NOT_SEPARATORS) != _BOTH_SEPARATORS * sum(sizes):
        return None
    if not all(text.endswith(b"\x02") for text in texts if text):
        return None
    try:
        items = joined.decode().replace("\x02", "\x01").split("\x01")
    except UnicodeDecodeError:
        return None
    names, values = items[:-1:2], items[1::2]
    chosen = _chosen_of_alike(sizes, names, values) or _chosen(sizes, names, values)
    if chosen is None:
        return None
    keys, tags, unique_keys = chosen
    return PropertyTable(pa.array(keys, pa.string()), pa.array(tags, pa.string()), unique_keys, names, values, sizes)


def _chosen_of_alike(sizes: list[int], names: list[str], values: list[str]) -> _Chosen | None:
    """Of records that all have the same names in the same order, as those of one producer mostly have; else None."""
    size = sizes[0] if sizes else 0
    first = tuple(names[:size])
    if not size or names != list(first) * len(sizes) or set(sizes) != {size} or (shape := _shape(first)) is None:
        return None
    keys, tags, unique_keys = (
        values[place::size] if place >= 0 else [None] * len(sizes)
        for place in (shape.keys, shape.tag, shape.unique_key)
    )
    return list(keys), list(tags), list(unique_keys)


def _chosen(sizes: list[int], names: list[str], values: list[str]) -> _Chosen | None:
    """Record by record; None when one of them needs a closer look."""
    keys: _Texts = []
    tags: _Texts = []
    unique_keys: _Texts = []
    at = 0
    for size in sizes:
        shape = _shape(tuple(names[at : at + size]))
        if shape is None:
            return None
        keys.append(values[at + shape.keys] if shape.keys >= 0 else None)
        tags.append(values[at + shape.tag] if shape.tag >= 0 else None)
        unique_keys.append(values[at + shape.unique_key] if shape.unique_key >= 0 else None)
        at += size
    return keys, tags, unique_keys


@lru_cache(maxsize=SHAPES_MAX)
def _shape(names: tuple[str, ...]) -> _Shape | None:
    """Of a record with these names; None when they need a closer look."""
    if not all(names) or len(set(names)) != len(names):
        return None
    keys, tag, unique_key = (names.index(name) if name in names else -1 for name in (KEYS, TAGS, UNIQ_KEY))
    return _Shape(keys, tag, unique_key)


def _one_by_one(texts: Sequence[bytes], unreadable: Unreadable) -> PropertyTable:
    found: list[dict[str, str] | None] = []
    for number, text in enumerate(texts):
        try:
            found.append(decode_properties(text))
        except PropertiesError as error:
            unreadable(number, error)
            found.append(None)
    known = [one or {} for one in found]
    return PropertyTable(
        pa.array([one.get(KEYS) for one in known], pa.string()),
        pa.array([one.get(TAGS) for one in known], pa.string()),
        [one.get(UNIQ_KEY) for one in known],
        list(chain.from_iterable(known)),
        list(chain.from_iterable(one.values() for one in known)),
        [None if one is None else len(one) for one in found],
    )
