"""From text to a condition, or to an error that says where the text is wrong."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import cache

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args
from lark.parsers.lalr_interactive_parser import InteractiveParser

from mqfilter.conditions import (
    Always,
    And,
    Condition,
    Constant,
    IsNull,
    IsOneOf,
    Nested,
    Not,
    Operand,
    Or,
    Property,
    RejectedError,
    Searches,
    Value,
    between,
    comparison,
    shortened,
)

EXPRESSION_CHARACTERS_MAX = 16 * 1024  # one takes 50 ms at the most, in which a broker does nothing else

# Keyword -> terminal of the grammar.
_KEYWORDS = {
    "AND": "_AND",
    "BETWEEN": "_BETWEEN",
    "CONTAINS": "SEARCH",
    "ENDSWITH": "SEARCH",
    "FALSE": "FALSE",
    "IN": "IN",
    "IS": "_IS",
    "NOT": "NOT",
    "NULL": "NULL",
    "OR": "_OR",
    "STARTSWITH": "SEARCH",
    "TRUE": "TRUE",
}
_END = "$END"
_VALUE = frozenset({"NAME", "STRING", "INTEGER", "DECIMAL", "SIGN", "TRUE", "FALSE", "NULL", "LEFT"})
# Terminals that may come next -> how that is said. The first that fits stands for its terminals.
_EXPECTATIONS = {
    _VALUE | {"NOT"}: "a condition",
    _VALUE: "a value",
    frozenset({"COMPARISON", "NOT", "_BETWEEN", "IN", "_IS", "SEARCH"}): "a comparison",
    frozenset({"INTEGER", "DECIMAL"}): "a number",
    frozenset({"STRING"}): "a text in single quotes",
    frozenset({"SEARCH"}): "CONTAINS, STARTSWITH, ENDSWITH",
    frozenset({"_BETWEEN"}): "BETWEEN",
    frozenset({"IN"}): "IN",
    frozenset({"NOT"}): "NOT",
    frozenset({"NULL"}): "NULL",
    frozenset({"_AND"}): "AND",
    frozenset({"_OR"}): "OR",
    frozenset({"LEFT"}): "'('",
    frozenset({"COMMA"}): "','",
    frozenset({"RPAR"}): "')'",
    frozenset({_END}): "the end",
}


def parse(expression: str) -> Condition:
    """The condition that the expression is. Raises FilterSyntaxError."""
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise FilterSyntaxError(
            expression,
            EXPRESSION_CHARACTERS_MAX,
            f"the expression has {len(expression):,} characters; at most {EXPRESSION_CHARACTERS_MAX:,} are allowed",
        )
    parser = _grammar().parse_interactive(expression)
    previous: Token | None = None
    last: Token | None = None
    try:
        for token in parser.iter_parse():
            previous, last = last, token
        return _finished(parser, last)
    except RejectedError as error:
        raise FilterSyntaxError(expression, error.index, error.sentence) from None
    except UnexpectedCharacters as error:
        index: int = error.pos_in_stream  # type: ignore[assignment]  # lark says None
        sentence = _unclosed(expression, index) or _expected(parser, last, f"'{expression[index]}'")
        raise FilterSyntaxError(expression, index, sentence) from None
    except UnexpectedToken as error:
        if error.token.type == _END:
            raise FilterSyntaxError(expression, len(expression), _expected(parser, last, "the end")) from None
        sentence = _expected(parser, previous, f"'{shortened(error.token)}'")
        raise FilterSyntaxError(expression, error.token.start_pos or 0, sentence) from None


@cache
def _grammar() -> Lark:
    return Lark.open(
        "sql92.lark",
        rel_to=__file__,
        parser="lalr",
        lexer="basic",
        transformer=ConditionBuilder(),
        lexer_callbacks={"NAME": _keyword},
    )


def _keyword(name: Token) -> Token:
    keyword = _KEYWORDS.get(name.upper())
    return name if keyword is None else name.update(type=keyword)


def _finished(parser: InteractiveParser, last: Token | None) -> Condition:
    condition: Condition = parser.feed_eof(last)  # type: ignore[no-untyped-call]  # lark's, as below
    return condition


def _unclosed(expression: str, index: int) -> str | None:
    """What begins at `index` and is not closed."""
    if expression[index] == "'":
        return "the text that begins here has no end; close it with a single quote"
    if expression.startswith("/*", index):
        return "the comment that begins here has no end; close it with */"
    return None


def _expected(parser: InteractiveParser, previous: Token | None, found: str) -> str:
    left: set[str] = parser.accepts()  # type: ignore[no-untyped-call]
    words = []
    for expected, word in _EXPECTATIONS.items():
        if expected <= left:
            words.append(word)
            left -= expected
    wanted = f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
    after = f" after '{shortened(previous)}'" if previous is not None else ""
    return f"expected {wanted}{after}, found {found}"


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
    """From what the grammar recognises to conditions: one method for each name in it.

    Used by the parser while it parses. Raises RejectedError.

    Invariant: no condition is more than NESTING_MAX parentheses and NOTs deep, so that evaluating it needs little
    stack.
    """

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
            raise RejectedError(
                _index(token), f"{shortened(digits)} is too large; allowed are {INTEGER_MIN} to {INTEGER_MAX}"
            )
        return Constant(_index(sign or token), value)

    def decimal(self, sign: Token | None, token: Token) -> Constant:
        value = float(f"{sign or ''}{token}")
        if abs(value) == float("inf"):
            raise RejectedError(_index(token), f"{shortened(token)} is too large for a number of 64 bits")
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
            raise RejectedError(operand.index, f"{operand} alone is no condition; compare it, as in paid = TRUE")


def _value(operand: Operand) -> Value:
    """The operand where a property or a constant has to stand."""
    if isinstance(operand, Nested):
        raise RejectedError(
            operand.index, "a condition stands where a value has to; join conditions by AND, OR and NOT"
        )
    return operand


def _property(operand: Operand, keyword: Token) -> Property:
    if not isinstance(operand, Property):
        raise RejectedError(operand.index, f"a property has to stand before {keyword.upper()}")
    return operand


def _deeper(token: Token, inner: Nested) -> Nested:
    """The condition in one more parenthesis or NOT, which begins at the token."""
    if inner.depth == NESTING_MAX:
        raise RejectedError(_index(token), f"more than {NESTING_MAX} parentheses and NOTs lie one in the other")
    return Nested(_index(token), inner.condition, inner.depth + 1)


def _joined(join: type[And] | type[Or], operands: tuple[Operand, ...]) -> Nested:
    parts = [_condition(operand) for operand in operands]
    return Nested(parts[0].index, join(tuple(part.condition for part in parts)), max(part.depth for part in parts))


def _unless(negation: Token | None, operand: Operand, condition: Condition) -> Nested:
    return Nested(operand.index, condition if negation is None else Not(condition))


class FilterSyntaxError(ValueError):
    """Says what is wrong, and where: `position` counts characters of the whole text, `column` those of its `line`.

    All three begin at 1; the position behind the last character is the end.
    """

    def __init__(self, text: str, index: int, sentence: str) -> None:
        self.position = index + 1
        self.line = text.count("\n", 0, index) + 1
        self.column = index - text.rfind("\n", 0, index)
        place = f" (line {self.line}, column {self.column})" if "\n" in text else ""
        super().__init__(f"at character {self.position}{place}: {sentence}")
