"""The market's values: a job's parameters, its rounds and its claims, field by field as in IJobMarket.sol."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum

from lockstep.protocol.merkle import ceil_log2
from lockstep.protocol.sections import Sections
from lockstep.protocol.types import (
    MERGE_SLOT,
    Address,
    ClaimId,
    Digest,
    JobId,
    ProgramRoot,
    Seconds,
    Seed,
    StateRoot,
    TensorRoot,
    TraceRoot,
    Wei,
)

ZERO = Digest(bytes(32))
NO_JOB = JobId(bytes(32))
NO_CLAIM = ClaimId(bytes(32))
NO_SEED = Seed(bytes(32))
NO_STATE = StateRoot(bytes(32))
NOTHING = Wei(0)
NEVER = Seconds(0)
ZERO_ADDRESS = Address("0x" + "00" * 20)
MAX_CID = 128
"""Bytes of a content identifier on chain."""


class JobStatus(IntEnum):
    """A job's status; CANCELLED still finishes the rounds in flight."""

    NONE = 0
    ACTIVE = 1
    CANCELLED = 2
    DONE = 3
    VOID = 4
    """Proven invalid: nothing goes on, `release` and `finish` pay what the deposit owes."""


class Phase(IntEnum):
    """A round's phase. Each act has one phase in which it is allowed."""

    NONE = 0
    JOINING = 1
    SEALING = 2
    TRAINING = 3
    REVEALING = 4
    ATTESTING = 5
    FREEZING = 6
    MERGING = 7
    LEAD = 8
    FINAL = 9
    FAILED = 10
    VOID = 11


class ClaimStatus(IntEnum):
    """A claim's status. REVEALED to MISSING can be convicted."""

    NONE = 0
    JOINED = 1
    COMMITTED = 2
    REVEALED = 3
    ACCEPTED = 4
    EXCLUDED = 5
    """Revealed, and left out of the merge."""
    MISSING = 6
    """Revealed, and its payload was demanded in vain."""
    ABSENT = 7
    FINAL = 8
    CONVICTED = 9
    VOID = 10


@dataclass(frozen=True)
class SpecRef:
    """The job's spec, and what its Programs are written in."""

    digest: Digest
    """SHA-256 of the spec's one block: the digest in its CID."""
    profile: int = 1
    """The arithmetic."""
    opset: int = 1
    """The kinds of ops that a Program may have."""


@dataclass(frozen=True)
class Genesis:
    """The state roots that the first round starts from."""

    shared: StateRoot
    outer: StateRoot
    shared_depth: int
    """b: depth of the shared and of the outer subtree."""


@dataclass(frozen=True)
class RoundSchedule:
    """The number of rounds, the limits on lead and failures, and each round's base."""

    rounds: int
    max_lead: int
    """Rounds that may run ahead of the last settled one, this one counted."""
    max_fail: int
    """More failed rounds than this end the job."""
    base_lag: int = 1
    """d: round r starts from the merge of round r - d. Today 1."""


@dataclass(frozen=True)
class Windows:
    """The durations of a round's phases and of a game's clocks; a role has windows of its own."""

    join_seconds: Seconds
    challenge_seconds: Seconds
    """From the reveal (or merge) of a claim: how long games may be opened on it."""
    answer_seconds: Seconds
    """Within which a demand for data must be answered."""
    audit_seconds: Seconds
    """A witness's time to commit, then the owners' to publish their traces, then the witness's to reveal."""
    clock_seconds: Seconds
    """T of each side's clock in a game."""
    step_seconds: Seconds
    """tau: what every further game that the defender has open, on whatever claims, adds to its clock."""


@dataclass(frozen=True)
class Merging:
    """The merge's Program, aggregator, turns, price and stake."""

    program: Digest
    aggregator: Address
    """Merges first; the zero address: nobody does."""
    turn_seconds: Seconds
    """The length of each merge turn: the aggregator's, then each accepted slot owner's."""
    price: Wei
    stake: Wei


@dataclass(frozen=True)
class Pricing:
    """The stakes of challengers and witnesses, and the price of gas in tokens."""

    bond: Wei
    """The tokens that a challenger locks per game, beside the price of gas."""
    witness_stake: Wei
    gas_price: Wei
    """Tokens for one gas at the cap."""
    fee_cap: int
    """The cap, wei per gas: above it gas costs no more than at it."""


@dataclass(frozen=True)
class Role:
    """The work, windows and pay of one kind of slot; field by field the Solidity struct."""

    step_program: Digest
    encode_program: Digest
    dataset_root: Digest
    """tensor_root of the i32 tensor of dims (dataset_rows, row_length) that the role's slots draw from."""
    dataset_rows: int
    row_length: int
    zero_carry: StateRoot
    zero_payload: StateRoot
    """The payload root that stands in the merge for a slot without an accepted claim."""
    carry_depth: int
    """Depth of the carry. Today shared_depth."""
    payload_depth: int
    """p: depth of one payload subtree; p + ceil(log2 slots) >= b."""
    carry_period: int
    """Rounds after which a slot starts from a zero carry again; 0: it always does, and nothing of a worker's own state
    survives a round."""
    merged: bool
    """True if the merge reads the role's payloads. Today it does."""
    inner_steps: int
    """H."""
    slots: int
    min_slots: int
    """Fewer accepted claims than this fail the round."""
    train_seconds: Seconds
    reveal_seconds: Seconds
    attest_seconds: Seconds
    slot_price: Wei
    """Also the fine for not revealing."""
    slot_stake: Wei
    witnesses: int = 0
    """Drawn for every round, for this role's slots."""
    witness_fee: Wei = NOTHING
    inbox_role: int = 0
    inbox_lag: int = 0
    """l: a slot reads the accepted payloads of role `inbox_role` in round r - l. Today 0: of none."""

    @property
    def carries(self) -> bool:
        """True if a slot's own state may survive a round: `encode` puts out the carry beside the payload."""
        return self.carry_period > 0

    @property
    def transitions(self) -> int:
        """T of a slot claim: H steps and the encode."""
        return self.inner_steps + 1

    @property
    def slot_depth(self) -> int:
        """q: ceil(log2 slots)."""
        return ceil_log2(self.slots)


@dataclass(frozen=True)
class JobParams:
    """A job's immutable parameters, in groups; their hash is part of the JobId. Field order is the ABI's.

    Fields whose other values are refused today are there so that no id moves when they are allowed (job_rules).
    """

    spec: SpecRef
    genesis: Genesis
    schedule: RoundSchedule
    windows: Windows
    merge: Merging
    prices: Pricing
    roles: tuple[Role, ...]
    """One to four kinds of slots. Slots are numbered through: the first role's come first."""

    @property
    def role(self) -> Role:
        """The one role of a job whose slots all do the same: of every job today."""
        (role,) = self.roles
        return role

    @property
    def sections(self) -> Sections:
        """The parts of the job's states."""
        return Sections(self.genesis.shared_depth, self.role.payload_depth, self.role.slots)

    @property
    def round_pay(self) -> Wei:
        """The pay of a round in which everybody is paid."""
        role = self.role
        return Wei(role.slots * role.slot_price + self.merge.price + role.witnesses * role.witness_fee)

    @property
    def escrow(self) -> Wei:
        """The least escrow: every round paid in full."""
        return Wei(self.schedule.rounds * self.round_pay)

    @property
    def deposit(self) -> Wei:
        """The requester's payment beside the escrow: the pay of every round that can be in flight, and one more."""
        return Wei((self.schedule.max_lead + 1) * self.round_pay)

    def encode(self) -> bytes:
        """abi.encode: where the value begins, its groups, where the roles begin, their number, the roles."""
        *groups, roles = (getattr(self, field.name) for field in fields(self))
        fixed = b"".join(_words(group) for group in groups)
        head = word(32) + fixed + word(len(fixed) + 32)
        return head + word(len(roles)) + b"".join(_words(role) for role in roles)


def _words(group: SpecRef | Genesis | RoundSchedule | Windows | Merging | Pricing | Role) -> bytes:
    return b"".join(word(getattr(group, field.name)) for field in fields(group))


def word(value: bytes | int | str) -> bytes:
    """Encodes a value as one ABI word: bytes32 unchanged, an unsigned integer big-endian, an address padded on the
    left."""
    if isinstance(value, bytes):
        if len(value) != 32:
            raise ValueError(f"{len(value)} bytes for a bytes32")
        return value
    number = int(value, 16) if isinstance(value, str) else value
    return number.to_bytes(32, "big")


@dataclass
class JobState:
    """A job's books. escrow = paid + refunded + fees_due once it is DONE."""

    requester: Address
    status: JobStatus
    started: int = 0
    """Rounds started so far, voided ones not counted: the next round's number."""
    settled: int = 0
    """Leading rounds that are FINAL, or FAILED with nothing to judge."""
    failed: int = 0
    """Rounds that failed, voided ones not counted."""
    attempt: int = 0
    """Raised by every convicted merge; part of the ids of the claims made after it."""
    escrow: Wei = NOTHING
    paid: Wei = NOTHING
    refunded: Wei = NOTHING
    deposit: Wei = NOTHING
    """The tokens that a void job still has for those who worked on it, and for its prover."""
    fees_due: Wei = NOTHING
    """Fees of witnesses who were drawn and are neither paid nor out of time."""
    prover: Address = ZERO_ADDRESS
    """The account that proved the job invalid; the zero address if nobody did."""
    lingering: int = 0
    """Games open on claims of rounds that a convicted merge voided."""


@dataclass
class Round:
    """One round as stored, field by field the Solidity struct: JOINING stands for every phase before the freeze;
    `rounds.phase` tells them apart."""

    phase: Phase = Phase.NONE
    attempt: int = 0
    joined: int = 0
    committed: int = 0
    revealed: int = 0
    accepted: int = 0
    turn: int = 0
    """Merge turns passed over, or the turn in which it was first merged since: 0 is the aggregator's, k the k-th
    accepted slot's in seed order."""
    commit_ends: Seconds = NEVER
    reveal_ends: Seconds = NEVER
    attest_ends: Seconds = NEVER
    join_ends: Seconds = NEVER
    seed_block: int = 0
    open_games: int = 0
    merge_opens: Seconds = NEVER
    """The time at which its merge turns began, or at which it failed; of a settled one, at which stakes came free."""
    silent: int = 0
    """Owners of slots that were convicted before they gave a receipt."""
    merged_at: Seconds = NEVER
    """The time of the merge, or of the failure of a round in which claims were revealed."""
    receipts: int = 0
    """The number of receipts given."""
    witnesses: int = 0
    """Drawn, once `drawn`."""
    drawn: bool = False
    demands: int = 0
    """For payloads of this round, answered or not."""
    backed: int = 0
    """Later rounds whose pay the merge's stake covers."""
    due: bool = False
    """VOID, and its work is still to be paid from the slash that voided it."""
    seed: Seed = NO_SEED
    base: StateRoot = NO_STATE
    outer: StateRoot = NO_STATE
    merge_in: StateRoot = NO_STATE
    spoke: int = 0
    """Bit s: the owner of slot s has spoken; bit 64 + i: the i-th witness."""
    named: tuple[int, int] = (0, 0)
    """Receipts that name a slot, without its owner's: a byte a slot, 32 slots a word (protocol/market/receipts.py)."""
    mask: int = 0
    """Bit s: slot s was accepted."""
    merge_claim: ClaimId = NO_CLAIM
    next_shared: StateRoot = NO_STATE
    next_outer: StateRoot = NO_STATE
    """The next round's base: the outputs of the standing merge; this round's own base if it failed."""


@dataclass
class Claim:
    """One claim as stored; its `Body` has the claimed roots."""

    job: JobId = NO_JOB
    worker: Address = ZERO_ADDRESS
    status: ClaimStatus = ClaimStatus.NONE
    claimed_at: Seconds = NEVER
    """The time of the claim's reveal or merge; the challenge window starts here."""
    round: int = 0
    transitions: int = 0
    """T."""
    attempt: int = 0
    slot: int = 0
    """MERGE_SLOT for a merge."""
    open_games: int = 0
    convicted_at: int = 0
    """The transition that was proven wrong; 0 where none was (a clock ran out, two signatures)."""
    games: int = 0
    """Opened on it so far."""
    carries: bool = False
    """True if S_0 holds the carry of its worker's claim of the slot in the round before, not zero."""
    digest: Digest = ZERO
    """The commitment, and from the reveal on the hash of its body."""

    @property
    def is_merge(self) -> bool:
        """True if the claim is for a merge and not a slot."""
        return self.slot == MERGE_SLOT


@dataclass(frozen=True)
class Body:
    """A claim's contents: T transitions from S_0 to node(out, out2), their states under `trace_root`."""

    trace_root: TraceRoot
    out: StateRoot
    out2: StateRoot

    @property
    def words(self) -> tuple[Digest, Digest, Digest]:
        """The three words that a game shows of the claim from which a carry comes."""
        return Digest(self.trace_root), Digest(self.out), Digest(self.out2)


@dataclass(frozen=True)
class Reveal:
    """The arguments that open a worker's commitment."""

    body: Body
    nonce: Digest
    """32 random bytes, kept until the reveal."""
    proof_t: tuple[Digest, ...]
    """node(out, out2) is leaf T of the trace: siblings upward."""
    trace_cid: str
    """At most MAX_CID bytes, as `payload_cid`."""
    payload_cid: str
    carries: bool = False
    """True if it starts from the carry of the worker's own claim of the slot in the round before; else from zero."""


@dataclass(frozen=True)
class Receipt:
    """A signed availability attestation: bit s of `mask` says that the speaker fetched and decoded slot s's payload."""

    who: int
    """s: the owner of slot s; 64 + i: the round's i-th drawn witness."""
    mask: int
    signature: bytes
    """The signature of `protocol.market.ids.receipt_hash`, by the speaker or its delegate."""


@dataclass(frozen=True)
class GameTerms:
    """The terms that the market gives a game when it opens."""

    defender: Address
    transitions: int
    games: int
    """Opened on the claim before this one."""
    clock_seconds: Seconds
    step_seconds: Seconds
    bond: Wei


@dataclass(frozen=True)
class Facts:
    """The market's facts about one transition of a claim."""

    program: ProgramRoot
    """The root of the Program that the transition runs."""
    state_zero: StateRoot
    """S_0 for the first transition; 0 for any other."""
    dataset_root: TensorRoot
    dataset_rows: int
    row_length: int
    seed: Seed
    round: int
    slot: int
