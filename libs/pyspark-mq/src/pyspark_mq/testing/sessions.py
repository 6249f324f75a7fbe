"""The fixture `spark`: one session for all tests of a process, small and on the loopback interface only.

Java takes seconds to start, and what it runs first it runs slowly: where several processes share the tests by whole
files (`--dist loadfile`), the files that want a session go to one of them, as if they were one file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
}


# A parameter of a test function. The process that deals the tests has read none of them.
WANTS_A_SESSION = "spark: SparkSession"


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deals the tests of `--dist loadfile`, unless the system's are among them: those with Spark are most of these."""
    if config.getvalue("dist") != "loadfile" or config.getoption("system", default=False):
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # noqa: PLC0415 - it is xdist that asks

    @cache
    def scope_of(file: str) -> str:
        return "spark" if WANTS_A_SESSION in Path(config.rootpath, file).read_text(encoding="utf-8") else file

    class OneSession(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(str(super()._split_scope(nodeid)))

    return OneSession(config, log)


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
