"""Rows as they were before each of the latest events, so that a reorganisation folds nothing anew."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "undo",
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.Column("log_index", sa.BigInteger(), nullable=False),
        sa.Column("skipped", sa.Boolean(), nullable=False),
        sa.Column("rows", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("block", "log_index", name=op.f("pk_undo")),
    )


def downgrade() -> None:
    op.drop_table("undo")
