"""Records of the market: a job's parameters, its rounds and its claims, field by field as in IJobMarket.sol."""

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
"""Most bytes of a content identifier on chain."""


class JobStatus(IntEnum):
    """A job's status; a CANCELLED job still finishes the rounds in flight."""

    NONE = 0
    ACTIVE = 1
    CANCELLED = 2
    DONE = 3
    VOID = 4
    """Proven invalid: no further rounds; `release` and `finish` pay what the deposit owes."""


class Phase(IntEnum):
    """A round's phase. Each act is allowed in one phase."""

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
    """A claim's status. Claims from REVEALED to MISSING can be convicted."""

    NONE = 0
    JOINED = 1
    COMMITTED = 2
    REVEALED = 3
    ACCEPTED = 4
    EXCLUDED = 5
    """Revealed, but left out of the merge."""
    MISSING = 6
    """Revealed, but its payload was demanded and not shown."""
    ABSENT = 7
    FINAL = 8
    CONVICTED = 9
    VOID = 10


@dataclass(frozen=True)
class SpecRef:
    """The job's spec, and the language of its Programs."""

    digest: Digest
    """SHA-256 of the spec's only block, which is the digest in its CID."""
    profile: int = 1
    """The arithmetic profile."""
    opset: int = 1
    """The op-set: the kinds of ops that a Program may have."""


@dataclass(frozen=True)
class Genesis:
    """State roots from which the first round starts."""

    shared: StateRoot
    outer: StateRoot
    shared_depth: int
    """b, the depth of the shared and of the outer subtree."""


@dataclass(frozen=True)
class RoundSchedule:
    """The number of rounds, the limits on rounds in flight and on failures, and each round's base."""

    rounds: int
    max_lead: int
    """Most rounds after the last settled one that may run, the new one included."""
    max_fail: int
    """Most failed rounds; one more ends the job."""
    base_lag: int = 1
    """d: round r starts from the merge of round r - d. Only 1 is allowed today."""


@dataclass(frozen=True)
class Windows:
    """Durations of a round's phases and of a game's clocks; a role has further windows of its own."""

    join_seconds: Seconds
    challenge_seconds: Seconds
    """Time after the reveal (or merge) of a claim in which games may be opened on it."""
    answer_seconds: Seconds
    """Time in which a demand for data must be answered."""
    audit_seconds: Seconds
    """Time for witnesses to commit; then for owners to publish their traces, and for witnesses to reveal."""
    clock_seconds: Seconds
    """T, each side's clock in a game."""
    step_seconds: Seconds
    """tau, by which each further open game of the defender, on any claim, extends its clock."""


@dataclass(frozen=True)
class Merging:
    """The merge: its Program, aggregator, turns, price and stake."""

    program: Digest
    aggregator: Address
    """The account that merges first; the zero address for none."""
    turn_seconds: Seconds
    """Length of each merge turn: the aggregator's, then each accepted slot owner's."""
    price: Wei
    stake: Wei


@dataclass(frozen=True)
class Pricing:
    """Stakes of challengers and witnesses, and the price of gas in tokens."""

    bond: Wei
    """Tokens that a challenger locks per game, in addition to the price of gas."""
    witness_stake: Wei
    gas_price: Wei
    """Tokens for one gas at the fee cap."""
    fee_cap: int
    """The fee cap in wei per gas: above it, gas is priced as at the cap."""


@dataclass(frozen=True)
class Role:
    """Work, windows and pay of one kind of slot; field by field the Solidity struct."""

    step_program: Digest
    encode_program: Digest
    dataset_root: Digest
    """Root of the i32 tensor (dataset_rows, row_length) from which the role's slots draw."""
    dataset_rows: int
    row_length: int
    zero_carry: StateRoot
    zero_payload: StateRoot
    """Payload root that a merge uses for a slot without an accepted claim."""
    carry_depth: int
    """Depth of the carry (persisted worker state). It must equal shared_depth today."""
    payload_depth: int
    """p, the depth of one payload subtree; p + ceil(log2 slots) >= b."""
    carry_period: int
    """Rounds after which a slot starts from a zero carry again; 0: every round starts from zero, so that no worker
    state survives a round.
    """
    merged: bool
    """True if the merge reads the role's payloads. It must be True today."""
    inner_steps: int
    """H, the training steps per round."""
    slots: int
    min_slots: int
    """Least number of accepted claims; with fewer the round fails."""
    train_seconds: Seconds
    reveal_seconds: Seconds
    attest_seconds: Seconds
    slot_price: Wei
    """Pay of one slot; also the fine for a missing reveal."""
    slot_stake: Wei
    witnesses: int = 0
    """Number of witnesses drawn for this role's slots in every round."""
    witness_fee: Wei = NOTHING
    inbox_role: int = 0
    inbox_lag: int = 0
    """l: a slot reads the accepted payloads of role `inbox_role` in round r - l. It must be 0 today: no inbox."""

    @property
    def carries(self) -> bool:
        """True if a slot's state may survive a round: `encode` then outputs the carry together with the payload."""
        return self.carry_period > 0

    @property
    def transitions(self) -> int:
        """T of a slot's claim: H steps and the encode."""
        return self.inner_steps + 1

    @property
    def slot_depth(self) -> int:
        """q = ceil(log2 slots)."""
        return ceil_log2(self.slots)


@dataclass(frozen=True)
class JobParams:
    """A job's immutable parameters, in groups; their hash is part of the JobId. Field order is the ABI's.

    Some fields allow a single value today (job_rules); they exist so that ids stay the same when other values are
    allowed.
    """

    spec: SpecRef
    genesis: Genesis
    schedule: RoundSchedule
    windows: Windows
    merge: Merging
    prices: Pricing
    roles: tuple[Role, ...]
    """One to four kinds of slots. Slots are numbered consecutively, those of the first role first."""

    @property
    def role(self) -> Role:
        """The only role of a job; every job has one today."""
        (role,) = self.roles
        return role

    @property
    def sections(self) -> Sections:
        """The sections of the job's states."""
        return Sections(self.genesis.shared_depth, self.role.payload_depth, self.role.slots)

    @property
    def round_pay(self) -> Wei:
        """Pay of a round in which everyone is paid."""
        role = self.role
        return Wei(role.slots * role.slot_price + self.merge.price + role.witnesses * role.witness_fee)

    @property
    def escrow(self) -> Wei:
        """Least escrow: every round is paid in full."""
        return Wei(self.schedule.rounds * self.round_pay)

    @property
    def deposit(self) -> Wei:
        """The requester's deposit in addition to the escrow: the pay of every round that can be in flight, and of one
        more.
        """
        return Wei((self.schedule.max_lead + 1) * self.round_pay)

    def encode(self) -> bytes:
        """Returns the ABI encoding: offset of the value, its groups, offset and number of the roles, the roles."""
        *groups, roles = (getattr(self, field.name) for field in fields(self))
        fixed = b"".join(_words(group) for group in groups)
        head = word(32) + fixed + word(len(fixed) + 32)
        return head + word(len(roles)) + b"".join(_words(role) for role in roles)


def _words(group: SpecRef | Genesis | RoundSchedule | Windows | Merging | Pricing | Role) -> bytes:
    return b"".join(word(getattr(group, field.name)) for field in fields(group))


def word(value: bytes | int | str) -> bytes:
    """Encodes a value as one ABI word: bytes32 unchanged, an unsigned integer big-endian, an address padded on the
    left.
    """
    if isinstance(value, bytes):
        if len(value) != 32:
            raise ValueError(f"{len(value)} bytes for a bytes32")
        return value
    number = int(value, 16) if isinstance(value, str) else value
    return number.to_bytes(32, "big")


@dataclass
class JobState:
    """A job's accounts. escrow = paid + refunded + fees_due once the job is DONE."""

    requester: Address
    status: JobStatus
    started: int = 0
    """Rounds started so far, without voided ones: the number of the next round."""
    settled: int = 0
    """Leading rounds that are FINAL, or FAILED with no claim to judge."""
    failed: int = 0
    """Failed rounds, without voided ones."""
    attempt: int = 0
    """Incremented by every convicted merge; part of the ids of later claims."""
    escrow: Wei = NOTHING
    paid: Wei = NOTHING
    refunded: Wei = NOTHING
    deposit: Wei = NOTHING
    """Tokens that a void job still has for its workers and its prover."""
    fees_due: Wei = NOTHING
    """Fees of drawn witnesses who are not yet paid and can still be paid."""
    prover: Address = ZERO_ADDRESS
    """The account that proved the job invalid; the zero address for none."""
    lingering: int = 0
    """Open games on claims of rounds that a convicted merge voided."""


@dataclass
class Round:
    """One round as stored, field by field the Solidity struct.

    The stored phase JOINING covers every phase before the freeze; `views.phase` distinguishes them.
    """

    phase: Phase = Phase.NONE
    attempt: int = 0
    joined: int = 0
    committed: int = 0
    revealed: int = 0
    accepted: int = 0
    turn: int = 0
    """Number of passed merge turns, or the turn of the first merge: 0 is the aggregator's, k the k-th accepted slot's
    in seed order.
    """
    commit_ends: Seconds = NEVER
    reveal_ends: Seconds = NEVER
    attest_ends: Seconds = NEVER
    join_ends: Seconds = NEVER
    seed_block: int = 0
    open_games: int = 0
    merge_opens: Seconds = NEVER
    """Time at which merge turns began, or at which the round failed; for a settled round the time at which stakes were
    unlocked.
    """
    silent: int = 0
    """Owners of slots that were convicted before they gave a receipt."""
    merged_at: Seconds = NEVER
    """Time of the merge, or of the failure of a round with revealed claims."""
    receipts: int = 0
    """Number of receipts given."""
    witnesses: int = 0
    """Number of witnesses drawn, once `drawn`."""
    drawn: bool = False
    demands: int = 0
    """Number of demands for payloads of this round, answered or not."""
    backed: int = 0
    """Number of later rounds whose pay the merge's stake covers."""
    due: bool = False
    """True if the round is VOID and its work must still be paid from the slash that voided it."""
    seed: Seed = NO_SEED
    base: StateRoot = NO_STATE
    outer: StateRoot = NO_STATE
    merge_in: StateRoot = NO_STATE
    spoke: int = 0
    """Bit s: the owner of slot s gave a receipt; bit 64 + i: the i-th witness did."""
    named: tuple[int, int] = (0, 0)
    """For each slot the number of receipts of others that name it: one byte per slot, 32 slots per word
    (protocol/market/receipts.py).
    """
    mask: int = 0
    """Bit s: slot s was accepted."""
    merge_claim: ClaimId = NO_CLAIM
    next_shared: StateRoot = NO_STATE
    next_outer: StateRoot = NO_STATE
    """The next round's base: the outputs of the valid merge, or this round's own base if it failed."""


@dataclass
class Claim:
    """One claim as stored; its `Body` has the claimed roots."""

    job: JobId = NO_JOB
    worker: Address = ZERO_ADDRESS
    status: ClaimStatus = ClaimStatus.NONE
    claimed_at: Seconds = NEVER
    """Time of the claim's reveal or merge; the challenge window starts then."""
    round: int = 0
    transitions: int = 0
    """T, the number of transitions."""
    attempt: int = 0
    slot: int = 0
    """Slot number; MERGE_SLOT for a merge."""
    open_games: int = 0
    convicted_at: int = 0
    """The transition proven wrong; 0 if none was (a clock ran out, or two signatures)."""
    games: int = 0
    """Number of games opened on it so far."""
    carries: bool = False
    """True if S_0 holds the carry of the worker's claim for the slot in the previous round; otherwise the carry is
    zero.
    """
    digest: Digest = ZERO
    """The commitment; after the reveal the hash of the claim's body."""

    @property
    def is_merge(self) -> bool:
        """True if the claim is for a merge."""
        return self.slot == MERGE_SLOT


@dataclass(frozen=True)
class Body:
    """A claim's contents: T transitions from S_0 to node(out, out2), their states under `trace_root`."""

    trace_root: TraceRoot
    out: StateRoot
    out2: StateRoot

    @property
    def words(self) -> tuple[Digest, Digest, Digest]:
        """Returns the three words by which a game identifies the claim from which a carry comes."""
        return Digest(self.trace_root), Digest(self.out), Digest(self.out2)


@dataclass(frozen=True)
class Reveal:
    """The arguments that open a worker's commitment."""

    body: Body
    nonce: Digest
    """32 random bytes, kept until the reveal."""
    proof_t: tuple[Digest, ...]
    """Proof that node(out, out2) is leaf T of the trace: siblings upward."""
    trace_cid: str
    """At most MAX_CID bytes, as for `payload_cid`."""
    payload_cid: str
    carries: bool = False
    """True if the claim starts from the carry of the worker's own claim for the slot in the previous round; False: from
    zero.
    """


@dataclass(frozen=True)
class Receipt:
    """A signed availability attestation: bit s of `mask` states that the speaker fetched and decoded the payload of
    slot s.
    """

    who: int
    """The speaker: s for the owner of slot s, 64 + i for the round's i-th drawn witness."""
    mask: int
    signature: bytes
    """Signature of `protocol.market.ids.receipt_hash` by the speaker or its delegate."""


@dataclass(frozen=True)
class GameTerms:
    """Terms that the market gives a game when it opens."""

    defender: Address
    transitions: int
    games: int
    """Number of games opened on the claim before this one."""
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
