"""Claims signed off chain by workers (docs/protocol.md, section 4), and proofs that two of them contradict each
other.
"""

from __future__ import annotations

from dataclasses import dataclass

from eth_account import Account
from eth_account.messages import encode_typed_data

from lockstep.base.decoding import U32, account, hexes, refusing, table, text, whole
from lockstep.protocol.errors import Mismatch
from lockstep.protocol.jobs import Body, Claim
from lockstep.protocol.market.ids import claim_id, typed_data, typed_hash
from lockstep.protocol.types import Address, ClaimId, Digest, JobId, Seed, StateRoot, TraceRoot

MACHINE_CHARACTERS = 80
"""The longest name of a machine in an announcement."""
_WORD, _COUNT = hexes(32), whole(0, U32)
_CLAIM = table(
    {
        **dict.fromkeys(("job", "seed", "base", "traceRoot", "out", "out2"), _WORD),
        **dict.fromkeys(("round", "attempt", "slot", "transitions"), _COUNT),
    }
)
_SIGNED = table(
    {"claim": _CLAIM, "worker": account, "signature": hexes(65)},
    {"trace_cid": text(128), "payload_cid": text(128), "machine": text(MACHINE_CHARACTERS)},
)
"""Reader of an announcement; its fields besides the claim are not signed."""


@dataclass(frozen=True)
class SignedClaim:
    """One EIP-712 `Claim` with its signature; `signer` recovers the account."""

    claim: Claim
    body: Body
    seed: Seed
    base: StateRoot
    signature: bytes

    @staticmethod
    def parse(fields: object) -> SignedClaim:
        """Parses {"claim": {..}, "worker", "signature"} with 0x-hex values. Raises Mismatch for another form."""
        with refusing(Mismatch, "a signed claim", hint="see ClaimIn in /openapi.json"):
            given = _SIGNED(fields, "the signed claim")
        sent = given["claim"]
        claim = Claim(
            job=JobId(sent["job"]), worker=Address(given["worker"]), round=sent["round"], attempt=sent["attempt"],
            slot=sent["slot"], transitions=sent["transitions"],
        )  # fmt: skip
        body = Body(TraceRoot(sent["traceRoot"]), StateRoot(sent["out"]), StateRoot(sent["out2"]))
        return SignedClaim(claim, body, Seed(sent["seed"]), StateRoot(sent["base"]), given["signature"])

    @property
    def id(self) -> ClaimId:
        """The id of the signed claim."""
        return claim_id(self.claim.job, self.claim.round, self.claim.attempt, self.claim.slot)

    def digest(self, chain_id: int, market: Address) -> Digest:
        """Returns the EIP-712 digest that is signed, in the domain of one market."""
        return typed_hash(chain_id, market, self.claim, self.body, self.seed, self.base)

    def signer(self, chain_id: int, market: Address) -> Address:
        """Recovers the account that signed; raises Mismatch if the signature is invalid."""
        message = typed_data(chain_id, market, self.claim, self.body, self.seed, self.base)
        try:
            return Address(Account.recover_message(encode_typed_data(full_message=message), signature=self.signature))
        except Exception as error:  # eth-keys raises several unrelated exception types for invalid signatures
            raise Mismatch(
                f"the claim's signature is invalid: {error}", hint="send 65 bytes r ‖ s ‖ v over the EIP-712 claim"
            ) from error

    def contradicts(self, other: SignedClaim) -> bool:
        """Returns True if both claim different results of the same work, for which `equivocate` convicts the worker."""
        same = self.work() == other.work()
        return same and (self.body, self.claim.transitions) != (other.body, other.claim.transitions)

    def work(self) -> tuple[object, ...]:
        """Returns the fields of DisputeGame's struct `Work`."""
        of = self.claim
        return (of.job, of.round, of.attempt, of.slot, self.seed, self.base)

    def signed(self) -> tuple[object, ...]:
        """Returns the fields of DisputeGame's struct `Signed`."""
        return (self.body.trace_root, self.claim.transitions, self.body.out, self.body.out2, self.signature)
