"""Accounts by role and by kind of money, and the events that name them.

They are folds over the events that are stored: `Database.migrate` folds anew where this revision is new.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    with op.batch_alter_table("events") as batch_op:
        batch_op.add_column(sa.Column("gas", sa.BigInteger(), nullable=True))
    op.create_index(op.f("ix_events_tx"), "events", ["tx"])
    op.create_table(
        "account_flows",
        sa.Column("account", sa.String(length=42), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("amount", sa.String(length=80), nullable=False),
        sa.PrimaryKeyConstraint("account", "kind", name=op.f("pk_account_flows")),
    )
    op.create_table(
        "roles",
        sa.Column("account", sa.String(length=42), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("acts", sa.BigInteger(), nullable=False),
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account", "role", name=op.f("pk_roles")),
    )
    op.create_index(op.f("ix_roles_role_block_account"), "roles", ["role", "block", "account"])
    op.create_table(
        "mentions",
        sa.Column("account", sa.String(length=42), nullable=False),
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.Column("log_index", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account", "block", "log_index", name=op.f("pk_mentions")),
    )
    op.create_table(
        "audits",
        sa.Column("id", sa.String(length=66), nullable=False),
        sa.Column("job", sa.String(length=66), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audits")),
    )


def downgrade() -> None:
    for table in ("audits", "mentions", "roles", "account_flows"):
        op.drop_table(table)
    op.drop_index(op.f("ix_events_tx"), table_name="events")
    with op.batch_alter_table("events") as batch_op:
        batch_op.drop_column("gas")
