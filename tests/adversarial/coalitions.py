"""Coalitions: a worker with two signatures, a merger that gives up its merge, a witness that looks at nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from hexbytes import HexBytes
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from lockstep.chain.contracts import Call
from lockstep.execution.jobs import ClaimRun
from lockstep.market.ledger import ClaimRecord
from lockstep.market.signed import SignedClaim
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.errors import TryLater
from lockstep.protocol.jobs import Body, JobParams, Phase
from lockstep.protocol.market import draws, ids
from lockstep.protocol.market.ids import typed_hash
from lockstep.protocol.market.types import Duty, DutyStatus, Standing, StateLeaf, Word
from lockstep.protocol.market.types import Outcome as Closed
from lockstep.protocol.types import MERGE_SLOT, AuditId, Cid, ClaimId, GameId, Seconds, Seed, StateRoot, TraceRoot, Wei
from lockstep.runtime.identity import NodeKey
from tests.adversarial.cheat import Outcome, Story, toy
from tests.adversarial.claims import WORDS, Convicts, Liar, drawn, flips, moments, puts
from tests.adversarial.court import Court, published
from tests.adversarial.lies import lying
from tests.support.serving import Served
from tests.support.watching import PlayedWitness
from verifier.equivocation import Equivocations
from verifier.journal import Journal
from worker.announcing import Announcer
from worker.progress import Material

# -- two signatures ----------------------------------------------------------------------------------------------------


def signed(court: Court, claim: ClaimId, body: Body, signer: str, seed: Seed | None = None) -> SignedClaim:
    """A body with a signature, as a coordinator is told."""
    market, at = court.contracts.market, court.contracts.addresses
    said = market.claim(claim)
    stored = market.round(court.job_id, said.round)
    work = said, body, seed or Seed(stored.seed), StateRoot(stored.base)
    digest = typed_hash(at.chain_id, at.market, *work)
    return SignedClaim(*work, bytes(court.accounts[signer].unsafe_sign_hash(HexBytes(digest)).signature))


def shows(court: Court, a: SignedClaim, b: SignedClaim) -> Call:
    """What convicts without a game."""
    return court.contracts.game.call("equivocate", a.work(), a.signed(), b.signed())


def equivocates(court: Court, claim: ClaimId, signer: str, by: str) -> str:
    """The signer of a right claim signs another one, and `by` shows both; what the court has then found."""
    body = court.record(claim).body
    right = signed(court, claim, body, signer)
    body = Body(TraceRoot(b"\x33" * 32), body.out, body.out2)
    stray = [
        ("EqualBits", right),
        ("Unauthorized", signed(court, claim, body, "mallory")),
        # Another seed is another claim: a reorganisation drew it, and nobody is to blame.
        ("Unauthorized", signed(court, claim, body, signer, seed=Seed(b"\x44" * 32))),
    ]
    for rule, other in stray:
        assert court.refused(shows(court, right, other), by) == rule
    court.send(shows(court, right, signed(court, claim, body, signer)), by)
    return convicted_of(court, claim)


def convicted_of(court: Court, claim: ClaimId) -> str:
    """The wrong that the court has found in a claim."""
    assert court.convicted(claim)
    finding = next(e.args["finding"] for e in court.events("Convicted") if e.contract == "DisputeGame")
    return moves.Wrong(finding["wrong"]).name.lower()


def two_signatures(court: Court) -> str:
    """The revealed claim is right; the other one was signed for somebody else to see."""
    return equivocates(court, court.claim()[0], "worker-0", "verifier")


def told_apart(court: Court) -> str:
    """A worker's own announcer tells a coordinator two claims, and another coordinator none of it; a verifier reads."""
    made: list[Material] = []

    def kept(material: Material) -> Material:
        made.append(material)
        return material

    claim = court.claim(change={0: kept})[0]
    at, base = court.contracts.addresses, StateRoot(court.contracts.market.round(court.job_id, 0).base)
    announcer = Announcer("", court.accounts["worker-0"], NodeKey(bytes([1]) * 32), at.chain_id, at.market)
    (material,), transitions = made, court.params.role.transitions
    other = replace(material, roots=(StateRoot(material.roots[0][::-1]), *material.roots[1:]))
    said = [announcer.body(m, base, transitions) for m in (material, other)]
    # What a stranger signed, what is about another seed, and what is nothing: none of it fills the verifier's journal.
    another = {"claim": {**said[0]["claim"], "seed": "0x" + "44" * 32}}  # type: ignore[dict-item]
    stray = [{**said[0], "signature": said[1]["signature"]}, another, 7]
    with (
        Served(coordinator([*stray, said[0]])) as one,
        Served(coordinator([said[1], said[0]])) as two,
        Served(coordinator(None)) as mute,
        Journal(court.folder / f"verifier-{court.now()}") as journal,
    ):
        watch = Equivocations([one, mute], court.contracts, journal)
        assert found(watch, court) == [], "one claim, signed once"
        watch.close()
        # The verifier is killed, and started again with another coordinator: what it read is in its home.
        watch = Equivocations([two], court.contracts, journal)
        # Somebody plays on the claim: games come first, and the contract says so, too.
        game = court.open_at(claim, 1, "mallory")
        assert found(watch, court) == []
        right, other = (SignedClaim.parse(one) for one in said)
        assert court.refused(shows(court, right, other), "verifier") == "GamesOpen"
        court.play(game, court.defender(game))
        assert court.verdict(game) == Verdict.REJECTED
        ((record, call),) = found(watch, court, wanted=1)
        assert record.id == claim
        court.send(call, "verifier")
        assert found(watch, court) == [], "once"
        watch.close()
    return convicted_of(court, claim)


def coordinator(items: list[object] | None) -> Starlette:
    """It says what it was shown; None: nothing that can be read."""

    def answer(request: Request) -> Response:
        return HTMLResponse("<html>") if items is None else JSONResponse({"items": items, "last": len(items)})

    return Starlette(routes=[Route("/{path:path}", answer)])


def found(watch: Equivocations, court: Court, wanted: int = 0) -> list[tuple[ClaimRecord, Call]]:
    """What a verifier has to show after it has read its coordinators: `wanted`, or whatever a whole look gives."""
    looks = watch.looks
    while True:
        watch.step(court.ledger())
        pairs = list(watch.due(court.ledger()))
        if len(pairs) == wanted and (wanted or watch.looks > looks + 1):
            return pairs
        assert len(pairs) <= wanted
        time.sleep(0.05)


# -- what stands on a merge that falls ---------------------------------------------------------------------------------

BACKING = toy(aggregator="aggregator", rounds=3, max_lead=3)


def voids(convict: Callable[[Court, ClaimId], Outcome], lie: Liar | None = None) -> Story:
    """Honest work of two rounds stands on a merge, of round 1 merged, of round 2 revealed, when the merge is convicted:
    it is void without fault, paid at once, and done again."""

    def story(court: Court) -> Outcome:
        vault, market, handle = court.contracts.vault, court.contracts.market, court.handle()
        court.claim()
        merge = court.merge(None if lie is None else lambda honest: lie(honest, court))
        court.rounds(1)
        court.seal(2)
        court.claim(r=2)
        assert handle.checkpoint()[1]["round"] == 1
        outcome = convict(court, merge)
        assert court.convicted(merge)
        assert [court.phase(r) for r in (1, 2)] == [Phase.VOID, Phase.VOID]
        with pytest.raises(TryLater):
            handle.checkpoint()
        before = vault.credits(court.address("worker-1"))
        for r in (1, 2):
            court.send(market.release(court.job_id, r), "requester")
        paid = vault.credits(court.address("worker-1")) - before
        assert paid == 2 * court.params.role.slot_price, "two rounds of work, paid at once"
        court.merge()
        assert handle.checkpoint()[1]["round"] == 0, "what stands on a convicted merge is nobody's model"
        court.rounds(1, 2)
        return outcome

    return story


def voided(params: JobParams) -> Mapping[str, int]:
    """The merger's stake answered for the two rounds: their work is paid from it."""
    return {"aggregator": params.merge.stake + 2 * params.round_pay}


def gain_nothing(gained: Mapping[str, int], params: JobParams) -> bool:
    """Merger and accomplice lose together; five rounds of work and three merges are paid."""
    work = 5 * params.role.slots * params.role.slot_price + 3 * params.merge.price
    together = gained["aggregator"] + gained["accomplice"]
    return together <= -params.merge.stake // 2 and work == sum(gained[f"worker-{i}"] for i in range(3))


def found_late(court: Court, merge: ClaimId) -> Outcome:
    """An honest verifier looks when two rounds stand on the merge: they are right, as far as they go."""
    assert set(court.audits()) == {merge}
    (game,) = court.audit_and_play()
    return game, drawn(court.held[merge].run)


def keeps_silent(court: Court, merge: ClaimId) -> GameId:
    """Nobody was wrong: the merger does not answer its accomplice's game."""
    court.silent.add(merge)
    game = court.open_at(merge, 1, "accomplice")
    court.play(game, court.defender(game))
    return game


def saves_a_liar(court: Court) -> GameId:
    """A liar's clock is about to run out when the base of its claim is voided: its game goes on, its stake stays."""
    market = court.contracts.market
    court.claim()
    merge = court.merge()
    court.seal(1)
    wrong = court.claim({0: lying(court.run(0, 1), flips("m", 7))}, r=1)[0]
    claim, found = court.accused()
    assert claim == wrong
    game = court.open(claim, found)
    court.advance(court.params.windows.clock_seconds - 10)
    equivocates(court, merge, "aggregator", "accomplice")
    assert court.phase(1) == Phase.VOID
    assert market.live(wrong), "its game goes on"
    assert court.refused(market.release(court.job_id, 1), "worker-0") == "GamesOpen"
    court.silent.add(wrong)
    court.play(game, court.defender(game))
    assert court.convicted(wrong)
    court.send(market.release(court.job_id, 1), "requester")
    court.merge()
    court.rounds(1, 2)
    return game


def unbacked(court: Court) -> str:
    """A merger that answers for one round lets one round start on its merge, and no second one."""
    market = court.contracts.market
    court.claim()
    court.merge(backed=1)
    court.rounds(1)
    rule = court.refused(market.start_round(court.job_id, 2), "requester")
    assert court.refused(market.back(court.job_id, 0, 1), "mallory") == "NotYourTurn"
    court.send(market.back(court.job_id, 0, 1), "aggregator")
    court.rounds(2)
    return rule


def signs_again(court: Court, merge: ClaimId) -> str:
    """Nobody was wrong: the merger convicts itself with two signatures."""
    return equivocates(court, merge, "aggregator", "accomplice")


# -- a job of one slot -------------------------------------------------------------------------------------------------

ALONE: Mapping[str, Any] = {"slots": 1, "rounds": 2, "max_lead": 2, "max_fail": 1}


def alone(court: Court) -> Outcome:
    """The round of a liar that is the only worker fails, and the next one is honest."""
    outcome = Convicts(moments(first=1))(court)
    court.freeze()
    assert court.phase() == Phase.FAILED
    court.rounds(1)
    return outcome


def again(story: Story) -> Story:
    """The only worker merges again in the liar's stead."""

    def told(court: Court) -> Outcome:
        outcome = story(court)
        assert court.record(court.merge()).slot == MERGE_SLOT
        court.rounds(1)
        return outcome

    return told


# -- witnesses ---------------------------------------------------------------------------------------------------------

FEE, STAKE = Wei(10**17), Wei(2 * 10**18)
WITNESSED = toy(
    witnesses=3, witness_fee=FEE, witness_stake=STAKE, audit_seconds=Seconds(60), attest_seconds=Seconds(600)
)


@dataclass
class Drawn:
    """A round of claims without lists, its witnesses enrolled, and named by a later block."""

    court: Court
    claims: list[ClaimId]
    witnesses: Mapping[str, PlayedWitness]
    audit: AuditId
    duties: list[Duty]

    @staticmethod
    def of(court: Court, *names: str, lies: Mapping[int, ClaimRun] | None = None) -> Drawn:
        """Everybody enrols, everybody reveals, a block draws."""
        contract, witnesses = court.contracts.witnesses, dict[str, PlayedWitness]()
        for name in names:
            send = partial(court.send, name=name)
            witnesses[name] = PlayedWitness(contract, court.job_id, court.address(name), send)
            witnesses[name].enrol()
        claims = court.claim(lies, change={slot: published(trace_cid=Cid("")) for slot in range(3)})
        for blocks in (2, 0):
            court.send(contract.draw(court.job_id, 0), "requester")
            court.devnet.mine(blocks)
        audit = ids.audit_id(court.job_id, 0, court.contracts.market.round(court.job_id, 0).attempt)
        duties = [contract.duty(audit, i) for i in range(contract.audit(audit).duties)]
        return Drawn(court, claims, witnesses, audit, duties)

    def word(self, name: str, i: int) -> Word:
        """An honest word: what the claim's own replay gives."""
        claim = self.claims[self.duties[i].slot]
        body, held = self.court.record(claim).body, self.court.held[claim]

        def leaf(place: int, u: int) -> StateLeaf:
            return held.run.leaf(u, held.run.state_before(u + 1), place)

        return self.witnesses[name].word(self.audit, i, body, held.trace, leaf)

    def commit(self, name: str, i: int, word: Word) -> None:
        """To a word."""
        self.witnesses[name].commit(self.audit, i, self.claims[self.duties[i].slot], word)

    def refused(self, name: str, i: int, word: Word) -> str:
        """The rule by which a word is refused."""
        return self.court.refused(self.court.contracts.witnesses.reveal(self.audit, i, word), name)

    def publish(self) -> None:
        """Every owner shows its list, once all have committed or had the time to."""
        for slot, claim in enumerate(self.claims):
            cid = self.court.store.put(b"".join(self.court.held[claim].trace))
            call = self.court.contracts.witnesses.publish(self.court.job_id, 0, slot, cid)
            self.court.send(call, f"worker-{slot}")

    def closed(self, expected: Sequence[Closed], losers: Mapping[str, int]) -> str:
        """The job settled, every duty closed as expected, everybody weighed; what was worst."""
        court, contract = self.court, self.court.contracts.witnesses
        court.advance(4 * court.params.windows.audit_seconds)
        court.settle()
        for i in range(len(expected)):
            if contract.duty(self.audit, i).status != DutyStatus.CLOSED:
                court.send(contract.settle(self.audit, i), "requester")
        assert [e.outcome for e in sorted(court.events("DutyClosed"), key=lambda e: int(e.i))] == list(expected)
        for name in self.witnesses:
            if contract.witness(court.job_id, court.address(name)).standing == Standing.LISTED:
                court.send(contract.retire(court.job_id), name)
        court.balance(losers)
        order = (Closed.PAID, Closed.VOID, Closed.FINED, Closed.SLASHED)
        return max(expected, key=order.index).name.lower()


def lazy(court: Court) -> str:
    """It commits to states of its invention: it cannot agree, and what it differs from stands."""
    audit = Drawn.of(court, "accomplice")
    early = court.refused(court.contracts.witnesses.publish(court.job_id, 0, 0, "list"), "worker-0")
    assert early == "WindowClosed", "no list is public while a witness may still commit to a root"
    right = [audit.word("accomplice", i) for i in range(len(audit.duties))]
    guesses = [replace(word, state=StateRoot(b"\x5a" * 32)) for word in right]
    for i, guess in enumerate(guesses):
        audit.commit("accomplice", i, guess)
    audit.publish()
    for i, guess in enumerate(guesses):
        assert audit.refused("accomplice", i, guess) == "ProofInvalid", "it is not the trace's"
        assert audit.refused("accomplice", i, right[i]) == "CommitmentMismatch", "it is bound"
    audit.witnesses["accomplice"].reveal(audit.audit, 0, replace(guesses[0], agrees=False, proof=()))
    return audit.closed([Closed.FINED] * len(guesses), {"accomplice": len(guesses) * FEE})


def listed(court: Court) -> str:
    """Every worker told it the roots of its states: what it lacks is a leaf, and it takes what the base has there."""
    audit = Drawn.of(court, "accomplice")
    words = [audit.word("accomplice", i) for i in range(len(audit.duties))]
    guesses: list[Word] = []
    for i, word in enumerate(words):
        run = court.held[audit.claims[audit.duties[i].slot]].run
        place = draws.leaf_word(word.preimage, court.contracts.witnesses.audit(audit.audit).beacon, i)
        guesses.append(replace(word, leaf=run.leaf(1, run.start, place)))
        assert guesses[i].leaf.digest != word.leaf.digest, "what moves is another in every state"
        audit.commit("accomplice", i, guesses[i])
    audit.publish()
    for i, guess in enumerate(guesses):
        assert audit.refused("accomplice", i, guess) == "ProofInvalid", "the root is the trace's, the leaf is not its"
        assert audit.refused("accomplice", i, words[i]) == "CommitmentMismatch", "by now the state may be had"
    audit.witnesses["accomplice"].reveal(audit.audit, 0, replace(guesses[0], agrees=False, proof=()))
    return audit.closed([Closed.FINED] * len(guesses), {"accomplice": len(guesses) * FEE})


def copying(court: Court) -> str:
    """It sends the commitment that it saw another send: bound to the other's account, it opens for nobody else."""
    audit = Drawn.of(court, "verifier", "accomplice")
    own = [i for i, duty in enumerate(audit.duties) if duty.account == court.address("verifier")]
    stolen = [i for i in range(len(audit.duties)) if i not in own]
    assert own
    assert stolen
    words = {i: audit.word("verifier", i) for i in own}
    for i, word in words.items():
        audit.commit("verifier", i, word)
    contract = court.contracts.witnesses
    for i in stolen:
        court.send(contract.commit(audit.audit, i, contract.duty(audit.audit, own[0]).commitment), "accomplice")
    audit.publish()
    for i, word in words.items():
        audit.witnesses["verifier"].reveal(audit.audit, i, word)
    for i in stolen:
        assert audit.refused("accomplice", i, audit.word("accomplice", i)) == "CommitmentMismatch"
        assert audit.refused("accomplice", i, words[own[0]]) in ("CommitmentMismatch", "PreimageWrong")
    outcomes = [Closed.PAID if i in own else Closed.FINED for i in range(len(audit.duties))]
    return audit.closed(outcomes, {"accomplice": len(stolen) * FEE})


def cartel(court: Court) -> str:
    """A worker lies and tells its roots to all witnesses, who agree without a look: one stranger is enough."""
    # One account has one duty: with as many as there are slots, one of them is about the lie.
    lies = {0: lying(court.run(0), puts(WORDS["infinity"]))}
    audit = Drawn.of(court, "accomplice", "mallory", "aggregator", lies=lies)
    names = [court.name_of(duty.account) for duty in audit.duties]
    words = [audit.word(name, i) for i, name in enumerate(names)]
    for i, name in enumerate(names):
        audit.commit(name, i, words[i])
    audit.publish()
    for i, name in enumerate(names):
        audit.witnesses[name].reveal(audit.audit, i, words[i])
    told = next(i for i, duty in enumerate(audit.duties) if duty.slot == 0)
    (game,) = court.audit_and_play()
    assert court.convicted(audit.claims[0])
    assert court.found(game).t == 1, "a step that every duty has looked at"
    court.send(court.contracts.witnesses.settle(audit.audit, told), "requester")
    outcomes = [Closed.SLASHED if i == told else Closed.PAID for i in range(len(words))]
    return audit.closed(outcomes, {"worker-0": court.params.role.slot_stake, names[told]: STAKE})
