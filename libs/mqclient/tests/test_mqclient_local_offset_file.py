"""The form of offsets.json: RocketMQ's, and damage that shows (mechanism C2)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqclient import MessageQueue
from mqclient.consumer.broadcast_offsets import decode_offsets, encode_offsets

OFFSETS = {MessageQueue("prices", "broker-a", 0): 17, MessageQueue("prices", "broker-a", 1): 0}

# As RocketMQ's JSON library (fastjson) lays it out.
ROCKETMQ = b"""{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"prices"
\t\t}:17,{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":1,
\t\t\t"topic":"prices"
\t\t}:0
\t}
}"""


def test_it_is_rocketmq_s_with_a_crc_behind_it() -> None:
    content = encode_offsets(OFFSETS)
    assert content.startswith(
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"prices"}:17,\n'
        b'{"brokerName":"broker-a","queueId":1,"topic":"prices"}:0},"crc32":"'
    )
    assert content.endswith(b'"}\n')


@pytest.mark.mechanism("C2")
@pytest.mark.parametrize("content", [ROCKETMQ, ROCKETMQ.translate(None, b" \t\n"), ROCKETMQ + b"\n"])
def test_rocketmq_s_own_files_are_read(content: bytes) -> None:
    assert decode_offsets(content) == OFFSETS


def test_a_table_without_queues_is_one() -> None:
    assert decode_offsets(b'{"offsetTable":{}}') == decode_offsets(encode_offsets({})) == {}


@settings(deadline=None)
@given(
    st.dictionaries(
        st.builds(MessageQueue, st.text(min_size=1, max_size=9), st.text(max_size=9), st.integers(0, 1 << 20)),
        st.integers(0, (1 << 63) - 1),
    )
)
def test_what_was_written_is_read(offsets: dict[MessageQueue, int]) -> None:
    assert decode_offsets(encode_offsets(offsets)) == offsets


@pytest.mark.parametrize("content", [encode_offsets(OFFSETS), ROCKETMQ])
def test_a_file_that_was_cut_off_is_no_file(content: bytes) -> None:
    for length in range(len(content) - 1):
        with pytest.raises(ValueError):
            decode_offsets(content[:length])


def test_no_single_changed_byte_changes_an_offset() -> None:
    content = encode_offsets(OFFSETS)
    for at in range(len(content)):
        for changed in (content[at] ^ 1, content[at] ^ 0x80, ord("}")):
            if changed == content[at]:
                continue
            try:
                offsets = decode_offsets(content[:at] + bytes([changed]) + content[at + 1 :])
            except ValueError:
                continue
            assert offsets == OFFSETS


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"null",
        b'{"offsetTable":{{"topic":"t","queueId":0}:1}}',
        b'{"offsetTable":{{"topic":"t","brokerName":"b","queueId":"0"}:1}}',
        b'{"offsetTable":{{"topic":"t","brokerName":"b","queueId":0}:-1}}',
        b'{"offsetTable":{{"topic":"t","brokerName":"b","queueId":0}:1.5}}',
        b'{"offsetTable":{{"topic":"t","brokerName":"b","queueId":0}:true}}',
        b'{"offsetTable":{' + b"[" * 100_000,
        b'{"offsetTable":{}}}',
        b"\xff\xfe",
    ],
)
def test_what_makes_no_sense_is_damage(content: bytes) -> None:
    with pytest.raises(ValueError):
        decode_offsets(content)
