"""Records out of a frame: what is whole comes out as it was stored, and nothing else comes out."""

from __future__ import annotations

import gc

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mqproto.record import (
    BODY_AT,
    CRC_BYTES,
    FLAG_BORN_HOST_V6,
    FLAG_COMPRESSED,
    FLAG_STORE_HOST_V6,
    OFFSETS,
    OFFSETS_AT,
    RecordError,
    decode_record,
    encode_record,
    iter_sealed_records,
    pack_ip,
    seal,
)


def stored(body: bytes, *, queue_offset: int = 0, sys_flag: int = 0, reconsume_times: int = 0) -> bytes:
    """A record as a broker has stored it."""
    data = bytearray(
        encode_record(
            topic=b"orders",
            body=body,
            properties=b"TAGS\x01created\x02",
            queue_id=3,
            born_timestamp_ms=1,
            born_ip=pack_ip("10.0.0.1"),
            sys_flag=sys_flag,
            reconsume_times=reconsume_times,
        )
    )
    OFFSETS.pack_into(data, OFFSETS_AT, queue_offset, 1_000 * queue_offset)
    seal(data, 0, len(data))
    return bytes(data)


RECORD = stored(b"body", queue_offset=7)


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=2_000),
            st.integers(0, 2**63 // 1_000 - 1),
            st.sampled_from([0, FLAG_COMPRESSED]),
            st.integers(0, 2**31 - 1),
        ),
        max_size=5,
    )
)
def test_every_record_comes_out_as_it_was_stored(wanted: list[tuple[bytes, int, int, int]]) -> None:
    parts = [
        stored(body, queue_offset=offset, sys_flag=flag, reconsume_times=times) for body, offset, flag, times in wanted
    ]
    found = list(iter_sealed_records(b"".join(parts)))
    assert [(one.body, one.queue_offset, one.sys_flag, one.reconsume_times) for one in found] == wanted
    assert [one.size for one in found] == [len(part) for part in parts]
    assert [one.decode() for one in found] == [decode_record(part) for part in parts]


def test_no_flipped_bit_comes_out() -> None:
    for at in range(len(RECORD)):
        for bit in range(8):
            flipped = bytearray(RECORD)
            flipped[at] ^= 1 << bit
            with pytest.raises(RecordError):
                list(iter_sealed_records(bytes(flipped)))


def test_no_piece_of_a_record_comes_out() -> None:
    for end in range(1, len(RECORD)):
        with pytest.raises(RecordError):
            list(iter_sealed_records(RECORD[:end]))


@given(st.binary(min_size=1, max_size=400))
def test_arbitrary_bytes_do_not_come_out(data: bytes) -> None:
    with pytest.raises(RecordError):
        list(iter_sealed_records(data))


def test_records_before_the_damaged_one_come_out_and_the_sentence_says_which_it_is() -> None:
    damaged = bytearray(RECORD)
    damaged[BODY_AT] ^= 1
    records = iter_sealed_records(RECORD + damaged)
    assert next(records).body == b"body"
    with pytest.raises(RecordError, match="the record of log offset 7000 is damaged: CRC mismatch"):
        next(records)


def test_record_without_a_crc_property_is_damaged() -> None:
    data = bytearray(stored(bytes(100)))
    data[-CRC_BYTES] = ord("x")  # a property of another name
    with pytest.raises(RecordError, match="CRC mismatch"):
        list(iter_sealed_records(bytes(data)))


@pytest.mark.parametrize("flag", [FLAG_BORN_HOST_V6, FLAG_STORE_HOST_V6])
def test_what_a_record_is_not_is_said_as_decoding_says_it(flag: int) -> None:
    with pytest.raises(RecordError, match="the record at 0 has IPv6 hosts; only IPv4 is supported"):
        list(iter_sealed_records(stored(b"body", sys_flag=flag)))


def test_record_that_waits_does_not_keep_its_frame() -> None:
    frame = RECORD * 3
    (first, *_) = iter_sealed_records(frame)
    kept = gc.get_referents(first)
    assert not any(one is frame for one in [*kept, *gc.get_referents(*kept)])
