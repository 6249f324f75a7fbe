"""The message-handling layer of a producer: tries, queues, what is handed to the stream (MISSION P4-P13, P20).

Invariants: a send takes no longer than its deadline, over all its tries; what was refused for good is not tried again;
one table says what is tried again (retry.py), and each try has its watch (try_watch.py) if anybody looks on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import inf

from mqclient.client_instance import ClientInstance
from mqclient.config import ProducerConfig
from mqclient.errors import BrokerRefusedError, MQClientError, NoRouteError, NotSentError
from mqclient.message import MessageQueue, SendResult, SendStatus
from mqclient.observed.sending import tried_again
from mqclient.producer.body_compressor import BodyCompressor
from mqclient.producer.frames import SendTerms, Stored
from mqclient.producer.hooks import Hooks, SendMessageContext, SendMessageHook
from mqclient.producer.latency_fault import LatencyFaultTolerance
from mqclient.producer.outgoing import Outgoing, OutgoingBatch
from mqclient.producer.queue_choice import FixedChoice, QueueChoice
from mqclient.producer.retry import CommunicationMode, PastTries, Tries, may_retry
from mqclient.producer.try_watch import TryWatch, message_type
from mqproto.codes import ResponseCode
from osenv.clock import timeout as clock_timeout

logger = logging.getLogger("mqclient.sender")

# Before a try on the very broker that just failed: without a pause, all tries are gone before it can recover.
SAME_BROKER_PAUSES_S = (0.2, 1.5)

# Between two questions for a route while its brokers have slaves and no master: one of them is about to become it.
NO_MASTER_PAUSES_S = (0.1, 0.2, 0.4)

_terms = lru_cache(SendTerms)  # equal terms are one object


class Sender:
    """Sends for the producer `group`, and tries again as long as `is_running` says so."""

    def __init__(
        self, group: str, instance: ClientInstance, config: ProducerConfig, is_running: Callable[[], bool]
    ) -> None:
        self._hooks = Hooks()
        self._group = group
        self._instance = instance
        self._routes = instance.routes
        self._clock = instance.clock
        self._config = config
        self._is_running = is_running
        self.sync_tries = Tries(CommunicationMode.SYNC, 1 + config.retry_times_when_send_failed)
        self.async_tries = Tries(CommunicationMode.ASYNC, 1 + config.retry_times_when_send_async_failed)
        self._fault_tolerance = LatencyFaultTolerance(instance.clock) if config.send_latency_fault_enable else None
        self._choice = QueueChoice(instance.rng, self._fault_tolerance)
        self._is_watched = self._fault_tolerance is not None
        self._try_timeout_s = config.send_msg_max_timeout_per_request_s or inf
        self._compressor = BodyCompressor(config.compress_msg_body_over_howmuch, config.compress_level)

    def close(self) -> None:
        """Let go what is the sender's own."""
        self._compressor.close()

    def register_hook(self, hook: SendMessageHook) -> None:
        self._hooks.register(hook)
        self._is_watched = True

    async def deliver(
        self,
        outgoing: Outgoing | OutgoingBatch,
        deadline: float,
        tries: Tries,
        fixed: FixedChoice | None = None,
    ) -> SendResult:
        """Try until it is stored: on queues in turn, or once on the `fixed` one. Ends by `deadline` (monotonic).

        A try on a queue that the topic does not have any more counts for nothing: the next one has the route of now.
        """
        mode, tries_max = tries
        in_order = fixed is not None
        if in_order or outgoing.compressible_bytes >= self._compressor.from_bytes:
            await self._compressor.compress(outgoing, in_order=in_order)
        if in_order:
            tries_max = 1
        past: PastTries | None = None
        number = 0
        while True:
            number += 1
            queue: MessageQueue | None = None
            try:
                queues: Sequence[MessageQueue] = self._routes.known_publish_queues(outgoing.topic) or ()
                if not queues:
                    queues = await self._fetch_queues(outgoing.topic, deadline)
                if fixed is None and past is not None:
                    outgoing.begin_again()
                    queues = past.still_open(queues)
                avoided = past.last_broker if past is not None else None
                queue = fixed(queues) if fixed is not None else self._choice.choose(outgoing.topic, queues, avoided)
                if fixed is None and past is not None and queue.broker_name == past.last_broker:
                    await self._pause_before_same_broker(outgoing.topic, number, deadline)
                may_move = number < tries_max and queues[0].broker_name != queues[-1].broker_name
                result = await self._try(outgoing, queue, self._terms(outgoing, in_order, may_move), deadline, mode)
            except MQClientError as error:
                if await self._is_removed(queue, error, fixed, deadline):
                    number -= 1
                    continue
                past = past or PastTries()
                past.failed(queue, error)
                if queue is None or number == tries_max or not self._may_go_on(error, mode, deadline):
                    return past.end(error)
                logger.info("%s is tried again after: %s", outgoing.unique_id, error)
                tried_again(queue, error)
            else:
                if result.send_status is SendStatus.SEND_OK or not (may_move and self._wants_better(mode)):
                    return result
                past = past or PastTries()
                past.stored_less_safely(result)

    async def hand_over(
        self, outgoing: Outgoing, deadline: float, fixed: FixedChoice | None = None
    ) -> asyncio.Future[Stored]:
        """Hand a one-way message to its stream, once. The future says when it is no longer under way."""
        in_order = fixed is not None
        if in_order or outgoing.compressible_bytes >= self._compressor.from_bytes:
            await self._compressor.compress(outgoing, in_order=in_order)
        queues: Sequence[MessageQueue] = self._routes.known_publish_queues(outgoing.topic) or ()
        if not queues:
            queues = await self._fetch_queues(outgoing.topic, deadline)
        queue = fixed(queues) if fixed is not None else self._choice.choose(outgoing.topic, queues)
        stream = self._instance.produce_stream(queue.broker_name)
        terms = self._terms(outgoing, in_order, may_move=False)
        if not self._is_watched:
            return stream.submit(outgoing.pending(queue, stream.numbering, deadline, terms))
        watch = self._watch(outgoing, CommunicationMode.ONEWAY, queue, stream.address)
        future = stream.submit(outgoing.pending(queue, stream.numbering, deadline, terms))
        watch.handed_over(future)
        return future

    async def _try(
        self,
        outgoing: Outgoing | OutgoingBatch,
        queue: MessageQueue,
        terms: SendTerms,
        deadline: float,
        mode: CommunicationMode,
    ) -> SendResult:
        stream = self._instance.produce_stream(queue.broker_name)
        if terms.moves_when_late:
            deadline = min(deadline, self._clock.monotonic() + self._try_timeout_s)
        if not self._is_watched:
            pending = outgoing.pending(queue, stream.numbering, deadline, terms)
            return outgoing.result(pending, await stream.submit(pending), stream.address)
        watch = self._watch(outgoing, mode, queue, stream.address)
        try:
            pending = outgoing.pending(queue, stream.numbering, deadline, terms)
            result = outgoing.result(pending, await stream.submit(pending), stream.address)
        except (MQClientError, asyncio.CancelledError) as error:
            watch.ended(error=error)
            raise
        watch.ended(result)
        return result

    def _terms(self, outgoing: Outgoing | OutgoingBatch, in_order: bool, may_move: bool) -> SendTerms:
        """How it travels. A try has a bound of its own only while another broker could take over."""
        return _terms(outgoing.alone, in_order, may_move, may_move and self._try_timeout_s < inf)

    def _watch(
        self, outgoing: Outgoing | OutgoingBatch, mode: CommunicationMode, queue: MessageQueue, address: str
    ) -> TryWatch:
        context = SendMessageContext(
            producer_group=self._group,
            messages=outgoing.messages,
            unique_id=outgoing.unique_id,
            message_queue=queue,
            broker_address=address,
            born_host=self._instance.local_ip,
            communication_mode=mode,
            message_type=message_type(outgoing),
        )
        return TryWatch(context, self._hooks, self._fault_tolerance, self._clock)

    def _wants_better(self, mode: CommunicationMode) -> bool:
        """Whether a message that is stored less safely than wished is sent to another broker as well."""
        return self._config.retry_another_broker_when_not_store_ok and mode is CommunicationMode.SYNC

    def _may_go_on(self, error: MQClientError, mode: CommunicationMode, deadline: float) -> bool:
        return self._is_running() and self._clock.monotonic() < deadline and may_retry(error, mode)

    async def _is_removed(
        self, queue: MessageQueue | None, error: MQClientError, fixed: FixedChoice | None, deadline: float
    ) -> bool:
        """Whether the topic lacks the refused queue by now, and the message has another one to go to."""
        if queue is None or not isinstance(error, BrokerRefusedError) or error.code != ResponseCode.TOPIC_NOT_EXIST:
            return False
        try:
            async with clock_timeout(self._clock, deadline - self._clock.monotonic()):
                await self._routes.refresh(queue.topic)
            queues = self._routes.known_publish_queues(queue.topic) or ()
            return bool(queues) and queue not in queues and (fixed is None or fixed(queues) != queue)
        except (MQClientError, TimeoutError) as problem:
            logger.info("the route of %s could not be refreshed: %s", queue.topic, problem)
            return False

    async def _pause_before_same_broker(self, topic: str, number: int, deadline: float) -> None:
        clock = self._clock
        pause_s = SAME_BROKER_PAUSES_S[min(number - 1, len(SAME_BROKER_PAUSES_S)) - 1]
        await clock.sleep(min(pause_s, max(0.0, deadline - clock.monotonic())))
        try:
            async with clock_timeout(clock, deadline - clock.monotonic()):
                await self._routes.refresh(topic)
        except (MQClientError, TimeoutError) as error:
            logger.info("the route of %s could not be refreshed before a retry: %s", topic, error)
        if clock.monotonic() >= deadline:
            raise NotSentError(f"the time ran out before {topic!r} could be tried again")

    async def _fetch_queues(self, topic: str, deadline: float) -> Sequence[MessageQueue]:
        """The topic's queues, as soon as one of its brokers has a master. Raises NoRouteError, NotSentError."""
        pauses_s = iter(NO_MASTER_PAUSES_S)
        no_master: NoRouteError | None = None
        try:
            async with clock_timeout(self._clock, deadline - self._clock.monotonic()):
                while True:
                    try:
                        return await self._routes.publish_queues(topic)
                    except NoRouteError as error:
                        if not self._routes.waits_for_master(topic):
                            raise
                        no_master = error
                    await self._clock.sleep(next(pauses_s, NO_MASTER_PAUSES_S[-1]))
        except TimeoutError:
            if no_master is not None:
                raise no_master from None
            raise NotSentError(f"the time ran out before a name server told the route of {topic!r}") from None
