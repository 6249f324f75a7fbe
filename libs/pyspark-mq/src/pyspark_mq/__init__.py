"""The queue as a data source of Spark (mechanisms Y1-Y5).

    import pyspark_mq

    pyspark_mq.register(spark)
    events = spark.read.format("mq").option("namesrvAddr", "127.0.0.1:9876").option("subscribe", "orders").load()

Names listed here are the interface, with the options that docs/guides/spark.md explains; everything else is inside.
Spark imports this package by itself when it looks for a format, and then forks, so nothing here starts a thread.
"""

import warnings
from typing import Any

from pyspark_mq.data_source import DefaultSource, MqDataSource, register
from pyspark_mq.errors import (
    BrokerAwayError,
    DataLossError,
    MqSourceError,
    OptionError,
    ReadRejectedError,
    UnknownTopicError,
    UnreadableMessageError,
)
from pyspark_mq.schema import SCHEMA

__all__ = [
    "SCHEMA",
    "BrokerAwayError",
    "DataLossError",
    "DefaultSource",
    "MqDataSource",
    "MqSourceError",
    "OptionError",
    "ReadRejectedError",
    "UnknownTopicError",
    "UnreadableMessageError",
    "register",
]


def __getattr__(name: str) -> Any:
    if name != "ReadRefusedError":  # the name before; it goes with the next version
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("pyspark_mq.ReadRefusedError is pyspark_mq.ReadRejectedError now", DeprecationWarning, stacklevel=2)
    return ReadRejectedError
