"""The market's records beside jobs, rounds and claims: locks, witnesses and demands, field by field as stored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from lockstep.protocol.jobs import NEVER, NO_JOB, NOTHING, ZERO, ZERO_ADDRESS, Body
from lockstep.protocol.programs.defects import Code
from lockstep.protocol.types import Address, Digest, JobId, Seconds, StateRoot, Step, Wei

# -- the vault

BURN = Address("0x000000000000000000000000000000000000dEaD")


class Keeper(IntEnum):
    """The contracts that lock stake: the market claims, the game bonds, the others theirs."""

    MARKET = 0
    GAME = 1
    WITNESSES = 2
    AVAILABILITY = 3


@dataclass(frozen=True)
class Lock:
    """Stake or a bond held under one key."""

    account: Address = ZERO_ADDRESS
    amount: Wei = NOTHING
    keeper: Keeper = Keeper.MARKET
    """The contract that locked it, which alone unlocks or takes it."""


@dataclass(frozen=True)
class Unbond:
    """Stake that is unbonding, with the time at which it can be withdrawn."""

    amount: Wei = NOTHING
    available_at: Seconds = NEVER


# -- the witnesses

NO_STEP = Step(0)


class Standing(IntEnum):
    """The standing of a witness in one job."""

    NONE = 0
    LISTED = 1
    LEAVING = 2
    """Drawn no more; its stake is free once its last duty is closed."""
    SLASHED = 3
    """Its stake is gone; its other duties earn nothing."""


class AuditStatus(IntEnum):
    """The status of the audit of one round."""

    NONE = 0
    DRAWING = 1
    DRAWN = 2
    SKIPPED = 3


class DutyStatus(IntEnum):
    """The status of one witness's duty."""

    NONE = 0
    DRAWN = 1
    COMMITTED = 2
    AGREED = 3
    DIFFERED = 4
    CLOSED = 5


class Outcome(IntEnum):
    """The outcome of a closed duty."""

    PAID = 0
    FINED = 1
    SLASHED = 2
    VOID = 3


@dataclass
class Witness:
    """One account in one job."""

    standing: Standing = Standing.NONE
    place: int = 0
    """Its index in the job's list, while LISTED."""
    head: Digest = ZERO
    """The deepest value of its hash chain that is known."""
    spent: int = 0
    """The depth of `head` in the chain: 0 at enrolment."""
    drawn: int = 0
    """Duties drawn so far; each takes the next preimage."""
    open: int = 0
    """Duties not closed."""


@dataclass
class Audit:
    """One round's audit by drawn witnesses."""

    status: AuditStatus = AuditStatus.NONE
    job: JobId = NO_JOB
    round: int = 0
    attempt: int = 0
    beacon_block: int = 0
    beacon: Digest = ZERO
    commit_ends: Seconds = NEVER
    reveal_ends: Seconds = NEVER
    duties: int = 0
    committed: int = 0


@dataclass
class Duty:
    """The check of one slot that a witness was drawn for."""

    account: Address = ZERO_ADDRESS
    slot: int = 0
    serial: int = 0
    """The number of the preimage that it takes from the witness's chain: 1, 2, ..."""
    status: DutyStatus = DutyStatus.NONE
    t: Step = NO_STEP
    """t*, once revealed."""
    commitment: Digest = ZERO


NO_CODE = Code()


@dataclass(frozen=True)
class StateLeaf:
    """A leaf of a state, which no list of state roots holds: of the tensors that every step computes, without the
    clock."""

    digest: Digest
    """The leaf's hash. Differing, this alone counts; agreeing, it is proven:"""
    code: Code = NO_CODE
    """The step Program's parts."""
    leaf_proof: tuple[Digest, ...] = ()
    """From the leaf to the tensor's tree."""
    entry_proof: tuple[Digest, ...] = ()
    """From the tensor's root to the state."""


@dataclass(frozen=True)
class Word:
    """The arguments that reveal a witness's verdict."""

    preimage: Digest
    """The duty's value of the witness's hash chain, fixed at enrolment, before any beacon."""
    state: StateRoot
    """Its own S_u, u = min(t*, T - 1): S_T is public with the claim."""
    leaf: StateLeaf
    """Its own, of this state, where the preimage says."""
    salt: Digest
    agrees: bool
    """True if every root of the published trace up to t* is its own."""
    body: Body
    proof: tuple[Digest, ...]
    """Agreeing: leaf(state) is at position u - 1 of the trace. Differing: empty."""


# -- demands


class Status(IntEnum):
    """The status of a demand."""

    NONE = 0
    OPEN = 1
    ANSWERED = 2
    MISSING = 3
    """Nobody answered in time."""
    CLOSED = 4
    """Nobody answered, and it does not matter any more: the job was over."""


@dataclass
class Demand:
    """One demand for data as stored."""

    subject: Digest = ZERO
    """The claim whose payload is demanded, or the job whose row is."""
    asker: Address = ZERO_ADDRESS
    status: Status = Status.NONE
    beacon: int = 0
    """The block whose hash names a payload's leaves; 0 for a row."""
    deadline: Seconds = NEVER
    """Answers count up to and including this second."""
    row: int = 0
    """The row of the dataset; 0 for a payload, 1 for the carry that a claim starts from."""
    next: int = 0
    """Leaves of the row that are posted."""
    wanted: int = 0
    """The leaves of a payload that the asker names."""


@dataclass
class Asked:
    """All demands for one claim's payload and the carry that it starts from."""

    count: int = 0
    open: int = 0
    until: Seconds = NEVER
    missing: bool = False


@dataclass(frozen=True)
class Shown:
    """A leaf of a payload, opened: the contract's struct, in its order."""

    leaf: bytes
    leaf_proof: tuple[Digest, ...]
    entry_proof: tuple[Digest, ...]
    descriptor: bytes
    """The descriptor of the op behind the entry; empty where the entry is a tensor of the encode's input."""
    descriptor_proof: tuple[Digest, ...]


@dataclass(frozen=True)
class Row:
    """A leaf of the dataset, opened."""

    leaf: bytes
    proof: tuple[Digest, ...]
