"""Names of topics and groups, and addresses of processes: what is legal, and which names belong to the queue itself."""

from __future__ import annotations

import re
from typing import NamedTuple

TOPIC_LENGTH_MAX = 127  # RocketMQ's TopicValidator; a record keeps the length in one signed byte
GROUP_LENGTH_MAX = 255  # RocketMQ's Validators

DEFAULT_TOPIC = "TBW102"  # the template of auto-created topics (mechanism N8)
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"  # mechanism D2
TIMER_TOPIC = "rmq_sys_wheel_timer"  # RocketMQ's name: messages with a due time of their own
CARRIED_TOPIC = "SCHEDULE_TOPIC_CARRIED"  # where earlier versions kept what the timer topic holds now
WAITING_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, CARRIED_TOPIC})
RECALLED_TOPIC = "SCHEDULE_TOPIC_RECALLED"  # which waiting messages were taken back
CHANGES_TOPIC = "rmq_sys_changes"  # what operators have changed; RocketMQ keeps its clients from rmq_sys_ topics
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"  # mechanism T2
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"  # mechanism T3
CHECK_MAX_TIMES_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"  # mechanism T10
RETRY_PREFIX = "%RETRY%"  # mechanism R1
DLQ_PREFIX = "%DLQ%"  # mechanism R2
GROUP_PREFIXES = (RETRY_PREFIX, DLQ_PREFIX)  # of the topics that belong to a group
TOOLS_CONSUMER_GROUP = "TOOLS_CONSUMER"  # RocketMQ's name for an operator's pulls: always there, and of no application

# RocketMQ's groups of clients that were given none; it rejects both (checkConfig of its producers and consumers):
# applications that forget to name a group would share one.
UNNAMED_GROUPS = frozenset({"DEFAULT_CONSUMER", "DEFAULT_PRODUCER"})

SYSTEM_TOPICS = frozenset(
    {
        *WAITING_TOPICS,
        DEFAULT_TOPIC,
        RECALLED_TOPIC,
        CHANGES_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIMES_TOPIC,
    }
)

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")

_HOST = re.compile(r"[A-Za-z0-9._-]+")


class IllegalNameError(ValueError):
    """A topic or group name that the queue does not take; the message says what is allowed."""


def check_topic(topic: str) -> None:
    """Raise IllegalNameError unless `topic` can name a topic."""
    _check("topic", topic, TOPIC_LENGTH_MAX)


def check_user_topic(topic: str) -> None:
    """Raise IllegalNameError unless users may send to `topic`."""
    check_topic(topic)
    if topic in SYSTEM_TOPICS:
        raise IllegalNameError(f"the topic {topic!r} belongs to the queue itself; send to a topic of your own")


def check_group(group: str) -> None:
    """Raise IllegalNameError unless clients may join `group`, as producers or consumers."""
    check_group_name(group)
    if group in UNNAMED_GROUPS:
        raise IllegalNameError(f"the group name {group!r} stands for a group without a name; choose another name")


def check_group_name(group: str) -> None:
    """Raise IllegalNameError unless `group` can name a group, with its retry topic; an earlier version may have made
    one that clients may not join.
    """
    _check("group", group, GROUP_LENGTH_MAX)
    if len(RETRY_PREFIX) + len(group) > TOPIC_LENGTH_MAX:
        longest = TOPIC_LENGTH_MAX - len(RETRY_PREFIX)
        raise IllegalNameError(
            f"the group name has {len(group)} characters; its retry topic {RETRY_PREFIX}<group> has room for {longest}"
        )


def retry_topic(group: str) -> str:
    """Where messages of the group go that have to be consumed again."""
    return RETRY_PREFIX + group


def group_of_retries(topic: str) -> str:
    """The group whose retry topic it is; "" for another topic."""
    return topic[len(RETRY_PREFIX) :] if topic.startswith(RETRY_PREFIX) else ""


def dlq_topic(group: str) -> str:
    """Where messages of the group go that were tried too often."""
    return DLQ_PREFIX + group


def _check(kind: str, name: str, length_max: int) -> None:
    if not name:
        raise IllegalNameError(f"the {kind} name is empty")
    if len(name) > length_max:
        raise IllegalNameError(f"the {kind} name has {len(name)} characters; at most {length_max} are allowed")
    if not _LEGAL.fullmatch(name):
        raise IllegalNameError(
            f"the {kind} name {name!r} has a character that is not allowed; allowed are letters, digits and % | _ -"
        )


class Address(NamedTuple):
    """Where a process listens or is reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def is_host(text: str) -> bool:
    """Whether `text` can name a host: an IPv4 address or a host name."""
    return _HOST.fullmatch(text) is not None


def parse_address(text: str) -> Address:
    """`host:port` taken apart. Raises ValueError with what is allowed."""
    host, _, port = text.strip().rpartition(":")
    if not is_host(host) or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65_536:
        raise ValueError(f"{text!r} is not an address; write host:port with a port from 1 to 65535")
    return Address(host, int(port))


def parse_address_list(text: str) -> tuple[Address, ...]:
    """RocketMQ's list of name servers, `host:port;host:port`. Raises ValueError, also for an empty list."""
    addresses = tuple(parse_address(part) for part in text.split(";") if part.strip())
    if not addresses:
        raise ValueError("the list of addresses is empty; write host:port, or several separated by ;")
    return addresses
