"""Alembic's entry: runs the migrations on the connection that servicekit.sql.schema hands over."""

from __future__ import annotations

from alembic import context

from payments.adapters.tables import metadata

# The caller's transaction covers all of it; SQLite and PostgreSQL both roll schema changes back.
context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
