"""The index's tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "announcements",
        sa.Column("claim", sa.String(length=66), nullable=False),
        sa.Column("worker", sa.String(length=42), nullable=False),
        sa.Column("node", sa.String(length=66), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("claim", name=op.f("pk_announcements")),
    )
    op.create_table(
        "claims",
        sa.Column("id", sa.String(length=66), nullable=False),
        sa.Column("job", sa.String(length=66), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("slot", sa.BigInteger(), nullable=False),
        sa.Column("worker", sa.String(length=42), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("commitment", sa.String(length=66), nullable=True),
        sa.Column("trace_root", sa.String(length=66), nullable=True),
        sa.Column("out", sa.String(length=66), nullable=True),
        sa.Column("out2", sa.String(length=66), nullable=True),
        sa.Column("trace_cid", sa.Text(), nullable=True),
        sa.Column("payload_cid", sa.Text(), nullable=True),
        sa.Column("paid", sa.String(length=40), nullable=False),
        sa.Column("slashed", sa.String(length=40), nullable=False),
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_claims")),
    )
    with op.batch_alter_table("claims", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_claims_job_round_slot"), ["job", "round", "slot"], unique=False)
        batch_op.create_index(batch_op.f("ix_claims_worker"), ["worker"], unique=False)

    op.create_table(
        "cursor",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("chain_id", sa.BigInteger(), nullable=False),
        sa.Column("market", sa.String(length=42), nullable=False),
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.String(length=66), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("head", sa.BigInteger(), nullable=False),
        sa.Column("reader", sa.Text(), nullable=False),
        sa.Column("checked", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cursor")),
    )
    op.create_table(
        "events",
        sa.Column("block", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("log_index", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("block_hash", sa.String(length=66), nullable=False),
        sa.Column("tx", sa.String(length=66), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("contract", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=48), nullable=False),
        sa.Column("job", sa.String(length=66), nullable=True),
        sa.Column("args", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("block", "log_index", name=op.f("pk_events")),
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_events_job"), ["job"], unique=False)

    op.create_table(
        "games",
        sa.Column("id", sa.String(length=66), nullable=False),
        sa.Column("claim", sa.String(length=66), nullable=False),
        sa.Column("challenger", sa.String(length=42), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=True),
        sa.Column("wrong", sa.String(length=16), nullable=True),
        sa.Column("position", sa.BigInteger(), nullable=True),
        sa.Column("element", sa.BigInteger(), nullable=True),
        sa.Column("chunk", sa.BigInteger(), nullable=True),
        sa.Column("claimed_bits", sa.String(length=66), nullable=True),
        sa.Column("contract_bits", sa.String(length=66), nullable=True),
        sa.Column("moves", sa.BigInteger(), nullable=False),
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("closed", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_games")),
    )
    with op.batch_alter_table("games", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_games_claim"), ["claim"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=66), nullable=False),
        sa.Column("requester", sa.String(length=42), nullable=False),
        sa.Column("spec_digest", sa.String(length=66), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("aggregator", sa.String(length=42), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("paid", sa.String(length=40), nullable=False),
        sa.Column("refunded", sa.String(length=40), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_jobs_aggregator"), ["aggregator"], unique=False)

    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=160), nullable=False),
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "nodes",
        sa.Column("account", sa.String(length=42), nullable=False),
        sa.Column("key", sa.String(length=66), nullable=False),
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_nodes")),
    )
    with op.batch_alter_table("nodes", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_nodes_key"), ["key"], unique=False)

    op.create_table(
        "payloads",
        sa.Column("claim", sa.String(length=66), nullable=False),
        sa.Column("report", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("claim", name=op.f("pk_payloads")),
    )
    op.create_table(
        "rounds",
        sa.Column("job", sa.String(length=66), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("base", sa.String(length=66), nullable=True),
        sa.Column("outer", sa.String(length=66), nullable=True),
        sa.Column("seed", sa.String(length=66), nullable=True),
        sa.Column("attested", sa.String(length=80), nullable=True),
        sa.Column("mask", sa.String(length=80), nullable=True),
        sa.Column("merge_in", sa.String(length=66), nullable=True),
        sa.Column("started", sa.BigInteger(), nullable=False),
        sa.Column("updated", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", "number", name=op.f("pk_rounds")),
    )
