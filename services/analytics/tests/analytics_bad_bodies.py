"""Bodies that no reader can make sense of, each with the tag that it comes with and the words for it."""

from __future__ import annotations

import json

from analytics.events import AMOUNT_MINOR_MAX, TIME_MS_MAX, UNITS_MAX

GOOD = {"order_id": "o", "created_at_ms": 1, "items": [{"product_id": "tea", "quantity": 1, "unit_price_minor": 1}]}
NOT_JSON = "the body is not JSON, or a member is not of its type: texts, whole numbers, items as a list"
NOT_AN_OBJECT = "the body is not a JSON object"
NO_ITEM = f"an item needs product_id, a quantity of 1 to {UNITS_MAX}, and a price of 0 to {AMOUNT_MINOR_MAX} in all"
TOO_MANY = f"the items are of {UNITS_MAX} units, and of a price of {AMOUNT_MINOR_MAX}, together at most"


def _item(quantity: int, unit_price_minor: int) -> dict[str, object]:
    return {"product_id": "tea", "quantity": quantity, "unit_price_minor": unit_price_minor}


BAD_BODIES: list[tuple[str | None, bytes | None, str]] = [
    ("created", None, NOT_AN_OBJECT),
    ("created", b"", NOT_AN_OBJECT),
    ("created", b"null", NOT_AN_OBJECT),
    ("created", b'[{"order_id":"o","created_at_ms":1}]', NOT_AN_OBJECT),
    ("created", b'\xff{"order_id":"o"}', NOT_AN_OBJECT),
    ("created", b'{"order_id":"\xff","created_at_ms":1}', NOT_JSON),
    ("created", b'{"order_id":"o","created_at_ms":1', NOT_JSON),
    ("created", b'{"order_id":5,"created_at_ms":1}', NOT_JSON),
    ("created", b'{"created_at_ms":1, "order_id" : {"a":1}}', NOT_JSON),
    ("created", b'{"order_id":"o","created_at_ms":1,"reason":[]}', NOT_JSON),
    ("created", b'{"order_id":"o","created_at_ms":1} trailing', NOT_JSON),
    ("created", b'{"order_id":"o","created_at_ms":1}{"order_id":"p","created_at_ms":1}', NOT_JSON),
    ("created", b'{"order_id":"o","created_at_ms":"1"}', NOT_JSON),
    ("created", b'{"order_id":"o","created_at_ms":1.5}', NOT_JSON),
    ("created", b'{"order_id":"o","created_at_ms":true}', NOT_JSON),
    ("created", b'{"order_id":"o","created_at_ms":1,"total_minor":99999999999999999999}', NOT_JSON),
    ("created", b'{"order_id":"o","created_at_ms":1,"version":"two"}', NOT_JSON),
    ("created", b'{"order_id":"o","created_at_ms":1,"version":0}', "version is less than 1"),
    ("created", b'{"created_at_ms":1}', "the body needs order_id"),
    ("created", b'{"order_id":"","created_at_ms":1}', "the body needs order_id"),
    ("created", b'{"order_id":"o"}', "a body of created needs created_at_ms"),
    ("paid", b'{"order_id":"o","created_at_ms":1}', "a body of paid needs paid_at_ms"),
    (
        "created",
        b'{"order_id":"o","created_at_ms":9999999999999999}',
        f"created_at_ms is not a time: 0 to {TIME_MS_MAX} are allowed",
    ),
    (
        "created",
        b'{"order_id":"o","created_at_ms":1,"total_minor":-1}',
        f"total_minor is not an amount: 0 to {AMOUNT_MINOR_MAX} are allowed",
    ),
    ("created", json.dumps(GOOD | {"items": [{}]}).encode(), NO_ITEM),
    ("created", json.dumps(GOOD).replace('"quantity": 1', '"quantity": 0').encode(), NO_ITEM),
    (
        "created",
        json.dumps(GOOD).replace(": 1,", f": {2**62},").replace('_minor": 1', f'_minor": {2**62}').encode(),
        f"created_at_ms is not a time: 0 to {TIME_MS_MAX} are allowed",
    ),
    ("created", json.dumps(GOOD).replace('minor": 1', f'minor": {2**62}').encode(), NO_ITEM),
    ("created", json.dumps(GOOD | {"items": [_item(2**63 - 1, 0)] * 2}).encode(), NO_ITEM),
    ("created", json.dumps(GOOD | {"items": [_item(UNITS_MAX - 1, 0), _item(2, 0)]}).encode(), TOO_MANY),
    ("created", json.dumps(GOOD | {"items": [_item(1, AMOUNT_MINOR_MAX), _item(1, 1)]}).encode(), TOO_MANY),
    ("created", json.dumps(GOOD | {"items": [_item(1, 10**15)] * 9_300}).encode(), NO_ITEM),
    (
        "refund-requested",
        b'{"order_id":"o","payment_id":"p","amount_minor":1000000000000000}',
        f"amount_minor is not an amount: 0 to {AMOUNT_MINOR_MAX} are allowed",
    ),
    ("succeeded", b"{}", "topic order-events has no events of 'succeeded'"),
    (None, b"{}", "topic order-events has no events of no tag"),
]
