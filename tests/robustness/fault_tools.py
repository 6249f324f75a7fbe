"""The tool that looks into a store, on a disk on which calls fail: it says so, and changes nothing.

Invariant: a look never writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fault_life import LAYOUT, FaultyCalls

from mq_broker.tools.dump_log import DumpOptions, dump
from osenv import SimDisk

LOOKS = (
    DumpOptions(LAYOUT.root, verify=True),
    DumpOptions(LAYOUT.root, files=True, as_json=True),
    DumpOptions(LAYOUT.root, start=5_000, topic="t", count=3),
    DumpOptions(LAYOUT.root, verify=True, files=True, index_slots=LAYOUT.index_size.slots),
)


@dataclass
class Look:
    """Every way to look at one store. `wrong` are sentences about what must not be."""

    disk: SimDisk
    calls: FaultyCalls
    wrong: list[str] = field(default_factory=list)
    rejected: int = 0

    def run(self) -> None:
        """Look; nothing is raised."""
        before = self.disk.fingerprint()
        self.disk.before = self.calls
        for options in LOOKS:
            lines: list[str] = []
            try:
                code = dump(self.disk, options, lines.append)
            except OSError as error:
                self.rejected += 1
                if not self.calls.method:
                    self.wrong.append(f"{options} is rejected although nothing failed: {error!r}")
            except Exception as error:  # whatever it is
                self.wrong.append(f"{options} ends with {error!r}")
            else:
                if code not in {0, 1} and not self.calls.method:
                    self.wrong.append(f"{options} ends with code {code}")
        self.disk.before = lambda call, path: None
        self.disk.kill()
        if self.disk.fingerprint() != before:
            self.wrong.append("looking has changed the store")
