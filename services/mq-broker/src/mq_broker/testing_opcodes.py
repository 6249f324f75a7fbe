"""Something happens between two opcodes: a process dies, or another thread is quicker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass
class OpcodeTrace:
    """Counts the opcodes that run in the file `path`, or below this folder, and acts before number `at` (0: never).

    The first has number 1. What comes after the act is neither counted nor acted upon.
    """

    path: str
    act: Callable[[FrameType], None]
    at: int
    count: int = 0

    @property
    def has_acted(self) -> bool:
        """Whether there were so many."""
        return self.count == self.at > 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Trace this thread."""
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(self.path):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode" and self.count != (self.at or -1):
            self.count += 1
            if self.count == self.at:
                self.act(frame)
        return self._opcode
