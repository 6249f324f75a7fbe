"""Consumers hear at once that topics to which they subscribe have been created, changed or deleted.

Invariant: a change is registered with every connected name server before any consumer hears of it, so that the route
for which it asks then has the change; a name server that does not confirm in time is not waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mq_broker.core.topics import TopicTable, is_group_topic
from mq_broker.processor.sessions import Sessions


async def _no_name_server() -> None:
    """There is nothing to register with."""


@dataclass
class RouteNotices:
    """`announce` returns when the name servers know the topics as they are now."""

    topics: TopicTable
    sessions: Sessions
    announce: Callable[[], Awaitable[None]] = _no_name_server

    async def run(self) -> None:
        """Pass on every change until cancelled; what changes while one is being registered goes out together."""
        changed = asyncio.Event()
        changed.set()  # by what came before this call
        forget = self.topics.on_change(changed.set)
        try:
            while True:
                await changed.wait()
                changed.clear()
                topics = {topic for topic in self.topics.take_changed() if not is_group_topic(topic)}
                if topics:
                    await self.announce()
                    self.sessions.tell_route_changed(topics)
        finally:
            forget()
