"""The configuration of the lottery: GIFT_LOTTERY_* variables, parsed once into one frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

PREFIX = "GIFT_LOTTERY_"
SECRET_LENGTH_MIN = 16


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the variable and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that can be set. Raises ConfigError when a value is not allowed."""

    secret: str  # whoever knows it knows who wins
    mq_url: str = "mq://127.0.0.1:9876"
    database: str = "gift-lottery.db"  # the path of an SQLite file
    one_in: int = 10
    gifts: int = 100  # for a database that is made; one that is there keeps its pot
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        if len(self.secret) < SECRET_LENGTH_MIN:
            raise ConfigError(
                f"{PREFIX}SECRET has {len(self.secret)} characters; at least {SECRET_LENGTH_MIN} are needed, such as"
                " those of: python -c 'import secrets; print(secrets.token_hex(16))'"
            )
        if self.one_in < 1 or self.gifts < 0:
            raise ConfigError(f"{PREFIX}ONE_IN={self.one_in}, {PREFIX}GIFTS={self.gifts}: at least 1 and 0 are allowed")


def from_environment(environment: Mapping[str, str]) -> Config:
    """The configuration that the GIFT_LOTTERY_* variables make; others are not looked at. Raises ConfigError."""
    known = {PREFIX + field.name.upper(): field.name for field in fields(Config)}
    values: dict[str, str | int] = {"secret": ""}
    for name, text in environment.items():
        if not name.startswith(PREFIX):
            continue
        if name not in known:
            raise ConfigError(f"unknown configuration key {name}; known are {', '.join(known)}")
        is_number = known[name] in {"one_in", "gifts"}
        if is_number and not (text.isascii() and text.isdigit()):
            raise ConfigError(f"{name}={text!r} is not a whole number")
        values[known[name]] = int(text) if is_number else text
    return Config(**values)  # type: ignore[arg-type]
