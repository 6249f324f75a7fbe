"""Tokens for everybody whom the demonstration and the tests play: buyers, the seller, the operator."""

from __future__ import annotations

from osenv import RealClock
from servicekit.auth import ROLES, Keys, Tokens

SELLER_ID, OPERATOR_ID = "seller-1", "operator-1"
LIFETIME_S = 24 * 3600


class Badges:
    """Issued when they are asked for the first time, and used until the end. Raises ValueError for unusable keys."""

    def __init__(self, keys: Keys) -> None:
        self._tokens = Tokens(keys, RealClock())
        self._issued: dict[tuple[str, str], str] = {}

    def buyer(self, buyer_id: str) -> str:
        return self._badge(buyer_id, "buyer")

    @property
    def seller(self) -> str:
        return self._badge(SELLER_ID, "seller")

    @property
    def operator(self) -> str:
        return self._badge(OPERATOR_ID, "operator")

    def _badge(self, subject: str, role: str) -> str:
        known = (subject, role)
        if known not in self._issued:
            self._issued[known] = self._tokens.issue(subject, ROLES[role], LIFETIME_S)
        return self._issued[known]
