"""How much of a year a share of availability leaves (MISSION X7)."""

from __future__ import annotations

MINUTES_A_YEAR = 365.25 * 24 * 60


def outage_minutes(availability: float) -> float:
    """The minutes of a year in which a service of this availability may be away: 52.6 for 99.99 %."""
    return (1 - availability) * MINUTES_A_YEAR


def in_series(*availabilities: float) -> float:
    """Of parts that are all needed: their failures add up."""
    result = 1.0
    for availability in availabilities:
        result *= availability
    return result


def in_parallel(*availabilities: float) -> float:
    """Of parts that stand in for each other and fail independently: all have to be away at once."""
    return 1 - in_series(*(1 - availability for availability in availabilities))
