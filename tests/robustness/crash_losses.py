"""Files that may go missing or be older than the rest: the commit log alone tells again what stood in them."""

from __future__ import annotations

from crash_checks import TALLIES, Promise

from mq_broker.store.layout import StoreLayout
from osenv import Rng, SimDisk
from osenv.disk import read_file

LOSSES = ("checkpoint", "older checkpoint", "abort", "index", "index file", "state", "queue")


def lose_something(disk: SimDisk, layout: StoreLayout, promise: Promise, rng: Rng) -> dict[str, int]:
    """Lose one of LOSSES, durably, when it is there; returns what of the small states is still promised."""
    floors = dict(promise.tally_floors)
    match rng.choice(LOSSES):
        case "checkpoint":
            _remove(disk, layout, "checkpoint", "checkpoint.bak")
        case "older checkpoint" if disk.exists(layout.root / "checkpoint.bak"):
            _put(disk, layout, "checkpoint", read_file(disk, layout.root / "checkpoint.bak"))
        case "abort":
            _remove(disk, layout, "abort")
        case "index":
            _remove(disk, layout, "index")
        case "index file" if names := disk.list_dir(layout.index):
            _remove(disk, layout, f"index/{rng.choice(names)}")
        case "state":
            name = rng.choice(TALLIES)
            _remove(disk, layout, f"config/{name}", f"config/{name}.bak")
            floors[name] = 0
        case "queue" if living := _living_queues(promise):
            topic, queue_id = rng.choice(living)
            _remove(disk, layout, f"consumequeue/{topic}/{queue_id}")
    return floors


def _living_queues(promise: Promise) -> list[tuple[str, int]]:
    """Queues of which the log has a record for certain: it tells their numbers."""
    begin = promise.log_begins[1]
    return [
        key
        for key, queue in promise.history.queues.items()
        if any(
            number < promise.floor and place >= begin
            for number, place in zip(queue.numbers, queue.log_offsets, strict=True)
        )
    ]


def _remove(disk: SimDisk, layout: StoreLayout, *names: str) -> None:
    for name in names:
        disk.remove_tree(layout.root / name)


def _put(disk: SimDisk, layout: StoreLayout, name: str, content: bytes) -> None:
    file = disk.open(layout.root / name, create=True)
    file.truncate(0)
    file.pwrite(content, 0)
    file.sync_data()
    disk.sync_dir(layout.root)
