"""The enumerations of `codes` and of the .proto files have the same names and numbers, and one version of the wire."""

from __future__ import annotations

import pytest

from hourglass.mq.v1 import admin_service_pb2, broker_service_pb2, common_pb2, name_service_pb2
from mqproto.codes import PROTOCOL_VERSION, Permission, PullStatus, ResponseCode


def test_response_codes_are_those_of_the_wire() -> None:
    assert {code.name: code.value for code in ResponseCode} == dict(common_pb2.ResponseCode.items())


def test_pull_statuses_are_those_of_the_wire() -> None:
    wire = {name.removeprefix("PULL_STATUS_"): value for name, value in broker_service_pb2.PullStatus.items()}
    assert {status.name: status.value for status in PullStatus} == wire


def test_permission_6_is_read_and_write() -> None:
    assert Permission.READ | Permission.WRITE == Permission.READ_WRITE
    assert {permission.name: permission.value for permission in Permission} == {
        "INHERIT": 1,
        "WRITE": 2,
        "READ": 4,
        "READ_WRITE": 6,
    }


@pytest.mark.parametrize("file", [admin_service_pb2, broker_service_pb2, common_pb2, name_service_pb2])
def test_the_packages_are_of_the_version(file: object) -> None:
    package: str = file.DESCRIPTOR.package  # type: ignore[attr-defined]
    assert package == f"hourglass.mq.v{PROTOCOL_VERSION}"
