"""Large batches made smaller (MISSION P15: a batch is best below 1 MB)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mqclient.errors import IllegalArgumentError, MessageRejectedError
from mqclient.message import UNIQUE_ID_CHARACTERS, Message
from mqclient.producer.message_encoder import check_message, message_properties, record_bytes_max

BATCH_BYTES = 1024 * 1024
BATCH_BYTES_MAX = 4 * 1024 * 1024
_ANY_UNIQUE_ID = "0" * UNIQUE_ID_CHARACTERS


class MessageBatchSplitter:
    """The messages, in their order, as lists that `Producer.send_batch` takes.

    for batch in MessageBatchSplitter(messages):
        await producer.send_batch(batch)

    Raises IllegalArgumentError for a size that no batch may have, and MessageRejectedError when it meets a message that
    breaks a rule or is alone larger than `max_bytes`; the lists before it have been given out then.
    """

    def __init__(self, messages: Iterable[Message], max_bytes: int = BATCH_BYTES) -> None:
        if not 0 < max_bytes <= BATCH_BYTES_MAX:
            raise IllegalArgumentError(f"max_bytes is {max_bytes!r}; it has to be 1 to {BATCH_BYTES_MAX:,}")
        self._messages = messages
        self._max_bytes = max_bytes

    def __iter__(self) -> Iterator[list[Message]]:
        batch: list[Message] = []
        left = self._max_bytes
        for number, message in enumerate(self._messages):
            check_message(message)
            size = record_bytes_max(message, message_properties(message, _ANY_UNIQUE_ID))
            if size > self._max_bytes:
                raise MessageRejectedError(
                    f"message {number} takes {size:,} bytes; a batch may have {self._max_bytes:,}, so send it alone"
                )
            if size > left:
                yield batch
                batch, left = [], self._max_bytes
            batch.append(message)
            left -= size
        if batch:
            yield batch
