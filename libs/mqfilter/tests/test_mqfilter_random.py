"""Random conditions, written out and evaluated, beside a second evaluator; and random text."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from mqfilter import FilterSyntaxError, parse

PARSE_S_MAX = 1.0
NAMES = ("a", "b", "Region", "$x_1")
TEXTS = ("", "1", "2.5", "-3", "true", "FALSE", "it's", "east", "eastern", "-- x", "/*", "größe")

Facts = Mapping[str, str]
Truth = bool | None


@dataclass(frozen=True)
class Written:
    """A condition as text, how tightly its outermost word binds (0: OR, 1: AND, 2: NOT, 3: a comparison), and what a
    naive reader makes of it.
    """

    text: str
    binds: int
    answer: Callable[[Facts], Truth]

    def inside(self, binds: int) -> str:
        return self.text if self.binds >= binds else f"({self.text})"


def number(text: str | None) -> Decimal | None:
    if text is None or not set(text) <= set("0123456789+-.eE"):
        return None
    try:
        return Decimal(text)
    except ArithmeticError:
        return None


def ordered(sign: str, left: Any, right: Any) -> Truth:
    if left is None or right is None:
        return None
    return bool({"=": left == right, "<>": left != right, ">": left > right, ">=": left >= right, "<": left < right,
                 "<=": left <= right}[sign])  # fmt: skip


def opposite(truth: Truth) -> Truth:
    return None if truth is None else not truth


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


names, texts = st.sampled_from(NAMES), st.sampled_from(TEXTS)
numbers = st.one_of(st.integers(-5, 5).map(str), st.sampled_from(["2.5", "-2.5", ".5", "3.", "25e-1", "7L", "-7l"]))
signs = st.sampled_from(["=", "<>", ">", ">=", "<", "<="])
equalities = st.sampled_from(["=", "<>"])
properties = st.dictionaries(names, texts | numbers)


@st.composite
def comparisons(draw: st.DrawFn) -> Written:
    name, other, text = draw(names), draw(names), draw(texts)
    low, high = sorted((draw(numbers), draw(numbers)), key=lambda written: Decimal(written.rstrip("lL")))
    constant = Decimal(low.rstrip("lL"))
    top = Decimal(high.rstrip("lL"))
    sign, equality, flag, not_ = draw(signs), draw(equalities), draw(st.booleans()), draw(st.booleans())
    infix = " NOT" if not_ else ""

    def either(truth: Truth) -> Truth:
        return opposite(truth) if not_ else truth

    def within(facts: Facts) -> Truth:
        value = number(facts.get(name))
        return None if value is None else either(constant <= value <= top)

    def searched(found: Callable[[str], bool]) -> Callable[[Facts], Truth]:
        return lambda facts: name in facts and text != "" and found(facts[name]) is not not_

    return draw(
        st.sampled_from(
            [
                Written(f"{name} {sign} {low}", 3, lambda facts: ordered(sign, number(facts.get(name)), constant)),
                Written(f"{low} {sign} {name}", 3, lambda facts: ordered(sign, constant, number(facts.get(name)))),
                Written(f"{name}{equality}{quoted(text)}", 3, lambda facts: ordered(equality, facts.get(name), text)),
                Written(
                    f"{name} {equality} {flag}",
                    3,
                    lambda facts: ordered(equality, facts[name].lower() == "true", flag) if name in facts else None,
                ),
                Written(f"{name} {equality} {other}", 3, lambda f: ordered(equality, f.get(name), f.get(other))),
                Written(f"{name} < {other}", 3, lambda f: ordered("<", number(f.get(name)), number(f.get(other)))),
                Written(f"{name}{infix} BETWEEN {low} AND {high}", 3, within),
                Written(
                    f"{name}{infix} IN ({quoted(text)}, 'east')",
                    3,
                    lambda facts: either(facts[name] in (text, "east")) if name in facts else None,
                ),
                Written(f"{name} IS{infix} NULL", 3, lambda facts: either(name not in facts)),
                Written(f"{name}{infix} CONTAINS {quoted(text)}", 3, searched(lambda value: text in value)),
                Written(f"{name}{infix} STARTSWITH {quoted(text)}", 3, searched(lambda value: value.startswith(text))),
                Written(f"{name}{infix} endswith {quoted(text)}", 3, searched(lambda value: value.endswith(text))),
                Written("NULL", 3, lambda _: None),
            ]
        )
    )


def joined(word: str, binds: int, parts: list[Written]) -> Written:
    decisive = word == "OR"

    def answer(facts: Facts) -> Truth:
        truths = [part.answer(facts) for part in parts]
        return decisive if decisive in truths else None if None in truths else not decisive

    return Written(f" {word} ".join(part.inside(binds + 1) for part in parts), binds, answer)


def larger(smaller: st.SearchStrategy[Written]) -> st.SearchStrategy[Written]:
    several = st.lists(smaller, min_size=2, max_size=4)
    return st.one_of(
        several.map(lambda parts: joined("OR", 0, parts)),
        several.map(lambda parts: joined("and", 1, parts)),
        smaller.map(lambda one: Written(f"NOT {one.inside(2)}", 2, lambda facts: opposite(one.answer(facts)))),
        smaller.map(lambda one: Written(f"({one.text})", 3, one.answer)),
    )


conditions = st.recursive(comparisons(), larger, max_leaves=12)


@pytest.mark.mechanism("F2")
@given(conditions, st.lists(properties, min_size=1, max_size=5))
def test_a_random_condition_is_what_a_naive_reader_makes_of_it(written: Written, messages: list[Facts]) -> None:
    condition = parse(written.text)
    for facts in messages:
        assert condition.evaluate(facts) is written.answer(facts), (written.text, facts)


@given(conditions, st.sampled_from([" ", "\n", " /* '(* */ ", " -- or\n"]))
def test_blanks_and_comments_between_the_words_change_nothing(written: Written, blank: str) -> None:
    if "'" in written.text or "--" in written.text:
        return
    assert parse(written.text.replace(" ", blank)) == parse(written.text)


WORDS = [
    *(
        "a",
        "b",
        "1",
        "-",
        "2.5",
        "'x'",
        "'",
        "(",
        ")",
        ",",
        "=",
        "<>",
        ">",
        "<=",
        "AND",
        "OR",
        "NOT",
        "IN",
        "IS",
        "NULL",
    ),
    *("TRUE", "BETWEEN", "CONTAINS", "STARTSWITH", "--", "/*", "*/", "\n", "\x00", "é", "\ud800"),
]
STRETCHES = [*WORDS, "a=1 or ", "NOT ", "((", "a in ('x',"]
long_texts = st.builds(lambda stretch, times: stretch * times, st.sampled_from(STRETCHES), st.integers(0, 9_000))
word_salads = st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join)


@given(st.text(max_size=80) | word_salads | long_texts)
@example("a = '\ud800'")
def test_any_text_is_a_condition_or_rejected_in_time(text: str) -> None:
    began = time.thread_time()
    try:
        outcome = parse(text).evaluate({"a": text, "b": "1"})
    except FilterSyntaxError as error:
        place = error.position
    else:
        assert outcome in (True, False, None)
        place = 1
    assert 1 <= place <= len(text) + 1
    assert time.thread_time() - began < PARSE_S_MAX
