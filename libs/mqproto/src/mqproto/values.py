"""Between protobuf messages and dataclasses: fields of one name are copied, and the caller gives those that differ.

    to_message(pb.QueueStats, stats)
    to_value(QueueStats, message, queue=MessageQueue(topic, broker_name, message.queue_id))

Each field of the dataclass is either a field of the message or given: a field that only one side was renamed in raises
TypeError at the first conversion, and is not left out.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from google.protobuf.message import Message

MessageT = TypeVar("MessageT", bound=Message)
ValueT = TypeVar("ValueT")


def to_message(message_type: type[MessageT], value: Any, **given: Any) -> MessageT:
    """The message with the fields of the dataclass `value`; None leaves a field unset."""
    kinds: Any = (type(value), message_type)
    names = _copied(*kinds, frozenset(given))
    return message_type(**{name: getattr(value, name) for name in names}, **given)


def to_value(value_type: type[ValueT], message: Message, **given: Any) -> ValueT:
    """The dataclass with the fields of the message; a repeated field that is not given becomes a tuple."""
    kinds: Any = (value_type, type(message))
    names = _copied(*kinds, frozenset(given))
    return value_type(**{name: _plain(getattr(message, name)) for name in names}, **given)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bytes)) else tuple(value)


@cache
def _copied(value_type: Any, message_type: type[Message], given: frozenset[str]) -> tuple[str, ...]:
    names = tuple(field.name for field in fields(value_type) if field.name not in given)
    unknown = [name for name in names if name not in message_type.DESCRIPTOR.fields_by_name]
    if unknown:
        message = message_type.DESCRIPTOR.name
        raise TypeError(f"{message} has no field {', '.join(unknown)}, which {value_type.__name__} has; give it")
    return names
