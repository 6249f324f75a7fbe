"""A measurement that means nothing."""

from __future__ import annotations


class MeasureError(RuntimeError):
    """What was to be measured did not happen; the message says what did."""
