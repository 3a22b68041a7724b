"""The views of the market's contracts, for callers and for each other's verbs. Same names as on chain.

`startable` to `finishable` predict whether a verb would succeed now; programs call them before they send a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import (
    NEVER,
    NO_STATE,
    NOTHING,
    ZERO_ADDRESS,
    Claim,
    ClaimStatus,
    Facts,
    JobParams,
    JobState,
    JobStatus,
    Phase,
    Round,
)
from lockstep.protocol.market import backing, prices, receipts, state_roots
from lockstep.protocol.market.calls import Block
from lockstep.protocol.market.ids import audit_id, claim_id
from lockstep.protocol.market.job_rules import LEAVE_PARTS
from lockstep.protocol.reverts import overflow, revert
from lockstep.protocol.types import (
    MERGE_SLOT,
    Address,
    ClaimId,
    Digest,
    JobId,
    ProgramRoot,
    Seconds,
    StateRoot,
    TensorRoot,
    Wei,
)

if TYPE_CHECKING:
    from lockstep.protocol.market.state import Reader

JUDGED = (ClaimStatus.REVEALED, ClaimStatus.ACCEPTED, ClaimStatus.EXCLUDED, ClaimStatus.MISSING)


# -- time


def phase_of(ro: Round, now: Seconds) -> Phase:
    """Returns the phase by stored fields and time; does not consider a void job or complete receipts."""
    if ro.phase != Phase.JOINING:
        return ro.phase
    if ro.commit_ends == 0:
        return Phase.JOINING if ro.seed_block == 0 and now < ro.join_ends else Phase.SEALING
    if now < ro.commit_ends:
        return Phase.TRAINING
    if now < ro.reveal_ends and ro.revealed < ro.committed:
        return Phase.REVEALING
    if now < ro.attest_ends and ro.revealed > 0:
        return Phase.ATTESTING
    return Phase.FREEZING


def shared_from(p: JobParams, ro: Round) -> Seconds:
    """Returns the second from which slots cannot be given back, and no slot is reserved."""
    return Seconds(ro.join_ends - p.windows.join_seconds // LEAVE_PARTS)


def turn(p: JobParams, ro: Round, now: Seconds) -> int:
    """Returns the current merge turn; each lasts turn_seconds."""
    return ro.turn + (now - ro.merge_opens) // p.merge.turn_seconds


def seed_order(p: JobParams, ro: Round) -> list[int]:
    """Returns the accepted slots in the order of their merge turns 1, 2, ..."""
    first = int.from_bytes(ro.seed, "big") % p.role.slots
    order = [(first + i) % p.role.slots for i in range(p.role.slots)]
    return [s for s in order if ro.mask >> s & 1]


def phase(s: Reader, block: Block, job: JobId, r: int) -> Phase:
    """Returns the phase now: the stored one, advanced by time and completeness."""
    ro = s.rounds[job, r]
    # INVARIANT: in a void job nothing goes on: what was not final or failed is void.
    if is_voided(s.jobs[job]):
        return ro.phase if ro.phase >= Phase.FINAL or ro.phase == Phase.NONE else Phase.VOID
    at = phase_of(ro, block.time)
    if at != Phase.ATTESTING:
        return at
    # Attesting ends some time after all entitled speakers have spoken.
    if not all_spoken(ro, params(s, job).role.witnesses):
        return at
    # INVARIANT: whoever has spoken, every payload can be demanded for some time after the last reveal.
    least = receipts.demands_end(ro.reveal_ends, ro.attest_ends, s.at.chain.inclusion)
    return at if block.time < least else Phase.FREEZING


def all_spoken(ro: Round, witnesses: int) -> bool:
    """Returns True if every owner of a revealed slot that is not convicted and every witness has given a receipt.
    `witnesses` is the number that the job draws."""
    return ro.spoke.bit_count() + ro.silent == ro.revealed + ro.witnesses and (witnesses == 0 or ro.drawn)


# -- what a verb would take now


def startable(p: JobParams, j: JobState) -> bool:
    """Returns True if the job has further rounds."""
    return j.status == JobStatus.ACTIVE and j.started < p.schedule.rounds and j.failed <= p.schedule.max_fail


def has_next(p: JobParams, j: JobState) -> bool:
    """Returns True if the job has a next round that its accounts allow to start."""
    return startable(p, j) and j.started - j.settled < p.schedule.max_lead


def unbacked(j: JobState, leads: Iterable[tuple[int, Round]]) -> list[int]:
    """Returns the merged, not yet final rounds (number, round) whose backing prevents the next one from starting."""
    # INVARIANT: a merge's stake covers the pay of every round that its conviction would void.
    return backing.blocked_by(((r, ro.backed) for r, ro in leads if r >= j.settled), j.started)


def rounds_to_merge(p: JobParams, j: JobState, r: int, phase: Phase, free: Wei, kept: Wei = NOTHING) -> int | None:
    """Returns how many later rounds' pay an account locks when it merges round r, MERGING or LEAD; None if it cannot
    merge.

    `free` is the account's stake, of which it retains `kept` if possible.
    """
    left = free - p.merge.stake
    if left < 0:
        return None
    rounds = backing.affordable(p, left, backing.wanted(p, r), kept)
    # A repeated merge that covers less than the missing amount lets nothing start.
    return None if phase == Phase.LEAD and r + rounds < j.started else rounds


def rounds_to_back(
    p: JobParams, j: JobState, leads: Sequence[tuple[int, Round]], mine: Callable[[int], bool], free: Wei,
    kept: Wei = NOTHING,
) -> Iterator[tuple[int, int]]:  # fmt: skip
    """Yields (round, number of later rounds to cover) for own merges that prevent the next round, as far as `free`
    stake suffices.

    `leads` is as in `unbacked`; `mine` selects own merges; the account retains `kept` of its stake if possible.
    """
    if not startable(p, j):
        return
    covered, left = {r: ro.backed for r, ro in leads}, int(free)
    for r in filter(mine, unbacked(j, leads)):
        rounds = backing.affordable(p, left, backing.wanted(p, r) - covered[r], kept)
        # Covering less than the missing amount lets nothing start.
        if r + covered[r] + rounds >= j.started:
            left -= rounds * p.round_pay
            yield r, rounds


def round_startable(p: JobParams, j: JobState, before: Phase, leads: Iterable[tuple[int, Round]]) -> bool:
    """Returns True if `startRound` takes the next round now.

    `before` is the phase of the last started round, NONE before the first; `leads` is as in `unbacked`.
    """
    # INVARIANT: rounds start in order, on a merged or carried-over base, at most maxLead ahead of the last settled one.
    if not has_next(p, j):
        return False
    # INVARIANT: what a game on voided work argues about stands still until the game is over.
    if j.lingering or unbacked(j, leads):
        return False
    return j.started == 0 or before in (Phase.LEAD, Phase.FINAL, Phase.FAILED)


def merge_attempt(j: JobState, phase: Phase) -> int:
    """Returns the attempt number of the next merge of a round in this phase."""
    # INVARIANT: no two claims share an id: what is claimed after a merge that gave way carries a higher attempt.
    return j.attempt + (phase == Phase.LEAD)


def turns_over(p: JobParams, ro: Round, now: Seconds) -> bool:
    """Returns True if everybody entitled has failed to merge a round that is in MERGING."""
    return turn(p, ro, now) > ro.accepted


def finalizable(p: JobParams, j: JobState, r: int, rounds: Mapping[int, Round], now: Seconds) -> bool:
    """Returns True if round r, merged or failed, can no longer be overturned.

    `rounds` has the unsettled rounds as stored.
    """
    _, over = over_at(p, j.started, r, lambda k: rounds.get(k) or Round())
    # INVARIANT: no claim is final before the windows of its whole carry period are over.
    if over == NEVER or now < over:
        return False
    # INVARIANT: final iff the challenge window is over, no game is open and the base is final.
    return rounds[r].open_games == 0 and r == j.settled


def is_settled(ro: Round) -> bool:
    """Returns True if a round whose predecessors are all settled can no longer be voided, because nothing in it is to
    be judged.
    """
    return ro.phase == Phase.FINAL or (ro.phase == Phase.FAILED and ro.merged_at == NEVER)


def over_at(p: JobParams, started: int, r: int, round_at: Callable[[int], Round]) -> tuple[int, Seconds]:
    """Returns the last started round whose claims may be based on carries of claims in `r` (`r` itself without
    carries), and when its window ends (NEVER while it is not merged).

    Rounds that failed without claims are ignored.
    """
    period = p.role.carry_period
    last = min((r // period + 1) * period, started) - 1 if period else r
    while last > r and is_settled(round_at(last)):
        last -= 1
    ro = round_at(last)
    if ro.phase not in (Phase.LEAD, Phase.FAILED) or ro.merged_at == NEVER:
        return last, NEVER
    # A merge of r itself may have been repeated since.
    return last, Seconds(max(ro.merged_at, round_at(r).merged_at) + p.windows.challenge_seconds)


def finishable(p: JobParams, j: JobState) -> bool:
    """Returns True if no round is in flight and none can start."""
    live = j.status in (JobStatus.ACTIVE, JobStatus.CANCELLED, JobStatus.VOID)
    return live and not startable(p, j) and j.settled == j.started


# -- jobs and rounds


def params(s: Reader, job: JobId) -> JobParams:
    """Returns the parameters of an existing job; reverts otherwise."""
    p = s.params[job]
    if p is None:
        raise LookupError(f"no job 0x{job.hex()}")
    return p


def is_voided(j: JobState) -> bool:
    """Returns True if the job was proven invalid; stays True once the job is Done."""
    return j.prover != ZERO_ADDRESS


def merger_of(s: Reader, block: Block, job: JobId, r: int) -> Address:
    """Returns the account that may merge now; the zero address if none may."""
    ro, merger = s.rounds[job, r], ZERO_ADDRESS
    now = turn_of(s, block, job, r)
    if now is None:
        return ZERO_ADDRESS
    p = params(s, job)
    order = seed_order(p, ro)
    if now == 0:
        merger = p.merge.aggregator
    elif now <= len(order):
        c = s.claims[claim_id(job, r, ro.attempt, order[now - 1])]
        merger = c.worker if c.status != ClaimStatus.CONVICTED else ZERO_ADDRESS
    # INVARIANT: who has not backed its merge does not merge again.
    return ZERO_ADDRESS if s.barred[job, merger] or merger == s.claims[ro.merge_claim].worker else merger


def turn_of(s: Reader, block: Block, job: JobId, r: int) -> int | None:
    """Returns the merge turn of a round that can be merged, or merged again; None for any other round.

    For a repeated merge, the turns after the first merger's take place in the first half of its window.
    """
    ro = s.rounds[job, r]
    if ro.phase == Phase.MERGING:
        return turn(params(s, job), ro, block.time)
    since = unbacked_since(s, block, job, r)
    if since == NEVER:
        return None
    passed = (block.time - since) // params(s, job).merge.turn_seconds
    return (ro.turn + passed) % (ro.accepted + 1) if passed else None


def unbacked_since(s: Reader, block: Block, job: JobId, r: int) -> Seconds:
    """Returns the time since which only a merge's insufficient backing prevents the next round; NEVER if there is
    another reason or none.
    """
    ro, j = s.rounds[job, r], s.jobs[job]
    if ro.phase != Phase.LEAD or r + ro.backed >= j.started or j.lingering:
        return NEVER
    p, last = params(s, job), s.rounds[job, j.started - 1]
    if not has_next(p, j) or last.phase not in (Phase.LEAD, Phase.FAILED):
        return NEVER
    since = max(last.merged_at, last.merge_opens)
    half = ro.merged_at + p.windows.challenge_seconds // 2
    settles = (s.rounds[job, k].merge_opens for k in reversed(range(j.settled)))
    freed = next((at for at in settles if at < half), NEVER)
    if freed > since:
        # INVARIANT: whose stake comes free as a round settles has a turn to back its merge with it; that turn comes on
        # top.
        if block.time < freed + p.merge.turn_seconds:
            return NEVER
        half += p.merge.turn_seconds
    # INVARIANT: a merge that is being judged stays until the verdict; once half of its window is over, to wait for the
    # rest is faster than another one.
    if block.time >= half or s.claims[ro.merge_claim].open_games:
        return NEVER
    return since


def bond_of(s: Reader, job: JobId) -> Wei:
    """Returns the bond that a challenger of a claim of the job must lock now."""
    p = s.params[job]
    if p is None:
        # Avoids a division by the fee cap, which is zero for an unknown job.
        raise overflow()
    return bond(s, p)


def bond(s: Reader, p: JobParams) -> Wei:
    """Returns the bond that a challenger must lock now, under the job's parameters."""
    fee = prices.median(s.base_fees, p.prices.fee_cap)
    return prices.bond_of(p.prices.bond, p.prices.gas_price, p.prices.fee_cap, fee)


# -- claims


def claim_at(s: Reader, job: JobId, r: int, ro: Round, slot: int) -> tuple[ClaimId, Claim]:
    """Returns the claim of a slot, and its id, in the round's current attempt."""
    id_ = claim_id(job, r, ro.attempt, slot)
    return id_, s.claims[id_]


def claim_id_of(s: Reader, job: JobId, r: int, slot: int) -> ClaimId:
    """Returns the id of a slot's claim, or of the current merge, in the round's current attempt."""
    ro = s.rounds[job, r]
    return ro.merge_claim if slot == MERGE_SLOT else claim_id(job, r, ro.attempt, slot)


def claim(s: Reader, id_: ClaimId) -> Claim:
    """Returns the claim with its effective status: VOID once its round is void."""
    c = s.claims[id_]
    if c.status != ClaimStatus.NONE and is_void(s, id_, c):
        return replace(c, status=ClaimStatus.VOID)
    return c


def is_void(s: Reader, id_: ClaimId, c: Claim) -> bool:
    """Returns True if the claim is void: with its whole job or round, or because its round was started or merged again.

    A claim of a void round is not yet void while games on it are open.
    """
    if c.status >= ClaimStatus.ABSENT:
        return c.status == ClaimStatus.VOID
    ro = s.rounds[c.job, c.round]
    standing = ro.merge_claim == id_ if c.is_merge else ro.attempt == c.attempt
    void_round = ro.phase == Phase.VOID and not c.open_games
    return not standing or void_round or is_voided(s.jobs[c.job])


def live(s: Reader, id_: ClaimId) -> bool:
    """Returns True if a verdict on the claim still counts."""
    c = s.claims[id_]
    return c.status in JUDGED and not is_void(s, id_, c) and s.rounds[c.job, c.round].phase != Phase.FINAL


def window_open(s: Reader, block: Block, id_: ClaimId) -> bool:
    """Returns True if a game may be opened on the claim now."""
    c = s.claims[id_]
    # A void round continues the games that it has, but allows no new ones.
    if not live(s, id_) or s.rounds[c.job, c.round].phase == Phase.VOID:
        return False
    p = params(s, c.job)
    if c.is_merge or not p.role.carries:
        return block.time < c.claimed_at + p.windows.challenge_seconds
    # INVARIANT: a claim that others may stand on can be challenged until it can be final, and no longer.
    _, over = over_at(p, s.jobs[c.job].started, c.round, lambda k: s.rounds[c.job, k])
    return over == NEVER or block.time < over


def facts_of(s: Reader, id_: ClaimId, t: int, carried: Sequence[bytes] = ()) -> Facts:
    """Returns the undisputed facts of transition t (1..T) of the claim.

    `carried`, for t = 1, has the three words of the Body from which S_0's carry comes; ignored if the carry is zero.
    """
    c = s.claims[id_]
    # INVARIANT: a claim has transitions 1..T and no other.
    if not 0 < t <= c.transitions:
        raise revert("ProofInvalid")
    p, ro = params(s, c.job), s.rounds[c.job, c.round]
    zero = _state_zero(s, id_, c, p, ro, carried) if t == 1 else NO_STATE
    last = p.role.encode_program if t == c.transitions else p.role.step_program
    program = ProgramRoot(p.merge.program if c.is_merge else last)
    root, rows, length = TensorRoot(p.role.dataset_root), p.role.dataset_rows, p.role.row_length
    return Facts(program, zero, root, rows, length, ro.seed, c.round, c.slot)


def _state_zero(s: Reader, id_: ClaimId, c: Claim, p: JobParams, ro: Round, carried: Sequence[bytes]) -> StateRoot:
    """Returns S_0 of a claim."""
    if not live(s, id_):
        raise revert("ClaimClosed", id_)
    if c.is_merge:
        return ro.merge_in
    carry = _carry_in(s, c, carried) if c.carries else p.role.zero_carry
    return state_roots.slot_zero(ro.base, carry, c.round * p.role.inner_steps, p.genesis.shared_depth)


def _carry_in(s: Reader, c: Claim, carried: Sequence[bytes]) -> StateRoot:
    """Returns the carry in S_0 of a claim that names one."""
    _, earlier = claim_at(s, c.job, c.round - 1, s.rounds[c.job, c.round - 1], c.slot)
    # INVARIANT: what is carried is what was claimed.
    if keccak(b"".join(carried)) != earlier.digest:
        raise revert("CommitmentMismatch")
    return StateRoot(carried[2])


def carry_stands(before: Round, earlier: Claim, worker: Address) -> bool:
    """Returns True if `worker` may start from the carry of `earlier`, the slot's claim in the round before."""
    # INVARIANT: nothing stands on a carry whose claim cannot be challenged any more.
    accepted = before.phase == Phase.LEAD and before.mask >> earlier.slot & 1 == 1
    return accepted and earlier.status != ClaimStatus.CONVICTED and earlier.worker == worker


# -- witnesses and demands, as the market asks them


def witness_of(s: Reader, job: JobId, r: int, i: int) -> Address:
    """Returns the account of the i-th duty drawn for the round."""
    return s.duties[audit_id(job, r, s.rounds[job, r].attempt), i].account


def missing(s: Reader, block: Block, id_: ClaimId) -> bool:
    """Returns True if a demand for the claim's payload ended unanswered; reverts while one is open."""
    asked = s.asked[id_]
    if asked.missing:
        return True
    if not asked.open:
        return False
    # INVARIANT: nothing is decided while a demand may still be answered; what is open after that was not answered.
    if block.time <= asked.until:
        raise revert("TooEarly", asked.until + 1)
    return True


def may_act(s: Reader, account: Address, actor: Address) -> bool:
    """Returns True if `actor` may answer for `account`: it is the account or its delegate."""
    return actor == account or (actor != ZERO_ADDRESS and actor == s.delegate_of[account])


def is_signed(s: Reader, account: Address, digest: Digest, signature: bytes) -> bool:
    """Returns True if `account` signed `digest` (contracts/libraries/Signatures.sol); accounts with code are not
    modelled.
    """
    return account != ZERO_ADDRESS and s.at.recover(digest, signature) == account
