"""The one error: an expression that is none."""

from __future__ import annotations


class FilterSyntaxError(ValueError):
    """Says what is wrong, and where: `position` counts characters of the whole text, `column` those of its `line`.

    All three begin at 1; the position behind the last character is the end.
    """

    def __init__(self, text: str, index: int, sentence: str) -> None:
        self.position = index + 1
        self.line = text.count("\n", 0, index) + 1
        self.column = index - text.rfind("\n", 0, index)
        place = f" (line {self.line}, column {self.column})" if "\n" in text else ""
        super().__init__(f"at character {self.position}{place}: {sentence}")
