"""Between rows and the dataclasses of a domain: what has one name on both sides is copied, and the rest is given.

    await connection.execute(_ADD_PRODUCT, row_of(product))
    value_of(Order, row, lines=lines, hold=None)

A field that is an enumeration becomes its member. A field of the dataclass that is no column of the row, and was not
given, raises AttributeError; one that is no column of the table raises sqlalchemy's CompileError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

from sqlalchemy import Row

ValueT = TypeVar("ValueT")


def row_of(value: Any, *, without: frozenset[str] = frozenset(), **given: object) -> dict[str, Any]:
    """The fields of the dataclass `value` by name but for those `without`, and beside or instead of them the given."""
    kind: Any = type(value)
    names = (name for name, _ in _fields(kind) if name not in without)
    return {name: getattr(value, name) for name in names} | given


def value_of(value_type: type[ValueT], row: Row[*tuple[Any, ...]], **given: object) -> ValueT:
    """The dataclass with the columns of the row that have the names of its fields, and with what is given."""
    known: Any = value_type
    read = ((name, getattr(row, name), kind) for name, kind in _fields(known) if name not in given)
    return value_type(
        **{name: value if kind is None or value is None else kind(value) for name, value, kind in read}, **given
    )


@cache
def _fields(value_type: Any) -> tuple[tuple[str, Callable[[Any], Enum] | None], ...]:
    """The name of each field, and its enumeration, if it is one."""
    hints = get_type_hints(value_type)
    return tuple((field.name, _enumeration(hints[field.name])) for field in fields(value_type))


def _enumeration(hint: Any) -> Callable[[Any], Enum] | None:
    kinds = (one for one in (hint, *get_args(hint)) if isinstance(one, type) and issubclass(one, Enum))
    return next(kinds, None)
