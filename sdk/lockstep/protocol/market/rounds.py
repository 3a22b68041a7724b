"""Rounds of a job from `startRound` to the merge, without verdicts and settlement.

Twin of contracts/JobMarket.sol and contracts/libraries/Rounds.sol, together with verdicts.py (`on...`) and views.py:
same names, same order, same sentences. Each verb looks up, requires, computes, writes, emits and pays.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.protocol import merkle
from lockstep.protocol.jobs import (
    MAX_CID,
    ZERO_ADDRESS,
    Body,
    Claim,
    ClaimStatus,
    JobParams,
    JobStatus,
    Phase,
    Receipt,
    Reveal,
    Round,
)
from lockstep.protocol.market import ids, prices, receipts, state_roots, vault
from lockstep.protocol.market.calls import HASH_BLOCKS
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.market.settling import absent, carried_from, claim_at, fail, give_back, release_all
from lockstep.protocol.market.state import Draft, checked
from lockstep.protocol.market.views import (
    carry_stands,
    has_next,
    is_signed,
    is_voided,
    merger_of,
    missing,
    params,
    phase,
    phase_of,
    shared_from,
    turn_of,
    witness_of,
)
from lockstep.protocol.reverts import revert
from lockstep.protocol.types import (
    MERGE_SLOT,
    Address,
    ClaimId,
    Digest,
    JobId,
    Seconds,
    StateRoot,
    TraceRoot,
)

# -- anyone


def start_round(d: Draft, sender: Address, job: JobId, r: int) -> None:
    """Opens the next round for joining."""
    j, ro = d.jobs.edit(job), d.rounds[job, r]
    if j.status != JobStatus.ACTIVE:
        raise revert("WrongJobStatus", job)
    p = params(d, job)
    # INVARIANT: rounds start in order, on a merged or carried-over base, at most maxLead ahead of the last settled one.
    if r != j.started or not has_next(p, j):
        raise revert("RoundNotStartable", r)
    # INVARIANT: what a game on voided work argues about stands still until the game is over.
    if j.lingering:
        raise revert("GamesOpen", j.lingering)
    _require_backed(d, job, j.settled, r)
    base, outer = _base_of(d, job, p, r)
    if ro.phase == Phase.VOID:
        release_all(d, job, r)

    join_ends = Seconds(d.block.time + p.windows.join_seconds)
    d.rounds[job, r] = Round(Phase.JOINING, j.attempt, join_ends=join_ends, base=base, outer=outer)
    j.started = r + 1

    _emit(d, "RoundStarted", job, r, j.attempt, base, outer)


def seal(d: Draft, sender: Address, job: JobId, r: int) -> None:
    """Closes the roster, or draws the seed, or fails the round."""
    p, ro = in_phase(d, job, r, Phase.SEALING)
    if ro.seed_block == 0:
        # INVARIANT: who fails a sealed round gives up more seats than can be accepted in it, unless every slot is
        # taken.
        if ro.joined < min(p.role.slots, 2 * p.role.min_slots - 1):
            return fail(d, job, r)
        return _close_roster(d, job, r, ro)
    if d.block.number <= ro.seed_block:
        raise revert("TooEarly", ro.seed_block + 1)
    # INVARIANT: one seed per roster: a round that nobody sealed in time fails, it is never drawn again.
    if d.block.number > ro.seed_block + HASH_BLOCKS:
        return fail(d, job, r)

    ro.seed = ids.seed(d.block.hash_of(ro.seed_block), job, r, ro.attempt)
    set_windows(ro, d.block.time + p.role.train_seconds, p.role.reveal_seconds, p.role.attest_seconds)
    d.base_fees = prices.push(d.base_fees, d.block.base_fee)

    _emit(d, "Sealed", job, r, ro.seed)
    return None


def attest(d: Draft, sender: Address, job: JobId, r: int, given: Sequence[Receipt]) -> None:
    """Submits receipts; the first receipt of each speaker counts."""
    p, ro = in_phase(d, job, r, Phase.ATTESTING)
    for receipt in given:
        # INVARIANT: the first receipt of each counts, and no other.
        if ro.spoke >> receipt.who & 1:
            raise revert("AlreadyDone")
        account = _speaker(d, job, r, p, ro, receipt.who)
        digest = ids.receipt_hash(d.at.chain_id, d.at.market, job, r, ro.attempt, receipt.who, receipt.mask)
        _require_signed(d, account, digest, receipt.signature)

        ro.spoke |= 1 << receipt.who
        ro.receipts += 1
        ro.named = receipts.add(ro.named, receipt.mask, receipt.who)

        _emit(d, "Attested", job, r, receipt.who, account, receipt.mask)


def freeze(d: Draft, sender: Address, job: JobId, r: int, bodies: Sequence[Body]) -> None:
    """Fixes the accepted claims and mergeIn; burns slotPrice of the stakes of absent workers.

    `bodies` has the claim bodies of the revealed slots, in order.
    """
    p, ro = in_phase(d, job, r, Phase.FREEZING)
    mask = _decide(d, job, r, p, ro)
    payloads = _payloads(d, job, r, p, ro, bodies)

    # INVARIANT: the contract computes what is merged: nobody can omit, add or change a payload.
    mask_root = state_roots.mask_tensor(mask, p.role.slots)
    ro.merge_in = state_roots.merge_in(
        ro.base, ro.outer, payloads, mask_root, p.genesis.shared_depth, p.role.payload_depth
    )
    ro.mask = mask
    ro.accepted = mask.bit_count()

    _emit(d, "Frozen", job, r, ro.merge_in, mask)

    if ro.accepted < p.role.min_slots:
        return fail(d, job, r)
    ro.phase = Phase.MERGING
    ro.merge_opens = d.block.time
    ro.turn = 0 if p.merge.aggregator != ZERO_ADDRESS and not d.barred[job, p.merge.aggregator] else 1
    return None


# -- workers, aggregator


def join(d: Draft, sender: Address, job: JobId, r: int, slot: int) -> None:
    """Takes a slot and locks its stake."""
    p, ro = in_phase(d, job, r, Phase.JOINING)
    if slot >= p.role.slots:
        raise revert("NoSuchSlot", slot)
    claim = claim_id(job, r, ro.attempt, slot)
    if d.claims[claim].worker != ZERO_ADDRESS:
        raise revert("SlotTaken", slot)
    # INVARIANT: who may go on from a carry has its slot to itself in the first part of the join window.
    if d.block.time < shared_from(p, ro) and _is_reserved(d, sender, job, r, p, slot):
        raise revert("SlotTaken", slot)

    d.claims[claim] = Claim(
        job, sender, ClaimStatus.JOINED, round=r, transitions=p.role.transitions, attempt=ro.attempt, slot=slot
    )
    ro.joined += 1

    _emit(d, "Joined", job, r, slot, sender)

    vault.lock(d, d.at.market, sender, claim, p.role.slot_stake)
    if ro.joined == p.role.slots:
        _close_roster(d, job, r, ro)


def leave(d: Draft, sender: Address, job: JobId, r: int, slot: int) -> None:
    """Gives a slot back in the first half of the join window."""
    p, ro = in_phase(d, job, r, Phase.JOINING)
    # INVARIANT: a slot is given back while others have half of the window left to take it.
    if d.block.time >= shared_from(p, ro):
        raise revert("WrongPhase", job, r)
    claim, _ = own_claim(d, sender, job, r, ro, slot)

    del d.claims[claim]
    ro.joined -= 1

    _emit(d, "Left", job, r, slot, sender)

    vault.unlock(d, d.at.market, claim)


def commit(d: Draft, sender: Address, job: JobId, r: int, slot: int, commitment: Digest) -> None:
    """Commits the sender to its claim without revealing it."""
    ro = _in_time(d, job, r, Phase.TRAINING)
    _, c = own_claim(d, sender, job, r, ro, slot)
    # INVARIANT: a commitment is made once: nobody looks at the others' and changes its own.
    if c.status != ClaimStatus.JOINED:
        raise revert("AlreadyDone")

    c.status = ClaimStatus.COMMITTED
    c.digest = commitment
    ro.committed += 1
    if ro.committed == ro.joined:
        end_commits(ro, d.block.time)

    _emit(d, "Committed", job, r, slot, commitment)


def reveal(d: Draft, sender: Address, job: JobId, r: int, slot: int, opened: Reveal) -> None:
    """Reveals the committed claim of a slot."""
    ro = _in_time(d, job, r, Phase.REVEALING)
    claim, c = own_claim(d, sender, job, r, ro, slot)
    if c.status != ClaimStatus.COMMITTED:
        raise revert("AlreadyDone")
    require_cid(opened.trace_cid)
    require_cid(opened.payload_cid)
    # INVARIANT: what is revealed is what was committed, by this worker for this claim.
    if c.digest != ids.commitment(claim, sender, opened):
        raise revert("CommitmentMismatch")
    # INVARIANT: the outputs are those of the last state of the trace.
    said = opened.body
    last = merkle.leaf(merkle.node(said.out, said.out2))
    merkle.require(said.trace_root, last, c.transitions - 1, merkle.ceil_log2(c.transitions), opened.proof_t)

    c.status = ClaimStatus.REVEALED
    c.claimed_at = d.block.time
    c.digest = ids.body_hash(said)
    ro.revealed += 1
    if ro.revealed == ro.committed:
        # The round has the number as `seal` wrote it, which is cheaper than reading the job's terms.
        attest_seconds = ro.attest_ends - ro.reveal_ends
        set_windows(ro, ro.commit_ends, d.block.time - ro.commit_ends, attest_seconds)

    cids = (cid_bytes(opened.trace_cid), cid_bytes(opened.payload_cid))
    _emit(d, "Revealed", job, r, slot, claim, sender, said.trace_root, said.out, said.out2, *cids)

    if opened.carries:
        _carry(d, job, r, slot, c)


def _carry(d: Draft, job: JobId, r: int, slot: int, c: Claim) -> None:
    """Records the carry from which a claim starts, when the claim is revealed."""
    period = params(d, job).role.carry_period
    # INVARIANT: a carry is zero in every round that the period divides, so that it can be computed again from there.
    if period == 0 or r % period == 0:
        raise revert("NoCarry", slot)
    # INVARIANT: a slot starts from the carry of its owner's claim in the round before, accepted and not convicted, or
    # from zero.
    if not carry_stands(d.rounds[job, r - 1], carried_from(d, c), c.worker):
        raise revert("NoCarry", slot)

    c.carries = True

    _emit(d, "Carried", job, r, slot)


def merge(
    d: Draft, sender: Address, job: JobId, r: int, out: StateRoot, out2: StateRoot, checkpoint_cid: str, rounds: int
) -> None:
    """Claims the merge; locks its stake, and the pay of `rounds` later rounds, which may then start on it.

    If only the merge's insufficient backing prevents the next round, the round may be merged again with the same
    outputs.
    """
    require_cid(checkpoint_cid)
    at = _require_turn(d, sender, job, r)
    p, ro = params(d, job), d.rounds.edit((job, r))
    # INVARIANT: a merge that is convicted leaves a turn to everybody after its first merger, however often it was made
    # again.
    if ro.phase == Phase.MERGING:
        ro.turn = at
    else:
        _replace(d, job, r, out, out2, rounds)
    attempt = d.jobs[job].attempt
    claim = claim_id(job, r, attempt, MERGE_SLOT)

    said = Body(TraceRoot(merkle.leaf(merkle.node(out, out2))), out, out2)
    d.claims[claim] = Claim(
        job, sender, ClaimStatus.ACCEPTED, d.block.time, r, 1, attempt, MERGE_SLOT, digest=ids.body_hash(said)
    )
    ro.phase = Phase.LEAD
    ro.merged_at = d.block.time
    ro.merge_claim = claim
    ro.next_shared, ro.next_outer = out, out2
    ro.backed = rounds

    _emit(d, "Merged", job, r, claim, sender, out, out2, cid_bytes(checkpoint_cid))

    vault.lock(d, d.at.market, sender, claim, p.merge.stake + rounds * p.round_pay)


def back(d: Draft, sender: Address, job: JobId, r: int, rounds: int) -> None:
    """Locks the pay of `rounds` more later rounds; only the merger may call it."""
    p, ro = in_phase(d, job, r, Phase.LEAD)
    merger = d.claims[ro.merge_claim].worker
    # INVARIANT: who merged answers for its merge, and nobody else.
    if sender != merger:
        raise revert("NotYourTurn", merger)

    ro.backed = checked(ro.backed + rounds, 16)

    _emit(d, "Backed", job, r, ro.backed)

    vault.raise_(d, d.at.market, ro.merge_claim, rounds * p.round_pay)


# -- inside: rounds


def in_phase(d: Draft, job: JobId, r: int, wanted: Phase) -> tuple[JobParams, Round]:
    """Returns the job's terms and the round for writing; reverts unless the round is in the wanted phase."""
    # INVARIANT: every act has its phase; what comes before or after it is refused.
    if phase(d, d.block, job, r) != wanted:
        raise revert("WrongPhase", job, r)
    return params(d, job), d.rounds.edit((job, r))


def _in_time(d: Draft, job: JobId, r: int, wanted: Phase) -> Round:
    """Returns a round in the wanted phase, judged by time and the job's prover alone: frequent transactions then read
    no job parameter.
    """
    # INVARIANT: every act has its phase; what comes before or after it is refused.
    # INVARIANT: in a void job nothing goes on: no seat becomes work that is paid.
    if phase_of(d.rounds[job, r], d.block.time) != wanted or is_voided(d.jobs[job]):
        raise revert("WrongPhase", job, r)
    return d.rounds.edit((job, r))


def _close_roster(d: Draft, job: JobId, r: int, ro: Round) -> None:
    # INVARIANT: nobody who joins or closes knows the seed: it is the hash of a block yet to come.
    ro.seed_block = d.block.number + 1

    _emit(d, "RosterClosed", job, r, ro.seed_block)


def set_windows(ro: Round, commit_ends: int, reveal_seconds: int, attest_seconds: int) -> None:
    """Sets the windows: committing ends at `commit_ends`, revealing `reveal_seconds` later, attesting `attest_seconds`
    after that.
    """
    ro.commit_ends = Seconds(commit_ends)
    ro.reveal_ends = Seconds(commit_ends + reveal_seconds)
    ro.attest_ends = Seconds(commit_ends + reveal_seconds + attest_seconds)


def end_commits(ro: Round, now: Seconds) -> None:
    """Ends committing early because all have committed: later windows begin now, none shorter than before."""
    set_windows(ro, now, ro.reveal_ends - ro.commit_ends, ro.attest_ends - ro.reveal_ends)


def _is_reserved(d: Draft, sender: Address, job: JobId, r: int, p: JobParams, slot: int) -> bool:
    """Returns True if another account's claim in the previous round left a carry in the slot, from which its owner may
    continue.
    """
    if p.role.carry_period == 0 or r % p.role.carry_period == 0:
        return False
    before = d.rounds[job, r - 1]
    _, earlier = claim_at(d, job, r - 1, before, slot)
    return before.phase == Phase.LEAD and earlier.status == ClaimStatus.ACCEPTED and earlier.worker != sender


def _base_of(d: Draft, job: JobId, p: JobParams, r: int) -> tuple[StateRoot, StateRoot]:
    """Returns the base of round r. Reverts unless round r - 1 is merged, final or failed."""
    if r == 0:
        return p.genesis.shared, p.genesis.outer
    previous = d.rounds[job, r - 1]
    if previous.phase not in (Phase.LEAD, Phase.FINAL, Phase.FAILED):
        raise revert("RoundNotStartable", r)
    return previous.next_shared, previous.next_outer


def _speaker(d: Draft, job: JobId, r: int, p: JobParams, ro: Round, who: int) -> Address:
    """Returns the account that attests as `who`: the owner of a revealed slot, or the round's witness `who` - 64."""
    account = ZERO_ADDRESS
    if who < p.role.slots:
        c = d.claims[claim_id(job, r, ro.attempt, who)]
        if c.status == ClaimStatus.REVEALED:
            account = c.worker
    elif receipts.WITNESS <= who < receipts.WITNESS + ro.witnesses:
        account = witness_of(d, job, r, who - receipts.WITNESS)
    # INVARIANT: owners of revealed slots and drawn witnesses speak, and nobody else.
    if account == ZERO_ADDRESS:
        raise revert("NotSlotOwner", who)
    return account


def _require_signed(d: Draft, account: Address, digest: Digest, signature: bytes) -> None:
    """Reverts unless the account or its delegate signed."""
    # INVARIANT: a receipt is signed by who gives it.
    if is_signed(d, account, digest, signature):
        return
    delegate = d.delegate_of[account]
    if delegate != ZERO_ADDRESS and is_signed(d, delegate, digest, signature):
        return
    raise revert("SignatureInvalid", account)


def _decide(d: Draft, job: JobId, r: int, p: JobParams, ro: Round) -> int:
    """Fixes the status of every claim; returns the mask of accepted slots.

    A claim is accepted if it is revealed, named by half of the others' receipts, not convicted, and not missing.
    """
    mask = 0
    for s in range(p.role.slots):
        claim, c = claim_at(d, job, r, ro, s)
        if c.status in (ClaimStatus.JOINED, ClaimStatus.COMMITTED):
            absent(d, claim, c, p.role.slot_price)
        if c.status != ClaimStatus.REVEALED:
            continue
        if ro.demands and missing(d, d.block, claim):
            c.status = ClaimStatus.MISSING
        elif receipts.accepts(ro.named, ro.spoke, ro.receipts, s):
            c.status = ClaimStatus.ACCEPTED
            mask |= 1 << s
        else:
            c.status = ClaimStatus.EXCLUDED
    return mask


def _payloads(d: Draft, job: JobId, r: int, p: JobParams, ro: Round, bodies: Sequence[Body]) -> list[bytes]:
    """Returns the payload to merge for each slot; the zero payload if its claim is not accepted."""
    payloads: list[bytes] = [p.role.zero_payload] * p.role.slots
    said = iter(bodies)
    for s in range(p.role.slots):
        _, c = claim_at(d, job, r, ro, s)
        if not ClaimStatus.ACCEPTED <= c.status <= ClaimStatus.MISSING:
            continue
        body = next(said, None)
        # INVARIANT: what is merged is what was revealed.
        if body is None or ids.body_hash(body) != c.digest:
            raise revert("CommitmentMismatch")
        if c.status == ClaimStatus.ACCEPTED:
            payloads[s] = body.out
    return state_roots.padded_payloads(payloads, p.role.payload_depth)


def _require_turn(d: Draft, sender: Address, job: JobId, r: int) -> int:
    """Reverts unless it is the caller's turn to merge the round; returns the turn."""
    at = turn_of(d, d.block, job, r)
    # INVARIANT: a round is merged once, and again only while nothing but its merge's backing keeps the next one from
    # starting.
    if at is None or is_voided(d.jobs[job]):
        raise revert("WrongPhase", job, r)
    # INVARIANT: the aggregator merges until its time is over, then slot owners in seed order; no convicted one.
    merger = merger_of(d, d.block, job, r)
    if sender != merger:
        raise revert("NotYourTurn", merger)
    return at


def _replace(d: Draft, job: JobId, r: int, out: StateRoot, out2: StateRoot, rounds: int) -> None:
    """Replaces the current merge by one with the same outputs; the first merger is unlocked but not paid."""
    j, ro = d.jobs.edit(job), d.rounds[job, r]
    # INVARIANT: who merges again claims the same outputs: what stands on them stays.
    if (out, out2) != (ro.next_shared, ro.next_outer):
        raise revert("CommitmentMismatch")
    # INVARIANT: who merges again lets the next round start.
    if r + rounds < j.started:
        raise revert("NotBacked", r)

    # INVARIANT: no two claims share an id: what is claimed after a merge that gave way carries a higher attempt.
    j.attempt += 1
    give_back(d, ro.merge_claim, d.claims.edit(ro.merge_claim), ClaimStatus.VOID)


def _require_backed(d: Draft, job: JobId, settled: int, r: int) -> None:
    """Reverts unless every unsettled merge on which round r would be based covers its pay."""
    for q in range(settled, r):
        below = d.rounds[job, q]
        # INVARIANT: a merge's stake covers the pay of every round that its conviction would void.
        if below.phase == Phase.LEAD and q + below.backed < r:
            raise revert("NotBacked", q)


def require_cid(cid: str) -> None:
    """Reverts for a content identifier that is too long."""
    length = len(cid_bytes(cid))
    # INVARIANT: what a stranger writes into a log is bounded.
    if length > MAX_CID:
        raise revert("CidTooLong", length)


def cid_bytes(cid: str) -> bytes:
    """Encodes a content identifier as bytes; bytes that are not valid text survive a round trip."""
    return cid.encode(errors="surrogateescape")


# -- inside: claims and stakes


def own_claim(d: Draft, sender: Address, job: JobId, r: int, ro: Round, slot: int) -> tuple[ClaimId, Claim]:
    """Returns a slot's claim and its id, as `claim_at`; reverts unless it is the sender's."""
    claim, c = claim_at(d, job, r, ro, slot)
    if c.worker != sender:
        raise revert("NotSlotOwner", slot)
    return claim, c


def _emit(d: Draft, name: str, *values: object) -> None:
    d.emit("JobMarket", name, *values)
