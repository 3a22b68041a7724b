"""Typed events of the contracts: one class for each event that a party reacts to, with fields in the ABI's order.

`protocol.dispute.moves` has the events of a game's moves; of DisputeGame's events this module has only those that open
and end a game. A test compares the fields with the ABI.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, dataclass_transform

from lockstep.protocol.dispute.moves import GameState
from lockstep.protocol.types import (
    Address,
    AuditId,
    Cid,
    ClaimId,
    Digest,
    GameId,
    JobId,
    Seconds,
    Seed,
    StateRoot,
    TraceRoot,
    Wei,
)

EVENTS: dict[tuple[str, str], type[Logged]] = {}
"""Event classes by (contract, event)."""


@dataclass_transform(frozen_default=True)
class Logged:
    """One event of one contract; subclasses are frozen dataclasses."""

    contract: ClassVar[str]
    event: ClassVar[str]
    """The event's name in Solidity: the name of the class, unless two contracts have such an event."""

    def __init_subclass__(cls, contract: str, event: str = "") -> None:
        cls.contract, cls.event = contract, event or cls.__name__
        EVENTS[contract, cls.event] = cls
        dataclass(frozen=True)(cls)


# -- JobMarket


class Attested(Logged, contract="JobMarket"):
    """A slot's owner or a witness has attested which payloads are available."""

    job: JobId
    round: int
    who: int
    account: Address
    mask: int


class Backed(Logged, contract="JobMarket"):
    """A merge covers the pay of more later rounds."""

    job: JobId
    round: int
    rounds: int


class Committed(Logged, contract="JobMarket"):
    """A slot's claim is committed, not yet revealed."""

    job: JobId
    round: int
    slot: int
    commitment: Digest


class Convicted(Logged, contract="JobMarket"):
    """A claim was convicted."""

    claim: ClaimId
    job: JobId
    round: int
    slot: int
    worker: Address
    challenger: Address


class Frozen(Logged, contract="JobMarket"):
    """The payloads that a round merges are fixed."""

    job: JobId
    round: int
    merge_in: StateRoot
    mask: int


class JobCancelled(Logged, contract="JobMarket"):
    """The requester cancelled the job: no new rounds start."""

    job: JobId
    refunded: Wei


class JobCreated(Logged, contract="JobMarket"):
    """A job's price is escrowed."""

    job: JobId
    requester: Address
    spec_digest: Digest
    escrow: Wei
    deposit: Wei


class JobDone(Logged, contract="JobMarket"):
    """A job ended with every round settled."""

    job: JobId
    paid: Wei
    refunded: Wei
    returned: Wei


class JobVoid(Logged, contract="JobMarket"):
    """A job was proven invalid and ends."""

    job: JobId
    prover: Address


class Joined(Logged, contract="JobMarket"):
    """A worker took a slot."""

    job: JobId
    round: int
    slot: int
    worker: Address


class Left(Logged, contract="JobMarket"):
    """A worker gave its slot back."""

    job: JobId
    round: int
    slot: int
    worker: Address


class Merged(Logged, contract="JobMarket"):
    """A round's merge was claimed."""

    job: JobId
    round: int
    claim: ClaimId
    worker: Address
    out: Digest
    out2: Digest
    checkpoint_cid: Cid


class Paid(Logged, contract="JobMarket"):
    """A slot or merge is paid."""

    job: JobId
    round: int
    slot: int
    account: Address
    amount: Wei


class Revealed(Logged, contract="JobMarket"):
    """A slot's claim was revealed."""

    job: JobId
    round: int
    slot: int
    claim: ClaimId
    worker: Address
    trace_root: TraceRoot
    out: Digest
    out2: Digest
    trace_cid: Cid
    payload_cid: Cid


class Carried(Logged, contract="JobMarket"):
    """A claim just revealed starts from the carry of its worker's claim in the previous round."""

    job: JobId
    round: int
    slot: int


class RosterClosed(Logged, contract="JobMarket"):
    """Joining a round has ended; a later block will determine its seed."""

    job: JobId
    round: int
    seed_block: int


class RoundFailed(Logged, contract="JobMarket"):
    """A round failed."""

    job: JobId
    round: int


class RoundFinal(Logged, contract="JobMarket"):
    """A round became final: its challenge window ended."""

    job: JobId
    round: int


class RoundStarted(Logged, contract="JobMarket"):
    """A round opened for joining."""

    job: JobId
    round: int
    attempt: int
    base: StateRoot
    outer: StateRoot


class RoundVoid(Logged, contract="JobMarket"):
    """A round was voided because it is based on a convicted merge."""

    job: JobId
    round: int
    attempt: int


class Sealed(Logged, contract="JobMarket"):
    """The round's seed is fixed."""

    job: JobId
    round: int
    seed: Seed


# -- StakeVault


class BondTaken(Logged, contract="StakeVault"):
    """A challenger lost its game; its bond was taken."""

    key: Digest
    account: Address
    amount: Wei
    burned: Wei
    to_defender: Wei


class Credited(Logged, contract="StakeVault"):
    """An account was credited tokens to withdraw."""

    account: Address
    amount: Wei


class Delegated(Logged, contract="StakeVault"):
    """An account named a delegate, which may sign receipts and answer games for it."""

    account: Address
    delegate: Address


class Deposited(Logged, contract="StakeVault"):
    """An account deposited stake."""

    account: Address
    amount: Wei


class Escrowed(Logged, contract="StakeVault"):
    """A requester's tokens were taken into escrow."""

    from_: Address
    amount: Wei


class Locked(Logged, contract="StakeVault"):
    """Stake or a bond was locked for a claim, a game or an enrolment."""

    key: Digest
    account: Address
    amount: Wei


class NodeRegistered(Logged, contract="StakeVault"):
    """An account registered the node key of its home."""

    account: Address
    key: Digest


class OwnerProposed(Logged, contract="StakeVault"):
    """Ownership of an account was offered to another owner."""

    account: Address
    owner: Address


class OwnerSet(Logged, contract="StakeVault"):
    """An account has an owner, the only address to which its money leaves the vault."""

    account: Address
    owner: Address


class Slashed(Logged, contract="StakeVault"):
    """The stake behind a convicted claim was slashed."""

    key: Digest
    account: Address
    amount: Wei
    burned: Wei
    to_challenger: Wei
    to_requester: Wei
    owed: Wei


class UnbondRequested(Logged, contract="StakeVault"):
    """An account started to unbond stake."""

    account: Address
    amount: Wei
    available_at: Seconds


class Unbonded(Logged, contract="StakeVault"):
    """An account withdrew unbonded stake."""

    account: Address
    amount: Wei


class Unlocked(Logged, contract="StakeVault"):
    """A lock on stake or a bond was released."""

    key: Digest
    account: Address
    amount: Wei


class Withdrawn(Logged, contract="StakeVault"):
    """An account withdrew credits."""

    account: Address
    amount: Wei


# -- DisputeGame


class GameOpened(Logged, contract="DisputeGame", event="Opened"):
    """A challenger opened a game on a claim."""

    game: GameId
    standing: GameState
    claim: ClaimId
    challenger: Address
    defender: Address
    nonce: int
    t: int


class GameResolved(Logged, contract="DisputeGame", event="Resolved"):
    """A game ended with a verdict."""

    game: GameId
    claim: ClaimId
    verdict: int
    winner: Address


# -- Witnesses


class AuditDrawn(Logged, contract="Witnesses"):
    """The witnesses of a round were drawn."""

    audit: AuditId
    beacon: Digest
    duties: int
    commit_ends: Seconds
    reveal_ends: Seconds


class AuditOpened(Logged, contract="Witnesses"):
    """Witnesses will be drawn for a round, once the beacon's block exists."""

    audit: AuditId
    job: JobId
    round: int
    attempt: int
    beacon_block: int


class AuditSkipped(Logged, contract="Witnesses"):
    """An audit ended because no witness could be drawn."""

    audit: AuditId


class CommitsEnded(Logged, contract="Witnesses"):
    """The time to commit verdicts has ended."""

    audit: AuditId
    commit_ends: Seconds
    reveal_ends: Seconds


class DutyClosed(Logged, contract="Witnesses"):
    """A duty ended: its witness was paid, fined or slashed, or neither."""

    audit: AuditId
    i: int
    account: Address
    outcome: int
    amount: Wei


class DutyDrawn(Logged, contract="Witnesses"):
    """A witness was assigned a slot to check."""

    audit: AuditId
    i: int
    account: Address
    slot: int
    serial: int


class Enrolled(Logged, contract="Witnesses"):
    """A witness enrolled and may be drawn."""

    job: JobId
    account: Address
    head: Digest


class Retired(Logged, contract="Witnesses"):
    """A witness retired and is not drawn any more."""

    job: JobId
    account: Address


class TracePublished(Logged, contract="Witnesses"):
    """The owner of a slot published its list of state roots."""

    job: JobId
    round: int
    slot: int
    claim: ClaimId
    trace_cid: Cid


class VerdictCommitted(Logged, contract="Witnesses"):
    """A witness committed to its verdict."""

    audit: AuditId
    i: int
    commitment: Digest


class VerdictRevealed(Logged, contract="Witnesses"):
    """A witness revealed its verdict."""

    audit: AuditId
    i: int
    t: int
    state: StateRoot
    agrees: bool


# -- Availability


class PayloadDemanded(Logged, contract="Availability"):
    """An account demanded a payload or a carry on chain."""

    demand: Digest
    job: JobId
    claim: ClaimId
    asker: Address
    round: int
    slot: int
    beacon: int
    deadline: Seconds
    wanted: int


class RowDemanded(Logged, contract="Availability"):
    """An account demanded a row of the dataset on chain."""

    demand: Digest
    job: JobId
    row: int
    asker: Address
    deadline: Seconds


class RowPosted(Logged, contract="Availability"):
    """A part of a row was posted on chain."""

    demand: Digest
    index: int
    leaf: bytes


class SeedKept(Logged, contract="Availability"):
    """The random word of a demand was stored, so that it outlives the beacon's block hash."""

    demand: Digest
    seed: Digest


class Settled(Logged, contract="Availability"):
    """A demand ended, answered or not."""

    demand: Digest
    subject: Digest
    status: int
    answerer: Address


# -- Validator


class Invalid(Logged, contract="Validator"):
    """A job was proven to break a rule."""

    job: JobId
    prover: Address
    rule: int
    subject: int
    program: int
    index: int


AMOUNTS: Mapping[tuple[str, str], tuple[str, ...]] = {
    key: tuple(field.name for field in fields(kind) if field.type == "Wei")  # type: ignore[arg-type]
    for key, kind in EVENTS.items()
}
"""By (contract, event): the fields that are amounts of the token, in the ABI's order."""
