"""The version of the wire is the one in the name of every package."""

from __future__ import annotations

import pytest

from hourglass.mq.v1 import admin_service_pb2, broker_service_pb2, common_pb2, name_service_pb2
from mqproto.codes import PROTOCOL_VERSION


@pytest.mark.parametrize("file", [admin_service_pb2, broker_service_pb2, common_pb2, name_service_pb2])
def test_the_packages_are_of_the_version(file: object) -> None:
    package: str = file.DESCRIPTOR.package  # type: ignore[attr-defined]
    assert package == f"hourglass.mq.v{PROTOCOL_VERSION}"
