"""Every uint256 fits, what could not be read is counted, and pages need no sorting."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

AMOUNTS = (("claims", "paid"), ("claims", "slashed"), ("jobs", "paid"), ("jobs", "refunded"))
COUNTS = ("unreadable", "unprojected")
INDICES = (
    ("jobs", ("block", "id")),
    ("games", ("block", "id")),
    ("games", ("verdict", "block", "id")),
    ("nodes", ("block", "account")),
)


def upgrade() -> None:
    for table, column in AMOUNTS:
        with op.batch_alter_table(table) as batch_op:
            batch_op.alter_column(column, existing_type=sa.String(length=40), type_=sa.String(length=80))
    with op.batch_alter_table("cursor") as batch_op:
        for name in COUNTS:
            batch_op.add_column(sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    for table, columns in INDICES:
        op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, columns)
    op.drop_index(op.f("ix_nodes_key"), table_name="nodes")
