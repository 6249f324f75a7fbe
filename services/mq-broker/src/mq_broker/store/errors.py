"""The errors of the store.

StoreError
├── StoreFencedError      the disk has failed; nothing is accepted until the process starts again
├── StoreWriteError       this write did not happen; the next one may
│   ├── StoreFullError    writes are rejected until there is room again; reads go on
│   └── TooFewReplicasError  writes are rejected until enough replicas are in sync; reads go on
├── NotReplicatedError    this write happened here; the in-sync replicas did not have it in time
├── NotMasterError        only the master may be written; the caller goes there
├── CopyError             bytes from a master that do not continue the log; nothing of them is there
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
    """The disk rejected a write (full, or failing); nothing of it is visible."""


class StoreFullError(StoreWriteError):
    """The disk is too full, or cannot be cleaned without losing something; the message says which."""


class TooFewReplicasError(StoreWriteError):
    """Fewer replicas are in sync than minInSyncReplicas says; the message says how many."""


class NotReplicatedError(StoreError):
    """What was written is on this master alone so far, and would be lost with it; asking again tells."""


class NotMasterError(StoreError):
    """This broker follows a master, and stores only what that one has stored."""


class CopyError(StoreError):
    """What came from the master cannot stand at the end of this log; the message says what is wrong and where."""


class StoreLockedError(StoreError):
    """Another process holds the store's lock."""


class StoreVersionError(StoreError):
    """This program is too old for the store; the message says which file tells so. Nothing has been changed."""


class StoreDamagedError(StoreError):
    """The store cannot be opened as it is; the message says which file and what to do."""
