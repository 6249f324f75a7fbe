"""Rows of several tables, inserted in one statement where the database can.

    _ADD = InsertTogether(orders, order_lines, order_history)
    await _ADD.execute(connection, [[order], lines, [change]])

On PostgreSQL each statement is a round trip, which costs more than its rows: all the tables are one `WITH ... INSERT`,
whose text is the same for any number of rows, so that it is prepared once. References between the tables are checked
when it ends. On SQLite a statement of a writing unit costs next to nothing, and each table has its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Insert, Table, bindparam, cast, func, insert, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

Row = Mapping[str, object]


class InsertTogether:
    """Inserts for these tables, in the order of their references. A key that the database numbers is left out."""

    def __init__(self, *tables: Table) -> None:
        # Built once: building a statement takes SQLAlchemy longer than a database takes to execute it.
        self._columns = {
            table: [column.name for column in table.c if _is_given(table, column.name)] for table in tables
        }
        self._inserts = [insert(table).inline() for table in tables]
        *others, last = (_insert_of_arrays(table, names) for table, names in self._columns.items())
        self._together = last.add_cte(*(other.cte(other.table.name) for other in others))

    async def execute(self, connection: AsyncConnection, rows: Sequence[Sequence[Row]]) -> None:
        """Insert the rows, given table by table; each row names every column. Raises sqlalchemy's IntegrityError."""
        if connection.dialect.name == "postgresql":
            await connection.execute(self._together, self._arrays(rows))
            return
        for statement, of_table in zip(self._inserts, rows, strict=True):
            await connection.execute(statement, list(of_table))

    def _arrays(self, rows: Sequence[Sequence[Row]]) -> dict[str, list[object]]:
        return {
            _parameter(table, name): [row[name] for row in of_table]
            for (table, names), of_table in zip(self._columns.items(), rows, strict=True)
            for name in names
        }


def _is_given(table: Table, name: str) -> bool:
    return table.autoincrement_column is None or table.autoincrement_column.name != name


def _parameter(table: Table, name: str) -> str:
    return f"{table.name}_{name}"


def _insert_of_arrays(table: Table, names: Sequence[str]) -> Insert:
    """INSERT INTO table (...) SELECT ... FROM unnest(one array for each column)."""
    arrays = [cast(bindparam(_parameter(table, name)), ARRAY(table.c[name].type)) for name in names]
    rows = func.unnest(*arrays).table_valued(*names, name=f"new_{table.name}").render_derived()
    return insert(table).from_select(list(names), select(*(rows.c[name] for name in names)))
