"""The reference is built without a warning, and has every public name of mqclient and every route of the services."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mqclient
import mqclient.admin
import mqclient.fastapi
import mqclient.sqlalchemy
import mqclient.sync

ROOT = Path(__file__).parents[2]
PAGES = {
    "client": mqclient,
    "client-admin": mqclient.admin,
    "client-sync": mqclient.sync,
    "client-sqlalchemy": mqclient.sqlalchemy,
    "client-fastapi": mqclient.fastapi,
}
ROUTES = {
    "http-orders": ("POST /orders", "GET /orders/{order_id}", "GET /orders/{order_id}/events", "POST /products"),
    "http-payments": ("POST /payments", "POST /webhooks/gateway", "GET /health/ready"),
    "http-gateway": ("POST /v1/charges", "GET /v1/book"),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, as `make docs` builds them."""
    target = tmp_path_factory.mktemp("reference")
    options = ["-q", "-W", "--keep-going", "-b", "html", "-c", "docs/reference"]
    run = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, "docs", str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return target / "reference"


@pytest.mark.timeout(330)
@pytest.mark.parametrize("page", PAGES)
def test_every_public_name_of_the_client_is_described(built: Path, page: str) -> None:
    module = PAGES[page]
    described = set(re.findall(r'id="([\w.]+)"', (built / f"{page}.html").read_text(encoding="utf-8")))
    assert [name for name in module.__all__ if f"{module.__name__}.{name}" not in described] == []


@pytest.mark.timeout(330)
@pytest.mark.parametrize("page", ROUTES)
def test_every_service_s_routes_are_described(built: Path, page: str) -> None:
    text = html.unescape(re.sub(r"<[^>]+>", "", (built / f"{page}.html").read_text(encoding="utf-8")))
    assert [route for route in ROUTES[page] if route not in text] == []


@pytest.mark.timeout(330)
def test_examples_of_docstrings_are_code_and_names_are_literals(built: Path) -> None:
    text = (built / "client.html").read_text(encoding="utf-8")
    assert "highlight-python" in text
    assert '<code class="docutils literal notranslate"><span class="pre">mq+dns://name:port</span></code>' in text
    assert "<blockquote>" not in text  # what is indented would be one, if it were taken for reStructuredText
