"""Alembic's entry point: migrate the database that the configuration names."""

from __future__ import annotations

from alembic import context

from coordinator.db import Database
from coordinator.models import IndexTable

database = Database(context.config.attributes["url"])
with database.engine.connect() as connection:
    # SQLite rolls schema changes back like any other once BEGIN is ours (coordinator/db.py).
    context.configure(
        connection=connection,
        target_metadata=IndexTable.metadata,
        render_as_batch=True,
        compare_type=True,
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()
database.close()
