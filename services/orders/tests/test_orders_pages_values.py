"""What pages are made of: money, moments, languages, carts, and the sentences of both catalogs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from string import Formatter

import pytest

from orders.domain.order import ChangeReason, OrderStatus
from orders.pages.application import PROBLEMS
from orders.pages.language import (
    CATALOGS,
    Language,
    NotAnAmountError,
    Texts,
    format_amount,
    format_moment,
    format_money,
    format_remaining,
    parse_amount,
    preferred,
    remaining_seconds,
)
from orders.pages.parts import PageError
from orders.pages.testing import METHODS
from orders.pages.visitor import Cart, parse_cart
from orders.service.sample_catalogue import SAMPLE_CATALOGUE
from servicekit.auth import ROLES

ENGLISH, CHINESE = Language.ENGLISH, Language.CHINESE
LITERAL_KEY = re.compile(r"""\bt\(\s*["']([a-z][\w.-]*)["']\s*[,)]""")
BUILT_KEY = re.compile(r"""\bt\(\s*["']([a-z][\w.-]*\.)["']\s*~""")


def templates() -> Iterator[tuple[str, str]]:
    for template in files("orders.pages").joinpath("templates").iterdir():
        yield template.name, template.read_text(encoding="utf-8")


@pytest.mark.mechanism("X2")
@pytest.mark.parametrize(
    ("amount_minor", "currency", "text"),
    [
        (15800, "CNY", "¥158.00"),  # mechanism X2
        (5, "CNY", "¥0.05"),
        (123456789, "CNY", "¥1,234,567.89"),
        (-15800, "CNY", "-¥158.00"),
        (9_007_199_254_740_993, "USD", "US$90,071,992,547,409.93"),  # no floating-point number holds this one
        (1580, "JPY", "JP¥1,580"),
        (1580, "KWD", "KWD\N{NO-BREAK SPACE}1.580"),
        (15800, "CHF", "CHF\N{NO-BREAK SPACE}158.00"),
    ],
)
def test_money_is_told_with_the_sign_of_its_currency(amount_minor: int, currency: str, text: str) -> None:
    assert format_money(amount_minor, currency) == text


@pytest.mark.parametrize(
    ("text", "currency", "amount_minor"),
    [("158", "CNY", 15800), ("158.5", "CNY", 15850), (" 0.05 ", "CNY", 5), ("12", "JPY", 12), ("1.234", "KWD", 1234)],
)
def test_an_amount_that_a_person_writes_is_read_exactly(text: str, currency: str, amount_minor: int) -> None:
    assert parse_amount(text, currency) == amount_minor
    assert parse_amount(format_amount(amount_minor, currency), currency) == amount_minor


@pytest.mark.parametrize("text", ["", "-1", "1,5", "1.234", "1e3", "٣", "0x10", "1.", ".5", "9" * 16, "NaN"])
def test_what_is_no_amount_is_rejected(text: str) -> None:
    with pytest.raises(NotAnAmountError):
        parse_amount(text, "CNY")


@pytest.mark.mechanism("X2")
@pytest.mark.parametrize(
    ("left_ms", "text"),
    [(560_000, "09:20"), (559_001, "09:20"), (1, "00:01"), (0, "00:00"), (-5_000, "00:00"), (4_760_000, "1:19:20")],
)
def test_the_remaining_time_counts_begun_seconds_and_ends_at_zero(left_ms: int, text: str) -> None:
    assert format_remaining(remaining_seconds(1_000_000 + left_ms, 1_000_000)) == text


def test_moments_are_told_in_the_language_of_the_page() -> None:
    assert format_moment(1_700_000_000_123, ENGLISH) == "14 Nov 2023, 22:13:20 UTC"
    assert format_moment(1_700_000_000_123, CHINESE) == "2023年11月14日 22:13:20 UTC"


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("", ENGLISH),
        ("fr-FR,fr;q=0.9", ENGLISH),
        ("zh-CN,zh;q=0.9,en;q=0.8", CHINESE),
        ("en;q=0.5, zh-Hant-TW;q=0.7", CHINESE),
        ("zh;q=0, en;q=0.1", ENGLISH),
        ("EN-gb, zh", ENGLISH),
        ("zh;q=what,en", ENGLISH),
    ],
)
def test_the_browser_says_which_language_its_reader_prefers(header: str, language: Language) -> None:
    assert preferred(header) is language


def test_a_cart_survives_its_cookie_and_keeps_its_limits() -> None:
    cart = Cart().with_more("seat-1", 2).with_more("seat-2", 1).with_more("seat-1", 3)
    assert cart.text == "seat-1:5|seat-2:1"
    assert parse_cart(cart.text) == cart
    assert cart.with_quantity("seat-1", 0).text == "seat-2:1"
    assert parse_cart("seat:99999").units == 10_000
    assert len(parse_cart("|".join(f"p{number}:1" for number in range(80))).lines) == 50


@pytest.mark.parametrize(
    "text", ["", "seat", "seat:", "seat:-1", "seat:0", ":1", "../x:1", "seat:1e2", "seat:²", "|||"]
)
def test_a_cart_cookie_that_makes_no_sense_is_an_empty_cart(text: str) -> None:
    assert parse_cart(text) == Cart()


def test_both_catalogs_have_the_same_keys_and_the_same_places_for_values() -> None:
    english, chinese = CATALOGS[ENGLISH], CATALOGS[CHINESE]
    assert set(english) ^ set(chinese) == set()
    for key, sentence in english.items():
        assert sentence
        assert chinese[key]
        assert places(sentence) == places(chinese[key]), key


def places(sentence: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(sentence) if name is not None}


def test_every_key_of_a_template_is_in_the_catalogs() -> None:
    keys = set(CATALOGS[ENGLISH])
    used: set[str] = set()
    for name, text in templates():
        for key in LITERAL_KEY.findall(text):
            assert key in keys, f"{name}: {key}"
            used.add(key)
        for prefix in BUILT_KEY.findall(text):
            assert any(key.startswith(prefix) for key in keys), f"{name}: {prefix}"
            used |= {key for key in keys if key.startswith(prefix)}
    looked_up = ("problem.", "method.", "payment.", "refund.", "sample.")
    tabs = {"operator.orders", "operator.dead_letters", "operator.refunds"}
    unused = {key for key in keys - used if not key.startswith(looked_up)}
    assert unused - tabs == set()


def test_every_word_that_a_key_is_built_of_is_in_the_catalogs() -> None:
    texts = Texts(CHINESE)
    keys = [f"status.{status}" for status in OrderStatus] + [f"reason.{reason}" for reason in ChangeReason]
    keys += [f"method.{method}" for method in METHODS] + [f"session.role.{role}" for role in ROLES]
    keys += [f"problem.{kind.name}" for kind in PROBLEMS.values()]
    page_errors: list[type[PageError]] = [PageError, *all_below(PageError)]
    keys += [f"problem.{error.name}" for error in page_errors]
    assert [key for key in keys if not texts.has(key)] == []


def test_every_sample_has_a_name_and_a_described_picture_in_each_language() -> None:
    for texts in CATALOGS.values():
        for prefix in ("sample.", "picture."):
            assert {key.removeprefix(prefix) for key in texts if key.startswith(prefix)} == set(SAMPLE_CATALOGUE)


def all_below(kind: type[PageError]) -> list[type[PageError]]:
    return [found for below in kind.__subclasses__() for found in (below, *all_below(below))]


def test_an_unknown_word_of_another_service_stays_as_it_is() -> None:
    assert Texts(ENGLISH).word("payment", "ON_HOLD") == "ON_HOLD"
