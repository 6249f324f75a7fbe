"""Which queue a warehouse was made from. Offsets of one queue say nothing about another with the same topics.

A demonstration begins with an empty queue, so the tables of the one before are removed and not mixed with the new ones.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from analytics.adapters.hadoop_files import HadoopFiles
from analytics.warehouse import Warehouse

MARK = "source.txt"


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
