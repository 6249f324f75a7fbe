"""The names at the top of mqclient: few enough to read, and those that stood there before still work for a version."""

from __future__ import annotations

import importlib
import warnings

import pytest

import mqclient
from mqclient import admin

NAMES_MAX = 75


def test_the_top_shows_what_applications_need() -> None:
    assert len(mqclient.__all__) <= NAMES_MAX
    assert sorted(mqclient.__all__) == sorted(set(mqclient.__all__))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [name for name in mqclient.__all__ if not hasattr(mqclient, name)] == []


@pytest.mark.parametrize(
    ("name", "module", "current"),
    [
        ("TopicConfig", "mqclient.admin", "TopicConfig"),
        ("NumberedProducer", "mqclient.producer.idempotent_producer", "IdempotentProducer"),
        ("NumberedMessage", "mqclient.producer.idempotent_producer", "SequencedMessage"),
        ("StoredMessage", "mqclient.producer.idempotent_producer", "StoredMessage"),
        ("BrokerRefusedError", "mqclient.errors", "BrokerUnavailableError"),
        ("MachineRoomResolver", "mqclient.consumer.rebalance", "MachineRoomResolver"),
    ],
)
def test_a_name_that_has_moved_says_where_it_is_now(name: str, module: str, current: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"mqclient\.{name} is {module}\.{current} now"):
        moved = getattr(mqclient, name)
    assert moved is getattr(importlib.import_module(module), current)


def test_every_operator_s_name_is_found_at_its_old_place_too() -> None:
    with pytest.warns(DeprecationWarning, match=" now"):
        assert [name for name in admin.__all__ if getattr(mqclient, name) is not getattr(admin, name)] == []


def test_an_unknown_name_is_rejected() -> None:
    with pytest.raises(AttributeError, match="module 'mqclient' has no attribute 'Nothing'"):
        _ = mqclient.Nothing
