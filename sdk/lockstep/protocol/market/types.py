"""Further records of the market: locks, witnesses and demands, field by field as stored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from lockstep.protocol.jobs import NEVER, NO_JOB, NOTHING, ZERO, ZERO_ADDRESS, Body
from lockstep.protocol.programs.defects import Code
from lockstep.protocol.types import Address, Digest, JobId, Seconds, StateRoot, Step, Wei

# -- the vault

BURN = Address("0x000000000000000000000000000000000000dEaD")


class Keeper(IntEnum):
    """The contracts that may lock stake: the market for claims, the dispute game for bonds, the others for theirs."""

    MARKET = 0
    GAME = 1
    WITNESSES = 2
    AVAILABILITY = 3


@dataclass(frozen=True)
class Lock:
    """Stake or a bond locked under one key."""

    account: Address = ZERO_ADDRESS
    amount: Wei = NOTHING
    keeper: Keeper = Keeper.MARKET
    """The contract that locked it, which alone may unlock or take it."""


@dataclass(frozen=True)
class Unbond:
    """Stake that is unbonding, and when it can be withdrawn."""

    amount: Wei = NOTHING
    available_at: Seconds = NEVER


# -- the witnesses

NO_STEP = Step(0)


class Standing(IntEnum):
    """Status of a witness in one job."""

    NONE = 0
    LISTED = 1
    LEAVING = 2
    """Not drawn any more; its stake is unlocked once its last duty is closed."""
    SLASHED = 3
    """Slashed; its other duties earn nothing."""


class AuditStatus(IntEnum):
    """Status of the audit of one round."""

    NONE = 0
    DRAWING = 1
    DRAWN = 2
    SKIPPED = 3


class DutyStatus(IntEnum):
    """Status of one witness's duty."""

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
    """One account's enrolment in one job."""

    standing: Standing = Standing.NONE
    place: int = 0
    """Index in the job's list, while LISTED."""
    head: Digest = ZERO
    """The deepest known value of the hash chain."""
    spent: int = 0
    """Depth of `head` in the chain: 0 at enrolment."""
    drawn: int = 0
    """Number of duties drawn so far; each uses the next preimage."""
    open: int = 0
    """Number of open duties."""


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
    """The duty of a witness to check one slot."""

    account: Address = ZERO_ADDRESS
    slot: int = 0
    serial: int = 0
    """Number of the preimage in the witness's chain: 1, 2, ..."""
    status: DutyStatus = DutyStatus.NONE
    t: Step = NO_STEP
    """t*, once revealed."""
    commitment: Digest = ZERO


NO_CODE = Code()


@dataclass(frozen=True)
class StateLeaf:
    """A leaf of a state that lists of state roots do not reveal: of a tensor that every step computes, without the
    clock.
    """

    digest: Digest
    """The leaf's hash. A witness that differs sends only this; one that agrees proves it by the fields below."""
    code: Code = NO_CODE
    """Parts of the step Program."""
    leaf_proof: tuple[Digest, ...] = ()
    """Proof from the leaf to the tensor's tree."""
    entry_proof: tuple[Digest, ...] = ()
    """Proof from the tensor's root to the state."""


@dataclass(frozen=True)
class Word:
    """The arguments that reveal a witness's verdict."""

    preimage: Digest
    """The duty's value in the witness's hash chain, fixed at enrolment, before any beacon."""
    state: StateRoot
    """The witness's own S_u, u = min(t*, T - 1): the claim publishes S_T."""
    leaf: StateLeaf
    """The leaf of this state, selected by the preimage."""
    salt: Digest
    agrees: bool
    """True if every root of the published trace up to t* equals the witness's own."""
    body: Body
    proof: tuple[Digest, ...]
    """If it agrees: proof that leaf(state) is at position u - 1 of the trace. If it differs: empty."""


# -- demands


class Status(IntEnum):
    """The status of a demand."""

    NONE = 0
    OPEN = 1
    ANSWERED = 2
    MISSING = 3
    """Not answered in time."""
    CLOSED = 4
    """Not answered, but without consequence because the job was over."""


@dataclass
class Demand:
    """One demand for data, as stored."""

    subject: Digest = ZERO
    """The claim whose payload is demanded, or the job whose row is demanded."""
    asker: Address = ZERO_ADDRESS
    status: Status = Status.NONE
    beacon: int = 0
    """Block whose hash selects a payload's leaves; 0 for a row."""
    deadline: Seconds = NEVER
    """Answers count up to and including this second."""
    row: int = 0
    """Row of the dataset; 0 for a payload, 1 for the carry from which a claim starts."""
    next: int = 0
    """Number of leaves of the row that are posted."""
    wanted: int = 0
    """Leaves of a payload that the demander chose."""


@dataclass
class Asked:
    """All demands for one claim's payload and for the carry from which it starts."""

    count: int = 0
    open: int = 0
    until: Seconds = NEVER
    missing: bool = False


@dataclass(frozen=True)
class Shown:
    """An opened leaf of a payload: the contract's struct, in its order."""

    leaf: bytes
    leaf_proof: tuple[Digest, ...]
    entry_proof: tuple[Digest, ...]
    descriptor: bytes
    """Descriptor of the op behind the entry; empty if the entry is a tensor of the encode's input."""
    descriptor_proof: tuple[Digest, ...]


@dataclass(frozen=True)
class Row:
    """An opened leaf of the dataset."""

    leaf: bytes
    proof: tuple[Digest, ...]
