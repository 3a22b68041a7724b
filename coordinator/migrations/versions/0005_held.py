"""The transactions that the bound on fees holds back, beside the cursor."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    with op.batch_alter_table("cursor") as batch_op:
        batch_op.add_column(sa.Column("held", sa.Text(), nullable=False, server_default=""))
