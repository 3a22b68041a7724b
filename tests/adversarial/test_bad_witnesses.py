"""Lazy witness, copying witness, silent cartel: a word that nobody looked for, somebody else's word, a bought one."""

from dataclasses import replace

import pytest

from lockstep.protocol.market import ids
from lockstep.protocol.market.types import Duty, DutyStatus, Outcome, Standing, Word
from lockstep.protocol.types import AuditId, Cid, ClaimId, Seconds, StateRoot, Wei
from tests.adversarial.cheat import Cheat, Ended, run
from tests.adversarial.court import Court, Where, published
from tests.adversarial.lies import lying
from tests.adversarial.test_special_words import WORDS, puts
from tests.support.watching import PlayedWitness

FEE, STAKE = Wei(10**17), Wei(2 * 10**18)
TERMS = {
    "witnesses": 3, "witness_fee": FEE, "witness_stake": STAKE, "audit_seconds": Seconds(60),
    "attest_seconds": Seconds(600),
}  # fmt: skip
UNPUBLISHED = {slot: published(trace_cid=Cid("")) for slot in range(3)}


def enrolled(court: Court, name: str) -> PlayedWitness:
    """A staked witness."""
    contract = court.contracts.witnesses
    witness = PlayedWitness(contract, court.job_id, court.address(name), lambda call: court.send(call, name))
    witness.enrol()
    return witness


def drawn(court: Court) -> tuple[AuditId, list[Duty]]:
    """Everybody has revealed, and a later block has named who looks."""
    contract = court.contracts.witnesses
    court.send(contract.draw(court.job_id, 0), "requester")
    court.devnet.mine(2)
    court.send(contract.draw(court.job_id, 0), "requester")
    audit = ids.audit_id(court.job_id, 0, court.contracts.market.round(court.job_id, 0).attempt)
    return audit, [contract.duty(audit, i) for i in range(contract.audit(audit).duties)]


def publish(court: Court, claims: list[ClaimId]) -> None:
    """Every owner shows its list, once all have committed or had the time to."""
    for slot, claim in enumerate(claims):
        cid = court.store.put(b"".join(court.held[claim].trace))
        court.send(court.contracts.witnesses.publish(court.job_id, 0, slot, cid), f"worker-{slot}")


def word_of(court: Court, witness: PlayedWitness, audit: AuditId, i: int, claim: ClaimId) -> Word:
    """An honest word: what the claim's own replay gives."""
    return witness.word(audit, i, court.record(claim).body, court.held[claim].trace)


def closed(court: Court, audit: AuditId, losers: dict[str, int], expected: list[Outcome]) -> Ended:
    """The job settled, every duty closed as expected, everybody weighed."""
    contract = court.contracts.witnesses
    court.advance(4 * court.params.windows.audit_seconds)
    court.settle()
    for i in range(len(expected)):
        if contract.duty(audit, i).status != DutyStatus.CLOSED:
            court.send(contract.settle(audit, i), "requester")
    outcomes = [Outcome(e.outcome) for e in sorted(court.events("DutyClosed"), key=lambda e: int(e.i))]
    assert outcomes == expected, outcomes
    for name in ("verifier", "accomplice"):
        if contract.witness(court.job_id, court.address(name)).standing == Standing.LISTED:
            court.send(contract.retire(court.job_id), name)
    court.balance(losers)
    worst = max(outcomes, key=[Outcome.PAID, Outcome.VOID, Outcome.FINED, Outcome.SLASHED].index)
    return Ended(worst.name.lower(), Where(), Where())


def lazy(court: Court) -> Ended:
    """It commits to states of its invention: it cannot agree, and what it differs from stands."""
    witness = enrolled(court, "accomplice")
    claims = court.claim(change=UNPUBLISHED)
    audit, duties = drawn(court)
    contract = court.contracts.witnesses
    early = court.refused(contract.publish(court.job_id, 0, 0, "list"), "worker-0")
    assert early == "WindowClosed", "no list is public while a witness may still commit to a root"
    guesses = []
    for i, duty in enumerate(duties):
        guess = replace(word_of(court, witness, audit, i, claims[duty.slot]), state=StateRoot(b"\x5a" * 32))
        witness.commit(audit, i, claims[duty.slot], guess)
        guesses.append(guess)
    publish(court, claims)
    for i, guess in enumerate(guesses):
        right = word_of(court, witness, audit, i, claims[duties[i].slot])
        assert court.refused(contract.reveal(audit, i, guess), "accomplice") == "ProofInvalid", "it is not the trace's"
        assert court.refused(contract.reveal(audit, i, right), "accomplice") == "CommitmentMismatch", "it is bound"
    witness.reveal(audit, 0, replace(guesses[0], agrees=False, proof=()))
    return closed(court, audit, {"accomplice": len(duties) * FEE}, [Outcome.FINED] * len(duties))


def copying(court: Court) -> Ended:
    """It sends the commitment that it saw another send: bound to the other's account, it opens for nobody else."""
    verifier, copier = enrolled(court, "verifier"), enrolled(court, "accomplice")
    claims = court.claim(change=UNPUBLISHED)
    audit, duties = drawn(court)
    contract = court.contracts.witnesses
    own = [i for i, d in enumerate(duties) if d.account == verifier.address]
    copied = [i for i in range(len(duties)) if i not in own]
    assert own
    assert copied
    words = {i: word_of(court, verifier, audit, i, claims[duties[i].slot]) for i in own}
    for i in own:
        verifier.commit(audit, i, claims[duties[i].slot], words[i])
    seen = contract.duty(audit, own[0]).commitment
    for i in copied:
        court.send(contract.commit(audit, i, seen), "accomplice")
    publish(court, claims)
    for i in own:
        verifier.reveal(audit, i, words[i])
    for i in copied:
        late = word_of(court, copier, audit, i, claims[duties[i].slot])
        assert court.refused(contract.reveal(audit, i, late), "accomplice") == "CommitmentMismatch"
        stolen = court.refused(contract.reveal(audit, i, words[own[0]]), "accomplice")
        assert stolen in ("CommitmentMismatch", "PreimageWrong"), stolen
    expected = [Outcome.PAID if i in own else Outcome.FINED for i in range(len(duties))]
    return closed(court, audit, {"accomplice": len(copied) * FEE}, expected)


def cartel(court: Court) -> Ended:
    """A worker lies and tells its roots to the only witness, which agrees without a look: one stranger is enough."""
    witness = enrolled(court, "accomplice")
    claims = court.claim({0: lying(court.run(0), puts(WORDS["infinity"]))}, change=UNPUBLISHED)
    audit, duties = drawn(court)
    words = [word_of(court, witness, audit, i, claims[d.slot]) for i, d in enumerate(duties)]
    for i, duty in enumerate(duties):
        witness.commit(audit, i, claims[duty.slot], words[i])
    publish(court, claims)
    for i, word in enumerate(words):
        witness.reveal(audit, i, word)
    told = next(i for i, d in enumerate(duties) if d.slot == 0)
    (game,) = court.audit_and_play()
    assert court.convicted(claims[0])
    assert court.found(game).t == 1, "a step that every duty has looked at"
    court.send(court.contracts.witnesses.settle(audit, told), "requester")
    # With its stake gone, its other words are worth nothing.
    expected = [Outcome.SLASHED if i == told else Outcome.VOID for i in range(len(duties))]
    return closed(court, audit, {"worker-0": court.params.role.slot_stake, "accomplice": STAKE}, expected)


CHEATS = (
    Cheat("lazy witness", "fined", {"a state of its invention": lazy}, TERMS),
    Cheat("copying witness", "fined", {"another's commitment": copying}, TERMS),
    Cheat("silent cartel", "slashed", {"a worker and its witness": cartel}, TERMS),
)


@pytest.mark.parametrize(("cheat", "form"), [(c, f) for c in CHEATS for f in c.forms])
def test_a_word_that_nobody_looked_for_costs_its_witness(court: Court, cheat: Cheat, form: str) -> None:
    run(court, cheat, form)
