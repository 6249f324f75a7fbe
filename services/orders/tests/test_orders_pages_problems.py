"""Every failure is a page that a person can read, in his language, with a way on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from orders.pages.testing_visitor import ROOT, Shop, shop_of
from servicekit.errors import PublishError, StorageUnavailableError
from servicekit.testing.databases import NewDatabaseUrl


def break_products(shop: Shop, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Whoever asks for the products gets the error."""

    async def products(*_arguments: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(shop.orders.application.use_cases.queries, "products", products)


@pytest.mark.parametrize(
    "path", ["/nothing", "/orders/not%20an%20id", "/static/nothing.css", "/operator/orders/%2e%2e"]
)
async def test_a_wrong_address_leads_back_to_the_shop(new_database_url: NewDatabaseUrl, path: str) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor("op", "operator") as visitor:
        answer = await visitor.get(path, Accept_Language="zh")
        assert answer.status_code == 404
        assert "<h1>此地址没有内容。</h1>" in answer.text
        assert f'href="{ROOT}/">返回商店' in answer.text


async def test_without_its_database_the_shop_says_so_and_offers_to_try_again(
    new_database_url: NewDatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as visitor:
        break_products(shop, monkeypatch, StorageUnavailableError("the database does not answer"))
        answer = await visitor.get("/")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert "cannot reach its database" in answer.text
        assert f'href="{ROOT}/">Try again' in answer.text


async def test_without_the_queue_no_order_is_placed_and_the_cart_is_kept(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as visitor:
        await visitor.send("/cart/add", product_id="seat")
        form = await visitor.form("/cart", "/orders")
        shop.orders.publisher.is_down = True
        answer = await visitor.send("/orders", **form)
        assert answer.status_code == 503
        assert "cannot take orders at this moment" in answer.text
        assert f'href="{ROOT}/cart">Back to the cart' in answer.text
        shop.orders.publisher.is_down = False
        assert (await visitor.send("/orders", **form)).status_code == 303  # the same form, once more


@pytest.mark.parametrize("error", [ZeroDivisionError("the secret"), PublishError("the secret")], ids=repr)
async def test_a_mistake_is_admitted_logged_and_not_explained_to_visitors(
    new_database_url: NewDatabaseUrl, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    class UnknownKindError(PublishError):
        """One that no table of problems has."""

    raised = UnknownKindError("the secret") if isinstance(error, PublishError) else error
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as visitor:
        break_products(shop, monkeypatch, raised)
        with capture_logs() as lines:
            answer = await visitor.get("/")
        assert answer.status_code == 500
        assert "The shop made a mistake." in answer.text
        assert "the secret" not in answer.text
        assert [line["path"] for line in lines if line["log_level"] == "error"] == ["/shop/"]


async def test_a_form_that_is_too_long_is_rejected(new_database_url: NewDatabaseUrl) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(70):
            yield b"product_id=" + b"x" * 1024 + b"&"

    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as visitor:
        headers = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/x-www-form-urlencoded"}
        answer = await visitor.http.post(f"{ROOT}/cart/add", content=parts(), headers=headers)
        assert (answer.status_code, "The request is too large." in answer.text) == (413, True)


async def test_what_people_write_is_never_part_of_the_page_itself(new_database_url: NewDatabaseUrl) -> None:
    script = "<script>alert(1)</script>"
    async with shop_of(new_database_url("orders")) as shop, shop.visitor("op", "operator") as visitor:
        for answer in (
            await visitor.get(f"/session?next={script}"),
            await visitor.get(f"/operator?buyer={script}"),
            await visitor.get(f"/operator?status={script}"),
            await visitor.send("/cart/update", product_id=["seat"], quantity=[script]),
            await visitor.http.get(f"{ROOT}/", headers={"Cookie": f"shop_cart={script}; shop_language={script}"}),
        ):
            assert script not in answer.text
