"""What one measurement of POST /orders does, as a document that its client is given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

LINES_MAX = 3
QUANTITY_MAX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdersLoad:
    """With `rate_per_s` orders are placed at fixed times, however long the answers take (open loop); without it every
    connection places its next order as soon as it has its answer (closed loop). `tokens` are those of the buyers,
    `name` begins the idempotency keys. An order has 1 to LINES_MAX of the products.
    """

    name: str
    host: str
    port: int
    tokens: Sequence[str]
    product_ids: Sequence[str]
    connections: int
    seconds: float
    warm_up_s: float
    rate_per_s: float | None = None
    seed: int = 16

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> OrdersLoad:
        members: dict[str, Any] = json.loads(text)
        return cls(**members)
