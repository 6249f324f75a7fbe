"""The resource of this process, and which of its spans are recorded: the part of the SDK that spans with ids need."""

from __future__ import annotations

import platform
import uuid
from collections.abc import Sequence
from importlib import metadata

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_OFF,
    DEFAULT_ON,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes

SERVICE_INSTANCE_ID = "service.instance.id"
DISTRIBUTION = "hourglass-telemetry"  # all packages of the project have one version


def resource_of(service_name: str, port: int) -> Resource:
    """The resource of this process. The environment's attributes win."""
    own = {
        SERVICE_NAME: service_name,
        SERVICE_VERSION: metadata.version(DISTRIBUTION),
        SERVICE_INSTANCE_ID: f"{platform.node()}:{port}" if port else str(uuid.uuid4()),
    }
    return Resource.create({**own, **OTELResourceDetector().detect().attributes})


def sampler_of(name: str, ratio: float) -> Sampler:
    """The sampler that the specification calls `name`; `ratio` (0 to 1) is for those that have one."""
    match name:
        case "traceidratio":
            return TraceIdRatioBased(ratio)
        case "parentbased_traceidratio":
            return ParentBasedTraceIdRatio(ratio)
        case _:
            return {
                "always_on": ALWAYS_ON,
                "always_off": ALWAYS_OFF,
                "parentbased_always_on": DEFAULT_ON,
                "parentbased_always_off": DEFAULT_OFF,
            }[name]


class ProcessSampler(Sampler):
    """Asks `rule`, which may be replaced at any time: tracers keep the sampler that they were made with."""

    def __init__(self) -> None:
        self.rule: Sampler = ALWAYS_OFF

    def should_sample(  # noqa: PLR0917 - the SDK's own signature
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """What the rule says."""
        return self.rule.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        """The description of the rule."""
        return self.rule.get_description()

    def follow(self, rule: Sampler | None) -> None:
        """Ask this rule from now on; without one nothing is recorded."""
        self.rule = ALWAYS_OFF if rule is None else rule
