"""A page costs what it shows, however long the chain is; a job's escrow moves as the contract's.

New columns are folds over the events that are stored: `Database.migrate` folds anew where this revision is new.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

AMOUNTS = ("escrow", "deposit")
INDICES = (
    ("events", ("name", "block", "log_index")),
    ("events", ("job", "block", "log_index")),
    ("claims", ("time",)),
    ("games", ("job", "block", "id")),
    ("mentions", ("account", "name", "block", "log_index")),
    ("mentions", ("block", "account")),
)


def upgrade() -> None:
    with op.batch_alter_table("jobs") as batch_op:
        for name in AMOUNTS:
            batch_op.add_column(sa.Column(name, sa.String(length=80), nullable=False, server_default="0"))
    with op.batch_alter_table("audits") as batch_op:
        batch_op.add_column(sa.Column("duties", sa.BigInteger(), nullable=False, server_default="0"))
    with op.batch_alter_table("games") as batch_op:
        batch_op.add_column(sa.Column("job", sa.String(length=66), nullable=True))
    with op.batch_alter_table("mentions") as batch_op:
        batch_op.add_column(sa.Column("name", sa.String(length=48), nullable=False, server_default=""))
    op.drop_index(op.f("ix_events_job"), table_name="events")
    for table, columns in INDICES:
        op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, columns)


def downgrade() -> None:
    for table, columns in INDICES:
        op.drop_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table_name=table)
    op.create_index(op.f("ix_events_job"), "events", ["job"])
    for table, columns in (("mentions", ("name",)), ("games", ("job",)), ("audits", ("duties",)), ("jobs", AMOUNTS)):
        with op.batch_alter_table(table) as batch_op:
            for column in columns:
                batch_op.drop_column(column)
