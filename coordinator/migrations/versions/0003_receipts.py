"""Receipts are kept until they are sent together."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "receipts",
        sa.Column("job", sa.String(length=66), nullable=False),
        sa.Column("round", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("who", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("account", sa.String(length=42), nullable=False),
        sa.Column("mask", sa.String(length=80), nullable=False),
        sa.Column("signature", sa.Text(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", "round", "attempt", "who", name=op.f("pk_receipts")),
    )
