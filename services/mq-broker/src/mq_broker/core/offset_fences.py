"""Who commits late after a reset changes nothing: the fence between what a group had consumed before and what it gets
now (MISSION L13).

A member that has not heard of the reset goes on where it was, and commits that. So after a reset to X a commit of that
queue counts only from X up to as far as the group has been handed messages again, in one piece from X on. The fence
falls with the first commit that counts after everything was handed out again that the queue had when it was reset: by
then a late commit can be no other than one of now.

Invariants: a fenced offset never leaves [X, handed out again]; fences are of this process, as the members' sessions
are.
"""

from __future__ import annotations

from dataclasses import dataclass

_Key = tuple[str, str, int]  # group, topic, queue id


@dataclass(slots=True)
class _Fence:
    """`offset` is where the group was sent, `reached` the end of what it got from there, `end` the queue's end then."""

    offset: int
    reached: int
    end: int


class OffsetFences:
    """The fences that stand, by group and queue."""

    def __init__(self) -> None:
        self._fences: dict[_Key, _Fence] = {}

    def __bool__(self) -> bool:
        return bool(self._fences)

    def raise_at(self, group: str, topic: str, queue_id: int, offset: int, end: int) -> None:
        """The group has been sent to `offset` of a queue that ends at `end`."""
        self._fences[group, topic, queue_id] = _Fence(offset, offset, end)

    def handed_out(self, group: str, topic: str, queue_id: int, begin: int, end: int) -> None:
        """The group has got the queue's messages from `begin` to `end` - 1, or heard that there are none."""
        fence = self._fences.get((group, topic, queue_id))
        if fence is not None and begin <= fence.reached:
            fence.reached = max(fence.reached, end)

    def passes(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a commit of `offset` counts; one that does takes the fence down when nothing late can come."""
        key = group, topic, queue_id
        fence = self._fences.get(key)
        if fence is None:
            return True
        if not fence.offset <= offset <= fence.reached:
            return False
        if fence.reached >= fence.end:
            del self._fences[key]
        return True

    def fenced(self, group: str) -> list[tuple[str, int]]:
        """The group's queues that have a fence: (topic, queue id)."""
        return [(topic, queue_id) for one, topic, queue_id in self._fences if one == group]

    def forget_topic(self, topic: str) -> None:
        """The topic is gone."""
        self._fences = {key: fence for key, fence in self._fences.items() if key[1] != topic}

    def forget_group(self, group: str) -> None:
        """The group is gone."""
        self._fences = {key: fence for key, fence in self._fences.items() if key[0] != group}
