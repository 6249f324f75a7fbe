"""The client of a worker: kept for the next task, closed for another cluster's, and no thread of it left."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from mqclient import IllegalArgumentError, IllegalStateError
from pyspark_mq.clients import ClientKey, client_of, close_idle

HERE, THERE = ClientKey("mq://127.0.0.1:1"), ClientKey("mq://127.0.0.1:2")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_idle()
    assert [one.name for one in threading.enumerate() if one.name.startswith(("mqclient", "pyspark_mq"))] == []


def test_the_next_task_has_the_same_client() -> None:
    with client_of(HERE) as first:
        pass
    with client_of(HERE) as second, client_of(HERE) as at_the_same_time:
        assert first is second is at_the_same_time


def test_a_task_about_another_cluster_closes_the_unused_one() -> None:
    with client_of(HERE) as idle:
        pass
    with client_of(THERE) as used:
        with pytest.raises(IllegalStateError):
            idle.admin.topic_list()
        with client_of(HERE) as again:
            assert again is not idle
            assert used.users == 1


def test_a_client_that_cannot_be_made_is_told_and_not_kept() -> None:
    with pytest.raises(IllegalArgumentError), client_of(ClientKey("mq://nowhere")):
        raise AssertionError


def test_importing_the_package_starts_nothing_and_leaves_grpc_alone() -> None:
    """Spark imports it in a daemon that forks its workers, and in a process that asks for the schema alone."""
    script = (
        "import sys, threading, pyspark_mq; "
        "assert pyspark_mq.DefaultSource.name() == 'mq'; "
        "assert pyspark_mq.DefaultSource({}).schema() == pyspark_mq.SCHEMA; "
        "assert 'grpc' not in sys.modules and 'pyarrow' not in sys.modules; "
        "assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
