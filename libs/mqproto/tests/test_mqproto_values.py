"""Dataclasses become messages, and messages dataclasses, by the names of their fields."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hourglass.mq.v1 import admin_service_pb2 as pb
from mqproto.values import to_message, to_value


@dataclass(frozen=True, slots=True)
class Known:
    """Some of the fields of a transaction."""

    transaction_id: str
    log_offset: int
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Renamed:
    """A field has another name than in the message."""

    transaction_id: str
    offset: int


def test_fields_of_one_name_are_copied_there_and_back() -> None:
    known = Known("t", 1 << 40, ("k", "l"))
    message = to_message(pb.TransactionInfo, known)
    assert message == pb.TransactionInfo(transaction_id="t", log_offset=1 << 40, keys=["k", "l"])
    assert to_value(Known, pb.TransactionInfo.FromString(message.SerializeToString())) == known


def test_what_is_given_comes_instead_of_the_field() -> None:
    assert to_message(pb.TransactionInfo, Known("t", 1), log_offset=2, topic="o").log_offset == 2
    message = pb.TransactionInfo(transaction_id="t", log_offset=7)
    assert to_value(Renamed, message, offset=message.log_offset) == Renamed("t", 7)


def test_none_leaves_a_field_unset() -> None:
    @dataclass
    class Group:
        broker_id: int | None

    assert not to_message(pb.SubscriptionGroupConfig, Group(None)).HasField("broker_id")
    assert to_message(pb.SubscriptionGroupConfig, Group(0)).HasField("broker_id")


def test_a_field_that_the_message_does_not_have_is_an_error_in_both_directions() -> None:
    sentence = "TransactionInfo has no field offset, which Renamed has; give it"
    with pytest.raises(TypeError, match=sentence):
        to_message(pb.TransactionInfo, Renamed("t", 7))
    with pytest.raises(TypeError, match=sentence):
        to_value(Renamed, pb.TransactionInfo())
