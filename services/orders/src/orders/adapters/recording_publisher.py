"""A publisher for tests: keeps what it is given, and fails when it is told to."""

from __future__ import annotations

from orders.domain.errors import PublishError
from orders.service.message import OutgoingMessage


class RecordingPublisher:
    """Implements `MessagePublisher`. `messages` are those that it took, in order."""

    def __init__(self) -> None:
        self.messages: list[OutgoingMessage] = []
        self.attempts = 0
        self.is_down = False

    async def publish(self, message: OutgoingMessage) -> None:
        self.attempts += 1
        if self.is_down:
            raise PublishError("the queue is down")
        self.messages.append(message)

    def taken(self, topic: str, tag: str) -> list[OutgoingMessage]:
        """The messages of one kind."""
        return [message for message in self.messages if (message.topic, message.tag) == (topic, tag)]
