"""Long polls: a pull that finds nothing is held until there is something (mechanism C7), in bounded response memory."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from mq_broker.core.limits import (
    CLIENT_RESPONSE_BYTES_MAX,
    POLL_EXPRESSION_CHARACTERS,
    POLLS_MAX,
    POLLS_PER_CLIENT_MAX,
    POLLS_SERVED_AT_ONCE_MAX,
    RESPONSE_BYTES,
    RESPONSE_MEMORY_BYTES_MAX,
    STALLED_WRITE_S,
)
from mq_broker.core.pulling import PullQuery, PullResult
from mq_broker.processor.consuming import Pulling
from mqproto.codes import PullStatus, ResponseCode
from osenv import Clock, Timer

log = logging.getLogger(__name__)

SUSPEND_MS_MAX = 15_000

QueueKey = tuple[str, int]
Reply = Callable[[PullResult], None]


@dataclass(eq=False, slots=True)
class Poll:
    """One poll on its way to an answer."""

    query: PullQuery
    reply: Reply
    suspend_ms: int
    share: Share
    weight: int  # among all open polls; one with a long expression counts more
    is_open: bool = True  # until it is answered or given up
    reserved: int = 0  # of its share, for what a cold read may bring
    until: float | None = None  # by the monotonic clock, once it was held
    timer: Timer | None = None
    reading: asyncio.Task[None] | None = None


@dataclass
class LongPolling:
    """All polls of the broker that wait.

    Invariants: every poll is answered exactly once; a poll is held for 15 s at the most, and woken when a record of its
    queue becomes readable: the first `POLLS_SERVED_AT_ONCE_MAX` of a queue in the same step, the others in the next
    ones. An answer is built only when there is room for it in the response memory; a poll that is due earlier waits for
    its turn. A held poll is a small object and one timer, not a thread.
    """

    pulling: Pulling
    clock: Clock
    memory: ResponseMemory
    _held: dict[QueueKey, dict[Poll, None]] = field(default_factory=dict)  # in the order of their arrival
    _woken: deque[Iterator[Poll]] = field(default_factory=deque, init=False)  # to be served in the next steps
    _turns: dict[Share, deque[Poll]] = field(default_factory=dict, init=False)  # due, and waiting for room
    _open: int = field(default=0, init=False)  # the weights of all open polls

    def __post_init__(self) -> None:
        self.pulling.store.on_readable(self._wake)
        self._unbounded = ResponseMemory(self.clock, 1 << 62).share("")

    @property
    def held(self) -> int:
        """How many polls wait."""
        return sum(map(len, self._held.values()))

    def poll(self, query: PullQuery, suspend_ms: int, reply: Reply, share: Share | None = None) -> Poll:
        """Answer through `reply`: now, or when there is something, or after `suspend_ms` with NO_NEW_MSG.

        With SYSTEM_BUSY at once when the client, or all clients together, have too many open polls. The answer waits
        for room in the response memory, as part of `share`; without a share it needs none.
        """
        share = share or self._unbounded
        weight = 1 + len(query.expression) // POLL_EXPRESSION_CHARACTERS
        poll = Poll(query, reply, min(suspend_ms, SUSPEND_MS_MAX), share, weight)
        self._open += weight
        share.account.polls += weight
        if share.account.polls > POLLS_PER_CLIENT_MAX or self._open > POLLS_MAX:
            one, all_ = f"one connection at most {POLLS_PER_CLIENT_MAX:,}", f"all together {POLLS_MAX:,}"
            remark = f"too many open polls: {one} are allowed, {all_}; ask again later"
            self._answer(poll, PullResult(ResponseCode.SYSTEM_BUSY, remark))
        else:
            self._serve(poll)
        return poll

    def cancel(self, poll: Poll) -> None:
        """The poll's client has gone, or has given the poll up: there is no answer."""
        if poll.reading is not None:
            poll.reading.cancel()
        self._reserve(poll, 0)
        self._forget(poll)
        self._close(poll)

    def ended(self, share: Share) -> None:
        """The stream has ended, and each of its polls was cancelled."""
        self._turns.pop(share, None)
        share.close()

    def expire(self, poll: Poll) -> None:
        """Answer with what there is now, without waiting any longer."""
        poll.suspend_ms = 0
        if poll.timer is not None:
            self._forget(poll)
            self._serve(poll)

    def answer_all(self, chosen: Callable[[PullQuery], bool]) -> None:
        """Answer the held polls that are `chosen` with what there is now: something about them has changed."""
        found = [poll for polls in self._held.values() for poll in polls if chosen(poll.query)]
        for poll in found:
            poll.suspend_ms = 0
            self._let_go(poll)
        self._serve_some(found)

    def _serve(self, poll: Poll) -> None:
        """Answer the poll or hold it; when there is no room for an answer, at a later turn."""
        share = poll.share
        if share in self._turns or not share.may_build:
            self._wait_for_turn(poll)
            return
        result = self.pulling.pull_hot(poll.query)
        if result is None:
            self._reserve(poll, RESPONSE_BYTES)
            poll.reading = asyncio.create_task(self._read(poll), name="cold read")
        else:
            self._settle(poll, result)

    def _wait_for_turn(self, poll: Poll) -> None:
        share = poll.share
        turns = self._turns.get(share)
        if turns is None:
            turns = self._turns[share] = deque()
            share.wait(lambda: self._serve_turns(share))
        turns.append(poll)

    def _serve_turns(self, share: Share) -> None:
        """It is the turn of a stream whose polls have waited for room."""
        turns = self._turns.pop(share)
        at_once = max(1, POLLS_SERVED_AT_ONCE_MAX // (1 + share.memory.waiting_clients))
        for _ in range(min(len(turns), at_once)):
            poll = turns.popleft()
            if poll.is_open:
                self._serve(poll)
                if share in self._turns:  # no more room: the poll is at the end of the new queue
                    turns.appendleft(self._turns[share].pop())
                    break
        if turns:
            if share not in self._turns:
                share.wait(lambda: self._serve_turns(share))
            self._turns[share] = turns

    async def _read(self, poll: Poll) -> None:
        try:
            result = await self.pulling.pull(poll.query)
        except (OSError, ValueError) as error:
            log.exception("reading queue %d of %s failed", poll.query.queue_id, poll.query.topic)
            result = PullResult(ResponseCode.SYSTEM_ERROR, f"the disk could not be read: {error}")
        poll.reading = None
        self._reserve(poll, 0)
        self._settle(poll, result)

    @staticmethod
    def _reserve(poll: Poll, size: int) -> None:
        if size != poll.reserved:
            poll.share.give_back(poll.reserved - size)
            poll.reserved = size

    def _settle(self, poll: Poll, result: PullResult) -> None:
        if result.status is not PullStatus.NO_NEW_MSG or poll.suspend_ms <= 0:
            self._answer(poll, result)
            return
        key = (poll.query.topic, poll.query.queue_id)
        self._held.setdefault(key, {})[poll] = None
        if poll.until is None:
            poll.until = self.clock.monotonic() + poll.suspend_ms / 1000
        poll.timer = self.clock.call_later(max(0.0, poll.until - self.clock.monotonic()), lambda: self.expire(poll))

    def _answer(self, poll: Poll, result: PullResult) -> None:
        self._close(poll)
        poll.reply(result)

    def _close(self, poll: Poll) -> None:
        if poll.is_open:
            poll.is_open = False
            self._open -= poll.weight
            poll.share.account.polls -= poll.weight

    def _wake(self, topic: str, queue_id: int) -> None:
        polls = self._held.pop((topic, queue_id), None)
        if polls is not None:
            self._serve_some(polls)

    def _serve_some(self, polls: Collection[Poll]) -> None:
        """Serve these polls, which were held: a few now, the others in steps between which others have their turn."""
        if len(polls) <= POLLS_SERVED_AT_ONCE_MAX and not self._woken:
            for poll in polls:
                self._serve_held(poll)
            return
        self._woken.append(iter(polls))
        if len(self._woken) == 1:
            self._serve_woken()

    def _serve_woken(self) -> None:
        served = 0
        while self._woken and served < POLLS_SERVED_AT_ONCE_MAX:
            poll = next(self._woken[0], None)
            if poll is None:
                self._woken.popleft()
            else:
                served += 1
                self._serve_held(poll)
        if self._woken:
            asyncio.get_running_loop().call_soon(self._serve_woken)

    def _serve_held(self, poll: Poll) -> None:
        if poll.timer is not None:  # neither answered nor given up meanwhile
            self._disarm(poll)
            self._serve(poll)

    def _forget(self, poll: Poll) -> None:
        self._disarm(poll)
        self._let_go(poll)

    def _let_go(self, poll: Poll) -> None:
        key = (poll.query.topic, poll.query.queue_id)
        polls = self._held.get(key)
        if polls is not None:
            polls.pop(poll, None)
            if not polls:
                del self._held[key]

    @staticmethod
    def _disarm(poll: Poll) -> None:
        if poll.timer is not None:
            poll.timer.cancel()
            poll.timer = None


class ResponseMemory:
    """How much of the broker's memory responses take that clients have not read yet.

    A response is built only when there is room for the longest one; until then it waits for its turn. Clients
    (connections) get equal parts: one may have `CLIENT_RESPONSE_BYTES_MAX`, and no more than what is left for the
    others.

    Invariants: `used` is the sum of all shares and never above `bytes_max`, but for the responses to requests that a
    stream is always allowed, one at a time; waiting shares are called in turn, client by client, one at a step of the
    event loop.
    """

    def __init__(self, clock: Clock, bytes_max: int = RESPONSE_MEMORY_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.clock = clock
        self._accounts: dict[str, Account] = {}
        self.break_connections: Callable[[Collection[str]], object] = lambda _clients: None  # which do not read
        self._shares: set[Share] = set()
        self._waiting: dict[str, dict[Share, Callable[[], None]]] = {}  # by client, in the order of their turns
        self._is_scheduled = False
        self._relief: Timer | None = None

    def share(self, client: str) -> Share:
        """The share of one more stream or call of `client`; to be closed."""
        account = self._accounts.get(client)
        if account is None:
            account = self._accounts[client] = Account()
        account.shares += 1
        share = Share(self, client, account)
        self._shares.add(share)
        return share

    def room(self, client: str) -> int:
        """How many bytes more the client may have now."""
        account = self._accounts.get(client)
        return min(CLIENT_RESPONSE_BYTES_MAX, self.bytes_max - self.used) - (account.used if account else 0)

    @property
    def waiting_clients(self) -> int:
        """How many clients wait for room."""
        return len(self._waiting)

    def given_back(self, size: int) -> None:
        """So many bytes are in use no longer."""
        self.used -= size
        if self._waiting:
            self._schedule()

    def wait(self, share: Share, go_on: Callable[[], None]) -> None:
        """Call `go_on` when it is the share's turn, and there is room for it."""
        self._waiting.setdefault(share.client, {})[share] = go_on
        self._schedule()
        if self._relief is None:
            self._relief = self.clock.call_later(STALLED_WRITE_S, self._relieve)

    def leave(self, share: Share) -> None:
        """The share is closed."""
        if share in self._shares:
            self._shares.remove(share)
            share.account.shares -= 1
            if not share.account.shares:
                del self._accounts[share.client]
        if (waiting := self._waiting.get(share.client)) is not None:
            waiting.pop(share, None)
            if not waiting:
                del self._waiting[share.client]

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._call_next)

    def _call_next(self) -> None:
        self._is_scheduled = False
        client = next((client for client in self._waiting if self.room(client) >= RESPONSE_BYTES), None)
        if client is None:
            return
        waiting = self._waiting.pop(client)
        share = next(iter(waiting))
        go_on = waiting.pop(share)
        if waiting:
            self._waiting[client] = waiting
        self._schedule()
        go_on()

    def _relieve(self) -> None:
        """No room for a while: break connections that have not taken a response for as long, those with most first.

        As many as it needs for one response of each other client that waits.
        """
        self._relief = None
        if not self._waiting:
            return
        self._relief = self.clock.call_later(STALLED_WRITE_S, self._relieve)
        if self.bytes_max - self.used >= RESPONSE_BYTES:
            return  # the waiting clients have used up their own part
        before = self.clock.monotonic() - STALLED_WRITE_S
        stalled = {one.client for one in self._shares if one.writing_since is not None and one.writing_since <= before}
        parts = (self._accounts[client].used for client in self._waiting.keys() - stalled)
        waiting = sum(used + RESPONSE_BYTES <= CLIENT_RESPONSE_BYTES_MAX for used in parts)
        needed = waiting * RESPONSE_BYTES - (self.bytes_max - self.used)
        broken = []
        for client in sorted(stalled, key=lambda client: self._accounts[client].used, reverse=True):
            if needed <= 0:
                break
            needed -= self._accounts[client].used
            broken.append(client)
        if broken:
            log.warning(
                "no room for responses: breaking %d of %d connections that do not read", len(broken), len(stalled)
            )
            self.break_connections(broken)


@dataclass(eq=False, slots=True)
class Account:
    """What one client has: streams and calls, bytes of their responses, open polls."""

    shares: int = 0
    used: int = 0
    polls: int = 0


@dataclass(eq=False, slots=True)
class Share:
    """What one stream or call takes of the memory."""

    memory: ResponseMemory
    client: str
    account: Account
    used: int = 0
    writing_since: float | None = None  # by the monotonic clock, while a response is being written

    @property
    def may_build(self) -> bool:
        """Whether there is room for a response of any length."""
        used = self.account.used + RESPONSE_BYTES
        return used <= CLIENT_RESPONSE_BYTES_MAX and used <= self.memory.bytes_max - self.memory.used

    @property
    def may_read(self) -> bool:
        """Whether one more request may be read: there is room, or nothing of this stream waits to be written."""
        used, memory = self.account.used, self.memory
        return not self.used or (used < CLIENT_RESPONSE_BYTES_MAX and used < memory.bytes_max - memory.used)

    def take(self, size: int) -> None:
        """`size` bytes more are in use."""
        self.used += size
        self.account.used += size
        self.memory.used += size

    def give_back(self, size: int) -> None:
        """`size` bytes of it are in use no longer."""
        self.used -= size
        self.account.used -= size
        self.memory.given_back(size)

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` at this share's next turn with room for a response of any length; once."""
        self.memory.wait(self, go_on)

    async def reserve(self) -> None:
        """Wait for room for a response of any length, and take it."""
        if not self.may_build:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.wait(lambda: None if turn.done() else turn.set_result(None))
            await turn
        self.take(RESPONSE_BYTES)

    def close(self) -> None:
        """Give everything back."""
        self.give_back(self.used)
        self.memory.leave(self)
