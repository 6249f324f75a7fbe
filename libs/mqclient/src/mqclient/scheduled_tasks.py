"""What a client instance does again and again (MISSION L6-L9), as a table of name, first delay, period, action."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from mqclient.lifecycle import BackgroundTasks


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """`action` runs `first_delay_s` after the start, and then with `period_s` between two runs."""

    name: str
    first_delay_s: float
    period_s: float
    action: Callable[[], Awaitable[object]]


def start_scheduled_tasks(table: Iterable[ScheduledTask], tasks: BackgroundTasks) -> None:
    """Start them in their order. An action that raises is logged, and runs again when its time comes."""
    for one in table:
        tasks.start_periodic(
            one.action, first_delay_s=one.first_delay_s, interval_s=one.period_s, name=f"mqclient {one.name}"
        )
