"""What takes bytes from outside or from disk, each with its documented errors and what must hold when it accepts.

Invariant: a check returns whether the bytes were accepted; an error that is not documented leaves it as it is, and a
promise that does not hold is an AssertionError.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from hourglass.mq.v1 import replication_service_pb2
from mq_broker.core.batches import CQ_ENTRY, BatchError, check_batch, patch_batch
from mq_broker.core.consumer_offsets import ConsumerOffsets, Progress
from mq_broker.core.delays import DelayProgress
from mq_broker.core.pulling import parse_tag_expression
from mq_broker.core.replica_state import Epoch, EpochBegin, EpochHistory
from mq_broker.core.subscription_groups import SubscriptionGroups
from mq_broker.core.topics import TIMER, TopicTable
from mq_broker.core.transactions import TransactionScan, TransactionTable
from mq_broker.replication.frames import (
    LogBytes,
    MasterFrame,
    MasterHeartbeat,
    MasterHello,
    Probe,
    ProgressEntries,
    ReplicaFrame,
    ReplicaHello,
    Report,
    StateDocument,
)
from mq_broker.rpc.replication_conversions import (
    master_frame,
    master_frame_message,
    replica_frame,
    replica_frame_message,
)
from mq_broker.store.commit_log import SegmentFiles
from mq_broker.store.durability import decode_watermark, encode_slot
from mq_broker.store.index import IndexFile, IndexSize
from mq_broker.store.layout import Checkpoint
from mq_broker.store.log_scan import scan_log
from mq_broker.store.state_files import State, decode_document, encode_document
from mq_broker.testing import half, incoming, producer_record
from mqclient import IllegalArgumentError
from mqclient.message import offset_message_id, parse_offset_message_id
from mqfilter import FilterSyntaxError, parse
from mqproto.properties import PropertiesError, decode_properties, encode_properties
from mqproto.record import RecordError, decode_record, encode_blank, is_sealed, iter_records
from mqremoting import Command, Decoder, FrameLimits, Language, Serialization, encode
from osenv import PooledFiles, SimDisk

TOPIC, QUEUE_ID = "fuzz", 3
BODY_BYTES_MAX = 10_000
LOG_FILE_BYTES = 2_048
INDEX = IndexSize(slots=8, entries=24)
FRAME_LIMITS = FrameLimits(frame_bytes_max=65_536)
CONDITIONS = [
    b"a > 3 AND region IN ('east', 'west')",
    b"NOT (a BETWEEN -1 AND 2.5e3 OR b IS NOT NULL) and paid = TRUE",
    b"region STARTSWITH 'it''s' or region not contains 'x' -- end",
    b"((((a)) <> /* 7 */ ((7L))))",
]


@dataclass(frozen=True)
class Target:
    """`weight`: how often it is its turn."""

    name: str
    corpus: Sequence[bytes]
    check: Callable[[bytes], bool]
    weight: int = 1


# ------------------------------------------------------------------------------------------------------- corpora


def sent_records() -> list[bytes]:
    """Records as producers send them."""
    return [
        producer_record(TOPIC, b"x", queue_id=QUEUE_ID),
        producer_record(TOPIC, bytes(300), queue_id=QUEUE_ID, tag="paid", key="order-17"),
        producer_record(TOPIC, "Ein Körper".encode() * 5, queue_id=QUEUE_ID, tag="größe", delay_level=16),
        half(TOPIC, b"half", "id-1", queue_id=QUEUE_ID).records,
    ]


def sent_batches() -> list[bytes]:
    return [
        *sent_records(),
        incoming(TOPIC, [b"a", b"bc", bytes(100)], queue_id=QUEUE_ID, tag="t").records,
        incoming(TOPIC, [b"later"] * 2, queue_id=QUEUE_ID, delay_level=2).records,
    ]


def stored_records(log_offset: int = 0) -> list[bytes]:
    """The same, as they stand in the log one behind the other."""
    records = []
    for number, data in enumerate(sent_records()):
        batch = check_batch(TOPIC, QUEUE_ID, 1, data, BODY_BYTES_MAX)
        patch_batch(batch, queue_offset=number, log_offset=log_offset, store_ms=17, store_ip=1, store_port=2)
        records.append(bytes(batch.buffer))
        log_offset += len(data)
    return records


def log_files() -> list[bytes]:
    data = b"".join(stored_records())
    return [
        data,
        data + bytes(LOG_FILE_BYTES - len(data)) + b"".join(stored_records(LOG_FILE_BYTES)),
        data + encode_blank(LOG_FILE_BYTES - len(data)),
    ]


def index_images() -> list[bytes]:
    disk, path = SimDisk(), Path("/0")
    file = IndexFile(disk, path, INDEX, create=True)
    file.add([(number * 7 % 20, number * 100, 5_000 + number) for number in range(1, 20)])
    file.take_save()()
    opened = disk.open(path)
    return [opened.pread(opened.size(), 0)]


def states() -> list[State]:
    """One of each kind, empty."""
    return [
        ConsumerOffsets(),
        DelayProgress(),
        SubscriptionGroups(auto_create=True),
        TopicTable(auto_create=True, default_queue_count=4, delay_level_count=18),
        TransactionScan(TransactionTable(check_times_max=15)),
    ]


def documents() -> list[bytes]:
    """What the states write, and the same without our own fields, as RocketMQ does."""
    offsets, progress, groups, topics, scan = made = states()
    assert isinstance(offsets, ConsumerOffsets)
    assert isinstance(progress, DelayProgress)
    assert isinstance(groups, SubscriptionGroups)
    assert isinstance(topics, TopicTable)
    assert isinstance(scan, TransactionScan)
    offsets.put("group", "topic", 1, Progress(100, ((102, 105), (110, 111)), 3))
    for offset in (0, 1, 7, *range(100_001, 101_400, 2)):  # done ahead: as a list, and as bits
        progress.done(3, offset)
        progress.done(TIMER, offset + 2)
    groups.get_or_create("group")
    topics.ensure_for_arrival("topic", 0)
    scan.ends = lambda: (3, 4)
    ours = [encode_document(state.to_json(), 12_345) for state in made]
    theirs = [data[: data.index(b',\n "logOffset"')] + b"\n}\n" for data in ours]
    tables = ("offsetTable", "topicConfigTable", "subscriptionGroupTable")
    values: list[Any] = [[], None, 7, "text", {"a@b": None}, {"a@b": []}, {"a@b": 7}, {"a@b": {"c": None}}]
    of_another_form = [
        json.dumps({**dict.fromkeys(tables, value), "dataVersion": {"counter": 1}}).encode() for value in values
    ]
    return [*ours, *theirs, *of_another_form, b"[" * 100_000, b"{}", b"[]", b"null"]


def replica_frames() -> list[bytes]:
    """What a replica sends."""
    history = EpochHistory((EpochBegin(Epoch(1, 1), 0), EpochBegin(Epoch(1, 2), 500), EpochBegin(Epoch(2, 0), 500)))
    hello = ReplicaHello("cluster", "broker-a", "0123456789abcdef" * 2, 1, "10.0.0.1:10911", 0, 900, history)
    events = (hello, Probe(100, 900, 0xCAFE), Report(900, 800, 800), ProgressEntries(b"entries"))
    return [replica_frame_message(ReplicaFrame(Epoch(2, 0), event)).SerializeToString() for event in events]


def master_frames() -> list[bytes]:
    """What a master sends."""
    history = EpochHistory((EpochBegin(Epoch(1, 1), 0), EpochBegin(Epoch(7, 3), 1 << 40)))
    events = (
        MasterHello("fedcba9876543210" * 2, 0, 1 << 41, history, synchronous=True),
        LogBytes(900, b"".join(stored_records()), 900),
        StateDocument("topics.json", documents()[3]),
        MasterHeartbeat(0, 900, 800, 1_700_000_000_000, in_sync=True, in_sync_version=4),
    )
    return [master_frame_message(MasterFrame(Epoch(7, 3), event)).SerializeToString() for event in events]


def remoting_frames() -> list[bytes]:
    """What RocketMQ's clients and our own send, alone and one behind the other."""
    fields = {"topic": TOPIC, "queueId": "3", "properties": "KEYS\x01k\x02", "größe": ""}
    commands = [
        Command(20_000, opaque=7, body=b"protobuf"),
        Command(0, 7, 1, remark="done"),
        Command(310, 1 << 30, 2, bytes(300), fields, "", Language.JAVA, 465),
        Command(200_050, -1, 0, b"x", fields, '[{"', Language.GO, 401, Serialization.JSON),
        Command(1, serialization=Serialization.JSON),
    ]
    one_by_one = [encode(command) for command in commands]
    return [*one_by_one, b"".join(one_by_one), encode(commands[-1])[:8] + b"[" * 60]


# -------------------------------------------------------------------------------------------------------- checks


def check_records(data: bytes) -> bool:
    """`iter_records` ends, and every record that it yields lies within the bytes."""
    seen = 0
    try:
        for record in iter_records(data):
            assert record.size > 0
            assert data[seen : seen + 4] == record.size.to_bytes(4, "big")
            seen += record.size
    except RecordError:
        return False
    assert seen == len(data)
    return True


def check_sealed(data: bytes) -> bool:
    """A seal that is right covers every byte before it."""
    if not is_sealed(data, 0, len(data)):
        return False
    for at in range(0, len(data) - 20, 17):
        assert not is_sealed(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :], 0, len(data))
    return True


def check_one_batch(data: bytes) -> bool:
    """An accepted batch can be patched and then consists of sealed records, which say where they stand."""
    count = data[-1] % 4 + 1 if data else 1
    for wanted in {1, 2, 3, count}:
        try:
            batch = check_batch(TOPIC, QUEUE_ID, wanted, data, BODY_BYTES_MAX)
        except BatchError:
            continue
        entries = patch_batch(batch, queue_offset=5, log_offset=1_000, store_ms=9, store_ip=1, store_port=2)
        assert sum(batch.sizes) == len(data)
        assert len(entries) == wanted * CQ_ENTRY.size
        at = 0
        for number, record in enumerate(iter_records(bytes(batch.buffer))):
            assert is_sealed(batch.buffer, at, record.size)
            assert (record.topic, record.queue_id) == (TOPIC, QUEUE_ID)
            assert (record.queue_offset, record.log_offset) == (5 + number, 1_000 + at)
            decode_properties(record.properties)
            at += record.size
        return True
    return False


def check_properties(data: bytes) -> bool:
    """What can be decoded can be encoded again and is the same."""
    try:
        properties = decode_properties(data)
    except PropertiesError:
        return False
    assert decode_properties(encode_properties(properties)) == properties
    return True


def check_checkpoint(data: bytes) -> bool:
    """Believed only when it says itself again."""
    checkpoint = Checkpoint.decode(data)
    if checkpoint is None:
        return False
    assert Checkpoint.decode(checkpoint.encode()) == checkpoint
    return True


def check_watermark(data: bytes) -> bool:
    """An offset comes only out of a slot that holds it whole."""
    offset = decode_watermark(data)
    if not offset:
        return False
    assert encode_slot(offset) in data
    return True


def check_document(data: bytes) -> bool:
    """A damaged document is a ValueError; one of another form is rejected by the state; else it can be written
    again.
    """
    try:
        document = decode_document(data)
    except ValueError:
        return False
    accepted = False
    for state in states():
        try:
            state.load_json(document)
        except (KeyError, TypeError, ValueError):
            continue
        accepted = True
    return accepted


def check_tags(data: bytes) -> bool:
    """Any text is a filter or rejected."""
    try:
        parse_tag_expression(data.decode(errors="replace"))
    except ValueError:
        return False
    return True


def check_condition(data: bytes) -> bool:
    """Any text is a condition that properties fulfil, do not fulfil, or leave open; or it is rejected with its
    place.
    """
    text = data.decode(errors="replace")
    try:
        condition = parse(text)
    except FilterSyntaxError as error:
        place = error.position
    else:
        for properties in ({}, {"a": "3", "region": "east"}, {"a": text, "region": text}):
            assert condition.evaluate(properties) in (True, False, None)
        return True
    assert 1 <= place <= len(text) + 1
    return False


def check_message_id(data: bytes) -> bool:
    """An id by position is rejected, or is the id of the place that it names."""
    text = data.decode(errors="replace")
    try:
        host, port, log_offset = parse_offset_message_id(text)
    except IllegalArgumentError:
        return False
    assert offset_message_id(host, port, log_offset) == text.upper()
    return True


def check_log(data: bytes) -> bool:
    """What the scan finds covers the files without a gap, and every record in it is sealed."""
    disk, folder = SimDisk(), Path("/log")
    disk.make_dirs(folder)
    padded = data[: 2 * LOG_FILE_BYTES].ljust(-(-max(1, len(data)) // LOG_FILE_BYTES) * LOG_FILE_BYTES, b"\0")
    for start in range(0, len(padded), LOG_FILE_BYTES):
        disk.open(folder / f"{start:020d}", create=True).pwrite(padded[start : start + LOG_FILE_BYTES], 0)
    files = SegmentFiles(PooledFiles(disk, 1), folder, folder, LOG_FILE_BYTES)
    at = 0
    for found in scan_log(files, 0, files.capacity_end):
        assert found.log_offset == at
        assert found.size > 0
        at += found.size
    assert at == files.capacity_end
    try:
        return decode_record(padded).log_offset == 0
    except RecordError:
        return False


def check_index(data: bytes) -> bool:
    """Every search ends, and recovery takes the file back to any number or rejects."""
    disk, path = SimDisk(), Path("/0")
    disk.open(path, create=True).pwrite(data, 0)
    try:
        file = IndexFile(disk, path, INDEX)
    except ValueError:
        return False
    for key_hash in range(INDEX.slots):
        assert len(list(file.find(key_hash, 0, 1 << 60))) <= INDEX.entries
    try:
        file.recover(10)
    except ValueError:
        return False
    for key_hash in range(INDEX.slots):
        list(file.find(key_hash, 0, 1 << 60))
    return True


def check_replica_frame(data: bytes) -> bool:
    """A frame of a replica is rejected, or means the same when it is sent on."""
    try:
        frame = replica_frame(replication_service_pb2.ReplicaFrame.FromString(data))
    except (DecodeError, ValueError):
        return False
    assert replica_frame(replica_frame_message(frame)) == frame
    return True


def check_master_frame(data: bytes) -> bool:
    """A frame of a master is rejected, or means the same when it is sent on."""
    try:
        frame = master_frame(replication_service_pb2.MasterFrame.FromString(data))
    except (DecodeError, ValueError):
        return False
    assert master_frame(master_frame_message(frame)) == frame
    return True


def check_remoting(data: bytes) -> bool:
    """Any pieces give the same commands and the same error; a command that is given can be sent on, and is the same."""
    whole, pieces = Decoder(FRAME_LIMITS), Decoder(FRAME_LIMITS)
    commands = whole.feed(data)
    step = len(data) % 7 + 1
    in_pieces = [one for at in range(0, len(data), step) for one in pieces.feed(data[at : at + step])]
    assert in_pieces == commands
    assert str(pieces.error) == str(whole.error)
    for command in commands:
        assert Decoder().feed(encode(command)) == [command]
    return bool(commands) and whole.error is None


def targets() -> list[Target]:
    """Everything that is fuzzed."""
    properties = [record[-100:] for record in stored_records()] + [b"a\x01b\x02KEYS\x01k1 k2\x02", b""]
    checkpoint = Checkpoint(1 << 33, 77, 1_700_000_000_000).encode()
    watermark = encode_slot(4_711).ljust(512, b"\0") + encode_slot(4_712).ljust(512, b"\0")
    return [
        Target("record", [*sent_records(), *stored_records()], check_records, 3),
        Target("records", [b"".join(stored_records()), *sent_batches()], check_records, 2),
        Target("seal", stored_records(), check_sealed),
        Target("batch", sent_batches(), check_one_batch, 4),
        Target("properties", properties, check_properties, 3),
        Target("checkpoint", [checkpoint], check_checkpoint),
        Target("watermark", [watermark], check_watermark),
        Target("document", documents(), check_document, 2),
        Target("tags", [b"*", b"a || b", b"created||paid"], check_tags),
        Target("condition", CONDITIONS, check_condition, 2),
        Target("message id", [b"7F00000100002A9F00000000000493E0"], check_message_id),
        Target("log", log_files(), check_log),
        Target("index", index_images(), check_index),
        Target("replica frame", replica_frames(), check_replica_frame),
        Target("master frame", master_frames(), check_master_frame),
        Target("remoting frame", remoting_frames(), check_remoting, 3),
    ]
