"""The message between the banks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from mqclient import Message

TOPIC = "transfers"
CREDIT = "credit"


@dataclass(frozen=True, slots=True)
class TransferOrder:
    """So much from an account of one bank to an account of the other, in minor units; `transfer_id` names the act."""

    transfer_id: str
    from_account: str
    to_account: str
    amount_minor: int

    def __post_init__(self) -> None:
        if self.amount_minor < 1:
            raise ValueError(f"{self.amount_minor} cannot be transferred; at least 1 is allowed")

    def message(self) -> Message:
        """ "Credit B", which has to go out exactly if A was debited."""
        return Message(TOPIC, json.dumps(asdict(self)).encode(), tag=CREDIT, keys=self.transfer_id)


def read_order(body: bytes) -> TransferOrder:
    """The order of a message that `message` has made."""
    return TransferOrder(**json.loads(body))
