"""The composition root: a process, and the lives of the broker in it, one after another (broker_life.py)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys

import structlog

from mq_broker.broker_life import SERVICE, BrokerProcess, End, StartError, live
from mq_broker.config import BrokerConfig
from mq_broker.core.descriptors import DescriptorBudget
from mq_broker.core.limits import DESCRIPTORS_WANTED
from mq_broker.metrics import BrokerMetrics
from mq_broker.spans import broker_spans
from mqproto.config_source import Started
from osenv import RealClock, RealDisk
from osenv.pooled_files import raise_open_files_limit
from osenv.process import reload_event, stop_event

EXIT_STOPPED, EXIT_CANNOT_START, EXIT_FAILED = 0, 1, 3

log = logging.getLogger(__name__)


async def serve(started: Started[BrokerConfig]) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code of the process. SIGHUP has the configuration read again.

    A broker whose role changes, or whose log has to be cut, is opened anew on the same ports.
    """
    structlog.contextvars.bind_contextvars(broker_name=started.config.broker_name)  # of every line from here on
    stop_asked, reload_asked = stop_event(), reload_event()
    if started.warning:
        log.warning("%s", started.warning)
    try:
        descriptors = DescriptorBudget.of(raise_open_files_limit(DESCRIPTORS_WANTED))
    except ValueError as error:
        print(f"{SERVICE}: {error}", file=sys.stderr)
        return EXIT_CANNOT_START
    with contextlib.closing(RealDisk()) as disk:
        process = BrokerProcess(
            started.source,
            started.config,
            disk,
            RealClock(),
            BrokerMetrics(),
            reload_asked,
            descriptors,
            broker_spans(started.config.broker_name),
        )
        stop = asyncio.create_task(stop_asked.wait(), name="stop")
        try:
            while (end := await live(process, stop)) is End.REOPEN:
                pass
        except StartError as error:
            print(f"{SERVICE}: {error}", file=sys.stderr)
            return EXIT_CANNOT_START
        finally:
            stop.cancel()
    return EXIT_FAILED if end is End.FAILED else EXIT_STOPPED
