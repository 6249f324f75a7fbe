"""What can go wrong in the store.

StoreError
├── StoreFencedError      the disk has failed; nothing is accepted until the process starts again
├── StoreWriteError       this write did not happen; the next one may
│   └── StoreFullError    writes are refused until there is room again; reads go on
├── StoreLockedError      another process has the store
├── StoreVersionError     a newer program has written the store
└── StoreDamagedError     files that contradict each other; an operator has to look
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of all errors of the store."""


class StoreFencedError(StoreError):
    """A sync failed: what is on disk is in doubt, so the broker stops, and recovers at its next start."""


class StoreWriteError(StoreError):
    """The disk refused a write (full, or failing); nothing of it is visible."""


class StoreFullError(StoreWriteError):
    """The disk is too full, or cannot be cleaned without losing something; the message says which."""


class StoreLockedError(StoreError):
    """Another process holds the store's lock."""


class StoreVersionError(StoreError):
    """This program is too old for the store; the message says which file tells so. Nothing has been changed."""


class StoreDamagedError(StoreError):
    """The store cannot be opened as it is; the message says which file and what to do."""
