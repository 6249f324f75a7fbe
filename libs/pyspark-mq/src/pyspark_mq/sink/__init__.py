"""Rows become messages (mechanism Y5): what the data source's `writer` and `streamWriter` return."""

from pyspark_mq.sink.writer import batch_writer, stream_writer

__all__ = ["batch_writer", "stream_writer"]
