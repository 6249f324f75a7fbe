"""The operator's calls about dead letters: found, edited, replayed.

Invariants: the log is never rewritten, so an edited letter is a new one that names the one it replaces; a letter is
marked as replayed after it was sent again and not before, so that a crash between both has it replayed once more rather
than never; a replay looks at the marks just before; no more than a page of each queue is kept at a time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence

from mqclient.admin.dead_letter import (
    MARK_TAG,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterMark,
    DeadLetterState,
    MarkedLetters,
    ReplayTarget,
    is_mark,
    mark_of,
    mark_value,
)
from mqclient.admin.groups import GroupAdmin
from mqclient.admin.messages import MessageAdmin
from mqclient.admin.topics import TopicAdmin
from mqclient.config import ClientConfig, ProducerConfig
from mqclient.errors import (
    IllegalArgumentError,
    IllegalStateError,
    MessageRejectedError,
    MQClientError,
    NoRouteError,
    OutcomeUnknownError,
)
from mqclient.lifecycle import finish_despite_cancellation
from mqclient.message import Message, MessageQueue, SendResult
from mqclient.name_servers import TopicRoute
from mqclient.producer.prepared import OperatorMessage, Origin, PreparedBatch, PreparedMessage
from mqclient.producer.sender import Sender, always
from mqproto.names import dlq_topic, retry_topic
from mqproto.properties import DEAD_LETTER_EDIT, DEAD_LETTER_MARK, ORIGIN_MESSAGE_ID, PGROUP, RESERVED, RETRY_TOPIC
from mqproto.record import pack_ip

PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"  # RocketMQ's name for what a client sends of its own accord
SENDING = ProducerConfig()

OPEN_LETTERS = DeadLetterFilter()


class DeadLetterAdmin(TopicAdmin, GroupAdmin, MessageAdmin):
    """Calls about dead letters."""

    def __init__(self, url: str, *, client_config: ClientConfig | None = None) -> None:
        super().__init__(url, client_config=client_config)
        self._marked: dict[MessageQueue, MarkedLetters] = {}

    async def dead_letters(
        self, group: str, wanted: DeadLetterFilter = OPEN_LETTERS
    ) -> AsyncGenerator[DeadLetter, None]:
        """The dead letters of the group that are `wanted`, those that are dead for longest first, over all brokers.

        Those that are there when it begins: what dies later is not among them. Raises NoRouteError,
        IllegalArgumentError for the tags, NO_PERMISSION as a rejection when the topic may not be read (updateTopicPerm
        changes that), and UnreadableBodyError where a body has to be looked at.
        """
        queues = [self._letters_of(group, queue, wanted) for queue in await self._dead_letter_queues(group)]
        heads = {index: letter for index, letters in enumerate(queues) if (letter := await anext(letters, None))}
        while heads:
            index = min(heads, key=lambda one: heads[one].dead_since_ms)
            yield heads[index]
            following = await anext(queues[index], None)
            if following is None:
                del heads[index]
            else:
                heads[index] = following

    async def dead_letter_marks(self, letter: DeadLetter) -> list[DeadLetterMark]:
        """What was done with the letter, by time. Raises NoRouteError, and the broker's rejection."""
        message = letter.message
        found = [
            mark_of(marking)
            async for marking in self.read_queue(
                message.message_queue, offset=message.queue_offset + 1, expression=MARK_TAG
            )
        ]
        return [one for one in found if one is not None and one.queue_offset == message.queue_offset]

    async def replay_dead_letter(
        self, letter: DeadLetter, *, target: ReplayTarget = ReplayTarget.GROUP, again: bool = False
    ) -> SendResult:
        """Send the letter again, its tries counted from 0, and mark it as replayed. It keeps its unique id.

        To its group alone, on the broker where it is dead; its listeners see the topic that it was sent to first. Or to
        that topic, for every group that reads it. Once begun it is ended, also when the caller is cancelled.

        Raises IllegalStateError for a letter that was replayed or edited already, unless it is to be sent `again`; what
        `Producer.send` raises when it was not sent, or may have been; and OutcomeUnknownError when it was sent and
        could not be marked.
        """
        if not again:
            await self._require_open(letter)
        return await finish_despite_cancellation(self._send_and_mark(letter, target))

    async def edit_dead_letter(
        self,
        letter: DeadLetter,
        *,
        body: bytes | None = None,
        tag: str | None = None,
        keys: Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        removed_properties: Sequence[str] = (),
    ) -> SendResult:
        """Store a changed letter that takes the place of this one, and say where.

        What is None stays; an empty `tag` takes the tag away; `properties` are added to the application's, or replace
        them. The new letter and the mark of the one that it replaces are stored together. Raises IllegalArgumentError
        and MessageRejectedError for a change that cannot be, IllegalStateError for a letter that was replayed or edited
        already, and what `Producer.send_batch` raises.
        """
        changed = edited(
            letter, self._origin(), body=body, tag=tag, keys=keys, properties=properties, removed=removed_properties
        )
        await self._require_open(letter)
        both = await self._deliver(changed, letter.message.message_queue)
        return SendResult(
            both.send_status,
            letter.message.message_id,
            both.message_queue,
            both.queue_offset,
            both.log_offset,
            both.broker_address,
        )

    # ---------------------------------------------------------------------------------------------------- inside

    async def _dead_letter_queues(self, group: str) -> list[MessageQueue]:
        """Also those that may not be read: their brokers say so when they are asked. Empty when nothing has died."""
        self._lifecycle.require_running()
        topic = dlq_topic(group)
        route = await self._instance.name_servers.query_route(topic)
        if route is None:
            return []
        return [
            MessageQueue(topic, queues.broker_name, queue_id)
            for queues in route.queues
            for queue_id in range(queues.read_queue_count)
        ]

    async def _letters_of(
        self, group: str, queue: MessageQueue, wanted: DeadLetterFilter
    ) -> AsyncGenerator[DeadLetter, None]:
        marked = await self._caught_up(queue)
        async for message in self.read_queue(
            queue, begin_ms=wanted.begin_ms, end_ms=wanted.end_ms, expression=wanted.expression
        ):
            letter = DeadLetter(group, message, marked.state_at(message.queue_offset))
            if not is_mark(message) and wanted.matches(letter):
                yield letter

    async def _caught_up(self, queue: MessageQueue) -> MarkedLetters:
        marked = self._marked.setdefault(queue, MarkedLetters(queue))
        await marked.catch_up(self)
        return marked

    async def _require_open(self, letter: DeadLetter) -> None:
        """Raises IllegalStateError when the letter has a mark by now."""
        marked = await self._caught_up(letter.message.message_queue)
        state = marked.state_at(letter.message.queue_offset)
        if state is not DeadLetterState.OPEN:
            raise IllegalStateError(f"the dead letter {letter.message.message_id} is {state.value} already")

    async def _send_and_mark(self, letter: DeadLetter, target: ReplayTarget) -> SendResult:
        origin = self._origin()
        if target is ReplayTarget.TOPIC:
            sent = await self._deliver(copy_for_topic(letter, origin))
        else:
            sent = await self._deliver(copy_for_group(letter, origin), await self._retry_queue(letter))
        sentence = f"sent to {sent.message_queue} offset {sent.queue_offset}"
        try:
            marking = mark(letter, DeadLetterState.REPLAYED, sentence, origin)
            await self._deliver(marking, letter.message.message_queue)
        except MQClientError as error:
            raise OutcomeUnknownError(
                f"the dead letter {letter.message.message_id} was {sentence}, and could not be marked as replayed, so "
                f"that it may still look as if it were not replayed: {error}"
            ) from error
        return sent

    async def _retry_queue(self, letter: DeadLetter) -> MessageQueue:
        """A queue of the group's retry topic on the letter's broker, made if need be. Raises MQClientError."""
        topic, broker_name = retry_topic(letter.group), letter.message.broker_name
        routes = self._instance.routes
        queues = _queues_on(broker_name, await routes.subscribe_route(topic))
        if not queues:
            queues = _queues_on(broker_name, await routes.refresh(topic))
        if not queues:
            await self._make_retry_topic(letter.group, broker_name)
            queues = _queues_on(broker_name, await routes.refresh(topic))
        if not queues:
            raise NoRouteError(f"no queue of the topic {topic!r} on {broker_name} can be written")
        return queues[letter.message.queue_offset % len(queues)]

    async def _make_retry_topic(self, group: str, broker_name: str) -> None:
        """With as many queues as a message that comes back to the group would make."""
        address = (await self._target_named(broker_name)).address
        counts = {config.group: config.retry_queue_count for config in await self.subscription_groups(address)}
        count = max(1, counts.get(group, 1))
        await self.update_topic(
            retry_topic(group), read_queue_count=count, write_queue_count=count, broker_address=address
        )

    def _origin(self) -> Origin:
        self._lifecycle.require_running()
        instance = self._instance
        return Origin(
            PRODUCER_GROUP,
            instance.unique_ids,
            instance.clock,
            pack_ip(instance.local_ip),
            SENDING.max_message_size,
        )

    async def _deliver(
        self, outgoing: PreparedMessage | PreparedBatch, queue: MessageQueue | None = None
    ) -> SendResult:
        """Store it in this queue, or in any of its topic. Raises as `Producer.send`."""
        sender = Sender(PRODUCER_GROUP, self._instance, SENDING, lambda: self._lifecycle.running)
        try:
            deadline = self._instance.clock.monotonic() + SENDING.send_msg_timeout_s
            fixed = always(queue) if queue is not None else None
            return await sender.deliver(outgoing, deadline, sender.sync_tries, fixed)
        finally:
            sender.close()


class LetterWithMark(PreparedBatch):
    """An edited letter, and behind it the mark of the one that it replaces: stored together."""

    __slots__ = ()

    def __init__(self, letter: OperatorMessage, marking: OperatorMessage, origin: Origin) -> None:
        super().__init__([letter.message, marking.message], origin)
        self._parts = [letter, marking]


def copy_for_group(letter: DeadLetter, origin: Origin) -> OperatorMessage:
    """The letter as a message that comes back to its group, for the first try."""
    return _again(letter, _message(letter, retry_topic(letter.group)), origin, (RETRY_TOPIC, ORIGIN_MESSAGE_ID, PGROUP))


def copy_for_topic(letter: DeadLetter, origin: Origin) -> OperatorMessage:
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


def mark(letter: DeadLetter, state: DeadLetterState, sentence: str, origin: Origin) -> OperatorMessage:
    """What says for good that this was done with the letter."""
    message = Message(dlq_topic(letter.group), sentence.encode(), tag=MARK_TAG)
    return OperatorMessage(message, origin, {DEAD_LETTER_MARK: mark_value(state, letter.message.queue_offset)})


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
) -> OperatorMessage:
    """The message with those of the letter's own properties that are `kept`, and with others."""
    known = letter.message.properties
    queue_own = {name: known[name] for name in kept if name in known} | dict(own or {})
    return OperatorMessage(message, origin, queue_own, again=letter.message, reconsume_times=reconsume_times)


def _queues_on(broker_name: str, route: TopicRoute | None) -> list[MessageQueue]:
    return [queue for queue in route.publish_queues() if queue.broker_name == broker_name] if route else []
