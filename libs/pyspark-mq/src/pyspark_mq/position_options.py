"""The options that say where a read begins and ends.

A time for all queues wins over times by queue, and those over offsets, as in Spark's Kafka source.
"""

from __future__ import annotations

from pyspark_mq.errors import OptionError
from pyspark_mq.option_values import OptionValues
from pyspark_mq.positions import EARLIEST_OFFSET, LATEST_OFFSET, NoMatchStrategy, Position, PositionKind
from pyspark_mq.queue_offsets import EXAMPLE, from_json, parse_json

STARTING = ("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp", "startingOffsetsByTimestampStrategy")
ENDING = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")


def starting_position(values: OptionValues, *, streaming: bool) -> Position:
    """Batch reads begin with the earliest message by default, streams with the next one. Raises OptionError."""
    strategy = values.text("startingOffsetsByTimestampStrategy", NoMatchStrategy.ERROR).lower()
    if strategy not in list(NoMatchStrategy):
        raise OptionError(
            f"startingOffsetsByTimestampStrategy is {strategy!r}; allowed are {' and '.join(NoMatchStrategy)}"
        )
    default = PositionKind.LATEST if streaming else PositionKind.EARLIEST
    position = _position(values, "starting", default, NoMatchStrategy(strategy))
    if not streaming:
        _refuse(position, PositionKind.LATEST, LATEST_OFFSET, "a batch that begins at the end reads nothing")
    return position


def ending_position(values: OptionValues) -> Position:
    """The latest message by default. Raises OptionError."""
    position = _position(values, "ending", PositionKind.LATEST, NoMatchStrategy.LATEST)
    _refuse(position, PositionKind.EARLIEST, EARLIEST_OFFSET, "a batch that ends at the beginning reads nothing")
    return position


def _position(values: OptionValues, which: str, default: PositionKind, strategy: NoMatchStrategy) -> Position:
    by_time, by_times, by_offsets = f"{which}Timestamp", f"{which}OffsetsByTimestamp", f"{which}Offsets"
    if values.has(by_time):
        at_ms = values.count(by_time, least=0)
        return Position(PositionKind.TIMESTAMP, by_time, timestamp_ms=at_ms, strategy=strategy)
    if values.has(by_times):
        times = from_json(parse_json(values.text(by_times), by_times), by_times)
        if not times or min(times.values()) < 0:
            raise OptionError(f"{by_times} needs a time for each queue, in milliseconds since 1970")
        return Position(PositionKind.TIMESTAMPS, by_times, numbers=times, strategy=strategy)
    text = values.text(by_offsets, default)
    if text.lower() in (PositionKind.EARLIEST, PositionKind.LATEST):
        return Position(PositionKind(text.lower()), by_offsets)
    if not text.startswith("{"):
        raise OptionError(f"{by_offsets} is {text!r}; allowed are earliest, latest, and JSON like {EXAMPLE}")
    offsets = from_json(parse_json(text, by_offsets), by_offsets)
    if not offsets or min(offsets.values()) < EARLIEST_OFFSET:
        raise OptionError(f"{by_offsets} needs an offset for each queue: 0 or more, -1 for latest, -2 for earliest")
    return Position(PositionKind.OFFSETS, by_offsets, numbers=offsets)


def _refuse(position: Position, kind: PositionKind, number: int, why: str) -> None:
    if position.kind is kind or number in position.numbers.values():
        raise OptionError(f"{position.option} says {kind}; {why}")
