"""haStatus and switchMaster on a master and its replica, and how the other commands show a replica."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from mqadmin.testing import Operator, operated_pair
from mqclient import BrokerUnreachableError, NoRouteError
from mqclient.admin import Epoch
from mqclient.testing import FakeBroker
from mqclient.transport import methods
from osenv import SimClock

A, B = "127.0.0.1:10911", "127.0.0.1:10912"
SWITCH = ("switchMaster", "-b", "broker-a")
STATUS_HEAD = [
    *("broker", "id", "address", "role", "writes", "epoch", "log end", "readable", "lag bytes", "lag", "in sync"),
    "slaves",
]


class RestlessClock(SimClock):
    """After the second sleep it is enough."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == 2:
            raise NoRouteError("enough")


@dataclass
class Pair:
    operator: Operator
    master: FakeBroker
    replica: FakeBroker


@pytest.fixture
def pair() -> Iterator[Pair]:
    with operated_pair() as (operator, master, replica):
        yield Pair(operator, master, replica)


class TestStatus:
    def test_a_master_and_its_replica(self, pair: Pair) -> None:
        pair.master.admin.replica.epoch = Epoch(7, 3)
        outcome = pair.operator("haStatus")
        assert outcome.exit_code == 0
        master, replica = ["broker-a", "0", A, "ASYNC_MASTER"], ["broker-a", "1", B, "SLAVE"]
        assert outcome.rows == [
            STATUS_HEAD,
            [*master, "accepted", "7.3", "1000", "1000", "-", "-", "2 (at least 1)", "1 in sync"],
            [*replica, "by its master", "7.3", "1000", "1000", "0", "0.0 s", "yes", "connected"],
        ]

    @pytest.mark.parametrize(
        ("ahead_ms", "text"), [(-3_600_000, "1 in sync, its clock -3600.0 s"), (1_999, "1 in sync")]
    )
    def test_a_replica_whose_clock_differs(self, pair: Pair, ahead_ms: int, text: str) -> None:
        pair.replica.admin.replica.clock_ahead_ms = ahead_ms
        assert pair.operator("haStatus").rows[1][-1] == text

    def test_a_replica_that_is_behind(self, pair: Pair) -> None:
        replica = pair.replica.admin.replica
        replica.behind, replica.in_sync = 70, False
        _, master, row = pair.operator("haStatus").rows
        assert master[-2:] == ["1 (at least 1)", "1 70 bytes behind"]
        assert row[-6:] == ["930", "930", "70", "1.5 s", "no", "connected"]

    def test_a_replica_that_is_away(self, pair: Pair) -> None:
        pair.replica.unary_errors[methods.GET_REPLICA_STATUS.path].append(BrokerUnreachableError("nothing listens"))
        pair.replica.admin.replica.epoch = Epoch(9, 0)  # follows no master of a lower epoch
        outcome = pair.operator("haStatus", "-c", "fake")
        assert (outcome.exit_code, outcome.stderr) == (1, "mqadmin: broker-a: nothing listens\n")
        assert outcome.rows[1][-1] == "1 is away"
        assert outcome.rows[2] == ["broker-a", "1", B, "-", "no answer", *"-------"]

    def test_a_master_that_has_stepped_down(self, pair: Pair) -> None:
        pair.master.admin.replica.writable = False
        rows = pair.operator("haStatus", "-b", A).rows
        assert rows[1][3:5] == ["ASYNC_MASTER", "refused"]
        assert rows[2] == ["broker-a 0: it has stepped down"]
        assert len(pair.operator("haStatus", "-b", "broker-a").rows) == 4

    def test_a_reason_ends_before_the_account_of_the_transport(self, pair: Pair) -> None:
        pair.master.admin.replica.writable = False
        pair.master.admin.replica.rejection = "the stream is gone: cannot connect; last error: UNKNOWN: ipv4:127.0.0.1"
        assert pair.operator("haStatus", "-b", A).rows[2] == ["broker-a 0: the stream is gone: cannot connect"]

    def test_an_unknown_broker_is_an_error(self, pair: Pair) -> None:
        outcome = pair.operator("haStatus", "-b", "broker-x")
        assert (outcome.exit_code, outcome.stderr) == (1, "mqadmin: no broker 'broker-x' is registered\n")

    def test_a_repeated_table_is_no_document(self, pair: Pair) -> None:
        assert pair.operator("haStatus", "-i", "1", "--json").exit_code == 2

    def test_the_table_comes_again_every_interval(self, pair: Pair) -> None:
        pair.operator.clock = clock = RestlessClock()
        outcome = pair.operator("haStatus", "-i", "7")
        assert clock.slept == [7, 7]
        assert outcome.stdout.count("SLAVE") == 2
        assert (outcome.exit_code, outcome.stderr) == (1, "mqadmin: enough\n")


class TestSwitch:
    @pytest.mark.parametrize("to", ["1", B])
    def test_roles_swap(self, pair: Pair, to: str) -> None:
        outcome = pair.operator(*SWITCH, "--to", to)
        assert (outcome.exit_code, outcome.stderr) == (0, "")
        assert outcome.rows == [
            ["broker", "master", "role", "epoch", "from offset", "slaves now"],
            ["broker-a", B, "ASYNC_MASTER", "2.0", "1000", f"1: {A}"],
        ]
        assert [row[1:4] for row in pair.operator("haStatus").rows[1:]] == [["0", B, "ASYNC_MASTER"], ["1", A, "SLAVE"]]

    def test_a_second_run_says_that_it_is_done(self, pair: Pair) -> None:
        pair.operator(*SWITCH, "--to", B)
        outcome = pair.operator(*SWITCH, "--to", B)
        assert (outcome.exit_code, outcome.stderr) == (0, f"mqadmin: {B} was the master already\n")

    def test_a_replica_that_does_not_catch_up_is_not_promoted(self, pair: Pair) -> None:
        pair.replica.admin.replica.behind = 10
        outcome = pair.operator(*SWITCH, "--to", "1", "--timeout", "5")
        assert (outcome.exit_code, outcome.stdout) == (1, "")
        assert f"up to 990, not to 1000, after 5 s; {A} is the master again, in epoch 2.0" in outcome.stderr

    def test_one_that_is_not_in_sync_is_rejected_unless_forced(self, pair: Pair) -> None:
        pair.replica.admin.replica.in_sync = False
        outcome = pair.operator(*SWITCH, "--to", "1")
        assert (outcome.exit_code, outcome.stderr) == (1, f"mqadmin: {B} is not in sync: it is 0 bytes behind\n")
        assert pair.operator(*SWITCH, "--to", "1", "--force").exit_code == 0

    def test_a_lost_master_is_replaced_by_the_replica(self, pair: Pair) -> None:
        rejected = pair.operator(*SWITCH, "--oldMasterIsLost")
        assert (rejected.exit_code, f"the master answers, at {A}" in rejected.stderr) == (1, True)
        pair.master.down = True
        outcome = pair.operator(*SWITCH, "--oldMasterIsLost", "--role", "ASYNC_MASTER")
        assert outcome.rows[1] == ["broker-a", B, "ASYNC_MASTER", "2.0", "1000", "-"]

    @pytest.mark.parametrize(
        ("flags", "sentence"),
        [
            ((), "name the new master with --to"),
            (("--to", "broker-b"), "--to 'broker-b' is neither a broker id nor an address (host:port)"),
            (("--to", "9"), f"broker-a has no replica 9; there are: 0 at {A}, 1 at {B}"),
            (("--to", "1", "--timeout", "0"), "Invalid value for '--timeout'"),
            (("--to", "1", "--role", "SLAVE"), "Invalid value for '--role'"),
        ],
    )
    def test_wrong_usage_asks_for_no_change(self, pair: Pair, flags: tuple[str, ...], sentence: str) -> None:
        outcome = pair.operator(*SWITCH, *flags)
        assert (outcome.exit_code, sentence in outcome.stderr) == (2, True), outcome.stderr
        assert pair.master.admin.replica.requests == []


class TestOtherCommands:
    def test_the_cluster_list_shows_who_is_written_by_its_master(self, pair: Pair) -> None:
        rows = pair.operator("clusterList").rows
        assert [(row[2], row[3], row[-1]) for row in rows[1:]] == [("0", A, "accepted"), ("1", B, "by its master")]

    def test_the_status_of_a_cluster_has_its_replicas_too(self, pair: Pair) -> None:
        document = pair.operator("brokerStatus", "-c", "fake", "--json").json
        assert [(one["broker_id"], one["broker_address"]) for one in document["brokers"]] == [(0, A), (1, B)]
        rows = pair.operator("brokerStatus", "-b", B).rows
        assert ["broker id", "1, a replica"] in rows
        assert ["writes", "by its master"] in rows
        assert ["broker id", "0, the master"] in pair.operator("brokerStatus", "-b", A).rows

    def test_the_configuration_of_a_cluster_has_its_replicas_too(self, pair: Pair) -> None:
        document = pair.operator("brokerConfig", "-c", "fake", "--json").json
        assert [one["broker_address"] for one in document["brokers"]] == [A, B]
