"""What the pages say, by language and key."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from orders.pages.language import Language
from orders.pages.texts_en import ENGLISH
from orders.pages.texts_zh import CHINESE

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
        """The translation of somebody else's word, such as a payment's status; an unknown one stays as it is."""
        return self._catalog.get(f"{kind}.{name}", name)

    def has(self, key: str) -> bool:
        return key in self._catalog
