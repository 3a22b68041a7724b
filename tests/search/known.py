"""Public knowledge besides the chain: claims that can be computed, and stored carries."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from lockstep.market.ledger import JobLedger
from lockstep.protocol import merkle
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import ClaimStatus, JobParams, Reveal
from lockstep.protocol.market import availability, ids, views
from lockstep.protocol.market.calls import Block
from lockstep.protocol.market.state import State
from lockstep.protocol.reverts import Reverted
from lockstep.protocol.types import ClaimId, Digest, JobId
from tests.search.carrying import BASE, WORD, CarryClaim, claim_of
from tests.search.scene import sign
from tests.support import constant
from tests.support.constant import CARRY, ConstantClaim, Lie
from tests.support.market.wander import Wanderer

TAMPERED = 1 << 20
"""Difference of a tampered carry from the right one."""
NOWHERE = "payload, and no carry"
"""Payload CID of a claim whose carry cannot be fetched: it commits to both."""


@dataclass
class NamedWanderer(Wanderer):
    """A Wanderer that signs with names and handles carries."""

    withheld: set[ClaimId] = field(default_factory=set)
    """Claims whose carry is not stored."""

    def _signature(self, account: object, digest: bytes) -> bytes:
        return sign(account, digest)  # type: ignore[arg-type]

    # -- claims that carry

    def carry_behind(self, s: State, job: JobId, r: int, slot: int) -> tuple[ClaimId, CarryClaim] | None:
        """Returns the claim whose carry a future claim of the slot's owner starts from."""
        found = carry_behind(s, job, r, slot)
        return None if found is None else self._named(found)

    def behind(self, s: State, job: JobId, r: int, slot: int) -> tuple[ClaimId, CarryClaim] | None:
        """Returns the slot's claim in the previous round, whatever its status; None if unknown."""
        earlier = source_of(s, job, r, slot)
        return self._named(earlier) if earlier in self.held else None

    def _named(self, claim: ClaimId) -> tuple[ClaimId, CarryClaim]:
        made = self.held[claim]
        assert isinstance(made, CarryClaim), "slots of a job that carries"
        return claim, made

    def honest_claim(self, s: State, job: JobId, r: int, slot: int) -> ConstantClaim:
        """Returns the claim to which an honest worker commits."""
        p, base = views.params(s, job), s.rounds[job, r].base
        clock = r * p.role.inner_steps
        if not p.role.carries:
            return ConstantClaim.of_slot(base, p.role.zero_carry, clock)
        return claim_of(base, clock, slot, self.carry_behind(s, job, r, slot))

    def revealed(self, s: State, job: JobId, r: int, slot: int, opened: Reveal) -> ConstantClaim | None:
        """Returns the revealed claim as computed; None if it is not one that can be made."""
        p, ro = views.params(s, job), s.rounds[job, r]
        clock = r * p.role.inner_steps
        if not p.role.carries:
            claims = (ConstantClaim.of_slot(ro.base, p.role.zero_carry, clock, lie) for lie in Lie)
            return next((one for one in claims if one.body == opened.body), None)
        source = None
        if opened.carries:
            behind = source_of(s, job, r, slot)
            if behind not in self.held:
                return None
            source = self._named(behind)
        stored = opened.payload_cid != NOWHERE
        for started in self._words(CARRY if source is None else source[1].out):
            if constant.root_of((BASE * started + slot + 1) % WORD) != opened.body.out2:
                continue
            for lie in Lie:
                made = claim_of(ro.base, clock, slot, source, lie=lie, started=started, stored=stored)
                if made.body == opened.body:
                    return made
        return None

    def _words(self, carry: int) -> list[int]:
        """Returns the words from which a claim might start, the right one first."""
        seen = {made.out for made in self.held.values() if isinstance(made, CarryClaim)}
        words = [carry, *sorted({CARRY, *seen} - {carry})]
        return [*words, *((word + TAMPERED) % WORD for word in words)]

    def wrong_behind(self, claim: ClaimId) -> ClaimId | None:
        """Returns the first wrong claim among those that a replay must begin with because their carries are not stored;
        None if the claim can be replayed.
        """
        made = self.held[claim]
        source = made.source if isinstance(made, CarryClaim) else None
        if source is None or source not in self.withheld:
            return None
        deeper = self.wrong_behind(source)
        if deeper is not None:
            return deeper
        said, true = self.held[source].body, self.held[source].truth.body
        return source if (said.out, said.out2) != (true.out, true.out2) else None

    def lacks_carry(self, claim: ClaimId) -> bool:
        """Returns True if the claim starts from a carry that is not stored."""
        made = self.held[claim]
        return isinstance(made, CarryClaim) and made.source in self.withheld

    # -- what a Wanderer sends of such claims

    def _made(self, s: State, job: JobId, r: int, slot: int) -> ConstantClaim:
        if not views.params(s, job).role.carries:
            return super()._made(s, job, r, slot)
        return self.honest_claim(s, job, r, slot)

    def _opened(self, claim: ClaimId, p: JobParams, r: int) -> Reveal:
        made = self.held[claim]
        return reveal_of(claim, made) if isinstance(made, CarryClaim) else super()._opened(claim, p, r)

    def _shown(self, s: State, b: Block, id_: Digest, claim: ClaimId) -> tuple[Any, ...]:
        made, demand = self.held[claim], s.demands[id_]
        if not isinstance(made, CarryClaim):
            return super()._shown(s, b, id_, claim)
        carry = demand.row == availability.CARRY
        if carry and made.source is not None:
            _, made = self._named(made.source)
        try:
            seed = availability.seed_of(s, b, id_)
        except Reverted:
            seed = Digest(bytes(32))
        program = constant.encode_program()
        contents = {0: constant.held(made.step(made.transitions).value), 1: constant.held(made.out)}
        shown = availability.payload_answer(
            demand.wanted, seed, program, lambda entry: memoryview(contents[entry].data), carry
        )
        return made.body, self._code(program), shown


def reveal_of(claim: ClaimId, made: CarryClaim) -> Reveal:
    """Returns the reveal of a claim that may carry."""
    payload = "payload" if made.stored else NOWHERE
    proof = tuple(merkle.proof(made.levels, 1))
    return Reveal(made.body, Digest(keccak(claim + b"n")), proof, "trace", payload, made.source is not None)


def source_of(s: State, job: JobId, r: int, slot: int) -> ClaimId:
    """Returns the slot's claim in the previous round."""
    return ids.claim_id(job, r - 1, s.rounds[job, r - 1].attempt, slot)


def carry_behind(s: State, job: JobId, r: int, slot: int) -> ClaimId | None:
    """Returns the claim whose carry the slot's owner starts from in its next claim; None: from zero.

    The rule is the programs' own, applied to the part of a ledger that is built here from the State.
    """
    rounds = [_told(s, job, k) for k in (r - 1, r) if k >= 0]
    ledger: Any = SimpleNamespace(all_rounds=lambda: iter(rounds))
    found = JobLedger.carry_behind(ledger, rounds[-1], slot, views.params(s, job).role.carry_period)
    return None if found is None else found[1].id


def _told(s: State, job: JobId, r: int) -> Any:
    """Returns a round's present attempt as derived from events."""
    ro, slots = s.rounds[job, r], range(views.params(s, job).role.slots)
    named = {slot: ids.claim_id(job, r, ro.attempt, slot) for slot in slots}
    held = {slot: (id_, s.claims[id_]) for slot, id_ in named.items() if id_ in s.claims}
    claims = {
        slot: SimpleNamespace(
            id=id_, worker=c.worker, carries=c.carries, convicted=c.status == ClaimStatus.CONVICTED
        )
        for slot, (id_, c) in held.items()
        if c.claimed_at
    }  # fmt: skip
    holders = {slot: (c.worker, id_) for slot, (id_, c) in held.items()}
    return SimpleNamespace(number=r, attempt=ro.attempt, phase=ro.phase, mask=ro.mask, claims=claims, holders=holders)
