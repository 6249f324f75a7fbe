"""Which of the two languages a visitor reads: what he chose, or else what his browser asks for."""

from __future__ import annotations

import enum

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
