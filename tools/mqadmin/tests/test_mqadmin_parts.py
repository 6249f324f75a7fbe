"""The common parts: times, bodies, tables, and asking several brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import typer

from mqadmin.errors import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_USAGE, exit_code_of
from mqadmin.output import (
    JsonStream,
    Table,
    body_text,
    duration_text,
    parse_time,
    printable,
    show,
    show_table,
    time_fields,
    time_text,
)
from mqadmin.world import ask_each
from mqclient import (
    BrokerRejectedError,
    BrokerUnreachableError,
    IllegalArgumentError,
    MQClientError,
    NoRouteError,
    OutcomeUnknownError,
    UnknownTransportError,
)
from mqclient.admin import ClusterBroker
from mqproto.codes import ResponseCode

NOON_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine nine hours ahead of UTC."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class TestTimes:
    @pytest.mark.parametrize(
        ("text", "ms"),
        [
            ("now", 77),
            (" 1769860800000 ", NOON_MS),
            ("0", 0),
            ("2026-01-31T12:00:00Z", NOON_MS),
            ("2026-01-31 12:00:00.001Z", NOON_MS + 1),
            ("2026-01-31T13:00:00+01:00", NOON_MS),
            ("2026-01-31#21:00:00:250", NOON_MS + 250),  # RocketMQ's, in the machine's zone
            ("2026-01-31T21:00:00", NOON_MS),
            ("2026-01-31", NOON_MS - 21 * 3_600_000),
        ],
    )
    @pytest.mark.usefixtures("tokyo")
    def test_every_form_is_taken(self, text: str, ms: int) -> None:
        assert parse_time(text, 77) == ms

    @pytest.mark.parametrize("text", ["", "yesterday", "-5", "2026-02-30", "2026-01-31#25:00:00:000", "1e9", "²"])
    def test_what_is_no_time_is_rejected_with_what_is_allowed(self, text: str) -> None:
        with pytest.raises(typer.BadParameter, match="is no time; write now, milliseconds since 1970"):
            parse_time(text, 0)

    @pytest.mark.parametrize("ms", [1, NOON_MS, NOON_MS + 7, NOON_MS - 1])
    def test_what_is_shown_is_taken_again(self, ms: int) -> None:
        assert parse_time(time_text(ms), 0) == ms

    def test_a_time_of_the_same_day_goes_without_its_date(self) -> None:
        assert time_text(NOON_MS + 1, beside_ms=NOON_MS) == "12:00:00.001Z"
        assert time_text(NOON_MS + 86_400_000, beside_ms=NOON_MS) == "2026-02-01 12:00:00.000Z"

    def test_zero_is_no_time(self) -> None:
        assert time_text(0) == "-"
        assert time_fields("at", 0) == {"at": None, "at_ms": None}
        assert time_fields("at", NOON_MS) == {"at": "2026-01-31T12:00:00.000Z", "at_ms": NOON_MS}

    @pytest.mark.parametrize(
        ("ms", "text"),
        [(0, "0 ms"), (999, "999 ms"), (1_500, "1.5 s"), (90_000, "1.5 min"), (7_200_000, "2 h"), (259_200_000, "3 d")],
    )
    def test_a_duration_has_the_unit_that_fits(self, ms: int, text: str) -> None:
        assert duration_text(ms) == text


class TestBodies:
    def test_text_is_text_and_the_rest_is_hex(self) -> None:
        assert body_text("ключ".encode()) == ("ключ", "utf-8")
        assert body_text(b"\xff\x00") == ("ff00", "hex")
        assert body_text("你".encode("gbk"), "GBK") == ("你", "GBK")

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("plain ключ 你", "plain ключ 你"),
            ("\x1b]0;x\x07", r"\x1b]0;x\x07"),
            ("a\tb", r"a\tb"),
            ("\u2028", r"\u2028"),
        ],
    )
    def test_what_is_not_printable_is_escaped(self, text: str, shown: str) -> None:
        assert printable(text) == shown


class TestTables:
    def test_a_row_is_one_line_however_long_and_numbers_stand_to_the_right(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        show_table(Table(("name", "count", "flag"), [("x" * 500, 7, True), ("y", 1_000, None)], footer=("", "end")))
        head, first, second, *rest = capsys.readouterr().out.splitlines()
        assert head.split() == ["name", "count", "flag"]
        assert first == f"{'x' * 500}      7  yes"
        assert second == f"y{' ' * 499}   1000  -"
        assert rest == ["", "end"]

    def test_without_rows_there_is_the_head(self, capsys: pytest.CaptureFixture[str]) -> None:
        show_table(Table(("a", "b"), []))
        assert capsys.readouterr().out == "a  b\n"

    def test_markup_of_strangers_is_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        show_table(Table(("key",), [("[bold]x[/bold]",), ("\x1b[31m",)]))
        assert capsys.readouterr().out == "key\n[bold]x[/bold]\n\\x1b[31m\n"

    def test_tables_stand_apart(self, capsys: pytest.CaptureFixture[str]) -> None:
        show({}, Table(("a",), [("1",)], title="first"), Table(("b",), [("2",)]), as_json=False)
        assert capsys.readouterr().out == "first\na\n1\n\nb\n2\n"

    def test_a_stream_of_items_is_one_document(self, capsys: pytest.CaptureFixture[str]) -> None:
        with JsonStream("items") as stream:
            for number in range(2):
                stream.add({"n": number})
        assert capsys.readouterr().out == '{"items": [\n{"n": 0},\n{"n": 1}\n]}\n'


BROKERS = [ClusterBroker("c", name, 0, f"{name}:1") for name in ("a", "b", "d")]


class TestAskingSeveral:
    async def test_a_broker_that_fails_does_not_keep_the_others_from_answering(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        async def step(broker: ClusterBroker) -> str:
            if broker.broker_name == "b":
                raise BrokerUnreachableError("nothing listens")
            return broker.address

        answers = await ask_each(BROKERS, step)
        assert [answer for _, answer in answers.given] == ["a:1", "d:1"]
        assert answers.failures() == [
            {
                "cluster_name": "c",
                "broker_name": "b",
                "broker_id": 0,
                "broker_address": "b:1",
                "error": "nothing listens",
            }
        ]
        with pytest.raises(typer.Exit) as ended:
            answers.end()
        assert ended.value.exit_code == EXIT_FAILED
        assert capsys.readouterr().err == "mqadmin: b: nothing listens\n"

    async def test_what_the_client_does_not_even_ask_ends_it(self) -> None:
        async def step(_: ClusterBroker) -> None:
            raise IllegalArgumentError("senseless")

        with pytest.raises(IllegalArgumentError):
            await ask_each(BROKERS, step)

    async def test_without_failures_the_end_is_quiet(self) -> None:
        async def step(_: ClusterBroker) -> None:
            return None

        (await ask_each(BROKERS, step)).end()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NoRouteError("x"), EXIT_FAILED),
        (OutcomeUnknownError("x"), EXIT_FAILED),
        (OSError("x"), EXIT_FAILED),
        (BrokerRejectedError(ResponseCode.NO_PERMISSION, "x", "b"), EXIT_FAILED),
        (BrokerRejectedError(ResponseCode.QUERY_NOT_FOUND, "x", "b"), EXIT_NOT_FOUND),
        (IllegalArgumentError("x"), EXIT_USAGE),
        (UnknownTransportError("x"), EXIT_USAGE),
    ],
)
def test_an_error_has_its_exit_code(error: MQClientError | OSError, code: int) -> None:
    assert exit_code_of(error) == code
