"""Accounts, what is locked, money by the hour, losses, and the game that an event is of: what the pages show.

They are folds over the events that are stored: `Database.migrate` folds anew where this revision is new.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

AMOUNTS = ("free", "locked", "unbonding", "credits", "deposited", "slashed", "earned")


GAMES = {
    "sqlite": "UPDATE events SET game = json_extract(args, '$.game') WHERE contract = 'DisputeGame'",
    "postgresql": "UPDATE events SET game = args ->> 'game' WHERE contract = 'DisputeGame'",
}


def upgrade() -> None:
    with op.batch_alter_table("events") as batch_op:
        batch_op.add_column(sa.Column("game", sa.String(length=66), nullable=True))
    op.create_index(op.f("ix_events_game"), "events", ["game"])
    op.drop_index(op.f("ix_claims_job_round_slot"), table_name="claims")
    op.create_index(op.f("ix_claims_job_round_slot_state_paid"), "claims", ["job", "round", "slot", "state", "paid"])
    op.execute(GAMES[op.get_bind().dialect.name])
    op.create_table(
        "accounts",
        sa.Column("account", sa.String(length=42), nullable=False),
        *(sa.Column(name, sa.String(length=80), nullable=False) for name in AMOUNTS),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_accounts")),
    )
    op.create_table(
        "locks",
        sa.Column("key", sa.String(length=66), nullable=False),
        sa.Column("account", sa.String(length=42), nullable=False),
        sa.Column("amount", sa.String(length=80), nullable=False),
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_locks")),
    )
    op.create_index(op.f("ix_locks_account"), "locks", ["account"])
    op.create_table(
        "flows",
        sa.Column("hour", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("amount", sa.String(length=80), nullable=False),
        sa.PrimaryKeyConstraint("hour", "kind", name=op.f("pk_flows")),
    )
    op.create_table(
        "losses",
        sa.Column("job", sa.String(length=66), nullable=False),
        sa.Column("claim", sa.String(length=66), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=True),
        sa.Column("merges", sa.BigInteger(), nullable=False),
        sa.Column("loss", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("job", "claim", name=op.f("pk_losses")),
    )


def downgrade() -> None:
    for table in ("losses", "flows"):
        op.drop_table(table)
    op.drop_index(op.f("ix_locks_account"), table_name="locks")
    for table in ("locks", "accounts"):
        op.drop_table(table)
    op.drop_index(op.f("ix_claims_job_round_slot_state_paid"), table_name="claims")
    op.create_index(op.f("ix_claims_job_round_slot"), "claims", ["job", "round", "slot"])
    op.drop_index(op.f("ix_events_game"), table_name="events")
    with op.batch_alter_table("events") as batch_op:
        batch_op.drop_column("game")
