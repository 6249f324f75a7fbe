"""The command line itself: errors are sentences, and docs/reference/mqadmin.md tells the truth about all flags."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from mqadmin import errors
from mqadmin.__main__ import app
from mqadmin.errors import REJECTED
from mqadmin.testing import run_command

PAGE = (Path(__file__).parents[3] / "docs/reference/mqadmin.md").read_text(encoding="utf-8")
FLAG_ROW = re.compile(r"\| (\w+) \| `([^`]+)` \| (.+?) \|")
EVERYWHERE = {"-n", "--namesrvAddr", "--json", "-h", "--help"}
UNREACHABLE = "127.0.0.1:1"
OFFLINE = {"restore"}
COMMANDS = [
    *("updateTopic", "deleteTopic", "topicList", "topicRoute", "topicStatus", "clusterList", "brokerStatus"),
    *("brokerConfig", "updateSubGroup", "consumerProgress", "resetOffsetByTime", "queryMsgByKey", "queryMsgById"),
    *("queryMsgByUniqueKey", "printMsg", "sendMessage", "consumeMessage", "deleteSubGroup", "updateTopicPerm"),
    *("explain", "consumerConnection", "consumerStatus", "consumeMessageDirectly", "resetOffsetByOffset"),
    *("delayStatus", "recallMessage", "rescheduleMessage", "backup", "restore", "haStatus", "switchMaster"),
]


def flag_rows() -> list[tuple[str, list[str], bool]]:
    """(command, flags, whether they are rejected) of each row of the table."""
    table = PAGE.partition("## Commands and flags")[2].partition("\n## ")[0]
    return [(row[1], row[2].split(), row[3].startswith("rejected")) for row in FLAG_ROW.finditer(table)]


@functools.cache
def built() -> TyperGroup:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    return group


def flags_of(command: str) -> set[str]:
    return {flag for parameter in built().commands[command].params for flag in parameter.opts if flag.startswith("-")}


def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
    outcome = run_command(*arguments, environment={"NAMESRV_ADDR": None, **environment})
    return outcome.exit_code, outcome.stdout, outcome.stderr


class TestReadme:
    @pytest.mark.mechanism("Q2")
    def test_every_command_of_the_issue_is_there(self) -> None:
        assert set(COMMANDS) == set(built().commands) - {"getBrokerConfig", "help", "dlq", "tx"}
        assert flags_of("getBrokerConfig") == flags_of("brokerConfig")

    def test_the_table_has_the_flags_that_the_parser_takes(self) -> None:
        told: dict[str, set[str]] = {command: set() for command in COMMANDS}
        for command, flags, rejected in flag_rows():
            told[command] |= set() if rejected else set(flags)
        assert told == {command: flags_of(command) - EVERYWHERE for command in COMMANDS}

    def test_the_table_has_the_flags_that_are_rejected(self) -> None:
        told = {(command, flag) for command, flags, rejected in flag_rows() if rejected for flag in flags}
        assert told == set(REJECTED)

    def test_every_command_takes_what_every_command_takes(self) -> None:
        for command in COMMANDS:
            here = EVERYWHERE - {"-h", "--help"} - ({"-n", "--namesrvAddr"} if command in OFFLINE else set())
            assert flags_of(command) >= here

    def test_the_exit_codes_are_those_of_the_program(self) -> None:
        codes = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
        assert codes == {value for name, value in vars(errors).items() if name.startswith("EXIT_")}


class TestRejected:
    @pytest.mark.parametrize(("command", "flag"), sorted(REJECTED))
    def test_a_flag_that_means_nothing_here_says_why(self, command: str, flag: str) -> None:
        code, stdout, stderr = run(command, flag, "x", NAMESRV_ADDR=UNREACHABLE)
        assert (code, stdout) == (2, "")
        assert stderr == f"mqadmin: {command} does not take {flag}: {REJECTED[command, flag]}\n"

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["topicStatus", "-t", "orders", "-z"], "No such option: -z (see mqadmin topicStatus --help)"),
            (["topicStatus"], "Missing option '-t' / '--topic' (see mqadmin topicStatus --help)"),
            (["topicStatus", "-t"], "Option '-t' requires an argument (see mqadmin --help)"),
            (["explain"], "Missing argument 'KEY' (see mqadmin explain --help)"),
            (["explain", "a", "b"], "Got unexpected extra argument(s) (b) (see mqadmin explain --help)"),
            (["topiclist"], "No such command 'topiclist'. Did you mean 'topicList'"),
            (["lag"], "No such command 'lag'. Did you mean 'consumerProgress'? (see mqadmin --help)"),
            (["help", "nothing"], "there is no sub-command 'nothing'; mqadmin --help names all"),
        ],
    )
    def test_wrong_usage_is_one_sentence_and_exit_code_2(self, arguments: list[str], sentence: str) -> None:
        code, stdout, stderr = run(*arguments, NAMESRV_ADDR=UNREACHABLE)
        assert (code, stdout, stderr.count("\n")) == (2, "", 1)
        assert stderr.startswith(f"mqadmin: {sentence}")


class TestNameServers:
    def test_without_name_servers_nothing_is_asked(self) -> None:
        code, _, stderr = run("topicList")
        assert code == 2
        assert "'-n' / '--namesrvAddr' (env var: 'NAMESRV_ADDR')" in stderr

    @pytest.mark.parametrize("text", ["nonsense", "host:0", "a:1,b:2", "ftp://a:1", "memory://nobody"])
    def test_an_address_that_is_none_is_wrong_usage(self, text: str) -> None:
        code, _, stderr = run("topicList", "-n", text)
        assert (code, stderr.count("\n")) == (2, 1)

    @pytest.mark.parametrize(
        ("flags", "environment"),
        [
            ((), {"NAMESRV_ADDR": UNREACHABLE}),
            (("-n", f"{UNREACHABLE};127.0.0.1:2"), {}),
            (("--namesrvAddr", UNREACHABLE), {"NAMESRV_ADDR": "nonsense"}),
            (("-n", f"mq://{UNREACHABLE}"), {}),
        ],
    )
    def test_name_servers_that_do_not_answer_are_exit_code_1(
        self, flags: tuple[str, ...], environment: dict[str, str]
    ) -> None:
        code, stdout, stderr = run("topicList", *flags, **environment)
        assert (code, stdout, stderr.count("\n")) == (1, "", 1)
        assert stderr.startswith("mqadmin: no name server answered: 127.0.0.1:")
        assert f"{UNREACHABLE}: UNAVAILABLE" in stderr


class TestHelp:
    def test_alone_it_shows_its_commands(self) -> None:
        code, stdout, _ = run()
        assert code == 0
        assert all(f" {command} " in stdout for command in COMMANDS)
        assert "getBrokerConfig " not in stdout
        assert run("--help")[:2] == run("-h")[:2] == (0, stdout)

    @pytest.mark.parametrize("command", COMMANDS)
    def test_help_shows_a_command_s_flags(self, command: str) -> None:
        code, stdout, _ = run("help", command)
        assert code == 0
        assert f"mqadmin {command}" in stdout
        assert all(flag in stdout for flag in flags_of(command))
        assert "\x1b" not in stdout
        assert run(command, "-h")[1].split() == stdout.split()

    def test_the_version_is_the_package_s(self) -> None:
        assert run("--version") == (0, "mqadmin 0.1.0\n", "")
