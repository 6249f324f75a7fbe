"""A process of the application: a TransactionProducer with a SQLite file, which does what it is told on standard input.

A line in is a JSON object: {"arm": GAP} stops the next one who comes into this gap, {"go": GAP} lets all who stand
there go on, {"send": ORDER, "ending": ENDING} makes an attempt. A line out is {"ready": true}, {"reached": GAP} or
{"heard": ORDER, "what": TEXT}. It ends with its input, or by SIGKILL.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from sqlalchemy import event
from transaction_client import GROUP, GapListener, sent
from transaction_database import TRANSACTIONS
from transaction_gaps import Gap, Gaps, Stop
from transaction_model import Attempt, Ending, Plan

from mqclient import ClientConfig, MessageExt, TransactionProducer
from mqclient.sqlalchemy import SqlTransactionListener
from mqclient.testing.engines import open_sqlite
from osenv import RealClock

BUSY_TIMEOUT_S = 5.0
CONFIG = ClientConfig(poll_name_server_interval_s=0.5, reconnect_backoff_min_s=0.05, reconnect_backoff_max_s=0.2)


def say(**line: Any) -> None:
    """One line to the parent process."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def shop(url: str, database: Path) -> None:
    """Until the input ends."""
    gaps, stops, clock = Gaps(), defaultdict[Gap, list[Stop]](list), RealClock()
    engine = open_sqlite(database, lock_timeout_s=BUSY_TIMEOUT_S)
    event.listen(engine.sync_engine, "connect", _keep_promises)
    inner = SqlTransactionListener(TRANSACTIONS, engine.begin, clock)
    listener = GapListener(inner, clock, gaps, "", _ignore)
    tasks = asyncio.TaskGroup()
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with tasks, TransactionProducer(GROUP, url, transaction_listener=listener, client_config=CONFIG) as producer:
        say(ready=True)
        while text := await lines.readline():
            line = json.loads(text)
            if "arm" in line:
                stop = gaps.arm(Gap[line["arm"]])
                stops[stop.gap].append(stop)
                tasks.create_task(_tell(stop))
            elif "go" in line:
                for stop in stops.pop(Gap[line["go"]], ()):
                    stop.release()
            else:
                plan = Plan(Ending[line["ending"]])
                attempt = Attempt(line["send"], line["send"], plan, clock.wall_ms())
                tasks.create_task(_send(producer, attempt, gaps))
    await engine.dispose()


async def _send(producer: TransactionProducer, attempt: Attempt, gaps: Gaps) -> None:
    attempt.heard = await sent(producer, attempt, gaps, "")
    say(heard=attempt.order_id, what=attempt.heard.name)


async def _tell(stop: Stop) -> None:
    await stop.wait_reached()
    say(reached=stop.gap.name)


def _keep_promises(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _ignore(_message: MessageExt) -> None:
    """A check came."""


if __name__ == "__main__":
    asyncio.run(shop(sys.argv[1], Path(sys.argv[2])))
