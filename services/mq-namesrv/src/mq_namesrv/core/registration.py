"""What a broker says about itself, and whether it makes sense."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mq_namesrv.core.fences import NO_EPOCH, Epoch
from mq_namesrv.core.limits import TOPIC_COUNT_MAX
from mqproto.names import check_topic, parse_address

MASTER_ID = 0
NAME_LENGTH_MAX = 255
QUEUE_COUNT_MAX = 65_535
PERM_MAX = 7  # RocketMQ's bits: 4 read, 2 write, 1 inherit

_LEGAL_NAME = re.compile(r"[%|a-zA-Z0-9_.-]+")


class RegistrationError(ValueError):
    """A registration that makes no sense; the message says why. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """One broker process. Several of the same broker name are a master (id 0) and its slaves."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic as one broker has it."""

    topic: str
    read_queue_count: int
    write_queue_count: int
    perm: int


@dataclass(frozen=True, slots=True)
class Registration:
    """A whole registration, which is a heartbeat too. `topics` is keyed by topic name and never changed in place.

    `epoch`: of a master, in which it writes; of a slave, the newest that it has accepted. A master that `is_restored`
    has a store that was put back from a backup, and takes nothing yet.
    """

    identity: BrokerIdentity
    ha_address: str
    topics: Mapping[str, TopicConfig]
    data_version: int
    epoch: Epoch = NO_EPOCH
    is_restored: bool = False

    @property
    def is_master(self) -> bool:
        return self.identity.broker_id == MASTER_ID


def check_identity(identity: BrokerIdentity) -> None:
    """Raise RegistrationError unless clients can make use of this identity."""
    _check_name("cluster name", identity.cluster_name)
    _check_name("broker name", identity.broker_name)
    if identity.broker_id < 0:
        raise RegistrationError(f"the broker id is {identity.broker_id}; 0 is the master, slaves count from 1")
    _check_address("broker address", identity.address)


def check_registration(registration: Registration) -> None:
    """Raise RegistrationError unless each part but the topics is legal, and there are not too many of those."""
    check_identity(registration.identity)
    if registration.ha_address:
        _check_address("HA address", registration.ha_address)
    if registration.data_version < 0:
        raise RegistrationError(f"the data version is {registration.data_version}; it counts up from 0")
    if min(registration.epoch) < 0:
        raise RegistrationError(f"the epoch is {registration.epoch}; term and start count up from 0")
    if len(registration.topics) > TOPIC_COUNT_MAX:
        raise RegistrationError(
            f"{len(registration.topics):,} topics; one broker registers {TOPIC_COUNT_MAX:,} at most"
        )


def check_topic_config(config: TopicConfig) -> None:
    """Raise RegistrationError unless a broker may have the topic like this."""
    try:
        check_topic(config.topic)
    except ValueError as error:
        raise RegistrationError(str(error)) from None
    for kind, count in (("read", config.read_queue_count), ("write", config.write_queue_count)):
        if not 0 <= count <= QUEUE_COUNT_MAX:
            raise RegistrationError(
                f"the topic {config.topic!r} has {count} {kind} queues; allowed are 0 to {QUEUE_COUNT_MAX:,}"
            )
    if not 0 <= config.perm <= PERM_MAX:
        raise RegistrationError(
            f"the topic {config.topic!r} has permission {config.perm}; allowed are 0 to {PERM_MAX} (6: read and write)"
        )


def _check_name(kind: str, name: str) -> None:
    if not name:
        raise RegistrationError(f"the {kind} is missing")
    if len(name) > NAME_LENGTH_MAX:
        raise RegistrationError(f"the {kind} has {len(name)} characters; at most {NAME_LENGTH_MAX} are allowed")
    if not _LEGAL_NAME.fullmatch(name):
        raise RegistrationError(f"the {kind} {name!r} is illegal; allowed are letters, digits and % | _ . -")


def _check_address(kind: str, text: str) -> None:
    try:
        parse_address(text)
    except ValueError as error:
        raise RegistrationError(f"the {kind}: {error}") from None
