"""The sessions of a fake broker: who is a member of which group, what heartbeats are answered, what was commanded."""

from __future__ import annotations

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.testing.fake_channel import FakeStream


class FakeSessions:
    """By stream. The attributes without underscore are the test's to read and to set."""

    def __init__(self) -> None:
        self.heartbeats: list[broker_pb.Heartbeat] = []
        self.answer = broker_pb.HeartbeatAck()  # to a heartbeat that names a consumer, and success to others
        self.command_answers: list[broker_pb.CommandAnswer] = []
        self._members: dict[FakeStream, broker_pb.Heartbeat] = {}

    def request(self, stream: FakeStream, request: broker_pb.SessionRequest, *, silent: bool) -> None:
        """What comes up a session: a heartbeat, or the answer to a command."""
        if request.WhichOneof("event") == "command_answer":
            self.command_answers.append(request.command_answer)
        else:
            self._heartbeat(stream, request.heartbeat, silent=silent)

    def tell(self, command: broker_pb.SessionResponse) -> None:
        """Send the command down every session that is open."""
        for stream in list(self._members):
            stream.answer(command)

    def _heartbeat(self, stream: FakeStream, heartbeat: broker_pb.Heartbeat, *, silent: bool) -> None:
        """Take the client's word, unless `answer` refuses it; tell everybody whose group has changed."""
        self.heartbeats.append(heartbeat)
        if heartbeat.consumers and self.answer.code != common_pb.SUCCESS:
            stream.answer(broker_pb.SessionResponse(heartbeat_ack=self.answer))
            return
        before = _groups(self._members.get(stream))
        self._members[stream] = heartbeat
        if not silent:
            stream.answer(broker_pb.SessionResponse(heartbeat_ack=broker_pb.HeartbeatAck()))
            self.notify(before ^ _groups(heartbeat))

    def ended(self, stream: FakeStream) -> None:
        """The client has left, or its connection is gone."""
        self.notify(_groups(self._members.pop(stream, None)))

    def consumers(self, group: str) -> list[str]:
        """The client ids of the group's members, sorted."""
        return sorted(heartbeat.client_id for heartbeat in self._members.values() if group in _groups(heartbeat))

    def connections(self, group: str) -> list[tuple[str, broker_pb.ConsumerData]]:
        """The members of the group, sorted, each with what it last said of itself."""
        return sorted(
            (
                (heartbeat.client_id, data)
                for heartbeat in self._members.values()
                for data in heartbeat.consumers
                if data.group == group
            ),
            key=lambda member: member[0],
        )

    def producer_groups(self) -> list[str]:
        """Of all members, sorted."""
        return sorted(producer.group for heartbeat in self._members.values() for producer in heartbeat.producers)

    def producer_streams(self, group: str) -> list[FakeStream]:
        """The ways down to the members of the producer group."""
        return [
            stream
            for stream, heartbeat in self._members.items()
            if any(producer.group == group for producer in heartbeat.producers)
        ]

    def notify(self, groups: set[str]) -> None:
        """Tell the members that somebody came or went, or gave queues back."""
        for stream, heartbeat in list(self._members.items()):
            for group in sorted(groups & _groups(heartbeat)):
                changed = broker_pb.ConsumerIdsChanged(group=group)
                stream.answer(broker_pb.SessionResponse(consumer_ids_changed=changed))


def _groups(heartbeat: broker_pb.Heartbeat | None) -> set[str]:
    return {consumer.group for consumer in heartbeat.consumers} if heartbeat is not None else set()
