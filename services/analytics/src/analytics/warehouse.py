"""The warehouse: where each table lies, and how one is written so that half of one is never read.

    source.txt           which queue this was made from
    bronze/events/       raw messages of the streaming job, a folder a day; Spark's own list says what belongs to it
    bronze/backfill/     raw messages that batch reads have added: a folder for each backfill, then a folder a day
    checkpoints/bronze/  how far the streaming job has read
    silver/<name>/, gold/<name>/   Parquet
    report/              the page, its pictures, summary.json

Invariant: a table is written into a folder of its own below `.writing/` and takes the place of the one before by a
rename, when it is complete. A reader sees the old table or the new one, and in the moment between the renames none.
What a crash leaves in `.writing/` is not read, and the next write of that table removes it.

Offsets of one queue say nothing about another with the same topics. A demonstration begins with an empty queue, so the
tables of the one before are removed and not mixed with the new ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from analytics.jobs.bronze import BRONZE, PLACE, unique

DAY = "day"
BACKFILL = "backfill"  # the column that says which backfill a row came by
MARK = "source.txt"


class WarehouseError(RuntimeError):
    """The warehouse cannot be used as it is; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Warehouse:
    """At `root`: a folder, or a URI that Spark knows, such as hdfs://."""

    root: str

    def __post_init__(self) -> None:
        if not self.root.strip("/ "):
            raise WarehouseError(f"the warehouse {self.root!r} is no folder of its own")

    @property
    def events(self) -> str:
        return f"{self.root}/bronze/events"

    @property
    def backfills(self) -> str:
        return f"{self.root}/bronze/backfill"

    @property
    def bronze_checkpoint(self) -> str:
        return f"{self.root}/checkpoints/bronze"

    @property
    def report(self) -> str:
        return f"{self.root}/report"

    @property
    def parts(self) -> tuple[str, ...]:
        """Every folder that the programs make here."""
        names = ("bronze", "checkpoints", "silver", "gold", "report", ".writing")
        return tuple(f"{self.root}/{name}" for name in names)

    def silver(self, name: str) -> str:
        return f"{self.root}/silver/{name}"

    def gold(self, name: str) -> str:
        return f"{self.root}/gold/{name}"

    def replace(self, path: str, table: DataFrame, partition_by: Sequence[str] = ()) -> int:
        """Write `table` to `path`, one of this warehouse, in place of what is there; returns how many rows it has.

        Raises what Spark raises, and OSError.

        The table may be made from what is at `path` now.
        """
        files = HadoopFiles(table.sparkSession)
        name = path.removeprefix(self.root).strip("/").replace("/", "-")
        files.delete(f"{self.root}/.writing/{name}")
        new = f"{self.root}/.writing/{name}/{uuid.uuid4().hex}"
        counted = Observation()
        table.observe(counted, F.count(F.lit(1)).alias("rows")).write.partitionBy(*partition_by).parquet(new)
        old = f"{self.root}/.writing/{name}/before"
        files.rename(path, old)
        files.rename(new, path)
        files.delete(f"{self.root}/.writing/{name}")
        return int(counted.get.get("rows", 0))

    def add_backfill(self, name: str, rows: DataFrame) -> int:
        """Add to bronze those of `rows` (BRONZE) that it lacks, and return how many these are. Raises as `replace`.

        What an earlier backfill of this name has read stays: the queue may have deleted it since.
        """
        spark, files = rows.sparkSession, HadoopFiles(rows.sparkSession)
        for path in (self.events, self.backfills):
            known = self.read_if_there(spark, path, BRONZE)
            if known is not None:
                rows = rows.join(known.select(*PLACE), list(PLACE), "left_anti")
        paths = (f"{self.backfills}/{BACKFILL}={name}-{number}" for number in count(1))
        return self.replace(next(path for path in paths if not files.exists(path)), rows, [DAY])

    def read(self, spark: SparkSession, path: str, schema: StructType) -> DataFrame:
        """The table at `path`. Raises WarehouseError when there is none."""
        found = self.read_if_there(spark, path, schema)
        if found is None:
            raise WarehouseError(f"{path} is not there: nothing has been written yet, run the pipeline first")
        return found

    def read_if_there(self, spark: SparkSession, path: str, schema: StructType) -> DataFrame | None:
        """The table at `path`, or None when nothing has been written there."""
        if not HadoopFiles(spark).exists(path):
            return None
        return (
            spark.read.schema(schema).parquet(path).select(*schema.names)
        )  # Spark adds columns of folders: `backfill`

    def bronze(self, spark: SparkSession) -> DataFrame:
        """BRONZE: each message that the stream or a backfill has read, once. Raises WarehouseError without any."""
        streamed = self.read_if_there(spark, self.events, BRONZE)
        filled = self.read_if_there(spark, self.backfills, BRONZE)
        if filled is not None:
            return unique(filled if streamed is None else streamed.unionByName(filled))
        if streamed is None:
            raise WarehouseError(f"{self.root} has no messages yet: nothing was read from the queue")
        return streamed  # once per offset already


def claim(spark: SparkSession, warehouse: Warehouse, source: str) -> bool:
    """Have the warehouse be of `source`; True when tables of another one were removed. Without a name nothing is done.

    Only what a warehouse consists of is removed, never the folder with whatever else is in it.
    """
    if not source:
        return False
    files, path = HadoopFiles(spark), f"{warehouse.root}/{MARK}"
    before = files.read(path)
    if before == source.encode():
        return False
    removed = before is not None or files.exists(warehouse.bronze_checkpoint)
    for part in warehouse.parts:
        files.delete(part)
    files.write(path, source.encode())
    return removed


class HadoopFiles:
    """Paths are folders or URIs, as Spark takes them. Every method raises Py4JJavaError when the file system does."""

    def __init__(self, spark: SparkSession) -> None:
        context = spark.sparkContext
        jvm: Any = context._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._input = jvm.org.apache.commons.io.IOUtils
        self._configuration = context._jsc.hadoopConfiguration()

    def exists(self, path: str) -> bool:
        where = self._path(path)
        return bool(where.getFileSystem(self._configuration).exists(where))

    def delete(self, path: str) -> None:
        """The folder with everything in it; nothing when it is not there."""
        where = self._path(path)
        where.getFileSystem(self._configuration).delete(where, True)

    def read(self, path: str) -> bytes | None:
        """A small file; None when it is not there."""
        where = self._path(path)
        system = where.getFileSystem(self._configuration)
        if not system.exists(where):
            return None
        stream = system.open(where)
        try:
            return bytes(self._input.toByteArray(stream))
        finally:
            stream.close()

    def write(self, path: str, data: bytes) -> None:
        """A small file, in place of the one before; its folder is made."""
        where = self._path(path)
        stream = where.getFileSystem(self._configuration).create(where, True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()

    def rename(self, source: str, target: str) -> None:
        """Move a folder, whose new parent is made; nothing when it is not there. Raises OSError when it stays."""
        old, new = self._path(source), self._path(target)
        system = old.getFileSystem(self._configuration)
        if not system.exists(old):
            return
        system.mkdirs(new.getParent())
        if not system.rename(old, new):
            raise OSError(f"{source} could not become {target}")
