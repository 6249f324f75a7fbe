"""Figure G9, the HTTP part: requests made of the OpenAPI documents of orders and payments, right ones and wrong ones.

Every answer has to be one that the document promises: a status, a content type and headers that are described, a body
that fits its schema, and never a 5xx. The services run whole, on SQLite, in this process; their clocks stand still.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import requests
import schemathesis
from http_served import Served, body_of, served_orders, served_payments
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from sweep import Outcome

REQUESTS = 2_000  # of one seed
PLAIN_REQUESTS = 5  # of an operation that takes nothing: only who asks makes a difference
CHOICES = 240  # of who asks, what is filled in, what is signed: all of them go up in it
SHOWN_CHARACTERS = 2_000
load_all_checks()
CHECKS_MADE = [
    CHECKS.get_one(name)
    for name in (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
    )
]
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


@dataclass(slots=True)
class Sweeping:
    """One service under its requests."""

    served: Served
    runner: asyncio.Runner
    deadline: float = float("inf")  # of time.monotonic
    counts: Counter[str] = field(default_factory=Counter)
    violations: dict[str, str] = field(default_factory=dict)
    executed: int = 0

    def sweep(self, requests_wanted: int, seed: int) -> None:
        """About so many requests, spread evenly over the operations."""
        document = schemathesis.openapi.from_dict(self.served.document)
        operations = [found.ok() for found in document.get_all_operations() if isinstance(found, Ok)]
        taking = [one for one in operations if one.body or list(one.iter_parameters())]
        share = max(1, (requests_wanted - PLAIN_REQUESTS * (len(operations) - len(taking))) // len(taking))
        for operation in operations:
            if operation not in taking:
                self._sweep_operation(operation, GenerationMode.POSITIVE, PLAIN_REQUESTS, seed)
                continue
            for mode in MODES:
                self._sweep_operation(operation, mode, max(1, share // len(MODES)), seed)

    def _sweep_operation(self, operation: Any, mode: GenerationMode, examples: int, seed: int) -> None:
        places = self.served.places(operation.path)
        cases = st.one_of(
            operation.as_strategy(mode), *(operation.as_strategy(mode, path_parameters=place) for place in places)
        )

        @hypothesis_seed(seed)
        @settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases, choice=st.sampled_from(range(CHOICES)))
        def try_each(case: Any, choice: int) -> None:
            if time.monotonic() < self.deadline:
                self._try(operation, case, choice)

        try_each()

    def _try(self, operation: Any, case: Any, choice: int) -> None:
        self.served.fill_in(case, choice)
        prepared = requests.Request(**_sendable(case.as_transport_kwargs(base_url=self.served.base_url))).prepare()
        self.served.sign(prepared, choice)
        self.executed += 1
        answer = self.runner.run(_send(self.served.http, prepared))
        self.counts[f"{self.served.name} {answer.status_code}"] += 1
        try:
            case.validate_response(answer, checks=CHECKS_MADE)
        except AssertionError as error:  # pytest's own kind too
            self._violation(operation, error)
        except BaseExceptionGroup as group:
            self._violation(operation, group)

    def _violation(self, operation: Any, error: BaseException) -> None:
        self.counts["violations"] += 1
        where = f"{self.served.name} {operation.method.upper()} {operation.path}"
        self.violations.setdefault(where, f"{where}: {str(error)[:SHOWN_CHARACTERS]}")


def _sendable(arguments: dict[str, Any]) -> dict[str, Any]:
    known = ("method", "url", "headers", "files", "data", "params", "auth", "cookies", "hooks", "json")
    return {name: value for name, value in arguments.items() if name in known}


async def _send(http: httpx.AsyncClient, prepared: requests.PreparedRequest) -> httpx.Response:
    headers = [(_latin(name), _latin(value)) for name, value in prepared.headers.items()]
    content = body_of(prepared)
    return await http.request(str(prepared.method), str(prepared.url), headers=headers, content=content)


def _latin(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1", "replace")


def run_http(seed: int, requests_wanted: int, deadline: float = float("inf")) -> Outcome:
    """About so many requests to the two services; the first violation of each operation is told."""
    counts: Counter[str] = Counter()
    violations: dict[str, str] = {}
    executed = 0
    services: tuple[Callable[[int], Any], ...] = (served_orders, served_payments)
    for serving in services:
        with asyncio.Runner() as runner:
            context = serving(seed)
            served = runner.run(context.__aenter__())
            try:
                sweeping = Sweeping(served, runner, deadline, counts, violations)
                sweeping.sweep(requests_wanted // len(services), seed)
                executed += sweeping.executed
            finally:
                runner.run(context.__aexit__(None, None, None))
    return Outcome(executed, tuple(violations.values()), dict(counts))


class HttpSweep:
    """The HTTP requests of `make robustness`; a seed is about `REQUESTS` of them."""

    name, figure, unit, goal, share = "http", "G9", "HTTP requests made of the OpenAPI documents", 100_000, 5

    def run(self, seed: int, deadline: float) -> Outcome:
        return run_http(seed, REQUESTS, deadline)
