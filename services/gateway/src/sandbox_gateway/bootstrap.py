"""Puts the parts together: use cases, routes and background work over whatever ports they are given."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import FastAPI

from osenv import Clock, Rng
from sandbox_gateway.api import UseCases, build_api
from sandbox_gateway.gateway import Behaviour, Decisions, Gateway
from sandbox_gateway.sql import SqlUnitOfWork
from sandbox_gateway.webhooks import DueWork, WebhookReceiver, WebhookSender
from servicekit.monitoring import Health
from servicekit.sql.database import Database, SqlUnits


@dataclass(frozen=True, slots=True)
class Application:
    """The gateway, composed and not started: `background` runs beside the requests, and does what the two before do."""

    gateway: Gateway
    behaviour: Behaviour
    decisions: Decisions
    sender: WebhookSender
    background: tuple[DueWork, ...]
    api: FastAPI


def bootstrap(
    database: Database, receiver: WebhookReceiver, behaviour: Behaviour, clock: Clock, rng: Rng, *, api_key: str
) -> Application:
    """Everything that runs on these ports."""
    units = SqlUnits(database, SqlUnitOfWork)
    sender = WebhookSender(units, receiver, clock, rng)
    sending = DueWork("webhooks", sender.send_due, clock)
    decisions = Decisions(units, behaviour, clock, sending.wake)
    deciding = DueWork("decisions", decisions.decide_due, clock)

    def written() -> None:
        deciding.wake()
        sending.wake()

    gateway = Gateway(units, decisions, behaviour, clock, written)
    # Whether webhooks are taken is no part of its health: it does its work without.
    api = build_api(UseCases(gateway, behaviour, api_key), Health({"database": database.health}, clock), clock)
    return Application(gateway, behaviour, decisions, sender, (deciding, sending), api)
