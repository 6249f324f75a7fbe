"""The configuration of orders: ORDERS_* variables, parsed once into one frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from orders.domain.delay_levels import (
    PAYMENT_WINDOW_LEVEL,
    DelayLevels,
    default_delay_levels,
    parse_delay_levels,
)
from orders.domain.order import CAPTURE_MAX_MS, HOLD_MS, PAST_EXPIRY_MAX_MS
from servicekit.config import (
    RECONCILING_PARSERS,
    SQLITE_PREFIX,
    ConfigError,
    Parser,
    ReconcilingConfig,
    as_text,
    is_http_url,
    read_environment,
    whole_number,
)

DEFAULT_PAYMENT_WINDOW_MS = 1_800_000  # 30 minutes
DEFAULT_DELAY_LEVELS = default_delay_levels(DEFAULT_PAYMENT_WINDOW_MS)
DEFAULT_COMPLETION_AFTER_MS = 7 * 86_400_000
TRACE_ID_PLACE = "{trace_id}"
TOKEN_COMMAND_MAX = 400  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ReconcilingConfig):
    """Everything that can be set. Raises ConfigError when values do not go together.

    A payment holds its order for `hold_ms` at a time, and for `hold_past_expiry_ms` after its expiry at the most (ADR
    122); neither is shorter than what payments takes to capture. `trace_url` leads to the page of a trace, with
    {trace_id} in it; None where traces are not kept. `sandbox_sign_in` lets every visitor sign in to the pages under
    any name, as an operator too: for demonstrations only. With `sample_catalogue` a shop begins with a few products on
    sale. The pages show `token_command` to visitors, the command that prints an access token; None where there is none.
    """

    PREFIX: ClassVar[str] = "ORDERS_"

    database_url: str = field(default=SQLITE_PREFIX + "orders.db", repr=False)
    listen_port: int = 8001  # 0 lets the operating system choose
    payment_window_ms: int = DEFAULT_PAYMENT_WINDOW_MS
    # The broker's messageDelayLevel; level 16 is the payment window.
    delay_levels: DelayLevels = DEFAULT_DELAY_LEVELS
    completion_after_ms: int = DEFAULT_COMPLETION_AFTER_MS  # from shipping to completing by itself
    hold_ms: int = HOLD_MS
    hold_past_expiry_ms: int = PAST_EXPIRY_MAX_MS
    payments_url: str = "http://127.0.0.1:8002"
    trace_url: str | None = None
    sandbox_sign_in: bool = False
    sample_catalogue: bool = False
    token_command: str | None = None

    def __post_init__(self) -> None:
        ReconcilingConfig.__post_init__(self)
        self.require_auth_keys()
        if self.payment_window_ms < 1:
            raise self.error("PAYMENT_WINDOW_MS", f"={self.payment_window_ms}: at least 1 is allowed")
        if self.delay_levels.payment_window_ms != self.payment_window_ms:
            raise ConfigError(
                f"level {PAYMENT_WINDOW_LEVEL} of ORDERS_DELAY_LEVELS is {self.delay_levels.payment_window_ms} ms and"
                f" ORDERS_PAYMENT_WINDOW_MS is {self.payment_window_ms}; an unpaid order closes by level"
                f" {PAYMENT_WINDOW_LEVEL}, so that both have to be equal"
            )
        if self.completion_after_ms < 1:
            raise self.error("COMPLETION_AFTER_MS", f"={self.completion_after_ms}: at least 1 is allowed")
        for name in ("hold_ms", "hold_past_expiry_ms"):
            if (value := getattr(self, name)) < CAPTURE_MAX_MS:
                raise self.error(
                    name.upper(),
                    f"={value}: at least {CAPTURE_MAX_MS} is allowed, for which payments may take to capture; an order"
                    " that closes before is charged and refunded",
                )
        if not is_http_url(self.payments_url):
            raise self.error("PAYMENTS_URL", f"={self.payments_url!r}: allowed is a URL such as http://127.0.0.1:8002")
        if self.trace_url is not None and not (is_http_url(self.trace_url) and TRACE_ID_PLACE in self.trace_url):
            raise self.error(
                "TRACE_URL", f"={self.trace_url!r}: allowed is a URL such as http://127.0.0.1:16686/trace/{{trace_id}}"
            )
        if self.token_command is not None and not 1 <= len(self.token_command) <= TOKEN_COMMAND_MAX:
            raise self.error(
                "TOKEN_COMMAND", f" has {len(self.token_command)} characters: 1 to {TOKEN_COMMAND_MAX} are allowed"
            )


def from_environment(environment: Mapping[str, str]) -> Config:
    """The configuration that the ORDERS_* variables make; others are not looked at. Raises ConfigError.

    Without ORDERS_DELAY_LEVELS the levels are RocketMQ's, with level 16 as long as the payment window.
    """
    values = read_environment(environment, Config.PREFIX, _PARSERS)
    if "payment_window_ms" in values and "delay_levels" not in values and values["payment_window_ms"] >= 1:
        values["delay_levels"] = default_delay_levels(values["payment_window_ms"])
    return Config(**values)


def _delay_levels(name: str, text: str) -> dict[str, Any]:
    try:
        return {"delay_levels": parse_delay_levels(text)}
    except ValueError as error:
        raise ConfigError(f"{name}={text!r}: {error}") from None


def _true_or_false(name: str) -> Parser:
    def parse(variable: str, text: str) -> dict[str, Any]:
        if text not in ("true", "false"):
            raise ConfigError(f"{variable}={text!r}: allowed are true and false")
        return {name: text == "true"}

    return parse


_PARSERS = {
    **RECONCILING_PARSERS,
    "PAYMENT_WINDOW_MS": whole_number("payment_window_ms"),
    "DELAY_LEVELS": _delay_levels,
    "COMPLETION_AFTER_MS": whole_number("completion_after_ms"),
    "HOLD_MS": whole_number("hold_ms"),
    "HOLD_PAST_EXPIRY_MS": whole_number("hold_past_expiry_ms"),
    "PAYMENTS_URL": as_text("payments_url"),
    "TRACE_URL": as_text("trace_url"),
    "SANDBOX_SIGN_IN": _true_or_false("sandbox_sign_in"),
    "SAMPLE_CATALOGUE": _true_or_false("sample_catalogue"),
    "TOKEN_COMMAND": lambda _name, text: {"token_command": text or None},
}
