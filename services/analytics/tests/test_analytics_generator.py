"""What can be generated, without generating it: options, rejections, and a story for every fault."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

import pytest

from analytics.generator.generate import add_generate_parser, generation_of
from analytics.generator.generation import Generation
from analytics.generator.stories import FAULTS, FAULTY, SOUND, STORIES
from analytics.jobs.reconciliation_kinds import Kind

# Each story is of one order; these are planted in test_analytics_reconciliation_stories.py.
OF_TWO_ORDERS = {Kind.SAME_PAYMENT_OF_TWO_ORDERS, Kind.SAME_REFUND_OF_TWO_ORDERS}
DAY = datetime(2026, 11, 1, tzinfo=UTC)


def parsed(*arguments: str) -> Generation:
    parser = argparse.ArgumentParser()
    add_generate_parser(parser.add_subparsers())
    return generation_of(parser.parse_args(["generate", *arguments]))


def test_every_kind_of_the_messages_can_be_planted() -> None:
    of_books = {kind for kind in Kind if kind.startswith(("order-", "payment-"))}
    assert set(FAULTS) == set(Kind) - of_books - OF_TWO_ORDERS
    assert len({story.name for story in STORIES}) == len(STORIES)


def test_only_stories_without_a_fault_have_a_share() -> None:
    assert all(story.share > 0 and story.fault is None for story in SOUND)
    assert all(story.share == 0 and story.fault is not None for story in FAULTY)


def test_options_say_how_many_of_which_days_and_which_faults() -> None:
    wanted = parsed("--orders", "500", "--start", "2026-11-01", "--days", "3", "--fault", "all=2")
    assert (wanted.orders, wanted.start, wanted.days) == (500, DAY, 3)
    assert wanted.faults == dict.fromkeys(FAULTS, 2)


def test_a_later_fault_overrules_all() -> None:
    wanted = parsed("--fault", "all=1", "--fault", "double-capture=9")
    assert wanted.faults == dict.fromkeys(FAULTS, 1) | {Kind.DOUBLE_CAPTURE: 9}


@pytest.mark.parametrize("text", ["double-capture", "double-capture=-1", "double-capture=x", "order-differs=1", "x=1"])
def test_a_fault_that_cannot_be_planted_is_rejected(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--fault", text)
    assert "is no fault such as paid-not-marked=7" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"orders": 0}, "0 orders; 1 to 2147483648"),
        ({"orders": 5, "faults": {Kind.NEVER_CLOSED: 6}}, "6 faults do not fit 5 orders"),
        ({"orders": 5, "faults": {Kind.NEVER_CLOSED: -1}}, "-1 faults"),
        ({"orders": 5, "brokers": 27}, "1 to 26 brokers"),
        ({"orders": 5, "days": 0}, "at least one day"),
        ({"orders": 5, "start": datetime(2026, 11, 1)}, "need their zone"),  # noqa: DTZ001 - that is the point
    ],
)
def test_what_does_not_go_together_is_rejected(others: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Generation(**others)  # type: ignore[arg-type]
