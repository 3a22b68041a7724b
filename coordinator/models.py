"""The index's tables: a cache of the chain's events, rebuilt from them at any time.

`events` holds every log once, keyed by (block, log index); the tables under "Projections" are folds over it in that
order. Roots, ids and addresses are 0x-hex, amounts decimal strings: an ERC-20's amounts exceed every SQL integer, and
sums of them have up to 80 digits.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Index, Integer, MetaData, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}

Hex32 = String(66)
Account = String(42)
Amount = String(80)
Mask = String(80)


def unhex(text: str) -> bytes:
    """The bytes of a root or an id as the index spells it."""
    return bytes.fromhex(text.removeprefix("0x"))


class IndexTable(DeclarativeBase):
    """The index's metadata."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {dict[str, Any]: JSON, int: BigInteger}  # noqa: RUF012 - SQLAlchemy's own spelling


class CursorRow(IndexTable):
    """The block up to which the chain is indexed; one row, written in the transaction that wrote its events."""

    __tablename__ = "cursor"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    chain_id: Mapped[int]
    market: Mapped[str] = mapped_column(Account)
    block: Mapped[int]
    """The last block whose events are all here."""
    hash: Mapped[str] = mapped_column(Hex32)
    time: Mapped[int]
    """The block's timestamp: what this coordinator takes for chain time."""
    head: Mapped[int]
    """The chain's head when it was last asked."""
    reader: Mapped[str] = mapped_column(Text)
    """The event reader's own cursor: the next block, and hashes that tell whether the chain still has the last ones."""
    checked: Mapped[int]
    """Machine time (Unix seconds) when the chain last answered: for /readyz, and to see that the chain has halted."""
    unreadable: Mapped[int] = mapped_column(default=0)
    """Logs that were skipped, or of which a CID could not be read."""
    unprojected: Mapped[int] = mapped_column(default=0)
    """Events that fit no row and were skipped."""
    held: Mapped[str] = mapped_column(Text, default="")
    """Transactions that wait for a lower fee, and why; "" if there are none."""


class EventRow(IndexTable):
    """One log of one of the contracts."""

    __tablename__ = "events"
    block: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    log_index: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    block_hash: Mapped[str] = mapped_column(Hex32)
    tx: Mapped[str] = mapped_column(Hex32, index=True)
    time: Mapped[int]
    contract: Mapped[str] = mapped_column(String(16))
    name: Mapped[str] = mapped_column(String(48))
    job: Mapped[str | None] = mapped_column(Hex32)
    """The job that the arguments name, if any."""
    game: Mapped[str | None] = mapped_column(Hex32, index=True)
    """The game that the arguments name, if any."""
    args: Mapped[dict[str, Any]]
    gas: Mapped[int | None]
    """Gas that its transaction used, of a dispute's event."""
    __table_args__ = (Index(None, "name", "block", "log_index"), Index(None, "job", "block", "log_index"))


class UndoRow(IndexTable):
    """One of the latest events, and the rows that it changed as they were before it."""

    __tablename__ = "undo"
    block: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    log_index: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    skipped: Mapped[bool]
    """True for an event that fitted no row."""
    rows: Mapped[list[Any]] = mapped_column(JSON)
    """[table, key, row or None] of each."""


# -- Projections: folds over `events` -------------------------------------------------------------------


class NodeRow(IndexTable):
    """An account and the ed25519 key that it registered last."""

    __tablename__ = "nodes"
    account: Mapped[str] = mapped_column(Account, primary_key=True)
    key: Mapped[str] = mapped_column(Hex32)
    block: Mapped[int]
    __table_args__ = (Index(None, "block", "account"),)


class JobRow(IndexTable):
    """A job, its parameters and its money."""

    __tablename__ = "jobs"
    id: Mapped[str] = mapped_column(Hex32, primary_key=True)
    requester: Mapped[str] = mapped_column(Account)
    spec_digest: Mapped[str] = mapped_column(Hex32)
    params: Mapped[dict[str, Any]]
    """JobParams by their Python names (`lockstep.protocol.jobs`)."""
    aggregator: Mapped[str] = mapped_column(Account, index=True)
    state: Mapped[str] = mapped_column(String(16))
    """active, cancelled, done."""
    attempt: Mapped[int] = mapped_column(default=0)
    """Convicted merges so far: part of the ids of the claims made after them."""
    block: Mapped[int]
    time: Mapped[int]
    escrow: Mapped[str] = mapped_column(Amount, default="0")
    """All that was ever escrowed: fees of witnesses whose rounds fall with a convicted merge come to it again."""
    deposit: Mapped[str] = mapped_column(Amount, default="0")
    paid: Mapped[str] = mapped_column(Amount, default="0")
    refunded: Mapped[str] = mapped_column(Amount, default="0")
    __table_args__ = (Index(None, "block", "id"),)


class RoundRow(IndexTable):
    """One synchronisation period of a job, as far as events tell; time moves it further (`protocol.market.views`)."""

    __tablename__ = "rounds"
    job: Mapped[str] = mapped_column(Hex32, primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(default=0)
    state: Mapped[str] = mapped_column(String(16))
    """joining, training, attested, merging, lead, final, failed, void."""
    base: Mapped[str | None] = mapped_column(Hex32)
    outer: Mapped[str | None] = mapped_column(Hex32)
    seed: Mapped[str | None] = mapped_column(Hex32)
    attested: Mapped[str | None] = mapped_column(Mask)
    """The givers of receipts: bit s = the owner of slot s, bit 64 + i = the i-th drawn witness."""
    mask: Mapped[str | None] = mapped_column(Mask)
    """The accepted slots, fixed by freeze."""
    merge_in: Mapped[str | None] = mapped_column(Hex32)
    started: Mapped[int]
    updated: Mapped[int]


class ClaimRow(IndexTable):
    """A slot of a round from joining to payment, or a merge (slot 0xffffffff). It has a column for each thing that the
    chain says."""

    __tablename__ = "claims"
    id: Mapped[str] = mapped_column(Hex32, primary_key=True)
    job: Mapped[str] = mapped_column(Hex32)
    round: Mapped[int]
    attempt: Mapped[int]
    slot: Mapped[int]
    worker: Mapped[str] = mapped_column(Account, index=True)
    state: Mapped[str] = mapped_column(String(16))
    """joined, committed, revealed, accepted, excluded, absent, merged, final, convicted, void."""
    commitment: Mapped[str | None] = mapped_column(Hex32)
    trace_root: Mapped[str | None] = mapped_column(Hex32)
    out: Mapped[str | None] = mapped_column(Hex32)
    out2: Mapped[str | None] = mapped_column(Hex32)
    trace_cid: Mapped[str | None] = mapped_column(Text)
    payload_cid: Mapped[str | None] = mapped_column(Text)
    """The payload's CID; of a merge, the checkpoint's. Empty: it names no content that anybody could fetch."""
    paid: Mapped[str] = mapped_column(Amount, default="0")
    slashed: Mapped[str] = mapped_column(Amount, default="0")
    block: Mapped[int]
    time: Mapped[int]
    # It covers what a run's pages count.
    __table_args__ = (Index(None, "job", "round", "slot", "state", "paid"), Index(None, "time"))


class GameRow(IndexTable):
    """A dispute about a claim."""

    __tablename__ = "games"
    id: Mapped[str] = mapped_column(Hex32, primary_key=True)
    claim: Mapped[str] = mapped_column(Hex32, index=True)
    job: Mapped[str | None] = mapped_column(Hex32)
    """The claim's job, if the claim is known."""
    challenger: Mapped[str] = mapped_column(Account)
    step: Mapped[int]
    """t, or 0 while it is unknown."""
    verdict: Mapped[str | None] = mapped_column(String(16))
    """fraud, timeout, rejected, void; None while it is open."""
    wrong: Mapped[str | None] = mapped_column(String(16))
    """op, alias or padding: what was proved wrong, and where."""
    position: Mapped[int | None]
    element: Mapped[int | None]
    chunk: Mapped[int | None]
    claimed_bits: Mapped[str | None] = mapped_column(Hex32)
    contract_bits: Mapped[str | None] = mapped_column(Hex32)
    moves: Mapped[int] = mapped_column(default=1)
    block: Mapped[int]
    time: Mapped[int]
    closed: Mapped[int | None]
    __table_args__ = (
        Index(None, "block", "id"), Index(None, "verdict", "block", "id"), Index(None, "job", "block", "id"),
    )  # fmt: skip


class AccountRow(IndexTable):
    """An account's money in the vault, as its events tell."""

    __tablename__ = "accounts"
    account: Mapped[str] = mapped_column(Account, primary_key=True)
    free: Mapped[str] = mapped_column(Amount, default="0")
    locked: Mapped[str] = mapped_column(Amount, default="0")
    unbonding: Mapped[str] = mapped_column(Amount, default="0")
    credits: Mapped[str] = mapped_column(Amount, default="0")
    deposited: Mapped[str] = mapped_column(Amount, default="0")
    """The sum of all deposits."""
    slashed: Mapped[str] = mapped_column(Amount, default="0")
    """Stakes and bonds that were taken, in all."""
    earned: Mapped[str] = mapped_column(Amount, default="0")
    """Credited, in all."""


class LockRow(IndexTable):
    """Stake that stands behind a claim, a game or a duty now."""

    __tablename__ = "locks"
    key: Mapped[str] = mapped_column(Hex32, primary_key=True)
    account: Mapped[str] = mapped_column(Account, index=True)
    amount: Mapped[str] = mapped_column(Amount)
    block: Mapped[int]
    time: Mapped[int]


class FlowRow(IndexTable):
    """The money of one kind that moved in one hour of chain time."""

    __tablename__ = "flows"
    hour: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Chain seconds at its beginning."""
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    """`money.KINDS`."""
    amount: Mapped[str] = mapped_column(Amount)


class AccountFlowRow(IndexTable):
    """The money of one kind that came to an account or left it, in all."""

    __tablename__ = "account_flows"
    account: Mapped[str] = mapped_column(Account, primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    """`money.COMES`, `money.GOES`, or credited: all that it could withdraw."""
    amount: Mapped[str] = mapped_column(Amount)


class RoleRow(IndexTable):
    """A role in which an account has acted (coordinator.roles)."""

    __tablename__ = "roles"
    account: Mapped[str] = mapped_column(Account, primary_key=True)
    role: Mapped[str] = mapped_column(String(16), primary_key=True)
    """requester, worker, aggregator, verifier, witness; "" of every account that has any, or has registered a node."""
    acts: Mapped[int]
    block: Mapped[int]
    """The block of its first act."""
    __table_args__ = (Index(None, "role", "block", "account"),)


class MentionRow(IndexTable):
    """An event that names an account."""

    __tablename__ = "mentions"
    account: Mapped[str] = mapped_column(Account, primary_key=True)
    block: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    log_index: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(String(48))
    """The event's."""
    __table_args__ = (Index(None, "account", "name", "block", "log_index"), Index(None, "block", "account"))


class AuditRow(IndexTable):
    """A drawing of witnesses for a round of a job."""

    __tablename__ = "audits"
    id: Mapped[str] = mapped_column(Hex32, primary_key=True)
    job: Mapped[str] = mapped_column(Hex32)
    duties: Mapped[int] = mapped_column(default=0)
    """The witnesses that were drawn."""


# -- Not from the chain, and not needed to go on --------------------------------------------------------


class LossRow(IndexTable):
    """The loss of a checkpoint, as this coordinator has computed it from public data (lockstep.execution.losses)."""

    __tablename__ = "losses"
    job: Mapped[str] = mapped_column(Hex32, primary_key=True)
    claim: Mapped[str] = mapped_column(Hex32, primary_key=True)
    """The merge whose checkpoint it is; "" of the first weights."""
    round: Mapped[int | None]
    merges: Mapped[int]
    """Merges behind the checkpoint."""
    loss: Mapped[str] = mapped_column(String(32))
    """The shortest decimal that is this binary64, or nan, inf, -inf."""


class AnnouncementRow(IndexTable):
    """A claim that its worker announced and signed: a hint where to fetch early."""

    __tablename__ = "announcements"
    claim: Mapped[str] = mapped_column(Hex32, primary_key=True)
    worker: Mapped[str] = mapped_column(Account)
    node: Mapped[str] = mapped_column(Hex32)
    body: Mapped[dict[str, Any]]
    time: Mapped[int]


class SignedClaimRow(IndexTable):
    """A claim as its worker signed it, every one that was shown: two different ones for one slot convict.

    In the order of arrival; never changed, never replaced.
    """

    __tablename__ = "signed_claims"
    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    claim: Mapped[str] = mapped_column(Hex32)
    digest: Mapped[str] = mapped_column(Hex32)
    """The EIP-712 digest."""
    body: Mapped[dict[str, Any]]
    time: Mapped[int]
    __table_args__ = (UniqueConstraint("claim", "digest"),)


class ReceiptRow(IndexTable):
    """A receipt that a slot's owner has handed over, to be sent with the others': gone when the round is frozen."""

    __tablename__ = "receipts"
    job: Mapped[str] = mapped_column(Hex32, primary_key=True)
    round: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    who: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """The slot whose owner speaks."""
    account: Mapped[str] = mapped_column(Account)
    mask: Mapped[str] = mapped_column(Mask)
    """The slots whose payloads are there."""
    signature: Mapped[str] = mapped_column(Text)
    time: Mapped[int]


class PayloadRow(IndexTable):
    """The aggregator's report on a revealed payload that it fetched."""

    __tablename__ = "payloads"
    claim: Mapped[str] = mapped_column(Hex32, primary_key=True)
    report: Mapped[str] = mapped_column(String(16))
    """`decide.Report`."""
    reason: Mapped[str] = mapped_column(Text, default="")


class LeaseRow(IndexTable):
    """A lease on a piece of work: a task takes the row before it acts."""

    __tablename__ = "leases"
    name: Mapped[str] = mapped_column(String(160), primary_key=True)
    holder: Mapped[str] = mapped_column(String(64))
    until: Mapped[int]
    """Machine time (Unix seconds) after which the lease is anyone's."""
