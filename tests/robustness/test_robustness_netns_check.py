"""The judgement of a pair's history (netns_check.py): what it lets pass, and that it sees each kind of wrong."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from netns_check import violations
from netns_faults import ROUNDS_FOR_ALL, Fault, min_in_sync_of, plan
from netns_history import (
    SEND_OK,
    History,
    Name,
    Place,
    Promotion,
    Reign,
    Seen,
    Sent,
    Stored,
    Together,
    body_of,
    name_of,
    read_lines,
    to_line,
)

SEED = 7
OLD, NEW = "10.97.0.2:10911", "10.97.0.3:10911"
RECORD_BYTES = 100
ALONE, TOO_LATE, UNKNOWN = "SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT", "OutcomeUnknownError"


def sent(number: int, outcome: str = SEND_OK, *, burst: int | None = None, broker: str = OLD) -> Sent:
    """Message `number` of sender 1, sent at that second and answered half a second later."""
    burst = number if burst is None else burst
    return Sent(1, number, burst, number, number + 0.5, outcome, 0, number - 1, (number - 1) * RECORD_BYTES, broker)


def seen(number: int, queue_offset: int | None = None) -> Seen:
    """Consumed a quarter of a second after its acknowledgement."""
    body = body_of(SEED, Name(1, number))
    offset = number - 1 if queue_offset is None else queue_offset
    text = body[:20].decode("ascii", errors="replace")
    return Seen(number + 0.75, 0, offset, offset * RECORD_BYTES, len(body), zlib.crc32(body), text)


def stored(number: int, queue_offset: int | None = None, writer: str = OLD) -> Stored:
    offset = number - 1 if queue_offset is None else queue_offset
    return Stored(Place(0, offset), offset * RECORD_BYTES, writer, body_of(SEED, Name(1, number)))


def good() -> History:
    """Five messages; the fourth had no answer, and is not there, and the rest is."""
    history = History(SEED, synchronous=True)
    history.sent = [sent(1), sent(2), sent(3), replace(sent(4, UNKNOWN), broker=""), replace(sent(5), queue_offset=3)]
    history.sent[4] = replace(history.sent[4], log_offset=3 * RECORD_BYTES)
    history.stored = [stored(1), stored(2), stored(3), stored(5, 3)]
    history.seen = [seen(1), seen(2), seen(2), seen(3), seen(5, 3)]
    history.progress = {0: 4}
    history.epochs = [((1, 1), 0)]
    history.reigns = {Reign((1, 1), "a" * 32, OLD)}
    return history


def forked() -> History:
    """Messages 4 and 5 were acknowledged by the old master alone, 4 was consumed; then the replica was promoted by
    force, and wrote 6 and 7 in their place.
    """
    history = History(SEED, synchronous=False)
    history.sent = [*map(sent, (1, 2, 3)), sent(4, ALONE), sent(5, ALONE)]
    for number in (6, 7):
        offset = number - 3
        one = replace(sent(number, broker=NEW), queue_offset=offset, log_offset=offset * RECORD_BYTES)
        history.sent.append(one)
    history.stored = [*map(stored, (1, 2, 3)), stored(6, 3, NEW), stored(7, 4, NEW)]
    history.seen = [*map(seen, (1, 2, 3, 4)), seen(6, 3), seen(7, 4)]
    history.together = [Together(3.9, 3 * RECORD_BYTES), Together(9.0, 5 * RECORD_BYTES)]
    history.promotions = [Promotion(5.6, 8.0)]
    history.progress = {0: 5}
    history.epochs = [((1, 1), 0), ((2, 0), 3 * RECORD_BYTES)]
    history.reigns = {Reign((1, 1), "a" * 32, OLD), Reign((2, 0), "b" * 32, NEW)}
    history.kept = b"..." + body_of(SEED, Name(1, 4)) + b"..." + body_of(SEED, Name(1, 5))
    return history


@pytest.mark.parametrize("history", [good(), forked()], ids=["good", "forked"])
def test_a_history_in_which_all_promises_were_kept_passes(history: History) -> None:
    assert violations(history) == []


def lose(history: History) -> None:
    history.stored.pop()
    history.progress = {0: 3}


def move(history: History) -> None:
    history.stored[1:3] = [stored(3, 1), stored(2, 2)]


def change_a_byte(history: History) -> None:
    history.stored[2] = replace(history.stored[2], body=history.stored[2].body + b"x")


def invent(history: History) -> None:
    history.stored.append(stored(9, 4))


def leave_a_gap(history: History) -> None:
    history.stored[3] = replace(history.stored[3], place=Place(0, 4))


def double(history: History) -> None:
    history.stored.append(stored(2, 4))


def answer_two_with_one_place(history: History) -> None:
    history.sent.append(replace(sent(6), queue_offset=3, log_offset=-1))


def another_log_offset(history: History) -> None:
    history.sent[0] = replace(history.sent[0], log_offset=1)


def disorder(history: History) -> None:
    """Message 4, whose outcome was unknown, stands before message 3, which was acknowledged before it was sent."""
    history.stored = [stored(1), stored(2), stored(4, 2), stored(3, 3), stored(5, 4)]
    history.sent[2] = replace(history.sent[2], queue_offset=3, log_offset=300)
    history.sent[4] = replace(history.sent[4], queue_offset=4, log_offset=400)


def consume_what_is_lost(history: History) -> None:
    history.seen.append(seen(4, 9))


def consume_garbage(history: History) -> None:
    history.seen.append(replace(seen(4, 9), crc32=0))


def skip(history: History) -> None:
    history.seen = [one for one in history.seen if one.queue_offset != 1]


def stay_behind(history: History) -> None:
    history.progress = {0: 3}


def run_ahead(history: History) -> None:
    history.progress = {0: 5}


def two_masters(history: History) -> None:
    history.reigns.add(Reign((1, 1), "b" * 32, NEW))


def two_writers(history: History) -> None:
    history.stored[3] = replace(history.stored[3], writer=NEW)


def no_epoch(history: History) -> None:
    history.epochs = [((1, 1), RECORD_BYTES)]


def acknowledged_by_a_stranger(history: History) -> None:
    history.sent[0] = replace(history.sent[0], broker=NEW)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lose, "1:5 was answered SEND_OK at queue 0, offset 3 by 10.97.0.2:10911, and nothing is there"),
        (lose, "queue 0, offset 3: 1:5 was consumed, and is not there in the end"),
        (move, "1:2 was answered SEND_OK at queue 0, offset 1 by 10.97.0.2:10911, and 1:3 is there"),
        (change_a_byte, "1:3 was answered SEND_OK at queue 0, offset 2 by 10.97.0.2:10911, and 1:3 is there"),
        (change_a_byte, "queue 0, offset 2: never sent b'1:3:"),
        (invent, "queue 0, offset 4: never sent b'1:9:"),
        (leave_a_gap, "queue 0, offset 4: expected was offset 3"),
        (double, "1:2 was stored 2 times, by 10.97.0.2:10911, 10.97.0.2:10911"),
        (answer_two_with_one_place, "1:5 and 1:6 were both acknowledged at queue 0, offset 3"),
        (another_log_offset, "1:1 was told log offset 1, and stands at 0"),
        (disorder, "queue 0, offset 3: 1:4 stands before 1:3, which was acknowledged when it was sent"),
        (consume_what_is_lost, "queue 0, offset 9: 1:4 was consumed, and is not there in the end"),
        (consume_garbage, "bytes, which was never sent"),
        (skip, "queue 0, offset 1: the group is past 1:2, which it has not consumed"),
        (stay_behind, "queue 0: the group has come to 3, and the queue ends at 4"),
        (run_ahead, "queue 0: the group has come to 5, and the queue ends at 4"),
        (two_masters, "epoch (1, 1): the stores aaaa"),
        (two_writers, "epoch (1, 1): 10.97.0.2:10911, 10.97.0.3:10911 have all written in it"),
        (no_epoch, "queue 0, offset 0: 10.97.0.2:10911 wrote it in no epoch at all"),
        (acknowledged_by_a_stranger, "1:1 of epoch (1, 1) was acknowledged by 10.97.0.3:10911"),
    ],
)
def test_each_kind_of_wrong_is_seen(wrong: Callable[[History], None], sentence: str) -> None:
    history = good()
    wrong(history)
    assert any(sentence in one for one in violations(history)), violations(history)


def never_promoted(history: History) -> None:
    history.promotions = []


def both_had_it(history: History) -> None:
    history.together.append(Together(5.55, 4 * RECORD_BYTES))


def sent_when_it_was_over(history: History) -> None:
    history.promotions = [Promotion(3.95, 3.97)]


def acknowledged_by_both(history: History) -> None:
    history.sent[3] = sent(4, SEND_OK)


def forgotten_by_quarantine(history: History) -> None:
    history.kept = body_of(SEED, Name(1, 5))


def nobody_acknowledges_alone(history: History) -> None:
    history.synchronous = True


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (never_promoted, "1:4 was answered SLAVE_NOT_AVAILABLE at queue 0, offset 3 by 10.97.0.2:10911, and 1:6 is"),
        (never_promoted, "queue 0, offset 3: 1:4 was consumed, and is not there in the end"),
        (both_had_it, "1:4 was answered SLAVE_NOT_AVAILABLE at queue 0, offset 3 by 10.97.0.2:10911, and 1:6 is"),
        (sent_when_it_was_over, "1:5 was answered SLAVE_NOT_AVAILABLE"),
        (acknowledged_by_both, "1:4 was answered SEND_OK at queue 0, offset 3 by 10.97.0.2:10911, and 1:6 is there"),
        (forgotten_by_quarantine, "1:4 was answered SLAVE_NOT_AVAILABLE by 10.97.0.2:10911, was cut off, and is in no"),
        (nobody_acknowledges_alone, "queue 0, offset 3: 1:4 was consumed, and is not there in the end"),
    ],
)
def test_a_promotion_by_force_excuses_only_what_it_has_cost(wrong: Callable[[History], None], sentence: str) -> None:
    history = forked()
    wrong(history)
    assert any(sentence in one for one in violations(history)), violations(history)


def test_what_was_on_a_disk_that_is_gone_needs_no_quarantine() -> None:
    history = forked()
    history.kept = b""
    history.promotions = [replace(history.promotions[0], keeps_tail=False)]
    assert violations(history) == []


def test_a_message_may_be_stored_by_two_masters_and_answered_by_the_later_one() -> None:
    history = forked()
    history.sent[2] = replace(history.sent[2], broker=NEW)
    history.stored.append(stored(3, 5, NEW))
    history.seen.append(seen(3, 5))
    history.progress = {0: 6}
    assert violations(history) == []


def test_messages_of_one_burst_have_no_order() -> None:
    history = good()
    disorder(history)
    history.sent = [replace(one, burst=min(one.burst, 3)) for one in history.sent]
    assert not [one for one in violations(history) if "stands before" in one]


def test_lines_are_read_back_up_to_the_last_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    assert list(read_lines(path, Sent)) == []
    path.write_bytes(to_line(sent(1)) + to_line(sent(2))[:-3])
    assert list(read_lines(path, Sent)) == [sent(1)]
    path.write_bytes(to_line(seen(1)))
    assert list(read_lines(path, Seen)) == [seen(1)]


@pytest.mark.parametrize("body", [b"", b"1", b"1:2", b"x:2:", b"1:y:", b"\xff:\xff:"])
def test_a_body_that_was_never_sent_has_no_name(body: bytes) -> None:
    assert name_of(body) is None
    assert name_of(body_of(SEED, Name(3, 17))) == Name(3, 17)


@pytest.mark.parametrize("first", [1, 4, 4_711 * ROUNDS_FOR_ALL + 1])
def test_rounds_in_a_row_do_everything_once_and_with_both_settings(first: int) -> None:
    seeds = range(first, first + ROUNDS_FOR_ALL)
    assert sorted(fault.name for seed in seeds for fault in plan(seed)) == sorted(fault.name for fault in Fault)
    assert {min_in_sync_of(seed) for seed in seeds} == {1, 2}
