"""Which queues a member of a group gets (MISSION C13-C18): one strategy a module, with RocketMQ's names and rules.

Every member computes its share for itself from the same sorted lists; that they agree is the whole coordination. So all
members of a group need the same strategy with the same settings. A client that is not among the members gets nothing:
the broker does not count it as one.
"""

from mqclient.consumer.allocate.averagely import AllocateMessageQueueAveragely
from mqclient.consumer.allocate.averagely_by_circle import AllocateMessageQueueAveragelyByCircle
from mqclient.consumer.allocate.by_config import AllocateMessageQueueByConfig
from mqclient.consumer.allocate.by_machine_room import AllocateMessageQueueByMachineRoom
from mqclient.consumer.allocate.consistent_hash import AllocateMessageQueueConsistentHash
from mqclient.consumer.allocate.machine_room_nearby import AllocateMachineRoomNearby, MachineRoomResolver
from mqclient.consumer.allocate.strategy import AllocateMessageQueueStrategy

__all__ = [
    "AllocateMachineRoomNearby",
    "AllocateMessageQueueAveragely",
    "AllocateMessageQueueAveragelyByCircle",
    "AllocateMessageQueueByConfig",
    "AllocateMessageQueueByMachineRoom",
    "AllocateMessageQueueConsistentHash",
    "AllocateMessageQueueStrategy",
    "MachineRoomResolver",
]
