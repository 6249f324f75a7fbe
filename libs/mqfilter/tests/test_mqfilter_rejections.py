"""What is no condition, and where the error says that it is wrong."""

from __future__ import annotations

import re

import pytest

from mqfilter import EXPRESSION_CHARACTERS_MAX, NESTING_MAX, FilterSyntaxError, parse


@pytest.mark.mechanism("F2")
@pytest.mark.parametrize(
    ("expression", "position", "sentence"),
    [
        ("", 1, "expected a condition, found the end"),
        ("amount >", 9, "expected a value after '>', found the end"),
        ("a and between 2 and 10", 7, "expected a condition after 'and', found 'between'"),
        ("a = 1 b", 7, "expected AND, OR or the end after '1', found 'b'"),
        ("a > b > c", 7, "expected AND, OR or the end after 'b', found '>'"),
        ("a b", 3, "expected a comparison, AND, OR or the end after 'a', found 'b'"),
        ("a != 1", 3, "expected a comparison, AND, OR or the end after 'a', found '!'"),
        ("a not 3", 7, "expected CONTAINS, STARTSWITH, ENDSWITH, BETWEEN or IN after 'not', found '3'"),
        ("a is 3", 6, "expected NOT or NULL after 'is', found '3'"),
        ("a between 1", 12, "expected AND after '1', found the end"),
        ("a in 'x'", 6, "expected '(' after 'in', found ''x''"),
        ("a in ('x' 'y')", 11, "expected ',' or ')' after ''x'', found ''y''"),
        ("a in (1)", 7, "expected a text in single quotes after '(', found '1'"),
        ("a contains b", 12, "expected a text in single quotes after 'contains', found 'b'"),
        ("a like 'x%'", 3, "expected a comparison, AND, OR or the end after 'a', found 'like'"),
        ("(a = 1", 7, "expected ')' after '1', found the end"),
        ("a = 1)", 6, "expected the end after '1', found ')'"),
        ("a = 007", 6, "expected AND, OR or the end after '0', found '0'"),
        ("a = 0x1F", 6, "expected AND, OR or the end after '0', found 'x1F'"),
        ("-a > 3", 2, "expected a number after '-', found 'a'"),
        ("a > 'it''s", 5, "the text that begins here has no end; close it with a single quote"),
        ("a > 1 /* or", 7, "the comment that begins here has no end; close it with */"),
        ('a = "x"', 5, "expected a value after '=', found '\"'"),
        ("größe = 3", 3, "expected a comparison, AND, OR or the end after 'gr', found 'ö'"),
        ("ſ = 3", 1, "expected a condition, found 'ſ'"),
        ("a", 1, "the property a alone is no condition; compare it, as in paid = TRUE"),
        ("a = 1 OR NOT b", 14, "the property b alone is no condition"),
        ("'x'", 1, "the text 'x' alone is no condition"),
        ("a = 1 AND 3", 11, "the number 3 alone is no condition"),
        ("(a = 1) = TRUE", 1, "a condition stands where a value has to"),
        ("(a = 1) IS NULL", 1, "a condition stands where a value has to"),
        ("a = NULL", 5, "NULL cannot be compared; write IS NULL or IS NOT NULL"),
        ("NULL <> a", 1, "NULL cannot be compared"),
        ("a BETWEEN NULL AND 3", 11, "NULL cannot be compared"),
        ("a > 'x'", 5, "only numbers have an order, and the text 'x' is none; write = or <>"),
        ("'a' > 'b'", 1, "only numbers have an order, and the text 'a' is none"),
        ("TRUE <= a", 1, "only numbers have an order, and TRUE is none"),
        ("a BETWEEN 1 AND 'b'", 17, "only numbers have an order, and the text 'b' is none"),
        ("1 = 'x'", 5, "the text 'x' cannot be compared with the number 1"),
        ("'1' = TRUE", 7, "TRUE cannot be compared with the text '1'"),
        ("1 <> FALSE", 6, "FALSE cannot be compared with the number 1"),
        ("a BETWEEN 10 AND -1", 11, "from the smaller to the larger number, not from the number 10 to the number -1"),
        ("5 IN ('x')", 1, "a property has to stand before IN"),
        ("'x' contains 'y'", 1, "a property has to stand before CONTAINS"),
        ("a > 9223372036854775808", 5, "9223372036854775808 is too large; allowed are -9223372036854775808 to 92233"),
        ("a > -9223372036854775809", 6, "9223372036854775809 is too large"),
        ("a > 1000000000000000000000000", 5, "10000000000000000000... is too large"),
        ("a > 1e999", 5, "1e999 is too large for a number of 64 bits"),
    ],
)  # fmt: skip
def test_the_error_names_the_place_and_what_was_expected(expression: str, position: int, sentence: str) -> None:
    with pytest.raises(FilterSyntaxError, match=f"^at character {position}: .*{re.escape(sentence)}") as rejected:
        parse(expression)
    assert rejected.value.position == position
    assert (rejected.value.line, rejected.value.column) == (1, position)


def test_the_error_in_a_text_of_several_lines_names_line_and_column() -> None:
    with pytest.raises(FilterSyntaxError, match=r"at character 16 \(line 2, column 10\): expected a value") as rejected:
        parse("a = 1\n AND b = ? -- wrong")
    assert (rejected.value.position, rejected.value.line, rejected.value.column) == (16, 2, 10)


def test_as_many_parentheses_as_are_allowed_and_one_more() -> None:
    deepest = "(" * NESTING_MAX + "a = 1" + ")" * NESTING_MAX
    assert parse(deepest).evaluate({"a": "1"}) is True
    with pytest.raises(FilterSyntaxError, match=f"more than {NESTING_MAX} parentheses and NOTs lie one in the other"):
        parse(f"b = 2 OR ({deepest} AND b = 1)")
    with pytest.raises(FilterSyntaxError, match="at character 1: more than 64"):
        parse("NOT " * (NESTING_MAX + 1) + "TRUE")


def test_as_many_characters_as_are_allowed_and_one_more() -> None:
    longest = "a = 1 OR " * (EXPRESSION_CHARACTERS_MAX // 9)
    longest += "TRUE".ljust(EXPRESSION_CHARACTERS_MAX - len(longest))
    assert parse(longest).evaluate({}) is True
    with pytest.raises(FilterSyntaxError, match="has 16,385 characters; at most 16,384 are allowed"):
        parse(longest + " ")
