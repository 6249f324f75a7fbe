"""The one builder of Spark sessions: loopback only, UTC, little noise, with the data source `mq`.

Invariant: what spark-submit has said stands. Master, memory and addresses are only set where this process starts Spark
by itself, on this machine; on a cluster the session is the one that the cluster was asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import pyspark_mq

LOOPBACK = "127.0.0.1"
DEFAULT_MASTER = "local[*]"
DEFAULT_MEMORY = "2g"
# Set by spark-submit, which has started the Java side before us.
SUBMITTED = "PYSPARK_GATEWAY_PORT"

# What holds wherever the session runs.
SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.metricsEnabled": "true",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.ui.showConsoleProgress": "false",  # the program shows its own
}


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """`master` None: spark-submit's, or else all cores of this machine. `memory` is the driver's, as Spark writes it.

    `settings` win over everything here.
    """

    master: str | None = None
    memory: str = DEFAULT_MEMORY
    ui: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)


def open_session(name: str, options: SessionOptions | None = None) -> SparkSession:
    """A session that knows `format("mq")`; the caller stops it. Raises what Spark raises when it cannot start."""
    options = options or SessionOptions()
    builder = SparkSession.builder.appName(name)
    master = master_of(options, os.environ)
    if master is not None:
        builder = builder.master(master)
    if SUBMITTED not in os.environ:
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for key, value in settings_of(options, os.environ).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    # It writes each error once more, with all of Java's stack, before the caller can report it in words.
    PySparkLogger.getLogger("DataFrameQueryContextLogger").disabled = True
    pyspark_mq.register(session)
    return session


def master_of(options: SessionOptions, environment: Mapping[str, str]) -> str | None:
    """What to set as the master; None leaves what is set."""
    if options.master is not None:
        return options.master
    return None if SUBMITTED in environment else DEFAULT_MASTER


def settings_of(options: SessionOptions, environment: Mapping[str, str]) -> dict[str, str]:
    """The configuration of the session, without its master."""
    if SUBMITTED in environment:
        return {**SETTINGS, **options.settings}
    own = {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.memory": options.memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={files('analytics') / 'log4j2.properties'}",
        "spark.ui.enabled": "true" if options.ui else "false",
    }
    return {**SETTINGS, **own, **options.settings}
