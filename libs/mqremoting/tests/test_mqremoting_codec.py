"""Frames as RocketMQ writes them, byte for byte, and any commands in any pieces."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mqremoting import Command, Decoder, FrameError, FrameLimits, Language, Serialization, encode
from mqremoting.command import ONE_WAY, RESPONSE

INT = st.integers(-(1 << 31), (1 << 31) - 1)
SHORT = st.integers(-(1 << 15), (1 << 15) - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
COMMANDS = st.builds(
    Command,
    code=SHORT,
    opaque=INT,
    flag=INT,
    body=st.binary(max_size=300),
    ext_fields=st.dictionaries(TEXT, TEXT, max_size=4) | st.just({}),
    remark=TEXT | st.just(""),
    language=st.sampled_from(Language),
    version=SHORT,
    serialization=st.sampled_from(Serialization),
)


def decode(data: bytes) -> Command:
    decoder = Decoder()
    (command,) = decoder.feed(data)
    assert decoder.error is None
    assert not decoder.has_partial_frame
    return command


def error_of(data: bytes, limits: FrameLimits | None = None) -> str:
    decoder = Decoder(limits or FrameLimits())
    assert decoder.feed(data) == []
    assert decoder.error is not None
    return str(decoder.error)


def frame(header: bytes, body: bytes = b"", kind: int = 1) -> bytes:
    """A frame by hand."""
    return struct.pack(">II", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def json_frame(**fields: object) -> bytes:
    return frame(json.dumps(fields).encode(), kind=0)


def fields(*pairs: tuple[bytes, bytes]) -> bytes:
    data = b"".join(struct.pack(">h", len(k)) + k + struct.pack(">i", len(v)) + v for k, v in pairs)
    return struct.pack(">i", len(data)) + data


FIXED = struct.pack(">hBhii", 105, 0, 401, 7, 0)
NO_REMARK = struct.pack(">i", 0)


def test_a_header_in_the_rocketmq_form_is_read_as_it_is_written_down() -> None:
    header = FIXED + struct.pack(">i", 4) + b"oops" + fields((b"topic", b"orders"), (b"a", b""))
    command = decode(frame(header, b"body"))
    assert command == Command(
        105, 7, 0, b"body", {"topic": "orders", "a": ""}, "oops", Language.JAVA, 401, Serialization.ROCKETMQ
    )
    assert command.size == 8 + len(header) + 4
    assert encode(command) == frame(header, b"body")


def test_the_smallest_frame_is_29_bytes() -> None:
    data = encode(Command(20_000, opaque=1))
    assert data == bytes.fromhex("00000019 01000015 4e20 03 0000 00000001 00000000 00000000 00000000".replace(" ", ""))
    assert len(data) == 29
    assert decode(data) == Command(20_000, opaque=1)


def test_a_header_in_json_is_read_as_rocketmq_writes_it() -> None:
    header = (
        b'{"code":0,"extFields":{"msgId":"7F01","queueId":"3"},"flag":1,"language":"JAVA","opaque":9,'
        b'"remark":"done","serializeTypeCurrentRPC":"JSON","version":465}'
    )
    command = decode(frame(header, b"\x00", kind=0))
    assert command == Command(
        0, 9, RESPONSE, b"\x00", {"msgId": "7F01", "queueId": "3"}, "done", Language.JAVA, 465, Serialization.JSON
    )
    assert (command.is_response, command.is_one_way) == (True, False)
    assert json.loads(encode(command)[8:-1]) == json.loads(header)


def test_a_header_in_json_may_lack_anything_have_null_and_have_more() -> None:
    empty = Command(0, language=Language.OTHER, serialization=Serialization.JSON)
    assert decode(json_frame()) == empty
    everything = ("code", "flag", "language", "opaque", "remark", "extFields", "version")
    assert decode(json_frame(**dict.fromkeys(everything))) == empty
    assert decode(json_frame(suspended=False, more={"a": [{"b": [1]}]})) == empty
    assert decode(json_frame(extFields={"a": None, "b": 1, "c": True, "d": 1.5})).ext_fields == {
        "b": "1",
        "c": "true",
        "d": "1.5",
    }


@pytest.mark.parametrize(
    ("language", "known"),
    [("GO", Language.GO), (9, Language.GO), ("COBOL", Language.OTHER), (99, Language.OTHER), ([], Language.OTHER)],
)
def test_a_language_in_json_is_a_name_or_a_number_and_may_be_unknown(language: object, known: Language) -> None:
    assert decode(json_frame(language=language)).language is known


def test_an_unknown_language_in_the_rocketmq_form_is_another() -> None:
    assert decode(frame(struct.pack(">hBhiiii", 1, 200, 0, 1, 0, 0, 0))).language is Language.OTHER
    assert decode(frame(struct.pack(">hBhii", 1, 200, 0, 1, 0) + NO_REMARK + fields((b"a", b"b")))).ext_fields


@given(COMMANDS)
def test_what_is_encoded_is_decoded_as_it_was(command: Command) -> None:
    assert decode(encode(command)) == command


@given(st.lists(COMMANDS, max_size=6), st.lists(st.integers(0, 3_000), max_size=12))
def test_pieces_of_any_size_give_the_same_commands(commands: list[Command], cuts: list[int]) -> None:
    data = b"".join(map(encode, commands))
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    decoder = Decoder()
    decoded = [one for begin, end in pairwise(places) for one in decoder.feed(data[begin:end])]
    assert decoded == commands
    assert decoder.error is None
    assert not decoder.has_partial_frame


@given(st.lists(COMMANDS, max_size=3))
def test_single_bytes_give_the_same_commands(commands: list[Command]) -> None:
    decoder = Decoder()
    data = b"".join(map(encode, commands))
    assert [one for at in range(len(data)) for one in decoder.feed(data[at : at + 1])] == commands


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (struct.pack(">II", (16 << 20) + 1, 0), "the frame: 16,777,217 bytes behind its length; at most 16,777,216"),
        (struct.pack(">iI", -1, 0), "the frame: 4,294,967,295 bytes behind its length; at most 16,777,216"),
        (struct.pack(">II", 0, 0), "the frame: 0 bytes behind its length; at least 4 are needed"),
        (struct.pack(">II", 4, 0), "no JSON"),
        (struct.pack(">II", 3, 1 << 24 | 21), "the frame: 3 bytes behind its length"),
        (struct.pack(">II", 20, 1 << 24 | 21), "the header: 21 bytes, of which the frame has room for 16"),
        (struct.pack(">II", 1 << 20, 131_073), "the header: 131,073 bytes; at most 131,072 are allowed"),
        (frame(b"{}", kind=2), "serialize type 2; 0 (JSON) and 1 (ROCKETMQ) are allowed"),
        (frame(b"{}", kind=255), "serialize type 255"),
        (frame(FIXED + b"\0\0\0"), "the header: 16 bytes; the ROCKETMQ form has at least 21"),
        (frame(FIXED + struct.pack(">ii", -1, 0)), "the remark: -1 bytes, of which the header has 4"),
        (frame(FIXED + struct.pack(">ii", 5, 0)), "the remark: 5 bytes, of which the header has 4"),
        (
            frame(FIXED + struct.pack(">i", 2) + b"ab" + b"\0\0"),
            "the length of the fields: the header ends after 2 of 4",
        ),
        (frame(FIXED + NO_REMARK + struct.pack(">i", -4)), "the fields: -4 bytes; 0 are left"),
        (frame(FIXED + NO_REMARK + fields() + b"x"), "the fields: 0 bytes; 1 are left of the header for them"),
        (frame(FIXED + NO_REMARK + struct.pack(">ih", 2, -1)), "the name of a field: -1 bytes"),
        (
            frame(FIXED + NO_REMARK + struct.pack(">ihsi", 7, 1, b"a", 2)),
            "field 'a': 2 bytes, of which the header has 0",
        ),
        (
            frame(FIXED + NO_REMARK + struct.pack(">ihs", 3, 1, b"a")),
            "the length of a value: the header ends after 0 of 4",
        ),
        (frame(FIXED + NO_REMARK + fields((b"\xff", b""))), "the name of a field is not UTF-8"),
        (frame(b"\xff", kind=0), "no JSON in UTF-8"),
        (frame(b"[]", kind=0), "the header is a list in JSON; an object is allowed"),
        (frame(b"{} x", kind=0), "no JSON"),
        (frame(b'{"code":NaN}', kind=0), "NaN is no number of JSON"),
        (frame(b'{"code":' + b"9" * 5_000 + b"}", kind=0), "no JSON"),
        (frame(b"[" * 100_000, kind=0), "nested too deep in JSON; at most 8 levels"),
        (frame(b'{"a":' * 9 + b"1" + b"}" * 9, kind=0), "nested too deep"),
        (json_frame(code="10"), "code is '10' in JSON; a whole number of 32 bits is allowed"),
        (json_frame(opaque=1 << 31), "opaque is 2147483648 in JSON"),
        (json_frame(flag=True), "flag is True in JSON"),
        (json_frame(extFields=[]), "extFields is a list in JSON"),
        (json_frame(extFields={"a": {}}), "field 'a' is an object in JSON; a text is allowed"),
        (json_frame(remark=["a"]), "the remark is a list in JSON"),
        (json_frame(remark="\ud800"), "the remark has half of a surrogate pair"),
        (json_frame(extFields={"n" * 1_025: ""}), "the name of a field: 1,025 bytes; at most 1,024 are allowed"),
        (json_frame(extFields={"a": "v" * 65_537}), "field 'a': 65,537 bytes; at most 65,536 are allowed"),
        (json_frame(extFields={str(n): "" for n in range(257)}), "the fields: 257 entries; at most 256 are allowed"),
        (frame(FIXED + NO_REMARK + fields(*[(b"%d" % n, b"") for n in range(257)])), "the fields: 257 entries"),
        (frame(FIXED + NO_REMARK + fields((b"n" * 1_025, b""))), "the name of a field: 1,025 bytes; at most 1,024"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "the peer speaks HTTP/2, which gRPC speaks; this port takes RocketMQ's"),
        (b"GET / HTTP/1.1\r\n", "the peer speaks HTTP;"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "the peer speaks TLS;"),
    ],
)
def test_what_is_no_frame_is_rejected_with_what_is_wrong_and_what_is_allowed(data: bytes, sentence: str) -> None:
    assert sentence in error_of(data)


def test_brackets_inside_texts_are_not_nesting() -> None:
    value = '[{"\\"[[[' * 50
    assert decode(json_frame(extFields={"a": value})).ext_fields == {"a": value}


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (Command(200_050), "code 200050, version 0, opaque 0 or flag 0 is out of range"),
        (Command(1, remark="x", version=40_000), "of 16 bits (JSON has 32)"),
        (Command(1 << 31, serialization=Serialization.JSON), "code and version of 32 bits"),
        (Command(1, body=bytes(16 << 20)), "at most 16,777,216 are allowed"),
        (Command(1, body=bytes(16 << 20), remark="x"), "at most 16,777,216 are allowed"),
        (Command(1, remark="\ud800"), "half of a surrogate pair"),
        (Command(1, ext_fields={"n" * 1_025: ""}), "the name of a field: 1,025 bytes"),
        (Command(1, ext_fields=dict.fromkeys(map(str, range(257)), "")), "the fields: 257 entries"),
        (Command(1, ext_fields={"a": "v" * 60_000, "b": "v" * 60_000, "c": "v" * 60_000}), "the header: 180,0"),
        (Command(1, remark="x" * 65_537, serialization=Serialization.JSON), "the remark: 65,537 bytes"),
    ],
)
def test_a_command_that_does_not_fit_is_rejected_where_it_is_encoded(command: Command, sentence: str) -> None:
    with pytest.raises(FrameError) as raised:
        encode(command)
    assert sentence in str(raised.value)


def test_codes_of_pop_consumption_fit_in_json_only() -> None:
    command = Command(200_050, serialization=Serialization.JSON)
    assert decode(encode(command)) == command


def test_commands_before_a_malformed_frame_are_given_and_none_after_it() -> None:
    good = encode(Command(1, body=b"x"))
    decoder = Decoder()
    assert decoder.feed(good + good + frame(b"{", kind=0) + good) == [Command(1, body=b"x")] * 2
    assert isinstance(decoder.error, FrameError)
    assert decoder.feed(good) == []
    assert not decoder.has_partial_frame


def test_a_large_body_in_pieces_is_a_view_and_is_fed_in_linear_time() -> None:
    body = bytes(range(256)) * 4_096
    data = encode(Command(1, body=body, flag=ONE_WAY))
    began = time.thread_time()
    decoder = Decoder()
    commands = [one for at in range(len(data)) for one in decoder.feed(data[at : at + 1])]
    assert time.thread_time() - began < 20  # copying all at each byte would take minutes
    (command,) = commands
    assert isinstance(command.body, memoryview)
    assert command.body.readonly
    assert command.body == body


def test_a_small_body_does_not_keep_the_bytes_with_which_it_came() -> None:
    small, large = Command(1, body=b"s" * 10), Command(2, body=b"l" * 1_000)
    first, second = Decoder().feed(encode(small) + encode(large))
    assert type(first.body) is bytes
    assert isinstance(second.body, memoryview)


def test_a_decoder_holds_no_more_than_what_has_come() -> None:
    announced = encode(Command(1, body=bytes(8 << 20)))[:100]
    tracemalloc.start()
    try:
        decoders = [Decoder() for _ in range(1_000)]
        assert all(decoder.feed(announced) == [] and decoder.has_partial_frame for decoder in decoders)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_memory_that_its_owner_writes_again_does_not_change_a_command() -> None:
    buffer = bytearray(encode(Command(1, body=b"first")))
    (command,) = Decoder().feed(buffer)
    buffer[-5:] = b"other"
    assert command.body == b"first"
