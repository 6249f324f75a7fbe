"""Streams: many messages each way under one opaque, each side within the other's window.

Invariants: a side sends a message only while it has credit left, and the last one may exceed it; so the reader's side
holds at most its window and one frame. A message that was read, or handed to a callback, gives its bytes back. A
stream whose reader stops fills its own window and holds up no other stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from mqremoting.calls import failure_of, rejection_of
from mqremoting.command import RESPONSE, Command
from mqremoting.config import (
    CLOSE,
    END,
    INITIAL_WINDOW_BYTES,
    MESSAGE_COST_BYTES,
    STREAM,
    WINDOW,
)
from mqremoting.errors import (
    ConnectionLostError,
    DeadlineError,
    FrameError,
    NotSentError,
    RejectedError,
    RemotingError,
)

if TYPE_CHECKING:
    from mqremoting.connection import Connection

_CREDIT_BYTES = 4
_CREDIT_MAX = 1 << 31  # of one window frame, and in all


class Stream:
    """One stream, the same at both ends. One task writes, and one reads or a callback gets what comes.

    `opening` is the command that began it: `opening.code` says what for. Errors of a stream are ConnectionLostError,
    DeadlineError, and RejectedError with the code and sentence with which the peer closed it.
    """

    def __init__(self, connection: Connection, opening: Command, *, began_here: bool) -> None:
        self.connection = connection
        self.opening = opening
        self.deadline = float("inf")
        self.error: RemotingError | None = None
        """Why the stream has ended; None while it has not, or when it has ended in order."""
        self._flag = STREAM if began_here else STREAM | RESPONSE
        self._began_here = began_here
        self._is_open = True
        self._has_ended = self._peer_has_ended = False
        self._credit = INITIAL_WINDOW_BYTES  # what may be sent
        self._granted = INITIAL_WINDOW_BYTES  # what the peer may send
        self._taken = 0  # of what came: read, and not yet given back
        self._inbox: deque[Command] = deque()
        self._deliver: Callable[[Command | None], None] | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None  # what handles it, at the side that did not begin it

    def __repr__(self) -> str:
        return f"<stream {self.opening.opaque} of code {self.opening.code}>"

    @property
    def is_open(self) -> bool:
        """Whether at least one direction is open."""
        return self._is_open

    @property
    def may_write(self) -> bool:
        """Whether `write` would not wait now."""
        return self._is_open and self._credit > 0 and self.connection.may_write

    async def write(self, body: bytes | memoryview, *, code: int = 0, ext_fields: dict[str, str] | None = None) -> None:
        """Return when the transport has taken the message, which is when the next one may follow.

        Waits while the peer's window is full, or the connection is. `body` stays as it is until then and after.
        Raises the stream's error; NotSentError when the peer has closed the stream in order; FrameError for a message
        that does not fit into a frame.
        """
        while not self.may_write:
            self._check_may_write()
            if self._writer is not None:
                raise RuntimeError(f"two tasks write to {self}")
            self._writer = self.connection.loop.create_future()
            if self._credit > 0:
                self.connection.wake_when_writable(self._writer)
            try:
                await self._writer
            finally:
                self._writer = None
        self.write_now(body, code=code, ext_fields=ext_fields)

    def write_now(self, body: bytes | memoryview, *, code: int = 0, ext_fields: dict[str, str] | None = None) -> None:
        """Write without waiting. For callers that have checked `may_write`, or that send little and seldom.

        A message beyond the window makes the peer break the connection. Raises what `write` raises.
        """
        self._check_may_write()
        command = self._command(self._flag, code, body, ext_fields)
        self._credit -= self.connection.write_command(command) + MESSAGE_COST_BYTES

    def end(self) -> None:
        """No more messages from this side. Harmless when the stream has ended already."""
        if self._is_open and not self._has_ended:
            self._has_ended = True
            self.connection.write_command(self._command(self._flag | END))
            self._forget_if_both_have_ended()

    def cancel(self) -> None:
        """Give the stream up at once, both ways: a `read` or `write` that runs raises ConnectionLostError."""
        if self._is_open:
            self._inbox.clear()
        self.close(error=ConnectionLostError(f"{self} was given up"))

    def close(self, code: int = 0, remark: str = "", *, error: RemotingError | None = None) -> None:
        """Neither send nor read any more. The peer reads what was sent, and then the end; with a code, RejectedError.

        `error` is what `read` and `write` raise here; a code makes one by itself. Harmless when it has ended already.
        """
        if self._is_open:
            self.connection.write_command(self._command(self._flag | CLOSE, code, remark=remark))
            self.fail(error or (RejectedError(code, remark) if code else None))

    def _command(
        self,
        flag: int,
        code: int = 0,
        body: bytes | memoryview = b"",
        ext_fields: dict[str, str] | None = None,
        remark: str = "",
    ) -> Command:
        opening = self.opening
        return Command(
            code,
            opening.opaque,
            flag,
            body,
            ext_fields or {},
            remark,
            self.connection.config.language,
            self.connection.config.version,
            opening.serialization,
        )

    def _check_may_write(self) -> None:
        if self._has_ended:
            raise RuntimeError(f"a message after the end of {self}")
        if self.error is not None:
            raise self.error
        if not self._is_open:
            raise NotSentError(f"{self} has ended")

    async def read(self) -> Command | None:
        """The next message, or None when the peer has ended the stream in order.

        What came before an error is read first. Cancelling the reading task loses no message.
        """
        if self._deliver is not None:
            raise RuntimeError(f"what comes on {self} is delivered to a callback")
        while not self._inbox:
            if self.error is not None:
                raise self.error
            if self._peer_has_ended or not self._is_open:
                return None
            if self._reader is not None:
                raise RuntimeError(f"two tasks read from {self}")
            self._reader = self.connection.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        command = self._inbox.popleft()
        self._give_back(command.size + MESSAGE_COST_BYTES)
        return command

    def deliver_to(self, callback: Callable[[Command | None], None] | None) -> None:
        """Hand each message to `callback` in the step in which it comes, and None at the end; then look at `error`.

        With no callback, messages wait for `read` or for the next callback, within the window. What `callback` raises
        closes the stream as it does for a handler.
        """
        self._deliver = callback
        while self._deliver is not None and self._inbox:
            self._hand_over(self._inbox.popleft(), self._deliver)
        if self._deliver is not None and (self._peer_has_ended or not self._is_open):
            self._tell_end()

    def _hand_over(self, command: Command, deliver: Callable[[Command | None], None]) -> None:
        try:
            deliver(command)
        except Exception as error:
            self._inbox.clear()
            self.close_failed(error)
        else:
            self._give_back(command.size + MESSAGE_COST_BYTES)

    def _tell_end(self) -> None:
        deliver, self._deliver = self._deliver, None
        if deliver is not None:
            try:
                deliver(None)
            except Exception as error:
                rejection_of(error, f"the end of {self}")

    def _give_back(self, size: int) -> None:
        self._taken += size
        if self._is_open and not self._peer_has_ended and 2 * self._taken >= self.connection.config.window_bytes:
            self._grant(self._taken)
            self._taken = 0

    def widen(self) -> None:
        """Let the peer send as much as the window of this side allows, when the stream begins."""
        if (more := self.connection.config.window_bytes - INITIAL_WINDOW_BYTES) > 0:
            self._grant(more)

    def _grant(self, size: int) -> None:
        self._granted += size
        self.connection.write_command(self._command(self._flag | WINDOW, body=size.to_bytes(_CREDIT_BYTES, "big")))

    def received(self, command: Command) -> None:
        """Take a frame of this stream. Raises FrameError for one that may not come now."""
        flag = command.flag
        if not self._is_open:
            return  # its handler has not ended yet
        if not flag & STREAM:  # a peer without streams answers as to any request
            self.fail(RejectedError(command.code, command.remark or "the peer took the stream for a request"))
        elif flag & CLOSE:
            self._closed_by_peer(command)
        elif flag & WINDOW:
            self._window(command)
        elif flag & END:
            self._peer_has_ended = True
            self._forget_if_both_have_ended()
            self._wake()
            self._end_if_delivered()
        else:
            self._message(command)

    def _message(self, command: Command) -> None:
        if self._peer_has_ended:
            raise FrameError(f"a message after the end of {self}")
        if self._granted <= 0:
            raise FrameError(f"a message on {self}, whose window is full by {-self._granted:,} bytes")
        self._granted -= command.size + MESSAGE_COST_BYTES
        if self._deliver is not None:
            self._hand_over(command, self._deliver)
            return
        self._inbox.append(command)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _window(self, command: Command) -> None:
        size = int.from_bytes(command.body, "big")
        if len(command.body) != _CREDIT_BYTES or self._credit + size > _CREDIT_MAX:
            raise FrameError(
                f"a window of {len(command.body)} bytes, {size:,}; 4 bytes, {_CREDIT_MAX:,} in all, are allowed"
            )
        self._credit += size
        self._wake_writer()

    def _closed_by_peer(self, command: Command) -> None:
        self._peer_has_ended = True
        self.lose(RejectedError(command.code, command.remark) if command.code else None)

    def lose(self, error: RemotingError | None) -> None:
        """`fail`, and cancel the handler: the peer or the connection is gone."""
        self.fail(error)
        if self._task is not None:
            self._task.cancel()

    def begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the handler's coroutine as a task."""
        self._task = self.connection.loop.create_task(work)
        self._task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if (error := failure_of(task)) is not None:
            self.close_failed(error)
        self.close()
        self._forget()

    def close_failed(self, error: Exception) -> None:
        """Close it for what its handler, or its callback, has raised."""
        if self.error is not error:  # else the handler only passed on how the stream had ended
            rejection = rejection_of(error, f"the stream of code {self.opening.code}")
            self.close(rejection.code, rejection.remark)

    def _forget_if_both_have_ended(self) -> None:
        if self._has_ended and self._peer_has_ended:
            self._is_open = False
            self._forget()

    def _forget(self) -> None:
        """It is not in flight any more, once its handler has ended, too."""
        if self._task is None:
            self.connection.forget_stream(self, began_here=self._began_here)

    def fail(self, error: RemotingError | None) -> None:
        """End both directions here, without a word to the peer; what came is still read."""
        if not self._is_open:
            return
        self._is_open = False
        self.error = error
        self._forget()
        self._wake()
        self._end_if_delivered()

    def expire(self) -> None:
        """The caller's time is over."""
        self.close(error=DeadlineError(f"{self} did not end in time"))

    def _end_if_delivered(self) -> None:
        if self._deliver is not None:
            self._tell_end()

    def _wake(self) -> None:
        self._wake_writer()
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_writer(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)
