"""Which messages a read wants: what its broker is asked for, and what is compared again when rows are made.

A broker compares the hashes of tags and evaluates conditions in SQL92 on properties, if its configuration has
enablePropertyFilter=true. The text of a tag or key decides here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mqclient import IllegalArgumentError, MessageSelector
from mqclient.consumer.pulling import parse_subscription
from mqproto.properties import KEYS, TAGS
from pyspark_mq.errors import OptionError
from pyspark_mq.options import ReadOptions
from pyspark_mq.pushdown import Pushed


@dataclass(frozen=True, slots=True)
class Wanted:
    """Messages with one of the tags and one of the keys (the property as a whole) that fulfil the condition.

    None for tags or keys: any message, also one without. `asks_for_keys`: every broker can evaluate conditions, so
    that they look for the keys.
    """

    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    sql: str = ""
    asks_for_keys: bool = False

    @property
    def selector(self) -> str | MessageSelector:
        """For the broker, which may give more than is wanted, but never less."""
        if not self.sql and not self.asks_for_keys:
            return " || ".join(sorted(self.tags or ())) or "*"
        conditions = [f"({self.sql})"] if self.sql else []
        if self.tags is not None:
            conditions.append(_is_one_of(TAGS, self.tags))
        if self.keys is not None:
            conditions.append(_is_one_of(KEYS, self.keys))
        return MessageSelector.by_sql(" AND ".join(conditions))

    @property
    def is_nothing(self) -> bool:
        """Whether no message can be wanted."""
        return self.tags == frozenset() or self.keys == frozenset()

    @property
    def gets_everything(self) -> bool:
        """Whether the broker gives every message, so that one that is missing is lost."""
        return self.selector == "*"

    @property
    def may_ask_for_keys(self) -> bool:
        return bool(self.keys)

    def pushed(self, pushed: Pushed) -> Wanted:
        """What is wanted when the filters that were pushed down have to be fulfilled, too."""
        tags = pushed.tags if self.tags is None or pushed.tags is None else self.tags & pushed.tags
        return replace(self, tags=self.tags if tags is None else tags, keys=pushed.keys)


def wanted_by_options(options: ReadOptions) -> Wanted:
    """`tags` or `sql`, or everything. Raises OptionError."""
    try:
        tags = parse_subscription("any", options.tags or "*").tags
    except IllegalArgumentError as error:
        raise OptionError(f"tags: {error}") from None
    return Wanted(tags or None, sql=options.sql)


def _is_one_of(name: str, texts: Iterable[str]) -> str:
    """In SQL92, where a quote in a text is written twice."""
    quoted = ", ".join("'" + text.replace("'", "''") + "'" for text in sorted(texts))
    return f"{name} IN ({quoted})"
