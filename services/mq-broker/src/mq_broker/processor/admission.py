"""Whom a group takes: names that are legal, subscriptions that can be read, and members that are alike (MISSION C4).

Invariants: a client that is a member already, and says the same again, is not looked at twice; who is refused by one
group is a member of all others that it names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from mq_broker.core.limits import RefusedError, TooManyError
from mq_broker.core.members import ClientGroups, Consumer, GroupMembers
from mq_broker.core.subscription_groups import SubscriptionGroups
from mqproto.codes import ResponseCode
from mqproto.names import IllegalNameError, check_group

S = TypeVar("S")

# Takes expression type and expression; raises ValueError for what cannot be read, PermissionError for what is not on.
ParseFilter = Callable[[str, str], object]

HOW_TO_CHANGE = (
    "members of a group have to subscribe alike; for a rolling change, "
    "`mqadmin updateSubGroup --differentSubscriptions true` lets them differ"
)


@dataclass
class Admission(Generic[S]):
    """Decides which of the groups that a heartbeat names the client may join."""

    groups: SubscriptionGroups
    members: GroupMembers[S]
    parse_filter: ParseFilter

    def admit(self, said: ClientGroups) -> tuple[ClientGroups, list[RefusedError]]:
        """What is left of the heartbeat without the groups that do not take the client, and why they do not.

        A consumer group that is not there is made, when that is allowed.
        """
        refusals: list[RefusedError] = []
        producer_groups: list[str] = []
        consumers: list[Consumer] = []
        for group in sorted(said.producer_groups):
            try:
                _check_name(group)
                producer_groups.append(group)
            except RefusedError as refusal:
                refusals.append(refusal)
        for consumer in said.consumers:
            try:
                self._check(said, consumer)
                consumers.append(consumer)
            except RefusedError as refusal:
                refusals.append(refusal)
        return replace(said, producer_groups=frozenset(producer_groups), consumers=tuple(consumers)), refusals

    def _check(self, said: ClientGroups, consumer: Consumer) -> None:
        """Raise RefusedError unless the client may be a member as it says. Turning a switch off expels nobody."""
        if self.members.consumer(said.client_id, consumer.group) == consumer:
            return
        _check_name(consumer.group)
        self._check_subscriptions(consumer)
        try:
            group = self.groups.get_or_create(consumer.group, said.connection)
        except TooManyError as error:
            sentence = f"group {consumer.group!r} does not exist: {error}"
            raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, sentence) from error
        if group is None:
            sentence = f"group {consumer.group!r} does not exist and autoCreateSubscriptionGroup is false"
            raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, sentence)
        if group.different_subscriptions_allowed:
            return
        difference = self.members.difference(said.client_id, consumer)
        if difference is not None:
            sentence = f"group {consumer.group!r}: {difference}; {HOW_TO_CHANGE}"
            raise RefusedError(ResponseCode.SUBSCRIPTION_NOT_CONSISTENT, sentence)

    def _check_subscriptions(self, consumer: Consumer) -> None:
        for one in consumer.subscriptions:
            try:
                self.parse_filter(one.expression_type, one.expression)
            except (ValueError, PermissionError) as error:
                sentence = f"group {consumer.group!r}, topic {one.topic!r}: {error}"
                raise RefusedError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, sentence) from error


def _check_name(group: str) -> None:
    try:
        check_group(group)
    except IllegalNameError as error:
        raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, str(error)) from error
