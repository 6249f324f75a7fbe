"""Which charges go wrong: written as text, chosen by seed and charge id."""

from __future__ import annotations

import pytest

from sandbox_gateway.domain import REORDERED_HOLD_MAX_MS, Failures

IDS = [f"payment-{number}" for number in range(2_000)]


def test_the_text_sets_shares_and_what_is_left_out_is_none() -> None:
    text = "declined=0.1, late=0.2:3000,duplicated=0.3,reordered=1,never=0.05"
    assert Failures.parse(text) == Failures(0.1, 0.2, 3000, 0.3, 1.0, 0.05)
    assert Failures.parse("") == Failures()
    assert Failures.parse("never=1") == Failures(never=1.0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("lost=0.1", "'lost=0.1': allowed is <failure>=<share>, once for each of declined, late"),
        ("declined", "'' is not a share"),
        ("declined=much", "'much' is not a share from 0 to 1"),
        ("declined=1.1", "allowed is a share from 0 to 1"),
        ("declined=-0.1", "allowed is a share from 0 to 1"),
        ("declined=nan", "allowed is a share from 0 to 1"),
        ("declined=0.1,declined=0.2", "once for each"),
        ("late_ms=5", "once for each"),
        ("late=0.1", "allowed is late=<share>:<milliseconds>"),
        ("late=0.1:", "allowed is late=<share>:<milliseconds>"),
        ("late=0.1:-1", "allowed is late=<share>:<milliseconds>"),
        ("late=0.1:99999999", "late by 99999999 ms: allowed are 0 to 86400000"),
    ],
)
def test_a_text_that_cannot_be_used_is_rejected(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Failures.parse(text)


def test_the_same_seed_chooses_the_same_charges_and_another_one_others() -> None:
    failures = Failures(declined=0.5)
    first = [failures.declines(1, one) for one in IDS]
    assert first == [failures.declines(1, one) for one in IDS]
    assert first != [failures.declines(2, one) for one in IDS]


def test_about_as_many_go_wrong_as_the_share_says() -> None:
    for share in (0.0, 0.1, 0.5, 1.0):
        failures = Failures(declined=share, never=share)
        declined = sum(failures.declines(1, one) for one in IDS)
        never = sum(failures.delivery(1, one, one).copies == 0 for one in IDS)
        assert abs(declined - share * len(IDS)) < 0.04 * len(IDS)
        assert abs(never - share * len(IDS)) < 0.04 * len(IDS)


def test_a_greater_share_chooses_all_that_a_smaller_one_chose() -> None:
    few, many = ({one for one in IDS if Failures(declined=share).declines(1, one)} for share in (0.1, 0.4))
    assert few < many


def test_failures_are_chosen_each_for_itself() -> None:
    failures = Failures(declined=0.5, duplicated=0.5)
    seen = {(failures.declines(1, one), failures.delivery(1, one, one).copies) for one in IDS}
    assert seen == {(False, 1), (False, 2), (True, 1), (True, 2)}


def test_each_failure_changes_how_an_event_is_told() -> None:
    plain = Failures().delivery(1, "c", "e")
    assert (plain.copies, plain.wait_ms, plain.holds_order) == (1, 0, True)
    assert Failures(late=1, late_ms=3000).delivery(1, "c", "e").wait_ms == 3000
    assert Failures(duplicated=1).delivery(1, "c", "e").copies == 2
    assert Failures(never=1, duplicated=1).delivery(1, "c", "e").copies == 0
    reordered = [Failures(reordered=1).delivery(1, "c", f"e{number}") for number in range(50)]
    assert not any(delivery.holds_order for delivery in reordered)
    assert len({delivery.wait_ms for delivery in reordered}) > 25
    assert all(0 <= delivery.wait_ms < REORDERED_HOLD_MAX_MS for delivery in reordered)
