"""Demands for unavailable data (availability challenges). Twin of contracts/Availability.sol: same names, order and
sentences.

    demand  Open -> Answered | Missing | Closed

A payload is demanded while receipts are given: the demander names four of its leaves, the next block's hash four more,
and anyone who has these leaves posts them. A row of the dataset may be demanded at any time. `payload_answer` and
`row_answer` build answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockstep.protocol import merkle
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import ZERO, ZERO_ADDRESS, Body, JobParams, JobStatus, word
from lockstep.protocol.market import ids, precommitted, prices, vault, verdicts
from lockstep.protocol.market.calls import HASH_BLOCKS, MAX_UINT, Block
from lockstep.protocol.market.state import Draft, Reader
from lockstep.protocol.market.types import Asked, Demand, Row, Shown, Status
from lockstep.protocol.market.views import bond_of, claim_id_of, live, params
from lockstep.protocol.merkle import LEAF_BYTES, LEAF_ELEMENTS, TensorHeader, ceil_log2
from lockstep.protocol.programs.defects import Code
from lockstep.protocol.programs.program import I32, Alias, Op, Program, ProgramHeader
from lockstep.protocol.reverts import overflow, revert
from lockstep.protocol.types import Address, ClaimId, Digest, JobId, Seconds, Wei

LEAVES = 8
"""Leaves that a demand for a payload names: the demander chooses half of them, the beacon the other half."""
WANTED = 4
"""Leaves that the demander chooses."""
CARRY = 1
"""Value of `row` in a demand for the carry that a claim starts from."""
ORDINAL_BITS, NUMBER_BITS = 24, 40
"""Bits of a leaf's name in `wanted`: the tensor's number among those that are not EMPTY, and the leaf's number."""


def payload_demand_id(claim: ClaimId, n: int) -> Digest:
    """Returns keccak(abi.encode("payload", claim, n))."""
    return _demand_id("payload", claim, n)


def row_demand_id(job: JobId, row: int) -> Digest:
    """Returns keccak(abi.encode("row", job, row))."""
    return _demand_id("row", job, row)


def _demand_id(kind: str, subject: bytes, number: int) -> Digest:
    text = kind.encode()
    return keccak(word(96) + subject + word(number) + word(len(text)) + text.ljust(32, b"\0"))


# -- payloads ----------------------------------------------------------------------------------------------------------


def unavailable(d: Draft, sender: Address, job: JobId, r: int, slot: int, wanted: int) -> Digest:
    """Demands eight leaves of a payload, four of them `wanted`; locks a game's bond."""
    return _demand(d, sender, job, r, slot, wanted, 0)


def carry_unavailable(d: Draft, sender: Address, job: JobId, r: int, slot: int, wanted: int) -> Digest:
    """Demands, as `unavailable`, the carry that a slot's claim starts from; the demand counts as a game of one move."""
    # INVARIANT: a carry is demanded of who starts from it.
    if not d.claims[claim_id_of(d, job, r, slot)].carries:
        raise revert("NoCarry", slot)
    return _demand(d, sender, job, r, slot, wanted, CARRY)


def _demand(d: Draft, sender: Address, job: JobId, r: int, slot: int, wanted: int, what: int) -> Digest:
    claim, p = claim_id_of(d, job, r, slot), d.params[job]
    asked = d.asked.edit(claim)
    demand = payload_demand_id(claim, asked.count)
    deadline, beacon = _set_until(d, asked, p, what), d.block.number + 1

    asked.count += 1
    asked.open += 1
    d.demands[demand] = Demand(Digest(claim), sender, Status.OPEN, beacon, deadline, what, wanted=wanted)

    _emit(d, "PayloadDemanded", demand, job, claim, sender, r, slot, beacon, deadline, wanted)

    # INVARIANT: payloads are demanded while receipts are given, of those who have revealed.
    verdicts.on_demanded(d, d.at.availability, job, r, slot, what == CARRY)
    vault.lock(d, d.at.availability, sender, demand, bond_of(d, job))
    return demand


def _set_until(d: Draft, asked: Asked, p: JobParams | None, what: int) -> Seconds:
    """Returns the time until which an answer counts; sets `asked.until`, until which an answer keeps the claim in the
    merge.
    """
    deadline = Seconds(d.block.time + (p.windows.answer_seconds if p else 0))

    asked.until = deadline

    # INVARIANT: who shows a carry late is left out of the merge, and has a defender's clock more until it is convicted.
    return Seconds(deadline + p.windows.clock_seconds) if p and what == CARRY else deadline


def keep_seed(d: Draft, sender: Address, demand: Digest) -> None:
    """Stores the random word that names a demand's leaves, while the chain still knows the beacon block's hash."""
    asked_for = _open(d, demand)
    if d.seeds[demand] != ZERO:
        raise revert("AlreadyDone")
    # INVARIANT: who hides leaves has one draw: its word is kept before the chain forgets the block, and none is kept
    # after that.
    if asked_for.beacon == 0 or d.block.number > asked_for.beacon + HASH_BLOCKS:
        raise revert("DemandClosed", demand)
    seed = seed_of(d, d.block, demand)

    d.seeds[demand] = seed

    _emit(d, "SeedKept", demand, seed)


def answer(d: Draft, sender: Address, demand: Digest, body: Body, code: Code, shown: Sequence[Shown]) -> None:
    """Posts the demanded leaves.

    Pays the slot's worker about their gas out of the bond; the rest of the bond is returned.
    """
    asked_for = _open(d, demand)
    claim = ClaimId(asked_for.subject)
    c = d.claims[claim]
    carry = asked_for.row == CARRY
    # INVARIANT: what is shown is what was claimed: of a carry, in the round before.
    shows = d.claims[claim_id_of(d, c.job, c.round - 1, c.slot)] if carry else c
    if shows.digest != ids.body_hash(body):
        raise revert("CommitmentMismatch")
    p = params(d, c.job)
    # INVARIANT: evidence is about the Programs that the job names.
    if merkle.program_root(code.header, code.ops_root, code.consts_root) != bytes(p.role.encode_program):
        raise revert("ProofInvalid")
    seed = seed_of(d, d.block, demand)
    _require_shown(asked_for.wanted, seed, merkle.node(body.out, body.out2), code, shown, carry)

    asked_for.status = Status.ANSWERED
    d.asked.edit(claim).open -= 1

    _emit(d, "Settled", demand, asked_for.subject, Status.ANSWERED, c.worker)

    if _is_game(d, asked_for):
        verdicts.on_rejected(d, d.at.availability, claim)
    # INVARIANT: an answer is paid its gas and no share of a bond: to withhold what others must then demand is no wage.
    fee, pricing = d.block.base_fee, p.prices
    pay = prices.gas_cost(prices.ANSWER_GAS, pricing.gas_price, pricing.fee_cap, fee)
    vault.pay_bond(d, d.at.availability, demand, c.worker, pay)


def settle(d: Draft, sender: Address, demand: Digest) -> None:
    """Settles a demand after its deadline: the payload counts as missing and the bond is returned; for a carry the
    claim is convicted.
    """
    asked_for = _expired(d, demand)
    # A demand for a row belongs to no claim; `void_for_row` settles it.
    if asked_for.beacon == 0:
        raise revert("DemandClosed", demand)
    asked = d.asked.edit(ClaimId(asked_for.subject))

    asked_for.status = Status.MISSING
    asked.open -= 1
    asked.missing = True

    _emit(d, "Settled", demand, asked_for.subject, Status.MISSING, ZERO_ADDRESS)

    # INVARIANT: who starts from a carry and shows it to nobody is convicted, as a silent defender is.
    if _is_game(d, asked_for):
        verdicts.on_convicted(d, d.at.availability, ClaimId(asked_for.subject), 0, [asked_for.asker], [])
    vault.unlock(d, d.at.availability, demand)


def _is_game(d: Draft, asked_for: Demand) -> bool:
    """Returns True for a demand for a carry, which counts as a game while its claim is neither void nor convicted."""
    return asked_for.row == CARRY and live(d, ClaimId(asked_for.subject))


# -- rows --------------------------------------------------------------------------------------------------------------


def demand_row(d: Draft, sender: Address, job: JobId, row: int) -> Digest:
    """Demands a row of the dataset; locks a game's bond plus the gas of posting the row's leaves."""
    # INVARIANT: rows are demanded of a job that goes on.
    if not _goes_on(d, job):
        raise revert("WrongJobStatus", job)
    p = params(d, job)
    if row >= p.role.dataset_rows:
        raise revert("NoSuchRow", row)
    demand = row_demand_id(job, row)
    # INVARIANT: a row is demanded once: what was posted is public.
    if d.demands[demand].status != Status.NONE:
        raise revert("AlreadyDone")
    deadline = Seconds(d.block.time + p.windows.answer_seconds)

    d.demands[demand] = Demand(Digest(job), sender, Status.OPEN, 0, deadline, row)

    _emit(d, "RowDemanded", demand, job, row, sender, deadline)

    vault.lock(d, d.at.availability, sender, demand, row_bond_of(d, job, row))
    return demand


def answer_row(d: Draft, sender: Address, job: JobId, row: int, tree: Digest, begin: int, rows: Sequence[Row]) -> None:
    """Posts a part of the row's leaves, from number `begin` on; the sender must have committed to this exact call.

    Each part is paid at once: 60 % of its share of the bond goes to the sender.
    """
    demand = row_demand_id(job, row)
    asked_for = _open(d, demand)
    precommitted.require_committed(d, "Availability", sender)
    p = params(d, job)
    header = TensorHeader(I32, (p.role.dataset_rows, p.role.row_length))
    # INVARIANT: the dataset is an i32 tensor of dims (rows, row length), as the job says.
    if merkle.tensor_root_of_tree(header, tree) != bytes(p.role.dataset_root):
        raise revert("ProofInvalid")
    leaves = leaves_of_row(p, row)
    following, end = asked_for.next, begin + len(rows)
    # INVARIANT: a row's leaves are posted in order, each once.
    if begin > following or end > len(leaves):
        raise revert("AnswerWrong")
    if end <= following:
        raise revert("AlreadyDone")
    # INVARIANT: who posts single leaves ahead of others spoils none of their parts: what is there already is skipped.
    posted = list(zip(leaves[following:end], rows[following - begin :], strict=True))
    for at, shown in posted:
        _require_length(header, at, shown.leaf)
        merkle.require(tree, merkle.leaf(shown.leaf), at, header.depth, shown.proof)

    asked_for.next = end
    for at, shown in posted:
        _emit(d, "RowPosted", demand, at, shown.leaf)
    share = MAX_UINT
    if end == len(leaves):
        asked_for.status = Status.ANSWERED

        _emit(d, "Settled", demand, job, Status.ANSWERED, sender)
    else:
        # INVARIANT: every leaf earns the same share of the bond, and the last one what is left of it.
        share = d.locks[demand].amount * (end - following) // (len(leaves) - following)

    vault.take_bond(d, d.at.availability, demand, sender, share)


def void_for_row(d: Draft, sender: Address, job: JobId, row: int) -> None:
    """Voids the job after the deadline of a row's demand: the rest of the bond is returned, and the demander counts as
    the prover.
    """
    demand = row_demand_id(job, row)
    asked_for = _expired(d, demand)
    goes_on = _goes_on(d, job)

    asked_for.status = Status.MISSING if goes_on else Status.CLOSED

    _emit(d, "Settled", demand, job, asked_for.status, ZERO_ADDRESS)

    # INVARIANT: a row that nobody has voids the job; a job that is over needs no row.
    if goes_on:
        verdicts.on_invalid(d, d.at.availability, job, asked_for.asker)
    vault.unlock(d, d.at.availability, demand)


def commit(d: Draft, sender: Address, digests: Sequence[Digest]) -> None:
    """Commits to calls of `answer_row`."""
    precommitted.commit(d, "Availability", digests)


# -- views -------------------------------------------------------------------------------------------------------------


def seed_of(s: Reader, block: Block, demand: Digest) -> Digest:
    """Returns the random word that names the leaves of a payload's demand."""
    beacon = s.demands[demand].beacon
    # INVARIANT: nobody who demands or answers knows the leaves before the demand stands.
    if block.number <= beacon:
        raise revert("TooEarly", beacon + 1)
    if s.seeds[demand] != ZERO:
        return s.seeds[demand]
    # For a block hash that the EVM has forgotten it is zero; then the demand's own id, unknown before the demand, names
    # the leaves.
    return keccak(demand + block.hash_of(beacon))


def row_bond_of(s: Reader, job: JobId, row: int) -> Wei:
    """Returns the bond that a demander of a row must lock now."""
    p = s.params[job]
    if p is None:
        raise overflow()
    return prices.row_bond_of(bond_of(s, job), p.prices.bond, len(leaves_of_row(p, row)))


# -- inside ------------------------------------------------------------------------------------------------------------


def _open(d: Draft, demand: Digest) -> Demand:
    found = d.demands[demand]
    # INVARIANT: an answer counts while its demand is open, up to the deadline.
    if found.status != Status.OPEN or d.block.time > found.deadline:
        raise revert("DemandClosed", demand)
    return d.demands.edit(demand)


def _expired(d: Draft, demand: Digest) -> Demand:
    found = d.demands[demand]
    if found.status != Status.OPEN:
        raise revert("DemandClosed", demand)
    # INVARIANT: a demand ends unanswered after its deadline, no sooner.
    if d.block.time <= found.deadline:
        raise revert("TooEarly", found.deadline + 1)
    return d.demands.edit(demand)


def _goes_on(d: Draft, job: JobId) -> bool:
    return d.jobs[job].status in (JobStatus.ACTIVE, JobStatus.CANCELLED)


def _emit(d: Draft, name: str, *values: object) -> None:
    d.emit("Availability", name, *values)


# -- shapes ------------------------------------------------------------------------------------------------------------


def _require_shown(wanted: int, seed: Digest, state: bytes, code: Code, shown: Sequence[Shown], carry: bool) -> None:
    """Checks each leaf that the demander and the seed name, under the claim's last state: of its payload or of its
    carry.
    """
    header = ProgramHeader.decode(code.header)
    places = named_leaves(wanted, seed, header, carry)
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
        merkle.require(state, merkle.tensor_root_of_tree(tensor, tree), entry, header.s_out, s.entry_proof)


def named_leaves(wanted: int, seed: Digest, header: ProgramHeader, carry: bool = False) -> list[tuple[int, int]]:
    """Returns (entry, number) of each leaf to post: the leaf's index in the entry is the number modulo its leaf count.

    Entries are those that `encode` outputs: of the payload (first half of the last state) or of the carry (second
    half).
    """
    half = len(header.outputs) // 2
    part = range(half, 2 * half) if carry else range(half)
    entries = [k for k in part if header.outputs[k].kind != Alias.EMPTY_KIND]
    named = [_named(wanted, seed, i) for i in range(LEAVES if entries else 0)]
    return [(entries[tensor % len(entries)], number) for tensor, number in named]


def _named(wanted: int, seed: Digest, i: int) -> tuple[int, int]:
    """Returns the tensor's number and the leaf's number before they are reduced modulo their counts."""
    # INVARIANT: half of the leaves are what the asker lacks, the others nobody's choice.
    if i < WANTED:
        packed = wanted >> (ORDINAL_BITS + NUMBER_BITS) * i & (1 << ORDINAL_BITS + NUMBER_BITS) - 1
        return packed >> NUMBER_BITS, packed & (1 << NUMBER_BITS) - 1
    drawn = int.from_bytes(keccak(seed + word(i - WANTED)), "big")
    return drawn >> 128, drawn & (1 << 128) - 1


def pack_wanted(leaves: Sequence[tuple[int, int]], salt: bytes) -> int:
    """Packs `wanted` of `unavailable`: up to four (tensor, leaf) that the demander lacks; a salt fills the rest."""
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
        merkle.require(code.ops_root, merkle.leaf(s.descriptor), alias.index, ceil_log2(header.n), s.descriptor_proof)
        return Op.decode(s.descriptor).header
    tensor = header.inputs[alias.index]
    if tensor is None:
        # The rank byte of EMPTY reads as -1; a Program that names such an entry is void.
        raise overflow()
    return tensor


def _require_length(tensor: TensorHeader, at: int, leaf: bytes) -> None:
    # INVARIANT: a leaf has 1 KiB, the last one what is left.
    if len(leaf) != min(4 * tensor.elements - LEAF_BYTES * at, LEAF_BYTES):
        raise revert("AnswerWrong")


def leaves_of_row(p: JobParams, row: int) -> list[int]:
    """Returns the leaves of the dataset that hold a row."""
    start = row * p.role.row_length
    return list(range(start // LEAF_ELEMENTS, (start + p.role.row_length - 1) // LEAF_ELEMENTS + 1))


# -- the answerer's side -----------------------------------------------------------------------------------------------


def payload_answer(
    wanted: int, seed: Digest, program: Program, tensors: Callable[[int], memoryview], carry: bool = False
) -> tuple[Shown, ...]:
    """Returns the leaves that a demand names; `tensors(entry)` returns the contents of an entry that is a tensor."""
    header = ProgramHeader.decode(program.header)
    layout = program.output_layout
    roots = [
        merkle.EMPTY[0] if h is None else merkle.tensor_root(h.dtype, h.shape, tensors(k)) for k, h in enumerate(layout)
    ]
    levels = merkle.levels(roots)
    trees: dict[int, list[merkle.Level]] = {}
    shown = []
    for entry, number in named_leaves(wanted, seed, header, carry):
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
    """Returns (tree, leaves) of a row, from the dataset's contents."""
    levels = merkle.data_levels(data)
    view = memoryview(data).cast("B")
    rows = tuple(
        Row(bytes(view[LEAF_BYTES * at : LEAF_BYTES * (at + 1)]), tuple(merkle.proof(levels, at)))
        for at in leaves_of_row(p, row)
    )
    return levels[-1][0], rows
