"""Templates, and what all of them know: the texts of the visitor's language, money, moments, and where they are."""

from __future__ import annotations

from functools import cache
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from orders.domain.order_status import OrderStatus
from orders.pages.language import PARAMETER, Language
from orders.pages.money import format_amount, format_money
from orders.pages.texts import Texts
from orders.pages.times import format_moment, format_remaining, machine_moment
from orders.pages.visitor import Visitor, keep_language
from osenv import Clock
from servicekit import auth

ROOT = "/shop"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("orders.pages", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals |= {
        "root": ROOT,
        "money": format_money,
        "amount": format_amount,
        "machine_moment": machine_moment,
        "remaining": format_remaining,
        "statuses": tuple(OrderStatus),
        "scopes": {"see_all": auth.ORDERS_ALL, "ship": auth.ORDERS_SHIP, "buy": auth.ORDERS_WRITE},
    }
    return environment


class Renderer:
    """Makes pages; templates are read and compiled once in a process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def page(
        self, request: Request, visitor: Visitor, template: str, *, status: int = 200, **values: object
    ) -> HTMLResponse:
        """The page; a language that this request asked for is remembered."""
        language = visitor.language
        text = (
            _environment()
            .get_template(template)
            .render(
                values
                | {
                    "t": Texts(language),
                    "language": language,
                    "visitor": visitor,
                    "now_ms": self._clock.wall_ms(),
                    "moment": lambda at_ms: format_moment(at_ms, language),
                    "other_language_url": _in_language(request, language.other),
                    "path": request.url.path if request.method == "GET" else "",
                }
            )
        )
        response = HTMLResponse(text, status)
        if visitor.has_chosen:
            keep_language(request, response, language)
        return response


def _in_language(request: Request, language: Language) -> str:
    """Where the same page is in the other language; what was not asked for by GET begins at the products."""
    if request.method != "GET":
        return f"{ROOT}/?{urlencode({PARAMETER: language.value})}"
    others = [(name, value) for name, value in request.query_params.multi_items() if name != PARAMETER]
    return f"{request.url.path}?{urlencode([*others, (PARAMETER, language.value)])}"
