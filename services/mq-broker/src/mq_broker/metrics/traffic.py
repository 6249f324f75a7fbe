"""What clients send and get, and how many there are."""

from __future__ import annotations

from collections.abc import Iterable

from mq_broker.metrics.instruments import NO_UNIT, Attributes, Instrument, Point, single
from mq_broker.processor.broker import Broker
from telemetry import names


def _from(topic: str) -> Attributes:
    return {names.DESTINATION_NAME: topic}


def _to(place: tuple[str, str]) -> Attributes:
    topic, group = place
    return {names.DESTINATION_NAME: topic, names.CONSUMER_GROUP_NAME: group}


def _messages_in(broker: Broker) -> Iterable[Point]:
    return [(one.messages, _from(topic)) for topic, one in broker.producing.received.all()]


def _bytes_in(broker: Broker) -> Iterable[Point]:
    return [(one.bytes, _from(topic)) for topic, one in broker.producing.received.all()]


def _messages_out(broker: Broker) -> Iterable[Point]:
    return [(one.messages, _to(place)) for place, one in broker.pulling.given.all()]


def _bytes_out(broker: Broker) -> Iterable[Point]:
    return [(one.bytes, _to(place)) for place, one in broker.pulling.given.all()]


GAUGES = (
    single("hourglass.broker.polls.held", "{poll}", "Long polls that wait", lambda b: b.long_polling.held),
    single("hourglass.broker.clients", "{client}", "Clients with a session", lambda b: b.sessions.members.client_count),
)
# In: what producers have sent and the broker has stored, by the topic that they have sent it to. Out: what was pulled.
COUNTERS = (
    Instrument("hourglass.broker.messages.in", "{message}", "Messages that producers sent", _messages_in),
    Instrument("hourglass.broker.bytes.in", NO_UNIT, "Bytes of messages that producers sent", _bytes_in),
    Instrument("hourglass.broker.messages.out", "{message}", "Messages that consumers got", _messages_out),
    Instrument("hourglass.broker.bytes.out", NO_UNIT, "Bytes of messages that consumers got", _bytes_out),
)
