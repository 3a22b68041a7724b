"""Enrols, draws and pays witnesses. Twin of contracts/Witnesses.sol: same names, same order, same sentences.

    witness   enrol -> Listed -> Leaving | Slashed -> gone
    audit     Drawing -> Drawn | Skipped
    duty      Drawn -> Committed -> Agreed | Differed -> Closed (Paid | Fined | Slashed | Void)

A block after the last reveal determines which witness checks which slot. Only the witness knows up to which step it
replays, until it has committed to its result. Every wait has a default that anyone may trigger: `draw` skips an audit
that was not drawn in time, `settle` closes a duty that was not done.
"""

from __future__ import annotations

from lockstep.protocol import merkle
from lockstep.protocol.jobs import NO_STATE, ZERO_ADDRESS, ClaimStatus, JobParams, JobStatus, Phase
from lockstep.protocol.market import ids, moving, vault, verdicts
from lockstep.protocol.market.calls import HASH_BLOCKS, MAX_UINT
from lockstep.protocol.market.draws import (
    beacon_of,
    chained,
    commitment,
    leaf_word,
    pick,
    seen_of,
    slot_order,
    stake_key,
    step_of,
)
from lockstep.protocol.market.ids import audit_id
from lockstep.protocol.market.job_rules import AUDIT_REVEAL_WINDOWS, claim_witnesses
from lockstep.protocol.market.rounds import cid_bytes, require_cid
from lockstep.protocol.market.state import Draft
from lockstep.protocol.market.types import Audit, AuditStatus, Duty, DutyStatus, Outcome, Standing, Witness, Word
from lockstep.protocol.market.views import claim, live, params, phase
from lockstep.protocol.reverts import revert
from lockstep.protocol.types import Address, AuditId, ClaimId, Digest, JobId, Seconds

# -- witnesses


def enrol(d: Draft, sender: Address, job: JobId, head: Digest) -> None:
    """Adds the sender to the job's list of witnesses; locks its stake."""
    p = d.params[job]
    # INVARIANT: witnesses are for jobs that run and draw some.
    if p is None or d.jobs[job].status != JobStatus.ACTIVE or p.role.witnesses == 0:
        raise revert("WrongJobStatus", job)
    if d.enrolled[job, sender].standing != Standing.NONE:
        raise revert("AlreadyDone")
    _catch_up(d, job)

    accounts = d.lists[job]
    d.enrolled[job, sender] = Witness(Standing.LISTED, len(accounts), head)
    d.lists[job] = (*accounts, sender)

    _emit(d, "Enrolled", job, sender, head)

    vault.lock(d, d.at.witnesses, sender, stake_key(job, sender), p.prices.witness_stake)


def retire(d: Draft, sender: Address, job: JobId) -> None:
    """Removes the sender from the list; its stake is unlocked once no duty is open."""
    _catch_up(d, job)
    if d.enrolled[job, sender].standing != Standing.LISTED:
        raise revert("NotWitness", sender)

    _unlist(d, job, sender)
    _leave(d, job, sender)


def commit(d: Draft, sender: Address, audit: AuditId, i: int, commitment: Digest) -> None:
    """Commits a witness to its result without revealing it."""
    a, duty = d.audits.edit(audit), d.duties.edit((audit, i))
    if sender != duty.account:
        raise revert("NotWitness", sender)
    # INVARIANT: a verdict is committed once, before anybody's is revealed.
    if duty.status != DutyStatus.DRAWN:
        raise revert("AlreadyDone")
    if d.block.time >= a.commit_ends:
        raise revert("WindowClosed", _claim_of(a, duty))

    duty.status = DutyStatus.COMMITTED
    duty.commitment = commitment
    a.committed += 1

    _emit(d, "VerdictCommitted", audit, i, commitment)

    if a.committed == a.duties:
        _set_windows(a, d.block.time, params(d, a.job))
        _emit(d, "CommitsEnded", audit, a.commit_ends, a.reveal_ends)


def reveal(d: Draft, sender: Address, audit: AuditId, i: int, opened: Word) -> None:
    """Reveals a witness's verdict."""
    a, duty = d.audits[audit], d.duties.edit((audit, i))
    claimed = _claim_of(a, duty)
    if sender != duty.account:
        raise revert("NotWitness", sender)
    if duty.status != DutyStatus.COMMITTED:
        raise revert("AlreadyDone")
    if d.block.time < a.commit_ends:
        raise revert("TooEarly", a.commit_ends)
    if d.block.time >= a.reveal_ends:
        raise revert("WindowClosed", claimed)
    # INVARIANT: what is revealed is what was committed, by this witness for this claim.
    leaf = opened.leaf.digest
    if duty.commitment != commitment(claimed, sender, opened.state, leaf, opened.preimage, opened.salt):
        raise revert("CommitmentMismatch")
    # INVARIANT: how far a witness looked was fixed before the beacon: nobody chooses its own t*.
    _spend(d.enrolled.edit((a.job, sender)), duty.serial, opened.preimage)
    c = d.claims[claimed]
    t = step_of(opened.preimage, a.beacon, i, c.transitions)
    if opened.agrees:
        if ids.body_hash(opened.body) != c.digest:
            raise revert("CommitmentMismatch")
        # INVARIANT: who agrees names the state that the claim has at t*, or before its last one, which is public.
        u, depth = seen_of(t, c.transitions), merkle.ceil_log2(c.transitions)
        merkle.require(opened.body.trace_root, merkle.leaf(opened.state), u - 1, depth, opened.proof)
        # INVARIANT: who agrees has held a leaf of that state: a list of state roots is not enough to commit to.
        place = leaf_word(opened.preimage, a.beacon, i)
        moving.require_leaf(opened.state, params(d, a.job).role.step_program, place, opened.leaf)

    duty.t = t
    duty.status = DutyStatus.AGREED if opened.agrees else DutyStatus.DIFFERED

    _emit(d, "VerdictRevealed", audit, i, t, opened.state, opened.agrees)


# -- workers


def publish(d: Draft, sender: Address, job: JobId, r: int, slot: int, trace_cid: str) -> None:
    """Publishes the list of a claim's state roots, once no witness can copy from it."""
    attempt = d.rounds[job, r].attempt
    audit, claimed = audit_id(job, r, attempt), ids.claim_id(job, r, attempt, slot)
    require_cid(trace_cid)
    c = d.claims[claimed]
    if c.worker != sender:
        raise revert("NotSlotOwner", slot)
    # INVARIANT: no state root is public while a witness may still commit to one.
    if c.claimed_at == 0 or not _may_publish(d, d.audits[audit], job, r):
        raise revert("WindowClosed", audit)

    _emit(d, "TracePublished", job, r, slot, claimed, cid_bytes(trace_cid))


# -- anyone


def draw(d: Draft, sender: Address, job: JobId, r: int) -> None:
    """First call after the reveals: fixes the beacon's block.

    A call after that block draws; if it comes too late, skips the audit.
    """
    attempt = d.rounds[job, r].attempt
    audit = audit_id(job, r, attempt)
    if _catch_up(d, job) == audit:
        return
    # INVARIANT: a round is drawn once.
    if d.audits[audit].status != AuditStatus.NONE:
        raise revert("AlreadyDone")
    p = d.params[job]
    # INVARIANT: witnesses are drawn while receipts are given: a round that nobody draws in time has none.
    if p is None or p.role.witnesses == 0 or not _is_open(d, job, r):
        raise revert("WrongPhase", job, r)

    # INVARIANT: nobody who reveals, enrols or calls knows whom the beacon will name: its block is yet to come.
    d.audits[audit] = Audit(AuditStatus.DRAWING, job, r, attempt, d.block.number + 1)
    d.drawing[job] = audit

    _emit(d, "AuditOpened", audit, job, r, attempt, d.block.number + 1)


def settle(d: Draft, sender: Address, audit: AuditId, i: int) -> Outcome:
    """Closes a duty: pays, fines or slashes its witness, or none of these."""
    a, duty = d.audits.edit(audit), d.duties.edit((audit, i))
    if duty.status in (DutyStatus.NONE, DutyStatus.CLOSED):
        raise revert("AlreadyDone")
    job, account = a.job, duty.account
    outcome = _outcome(d, a, duty)
    # INVARIANT: the list stands still before a draw, and no duty that leaves it as it is waits for one.
    if outcome in (Outcome.FINED, Outcome.SLASHED):
        _catch_up(d, job)

    duty.status = DutyStatus.CLOSED
    w = d.enrolled.edit((job, account))
    w.open -= 1

    fee, moved = params(d, job).role.witness_fee, 0
    if outcome == Outcome.PAID:
        moved = fee
    elif outcome == Outcome.FINED:
        moved = _take(d, job, account, fee, Standing.LEAVING)
    elif outcome == Outcome.SLASHED:
        moved = _take(d, job, account, MAX_UINT, Standing.SLASHED)

    _emit(d, "DutyClosed", audit, i, account, outcome, moved)

    verdicts.on_witnessed(d, d.at.witnesses, job, account if outcome == Outcome.PAID else ZERO_ADDRESS)
    if w.standing != Standing.LISTED:
        _leave(d, job, account)
    return outcome


# -- inside: draws


def _catch_up(d: Draft, job: JobId) -> AuditId | None:
    """Draws the pending audit of a job, if there is one, and returns its id."""
    audit = d.drawing[job]
    if audit is None:
        return None
    a = d.audits.edit(audit)
    # INVARIANT: between the fixing of a beacon and its draw the list stands still: nobody moves in it knowing it.
    if d.block.number <= a.beacon_block:
        raise revert("TooEarly", a.beacon_block + 1)

    del d.drawing[job]
    # INVARIANT: one beacon an audit: one that nobody drew in time is skipped, it is never drawn again.
    late = d.block.number > a.beacon_block + HASH_BLOCKS
    if late or d.rounds[job, a.round].attempt != a.attempt or not _is_open(d, job, a.round):
        a.status = AuditStatus.SKIPPED
        _emit(d, "AuditSkipped", audit)
        return audit
    a.status = AuditStatus.DRAWN
    a.beacon = beacon_of(d.block.hash_of(a.beacon_block), audit)
    p = params(d, job)
    _deal(d, audit, a, p)
    # With no witness to wait for, the state roots may be published at once.
    _set_windows(a, d.block.time + (p.windows.audit_seconds if a.duties else 0), p)

    _emit(d, "AuditDrawn", audit, a.beacon, a.duties, a.commit_ends, a.reveal_ends)
    return audit


def _deal(d: Draft, audit: AuditId, a: Audit, p: JobParams) -> None:
    """Assigns to each duty a slot and an account."""
    revealed, owners = _revealed(d, a, p.role.slots)
    dealt: list[int] = []
    found: list[Address] = []
    # INVARIANT: no claim has more witnesses than its worker's stake was compared with, however few have revealed.
    most = len(revealed) * claim_witnesses(p.role)
    for slot in slot_order(a.beacon, revealed, min(most, p.role.witnesses)):
        # INVARIANT: every word of a draw has a stake of its own behind it: nobody has two duties.
        account = pick(d.lists[a.job], a.beacon, len(found), owners[slot], found)
        if account == ZERO_ADDRESS:
            continue
        dealt.append(slot)
        found.append(account)
    # INVARIANT: a draw has as many duties as the job can pay, and fails for none that it cannot.
    duties = verdicts.on_drawn(d, d.at.witnesses, a.job, a.round, len(found))

    a.duties = duties
    for i in range(duties):
        w = d.enrolled.edit((a.job, found[i]))
        w.drawn += 1
        w.open += 1
        d.duties[audit, i] = Duty(found[i], dealt[i], w.drawn, DutyStatus.DRAWN)
        _emit(d, "DutyDrawn", audit, i, found[i], dealt[i], w.drawn)


def _revealed(d: Draft, a: Audit, slots: int) -> tuple[list[int], list[Address]]:
    """Returns the slots whose claim was revealed, convicted ones included, and the owner of every slot."""
    found = [d.claims[ids.claim_id(a.job, a.round, a.attempt, s)] for s in range(slots)]
    return [s for s, c in enumerate(found) if c.claimed_at], [c.worker for c in found]


def _set_windows(a: Audit, commit_ends: int, p: JobParams) -> None:
    """Sets the windows: committing ends at `commit_ends`, then owners publish for auditSeconds, then witnesses reveal
    for as long.
    """
    a.commit_ends = Seconds(commit_ends)
    a.reveal_ends = Seconds(commit_ends + AUDIT_REVEAL_WINDOWS * p.windows.audit_seconds)


def _is_open(d: Draft, job: JobId, r: int) -> bool:
    """Returns True if the round's witnesses can be drawn."""
    return phase(d, d.block, job, r) == Phase.ATTESTING


def _may_publish(d: Draft, a: Audit, job: JobId, r: int) -> bool:
    if a.status == AuditStatus.DRAWN:
        return d.block.time >= a.commit_ends
    # No witness is drawn yet; while one may be, the list stays unpublished.
    over = phase(d, d.block, job, r) > Phase.ATTESTING or a.status == AuditStatus.SKIPPED
    return over or params(d, job).role.witnesses == 0


# -- inside: duties


def _claim_of(a: Audit, duty: Duty) -> ClaimId:
    return ids.claim_id(a.job, a.round, a.attempt, duty.slot)


def _spend(w: Witness, serial: int, preimage: Digest) -> None:
    """Checks that a preimage is the `serial`-th of the witness's chain, and stores the deepest known one."""
    if serial > w.spent:
        if chained(preimage, serial - w.spent) != w.head:
            raise revert("PreimageWrong")
        w.head, w.spent = preimage, serial
    elif chained(w.head, w.spent - serial) != preimage:
        raise revert("PreimageWrong")


def _outcome(d: Draft, a: Audit, duty: Duty) -> Outcome:
    """Returns the outcome of a duty; reverts while it is open."""
    claimed = _claim_of(a, duty)
    status = claim(d, claimed).status
    convicted = status == ClaimStatus.CONVICTED
    convicted_at = d.claims[claimed].convicted_at
    agreed = duty.status == DutyStatus.AGREED
    # INVARIANT: a word with no stake behind it earns nothing and costs nothing more.
    if d.enrolled[a.job, duty.account].standing == Standing.SLASHED:
        return Outcome.VOID
    # INVARIANT: a stake is taken for a word that a proof has shown to be false, and for nothing else.
    if agreed and convicted and 0 < convicted_at <= duty.t:
        return Outcome.SLASHED
    if _is_gone(d, a, status):
        # A game that outlives the round may still show that the word was false.
        if agreed and live(d, claimed):
            raise revert("DutyOpen", claimed)
        # INVARIANT: who looked at work that a convicted merge voided is paid as the work is.
        paid = agreed and not convicted and d.rewound[audit_id(a.job, a.round, a.attempt)]
        return Outcome.PAID if paid else Outcome.VOID
    silent = duty.status == DutyStatus.DRAWN and d.block.time >= a.commit_ends
    if silent or (duty.status == DutyStatus.COMMITTED and d.block.time >= a.reveal_ends):
        # INVARIANT: nobody owes a word on a claim that carries and was left out of the merge: its carry may be what was
        # lacking.
        if d.claims[claimed].carries and _is_left_out(d, a, duty.slot):
            return Outcome.VOID
        # INVARIANT: who was drawn and says nothing pays the fee.
        return Outcome.FINED
    spoke = agreed or duty.status == DutyStatus.DIFFERED
    # INVARIANT: fees are paid in final rounds alone: a round that starts again pays no witness twice.
    if not spoke or d.rounds[a.job, a.round].phase != Phase.FINAL:
        raise revert("DutyOpen", claimed)
    # INVARIANT: who differs is paid if the claim is convicted, by whatever game, or falls with the one whose carry it
    # starts from, and pays the fee if it stands.
    if not agreed:
        return Outcome.PAID if convicted or status == ClaimStatus.VOID else Outcome.FINED
    # INVARIANT: who agrees is paid unless the claim was convicted without a proof of where it is wrong.
    return Outcome.PAID if not convicted or convicted_at > duty.t else Outcome.VOID


def _is_gone(d: Draft, a: Audit, status: ClaimStatus) -> bool:
    """Returns True if the claim or its round is void, or was started again.

    In a final round, a claim that was voided with the claim whose carry it starts from does not count: its witness is
    paid.
    """
    ro = d.rounds[a.job, a.round]
    if ro.attempt != a.attempt or ro.phase == Phase.VOID:
        return True
    return status == ClaimStatus.VOID and ro.phase != Phase.FINAL


def _is_left_out(d: Draft, a: Audit, slot: int) -> bool:
    """Returns True if the merge excludes the slot's claim; reverts until the round is frozen."""
    ro = d.rounds[a.job, a.round]
    if ro.merge_in == NO_STATE:
        raise revert("DutyOpen", ids.claim_id(a.job, a.round, a.attempt, slot))
    return not ro.mask >> slot & 1


def _take(d: Draft, job: JobId, account: Address, amount: int, standing: Standing) -> int:
    """Burns up to `amount` of the stake and unlists the account: a witness that failed a duty is not drawn again."""
    _unlist(d, job, account)
    stake = stake_key(job, account)
    held = d.locks[stake].amount
    taken = min(amount, held)

    d.enrolled.edit((job, account)).standing = standing
    vault.slash_liveness(d, d.at.witnesses, stake, taken)
    # The remaining stake still covers the open duties.
    if standing == Standing.LEAVING:
        vault.lock(d, d.at.witnesses, account, stake, held - taken)
    return taken


def _unlist(d: Draft, job: JobId, account: Address) -> None:
    """Removes an account from the list if it is listed; the last account takes its index."""
    w = d.enrolled.edit((job, account))
    if w.standing != Standing.LISTED:
        return
    *accounts, last = d.lists[job]
    if last != account:
        accounts[w.place] = last
        d.enrolled.edit((job, last)).place = w.place
    d.lists[job] = tuple(accounts)
    w.standing = Standing.LEAVING

    _emit(d, "Retired", job, account)


def _leave(d: Draft, job: JobId, account: Address) -> None:
    """Deletes an unlisted witness without open duties; its stake is unlocked."""
    w = d.enrolled[job, account]
    if w.open:
        return
    holds = w.standing == Standing.LEAVING

    del d.enrolled[job, account]
    if holds:
        vault.unlock(d, d.at.witnesses, stake_key(job, account))


def _emit(d: Draft, name: str, *values: object) -> None:
    d.emit("Witnesses", name, *values)
