"""Variables with a prefix become a frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from servicekit.config import COMMON_PARSERS, ConfigError, ServiceConfig, as_text, read_environment, whole_number

PARSERS = {**COMMON_PARSERS, "CITY": as_text("city"), "DOORS": whole_number("doors")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ServiceConfig):
    PREFIX: ClassVar[str] = "SHOP_"

    database_url: str = "sqlite+aiosqlite:///shop.db"
    city: str = ""
    doors: int = 1

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        if self.doors < 1:
            raise self.error("DOORS", f"={self.doors}: at least 1 is allowed")


def read(**variables: str) -> Config:
    return Config(**read_environment(variables, Config.PREFIX, PARSERS))


def test_what_has_another_prefix_is_not_looked_at() -> None:
    assert read(PATH="/bin", SHOPX="1", shop_doors="2") == Config()


def test_every_variable_sets_its_field() -> None:
    config = read(
        SHOP_DATABASE_URL="sqlite+aiosqlite:////tmp/x.db",
        SHOP_MQ_URL="memory://shop",
        SHOP_LISTEN="[::1]:80",
        SHOP_LOG_LEVEL="debug",
        SHOP_CITY="Hangzhou",
        SHOP_DOORS="2",
    )
    assert (config.database_url, config.mq_url) == ("sqlite+aiosqlite:////tmp/x.db", "memory://shop")
    assert (config.listen_host, config.listen_port, config.log_level) == ("[::1]", 80, "DEBUG")
    assert (config.city, config.doors) == ("Hangzhou", 2)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("SHOP_DORS", "1", "unknown configuration key SHOP_DORS; did you mean SHOP_DOORS?"),
        ("SHOP_QQQQQQQ", "1", "known are SHOP_DATABASE_URL, SHOP_MQ_URL, SHOP_LISTEN, SHOP_LOG_LEVEL, SHOP_CITY"),
        ("SHOP_DOORS", "two", "SHOP_DOORS='two' is not a whole number"),
        ("SHOP_DOORS", "0", "SHOP_DOORS=0: at least 1"),
        ("SHOP_DATABASE_URL", "sqlite:///x", "SHOP_DATABASE_URL='sqlite:///x': allowed is sqlite"),
        ("SHOP_MQ_URL", "host", "SHOP_MQ_URL='host': allowed is a URL"),
        ("SHOP_LISTEN", "host", "SHOP_LISTEN='host': allowed is host:port"),
        ("SHOP_LISTEN", "host:65536", "SHOP_LISTEN=host:65536: allowed is host:port, port 0 to 65535"),
        ("SHOP_LOG_LEVEL", "loud", "SHOP_LOG_LEVEL='LOUD': allowed are DEBUG"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(name: str, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(**{name: text})
    assert complaint in str(refused.value)
