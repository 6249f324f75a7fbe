"""The shop's dead letters, over mqclient's Admin."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from mqclient import Admin, DeadLetter, DeadLetterFilter
from mqclient.errors import IllegalStateError
from orders.service.dead_letters import DeadLettersOfGroup, DeadLetterView
from orders.service.payment_desk import UnknownDeadLetterError
from osenv import Clock
from servicekit.process.queue import asking_queue

LETTERS_MAX = 20  # of one group on one page
BODY_MAX_CHARACTERS = 2_000


class MqDeadLetters:
    """Implements `DeadLetters`."""

    def __init__(self, url: str, groups: Sequence[str], clock: Clock) -> None:
        self._url = url
        self._groups = tuple(groups)
        self._clock = clock

    async def open_letters(self) -> tuple[DeadLettersOfGroup, ...]:
        async with asking_queue(self._url, self._clock) as admin:
            return tuple([await _of_group(admin, group) for group in self._groups])

    async def replay(self, group: str, letter_id: str) -> None:
        if group not in self._groups:
            raise UnknownDeadLetterError(group, letter_id)
        async with asking_queue(self._url, self._clock) as admin:
            wanted = DeadLetterFilter(ids=frozenset({letter_id}))
            async with aclosing(admin.dead_letters(group, wanted)) as letters:
                letter = await anext(letters, None)
            if letter is None:
                raise UnknownDeadLetterError(group, letter_id)
            try:
                await admin.replay_dead_letter(letter)
            except IllegalStateError as error:  # somebody else was faster
                raise UnknownDeadLetterError(group, letter_id) from error


async def _of_group(admin: Admin, group: str) -> DeadLettersOfGroup:
    views: list[DeadLetterView] = []
    async with aclosing(admin.dead_letters(group)) as letters:
        async for letter in letters:
            if len(views) == LETTERS_MAX:
                return DeadLettersOfGroup(group, tuple(views), has_more=True)
            views.append(_view(letter))
    return DeadLettersOfGroup(group, tuple(views), has_more=False)


def _view(letter: DeadLetter) -> DeadLetterView:
    message = letter.message
    return DeadLetterView(
        group=letter.group,
        letter_id=message.offset_message_id or message.message_id,
        topic=letter.topic,
        tag=message.tag or "",
        keys=message.keys,
        body=message.body.decode(errors="replace")[:BODY_MAX_CHARACTERS],
        dead_since_ms=letter.dead_since_ms,
    )
