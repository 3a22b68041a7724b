"""Every signed claim is kept, not only the last one."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "signed_claims",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("claim", sa.String(length=66), nullable=False),
        sa.Column("digest", sa.String(length=66), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signed_claims")),
        sa.UniqueConstraint("claim", "digest", name=op.f("uq_signed_claims_claim_digest")),
    )
