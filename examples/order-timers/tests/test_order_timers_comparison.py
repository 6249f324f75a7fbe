"""What the designs cost, as relations between them (mechanisms X4-X7).
The clock is simulated: nothing here is timed.
"""

from __future__ import annotations

import pytest

from order_timers.comparison import POLLER_AT_30, forty_five_minutes, last_seat
from order_timers.designs import (
    DELAY_QUEUE,
    DELAY_QUEUE_BY_SERVER,
    DELAY_QUEUE_RELOAD,
    DESIGNS,
    EAGER_POLLER,
    MESSAGE_QUEUE,
    POLLER,
    POLLER_BY_SERVER,
    Design,
)
from order_timers.order_book import Outcome
from order_timers.scenarios import (
    A_YEAR_OF_TWO,
    CALM,
    DEAD_SERVER,
    QUEUE_RESTART,
    RESTART,
    TWO_INSTANCES,
    TWO_RESTART,
    Scenario,
    Workload,
    in_parallel,
    in_series,
    outage_minutes,
)
from order_timers.simulation import simulate

WORKLOAD = Workload(orders=80)
_played: dict[tuple[str, str], Outcome] = {}


async def outcome(design: Design, scenario: Scenario) -> Outcome:
    """Each pair is played once: it is the same every time."""
    key = (design.name, scenario.name)
    if key not in _played:
        _played[key] = await simulate(design, scenario, WORKLOAD)
    return _played[key]


async def test_a_run_can_be_repeated() -> None:
    assert await simulate(POLLER, RESTART, WORKLOAD) == await simulate(POLLER, RESTART, WORKLOAD)


@pytest.mark.mechanism("X4")
async def test_an_order_of_45_minutes_is_scanned_45_times() -> None:
    """Mechanism X4: 44 of them in vain."""
    scanned = await forty_five_minutes()
    assert (scanned.looks, scanned.wasted_looks) == (45, 44)


@pytest.mark.mechanism("X4")
async def test_a_poller_closes_an_order_of_12_00_35_55_seconds_late_and_wastes_the_last_seat() -> None:
    """Mechanism X4: it has scanned at 12:00:30; somebody else wants the seat at 12:00:55."""
    polled, timed = await last_seat(POLLER_AT_30), await last_seat(MESSAGE_QUEUE)
    assert (round(polled.closed_after_s), polled.next_buyer_gets_it) == (55, False)
    assert (round(timed.closed_after_s), timed.next_buyer_gets_it) == (0, True)


@pytest.mark.parametrize("design", DESIGNS, ids=lambda design: design.name)
async def test_every_design_closes_unpaid_orders_while_nothing_goes_wrong(design: Design) -> None:
    calm = await outcome(design, CALM)
    assert (calm.orders, calm.stuck, calm.rejected) == (WORKLOAD.orders, 0, 0)
    assert calm.paid + calm.closed == calm.orders
    assert calm.closed > 20


async def test_polling_more_often_is_less_late_and_costs_more_scans() -> None:
    """Mechanism X4: it eases the one and worsens the other."""
    slow, fast, timed = [await outcome(design, CALM) for design in (POLLER, EAGER_POLLER, MESSAGE_QUEUE)]
    assert 50 < slow.late_max_s <= 60
    assert 8 < fast.late_max_s <= 10
    assert fast.wasted_looks > 5 * slow.wasted_looks > 1_000
    assert (timed.scans, timed.looks, timed.late_max_s < 0.1) == (0, 0, True)


@pytest.mark.mechanism("X5")
async def test_a_restart_loses_what_a_delay_queue_holds_in_memory() -> None:
    """Mechanism X5: those orders are stuck, with their units, until somebody looks."""
    lost = await outcome(DELAY_QUEUE, RESTART)
    assert lost.stuck > 10
    for design in (POLLER, DELAY_QUEUE_RELOAD, DELAY_QUEUE_BY_SERVER, MESSAGE_QUEUE):
        assert (await outcome(design, RESTART)).stuck == 0
        assert (await outcome(design, RESTART)).withheld_minutes < lost.withheld_minutes / 10


async def test_what_expired_during_a_restart_is_closed_as_soon_as_a_server_is_back() -> None:
    late = await outcome(MESSAGE_QUEUE, RESTART)
    assert 60 < late.late_max_s <= 5 * 60  # the restart takes five minutes


@pytest.mark.mechanism("X5")
async def test_an_instance_that_loads_every_order_fights_with_the_others() -> None:
    """Mechanism X5: double closings are tried; the compare-and-set lets one win, and no order is closed twice."""
    fight = await outcome(DELAY_QUEUE_RELOAD, TWO_RESTART)
    own = await outcome(DELAY_QUEUE_BY_SERVER, TWO_RESTART)
    queue = await outcome(MESSAGE_QUEUE, TWO_RESTART)
    assert fight.closings_in_vain > 5
    assert fight.loaded > own.loaded > 0
    assert (own.closings_in_vain, queue.closings_in_vain, queue.loaded) == (0, 0, 0)
    assert fight.paid + fight.closed == fight.orders


async def test_two_pollers_read_everything_twice_and_try_every_closing_twice() -> None:
    one, two = await outcome(POLLER, CALM), await outcome(POLLER, TWO_INSTANCES)
    assert (two.looks, two.scans) == (2 * one.looks, 2 * one.scans)
    assert (one.closings_in_vain, two.closings_in_vain) == (0, two.closed)


@pytest.mark.mechanism("X6")
@pytest.mark.parametrize("design", [POLLER_BY_SERVER, DELAY_QUEUE_BY_SERVER], ids=lambda design: design.name)
async def test_orders_of_a_dead_server_wait_for_a_person(design: Design) -> None:
    """Mechanism X6: one UPDATE statement and a restart, and until then the units are withheld."""
    dead = await outcome(design, DEAD_SERVER)
    assert dead.stuck > 5
    assert dead.repaired_by_hand == dead.stuck


@pytest.mark.mechanism("X6")
async def test_orders_of_a_dead_server_are_closed_by_the_other_member_of_the_group() -> None:
    dead, calm = await outcome(MESSAGE_QUEUE, DEAD_SERVER), await outcome(MESSAGE_QUEUE, CALM)
    assert (dead.stuck, dead.repaired_by_hand, dead.closed) == (0, 0, calm.closed)
    assert dead.late_max_s < 5


async def test_no_order_is_taken_while_the_queue_is_away_and_none_is_lost_with_it() -> None:
    away = await outcome(MESSAGE_QUEUE, QUEUE_RESTART)
    assert away.rejected > 0
    assert (away.stuck, away.orders + away.rejected) == (0, WORKLOAD.orders)
    assert away.late_max_s <= 5 * 60 + 5  # five minutes away, and some seconds until the clients have noticed


@pytest.mark.mechanism("X7")
async def test_a_years_outage_of_one_of_two_instances_costs_nothing_where_each_can_do_the_others_work() -> None:
    """Mechanism X7: 99.99 %, at once."""
    queue = await outcome(MESSAGE_QUEUE, A_YEAR_OF_TWO)
    assert (queue.rejected, queue.stuck, queue.withheld_minutes) == (0, 0, 0.0)
    for design in (POLLER_BY_SERVER, DELAY_QUEUE_BY_SERVER, DELAY_QUEUE_RELOAD, DELAY_QUEUE):
        assert (await outcome(design, A_YEAR_OF_TWO)).withheld_minutes > 100


@pytest.mark.mechanism("X7")
def test_four_nines_are_about_50_minutes_a_year() -> None:
    """Mechanism X7."""
    assert round(outage_minutes(0.9999), 1) == 52.6
    assert round(outage_minutes(in_series(0.9999, 0.9999, 0.9999)), 1) == 157.8
    assert round(outage_minutes(in_parallel(0.99, 0.99)), 1) == 52.6
