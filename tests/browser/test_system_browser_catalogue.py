"""What a first visitor sees: the products of `make up`, and those of docker compose with its way to sign in."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from browser_people import DESK, PATIENCE_MS, SMALL_PHONE, Person, a_browser, a_person, artefacts_folder
from playwright.async_api import expect

from orders.service.sample_catalogue import SAMPLE_CATALOGUE
from servicekit.testing.service_process import service_process

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.processes]

COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"
NO_QUEUE = "mq://127.0.0.1:1"  # no process listens on port 1
PICTURES_SHOWN = "images => images.filter(image => image.complete && image.naturalWidth > 0).length"


@pytest.fixture
def shop_url(tmp_path: Path) -> Iterator[str]:
    """Where orders is after `make up`, on other ports."""
    command = [sys.executable, "-m", "hourglass_local", "up", "--free-ports", "--folder", "here"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            banner = ""
            while not banner.endswith("Ctrl-C stops everything.\n"):
                line = running.stdout.readline()
                assert line, banner
                banner += line
            (url,) = re.findall(r"shop +(http://\S+)/shop ", banner)
            yield url
        finally:
            running.terminate()
            running.stdout.read()
    assert running.returncode == 0


async def expect_samples(person: Person) -> None:
    """Each sample with its picture, which has come."""
    await expect(person.page.locator(".product")).to_have_count(len(SAMPLE_CATALOGUE))
    pictures = person.page.locator(".product .picture")
    assert await pictures.evaluate_all(PICTURES_SHOWN) == len(SAMPLE_CATALOGUE)
    assert all(await pictures.evaluate_all("images => images.map(image => image.alt)"))


async def test_a_visitor_of_make_up_is_led_from_the_first_page_to_a_paid_order(shop_url: str) -> None:
    async with a_browser() as browser, a_person(browser, shop_url, artefacts_folder(), **DESK) as visitor:
        page = visitor.page
        await visitor.open("/")
        await expect_samples(visitor)
        await expect(page.locator(".guide")).to_contain_text("choose any name")
        await visitor.picture("first-page-en")
        await page.locator('[data-product="hourglass"] button').click()
        await page.get_by_role("link", name="Sign in to order").click()
        await page.locator('input[name="subject"]').fill("ann")
        await page.locator('form[action$="/session/sandbox"] button').click()
        await expect(page).to_have_url(re.compile("/shop/cart$"))
        await visitor.place_button().click()
        await visitor.order_id()
        await expect(page.locator("h1")).to_contain_text("Please pay within 30 minutes")
        await page.locator("form.pay button").click()
        await visitor.expect_status("AWAITING_SHIPMENT")


@pytest.mark.parametrize("language", ["en", "zh-CN"])
async def test_a_visitor_of_compose_signs_in_by_the_command_on_the_first_page(tmp_path: Path, language: str) -> None:
    (tmp_path / "auth-keys").write_text(f"key:{'secret' * 8}", encoding="utf-8")
    environment = {
        "ORDERS_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path / 'orders.db'}",
        "ORDERS_MQ_URL": NO_QUEUE,
        "ORDERS_LISTEN": "127.0.0.1:0",
        "ORDERS_AUTH_KEYS_FILE": str(tmp_path / "auth-keys"),
    } | {name: compose_default(name) for name in ("ORDERS_SANDBOX_SIGN_IN", "ORDERS_SAMPLE_CATALOGUE")}
    environment["ORDERS_TOKEN_COMMAND"] = command = compose_default("ORDERS_TOKEN_COMMAND")
    async with service_process("orders", tmp_path, environment, prefix="ORDERS_", name="orders") as started:
        url = f"http://127.0.0.1:{await started.port()}"
        async with (
            a_browser() as browser,
            a_person(browser, url, artefacts_folder(), language=language, **SMALL_PHONE) as visitor,
        ):
            for path in ("/", "/session"):
                await visitor.open(path)
                await expect(visitor.page.locator("code")).to_have_text(command)
                await visitor.expect_to_fit()
                await visitor.expect_no_barriers()
            await visitor.open("/")
            await expect_samples(visitor)
            await visitor.picture(f"first-page-compose-{language}")
            await visitor.page.locator(".guide a").click()
            await visitor.page.locator('input[name="token"]').fill(printed_token(command, tmp_path / "auth-keys"))
            await visitor.page.locator('form[action$="/session/token"] button').click()
            await expect(visitor.page.locator(".subject")).to_have_text("buyer-1", timeout=PATIENCE_MS)


def compose_default(name: str) -> str:
    """What docker-compose.yml sets a variable of orders to, when nothing is set in the shell."""
    text = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]["orders"]["environment"][name]
    return re.sub(r"^\$\{\w+:?-(.*)\}$", r"\1", text)


def printed_token(command: str, keys_file: Path) -> str:
    """What the command prints that is for the container of orders, run beside these keys."""
    words = shlex.split(command.removeprefix("docker compose exec orders python "))
    words[words.index("--keys-file") + 1] = str(keys_file)
    run = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60, check=True)
    return run.stdout.strip()
