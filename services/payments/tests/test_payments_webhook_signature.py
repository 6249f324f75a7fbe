"""Who may send webhooks: the signature over time and raw body, its window, and the change of secrets."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from osenv import SimClock
from payments.domain.errors import InvalidSignatureError
from payments.service.receive_event import SIGNATURES_MAX, WINDOW_S, WebhookSignatures, sign
from payments.testing import WEBHOOK_SECRET, running_payments
from servicekit.testing.databases import NewDatabaseUrl

OLD, NEW = "an old secret of thirty-two chars.", "a new secret of thirty-two chars.."
BODY = b'{"event_id": "e",  "type":"charge.captured"}'


def header(*secrets: str, at_s: int, body: bytes = BODY) -> str:
    return ",".join([f"t={at_s}", *(f"v1={sign(secret, str(at_s), body)}" for secret in secrets)])


async def now_s(clock: SimClock, moved_s: float = 0) -> int:
    await clock.advance(moved_s)
    return clock.wall_ms() // 1000


def test_the_signature_is_the_hmac_of_time_dot_body() -> None:
    # By hand, so that both sides cannot agree on a mistake.
    expected = hmac.new(OLD.encode(), b"1700000000." + BODY, hashlib.sha256).hexdigest()
    assert sign(OLD, "1700000000", BODY) == expected


async def test_the_body_is_checked_as_it_came_byte_for_byte() -> None:
    clock = SimClock()
    signatures = WebhookSignatures([OLD], clock)
    signed = header(OLD, at_s=await now_s(clock))
    signatures.verify(signed, BODY)
    for other in (BODY + b" ", BODY[1:], BODY.replace(b"  ", b" "), BODY.upper(), b""):
        with pytest.raises(InvalidSignatureError, match="not of this body"):
            signatures.verify(signed, other)


@pytest.mark.parametrize("late_s", [-WINDOW_S, -1, 0, 1, WINDOW_S])
async def test_a_signature_within_the_window_is_taken(late_s: int) -> None:
    clock = SimClock()
    signatures = WebhookSignatures([OLD], clock)
    signatures.verify(header(OLD, at_s=await now_s(clock) - late_s), BODY)


@pytest.mark.parametrize("late_s", [-86_400, -WINDOW_S - 1, WINDOW_S + 1, 86_400])
async def test_a_signature_outside_the_window_is_rejected_on_both_sides(late_s: int) -> None:
    clock = SimClock()
    signatures = WebhookSignatures([OLD], clock)
    with pytest.raises(InvalidSignatureError, match="300 s"):
        signatures.verify(header(OLD, at_s=await now_s(clock) - late_s), BODY)


async def test_an_overheard_webhook_is_of_no_use_after_the_window() -> None:
    clock = SimClock()
    signatures = WebhookSignatures([OLD], clock)
    overheard = header(OLD, at_s=await now_s(clock))
    await clock.advance(WINDOW_S)
    signatures.verify(overheard, BODY)
    await clock.advance(0.001)
    with pytest.raises(InvalidSignatureError):
        signatures.verify(overheard, BODY)


async def test_a_time_that_was_changed_does_not_fit_its_signature() -> None:
    clock = SimClock()
    signatures = WebhookSignatures([OLD], clock)
    at_s = await now_s(clock)
    with pytest.raises(InvalidSignatureError, match="not of this body"):
        signatures.verify(header(OLD, at_s=at_s - WINDOW_S).replace(f"t={at_s - WINDOW_S}", f"t={at_s}"), BODY)


async def test_a_secret_is_changed_without_losing_an_event() -> None:
    clock = SimClock()
    at_s = await now_s(clock)
    both_here = WebhookSignatures([NEW, OLD], clock)
    for secrets in ([OLD], [NEW], [OLD, NEW], [NEW, OLD]):
        both_here.verify(header(*secrets, at_s=at_s), BODY)
    for only in (OLD, NEW):  # the gateway signs with both
        WebhookSignatures([only], clock).verify(header(OLD, NEW, at_s=at_s), BODY)
    with pytest.raises(InvalidSignatureError):
        WebhookSignatures([NEW], clock).verify(header(OLD, at_s=at_s), BODY)


async def test_one_right_signature_among_wrong_ones_and_unknown_schemes_is_enough() -> None:
    clock = SimClock()
    at_s = await now_s(clock)
    right = f"v1={sign(OLD, str(at_s), BODY)}"
    wrong = "v1=" + "0" * 64
    signatures = WebhookSignatures([OLD], clock)
    for members in ([wrong, right], [right, wrong], ["v0=x", right, "v2=y"], [right]):
        signatures.verify(", ".join([f"t={at_s}", *members]), BODY)
    with pytest.raises(InvalidSignatureError):
        signatures.verify(f"t={at_s},{wrong}", BODY)
    with pytest.raises(InvalidSignatureError, match="form"):  # a signature by another scheme is none
        signatures.verify(f"t={at_s},{right.replace('v1', 'v2')}", BODY)


@pytest.mark.parametrize(
    "malformed",
    [
        "",
        "x",
        "t=NOW",
        "v1=SIGNATURE",
        "t=,v1=SIGNATURE",
        "t=-NOW,v1=SIGNATURE",
        "t=NOW.0,v1=SIGNATURE",
        "t=1e9,v1=SIGNATURE",
        "t=1234567890123,v1=SIGNATURE",
        "t=１７０００,v1=SIGNATURE",
        "t=NOW,t=NOW,v1=SIGNATURE",
        "t=NOW,v1=",
        "t=NOW,v1=SIGNATURE00",
        "t=NOW,v1=é",
        "t=NOW;v1=SIGNATURE",
        "t=NOW," + ",".join(["v1=SIGNATURE"] * (SIGNATURES_MAX + 1)),
    ],
)
async def test_a_malformed_header_is_rejected(malformed: str) -> None:
    clock = SimClock()
    at_s = await now_s(clock)
    text = malformed.replace("NOW", str(at_s)).replace("SIGNATURE", sign(OLD, str(at_s), BODY))
    with pytest.raises(InvalidSignatureError, match="form"):
        WebhookSignatures([OLD], clock).verify(text, BODY)


def test_a_missing_header_is_rejected() -> None:
    with pytest.raises(InvalidSignatureError, match="missing"):
        WebhookSignatures([OLD], SimClock()).verify(None, BODY)


async def test_signatures_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []
    compare = hmac.compare_digest

    def counting(one: str, other: str) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    clock = SimClock()
    at_s = await now_s(clock)
    signed = header(OLD, NEW, at_s=at_s)
    WebhookSignatures([OLD, NEW], clock).verify(signed, BODY)
    assert len(compared) == 4  # every pair, whichever fits
    assert sum(one == other for one, other in compared) == 2


@pytest.mark.parametrize("secrets", [[], [""], ["short"], [OLD, "x" * 31]])
def test_secrets_that_can_be_guessed_are_rejected(secrets: list[str]) -> None:
    with pytest.raises(ValueError, match="at least 32"):
        WebhookSignatures(secrets, SimClock())


async def test_an_unsigned_request_is_rejected_before_anything_reads_it(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        body = b"this is no JSON"
        wrong = await payments.signed(body, secret=NEW)
        late = await payments.signed(body, late_s=WINDOW_S + 1)
        early = await payments.signed(body, late_s=-WINDOW_S - 1)
        missing = await payments.http.post("/webhooks/gateway", content=body)
        time_text = str(payments.clock.wall_ms() // 1000)
        right = f"t={time_text},v1={sign(WEBHOOK_SECRET, time_text, body)}"
        two_headers = [("Gateway-Signature", "t=1"), ("Gateway-Signature", right)]
        twice = await payments.http.post("/webhooks/gateway", content=body, headers=two_headers)
        for rejected in (wrong, late, early, missing, twice):
            assert (rejected.status_code, rejected.json()["type"]) == (401, "urn:hourglass:problem:invalid-signature")
            assert rejected.headers["WWW-Authenticate"] == "Gateway-Signature"
        assert (await payments.signed(body)).status_code == 422
        token = await payments.http.post("/webhooks/gateway", content=body, headers=payments.headers("operator"))
        assert token.status_code == 401  # a token of the shop is no signature
        assert sum((await payments.application.use_cases.queries.statistics()).gateway_events.values()) == 0
