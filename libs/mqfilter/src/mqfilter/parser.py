"""From text to a condition, or to an error that says where the text is wrong."""

from __future__ import annotations

from functools import cache

from lark import Lark, Token, UnexpectedCharacters, UnexpectedToken
from lark.parsers.lalr_interactive_parser import InteractiveParser

from mqfilter.conditions import Condition
from mqfilter.errors import FilterSyntaxError
from mqfilter.operands import RefusedError, shortened
from mqfilter.syntax import ConditionBuilder

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
    except RefusedError as error:
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
