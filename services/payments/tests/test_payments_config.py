"""The configuration, and what is said about a wrong one."""

from __future__ import annotations

import pytest

from payments.config import Config, SandboxConfig, from_environment
from servicekit.config import ConfigError


def test_an_empty_environment_gives_the_defaults() -> None:
    assert from_environment({"PATH": "/bin", "ORDERS_LISTEN": "x"}) == Config()
    assert (Config().listen_host, Config().listen_port) == ("127.0.0.1", 8002)
    assert Config().database_url == "sqlite+aiosqlite:///payments.db"
    assert Config().gateway == SandboxConfig("gateway.db", None)


def test_every_key_is_read() -> None:
    config = from_environment(
        {
            "PAYMENTS_DATABASE_URL": "sqlite+aiosqlite:////tmp/p.db",
            "PAYMENTS_MQ_URL": "mq://a:1;b:2",
            "PAYMENTS_LISTEN": "0.0.0.0:0",
            "PAYMENTS_GATEWAY_URL": "sandbox:////tmp/g.db?declines_above_minor=1000000",
            "PAYMENTS_LOG_LEVEL": "debug",
        }
    )
    assert (config.listen_host, config.listen_port, config.log_level) == ("0.0.0.0", 0, "DEBUG")
    assert config.database_url.endswith("/tmp/p.db")
    assert config.mq_url == "mq://a:1;b:2"
    assert config.gateway == SandboxConfig("/tmp/g.db", 1_000_000)


def test_the_gateways_path_is_relative_without_a_fourth_slash() -> None:
    assert from_environment({"PAYMENTS_GATEWAY_URL": "sandbox:///data/g.db"}).gateway == SandboxConfig("data/g.db")


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("PAYMENTS_LISTNE", "x", "unknown configuration key PAYMENTS_LISTNE; did you mean PAYMENTS_LISTEN?"),
        ("PAYMENTS_QQQQQQQQQQQQQQQQ", "x", "known are PAYMENTS_DATABASE_URL"),
        ("PAYMENTS_LISTEN", "8002", "host:port"),
        ("PAYMENTS_DATABASE_URL", "sqlite:///x.db", "sqlite\\+aiosqlite:///"),
        ("PAYMENTS_MQ_URL", "127.0.0.1:9876", "mq://"),
        ("PAYMENTS_LOG_LEVEL", "LOUD", "allowed are DEBUG"),
        ("PAYMENTS_GATEWAY_URL", "https://bank.example", "PAYMENTS_GATEWAY_URL='https://bank.example': allowed is"),
        ("PAYMENTS_GATEWAY_URL", "sandbox://gateway.db", "sandbox:///<path of a file>"),
        ("PAYMENTS_GATEWAY_URL", "sandbox:///", "path of a file"),
        ("PAYMENTS_GATEWAY_URL", "sandbox:///:memory:", "path of a file"),
        ("PAYMENTS_GATEWAY_URL", "sandbox:///g.db?declines_above_minor=x", "whole number"),
        ("PAYMENTS_GATEWAY_URL", "sandbox:///g.db?declines_above_minor=", "whole number"),
        ("PAYMENTS_GATEWAY_URL", "sandbox:///g.db?declines_above_minor=-1", "whole number"),
        ("PAYMENTS_GATEWAY_URL", "sandbox:///g.db?declines_above_minor=1&declines_above_minor=2", "whole number"),
        ("PAYMENTS_GATEWAY_URL", f"sandbox:///g.db?declines_above_minor={'9' * 5000}", "whole number"),
        ("PAYMENTS_GATEWAY_URL", "sandbox:///g.db?declnies=1", "declines_above_minor"),
        ("PAYMENTS_GATEWAY_URL", "sandbox:///payments.db", "the gateway has its own"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused_by_name(name: str, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        from_environment({name: text})
