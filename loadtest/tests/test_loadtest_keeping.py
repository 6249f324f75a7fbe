"""What a load puts on sale, and what it leaves behind for the pipeline and does not."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from hourglass_loadtest.shop.options import (
    KEEP_MIB,
    PRODUCT_IDS,
    SHOP_FOLDER,
    UNITS,
    LoadOptions,
    leave,
    stocked,
    target_of,
)
from hourglass_local.cluster import SYNC_MASTER, Cluster
from hourglass_local.http_client import AccessTokens
from hourglass_local.left import FolderError, LevelLateness, NothingLeftError, read_left
from hourglass_local.shop import Shop

LATENESS = {"16": LevelLateness(40, 1, 2, 3)}
LOG_BYTES = 3 * 1024 * 1024


def ended(folder: Path) -> Cluster:
    """A cluster that has run, as far as its folder says."""
    cluster = Cluster(
        folder, replicas_of=SYNC_MASTER, delay_levels="1s " * 15 + "20s 1h 2h", commit_log_file_bytes=65_536
    )
    for broker in (*cluster.brokers, *cluster.replicas):
        cluster.store_folder(broker).mkdir()
        (cluster.store_folder(broker) / "log").write_bytes(bytes(LOG_BYTES))
    return cluster


def test_store_of_the_master_is_left_with_what_opens_it_again(tmp_path: Path) -> None:
    sentence = leave(ended(tmp_path), LATENESS, KEEP_MIB)
    assert sentence == f"Left in {tmp_path}: 3 MiB, for `make pipeline FROM=load`."
    left = read_left(tmp_path)
    assert left.settings == {"messageDelayLevel": "1s " * 15 + "20s 1h 2h", "mapedFileSizeCommitLog": "65536"}
    assert left.lateness_ms_by_level == LATENESS
    assert set(left.databases) == {"orders", "payments", "gateway"}
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["broker-a-store"]


def test_store_that_has_grown_too_large_goes(tmp_path: Path) -> None:
    sentence = leave(ended(tmp_path), LATENESS, 2)
    assert "3 MiB are more than the 2 MiB of --keep" in sentence
    assert not any(path.is_dir() for path in tmp_path.iterdir())
    with pytest.raises(NothingLeftError):
        read_left(tmp_path)


def test_load_whose_brokers_have_not_started_leaves_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, orders=False)
    assert "the brokers have not started" in leave(cluster, {}, KEEP_MIB)
    with pytest.raises(NothingLeftError):
        read_left(tmp_path)


async def test_shop_that_sells_other_products_gets_those_of_the_load_once() -> None:
    tea = {"product_id": "tea", "name": "Tea", "price_minor": 1, "currency": "CNY", "available": 3}
    products = {"tea": {**tea, "reserved": 0, "sold": 0}}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            added = json.loads(request.content)
            assert added["product_id"] not in products
            products[added["product_id"]] = {**added, "reserved": 0, "sold": 0}
            return httpx.Response(201, json=added)
        return httpx.Response(200, json={"items": list(products.values()), "next_cursor": None})

    badges = AccessTokens((("key", "s" * 32),))
    async with Shop("http://shop", badges, transport=httpx.MockTransport(answer)) as shop:
        for _ in range(2):
            before = await stocked(shop)
            assert before.keys() == {"tea", *PRODUCT_IDS}
            assert min(before[product_id].available for product_id in PRODUCT_IDS) == UNITS


async def test_foreign_folder_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / SHOP_FOLDER).mkdir()
    (tmp_path / SHOP_FOLDER / "thesis.txt").write_text("years of work")
    with pytest.raises(FolderError, match="is not empty"):
        async with target_of(LoadOptions(stages=[], folder=tmp_path), Console()):
            pass
    assert (tmp_path / SHOP_FOLDER / "thesis.txt").read_text() == "years of work"
