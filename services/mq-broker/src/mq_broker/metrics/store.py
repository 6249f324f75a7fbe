"""The store: its log, its disk, and what is damaged."""

from __future__ import annotations

from mq_broker.metrics.instruments import NO_UNIT, single

GAUGES = (
    single("hourglass.store.log.begin", "By", "Offset of the commit log's first byte", lambda b: b.store.log_begin),
    single("hourglass.store.log.end", "By", "Offset behind the commit log's last record", lambda b: b.store.log_end),
    single("hourglass.store.log.durable", "By", "Synced up to this offset", lambda b: b.store.flusher.durable_end),
    single("hourglass.store.log.readable", "By", "The confirm offset", lambda b: b.store.readable_end),
    single("hourglass.store.size", "By", "The commit log's bytes", lambda b: b.store.log_end - b.store.log_begin),
    single("hourglass.store.index.end", "By", "Indexed up to this offset", lambda b: b.store.index.indexed_end),
    single("hourglass.store.disk.used", NO_UNIT, "Used share of the disk", lambda b: b.store.gate.used_share),
    single(
        "hourglass.store.writes.refused",
        NO_UNIT,
        "1 while writes are refused",
        lambda b: b.store.gate.refusal is not None,
    ),
    single("hourglass.store.fenced", NO_UNIT, "1 after a sync has failed", lambda b: b.store.failure is not None),
    single("hourglass.store.damage.size", "By", "Bytes of the log found damaged", lambda b: b.store.quarantine.size),
    single("hourglass.store.damage.stretches", "{stretch}", "Damaged stretches", lambda b: len(b.store.quarantine)),
)
COUNTERS = (
    single("hourglass.store.messages.put", "{message}", "Messages stored", lambda b: b.store.messages_put),
    single("hourglass.store.files.deleted", "{file}", "Files the cleaner deleted", lambda b: b.retention.files_deleted),
    single("hourglass.store.messages.carried", "{message}", "Messages written again", lambda b: b.retention.carried),
)
