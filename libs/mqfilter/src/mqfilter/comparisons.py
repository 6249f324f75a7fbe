"""Which values may meet in a comparison, and what it is then. RefusedError says what may not, and why."""

from __future__ import annotations

import operator
from collections.abc import Mapping

from mqfilter.conditions import (
    Always,
    And,
    BooleanEquals,
    Compares,
    Condition,
    Not,
    Number,
    NumberCompares,
    NumbersCompare,
    PropertiesEqual,
    TextEquals,
)
from mqfilter.operands import Constant, Property, RefusedError, Value

_COMPARES: Mapping[str, Compares] = {
    "=": operator.eq,
    "<>": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_EQUALITY = ("=", "<>")
_MIRRORED = {"=": "=", "<>": "<>", ">": "<", ">=": "<=", "<": ">", "<=": ">="}


def comparison(left: Value, sign: str, right: Value) -> Condition:
    """`left sign right`."""
    for value in (left, right):
        if isinstance(value, Constant):
            _check_comparable(value, sign)
    if isinstance(left, Property):
        return _with_constant(left, sign, right) if isinstance(right, Constant) else _of_properties(left, sign, right)
    return (
        _of_constants(left, sign, right)
        if isinstance(right, Constant)
        else _with_constant(right, _MIRRORED[sign], left)
    )


def between(value: Value, low: Value, high: Value) -> Condition:
    """`value BETWEEN low AND high`: both are within."""
    parts = (comparison(value, ">=", low), comparison(value, "<=", high))
    if isinstance(low, Constant) and isinstance(high, Constant) and _number(low) > _number(high):
        raise RefusedError(low.index, f"BETWEEN goes from the smaller to the larger number, not from {low} to {high}")
    return And(parts)


def _check_comparable(constant: Constant, sign: str) -> None:
    if constant.value is None:
        raise RefusedError(constant.index, "NULL cannot be compared; write IS NULL or IS NOT NULL")
    if sign not in _EQUALITY and _kind(constant) is not float:
        raise RefusedError(constant.index, f"only numbers have an order, and {constant} is none; write = or <>")


def _of_properties(left: Property, sign: str, right: Property) -> Condition:
    if sign in _EQUALITY:
        return _negated_if(sign == "<>", PropertiesEqual(left.name, right.name))
    return NumbersCompare(left.name, _COMPARES[sign], right.name)


def _with_constant(one: Property, sign: str, constant: Constant) -> Condition:
    match constant.value:
        case str(text):
            return _negated_if(sign == "<>", TextEquals(one.name, text))
        case bool(boolean):
            return _negated_if(sign == "<>", BooleanEquals(one.name, boolean))
        case _:
            return NumberCompares(one.name, _COMPARES[sign], _number(constant))


def _of_constants(left: Constant, sign: str, right: Constant) -> Condition:
    if _kind(left) is not _kind(right):
        raise RefusedError(right.index, f"{right} cannot be compared with {left}")
    if sign in _EQUALITY:
        return Always((left.value == right.value) is (sign == "="))
    return Always(_COMPARES[sign](_number(left), _number(right)))


def _negated_if(negated: bool, condition: Condition) -> Condition:
    return Not(condition) if negated else condition


def _kind(constant: Constant) -> type:
    return type(constant.value) if isinstance(constant.value, str | bool) else float


def _number(constant: Constant) -> Number:
    if isinstance(constant.value, str | bool | None):
        raise TypeError(f"{constant} is no number")
    return constant.value
