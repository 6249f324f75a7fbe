"""The bytes of offsets.json, as RocketMQ's LocalFileOffsetStore writes and reads them (MISSION C2).

It is not quite JSON: the keys of the table are objects.

    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"prices"}:17},"crc32":"0f3a9c51"}

`crc32` is this project's, the last field, over everything before it: a digit that the disk has changed is noticed.
RocketMQ passes over fields that it does not know; a file without it comes from there.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping

from mqclient.message import MessageQueue

TABLE_HEAD, TABLE_END, FILE_END = '{"offsetTable":{', "}", "}\n"
CRC_FIELD = ',"crc32":"'

_decoder = json.JSONDecoder()


def encode_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """The file's content."""
    entries = (f"{_key(queue)}:{offsets[queue]}" for queue in sorted(offsets))
    table = TABLE_HEAD + ",\n".join(entries) + TABLE_END
    return f'{table}{CRC_FIELD}{zlib.crc32(table.encode()):08x}"{FILE_END}'.encode()


def decode_offsets(content: bytes) -> dict[MessageQueue, int]:
    """The inverse, for RocketMQ's files as well. Raises ValueError when the content is damaged."""
    text = content.decode()
    table, found, tail = text.rpartition(CRC_FIELD)
    if not found:
        table = text.rstrip().removesuffix("}")  # RocketMQ's
    elif tail != f'{zlib.crc32(table.encode()):08x}"{FILE_END}':
        raise ValueError("the CRC does not match")
    return dict(_entries(_Reader(table)))


def _key(queue: MessageQueue) -> str:
    fields = {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
    return json.dumps(fields, separators=(",", ":"))


class _Reader:
    """The text from left to right; spaces between two tokens do not count."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def skip(self, token: str) -> bool:
        """Whether the token comes next; then what follows it does."""
        self._pass_spaces()
        if not self._text.startswith(token, self._at):
            return False
        self._at += len(token)
        return True

    def expect(self, token: str) -> None:
        if not self.skip(token):
            raise ValueError(f"{token!r} is missing at character {self._at}")

    def value(self) -> object:
        self._pass_spaces()
        try:
            value, self._at = _decoder.raw_decode(self._text, self._at)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        return value

    def expect_end(self) -> None:
        self._pass_spaces()
        if self._at != len(self._text):
            raise ValueError(f"something follows the table at character {self._at}")

    def _pass_spaces(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1


def _entries(reader: _Reader) -> Iterator[tuple[MessageQueue, int]]:
    for token in ("{", '"offsetTable"', ":", "{"):
        reader.expect(token)
    if not reader.skip("}"):
        while True:
            queue = _queue(reader.value())
            reader.expect(":")
            offset = reader.value()
            if type(offset) is not int or offset < 0:
                raise ValueError(f"the offset of {queue} is {offset!r}")
            yield queue, offset
            if not reader.skip(","):
                break
        reader.expect("}")
    reader.expect_end()


def _queue(key: object) -> MessageQueue:
    match key:
        case {"topic": str(topic), "brokerName": str(broker_name), "queueId": int(queue_id)}:
            return MessageQueue(topic, broker_name, queue_id)
    raise ValueError(f"{key!r} names no queue")
