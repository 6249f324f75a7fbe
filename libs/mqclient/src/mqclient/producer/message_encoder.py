"""From a Message to the parts of its record, or to a sentence about what is wrong with it (MISSION M2, M3, M4, M7).

The hot path: a message costs one pass over its few fields, and the text of its properties is built once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from mqclient.errors import MessageRejectedError
from mqclient.message import Message
from mqproto.names import IllegalNameError, check_user_topic
from mqproto.properties import (
    DELAY,
    KEY_SEPARATOR,
    KEYS,
    NAME_VALUE_SEPARATOR,
    PROPERTIES_BYTES_MAX,
    PROPERTY_SEPARATOR,
    RESERVED,
    TAGS,
    UNIQ_KEY,
)
from mqproto.record import BODY_BYTES_MAX, CRC_BYTES

DELAY_LEVEL_MAX = 18  # MISSION D1: 18 levels
FLAG_MIN, FLAG_MAX = -(2**31), 2**31 - 1
TAG_ALTERNATIVE = "||"  # separates the tags of a subscription
TAG_ANY = "*"
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})
_PROPERTIES_BYTES_ALLOWED = PROPERTIES_BYTES_MAX - CRC_BYTES


@lru_cache(maxsize=4_096)
def topic_bytes(topic: str) -> bytes:
    """The topic as a record has it. Raises MessageRejectedError unless users may send to it."""
    if not isinstance(topic, str):
        raise MessageRejectedError(f"the topic has to be text, not {type(topic).__name__}")
    try:
        check_user_topic(topic)
    except IllegalNameError as error:
        raise MessageRejectedError(str(error)) from error
    return topic.encode()


def check_message(message: Message) -> None:
    """Raise MessageRejectedError unless topic, body, delay level and flag are what the queue takes."""
    if not isinstance(message, Message):
        raise MessageRejectedError(f"send takes a Message, not {type(message).__name__}")
    topic_bytes(message.topic)
    body = message.body
    if not isinstance(body, bytes):
        raise MessageRejectedError(f"the body has to be bytes, not {type(body).__name__}")
    if not 0 < len(body) <= BODY_BYTES_MAX:
        what = "is empty" if not body else f"has {len(body):,} bytes"
        raise MessageRejectedError(f"the body {what}; it takes 1 to {BODY_BYTES_MAX:,} bytes")
    level = message.delay_level
    if type(level) is not int or not 0 <= level <= DELAY_LEVEL_MAX:
        raise MessageRejectedError(f"the delay level is {level!r}; allowed are 0 (at once) to {DELAY_LEVEL_MAX}")
    if type(message.flag) is not int or not FLAG_MIN <= message.flag <= FLAG_MAX:
        raise MessageRejectedError(f"the flag is {message.flag!r}; it has to be an integer of 32 bits")


def message_properties(message: Message, unique_id: str, queue_own: Mapping[str, str] = NO_PROPERTIES) -> bytes:
    """The text form of everything beside the body, with properties of the queue's own. Raises MessageRejectedError."""
    text = f"{UNIQ_KEY}\x01{unique_id}\x02"
    count = 1
    for name, value in queue_own.items():
        text += f"{name}\x01{value}\x02"
        count += 1
    if message.tag is not None:
        text += f"{TAGS}\x01{_checked_tag(message.tag)}\x02"
        count += 1
    if message.keys:
        text += f"{KEYS}\x01{_joined_keys(message.keys)}\x02"
        count += 1
    if message.delay_level:
        text += f"{DELAY}\x01{message.delay_level}\x02"
        count += 1
    if message.properties:
        text += _user_properties(message.properties)
        count += len(message.properties)
    # One count finds a separator in any of the values; only then is it worth asking in which.
    if text.count(NAME_VALUE_SEPARATOR) != count or text.count(PROPERTY_SEPARATOR) != count:
        raise MessageRejectedError(_where_a_separator_is(message))
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise MessageRejectedError(f"properties have to be text that UTF-8 can hold: {error.reason}") from error
    if len(data) > _PROPERTIES_BYTES_ALLOWED:
        raise MessageRejectedError(
            f"tag, keys and properties take {len(data):,} bytes; at most {_PROPERTIES_BYTES_ALLOWED:,} are allowed"
        )
    return data


def _checked_tag(tag: object) -> str:
    if not isinstance(tag, str) or not tag or tag == TAG_ANY or TAG_ALTERNATIVE in tag or tag != tag.strip():
        raise MessageRejectedError(
            f"the tag {tag!r} cannot be subscribed to; it has to be text, not empty, not {TAG_ANY!r}, "
            f"without {TAG_ALTERNATIVE!r} and without space around it"
        )
    return tag


def _joined_keys(keys: object) -> str:
    if not isinstance(keys, (str, Sequence)):
        raise MessageRejectedError(f"keys have to be one text or a sequence of texts, not {type(keys).__name__}")
    listed = (keys,) if isinstance(keys, str) else keys
    for key in listed:
        if not isinstance(key, str) or not key or KEY_SEPARATOR in key:
            raise MessageRejectedError(f"the key {key!r} has to be text, not empty and without a space")
    return KEY_SEPARATOR.join(listed)


def _user_properties(properties: Mapping[Any, Any]) -> str:
    parts = []
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name:
            raise MessageRejectedError(f"the property {name!r}: {value!r} has to have a name and be text")
        if name in RESERVED:
            raise MessageRejectedError(f"the property {name!r} belongs to the queue; choose another name")
        parts.append(f"{name}\x01{value}\x02")
    return "".join(parts)


def _where_a_separator_is(message: Message) -> str:
    keys = message.keys if isinstance(message.keys, str) else KEY_SEPARATOR.join(message.keys)
    fields = {"tag": message.tag or "", "keys": keys}
    for name, value in (message.properties or {}).items():
        fields[f"property {name!r}"] = name + value
    bad = [name for name, text in fields.items() if NAME_VALUE_SEPARATOR in text or PROPERTY_SEPARATOR in text]
    return f"\\x01 and \\x02 are not allowed in names and values, they separate them on the wire: {', '.join(bad)}"
