"""What is sent for a dead letter: the letter once more, an edited one, and the marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mqclient.admin.dead_letter import DeadLetter, DeadLetterState
from mqclient.admin.dead_letter_marks import MARK_TAG, mark_value
from mqclient.errors import IllegalArgumentError, MessageRejectedError
from mqclient.message import Message
from mqclient.producer.outgoing import Origin, OutgoingBatch, OutgoingOfOperator
from mqproto.names import dlq_topic, retry_topic
from mqproto.properties import DEAD_LETTER_EDIT, DEAD_LETTER_MARK, ORIGIN_MESSAGE_ID, PGROUP, RESERVED, RETRY_TOPIC


class LetterWithMark(OutgoingBatch):
    """An edited letter, and behind it the mark of the one that it replaces: stored together."""

    __slots__ = ()

    def __init__(self, letter: OutgoingOfOperator, marking: OutgoingOfOperator, origin: Origin) -> None:
        super().__init__([letter.message, marking.message], origin)
        self._parts = [letter, marking]


def copy_for_group(letter: DeadLetter, origin: Origin) -> OutgoingOfOperator:
    """The letter as a message that comes back to its group, for the first try."""
    return _again(letter, _message(letter, retry_topic(letter.group)), origin, (RETRY_TOPIC, ORIGIN_MESSAGE_ID, PGROUP))


def copy_for_topic(letter: DeadLetter, origin: Origin) -> OutgoingOfOperator:
    """The letter as it was sent first. Raises MessageRejectedError when it does not say to which topic."""
    if not letter.topic:
        raise MessageRejectedError(
            f"the dead letter {letter.message.message_id} does not say its topic ({RETRY_TOPIC})"
        )
    return _again(letter, _message(letter, letter.topic), origin, (PGROUP,))


def edited(
    letter: DeadLetter,
    origin: Origin,
    *,
    body: bytes | None,
    tag: str | None,
    keys: Sequence[str] | None,
    properties: Mapping[str, str] | None,
    removed: Sequence[str],
) -> LetterWithMark:
    """The changed letter; arguments and errors are those of `edit_dead_letter`."""
    added = properties or {}
    if body is None and tag is None and keys is None and not added and not removed:
        raise IllegalArgumentError("nothing is to be changed: name a body, a tag, keys or properties")
    for name in (*added, *removed):
        if name in RESERVED:
            raise IllegalArgumentError(f"the property {name!r} belongs to the queue and cannot be edited")
    for name in removed:
        if name not in letter.user_properties:
            known = ", ".join(sorted(letter.user_properties)) or "none"
            raise IllegalArgumentError(f"the dead letter has no property {name!r} to remove; it has: {known}")
    kept = {name: value for name, value in letter.user_properties.items() if name not in removed}
    message = _message(letter, dlq_topic(letter.group))
    message.body = message.body if body is None else body
    message.tag = message.tag if tag is None else tag or None
    message.keys = message.keys if keys is None else keys
    message.properties = kept | dict(added)
    changed = _again(
        letter,
        message,
        origin,
        (RETRY_TOPIC, ORIGIN_MESSAGE_ID, PGROUP),
        own={DEAD_LETTER_EDIT: str(letter.message.queue_offset)},
        reconsume_times=letter.message.reconsume_times,
    )
    return LetterWithMark(changed, mark(letter, DeadLetterState.SUPERSEDED, "edited", origin), origin)


def mark(letter: DeadLetter, state: DeadLetterState, sentence: str, origin: Origin) -> OutgoingOfOperator:
    """What says for good that this was done with the letter."""
    message = Message(dlq_topic(letter.group), sentence.encode(), tag=MARK_TAG)
    return OutgoingOfOperator(message, origin, {DEAD_LETTER_MARK: mark_value(state, letter.message.queue_offset)})


def _message(letter: DeadLetter, topic: str) -> Message:
    """What the application has made of the letter, for a topic."""
    message = letter.message
    return Message(
        topic,
        message.body,
        tag=message.tag,
        keys=[key for key in message.keys if key],
        properties=letter.user_properties,
        flag=message.flag,
    )


def _again(
    letter: DeadLetter,
    message: Message,
    origin: Origin,
    kept: Sequence[str],
    *,
    own: Mapping[str, str] | None = None,
    reconsume_times: int = 0,
) -> OutgoingOfOperator:
    """The message with those of the letter's own properties that are `kept`, and with others."""
    known = letter.message.properties
    queue_own = {name: known[name] for name in kept if name in known} | dict(own or {})
    return OutgoingOfOperator(message, origin, queue_own, again=letter.message, reconsume_times=reconsume_times)
