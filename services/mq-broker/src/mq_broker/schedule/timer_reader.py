"""Where a run is being read: one block of its keys in memory, and the number of the block behind it.

Invariant: every key before this place has been popped, so it is done, in memory again, or in its taker's hands.
"""

from __future__ import annotations

from bisect import bisect_left

from mq_broker.store.key_run import KeyRun


class RunReader:
    """Keys in order, read from the front; when the block is used up the next one has to be fetched and given."""

    def __init__(self, run: KeyRun, block: int, keys: list[bytes], at: int = 0) -> None:
        """`keys` is the content of `block`; the next key is number `at` of it."""
        self.run, self.next_block = run, block + 1
        self._keys, self._at = keys, at

    @classmethod
    def open(cls, run: KeyRun, block: int) -> RunReader:
        """At the beginning of a block, which must be there. May block; raises DamagedRunError, OSError."""
        return cls(run, block, run.read(block))

    @classmethod
    def seek(cls, run: KeyRun, key: bytes) -> RunReader | None:
        """At `key` or the first one behind it; None when there is none. May block; raises likewise."""
        block = run.find(key)
        if block == run.blocks:
            return None
        keys = run.read(block)
        return cls(run, block, keys, bisect_left(keys, key))

    @property
    def head(self) -> bytes | None:
        """The next key; of a reader that `is_dry` one that is not larger; None at the end of the run."""
        if self._at < len(self._keys):
            return self._keys[self._at]
        return self._keys[-1] if self.is_dry else None

    def pop(self) -> None:
        """Go on to the key behind the head; not while `is_dry`."""
        self._at += 1

    @property
    def is_dry(self) -> bool:
        """Whether the next block has to be fetched first."""
        return self._at >= len(self._keys) and self.next_block < self.run.blocks

    @property
    def rest(self) -> list[bytes]:
        """What is left of the block in memory."""
        return self._keys[self._at :]

    @property
    def block(self) -> int:
        """The block of the next key; the number of blocks at the end of the run."""
        return self.next_block - (self._at < len(self._keys))

    def fetch(self) -> list[bytes]:
        """The next block's keys. May block; raises DamagedRunError, OSError."""
        return self.run.read(self.next_block)

    def give(self, keys: list[bytes]) -> None:
        """What `fetch` has found."""
        self._keys, self._at = keys, 0
        self.next_block += 1
