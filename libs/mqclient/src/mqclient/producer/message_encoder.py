"""From a Message to the text of its properties, or to a sentence about what is wrong with it (MISSION M2-M4, M7).

The hot path: a message costs one pass over its few fields, and the text of its properties is built once. What is
refused here is listed in docs/producer-errors.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from mqclient.errors import MessageRejectedError
from mqclient.message import (
    IllegalDelayError,
    Message,
    check_deliver_at,
    check_near_enough,
    checked_delay_ms,
    deliver_timestamp_ms,
)
from mqclient.producer.numbering import SEQUENCE_PROPERTY_BYTES_MAX
from mqproto.names import IllegalNameError, check_user_topic
from mqproto.properties import (
    DELAY,
    KEY_SEPARATOR,
    KEYS,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    RESERVED,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    WAIT,
)
from mqproto.record import BODY_BYTES_MAX, CRC_BYTES, RECORD_BYTES_MIN
from mqproto.record_limits import KEYS_MAX, PRODUCER_PROPERTIES_BYTES_MAX, TAG_BYTES_MAX

DELAY_LEVEL_MAX = 18  # MISSION D1: 18 levels
FLAG_MIN, FLAG_MAX = -(2**31), 2**31 - 1
TAG_ALTERNATIVE = "||"  # separates the tags of a subscription
TAG_ANY = "*"
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})
_PROPERTIES_BYTES_ALLOWED = PRODUCER_PROPERTIES_BYTES_MAX - CRC_BYTES - SEQUENCE_PROPERTY_BYTES_MAX


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


def check_message(message: Message, body_bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """The topic as a record has it.

    Raises MessageRejectedError unless topic, body, delay and flag are what the queue takes.
    """
    if not isinstance(message, Message):
        raise MessageRejectedError(f"send takes a Message, not {type(message).__name__}")
    topic = topic_bytes(message.topic)
    body = message.body
    if not isinstance(body, bytes):
        raise MessageRejectedError(
            f"the body has to be bytes, not {type(body).__name__}: encode it, as in json.dumps(body).encode()"
        )
    if not 0 < len(body) <= body_bytes_max:
        what = "is empty" if not body else f"has {len(body):,} bytes"
        raise MessageRejectedError(f"the body {what}; it takes 1 to {body_bytes_max:,} bytes")
    level = message.delay_level
    if type(level) is not int or not 0 <= level <= DELAY_LEVEL_MAX:
        raise MessageRejectedError(f"the delay level is {level!r}; allowed are 0 (at once) to {DELAY_LEVEL_MAX}")
    if message.delay_ms != 0 or type(message.delay_ms) is not int or message.deliver_at is not None:
        _check_time_to_wait(message)
    if type(message.flag) is not int or not FLAG_MIN <= message.flag <= FLAG_MAX:
        raise MessageRejectedError(f"the flag is {message.flag!r}; it has to be an integer of 32 bits")
    if message.wait_store_msg_ok is not True and message.wait_store_msg_ok is not False:
        raise MessageRejectedError(f"wait_store_msg_ok is {message.wait_store_msg_ok!r}; it has to be True or False")
    return topic


def waits(message: Message) -> bool:
    """Whether the checked message is to be delivered later, or may be: at a time that may have passed."""
    return message.delay_level > 0 or message.delay_ms > 0 or message.deliver_at is not None


def check_due_time(message: Message, now_ms: int) -> None:
    """Raises MessageRejectedError for a checked message that is to wait too long after `now_ms` (since 1970)."""
    if message.deliver_at is not None:
        try:
            check_near_enough(message.deliver_at, now_ms)
        except IllegalDelayError as error:
            raise MessageRejectedError(str(error)) from error


def _check_time_to_wait(message: Message) -> None:
    ways = {
        "delay_level": message.delay_level != 0,
        "delay_ms": message.delay_ms != 0,
        "deliver_at": message.deliver_at is not None,
    }
    if sum(ways.values()) > 1:
        given = " and ".join(name for name, is_given in ways.items() if is_given)
        raise MessageRejectedError(f"the message has {given}; it waits by one of {', '.join(ways)}")
    try:
        if message.deliver_at is None:
            checked_delay_ms(message.delay_ms)
        else:
            check_deliver_at(message.deliver_at)
    except IllegalDelayError as error:
        raise MessageRejectedError(str(error)) from error


def message_properties(message: Message, unique_id: str, queue_own: Mapping[str, str] = NO_PROPERTIES) -> str:
    """The text form of everything beside the body, with properties of the queue's own. Raises MessageRejectedError.

    It can be encoded as UTF-8, and has room for the number of the record.
    """
    text = f"{UNIQ_KEY}\x01{unique_id}\x02"
    count = 1
    if queue_own:
        text += "".join(f"{name}\x01{value}\x02" for name, value in queue_own.items())
        count += len(queue_own)
    tag: object = message.tag
    if tag is not None:
        if not isinstance(tag, str) or not _is_tag(tag):
            raise MessageRejectedError(_why_it_is_no_tag(tag))
        text += f"{TAGS}\x01{tag}\x02"
        count += 1
    if message.keys:
        text += f"{KEYS}\x01{_joined_keys(message.keys)}\x02"
        count += 1
    if message.delay_level:
        text += f"{DELAY}\x01{message.delay_level}\x02"
        count += 1
    elif message.delay_ms:
        text += f"{TIMER_DELAY_MS}\x01{message.delay_ms}\x02"
        count += 1
    elif message.deliver_at is not None:
        text += f"{TIMER_DELIVER_MS}\x01{deliver_timestamp_ms(message.deliver_at)}\x02"
        count += 1
    if not message.wait_store_msg_ok:
        text += f"{WAIT}\x01false\x02"
        count += 1
    if message.properties:
        text += _user_properties(message.properties)
        count += len(message.properties)
    # One count finds a separator in any of the values; only then is it worth asking in which.
    if text.count(NAME_VALUE_SEPARATOR) != count or text.count(PROPERTY_SEPARATOR) != count:
        raise MessageRejectedError(_where_a_separator_is(message))
    size = len(text) if text.isascii() else _bytes_of(text)
    if size > _PROPERTIES_BYTES_ALLOWED:
        raise MessageRejectedError(
            f"tag, keys and properties take {size:,} bytes; at most {_PROPERTIES_BYTES_ALLOWED:,} are allowed; "
            "move large values into the body"
        )
    return text


def with_properties(text: str, properties: Mapping[str, str]) -> str:
    """The properties of a checked message with these added, which are text on the wire as they are; if they fit."""
    longer = text + "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return longer if (len(longer) if longer.isascii() else _bytes_of(longer)) <= _PROPERTIES_BYTES_ALLOWED else text


def record_bytes_max(message: Message, properties: str) -> int:
    """How large the record of a checked message with these properties can become."""
    return (
        RECORD_BYTES_MIN + len(message.topic) + len(message.body) + _bytes_of(properties) + SEQUENCE_PROPERTY_BYTES_MAX
    )


def _bytes_of(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise MessageRejectedError(f"properties have to be text that UTF-8 can hold: {error.reason}") from error


@lru_cache(maxsize=4_096)
def _is_tag(text: str) -> bool:
    return (
        text not in {"", TAG_ANY}
        and TAG_ALTERNATIVE not in text
        and text == text.strip()
        and len(text.encode(errors="surrogatepass")) <= TAG_BYTES_MAX
    )


def _why_it_is_no_tag(tag: object) -> str:
    if isinstance(tag, str) and (size := len(tag.encode(errors="surrogatepass"))) > TAG_BYTES_MAX:
        return f"the tag takes {size:,} bytes; at most {TAG_BYTES_MAX} are allowed"
    return (
        f"the tag {tag!r} cannot be subscribed to; it has to be text, not empty, not {TAG_ANY!r}, "
        f"without {TAG_ALTERNATIVE!r} and without space around it"
    )


def _joined_keys(keys: object) -> str:
    if isinstance(keys, str) and KEY_SEPARATOR not in keys:
        return keys
    if not isinstance(keys, (str, Sequence)):
        raise MessageRejectedError(f"keys have to be one text or a sequence of texts, not {type(keys).__name__}")
    listed = (keys,) if isinstance(keys, str) else keys
    for key in listed:
        if not isinstance(key, str) or not key or KEY_SEPARATOR in key:
            raise MessageRejectedError(f"the key {key!r} has to be text, not empty and without a space")
    if len(listed) > KEYS_MAX:
        raise MessageRejectedError(f"the message has {len(listed):,} keys; at most {KEYS_MAX} are allowed")
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
