"""Every error that the data source raises itself, in one tree, split by what its user should do.

MqSourceError
 ├─ OptionError            an option, or a combination of them, that makes no sense: change it
 ├─ UnknownTopicError      no registered broker has the topic: create it, or correct its name
 ├─ BrokerAwayError        a broker or all name servers were silent for as long as the options allow: try again
 ├─ ReadRejectedError      a broker said no for good: the sentence says why
 ├─ DataLossError          messages are not there any more; failOnDataLoss=false reads what is left
 └─ UnreadableMessageError a message is there, but its body or its properties cannot be decoded

In the driver they arrive as the text of Spark's PythonException, with these names in it.
"""

from __future__ import annotations


class MqSourceError(Exception):
    """The root: whatever the data source `mq` raises by itself."""


class OptionError(MqSourceError, ValueError):
    """The sentence names the option and says what is allowed."""


class UnknownTopicError(MqSourceError):
    """No registered broker has it."""


class BrokerAwayError(MqSourceError):
    """No broker or name server has answered in time."""


class ReadRejectedError(MqSourceError):
    """Asking again would not help."""


class DataLossError(MqSourceError):
    """The sentence names topic, broker, queue, and the offsets that cannot be read."""


class UnreadableMessageError(MqSourceError):
    """The sentence names topic, broker, queue and offset."""
