"""Flags that RocketMQ's mqadmin has and this one refuses: none is taken and ignored.

A refused flag is unknown to the parser; the sentence here says why, and what to do instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_NO_ATTRIBUTES = "nothing has attributes here"
_NO_UNITS = "there are no units here"
_NO_DIRECT = "no member can be told to consume one message; resetOffsetByTime lets a group read again"

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
        ("consumerProgress", "-s"): "which member has which queue is known to the members only; they are named below",
        ("resetOffsetByTime", "-b"): "all queues of the topic are reset",
        ("resetOffsetByTime", "-c"): "all clients take the same reset",
        ("resetOffsetByTime", "-o"): "an offset is set by the time, -s",
        ("resetOffsetByTime", "-q"): "all queues of the topic are reset",
        ("queryMsgById", "-c"): "the id names its broker",
        ("queryMsgById", "-d"): _NO_DIRECT,
        ("queryMsgById", "-f"): "a body is shown as UTF-8, or as hexadecimal digits when it is none",
        ("queryMsgById", "-g"): _NO_DIRECT,
        ("queryMsgById", "-s"): "a message is not sent again by its id; sendMessage sends a new one",
        ("queryMsgById", "-u"): _NO_UNITS,
        ("queryMsgByUniqueKey", "-d"): _NO_DIRECT,
        ("queryMsgByUniqueKey", "-g"): _NO_DIRECT,
        ("printMsg", "-l"): "there are no light queues here",
        ("sendMessage", "-m"): "traces are OpenTelemetry's; set up the exporter of the application",
        ("consumeMessage", "-g"): "it reads without a group, and moves nobody's offset",
    }
)
