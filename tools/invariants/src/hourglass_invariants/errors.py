"""Why nothing can be said about the invariants.

InvariantsError
├── SourceUnavailableError   a database is not there or does not answer: start it, or name another
└── SchemaMismatchError      a database was made by another version, or is another one: name the right one
"""

from __future__ import annotations


class InvariantsError(Exception):
    """The checks have not run; nothing is known about the shop."""


class SourceUnavailableError(InvariantsError):
    """A database cannot be read."""


class SchemaMismatchError(InvariantsError):
    """A database lacks what the checks read."""
