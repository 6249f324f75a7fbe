"""What an expression means: a tree of conditions, each true, false or unknown (None) for a message's properties."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

INTEGER_CHARACTERS_MAX = 100  # longer ones are read as floats, so that none takes quadratic time
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

Number = int | float
Compares = Callable[[Number, Number], bool]


class Properties(Protocol):
    """Properties by name; any mapping from text to text is one."""

    def get(self, name: str, /) -> str | None:
        """The value, or None without it."""


class Condition(Protocol):
    """A node of the tree."""

    def evaluate(self, properties: Properties) -> bool | None:
        """Whether the properties fulfil the condition; None when that is unknown."""


def number_of(text: str) -> Number | None:
    """The number that the text of a property is, or None: ASCII digits with sign, fraction and exponent, no blanks."""
    if len(text) <= INTEGER_CHARACTERS_MAX and _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else None


@dataclass(frozen=True, slots=True)
class Always:
    """TRUE, FALSE or NULL (None), or a comparison of constants."""

    outcome: bool | None

    def evaluate(self, properties: Properties) -> bool | None:
        return self.outcome


@dataclass(frozen=True, slots=True)
class Not:
    condition: Condition

    def evaluate(self, properties: Properties) -> bool | None:
        outcome = self.condition.evaluate(properties)
        return None if outcome is None else not outcome


@dataclass(frozen=True, slots=True)
class And:
    """False when one is false, true when all are true.

    Invariants: conditions never change; evaluating one raises nothing by itself, asks for no property that the outcome
    does not depend on, and takes time in proportion to the length of the expression and of the properties that it
    names.
    """

    conditions: tuple[Condition, ...]

    def evaluate(self, properties: Properties) -> bool | None:
        result: bool | None = True
        for condition in self.conditions:
            outcome = condition.evaluate(properties)
            if outcome is False:
                return False
            if outcome is None:
                result = None
        return result


@dataclass(frozen=True, slots=True)
class Or:
    """True when one is true, false when all are false."""

    conditions: tuple[Condition, ...]

    def evaluate(self, properties: Properties) -> bool | None:
        result: bool | None = False
        for condition in self.conditions:
            outcome = condition.evaluate(properties)
            if outcome is True:
                return True
            if outcome is None:
                result = None
        return result


@dataclass(frozen=True, slots=True)
class IsNull:
    """The only question that is never unknown."""

    name: str

    def evaluate(self, properties: Properties) -> bool | None:
        return properties.get(self.name) is None


@dataclass(frozen=True, slots=True)
class TextEquals:
    name: str
    text: str

    def evaluate(self, properties: Properties) -> bool | None:
        value = properties.get(self.name)
        return None if value is None else value == self.text


@dataclass(frozen=True, slots=True)
class BooleanEquals:
    """As Java reads a boolean: "true" in any case is true, and everything else is false."""

    name: str
    boolean: bool

    def evaluate(self, properties: Properties) -> bool | None:
        value = properties.get(self.name)
        return None if value is None else (value.lower() == "true") is self.boolean


@dataclass(frozen=True, slots=True)
class PropertiesEqual:
    """Two properties with the same text."""

    left: str
    right: str

    def evaluate(self, properties: Properties) -> bool | None:
        left, right = properties.get(self.left), properties.get(self.right)
        return None if left is None or right is None else left == right


@dataclass(frozen=True, slots=True)
class NumberCompares:
    """A property that is a number, beside a constant."""

    name: str
    compares: Compares
    constant: Number

    def evaluate(self, properties: Properties) -> bool | None:
        value = properties.get(self.name)
        number = None if value is None else number_of(value)
        return None if number is None else self.compares(number, self.constant)


@dataclass(frozen=True, slots=True)
class NumbersCompare:
    """Two properties that are numbers."""

    left: str
    compares: Compares
    right: str

    def evaluate(self, properties: Properties) -> bool | None:
        left, right = properties.get(self.left), properties.get(self.right)
        if left is None or right is None:
            return None
        left_number, right_number = number_of(left), number_of(right)
        return None if left_number is None or right_number is None else self.compares(left_number, right_number)


@dataclass(frozen=True, slots=True)
class IsOneOf:
    name: str
    texts: frozenset[str]

    def evaluate(self, properties: Properties) -> bool | None:
        value = properties.get(self.name)
        return None if value is None else value in self.texts


@dataclass(frozen=True, slots=True)
class Searches:
    """CONTAINS and its like: `found` says how, and `wanted` is False for NOT. False, and not unknown, without the
    property; `searched` is not empty.
    """

    name: str
    found: Callable[[str, str], bool]
    searched: str
    wanted: bool

    def evaluate(self, properties: Properties) -> bool | None:
        value = properties.get(self.name)
        return value is not None and self.found(value, self.searched) is self.wanted


_SHOWN_CHARACTERS = 20


class RejectedError(Exception):
    """A sentence about what begins at `index` of the text."""

    def __init__(self, index: int, sentence: str) -> None:
        super().__init__(sentence)
        self.index, self.sentence = index, sentence


@dataclass(frozen=True, slots=True)
class Property:
    """A value that the message has, or has not."""

    index: int
    name: str

    def __str__(self) -> str:
        return f"the property {shortened(self.name)}"


@dataclass(frozen=True, slots=True)
class Constant:
    """What stands in an expression, and where: properties, constants, and conditions in others.

    A value that the expression says.
    """

    index: int
    value: str | Number | bool | None

    def __str__(self) -> str:
        match self.value:
            case str():
                return f"the text '{shortened(self.value)}'"
            case True:
                return "TRUE"
            case False:
                return "FALSE"
            case None:
                return "NULL"
            case _:
                return f"the number {self.value}"


@dataclass(frozen=True, slots=True)
class Nested:
    """A condition, and how many parentheses and NOTs there are within it, one in the other."""

    index: int
    condition: Condition
    depth: int = 0


Value = Property | Constant
Operand = Value | Nested


def shortened(text: str) -> str:
    """The text as it fits into a sentence."""
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


# Which values may meet in a comparison, and what it is then. RejectedError says what may not, and why.

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
        raise RejectedError(low.index, f"BETWEEN goes from the smaller to the larger number, not from {low} to {high}")
    return And(parts)


def _check_comparable(constant: Constant, sign: str) -> None:
    if constant.value is None:
        raise RejectedError(constant.index, "NULL cannot be compared; write IS NULL or IS NOT NULL")
    if sign not in _EQUALITY and _kind(constant) is not float:
        raise RejectedError(constant.index, f"only numbers have an order, and {constant} is none; write = or <>")


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
        raise RejectedError(right.index, f"{right} cannot be compared with {left}")
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
