"""Callers and their rights: scopes, roles, and the signed tokens that carry them.

A token is a JWT (RFC 7519) signed with HMAC-SHA256: header `kid`, claims iss, sub, scope (names with spaces between,
RFC 8693), iat and exp in seconds. Each key can issue tokens for every subject; all services share the keys.

Invariants: only HS256 is taken, whatever a token's header says; time comes from the injected clock, never from the
library; the first key signs and every key verifies, so that replacing a key invalidates no token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import jwt

from osenv import Clock
from servicekit.errors import RejectedError
from servicekit.identifiers import is_identifier

ORDERS_READ = "orders:read"
ORDERS_WRITE = "orders:write"  # place; cancel and confirm own orders
ORDERS_ALL = "orders:all"  # the orders of every buyer
ORDERS_SHIP = "orders:ship"  # ship, and cancel as the seller
ORDERS_HOLD = "orders:hold"  # of payments, which asks for the order's buyer; no role has it
PRODUCTS_WRITE = "products:write"
PAYMENTS_READ = "payments:read"
PAYMENTS_WRITE = "payments:write"
PAYMENTS_ALL = "payments:all"  # the payments of every buyer
REFUNDS_WRITE = "refunds:write"
STATISTICS_READ = "statistics:read"

SCOPES: Mapping[str, str] = MappingProxyType(
    {
        ORDERS_READ: "read own orders",
        ORDERS_WRITE: "place orders; cancel and confirm own ones",
        ORDERS_ALL: "read the orders of every buyer",
        ORDERS_SHIP: "ship orders, and cancel them as the seller",
        ORDERS_HOLD: "hold own orders while their money is taken",
        PRODUCTS_WRITE: "put products on sale",
        PAYMENTS_READ: "read own payments",
        PAYMENTS_WRITE: "pay own orders",
        PAYMENTS_ALL: "read the payments and refunds of every buyer",
        REFUNDS_WRITE: "give money back",
        STATISTICS_READ: "read the sums over all orders and payments",
    }
)

BUYER = frozenset({ORDERS_READ, ORDERS_WRITE, PAYMENTS_READ, PAYMENTS_WRITE})
SELLER = frozenset({ORDERS_READ, ORDERS_ALL, ORDERS_SHIP, PRODUCTS_WRITE, STATISTICS_READ})
OPERATOR = SELLER | {PAYMENTS_READ, PAYMENTS_ALL, REFUNDS_WRITE}

ROLES: Mapping[str, frozenset[str]] = MappingProxyType({"buyer": BUYER, "seller": SELLER, "operator": OPERATOR})

ISSUER = "hourglass"
SECRET_MIN_CHARACTERS = 32  # as many bytes as HMAC-SHA256 gives: RFC 7518, 3.2
LEEWAY_S = 30  # clocks of two machines may differ by this much
LIFETIME_S = 3600
TOKEN_MAX_CHARACTERS = 4096
TOKENS_KEPT = 4096  # that were read before: about 4 MB

_ALGORITHM = "HS256"
_CLAIMS = ("iss", "sub", "scope", "iat", "exp")
# The library would compare times with the clock of the machine: here they are compared with the injected one.
_OPTIONS: Any = {"require": list(_CLAIMS), "verify_exp": False, "verify_iat": False, "verify_nbf": False}

Keys = Sequence[tuple[str, str]]  # (kid, secret); the first signs


class InvalidTokenError(RejectedError):
    """The token is not one of ours, or its time is over; the sentence says which."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, a person or a program, with its scopes."""

    subject: str
    scopes: frozenset[str]

    def has(self, scope: str) -> bool:
        """Whether the caller was given this scope."""
        return scope in self.scopes


@dataclass(frozen=True, slots=True)
class _Claims:
    """What a token says; both times are seconds since 1970-01-01 UTC."""

    caller: Caller
    issued_s: int
    expires_s: int


class Tokens:
    """Issues and verifies. Raises ValueError when there is no key, or one that cannot be used."""

    def __init__(self, keys: Keys, clock: Clock) -> None:
        if not keys:
            raise ValueError("tokens need at least one key; make one with: python -m servicekit.token new-key")
        for kid, secret in keys:
            check_key(kid, secret)
        self._signing = keys[0]
        self._secrets = dict(keys)
        if len(self._secrets) != len(keys):
            raise ValueError("two keys have the same name; each needs one of its own")
        self._clock = clock
        # The same token comes with request after request, and reading it takes as long as many a whole query.
        self._claims = lru_cache(TOKENS_KEPT)(self._read)

    def issue(self, subject: str, scopes: Iterable[str], lifetime_s: int = LIFETIME_S) -> str:
        """A token for `subject`, valid from now. Raises ValueError for a subject that is no id, and for no lifetime."""
        if not is_identifier(subject):
            raise ValueError(f"{subject!r} is not an id: 1 to 64 letters, digits, dots, underscores and hyphens")
        if lifetime_s < 1:
            raise ValueError(f"a lifetime of {lifetime_s} s: at least 1 is allowed")
        kid, secret = self._signing
        now_s = self._clock.wall_ms() // 1000
        claims = {
            "iss": ISSUER,
            "sub": subject,
            "scope": " ".join(sorted(scopes)),
            "iat": now_s,
            "exp": now_s + lifetime_s,
        }
        return jwt.encode(claims, secret, _ALGORITHM, headers={"kid": kid})

    def verify(self, token: str) -> Caller:
        """The caller that the token names. Raises InvalidTokenError."""
        claims = self._claims(token)
        now_s = self._clock.wall_ms() / 1000
        if claims.issued_s > now_s + LEEWAY_S:
            raise InvalidTokenError("the token was issued in the future; a clock is wrong")
        if claims.expires_s + LEEWAY_S <= now_s:
            raise InvalidTokenError("the token has expired; sign in again")
        return claims.caller

    def _read(self, token: str) -> _Claims:
        """What a token says that is signed by us, whatever the time. Raises InvalidTokenError."""
        if len(token) > TOKEN_MAX_CHARACTERS:
            raise InvalidTokenError(f"a token has at most {TOKEN_MAX_CHARACTERS} characters")
        try:
            secret = self._secrets.get(jwt.get_unverified_header(token).get("kid", ""))
            if secret is None:
                raise InvalidTokenError("the token was signed with a key that is not in use")
            claims = jwt.decode(token, secret, [_ALGORITHM], issuer=ISSUER, options=_OPTIONS)
        except jwt.InvalidTokenError as error:
            # One sentence for every forgery: what exactly did not fit is of use to a forger only.
            raise InvalidTokenError("the token is not a valid one of this shop") from error
        subject, scope, issued_s, expires_s = claims["sub"], claims["scope"], claims["iat"], claims["exp"]
        if not isinstance(scope, str) or not is_identifier(subject):
            raise InvalidTokenError("the token has an invalid subject or scope")
        if not _is_time(issued_s) or not _is_time(expires_s):
            raise InvalidTokenError("the token's times are not whole seconds")
        return _Claims(Caller(subject, frozenset(scope.split())), issued_s, expires_s)


def check_key(kid: str, secret: str) -> None:
    """Raises ValueError, with a sentence that does not repeat the secret."""
    if not is_identifier(kid):
        # It may be a part of a secret that has a comma in it.
        raise ValueError("the name of a key has 1 to 64 letters, digits, dots, underscores and hyphens")
    if len(secret) < SECRET_MIN_CHARACTERS:
        raise ValueError(
            f"the secret of the key {kid!r} has {len(secret)} characters; at least {SECRET_MIN_CHARACTERS} are needed"
        )


def parse_keys(text: str) -> tuple[tuple[str, str], ...]:
    """The keys in `kid:secret,kid2:secret2`. Raises ValueError, with a sentence that does not repeat a secret."""
    keys = []
    for position, part in enumerate(text.split(","), 1):
        kid, colon, secret = part.strip().partition(":")
        if not colon:
            raise ValueError(f"key {position} is not of the form name:secret")
        check_key(kid, secret)
        keys.append((kid, secret))
    return tuple(keys)


def _is_time(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
