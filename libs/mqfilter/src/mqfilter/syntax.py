"""From what the grammar recognises to conditions: one method for each name in it.

Invariant: no condition is more than NESTING_MAX parentheses and NOTs deep, so that evaluating it needs little stack.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from lark import Token, Transformer, v_args

from mqfilter.comparisons import between, comparison
from mqfilter.conditions import Always, And, Condition, IsNull, IsOneOf, Not, Or, Searches
from mqfilter.operands import Constant, Nested, Operand, Property, RefusedError, Value, shortened

NESTING_MAX = 64
INTEGER_MIN, INTEGER_MAX = -(1 << 63), (1 << 63) - 1  # RocketMQ's constants are Java's long and double
_INTEGER_DIGITS_MAX = len(str(INTEGER_MAX))

_SEARCHES: Mapping[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


@v_args(inline=True)
class ConditionBuilder(Transformer[Token, Condition]):
    """Used by the parser while it parses. Raises RefusedError."""

    def whole(self, operand: Operand) -> Condition:
        return _condition(operand).condition

    def disjunction(self, *operands: Operand) -> Nested:
        return _joined(Or, operands)

    def conjunction(self, *operands: Operand) -> Nested:
        return _joined(And, operands)

    def negated(self, keyword: Token, operand: Operand) -> Nested:
        inner = _deeper(keyword, _condition(operand))
        return Nested(inner.index, Not(inner.condition), inner.depth)

    def parenthesised(self, bracket: Token, operand: Operand) -> Operand:
        return _deeper(bracket, operand) if isinstance(operand, Nested) else operand

    # -------------------------------------------------------------------------------------------- comparisons

    def compared(self, left: Operand, sign: Token, right: Operand) -> Nested:
        return Nested(left.index, comparison(_value(left), str(sign), _value(right)))

    def between(self, operand: Operand, negation: Token | None, low: Operand, high: Operand) -> Nested:
        return _unless(negation, operand, between(_value(operand), _value(low), _value(high)))

    def one_of(self, operand: Operand, negation: Token | None, keyword: Token, *texts: Token) -> Nested:
        name = _property(operand, keyword).name
        return _unless(negation, operand, IsOneOf(name, frozenset(_unquoted(text) for text in texts)))

    def null_test(self, operand: Operand, negation: Token | None, _null: Token) -> Nested:
        value = _value(operand)
        is_null = IsNull(value.name) if isinstance(value, Property) else Always(value.value is None)
        return _unless(negation, operand, is_null)

    def searched(self, operand: Operand, negation: Token | None, keyword: Token, text: Token) -> Nested:
        name, searched = _property(operand, keyword).name, _unquoted(text)
        if not searched:  # found nowhere, and missed nowhere either
            return Nested(operand.index, Always(outcome=False))
        return Nested(operand.index, Searches(name, _SEARCHES[keyword.upper()], searched, wanted=negation is None))

    # ------------------------------------------------------------------------------------------------- values

    def property(self, name: Token) -> Property:
        return Property(_index(name), str(name))

    def text(self, token: Token) -> Constant:
        return Constant(_index(token), _unquoted(token))

    def constant(self, keyword: Token) -> Constant:
        return Constant(_index(keyword), {"TRUE": True, "FALSE": False}.get(keyword.type))

    def integer(self, sign: Token | None, token: Token) -> Constant:
        digits = token.rstrip("lL")
        value = 0 if len(digits) > _INTEGER_DIGITS_MAX else int(f"{sign or ''}{digits}")
        if len(digits) > _INTEGER_DIGITS_MAX or not INTEGER_MIN <= value <= INTEGER_MAX:
            raise RefusedError(
                _index(token), f"{shortened(digits)} is too large; allowed are {INTEGER_MIN} to {INTEGER_MAX}"
            )
        return Constant(_index(sign or token), value)

    def decimal(self, sign: Token | None, token: Token) -> Constant:
        value = float(f"{sign or ''}{token}")
        if abs(value) == float("inf"):
            raise RefusedError(_index(token), f"{shortened(token)} is too large for a number of 64 bits")
        return Constant(_index(sign or token), value)


def _index(token: Token) -> int:
    return token.start_pos or 0


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _condition(operand: Operand) -> Nested:
    """The operand where something true or false has to stand."""
    match operand:
        case Nested():
            return operand
        case Constant(index, bool() | None as outcome):
            return Nested(index, Always(outcome))
        case _:
            raise RefusedError(operand.index, f"{operand} alone is no condition; compare it, as in paid = TRUE")


def _value(operand: Operand) -> Value:
    """The operand where a property or a constant has to stand."""
    if isinstance(operand, Nested):
        raise RefusedError(operand.index, "a condition stands where a value has to; join conditions by AND, OR and NOT")
    return operand


def _property(operand: Operand, keyword: Token) -> Property:
    if not isinstance(operand, Property):
        raise RefusedError(operand.index, f"a property has to stand before {keyword.upper()}")
    return operand


def _deeper(token: Token, inner: Nested) -> Nested:
    """The condition in one more parenthesis or NOT, which begins at the token."""
    if inner.depth == NESTING_MAX:
        raise RefusedError(_index(token), f"more than {NESTING_MAX} parentheses and NOTs lie one in the other")
    return Nested(_index(token), inner.condition, inner.depth + 1)


def _joined(join: type[And] | type[Or], operands: tuple[Operand, ...]) -> Nested:
    parts = [_condition(operand) for operand in operands]
    return Nested(parts[0].index, join(tuple(part.condition for part in parts)), max(part.depth for part in parts))


def _unless(negation: Token | None, operand: Operand, condition: Condition) -> Nested:
    return Nested(operand.index, condition if negation is None else Not(condition))
