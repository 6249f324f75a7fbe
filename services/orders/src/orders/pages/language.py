"""Languages, texts, money and times of the pages."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from orders.domain.product import Product
from orders.pages.texts_en import ENGLISH
from orders.pages.texts_zh import CHINESE
from orders.service.sample_catalogue import is_sample

COOKIE = "shop_language"
PARAMETER = "lang"
COOKIE_MAX_AGE_S = 365 * 86_400


class Language(enum.StrEnum):
    """The languages of the shop."""

    ENGLISH = "en"
    CHINESE = "zh"

    @property
    def tag(self) -> str:
        """For the `lang` attribute."""
        return "zh-CN" if self is Language.CHINESE else "en"

    @property
    def own_name(self) -> str:
        return "中文" if self is Language.CHINESE else "English"

    @property
    def other(self) -> Language:
        return Language.ENGLISH if self is Language.CHINESE else Language.CHINESE


def chosen(text: str | None) -> Language | None:
    """The language that a parameter or a cookie names, None when it names none."""
    return Language(text) if text in set(Language) else None


def preferred(accept_language: str) -> Language:
    """The first of ours by the weights of an Accept-Language header; English when it names neither."""
    wishes: list[tuple[int, Language]] = []
    for part in accept_language.split(","):
        tag, _, parameters = part.strip().partition(";")
        language = chosen(tag.strip().lower().partition("-")[0])
        weight = _thousandths(parameters)
        if language is not None and weight > 0:
            wishes.append((weight, language))
    if not wishes:
        return Language.ENGLISH
    return max(wishes, key=lambda wish: wish[0])[1]  # of equal ones the first


def _thousandths(parameters: str) -> int:
    """The weight of `q=0.8`, in thousandths: 1 to 1000, 0 for what is not wanted or cannot be read."""
    name, _, value = parameters.strip().partition("=")
    if not name:
        return 1000
    whole, _, part = value.strip().partition(".")
    if name.strip().lower() != "q" or whole not in ("0", "1") or not (part == "" or part.isdecimal()):
        return 0
    return min(1000, int(whole) * 1000 + int(part[:3].ljust(3, "0")))


CATALOGS: Mapping[Language, Mapping[str, str]] = MappingProxyType(
    {Language.ENGLISH: ENGLISH, Language.CHINESE: CHINESE}
)


class Texts:
    """The sentences of one language. Raises KeyError for a key that no catalog has: a page never shows a bare key."""

    def __init__(self, language: Language) -> None:
        self._catalog = CATALOGS[language]

    def __call__(self, key: str, /, **values: object) -> str:
        """The sentence, with the values in their places."""
        return self._catalog[key].format(**values) if values else self._catalog[key]

    def word(self, kind: str, name: str) -> str:
        """The translation of another service's word, such as a payment's status; an unknown one stays as it is."""
        return self._catalog.get(f"{kind}.{name}", name)

    def product_name(self, product: Product) -> str:
        """A sample has a name in each language, any other product the one that its seller gave it."""
        return self._catalog[f"sample.{product.product_id}"] if is_sample(product) else product.name

    def has(self, key: str) -> bool:
        return key in self._catalog


# ISO 4217: how many digits the minor unit has, where that is not two.
_DIGITS: Mapping[str, int] = MappingProxyType(
    {"BHD": 3, "CLP": 0, "ISK": 0, "JOD": 3, "JPY": 0, "KRW": 0, "KWD": 3, "OMR": 3, "TND": 3, "UGX": 0, "VND": 0}
)
_DIGITS_DEFAULT = 2
# The shop's home currency has the bare sign; where two share a sign, the other says whose it is.
_SIGNS: Mapping[str, str] = MappingProxyType(
    {"CNY": "¥", "JPY": "JP¥", "USD": "US$", "HKD": "HK$", "TWD": "NT$", "EUR": "€", "GBP": "£", "KRW": "₩", "INR": "₹"}
)
_AMOUNT = re.compile(r"(?P<whole>[0-9]{1,15})(?:\.(?P<part>[0-9]{1,3}))?")


class NotAnAmountError(ValueError):
    """The text is not an amount of this currency."""


def format_money(amount_minor: int, currency: str) -> str:
    """`15800`, `CNY` -> `¥158.00`; a currency without a sign is named: `CHF 158.00`.

    Whole minor units on both sides: no floating-point number comes near.
    """
    sign = _SIGNS.get(currency, f"{currency}\N{NO-BREAK SPACE}")
    minus = "-" if amount_minor < 0 else ""
    whole, part = divmod(abs(amount_minor), _unit(currency))
    digits = _digits(currency)
    return f"{minus}{sign}{whole:,}" + (f".{part:0{digits}d}" if digits else "")


def format_amount(amount_minor: int, currency: str) -> str:
    """The bare number, as an input field takes it: `158.00`."""
    whole, part = divmod(amount_minor, _unit(currency))
    digits = _digits(currency)
    return str(whole) + (f".{part:0{digits}d}" if digits else "")


def parse_amount(text: str, currency: str) -> int:
    """The minor units of `158`, `158.5` or `158.00`. Raises NotAnAmountError."""
    match = _AMOUNT.fullmatch(text.strip())
    digits = _digits(currency)
    if match is None or len(match["part"] or "") > digits:
        raise NotAnAmountError(f"{text!r} is not an amount of {currency} with at most {digits} decimals")
    return int(match["whole"]) * _unit(currency) + int((match["part"] or "").ljust(digits, "0") or "0")


def _digits(currency: str) -> int:
    return _DIGITS.get(currency, _DIGITS_DEFAULT)


def _unit(currency: str) -> int:
    return int(10 ** _digits(currency))


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def format_moment(at_ms: int, language: Language) -> str:
    """`22 Nov 2026, 16:15:10 UTC` or `2026年11月22日 16:15:10 UTC`.

    Moments and remaining times as people read them. The server knows no visitor's time zone and says UTC; the script on
    the page turns moments into the visitor's own time.
    """
    at = _utc(at_ms)
    clock = f"{at.hour:02}:{at.minute:02}:{at.second:02} UTC"
    if language is Language.CHINESE:
        return f"{at.year}年{at.month}月{at.day}日 {clock}"
    return f"{at.day} {_MONTHS[at.month - 1]} {at.year}, {clock}"


def machine_moment(at_ms: int) -> str:
    """For the `datetime` attribute: `2026-11-22T16:15:10.000Z`."""
    return _utc(at_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def remaining_seconds(expires_at_ms: int, now_ms: int) -> int:
    """Whole seconds that are left, begun ones counted; 0 when the time is over."""
    return max(0, -((now_ms - expires_at_ms) // 1000))


def format_remaining(seconds: int) -> str:
    """`09:20`; from an hour on `1:09:20`."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def _utc(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, UTC).replace(microsecond=at_ms % 1000 * 1000)
