"""Each native method has a request code of its own, in the range that is ours."""

from __future__ import annotations

from hourglass.mq.v1 import admin_service_pb2, broker_service_pb2, name_service_pb2, replication_service_pb2
from mqproto.request_codes import REQUEST_CODES

FILES = (name_service_pb2, broker_service_pb2, admin_service_pb2, replication_service_pb2)


def test_each_method_of_the_contract_has_a_request_code_and_no_other() -> None:
    methods = {
        f"/{service.full_name}/{method.name}"
        for file in FILES
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert methods == REQUEST_CODES.keys()


def test_codes_are_different_and_in_the_range_that_rocketmq_leaves_free() -> None:
    codes = list(REQUEST_CODES.values())
    assert len(set(codes)) == len(codes)
    assert all(20_000 <= code <= 20_999 for code in codes)


def test_a_code_once_given_stays() -> None:
    known = {"QueryRoute": 20_002, "Produce": 20_100, "Poll": 20_102, "RecallMessage": 20_116, "BecomeSlave": 20_222}
    assert {path.rpartition("/")[2]: code for path, code in REQUEST_CODES.items()}.items() >= known.items()
