"""Money as people read and write it. Whole minor units on both sides: no floating-point number comes near."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

# ISO 4217: how many digits the minor unit has, where that is not two.
_DIGITS: Mapping[str, int] = MappingProxyType(
    {"BHD": 3, "CLP": 0, "ISK": 0, "JOD": 3, "JPY": 0, "KRW": 0, "KWD": 3, "OMR": 3, "TND": 3, "UGX": 0, "VND": 0}
)
_DIGITS_DEFAULT = 2
# The shop's home currency has the bare sign (MISSION X2); where two share a sign, the other says whose it is.
_SIGNS: Mapping[str, str] = MappingProxyType(
    {"CNY": "¥", "JPY": "JP¥", "USD": "US$", "HKD": "HK$", "TWD": "NT$", "EUR": "€", "GBP": "£", "KRW": "₩", "INR": "₹"}
)
_AMOUNT = re.compile(r"(?P<whole>[0-9]{1,15})(?:\.(?P<part>[0-9]{1,3}))?")


class NotAnAmountError(ValueError):
    """The text is not an amount of this currency."""


def format_money(amount_minor: int, currency: str) -> str:
    """`15800`, `CNY` -> `¥158.00`; a currency without a sign is named: `CHF 158.00`."""
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
