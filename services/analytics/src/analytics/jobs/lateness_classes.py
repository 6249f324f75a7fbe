"""The classes in which the broker counts lateness, so that its figures and these can be laid side by side.

Eight classes to each doubling, as in mq_broker.core.lateness; up to 15 ms each millisecond has a class of its own.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

_SPLIT_BITS = 3  # classes to a doubling, as a power of two


def class_from_ms(value_ms: str | Column) -> Column:
    """The smallest value of the class of `value_ms`, which is not negative."""
    shift = _shift(value_ms)
    return F.call_function("shiftleft", F.call_function("shiftright", value_ms, shift), shift)


def class_to_ms(value_ms: str | Column) -> Column:
    """The greatest value of the class; the broker answers it for a quantile, or the maximum if that is less."""
    return class_from_ms(value_ms) + F.call_function("shiftleft", F.lit(1).cast("long"), _shift(value_ms)) - 1


def _shift(value_ms: str | Column) -> Column:
    bits = F.length(F.bin(value_ms))
    return F.greatest(F.lit(0), bits - (_SPLIT_BITS + 1))
