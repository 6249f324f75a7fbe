"""What an expression means: a tree of conditions, each true, false or unknown (None) for a message's properties.

Invariants: conditions never change; evaluating one raises nothing by itself, asks for no property that the outcome does
not depend on, and takes time in proportion to the length of the expression and of the properties that it names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
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
    """False when one is false, true when all are true."""

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
