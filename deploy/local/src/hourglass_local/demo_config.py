"""What can be set about the demonstration: DEMO_ORDERS, and the folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hourglass_local.plan import Pays

ORDERS_VARIABLE = "DEMO_ORDERS"
ORDERS_MIN, ORDERS_MAX = len(Pays), 100_000  # at least one buyer of each kind


class DemoConfigError(ValueError):
    """A setting that cannot be used; the message names it, its value and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """Raises DemoConfigError."""

    folder: Path = Path(".demo")
    orders: int = 200
    buyers: int = 20
    payment_window: str = "10s"  # level 16, which is 30 minutes in earnest
    settle_timeout_s: float = 20.0  # how long after the last expiry an order may still be pending
    seed: int = 16

    def __post_init__(self) -> None:
        if not ORDERS_MIN <= self.orders <= ORDERS_MAX:
            raise DemoConfigError(f"{ORDERS_VARIABLE}={self.orders}: allowed are {ORDERS_MIN} to {ORDERS_MAX}")


def parse_demo_config(environment: Mapping[str, str], folder: Path) -> DemoConfig:
    """The configuration that the environment makes. Raises DemoConfigError."""
    text = environment.get(ORDERS_VARIABLE)
    if text is None:
        return DemoConfig(folder=folder)
    if not (text.isascii() and text.isdigit()):
        raise DemoConfigError(f"{ORDERS_VARIABLE}={text!r} is not a whole number of {ORDERS_MIN} to {ORDERS_MAX}")
    return DemoConfig(folder=folder, orders=int(text))
