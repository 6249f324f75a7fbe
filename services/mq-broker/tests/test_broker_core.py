"""The pure parts: delay levels, broker time, tag filter, topics, offsets, members, batches."""

from __future__ import annotations

from struct import pack_into

import pytest

from mq_broker.core.batches import CQ_ENTRY, BatchError, check_batch, patch_batch
from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.delays import DEFAULT_DELAY_LEVELS, DelayLevels
from mq_broker.core.halves import HalfError, half_batch
from mq_broker.core.members import HEARTBEAT_EXPIRY_MS, GroupMembers
from mq_broker.core.pulling import parse_tag_expression
from mq_broker.core.topics import TopicConfig, TopicTable
from mq_broker.testing import BORN_IP, client, producer_record
from mqproto.names import DEFAULT_TOPIC, SCHEDULE_TOPIC, SYSTEM_TOPICS, IllegalNameError
from mqproto.properties import encode_properties, java_string_hash
from mqproto.record import BODY_AT, BODY_BYTES_MAX, CRC_BYTES, decode_record, encode_record, is_sealed, iter_records
from osenv import SimClock


class TestDelayLevels:
    @pytest.mark.mechanism("D1")
    def test_there_are_18_levels_and_16_is_30_minutes(self) -> None:
        levels = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
        seconds = [ms // 1000 for ms in levels.delays_ms]
        assert seconds == [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
        assert (levels.highest, levels.delay_ms(16)) == (18, 30 * 60 * 1000)

    def test_a_level_above_the_highest_is_the_highest(self) -> None:
        assert DelayLevels.parse("1s 2s").effective(99) == 2

    @pytest.mark.parametrize("text", ["", "1", "1s 5x", "0s", "-1s", "41d", "1.5s"])
    def test_bad_syntax_is_rejected(self, text: str) -> None:
        with pytest.raises(ValueError, match="messageDelayLevel"):
            DelayLevels.parse(text)

    def test_a_shorter_table_brings_forward_and_a_longer_one_changes_nothing(self) -> None:
        stored, due_then = 1_000, 11_000
        assert DelayLevels.parse("5s").due_ms(1, stored, due_then) == 6_000
        assert DelayLevels.parse("1m").due_ms(1, stored, due_then) == due_then
        assert DelayLevels.parse("5s").due_ms(2, stored, due_then) == due_then


class TestBrokerTime:
    async def test_a_wall_clock_that_steps_does_not_move_it(self) -> None:
        clock = SimClock(wall_ms=1_000_000)
        time = BrokerTime(wall_ms=clock.wall_ms(), monotonic=clock.monotonic)
        clock.set_wall_ms(0)
        await clock.advance(2.5)
        assert time.now_ms() == 1_002_500

    def test_it_starts_at_the_newest_store_timestamp_when_the_wall_clock_is_behind(self) -> None:
        clock = SimClock(wall_ms=1_000)
        assert BrokerTime(wall_ms=1_000, monotonic=clock.monotonic, newest_store_ms=5_000).now_ms() == 5_000

    async def test_waiting_as_long_as_it_says_is_enough(self) -> None:
        clock = SimClock()
        await clock.advance(123_456.789)
        time = BrokerTime(wall_ms=clock.wall_ms(), monotonic=clock.monotonic)
        due_ms = time.now_ms() + 1_000
        await clock.advance(time.seconds_until(due_ms))
        assert time.now_ms() == due_ms


class TestTagFilter:
    def test_star_and_empty_pass_everything(self) -> None:
        assert parse_tag_expression("*").passes(7)
        assert parse_tag_expression(" ").passes(0)

    def test_alternatives_pass_their_hashes_only(self) -> None:
        tags = parse_tag_expression("created || paid")
        assert tags.passes(java_string_hash("paid"))
        assert not tags.passes(java_string_hash("closed"))

    @pytest.mark.parametrize("expression", ["a ||", "|| a", "a || * "])
    def test_what_makes_no_sense_is_rejected(self, expression: str) -> None:
        with pytest.raises(ValueError, match="tag expression"):
            parse_tag_expression(expression)


class TestTopics:
    def table(self, *, auto_create: bool = True) -> TopicTable:
        return TopicTable(auto_create=auto_create, default_queue_count=4, delay_level_count=18)

    @pytest.mark.mechanism("N8")
    def test_an_unknown_topic_is_made_with_four_queues(self) -> None:
        config = self.table().get_or_offer("orders")
        assert config == TopicConfig("orders", 4, 4, 6)

    def test_without_auto_creation_it_stays_unknown(self) -> None:
        table = self.table(auto_create=False)
        assert table.get_or_offer("orders") is None
        assert {config.topic for config in table.all()} == SYSTEM_TOPICS - {DEFAULT_TOPIC}

    @pytest.mark.parametrize(
        "config",
        [
            TopicConfig("or ders", 4, 4),
            TopicConfig("orders", 0, 4),
            TopicConfig("orders", 4, 2_000),
            TopicConfig("orders", 4, 4, 8),
            TopicConfig("orders", 4, 4, 1),
            TopicConfig(SCHEDULE_TOPIC, 4, 4),
        ],
    )
    def test_a_bad_update_is_rejected_and_changes_nothing(self, config: TopicConfig) -> None:
        table = self.table()
        before = table.data_version
        with pytest.raises(ValueError):
            table.update(config)
        assert table.data_version == before

    def test_every_change_is_announced_and_counted(self) -> None:
        table = self.table()
        changes: list[int] = []
        before = table.data_version
        table.on_change(lambda: changes.append(table.data_version))
        table.update(TopicConfig("orders", 2, 2))
        table.update(TopicConfig("orders", 2, 2))
        table.recovered("orders", 4, 0)
        assert changes == [before + 1, before + 2]
        assert table.get("orders") == TopicConfig("orders", 5, 2)

    def test_json_round_trip(self) -> None:
        table, other = self.table(), self.table()
        table.update(TopicConfig("orders", 8, 4, 4))
        other.load_json(table.to_json())
        assert other.all() == table.all()


class TestMembers:
    def test_joining_and_leaving_change_the_group_and_a_plain_heartbeat_does_not(self) -> None:
        members: GroupMembers[str] = GroupMembers()
        groups = client("a", "g")
        assert members.heartbeat(groups, "session", 0) == {"g"}
        assert members.heartbeat(groups, "session", 1) == set()
        assert members.consumer_ids("g") == ["a"]
        assert members.heartbeat(client("a"), "session", 2) == {"g"}
        assert members.consumer_ids("g") == []

    def test_the_end_of_an_old_session_does_not_remove_the_client(self) -> None:
        members: GroupMembers[str] = GroupMembers()
        groups = client("a", "g")
        members.heartbeat(groups, "old", 0)
        members.heartbeat(groups, "new", 1)
        assert members.leave("a", "old") == set()
        assert members.leave("a", "new") == {"g"}

    def test_silence_is_death(self) -> None:
        members: GroupMembers[str] = GroupMembers()
        members.heartbeat(client("a", "g"), "session", 0)
        assert members.expire(HEARTBEAT_EXPIRY_MS) == set()
        assert members.expire(HEARTBEAT_EXPIRY_MS + 1) == {"g"}


def flipped(record: bytes, at: int) -> bytes:
    return record[:at] + bytes((record[at] ^ 1,)) + record[at + 1 :]


def with_int(record: bytes, at: int, value: int) -> bytes:
    changed = bytearray(record)
    pack_into(">i", changed, at, value)
    return bytes(changed)


RECORD = producer_record("orders", b"body", queue_id=1, tag="created", key="o-1")


class TestBatches:
    def check(self, records: bytes, count: int = 1) -> object:
        return check_batch("orders", 1, count, records, BODY_BYTES_MAX)

    def test_records_get_their_places_and_are_sealed(self) -> None:
        batch = check_batch("orders", 1, 2, RECORD + RECORD, BODY_BYTES_MAX)
        entries = patch_batch(
            batch, queue_offset=7, log_offset=1_000, store_ms=123, store_ip=0x7F000001, store_port=10_911
        )
        first, second = iter_records(bytes(batch.buffer))
        assert (first.queue_offset, first.log_offset, first.store_timestamp_ms) == (7, 1_000, 123)
        assert (second.queue_offset, second.log_offset) == (8, 1_000 + len(RECORD))
        assert second.store_host == ("127.0.0.1", 10_911)
        assert is_sealed(batch.buffer, len(RECORD), len(RECORD))
        code = java_string_hash("created")
        assert list(CQ_ENTRY.iter_unpack(entries)) == [
            (1_000, len(RECORD), code),
            (1_000 + len(RECORD), len(RECORD), code),
        ]
        assert (first.body, first.properties) == (b"body", decode_record(RECORD).properties)

    @pytest.mark.parametrize(
        ("records", "sentence"),
        [
            (b"", "says 1 records and holds 0"),
            (RECORD[:50], "50 bytes are left"),
            (RECORD + b"x", "1 bytes are left"),
            (flipped(RECORD, 5), "magic"),
            (with_int(RECORD, 0, len(RECORD) + 1), "do not fit"),
            (with_int(RECORD, 0, -5), "do not fit"),
            (with_int(RECORD, 12, 2), "does not name the batch's topic"),
            (with_int(RECORD, 36, 1 << 4), "asks for IPv6, or for the end of a transaction"),
            (with_int(RECORD, 36, 2 << 2), "asks for IPv6, or for the end of a transaction"),
            (with_int(RECORD, 84, 0), "at least 1 is needed"),
            (with_int(RECORD, 84, 1 << 30), "do not fit"),
            (flipped(RECORD, BODY_AT), "damaged on its way"),
            (flipped(RECORD, BODY_AT + 5), "does not name the batch's topic"),
            (flipped(RECORD, BODY_AT + 4 + 7 + 1), "length of its properties"),
            (flipped(RECORD, len(RECORD) - 1), "empty CRC property"),
            (flipped(RECORD, len(RECORD) - 5), "empty CRC property"),
            (RECORD.replace(b"created", b"cr\xffated"), "not UTF-8"),
            (RECORD.replace(b"created", b"cre\x01ted"), "not one name"),
            (RECORD + RECORD, "says 1 records and holds 2"),
        ],
    )
    def test_a_malformed_batch_is_rejected_with_the_reason(self, records: bytes, sentence: str) -> None:
        with pytest.raises(BatchError, match=sentence):
            self.check(records)

    def test_another_topic_is_rejected(self) -> None:
        with pytest.raises(BatchError, match="does not name"):
            check_batch("other", 1, 1, RECORD, BODY_BYTES_MAX)

    def test_a_body_over_the_limit_is_rejected(self) -> None:
        with pytest.raises(BatchError, match="at most 3 are allowed"):
            check_batch("orders", 1, 1, RECORD, 3)

    @pytest.mark.parametrize("name", ["REAL_TOPIC", "REAL_QID", "__SCHEDULE_POSITION", "__TRANSACTION_STATE"])
    def test_properties_of_the_broker_are_rejected(self, name: str) -> None:
        properties = encode_properties({"TAGS": "created", name: "1"})
        record = encode_record(
            topic=b"orders", body=b"b", properties=properties, queue_id=1, born_timestamp_ms=1, born_ip=BORN_IP
        )
        with pytest.raises(BatchError, match=f"{name}, which belongs to the broker"):
            self.check(record)

    def test_a_half_message_says_so_in_its_flag_and_in_its_properties(self) -> None:
        for properties, sys_flag in (({"TRAN_MSG": "true"}, 0), ({}, 1 << 2)):
            record = encode_record(
                topic=b"orders",
                body=b"b",
                properties=encode_properties(properties),
                queue_id=1,
                born_timestamp_ms=1,
                born_ip=BORN_IP,
                sys_flag=sys_flag,
            )
            with pytest.raises((BatchError, HalfError), match="TRAN_MSG"):
                half_batch(check_batch("orders", 1, 1, record, BODY_BYTES_MAX), store_ms=1)

    def test_a_tag_may_stand_anywhere_among_the_properties(self) -> None:
        for record in (RECORD, producer_record("orders", b"b", queue_id=1, tag="created")):
            batch = check_batch("orders", 1, 1, record, BODY_BYTES_MAX)
            assert batch.tags_codes == [java_string_hash("created")]
        untagged = check_batch("orders", 1, 1, producer_record("orders", b"b", queue_id=1, key="TAGS"), BODY_BYTES_MAX)
        assert untagged.tags_codes == [0]

    def test_mixed_delay_levels_are_rejected(self) -> None:
        delayed = producer_record("orders", b"b", queue_id=1, delay_level=3)
        assert check_batch("orders", 1, 1, delayed, BODY_BYTES_MAX).delay_level == 3
        with pytest.raises(BatchError, match="mixes the delay levels"):
            self.check(RECORD + delayed, 2)

    def test_every_flipped_byte_is_rejected_or_harmless_but_never_another_error(self) -> None:
        for at in range(len(RECORD)):
            try:
                self.check(flipped(RECORD, at))
            except (BatchError, IllegalNameError):
                continue
            assert 16 <= at < len(RECORD) - CRC_BYTES  # a field that the broker assigns, a property, or the born time
