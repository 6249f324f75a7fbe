"""Flags that RocketMQ's mqadmin has and this one refuses: none is taken and ignored.

A refused flag is unknown to the parser; the sentence here says why, and what to do instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_NO_ATTRIBUTES = "nothing has attributes here"
_ONE_QUEUE = "all queues of the topic are reset; resetOffsetByOffset sets one of them"
_NO_UNITS = "there are no units here"
_DIRECTLY = "consumeMessageDirectly has one member consume one message"
_ALL_BROKERS = "every broker is asked for the members that it knows"

REFUSED: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("updateTopic", "-a"): _NO_ATTRIBUTES,
        ("updateTopic", "-o"): "every queue keeps its order; a producer's selector chooses the queue",
        ("updateTopic", "-u"): _NO_UNITS,
        ("updateTopic", "-s"): _NO_UNITS,
        ("updateSubGroup", "-a"): "the members of a group always hear when it changes",
        ("updateSubGroup", "--attributes"): _NO_ATTRIBUTES,
        ("updateSubGroup", "-i"): "a group reads from the masters",
        ("updateSubGroup", "-m"): "where a group begins is the consumer's consume_from_where",
        ("updateSubGroup", "-o"): "whether messages are consumed in order is the consumer's choice of listener",
        ("updateSubGroup", "-p"): "retries wait by the delay levels; -r sets how many there are",
        ("updateSubGroup", "-w"): "a group reads from the masters",
        ("consumerConnection", "-b"): _ALL_BROKERS,
        (
            "consumerProgress",
            "-s",
        ): "which member has which queue is known to the members only; consumerStatus asks them",
        ("consumerStatus", "-b"): _ALL_BROKERS,
        ("consumerStatus", "-s"): "a member tells of its queues, not of its threads",
        ("resetOffsetByOffset", "-c"): "all clients take the same reset",
        ("resetOffsetByTime", "-b"): _ONE_QUEUE,
        ("resetOffsetByTime", "-c"): "all clients take the same reset",
        ("resetOffsetByTime", "-o"): _ONE_QUEUE,
        ("resetOffsetByTime", "-q"): _ONE_QUEUE,
        ("queryMsgById", "-c"): "the id names its broker",
        ("queryMsgById", "-d"): _DIRECTLY,
        ("queryMsgById", "-f"): "a body is shown as UTF-8, or as hexadecimal digits when it is none",
        ("queryMsgById", "-g"): _DIRECTLY,
        ("queryMsgById", "-s"): "a message is not sent again by its id; sendMessage sends a new one",
        ("queryMsgById", "-u"): _NO_UNITS,
        ("queryMsgByUniqueKey", "-d"): _DIRECTLY,
        ("queryMsgByUniqueKey", "-g"): _DIRECTLY,
        ("printMsg", "-l"): "there are no light queues here",
        ("sendMessage", "-m"): "traces are OpenTelemetry's; set up the exporter of the application",
        ("consumeMessage", "-g"): "it reads without a group, and moves nobody's offset",
    }
)
