"""A request that is refused, as an exception: for answers that are more than a code and a sentence."""

from __future__ import annotations

from mqproto.codes import ResponseCode


class RefusedError(Exception):
    """The answer is `code` and the sentence. Nothing has changed."""

    def __init__(self, code: ResponseCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
