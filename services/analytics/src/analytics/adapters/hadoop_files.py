"""Folders of whatever file system a warehouse lies on, by Spark's Hadoop client: local, HDFS, or an object store."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


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
