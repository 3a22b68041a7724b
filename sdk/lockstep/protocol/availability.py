"""Demands for data that cannot be had, pure. Twin of contracts/Availability.sol: same names, order and sentences.

    demand  Open -> Answered | Missing | Closed

A payload is demanded while receipts are given: the asker names four of its leaves, the next block four more, and
whoever has them posts them. A row of the dataset is demanded at any time. `payload_answer` and `row_answer` are the
answerer's side.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from lockstep.protocol import claims, economics, merkle
from lockstep.protocol.jobs import NEVER, Body, JobParams, JobStatus, word
from lockstep.protocol.merkle import LEAF_BYTES, LEAF_ELEMENTS, TensorHeader, ceil_log2
from lockstep.protocol.precommitted import Precommitted
from lockstep.protocol.program import I32, Alias, Op, Program, ProgramHeader
from lockstep.protocol.reverts import revert
from lockstep.protocol.rounds import Block, Market
from lockstep.protocol.stakes import Keeper
from lockstep.protocol.statement import keccak
from lockstep.protocol.types import Address, ClaimId, Digest, JobId, Seconds, Wei
from lockstep.protocol.validator import Code

LEAVES = 8
"""Of a payload that a demand names: half of them the asker, half the beacon."""
WANTED = 4
"""Of them the asker names."""
ORDINAL_BITS, NUMBER_BITS = 24, 40
"""Of a leaf that the asker names: its tensor's number among those that are not EMPTY, and its own."""
BEACON_BLOCKS = 256
"""The EVM's blockhash knows this many blocks."""


class Status(IntEnum):
    """Of a demand."""

    NONE = 0
    OPEN = 1
    ANSWERED = 2
    MISSING = 3
    """Nobody answered in time."""
    CLOSED = 4
    """Nobody answered, and it does not matter any more: the job was over."""


@dataclass
class Demand:
    """One demand as stored."""

    subject: Digest
    """The claim whose payload is demanded, or the job whose row is."""
    asker: Address
    status: Status
    beacon: int
    """The block whose hash names a payload's leaves; 0 for a row."""
    deadline: Seconds
    """Answers count up to and including this second."""
    row: int = 0
    next: int = 0
    """Leaves of the row that are posted."""
    wanted: int = 0
    """The leaves of a payload that the asker names."""


@dataclass
class Asked:
    """All demands for one claim's payload."""

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
    """Of the op behind the entry; empty where the entry is a tensor of the encode's input."""
    descriptor_proof: tuple[Digest, ...]


@dataclass(frozen=True)
class Row:
    """A leaf of the dataset, opened."""

    leaf: bytes
    proof: tuple[Digest, ...]


def payload_demand_id(claim: ClaimId, n: int) -> Digest:
    """keccak(abi.encode("payload", claim, n))."""
    return _demand_id("payload", claim, n)


def row_demand_id(job: JobId, row: int) -> Digest:
    """keccak(abi.encode("row", job, row))."""
    return _demand_id("row", job, row)


def _demand_id(kind: str, subject: bytes, number: int) -> Digest:
    text = kind.encode()
    return keccak(word(96) + subject + word(number) + word(len(text)) + text.ljust(32, b"\0"))


P = ParamSpec("P")
R = TypeVar("R")


def _verb(act: Callable[Concatenate[Availability, Block, P], R]) -> Callable[Concatenate[Availability, Block, P], R]:
    """All or nothing, in the market too, as a transaction."""

    @wraps(act)
    def whole(self: Availability, block: Block, /, *args: P.args, **kwargs: P.kwargs) -> R:
        before = copy.deepcopy((self.demands, self.by_claim, self.market.__dict__))
        self.now = block.time
        try:
            return act(self, block, *args, **kwargs)
        except Exception:
            self.demands, self.by_claim = before[:2]
            self.market.__dict__.update(before[2])
            raise

    return whole


@dataclass
class Availability:
    """The demands of one market."""

    market: Market
    demands: dict[Digest, Demand] = field(default_factory=dict)
    by_claim: dict[ClaimId, Asked] = field(default_factory=dict)
    commitments: Precommitted = field(default_factory=Precommitted)
    now: Seconds = NEVER
    """Of the last act: `missing` is asked within one."""

    # -- payloads

    @_verb
    def unavailable(self, block: Block, sender: Address, job: JobId, r: int, slot: int, wanted: int) -> Digest:
        """Demands eight leaves of a payload, four of them `wanted`; locks a game's bond."""
        ro, p = self.market._round(job, r), self.market.params.get(job)
        if p is None:
            raise revert("WrongPhase", job, r)
        claim = claims.claim_id(job, r, ro.attempt, slot)
        asked = self.by_claim.get(claim, Asked())
        demand = payload_demand_id(claim, asked.count)
        deadline = Seconds(block.time + p.windows.answer_seconds)
        # INVARIANT: payloads are demanded while receipts are given, of those who have revealed.
        self.market.on_demanded(block, job, r, slot)
        self._lock(sender, demand, self.market.bond_of(job))

        self.by_claim[claim] = Asked(asked.count + 1, asked.open + 1, deadline, asked.missing)
        self.demands[demand] = Demand(Digest(claim), sender, Status.OPEN, block.number + 1, deadline, wanted=wanted)
        return demand

    @_verb
    def answer(self, block: Block, demand: Digest, body: Body, code: Code, shown: Sequence[Shown]) -> None:
        """Posts the leaves; 60 % of the bond to the slot's worker, the rest burned."""
        d = self._open(block, demand)
        claim = ClaimId(d.subject)
        c = self.market.claims[claim]
        p = self.market.params[c.job]
        # INVARIANT: what is shown is what was claimed.
        if c.digest != claims.body_hash(body):
            raise revert("CommitmentMismatch")
        # INVARIANT: evidence is about the Programs that the job names.
        if merkle.program_root(code.header, code.ops_root, code.consts_root) != bytes(p.role.encode_program):
            raise revert("ProofInvalid")
        _require_shown(d.wanted, self.seed_of(block, demand), merkle.node(body.out, body.out2), code, shown)

        d.status = Status.ANSWERED
        self.by_claim[claim].open -= 1

        self.market.books.take_bond(demand, c.worker, keeper=Keeper.AVAILABILITY)

    @_verb
    def settle(self, block: Block, demand: Digest) -> None:
        """After the deadline: the payload is missing, the bond returns."""
        d = self._expired(block, demand)
        # A row's demand is `void_for_row`'s: it belongs to no claim.
        if d.beacon == 0:
            raise revert("DemandClosed", demand)
        asked = self.by_claim[ClaimId(d.subject)]

        d.status = Status.MISSING
        asked.open -= 1
        asked.missing = True

        self.market.books.unlock(demand, keeper=Keeper.AVAILABILITY)

    # -- rows

    @_verb
    def demand_row(self, block: Block, sender: Address, job: JobId, row: int) -> Digest:
        """Demands a row of the dataset; locks a game's bond and the gas of posting its leaves."""
        p = self.market.params.get(job)
        # INVARIANT: rows are demanded of a job that goes on.
        if p is None or not self._goes_on(job):
            raise revert("WrongJobStatus", job)
        if row >= p.role.dataset_rows:
            raise revert("NoSuchRow", row)
        demand = row_demand_id(job, row)
        # INVARIANT: a row is demanded once: what was posted is public.
        if demand in self.demands:
            raise revert("AlreadyDone")
        self._lock(sender, demand, self.row_bond_of(job, row))

        deadline = Seconds(block.time + p.windows.answer_seconds)
        self.demands[demand] = Demand(Digest(job), sender, Status.OPEN, 0, deadline, row)
        return demand

    @_verb
    def answer_row(
        self, block: Block, sender: Address, data: bytes, job: JobId, row: int, tree: Digest, begin: int,
        rows: Sequence[Row],
    ) -> None:  # fmt: skip
        """Posts a part of the row's leaves, from the one numbered `begin` on; `data` are the transaction's, to which
        the sender has committed. Every part is paid at once: 60 % of its share of the bond to who posts it."""
        demand = row_demand_id(job, row)
        d = self._open(block, demand)
        self.commitments.require(block, sender, data)
        p = self.market.params[job]
        header = TensorHeader(I32, (p.role.dataset_rows, p.role.row_length))
        # INVARIANT: the dataset is an i32 tensor of dims (rows, row length), as the job says.
        if merkle.tensor_root_of_tree(header, tree) != bytes(p.role.dataset_root):
            raise revert("ProofInvalid")
        leaves = leaves_of_row(p, row)
        following, end = d.next, begin + len(rows)
        # INVARIANT: a row's leaves are posted in order, each once.
        if begin > following or end > len(leaves):
            raise revert("AnswerWrong")
        if end <= following:
            raise revert("AlreadyDone")
        # INVARIANT: who posts single leaves ahead of others spoils none of their parts: what is there already is
        # skipped.
        for at, shown in zip(leaves[following:end], rows[following - begin :], strict=True):
            _require_length(header, at, shown.leaf)
            _verify(tree, merkle.leaf(shown.leaf), at, header.depth, shown.proof)

        d.next = end
        share = None
        if end == len(leaves):
            d.status = Status.ANSWERED
        else:
            # INVARIANT: every leaf earns the same share of the bond, and the last one what is left of it.
            held = self.market.books.locks[demand].amount
            share = held * (end - following) // (len(leaves) - following)

        self.market.books.take_bond(demand, sender, share, keeper=Keeper.AVAILABILITY)

    @_verb
    def void_for_row(self, block: Block, job: JobId, row: int) -> None:
        """After the deadline: the job is void, the rest of the bond returns, and who demanded the row is the prover."""
        demand = row_demand_id(job, row)
        d = self._expired(block, demand)
        goes_on = self._goes_on(job)

        d.status = Status.MISSING if goes_on else Status.CLOSED

        # INVARIANT: a row that nobody has voids the job; a job that is over needs no row.
        if goes_on:
            self.market.on_invalid(job, d.asker)
        self.market.books.unlock(demand, keeper=Keeper.AVAILABILITY)

    # -- views

    def missing(self, claim: ClaimId) -> bool:
        """Whether a demand for the claim's payload ended unanswered; raises while one is open."""
        asked = self.by_claim.get(claim, Asked())
        if asked.missing:
            return True
        if not asked.open:
            return False
        # INVARIANT: nothing is decided while a demand may still be answered; what is open after that was not answered.
        if self.now <= asked.until:
            raise revert("TooEarly", asked.until + 1)
        return True

    def seed_of(self, block: Block, demand: Digest) -> Digest:
        """The word that names the leaves of a payload's demand."""
        beacon = self.demands[demand].beacon
        # INVARIANT: nobody who demands or answers knows the leaves before the demand stands.
        if block.number <= beacon:
            raise revert("TooEarly", beacon + 1)
        # A hash that the EVM has forgotten is zero for everybody: the demand's own id, new at its time, names the
        # leaves then.
        known = block.hashes[beacon] if block.number - beacon <= BEACON_BLOCKS else bytes(32)
        return keccak(demand + known)

    def row_bond_of(self, job: JobId, row: int) -> Wei:
        """What the asker of a row locks now."""
        p = self.market.params[job]
        return economics.row_bond_of(self.market.bond_of(job), p.prices.bond, len(leaves_of_row(p, row)))

    # -- inside

    def _lock(self, sender: Address, demand: Digest, bond: Wei) -> None:
        self.market.books.lock(sender, demand, bond, keeper=Keeper.AVAILABILITY)

    def _open(self, block: Block, demand: Digest) -> Demand:
        d = self.demands.get(demand)
        # INVARIANT: an answer counts while its demand is open, up to the deadline.
        if d is None or d.status != Status.OPEN or block.time > d.deadline:
            raise revert("DemandClosed", demand)
        return d

    def _expired(self, block: Block, demand: Digest) -> Demand:
        d = self.demands.get(demand)
        if d is None or d.status != Status.OPEN:
            raise revert("DemandClosed", demand)
        # INVARIANT: a demand ends unanswered after its deadline, no sooner.
        if block.time <= d.deadline:
            raise revert("TooEarly", d.deadline + 1)
        return d

    def _goes_on(self, job: JobId) -> bool:
        j = self.market.jobs.get(job)
        return j is not None and j.status in (JobStatus.ACTIVE, JobStatus.CANCELLED)


# -- shapes ------------------------------------------------------------------------------------------------------------


def _require_shown(wanted: int, seed: Digest, state: bytes, code: Code, shown: Sequence[Shown]) -> None:
    """Each of the leaves that the asker and the seed name, under the claim's last state: its payload and its carry."""
    header = ProgramHeader.decode(code.header)
    places = named_leaves(wanted, seed, header)
    # INVARIANT: a demand names eight leaves, of a payload without tensors none.
    if len(shown) != len(places):
        raise revert("AnswerWrong")
    for (entry, number), s in zip(places, shown, strict=True):
        tensor = _tensor(header, entry, code, s)
        at = number % tensor.leaves
        _require_length(tensor, at, s.leaf)
        # INVARIANT: a tree's depth comes from the committed header, never from the proof that a mover sends.
        if len(s.leaf_proof) != tensor.depth:
            raise revert("ProofInvalid")
        tree = merkle.climb(merkle.leaf(s.leaf), at, s.leaf_proof)
        _verify(state, merkle.tensor_root_of_tree(tensor, tree), entry, header.s_out, s.entry_proof)


def named_leaves(wanted: int, seed: Digest, header: ProgramHeader) -> list[tuple[int, int]]:
    """(entry, number) of each leaf: an entry that `encode` puts out, and a number whose remainder by its leaves is the
    leaf."""
    entries = [k for k, alias in enumerate(header.outputs) if alias.kind != Alias.EMPTY_KIND]
    named = [_named(wanted, seed, i) for i in range(LEAVES if entries else 0)]
    return [(entries[tensor % len(entries)], number) for tensor, number in named]


def _named(wanted: int, seed: Digest, i: int) -> tuple[int, int]:
    """The tensor's number and the leaf's, neither reduced yet."""
    # INVARIANT: half of the leaves are what the asker lacks, the others nobody's choice.
    if i < WANTED:
        packed = wanted >> (ORDINAL_BITS + NUMBER_BITS) * i & (1 << ORDINAL_BITS + NUMBER_BITS) - 1
        return packed >> NUMBER_BITS, packed & (1 << NUMBER_BITS) - 1
    drawn = int.from_bytes(keccak(seed + word(i - WANTED)), "big")
    return drawn >> 128, drawn & (1 << 128) - 1


def pack_wanted(leaves: Sequence[tuple[int, int]], salt: bytes) -> int:
    """What `unavailable` takes: up to four (tensor, leaf) that the asker lacks, the rest drawn from the salt."""
    drawn = int.from_bytes(keccak(salt), "big")
    width = ORDINAL_BITS + NUMBER_BITS
    for i, (ordinal, number) in enumerate(leaves[:WANTED]):
        drawn &= ~((1 << width) - 1 << width * i)
        drawn |= (ordinal << NUMBER_BITS | number) << width * i
    return drawn


def _tensor(header: ProgramHeader, entry: int, code: Code, s: Shown) -> TensorHeader:
    alias = header.outputs[entry]
    if alias.kind == Alias.OP_KIND:
        # INVARIANT: the descriptor is the Program's own.
        _verify(code.ops_root, merkle.leaf(s.descriptor), alias.index, ceil_log2(header.n), s.descriptor_proof)
        return Op.decode(s.descriptor).header
    tensor = header.inputs[alias.index]
    assert tensor is not None, "a Program that names EMPTY is void"
    return tensor


def _require_length(tensor: TensorHeader, at: int, leaf: bytes) -> None:
    # INVARIANT: a leaf has 1 KiB, the last one what is left.
    if len(leaf) != min(4 * tensor.elements - LEAF_BYTES * at, LEAF_BYTES):
        raise revert("AnswerWrong")


def _verify(root: bytes, value: bytes, index: int, depth: int, proof: Sequence[bytes]) -> None:
    # INVARIANT: a tree's depth comes from the claim or the Program, never from the proof that a mover sends.
    if len(proof) != depth or not merkle.verify(root, value, index, proof):
        raise revert("ProofInvalid")


def leaves_of_row(p: JobParams, row: int) -> list[int]:
    """The leaves of the dataset that hold a row."""
    start = row * p.role.row_length
    return list(range(start // LEAF_ELEMENTS, (start + p.role.row_length - 1) // LEAF_ELEMENTS + 1))


# -- the answerer's side -----------------------------------------------------------------------------------------------


def payload_answer(
    wanted: int, seed: Digest, program: Program, tensors: Callable[[int], memoryview]
) -> tuple[Shown, ...]:
    """The leaves that a demand names; `tensors(entry)` gives an entry's contents."""
    header = ProgramHeader.decode(program.header)
    layout = program.output_layout
    roots = [
        merkle.EMPTY[0] if h is None else merkle.tensor_root(h.dtype, h.shape, tensors(k)) for k, h in enumerate(layout)
    ]
    levels = merkle.levels(roots)
    trees: dict[int, list[merkle.Level]] = {}
    shown = []
    for entry, number in named_leaves(wanted, seed, header):
        data, tensor, alias = tensors(entry), layout[entry], program.outputs[entry]
        assert tensor is not None, "an entry that is named is a tensor"
        at = number % tensor.leaves
        of_op = alias.kind == Alias.OP_KIND
        if entry not in trees:
            trees[entry] = merkle.data_levels(data)
        shown.append(
            Shown(
                bytes(data[LEAF_BYTES * at : LEAF_BYTES * (at + 1)]),
                tuple(merkle.proof(trees[entry], at)),
                tuple(merkle.proof(levels, entry)),
                program.descriptors[alias.index] if of_op else b"",
                tuple(merkle.proof(program.ops_levels, alias.index)) if of_op else (),
            )
        )
    return tuple(shown)


def row_answer(p: JobParams, data: bytes | memoryview, row: int) -> tuple[Digest, tuple[Row, ...]]:
    """(tree, leaves) of a row, from the dataset's contents."""
    levels = merkle.data_levels(data)
    view = memoryview(data).cast("B")
    rows = tuple(
        Row(bytes(view[LEAF_BYTES * at : LEAF_BYTES * (at + 1)]), tuple(merkle.proof(levels, at)))
        for at in leaves_of_row(p, row)
    )
    return levels[-1][0], rows
