"""Tokens: which are valid, which are rejected, and when they expire."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osenv import SeededRng, SimClock
from servicekit import auth, token
from servicekit.auth import BUYER, LEEWAY_S, OPERATOR, ROLES, SCOPES, SELLER, InvalidTokenError, Tokens, parse_keys

OLD = ("k1", "the first secret is long enough for every algorithm of the family")
NEW = ("k2", "another secret is long enough for all of them too")
NOW_S = 1_700_000_000


def tokens(*keys: tuple[str, str], clock: SimClock | None = None) -> Tokens:
    return Tokens(keys or (OLD,), clock or SimClock(NOW_S * 1000))


def forged(key: tuple[str, str] = OLD, algorithm: str = "HS256", kid: Any = "k1", **changes: Any) -> str:
    """A token made by hand; a claim that is set to None is left out."""
    claims = {"iss": "hourglass", "sub": "b", "scope": "orders:read", "iat": NOW_S, "exp": NOW_S + 60} | changes
    present = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(present, key[1], algorithm, headers={} if kid is None else {"kid": kid})


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def test_a_token_gives_its_subject_and_scopes_back() -> None:
    caller = tokens().verify(tokens().issue("buyer-1", BUYER))
    assert (caller.subject, caller.scopes) == ("buyer-1", BUYER)
    assert caller.has(auth.ORDERS_WRITE)
    assert not caller.has(auth.ORDERS_ALL)


def test_a_token_is_valid_until_its_end_and_a_leeway_after_it() -> None:
    clock = SimClock(NOW_S * 1000)
    issued = tokens(clock=clock).issue("b", BUYER, lifetime_s=60)
    clock.set_wall_ms((NOW_S + 60 + LEEWAY_S) * 1000 - 1)
    assert tokens(clock=clock).verify(issued).subject == "b"
    clock.set_wall_ms((NOW_S + 60 + LEEWAY_S) * 1000)
    with pytest.raises(InvalidTokenError, match="expired"):
        tokens(clock=clock).verify(issued)


def test_a_token_of_the_future_is_rejected_beyond_the_leeway() -> None:
    clock = SimClock(NOW_S * 1000)
    assert tokens(clock=clock).verify(forged(iat=NOW_S + LEEWAY_S)).subject == "b"
    with pytest.raises(InvalidTokenError, match="in the future"):
        tokens(clock=clock).verify(forged(iat=NOW_S + LEEWAY_S + 1))


def test_the_first_key_signs_and_every_key_verifies() -> None:
    before, during, after = tokens(OLD), tokens(NEW, OLD), tokens(NEW)
    old_token, new_token = before.issue("b", BUYER), during.issue("b", BUYER)
    assert jwt.get_unverified_header(new_token)["kid"] == "k2"
    assert during.verify(old_token) == during.verify(new_token) == after.verify(new_token)
    for verifier, rejected in ((before, new_token), (after, old_token)):
        with pytest.raises(InvalidTokenError, match="key that is not in use"):
            verifier.verify(rejected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "a.b.c",
        "é" * 10,
        "x" * 5000,
        forged(NEW),  # names k1, and is signed with the secret of k2
        forged(kid=None),
        forged(kid="k9"),
        forged(algorithm="HS512"),
        f"{part({'alg': 'none', 'kid': 'k1'})}.{part({'iss': 'hourglass', 'sub': 'b'})}.",
        f"{part({'alg': 'HS256', 'kid': 7})}.{part({})}.AAAA",
        f"{part({'alg': 'HS256', 'kid': ['k1']})}.{part({})}.AAAA",
        f"{part([])}.{part([])}.AAAA",
        forged(iss="another issuer"),
        forged(iss=None),
        forged(sub=None),
        forged(sub="no spaces"),
        forged(sub=""),
        forged(scope=None),
        forged(scope=["orders:read"]),
        forged(exp=None),
        forged(iat=None),
        forged(exp="soon"),
        forged(exp=1e300),
        forged(exp=True),
        forged(iat=-1),
    ],
)
def test_what_is_not_a_token_of_ours_is_rejected(text: str) -> None:
    with pytest.raises(InvalidTokenError):
        tokens().verify(text)


@given(st.integers(0, 400), st.integers(1, 127))
def test_a_token_that_was_tampered_with_is_rejected_or_says_the_same(position: int, change: int) -> None:
    """The same: base64 has spare bits at its end, which decoders ignore."""
    issued = tokens().issue("buyer-1", BUYER)
    at = position % len(issued)
    tampered = issued[:at] + chr(ord(issued[at]) ^ change) + issued[at + 1 :]
    with contextlib.suppress(InvalidTokenError):
        assert tokens().verify(tampered) == tokens().verify(issued)


@given(st.text())
def test_no_text_breaks_verification(text: str) -> None:
    with pytest.raises(InvalidTokenError):
        tokens().verify(text)


@pytest.mark.parametrize("subject", ["", "a b", "x" * 65, "-x", "a\n", "é"])
def test_no_token_is_issued_for_what_is_no_id(subject: str) -> None:
    with pytest.raises(ValueError, match="is not an id"):
        tokens().issue(subject, BUYER)


def test_no_token_is_issued_that_is_never_valid() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        tokens().issue("b", BUYER, lifetime_s=0)


def test_keys_are_read_and_rejected_without_repeating_a_secret() -> None:
    assert parse_keys(f"{OLD[0]}:{OLD[1]}, k:{'s:' * 16}") == (OLD, ("k", "s:" * 16))
    for text in (
        "",
        "k:tiny-text",
        f"k:tiny,-text:{OLD[1]}",
        f"no colon {OLD[1]}",
        f"a b:{OLD[1]}",
        f"{OLD[0]}:{OLD[1]},",
    ):
        with pytest.raises(ValueError, match=r"\w") as rejected:
            parse_keys(text)
        assert OLD[1] not in str(rejected.value)
        assert "-text" not in str(rejected.value)


def test_tokens_need_keys_with_names_of_their_own() -> None:
    with pytest.raises(ValueError, match="at least one key"):
        Tokens((), SimClock())
    with pytest.raises(ValueError, match="same name"):
        tokens(OLD, ("k1", NEW[1]))
    with pytest.raises(ValueError, match="at least 32"):
        tokens(("k1", "short"))


def test_roles_hold_scopes_that_are_described_and_no_role_has_them_all() -> None:
    assert set(ROLES) == {"buyer", "seller", "operator"}
    for scopes in ROLES.values():
        assert scopes <= set(SCOPES)
    assert SELLER < OPERATOR
    # A role that reads everything neither orders nor pays.
    assert not OPERATOR & {auth.ORDERS_WRITE, auth.PAYMENTS_WRITE}
    assert not BUYER & {auth.ORDERS_ALL, auth.PAYMENTS_ALL, auth.ORDERS_SHIP, auth.REFUNDS_WRITE, auth.PRODUCTS_WRITE}


def test_the_command_prints_a_token_that_the_keys_verify(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    assert token.main(["new-key"], {}, rng=SeededRng(1)) == 0
    key = capsys.readouterr().out.strip()
    file = tmp_path / "keys"
    file.write_text(key + "\n")
    clock = SimClock()
    for source in (["--keys-file", str(file)], ["--keys-variable", "ORDERS_AUTH_KEYS"]):
        wanted = [*source, "--subject", "seller-1", "--role", "seller", "--lifetime-s", "60"]
        assert token.main(wanted, {"ORDERS_AUTH_KEYS": key}, clock=clock) == 0
        caller = Tokens(parse_keys(key), clock).verify(capsys.readouterr().out.strip())
        assert (caller.subject, caller.scopes) == ("seller-1", SELLER)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--role", "buyer"], "needs --subject and --role"),
        (["--subject", "b", "--role", "king"], "invalid choice"),
        (["--subject", "b", "--role", "buyer"], "either --keys-file or --keys-variable"),
        (["--subject", "b", "--role", "buyer", "--keys-variable", "X"], "X is not set"),
        (["--subject", "b", "--role", "buyer", "--keys-variable", "SHORT"], "SHORT"),
        (["--subject", "b", "--role", "buyer", "--keys-file", "/nowhere/keys"], "cannot be read"),
        (["--subject", "a b", "--role", "buyer", "--keys-variable", "KEYS"], "is not an id"),
    ],
)
def test_the_command_says_what_is_wrong(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {"SHORT": "k:short", "KEYS": ":".join(OLD)}
    try:
        code = token.main(arguments, environment, clock=SimClock())
    except SystemExit as end:
        code = int(str(end.code))
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert sentence in printed.err
