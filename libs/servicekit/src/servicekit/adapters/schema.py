"""What the schemas of all services have in common: how constraints are named, and how rows are numbered."""

from __future__ import annotations

from sqlalchemy import BigInteger, Integer, MetaData

# SQLite numbers rows by itself only for a column of exactly the type INTEGER.
ROW_ID = BigInteger().with_variant(Integer(), "sqlite")


def new_metadata() -> MetaData:
    """Metadata in which every constraint has a name, so that migrations can speak of it."""
    return MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        }
    )
