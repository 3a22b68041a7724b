"""A witness that a test controls: it makes the calls that it is told, in that order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lockstep.chain.contracts import Call, Witnesses
from lockstep.protocol import merkle
from lockstep.protocol.jobs import Body
from lockstep.protocol.market import draws
from lockstep.protocol.market.types import StateLeaf, Word
from lockstep.protocol.types import Address, AuditId, ClaimId, Digest, JobId, StateRoot

LINKS = 16
Leaves = Callable[[int, int], StateLeaf]


@dataclass
class PlayedWitness:
    """One account; `send` sends a call from it and returns once it is mined."""

    contract: Witnesses
    job: JobId
    address: Address
    send: Callable[[Call], object]
    chain: list[Digest] = field(default_factory=list)

    def enrol(self) -> None:
        """Enrols with a hash chain derived from its address."""
        self.chain = [draws.chained(Digest(self.address.encode().ljust(32)[:32]), LINKS - k) for k in range(LINKS)]
        self.send(self.contract.enrol(self.job, self.chain[0]))

    def duty(self, audit: AuditId) -> int:
        """Returns the index of the witness's duty in an audit."""
        count = self.contract.audit(audit).duties
        return next(i for i in range(count) if self.contract.duty(audit, i).account == self.address)

    def preimage(self, audit: AuditId, i: int) -> Digest:
        """Returns the preimage of its duty."""
        return self.chain[self.contract.duty(audit, i).serial]

    def step(self, audit: AuditId, i: int, transitions: int) -> int:
        """Returns the duty's t*."""
        return draws.step_of(self.preimage(audit, i), self.contract.audit(audit).beacon, i, transitions)

    def word(
        self, audit: AuditId, i: int, body: Body, roots: Sequence[StateRoot], leaf: Leaves, *, agrees: bool = True
    ) -> Word:
        """Returns the verdict of a witness whose S_1 .. S_T are `roots`, with the leaf `leaf(word, u)` of S_u."""
        u = draws.seen_of(self.step(audit, i, len(roots)), len(roots))
        levels = merkle.levels([merkle.leaf(root) for root in roots])
        proof = tuple(merkle.proof(levels, u - 1)) if agrees else ()
        preimage, salt = self.preimage(audit, i), Digest(bytes(31) + bytes([i]))
        place = draws.leaf_word(preimage, self.contract.audit(audit).beacon, i)
        return Word(preimage, roots[u - 1], leaf(place, u), salt, agrees, body, proof)

    def commit(self, audit: AuditId, i: int, claim: ClaimId, word: Word) -> None:
        """Commits to a verdict."""
        bound = draws.commitment(claim, self.address, word.state, word.leaf.digest, word.preimage, word.salt)
        self.send(self.contract.commit(audit, i, bound))

    def reveal(self, audit: AuditId, i: int, word: Word) -> None:
        """Reveals a verdict."""
        self.send(self.contract.reveal(audit, i, word))
