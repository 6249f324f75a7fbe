"""AdminService: what an operator asks of this broker."""

from __future__ import annotations

from typing import Any

from hourglass.mq.v1 import admin_service_pb2 as pb
from hourglass.mq.v1 import admin_service_pb2_grpc, common_pb2
from mq_broker.processor.broker import Broker
from mq_broker.rpc.conversions import topic_config
from mq_broker.rpc.registration import Registration
from mq_broker.schedule.delay_service import LevelStatistics


class AdminService(admin_service_pb2_grpc.AdminServiceServicer):
    """The RPCs of `hourglass.mq.v1.AdminService`."""

    def __init__(self, broker: Broker, registration: Registration) -> None:
        self._broker = broker
        self._registration = registration

    async def UpdateTopic(self, request: pb.UpdateTopicRequest, context: Any) -> pb.UpdateTopicResponse:  # noqa: N802
        try:
            await self._broker.update_topic(topic_config(request.config))
        except ValueError as error:
            return pb.UpdateTopicResponse(code=common_pb2.MESSAGE_ILLEGAL, remark=str(error))
        except OSError as error:
            return pb.UpdateTopicResponse(code=common_pb2.SYSTEM_ERROR, remark=str(error))
        await self._registration.announce()
        return pb.UpdateTopicResponse()

    async def GetBrokerStatus(  # noqa: N802
        self, request: pb.GetBrokerStatusRequest, context: Any
    ) -> pb.GetBrokerStatusResponse:
        broker = self._broker
        levels = broker.options.delay_levels
        nothing = LevelStatistics()
        return pb.GetBrokerStatusResponse(
            broker_name=broker.options.identity.broker_name,
            broker_id=broker.options.identity.broker_id,
            boot_timestamp_ms=broker.boot_timestamp_ms,
            log_min_offset=broker.store.log_begin,
            log_max_offset=broker.store.log_end,
            messages_put=broker.store.messages_put,
            messages_got=broker.pulling.messages_got,
            messages_stored=broker.store.messages_stored,
            polls_held=broker.long_polling.held,
            delay_levels=[
                pb.DelayLevelStatus(
                    level=level,
                    delay_ms=levels.delay_ms(level),
                    waiting=broker.delay.waiting(level),
                    delivered=broker.delay.statistics.get(level, nothing).delivered,
                    lateness_max_ms=broker.delay.statistics.get(level, nothing).lateness_max_ms,
                )
                for level in range(1, levels.highest + 1)
            ],
            store=self._store_status(),
        )

    def _store_status(self) -> pb.StoreStatus:
        store, retention = self._broker.store, self._broker.retention
        return pb.StoreStatus(
            confirm_offset=store.readable_end,
            durable_offset=store.flusher.durable_end,
            indexed_offset=store.index.indexed_end,
            disk_used_share=store.gate.used_share,
            write_refusal=f"the disk has failed: {store.failure}" if store.failure else store.gate.refusal or "",
            damaged=[pb.DamagedStretch(log_offset=at, size=size) for at, size in store.quarantine],
            files_deleted=retention.files_deleted,
            messages_carried=retention.carried,
        )
