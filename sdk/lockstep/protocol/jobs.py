"""The market's values: a job's parameters, its rounds and its claims, field by field as in IJobMarket.sol."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum

from lockstep.protocol.merkle import ceil_log2
from lockstep.protocol.types import (
    MERGE_SLOT,
    Address,
    ClaimId,
    Digest,
    JobId,
    Seconds,
    Seed,
    StateRoot,
    TraceRoot,
    Wei,
)

ZERO = Digest(bytes(32))
NO_JOB = JobId(bytes(32))
NO_CLAIM = ClaimId(bytes(32))
NO_SEED = Seed(bytes(32))
NO_STATE = StateRoot(bytes(32))
NO_TRACE = TraceRoot(bytes(32))
NOTHING = Wei(0)
NEVER = Seconds(0)
ZERO_ADDRESS = Address("0x" + "00" * 20)


class JobStatus(IntEnum):
    """Of a job; CANCELLED still finishes the rounds in flight."""

    NONE = 0
    ACTIVE = 1
    CANCELLED = 2
    DONE = 3


class Phase(IntEnum):
    """Of a round. Each act has one phase in which it is allowed."""

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
    """Of a claim. REVEALED, ACCEPTED and EXCLUDED can be convicted."""

    NONE = 0
    JOINED = 1
    COMMITTED = 2
    REVEALED = 3
    ACCEPTED = 4
    EXCLUDED = 5
    ABSENT = 6
    FINAL = 7
    CONVICTED = 8
    VOID = 9


@dataclass(frozen=True)
class JobParams:
    """What a job fixes for ever; its hash is part of the JobId. Field order is the ABI's."""

    spec_digest: Digest
    """SHA-256 of the spec's one block: the digest in its CID."""
    step_program: Digest
    encode_program: Digest
    merge_program: Digest
    dataset_root: Digest
    """tensor_root of the i32 tensor of dims (dataset_rows, row_length)."""
    dataset_rows: int
    row_length: int
    genesis_shared: StateRoot
    genesis_outer: StateRoot
    zero_carry: StateRoot
    zero_payload: StateRoot
    """The payload root that stands in the merge for a slot without an accepted claim."""
    shared_depth: int
    """b: depth of the shared, outer and carry subtrees."""
    payload_depth: int
    """p: depth of one payload subtree; p + ceil(log2 slots) >= b."""
    inner_steps: int
    """H."""
    rounds: int
    slots: int
    min_slots: int
    """Fewer accepted claims than this fail the round."""
    max_lead: int
    """Rounds that may run ahead of the last settled one, this one counted."""
    max_fail: int
    """More failed rounds than this end the job."""
    join_seconds: Seconds
    train_seconds: Seconds
    reveal_seconds: Seconds
    attest_seconds: Seconds
    merge_seconds: Seconds
    """Of each merge turn: the aggregator's, then each accepted slot owner's."""
    challenge_seconds: Seconds
    """From the reveal (or merge) of a claim: how long games may be opened on it."""
    clock_seconds: Seconds
    """T of each side's clock in a game."""
    step_seconds: Seconds
    """tau: what every further open game on the claim adds to the defender's clock."""
    slot_price: Wei
    """Also the fine for not revealing."""
    merge_price: Wei
    slot_stake: Wei
    merge_stake: Wei
    bond: Wei
    """What a challenger locks per game."""
    aggregator: Address
    """Merges first and attests alone; the zero address: nobody does."""
    profile: int = 1
    opset: int = 1

    @property
    def transitions(self) -> int:
        """T of a slot claim: H steps and the encode."""
        return self.inner_steps + 1

    @property
    def slot_depth(self) -> int:
        """q: ceil(log2 slots)."""
        return ceil_log2(self.slots)

    @property
    def round_pay(self) -> Wei:
        """The pay of a round in which everybody is paid."""
        return Wei(self.slots * self.slot_price + self.merge_price)

    @property
    def escrow(self) -> Wei:
        """The least escrow: every round paid in full."""
        return Wei(self.rounds * self.round_pay)

    def encode(self) -> bytes:
        """abi.encode: one 32-byte word a field."""
        return b"".join(word(getattr(self, field.name)) for field in fields(self))


def word(value: bytes | int | str) -> bytes:
    """One ABI word: bytes32 as it is, an unsigned integer big-endian, an address padded on the left."""
    if isinstance(value, bytes):
        if len(value) != 32:
            raise ValueError(f"{len(value)} bytes for a bytes32")
        return value
    number = int(value, 16) if isinstance(value, str) else value
    return number.to_bytes(32, "big")


@dataclass
class Job:
    """A job's books. escrow = paid + refunded once it is DONE."""

    requester: Address
    status: JobStatus
    started: int = 0
    """Rounds started so far, voided ones not counted: the next round's number."""
    settled: int = 0
    """Leading rounds that are FINAL, or FAILED for good."""
    failed: int = 0
    attempt: int = 0
    """Raised by every convicted merge; part of the ids of the claims made after it."""
    escrow: Wei = NOTHING
    paid: Wei = NOTHING
    refunded: Wei = NOTHING


@dataclass
class Round:
    """One round as stored: JOINING stands for every phase before the freeze; `rounds.phase` tells them apart."""

    phase: Phase = Phase.NONE
    attempt: int = 0
    joined: int = 0
    committed: int = 0
    revealed: int = 0
    accepted: int = 0
    attested: bool = False
    turn: int = 0
    """Merge turns passed over: 0 is the aggregator's, k the k-th accepted slot's in seed order."""
    open_games: int = 0
    seed_block: int = 0
    join_ends: Seconds = NEVER
    commit_ends: Seconds = NEVER
    reveal_ends: Seconds = NEVER
    attest_ends: Seconds = NEVER
    merge_opens: Seconds = NEVER
    merged_at: Seconds = NEVER
    seed: Seed = NO_SEED
    base: StateRoot = NO_STATE
    outer: StateRoot = NO_STATE
    merge_in: StateRoot = NO_STATE
    attestation: int = 0
    """Bit s: the aggregator fetched and decoded slot s's payload."""
    mask: int = 0
    """Bit s: slot s was accepted."""
    merge_claim: ClaimId = NO_CLAIM


@dataclass
class Claim:
    """One claim as stored; T transitions from S_0 to node(out, out2)."""

    job: JobId = NO_JOB
    worker: Address = ZERO_ADDRESS
    round: int = 0
    attempt: int = 0
    slot: int = 0
    """MERGE_SLOT for a merge."""
    status: ClaimStatus = ClaimStatus.NONE
    transitions: int = 0
    open_games: int = 0
    claimed_at: Seconds = NEVER
    """When it was revealed or merged; the challenge window starts here."""
    commitment: Digest = ZERO
    trace_root: TraceRoot = NO_TRACE
    out: StateRoot = NO_STATE
    out2: StateRoot = NO_STATE

    @property
    def is_merge(self) -> bool:
        """Whether it claims a merge and not a slot."""
        return self.slot == MERGE_SLOT


@dataclass(frozen=True)
class Reveal:
    """What a worker committed to, opened."""

    trace_root: TraceRoot
    out: StateRoot
    out2: StateRoot
    nonce: Digest
    """32 random bytes, kept until the reveal."""
    proof_t: tuple[Digest, ...]
    """node(out, out2) is leaf T of the trace: siblings upward."""
    trace_cid: str
    payload_cid: str


@dataclass(frozen=True)
class GameTerms:
    """What a game must know when it opens."""

    defender: Address
    transitions: int
    open_games: int
    """Before this one."""
    clock_seconds: Seconds
    step_seconds: Seconds
    bond: Wei
    trace_root: TraceRoot
