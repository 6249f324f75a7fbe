"""Settings of a producer: RocketMQ's names and defaults, and what is rejected."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from mqclient import IllegalArgumentError, Message, MessageRejectedError, Producer, ProducerConfig, RequestTimeoutError
from mqclient.testing import FakeCluster


def test_the_defaults_are_rocketmqs() -> None:
    assert dataclasses.asdict(ProducerConfig()) == {
        "send_msg_timeout_s": 3.0,
        "send_msg_max_timeout_per_request_s": None,
        "retry_times_when_send_failed": 2,
        "retry_times_when_send_async_failed": 2,
        "retry_another_broker_when_not_store_ok": False,
        "send_latency_fault_enable": False,
        "compress_msg_body_over_howmuch": 4_096,
        "compress_level": 5,
        "max_message_size": 4 * 1024 * 1024,
        "client_async_semaphore_value": 65_535,
        "client_oneway_semaphore_value": 65_535,
        "back_pressure_for_async_send_size": 100 * 1024 * 1024,
        "client_callback_executor_threads": 4,
    }


BAD_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"send_msg_timeout_s": 0}, "send_msg_timeout_s has to be a number above 0, not 0"),
    ({"send_msg_timeout_s": True}, "above 0, not True"),
    ({"send_msg_timeout_s": float("nan")}, "above 0, not nan"),
    ({"send_msg_max_timeout_per_request_s": -1.0}, "send_msg_max_timeout_per_request_s has to be"),
    ({"retry_times_when_send_failed": -1}, "an integer, 0 or more, not -1"),
    ({"retry_times_when_send_failed": 1.5}, "an integer, 0 or more, not 1.5"),
    ({"retry_times_when_send_async_failed": "2"}, "retry_times_when_send_async_failed has to be"),
    ({"retry_another_broker_when_not_store_ok": 1}, "has to be True or False, not 1"),
    ({"send_latency_fault_enable": "yes"}, "send_latency_fault_enable has to be True or False"),
    ({"compress_msg_body_over_howmuch": 0}, "an integer, 1 or more, not 0"),
    ({"compress_level": 10}, "an integer, 1 to 9, not 10"),
    ({"max_message_size": 4 * 1024 * 1024 + 1}, "an integer, 1 to 4,194,304, not 4194305"),
    ({"back_pressure_for_async_send_size": 1_000}, "back_pressure_for_async_send_size has to be an integer, 4,194,304"),
    ({"client_async_semaphore_value": 0}, "client_async_semaphore_value has to be"),
    ({"client_oneway_semaphore_value": True}, "client_oneway_semaphore_value has to be"),
    ({"client_callback_executor_threads": 0}, "client_callback_executor_threads has to be"),
]


@pytest.mark.parametrize(("settings", "reason"), BAD_SETTINGS, ids=lambda value: next(iter(value), ""))
def test_a_senseless_setting_is_rejected(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(IllegalArgumentError, match=reason):
        ProducerConfig(**settings)


async def test_the_timeout_of_the_configuration_counts_unless_the_call_has_its_own() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    config = ProducerConfig(send_msg_timeout_s=1.0)
    async with Producer("shop", cluster.url, producer_config=config) as producer:
        default = asyncio.create_task(producer.send(Message("orders", b"x")))
        own = asyncio.create_task(producer.send(Message("orders", b"y"), timeout=2.0))
        await cluster.clock.advance(1.1)
        assert isinstance(default.exception(), RequestTimeoutError)
        assert not own.done()
        await cluster.clock.advance(1.0)
        assert isinstance(own.exception(), RequestTimeoutError)


async def test_a_smaller_maximum_of_the_message_size_is_held_before_compression() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    config = ProducerConfig(max_message_size=5_000, back_pressure_for_async_send_size=5_000)
    async with Producer("shop", cluster.url, producer_config=config) as producer:
        await producer.send(Message("orders", bytes(5_000)))
        with pytest.raises(MessageRejectedError, match="has 5,001 bytes; it takes 1 to 5,000"):
            await producer.send(Message("orders", bytes(5_001)))
    assert len(broker.bodies) == 1
