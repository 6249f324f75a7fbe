"""What an expression means for the properties of a message: true, false, or unknown."""

from __future__ import annotations

import pytest

from mqfilter import parse

ORDER = {
    "amount": "250",
    "price": "3.5",
    "region": "east",
    "paid": "True",
    "empty": "",
    "note": "it's /* no comment */ -- here",
    "limit": "250.0",
    "TAGS": "created",
    "$_9": "odd",
}


@pytest.mark.parametrize(
    ("expression", "outcome"),
    [
        # Numbers: the property is read as one, whatever kind the constant is of.
        ("amount = 250", True),
        ("amount = 250.0", True),
        ("amount = 2.5E2", True),
        ("amount = 250L", True),
        ("amount <> 250", False),
        ("amount > 249", True),
        ("amount >= 250", True),
        ("amount < 250", False),
        ("amount <= 249.9", False),
        ("price > 3", True),
        ("price = 3", False),
        ("price < 4", True),
        ("250 = amount", True),
        ("249 < amount", True),
        ("250 > amount", False),
        ("250 >= amount", True),
        ("250 < amount", False),
        ("250 <= amount", True),
        ("250 <> amount", False),
        ("amount > -1", True),
        ("amount > +1", True),
        ("amount > .5", True),
        ("amount > 5.", True),
        ("amount < 9223372036854775807", True),
        ("amount > -9223372036854775808", True),
        ("amount BETWEEN 250 AND 250", True),
        ("amount BETWEEN 1 AND 249", False),
        ("amount NOT BETWEEN 1 AND 249", True),
        ("amount BETWEEN price AND limit", True),
        ("3 BETWEEN 1 AND price", True),
        # Texts.
        ("region = 'east'", True),
        ("region = 'East'", False),
        ("region <> 'west'", True),
        ("'east' = region", True),
        ("amount = '250'", True),
        ("amount = '250.0'", False),
        ("empty = ''", True),
        ("note = 'it''s /* no comment */ -- here'", True),
        ("TAGS = 'created'", True),
        ("tags = 'created'", None),
        ("$_9 = 'odd'", True),
        ("region IN ('west', 'east')", True),
        ("region IN ('west')", False),
        ("region NOT IN ('west')", True),
        ("region NOT IN ('west', 'east')", False),
        # Booleans, as Java reads them.
        ("paid = TRUE", True),
        ("paid <> true", False),
        ("FALSE = paid", False),
        ("region = FALSE", True),
        # Two properties: as texts when they are equal or not, as numbers otherwise.
        ("amount = limit", False),
        ("amount <> limit", True),
        ("amount >= limit", True),
        ("price < amount", True),
        ("region = region", True),
        # Null.
        ("region IS NULL", False),
        ("region IS NOT NULL", True),
        ("empty IS NULL", False),
        ("absent IS NULL", True),
        ("absent IS NOT NULL", False),
        ("NULL IS NULL", True),
        ("7 IS NULL", False),
        # Searching.
        ("note CONTAINS '''s'", True),
        ("note NOT CONTAINS '''s'", False),
        ("region CONTAINS 'west'", False),
        ("region NOT CONTAINS 'west'", True),
        ("region STARTSWITH 'ea'", True),
        ("region STARTSWITH 'st'", False),
        ("region NOT STARTSWITH 'st'", True),
        ("region ENDSWITH 'st'", True),
        ("region ENDSWITH 'ea'", False),
        ("region NOT ENDSWITH 'st'", False),
        ("region CONTAINS ''", False),
        ("region NOT CONTAINS ''", False),
        # Constants alone.
        ("TRUE", True),
        ("FALSE", False),
        ("NULL", None),
        ("1 = 1.0", True),
        ("2 > 3", False),
        ("'a' <> 'b'", True),
        ("'a' = 'b'", False),
        ("TRUE = FALSE", False),
    ],
)
def test_a_comparison_answers(expression: str, outcome: bool | None) -> None:
    assert parse(expression).evaluate(ORDER) is outcome


@pytest.mark.parametrize(
    "comparison",
    ["absent = 3", "3 <> absent", "absent > 3", "absent BETWEEN 1 AND 3", "absent NOT BETWEEN 1 AND 3", "absent = 'x'",
     "'x' <> absent", "absent IN ('x')", "absent NOT IN ('x')", "absent = TRUE", "absent <> TRUE", "absent = region",
     "region = absent", "region <> absent", "absent = missing", "amount > absent", "absent < amount",
     "region = 3", "region <> 3", "region > 3", "region < price", "price < region", "note BETWEEN 1 AND 3",
     "empty < 3"],
)  # fmt: skip
def test_a_comparison_without_its_property_or_with_a_text_for_a_number_is_unknown(comparison: str) -> None:
    assert parse(comparison).evaluate(ORDER) is None
    assert parse(f"NOT {comparison}").evaluate(ORDER) is None


@pytest.mark.parametrize("search", ["CONTAINS", "STARTSWITH", "ENDSWITH"])
def test_a_search_without_its_property_is_false_also_with_not_as_in_rocketmq(search: str) -> None:
    assert parse(f"absent {search} 'x'").evaluate({}) is False
    assert parse(f"absent NOT {search} 'x'").evaluate({}) is False
    assert parse(f"NOT (absent {search} 'x')").evaluate({}) is True


TRUTHS = {"TRUE": True, "FALSE": False, "NULL": None}


@pytest.mark.parametrize("left", TRUTHS)
@pytest.mark.parametrize("right", TRUTHS)
def test_and_or_and_not_have_three_values(left: str, right: str) -> None:
    one, other = TRUTHS[left], TRUTHS[right]
    least = False if False in (one, other) else None if None in (one, other) else True
    most = True if True in (one, other) else None if None in (one, other) else False
    assert parse(f"{left} AND {right}").evaluate({}) is least
    assert parse(f"{left} OR {right}").evaluate({}) is most
    assert parse(f"NOT {left}").evaluate({}) is (None if one is None else not one)


def test_an_unknown_comparison_does_not_spoil_the_rest() -> None:
    wanted = parse("size > 5 OR region = 'east'")
    assert wanted.evaluate({"size": "large", "region": "east"}) is True
    assert wanted.evaluate({"size": "large", "region": "west"}) is None


@pytest.mark.parametrize(
    ("expression", "same_as"),
    [
        ("a = 1 OR b = 1 AND c = 1", "a = 1 OR (b = 1 AND c = 1)"),
        ("NOT a = 1 AND b = 1", "(NOT (a = 1)) AND b = 1"),
        ("a BETWEEN 1 AND 2 AND b = 1", "(a BETWEEN 1 AND 2) AND b = 1"),
        ("a noT in ('x') And b IS nOt null", "a NOT IN ('x') AND b IS NOT NULL"),
        ("((a)) = ((1))", "a = 1"),
        ("a=1--and b=1\nor/**/b=2 -- end", "a = 1 OR b = 2"),
        ("\ta\r\n>\f1", "a > 1"),
        ("1 < a", "a > 1"),
    ],
)
def test_two_spellings_are_one_condition(expression: str, same_as: str) -> None:
    assert parse(expression) == parse(same_as)


@pytest.mark.parametrize(
    "text", ["3", "+3", "-3", "03", "3.", ".3", "3.25", "3e2", "3E-2", "9" * 40, "9" * 5_000, "1e999"]
)
def test_a_text_that_is_a_number_has_an_order(text: str) -> None:
    assert parse("a >= 0 OR a < 0").evaluate({"a": text}) is True


@pytest.mark.parametrize(
    "text", ["", " 3", "3 ", "3,5", "1_000", "0x10", "nan", "inf", "Infinity", "e5", ".", "-", "३", "3f"]
)
def test_a_text_that_is_no_number_has_none(text: str) -> None:
    assert parse("a >= 0 OR a < 0").evaluate({"a": text}) is None


def test_only_the_properties_that_decide_are_asked_for() -> None:
    asked = []

    class Watched:
        def get(self, name: str) -> str | None:
            asked.append(name)
            return "1"

    assert parse("a = 2 AND b = 1 OR c = 1 OR d = 1").evaluate(Watched()) is True
    assert asked == ["a", "c"]
