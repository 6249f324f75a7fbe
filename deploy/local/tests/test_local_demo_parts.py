"""The parts of the demonstration that need no process: plan, settings, folder, progress, waiting."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from pathlib import Path
from typing import NoReturn

import pytest
from rich.console import Console

from hourglass_local.demo import Counts, DemoConfig, DemoConfigError, Progress, parse_demo_config
from hourglass_local.left import FolderError, empty_folder
from hourglass_local.plan import HABITS, NOBODY_PAYS, PAID_SOON, PAY_FROM_TO_MS, Pays, Then, make_plan
from hourglass_local.waiting import NotInTimeError, alongside, eventually
from orders.service.sample_catalogue import SAMPLE_CATALOGUE


def test_plan_depends_on_its_seed_only_and_has_stock_for_every_order() -> None:
    plan = make_plan(200, 20, seed=16)
    assert plan == make_plan(200, 20, seed=16)
    assert plan != make_plan(200, 20, seed=17)
    assert len({order.key for order in plan.orders}) == 200
    assert len({order.buyer_id for order in plan.orders}) == 20
    assert [product.product_id for product in plan.products] == list(SAMPLE_CATALOGUE)
    wanted = Counter[str]()
    for order in plan.orders:
        wanted.update(order.items)
    assert all(wanted[product.product_id] < product.available for product in plan.products)


def test_plan_has_every_kind_of_buyer_and_pays_in_time() -> None:
    orders = make_plan(200, 20, seed=16).orders
    assert {order.pays for order in orders[: len(Pays)]} == set(Pays)
    assert {order.then for order in orders[:20] if order.pays in PAID_SOON} == set(Then)
    assert {order.then for order in orders if order.pays not in PAID_SOON} == {Then.WAITS}
    counts = Counter(order.pays for order in orders)
    assert counts == Counter({kind: 10 * HABITS.count(kind) for kind in Pays})
    assert 60 <= counts[Pays.SOON] + counts[Pays.TWICE] <= 100  # about half, and the winners of races
    for order in orders:
        first_ms, last_ms = PAY_FROM_TO_MS[order.pays]
        assert first_ms <= order.pay_after_ms <= last_ms
    assert {order.pays for order in make_plan(20, 5, seed=1, habits=NOBODY_PAYS).orders} == {Pays.NEVER}


def test_demo_orders_are_read_from_the_environment() -> None:
    assert parse_demo_config({}, Path(".demo")) == DemoConfig()
    assert parse_demo_config({"DEMO_ORDERS": "20"}, Path("x")) == DemoConfig(orders=20, folder=Path("x"))


@pytest.mark.parametrize("text", ["", "-1", "0", "5", "100001", "2e2", "²", "many"])
def test_impossible_number_of_orders_is_rejected_by_name(text: str) -> None:
    with pytest.raises(DemoConfigError, match="DEMO_ORDERS="):
        parse_demo_config({"DEMO_ORDERS": text}, Path(".demo"))


def test_folder_of_an_earlier_demonstration_is_emptied(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with empty_folder(folder):
        (folder / "logs").mkdir()
        (folder / "logs/x.log").write_text("old")
        (folder / "summary.json").write_text("{}")
    with empty_folder(folder):
        assert {path.name for path in folder.iterdir()} == {".hourglass-demo"}


def test_foreign_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FolderError, match="is not empty and not the folder of an earlier demonstration"):  # noqa: SIM117
        with empty_folder(tmp_path):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_folder_that_is_a_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("")
    with pytest.raises(FolderError, match="cannot be used"):  # noqa: SIM117
        with empty_folder(tmp_path / "demo"):
            pass


def test_folder_serves_one_demonstration_at_a_time(tmp_path: Path) -> None:
    with empty_folder(tmp_path / "demo"):
        (tmp_path / "demo/orders.db").write_text("")
        with pytest.raises(FolderError, match="is being used by another"):  # noqa: SIM117
            with empty_folder(tmp_path / "demo"):
                pass
        assert (tmp_path / "demo/orders.db").exists()


def test_progress_without_a_terminal_is_plain_lines_and_not_too_many() -> None:
    output = io.StringIO()
    with Progress(Console(file=output, force_terminal=False, width=100)) as progress:
        progress.say("Started.")
        for placed in range(50):
            progress.show(Counts(200, placed, 0, 0, 9.96))
    assert output.getvalue() == "Started.\nplaced 0 of 200   paid 0   waiting 0   closed 0\n"


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        (Counts(200, 173, 60, 0, 8.04), "placed 173 of 200   paid 60   waiting 113   closed 0   next closing in 8.0 s"),
        (Counts(1_200, 1_200, 83, 17, -0.1), "placed 1,200 of 1,200   paid 83   waiting 1,100   closed 17   closing"),
        (Counts(200, 200, 90, 110, None), "placed 200 of 200   paid 90   waiting 0   closed 110"),
    ],
)
def test_progress_counts_down_to_the_next_closing(counts: Counts, text: str) -> None:
    assert str(counts) == text


async def test_eventually_returns_the_first_truthy_answer() -> None:
    answers = iter([0, None, "", "yes"])
    assert await eventually(lambda: next(answers), 5) == "yes"


async def test_eventually_gives_up_with_a_sentence() -> None:
    async def never() -> bool:
        return False

    with pytest.raises(NotInTimeError, match=r"the moon did not come true within 0\.05 s; last seen: False"):
        await eventually(never, 0.05, "the moon")


async def test_guard_that_fails_ends_the_work() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def guard() -> NoReturn:
        raise RuntimeError("the broker has died")

    with pytest.raises(RuntimeError, match="the broker has died"):
        await alongside(work(), guard())
    assert ended.is_set()


async def test_work_that_ends_ends_its_guards() -> None:
    async def work() -> int:
        return 5

    async def guard() -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError("never")

    assert await alongside(work(), guard()) == 5
