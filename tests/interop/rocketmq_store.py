"""Apache RocketMQ's own store library at work on a folder, driven by the few lines of Java beside this file.

Invariant: each call is one JVM, which has ended when the call returns. RocketMQ recovers on load, and writes while it
does, so a folder that has to stay as it is wants to be copied first.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from store_content import KeyName, StoreContent, StoredMessage, StoreSizes

from mqproto.properties import CRC32
from mqproto.record import CRC_MASK

PROJECT = Path(__file__).parent
MAIN = "hourglass.interop.Main"
BUILD_TIMEOUT_S = 300  # the first time, Maven fetches what it needs
RUN_TIMEOUT_S = 60
JVM_OPTIONS = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


class RocketMQError(RuntimeError):
    """The JVM ended with an error; the message has what it said."""


@dataclass(frozen=True, slots=True)
class WantedMessage:
    """What a producer gives RocketMQ's broker, which puts it into the store."""

    topic: str
    queue_id: int
    body: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 1
    reconsume_times: int = 0

    def stored(self, put: Mapping[str, int], tags_code: int) -> StoredMessage:
        """This message as the store has to have it, at the place that RocketMQ has named."""
        log_offset, size = put["commitLogOffset"], put["storeSize"]
        return StoredMessage(
            topic=self.topic,
            queue_id=self.queue_id,
            queue_offset=put["queueOffset"],
            log_offset=log_offset,
            size=size,
            body=self.body,
            body_crc=zlib.crc32(self.body) & CRC_MASK,
            properties=dict(self.properties),
            flag=self.flag,
            sys_flag=self.sys_flag,
            born_timestamp_ms=self.born_timestamp_ms,
            born_ip="127.0.0.1",
            store_timestamp_ms=put["storeTimestamp"],
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=0,
            entry=(log_offset, size, tags_code),
        )

    def to_json(self) -> str:
        """The line that the Java side reads."""
        return json.dumps(
            {
                "topic": self.topic,
                "queueId": self.queue_id,
                "body": base64.b64encode(self.body).decode(),
                "properties": dict(self.properties),
                "flag": self.flag,
                "sysFlag": self.sys_flag,
                "bornTimestamp": self.born_timestamp_ms,
                "reconsumeTimes": self.reconsume_times,
            }
        )


@dataclass(frozen=True, slots=True)
class RocketMQ:
    """The built program; `sizes` are those of the stores that it opens."""

    classpath: str
    sizes: StoreSizes = field(default_factory=StoreSizes)

    @classmethod
    def build(cls, folder: Path) -> RocketMQ:
        """Compile into `folder`, with the artefacts beside it. Raises RocketMQError."""
        command = ["mvn", "--batch-mode", "--quiet", "--file", str(PROJECT / "pom.xml"), f"-Dbuild.folder={folder}"]
        _run([*command, "package"], "", BUILD_TIMEOUT_S)
        return cls(f"{folder / 'classes'}:{folder / 'lib'}/*")

    def read(self, store: Path, keys: Iterable[KeyName] = ()) -> tuple[StoreContent, dict[KeyName, list[int]]]:
        """Everything in the store, and the log offsets that its index has for each of `keys`. Changes the folder."""
        questions = [json.dumps({"topic": topic, "key": key}) for topic, key in keys]
        answers = self._run("read", store, questions)
        queues = {
            (one["topic"], one["queueId"]): (one["minOffset"], one["maxOffset"]) for one in _of_kind("queue", answers)
        }
        messages = [_message(one) for one in _of_kind("message", answers)]
        # After a kill, RocketMQ puts the last message of a full index file into the next file as well.
        found = {(one["topic"], one["key"]): sorted(set(one["offsets"])) for one in _of_kind("found", answers)}
        return StoreContent.collect(_of_kind("loaded", answers)[0]["maxOffset"], queues, messages), found

    def write(self, store: Path, wanted: Sequence[WantedMessage], *, die: bool) -> list[dict[str, int]]:
        """Append to the store, made if need be; returns where each message stands. Ends like a kill with `die`."""
        return self._write("write-and-die" if die else "write", store, wanted)

    def write_unsealed(self, store: Path, wanted: Sequence[WantedMessage]) -> list[dict[str, int]]:
        """The same, ending like a kill, with records that have no CRC property: RocketMQ's default."""
        return self._write("write-unsealed", store, wanted)

    def _write(self, command: str, store: Path, wanted: Sequence[WantedMessage]) -> list[dict[str, int]]:
        return _of_kind("put", self._run(command, store, [one.to_json() for one in wanted]))

    def _run(self, command: str, store: Path, lines: Sequence[str]) -> list[dict[str, Any]]:
        sizes = (
            self.sizes.commit_log_file_bytes,
            self.sizes.consume_queue_file_entries * 20,
            self.sizes.index_hash_slots,
            self.sizes.index_entries,
        )
        java = ["java", *JVM_OPTIONS, "-cp", self.classpath, MAIN, command, str(store), *map(str, sizes)]
        output = _run(java, "".join(f"{line}\n" for line in lines), RUN_TIMEOUT_S)
        return [json.loads(line) for line in output.splitlines()]


def copy_of(store: Path, target: Path) -> Path:
    """The store once more, for a reader that writes; returns `target`."""
    return shutil.copytree(store, target)


def _of_kind(kind: str, answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [answer["value"] for answer in answers if answer["kind"] == kind]


def _message(value: Mapping[str, Any]) -> StoredMessage:
    properties = dict(value["properties"])
    del properties[CRC32]  # each record has it; RocketMQ has compared it with the bytes
    log_offset, size, tags_code = value["entry"]
    return StoredMessage(
        topic=value["topic"],
        queue_id=value["queueId"],
        queue_offset=value["queueOffset"],
        log_offset=value["commitLogOffset"],
        size=value["storeSize"],
        body=base64.b64decode(value["body"]),
        body_crc=value["bodyCRC"],
        properties=properties,
        flag=value["flag"],
        sys_flag=value["sysFlag"],
        born_timestamp_ms=value["bornTimestamp"],
        born_ip=value["bornHost"],
        store_timestamp_ms=value["storeTimestamp"],
        reconsume_times=value["reconsumeTimes"],
        prepared_transaction_offset=value["preparedTransactionOffset"],
        entry=(log_offset, size, tags_code),
    )


def _run(command: Sequence[str], lines: str, timeout_s: float) -> str:
    run = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=timeout_s, check=False)
    if run.returncode:
        raise RocketMQError(f"{command[0]} ended with {run.returncode}:\n{run.stdout[-2_000:]}\n{run.stderr[-4_000:]}")
    return run.stdout
