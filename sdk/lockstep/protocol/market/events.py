"""The contracts' events, typed: a class for each one that a party acts on, fields in the ABI's order.

A game's moves are logged as `protocol.dispute.moves` has them; of DisputeGame here are the ends alone. A test holds the
fields equal to the ABI.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
"""By contract and event."""


class Logged:
    """One event of one contract."""

    contract: ClassVar[str]
    event: ClassVar[str]
    """Its name in Solidity: the class's own, unless two contracts have one."""

    def __init_subclass__(cls, contract: str, event: str = "") -> None:
        cls.contract, cls.event = contract, event or cls.__name__
        EVENTS[contract, cls.event] = cls


# -- JobMarket


@dataclass(frozen=True)
class Attested(Logged, contract="JobMarket"):
    """A slot's owner or a witness says which payloads are there."""

    job: JobId
    round: int
    who: int
    account: Address
    mask: int


@dataclass(frozen=True)
class Backed(Logged, contract="JobMarket"):
    """A merge is staked on by the rounds after it."""

    job: JobId
    round: int
    rounds: int


@dataclass(frozen=True)
class Committed(Logged, contract="JobMarket"):
    """A slot's claim is fixed."""

    job: JobId
    round: int
    slot: int
    commitment: Digest


@dataclass(frozen=True)
class Convicted(Logged, contract="JobMarket"):
    """A claim is wrong."""

    claim: ClaimId
    job: JobId
    round: int
    slot: int
    worker: Address
    challenger: Address


@dataclass(frozen=True)
class Frozen(Logged, contract="JobMarket"):
    """The payloads that a round merges are decided."""

    job: JobId
    round: int
    merge_in: StateRoot
    mask: int


@dataclass(frozen=True)
class JobCancelled(Logged, contract="JobMarket"):
    """The requester starts no new rounds."""

    job: JobId
    refunded: Wei


@dataclass(frozen=True)
class JobCreated(Logged, contract="JobMarket"):
    """A job's price is escrowed."""

    job: JobId
    requester: Address
    spec_digest: Digest
    escrow: Wei
    deposit: Wei


@dataclass(frozen=True)
class JobDone(Logged, contract="JobMarket"):
    """Every round is settled."""

    job: JobId
    paid: Wei
    refunded: Wei
    returned: Wei


@dataclass(frozen=True)
class JobVoid(Logged, contract="JobMarket"):
    """A job that breaks a rule ends."""

    job: JobId
    prover: Address


@dataclass(frozen=True)
class Joined(Logged, contract="JobMarket"):
    """A slot has a worker."""

    job: JobId
    round: int
    slot: int
    worker: Address


@dataclass(frozen=True)
class Left(Logged, contract="JobMarket"):
    """A slot is free again."""

    job: JobId
    round: int
    slot: int
    worker: Address


@dataclass(frozen=True)
class Merged(Logged, contract="JobMarket"):
    """A round's merge is claimed."""

    job: JobId
    round: int
    claim: ClaimId
    worker: Address
    out: Digest
    out2: Digest
    checkpoint_cid: Cid


@dataclass(frozen=True)
class Paid(Logged, contract="JobMarket"):
    """A slot or merge is paid."""

    job: JobId
    round: int
    slot: int
    account: Address
    amount: Wei


@dataclass(frozen=True)
class Revealed(Logged, contract="JobMarket"):
    """A slot's claim is public."""

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


@dataclass(frozen=True)
class Carried(Logged, contract="JobMarket"):
    """A claim that was just revealed starts from the carry of its worker's claim in the round before."""

    job: JobId
    round: int
    slot: int


@dataclass(frozen=True)
class RosterClosed(Logged, contract="JobMarket"):
    """Nobody joins any more; the seed is of a later block."""

    job: JobId
    round: int
    seed_block: int


@dataclass(frozen=True)
class RoundFailed(Logged, contract="JobMarket"):
    """A round came to nothing."""

    job: JobId
    round: int


@dataclass(frozen=True)
class RoundFinal(Logged, contract="JobMarket"):
    """Nobody objected in time."""

    job: JobId
    round: int


@dataclass(frozen=True)
class RoundStarted(Logged, contract="JobMarket"):
    """Workers may join."""

    job: JobId
    round: int
    attempt: int
    base: StateRoot
    outer: StateRoot


@dataclass(frozen=True)
class RoundVoid(Logged, contract="JobMarket"):
    """A round rested on a merge that was convicted."""

    job: JobId
    round: int
    attempt: int


@dataclass(frozen=True)
class Sealed(Logged, contract="JobMarket"):
    """The round's seed is drawn."""

    job: JobId
    round: int
    seed: Seed


# -- StakeVault


@dataclass(frozen=True)
class BondTaken(Logged, contract="StakeVault"):
    """A challenger lost its game."""

    key: Digest
    account: Address
    amount: Wei
    burned: Wei
    to_defender: Wei


@dataclass(frozen=True)
class Credited(Logged, contract="StakeVault"):
    """An account has something to withdraw."""

    account: Address
    amount: Wei


@dataclass(frozen=True)
class Delegated(Logged, contract="StakeVault"):
    """Another key may sign receipts."""

    account: Address
    delegate: Address


@dataclass(frozen=True)
class Deposited(Logged, contract="StakeVault"):
    """Stake came in."""

    account: Address
    amount: Wei


@dataclass(frozen=True)
class Escrowed(Logged, contract="StakeVault"):
    """A requester's tokens came in."""

    from_: Address
    amount: Wei


@dataclass(frozen=True)
class Locked(Logged, contract="StakeVault"):
    """Stake backs a claim, a bond or an enrolment."""

    key: Digest
    account: Address
    amount: Wei


@dataclass(frozen=True)
class NodeRegistered(Logged, contract="StakeVault"):
    """An account's home is known by this key."""

    account: Address
    key: Digest


@dataclass(frozen=True)
class OwnerProposed(Logged, contract="StakeVault"):
    """An account is offered to another owner."""

    account: Address
    owner: Address


@dataclass(frozen=True)
class OwnerSet(Logged, contract="StakeVault"):
    """An account's money leaves the vault to this address alone."""

    account: Address
    owner: Address


@dataclass(frozen=True)
class Slashed(Logged, contract="StakeVault"):
    """A stake is lost."""

    key: Digest
    account: Address
    amount: Wei
    burned: Wei
    to_challenger: Wei
    to_requester: Wei
    owed: Wei


@dataclass(frozen=True)
class UnbondRequested(Logged, contract="StakeVault"):
    """Stake is on its way out."""

    account: Address
    amount: Wei
    available_at: Seconds


@dataclass(frozen=True)
class Unbonded(Logged, contract="StakeVault"):
    """Stake went out."""

    account: Address
    amount: Wei


@dataclass(frozen=True)
class Unlocked(Logged, contract="StakeVault"):
    """A lock no longer holds the stake under `key`."""

    key: Digest
    account: Address
    amount: Wei


@dataclass(frozen=True)
class Withdrawn(Logged, contract="StakeVault"):
    """Credits went out."""

    account: Address
    amount: Wei


# -- DisputeGame


@dataclass(frozen=True)
class GameOpened(Logged, contract="DisputeGame", event="Opened"):
    """Somebody challenges a claim."""

    game: GameId
    standing: GameState
    claim: ClaimId
    challenger: Address
    defender: Address
    nonce: int
    t: int


@dataclass(frozen=True)
class GameResolved(Logged, contract="DisputeGame", event="Resolved"):
    """A game is over."""

    game: GameId
    claim: ClaimId
    verdict: int
    winner: Address


# -- Witnesses


@dataclass(frozen=True)
class AuditDrawn(Logged, contract="Witnesses"):
    """The witnesses of a round are drawn."""

    audit: AuditId
    beacon: Digest
    duties: int
    commit_ends: Seconds
    reveal_ends: Seconds


@dataclass(frozen=True)
class AuditOpened(Logged, contract="Witnesses"):
    """Witnesses will be drawn for a round."""

    audit: AuditId
    job: JobId
    round: int
    attempt: int
    beacon_block: int


@dataclass(frozen=True)
class AuditSkipped(Logged, contract="Witnesses"):
    """Nobody could be drawn."""

    audit: AuditId


@dataclass(frozen=True)
class CommitsEnded(Logged, contract="Witnesses"):
    """No more verdicts are committed."""

    audit: AuditId
    commit_ends: Seconds
    reveal_ends: Seconds


@dataclass(frozen=True)
class DutyClosed(Logged, contract="Witnesses"):
    """A witness is paid, or gave up its stake."""

    audit: AuditId
    i: int
    account: Address
    outcome: int
    amount: Wei


@dataclass(frozen=True)
class DutyDrawn(Logged, contract="Witnesses"):
    """A witness has a slot to look at."""

    audit: AuditId
    i: int
    account: Address
    slot: int
    serial: int


@dataclass(frozen=True)
class Enrolled(Logged, contract="Witnesses"):
    """A witness may be drawn."""

    job: JobId
    account: Address
    head: Digest


@dataclass(frozen=True)
class Retired(Logged, contract="Witnesses"):
    """A witness is drawn no more."""

    job: JobId
    account: Address


@dataclass(frozen=True)
class TracePublished(Logged, contract="Witnesses"):
    """A slot's list of state roots is named."""

    job: JobId
    round: int
    slot: int
    claim: ClaimId
    trace_cid: Cid


@dataclass(frozen=True)
class VerdictCommitted(Logged, contract="Witnesses"):
    """A witness has made up its mind."""

    audit: AuditId
    i: int
    commitment: Digest


@dataclass(frozen=True)
class VerdictRevealed(Logged, contract="Witnesses"):
    """A witness says what it found."""

    audit: AuditId
    i: int
    t: int
    state: StateRoot
    agrees: bool


# -- Availability


@dataclass(frozen=True)
class PayloadDemanded(Logged, contract="Availability"):
    """Somebody cannot have a payload."""

    demand: Digest
    job: JobId
    claim: ClaimId
    asker: Address
    round: int
    slot: int
    beacon: int
    deadline: Seconds
    wanted: int


@dataclass(frozen=True)
class RowDemanded(Logged, contract="Availability"):
    """Somebody cannot have a row of the dataset."""

    demand: Digest
    job: JobId
    row: int
    asker: Address
    deadline: Seconds


@dataclass(frozen=True)
class RowPosted(Logged, contract="Availability"):
    """A part of a row is on chain."""

    demand: Digest
    index: int
    leaf: bytes


@dataclass(frozen=True)
class SeedKept(Logged, contract="Availability"):
    """The word of a demand is kept, whatever the chain forgets."""

    demand: Digest
    seed: Digest


@dataclass(frozen=True)
class Settled(Logged, contract="Availability"):
    """A demand is answered, or nobody answered."""

    demand: Digest
    subject: Digest
    status: int
    answerer: Address


# -- Validator


@dataclass(frozen=True)
class Invalid(Logged, contract="Validator"):
    """A job was proven to break a rule."""

    job: JobId
    prover: Address
    rule: int
    subject: int
    program: int
    index: int
