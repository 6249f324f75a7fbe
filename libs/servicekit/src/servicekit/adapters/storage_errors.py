"""What a driver raises, as what a service understands: StorageUnavailableError when the same request may succeed a
moment later. A constraint that is violated stays an IntegrityError, and a mistake in the code stays what it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from servicekit.errors import StorageUnavailableError

# PostgreSQL's manual, appendix A: serialization failure, deadlock, lock time-out, end of an idle transaction; and the
# classes: connection, resources (connections, disk, memory), intervention (statement time-out, shutdown), input/output.
TRY_AGAIN_STATES = frozenset({"40001", "40P01", "55P03", "25P03"})
TRY_AGAIN_CLASSES = ("08", "53", "57", "58")


def unavailable(error: BaseException) -> StorageUnavailableError:
    """The error of a service for one of a driver."""
    cause = getattr(error, "orig", None) or error
    cause = cause.__cause__ or cause  # SQLAlchemy repeats what asyncpg has raised, with the name of its class
    return StorageUnavailableError(f"the database does not answer: {str(cause) or 'it takes too long'}")


@contextmanager
def connection_errors() -> Iterator[None]:
    """While a connection is opened: whatever fails, there is none."""
    try:
        yield
    except (DBAPIError, PoolTimeoutError, OSError) as error:
        raise unavailable(error) from error


@contextmanager
def sqlite_errors() -> Iterator[None]:
    """In a transaction with SQLite."""
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeoutError) as error:
        raise unavailable(error) from error


@contextmanager
def postgresql_errors() -> Iterator[None]:
    """In a transaction with PostgreSQL. An OSError is a connection that broke, or a TimeoutError of the driver's."""
    try:
        yield
    except DBAPIError as error:
        if error.connection_invalidated or _may_try_again(getattr(error.orig, "sqlstate", None)):
            raise unavailable(error) from error
        raise
    except OSError as error:
        raise unavailable(error) from error


def _may_try_again(state: str | None) -> bool:
    return state is not None and (state in TRY_AGAIN_STATES or state.startswith(TRY_AGAIN_CLASSES))
