"""The fixture `spark`: one session for all tests of a process, small and on the loopback interface only.

Java takes seconds to start, so a file of tests that wants a session has many of them; `make test` deals whole files to
its processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Compiled a little and at once: what a test runs, it runs once.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.ui.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",  # expressions are interpreted: to compile them takes longer than few rows
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two threads; the data source `mq` is registered. The test needs the capability `java`."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - a plugin of every test run: Spark takes a while to import

    import pyspark_mq  # noqa: PLC0415

    folder: Path = tmp_path_factory.mktemp("spark")
    variables = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_DIRS": str(folder)}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in SETTINGS.items() | {("spark.sql.warehouse.dir", str(folder / "warehouse"))}:
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    pyspark_mq.register(session)
    try:
        yield session
    finally:
        session.stop()
        for name, old in before.items():
            if old is None:
                del os.environ[name]
            else:
                os.environ[name] = old
