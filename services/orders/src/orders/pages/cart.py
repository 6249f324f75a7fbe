"""A visitor's cart: wishes in a cookie, so that it needs no account, no script and no table.

Format: `seat-12A:2|seat-12B:1`. Whatever is not so is left out: a cookie is the visitor's to write. Invariants: a
product is in one line; quantities are 1 to QUANTITY_MAX; there are at most LINES_MAX lines, so that any cart can be
ordered.
"""

from __future__ import annotations

from dataclasses import dataclass

from orders.api.schemas import LINES_MAX, QUANTITY_MAX
from orders.domain.order import RequestedLine
from servicekit.identifiers import is_identifier

COOKIE = "shop_cart"
COOKIE_MAX_AGE_S = 7 * 86_400

_BETWEEN_LINES, _BEFORE_QUANTITY = "|", ":"
_QUANTITY_DIGITS_MAX = len(str(QUANTITY_MAX))


@dataclass(frozen=True, slots=True)
class Cart:
    """What a visitor wishes to order."""

    lines: tuple[RequestedLine, ...] = ()

    @property
    def units(self) -> int:
        return sum(line.quantity for line in self.lines)

    def with_more(self, product_id: str, quantity: int) -> Cart:
        """So many units more of a product; what does not fit is left out."""
        before = next((line.quantity for line in self.lines if line.product_id == product_id), 0)
        return self.with_quantity(product_id, before + quantity)

    def with_quantity(self, product_id: str, quantity: int) -> Cart:
        """So many units of a product in all; 0 takes it out."""
        quantity = min(quantity, QUANTITY_MAX)
        is_known = any(line.product_id == product_id for line in self.lines)
        if quantity < 1:
            return Cart(tuple(line for line in self.lines if line.product_id != product_id))
        if not is_known:
            return Cart((*self.lines, RequestedLine(product_id, quantity))[:LINES_MAX])
        return Cart(
            tuple(RequestedLine(product_id, quantity) if line.product_id == product_id else line for line in self.lines)
        )

    @property
    def text(self) -> str:
        """As a cookie and a form keep it."""
        return _BETWEEN_LINES.join(f"{line.product_id}{_BEFORE_QUANTITY}{line.quantity}" for line in self.lines)


def parse_cart(text: str) -> Cart:
    """The cart of a cookie or a form."""
    cart = Cart()
    for part in text.split(_BETWEEN_LINES)[:LINES_MAX]:
        product_id, _, quantity = part.partition(_BEFORE_QUANTITY)
        if is_identifier(product_id) and is_quantity(quantity):
            cart = cart.with_quantity(product_id, int(quantity))
    return cart


def is_quantity(text: str) -> bool:
    """Whether the text is a whole number that a cart can hold; 0 is one."""
    return text.isascii() and text.isdigit() and len(text) <= _QUANTITY_DIGITS_MAX
