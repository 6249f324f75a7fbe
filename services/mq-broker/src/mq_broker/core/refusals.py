"""A request that is refused, as an exception: for answers that are more than a code and a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from mq_broker.core.limits import SENTENCES_MAX
from mqproto.codes import ResponseCode


class RefusedError(Exception):
    """The answer is `code` and the sentence. Nothing has changed."""

    def __init__(self, code: ResponseCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def first_few(parts: Sequence[object], separator: str = "; ") -> str:
    """The parts as one text: the first ones, and how many there are beyond them."""
    text = separator.join(map(str, parts[:SENTENCES_MAX]))
    more = len(parts) - SENTENCES_MAX
    return f"{text}{separator}and {more} more" if more > 0 else text
