"""What stands in an expression, and where: properties, constants, and conditions in others."""

from __future__ import annotations

from dataclasses import dataclass

from mqfilter.conditions import Condition, Number

_SHOWN_CHARACTERS = 20


class RefusedError(Exception):
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
    """A value that the expression says."""

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
