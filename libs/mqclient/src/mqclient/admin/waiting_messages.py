"""Messages that wait, taken back or given another time by an operator."""

from __future__ import annotations

from datetime import datetime

from mqclient.admin.asking import AdminCalls
from mqclient.recall import RecallResult, recall, reschedule


class WaitingMessageAdmin(AdminCalls):
    """What `Producer.recall` and `Producer.reschedule` do, with the same results and errors, without a group.

    Otherwise than with other changes all brokers are asked at the same time, also when one of them fails.
    """

    async def recall_message(
        self, topic: str, *, key: str | None = None, message_id: str | None = None
    ) -> RecallResult:
        """As `Producer.recall`."""
        self._lifecycle.require_running()
        return await recall(self._instance, topic, key=key, message_id=message_id)

    async def reschedule_message(
        self,
        topic: str,
        *,
        key: str | None = None,
        message_id: str | None = None,
        delay_ms: int | None = None,
        deliver_at: datetime | None = None,
    ) -> RecallResult:
        """As `Producer.reschedule`."""
        self._lifecycle.require_running()
        return await reschedule(
            self._instance, topic, key=key, message_id=message_id, delay_ms=delay_ms, deliver_at=deliver_at
        )
