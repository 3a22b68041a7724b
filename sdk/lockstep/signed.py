"""A claim as its worker signed it off chain (docs/protocol.md, section 4), and what two of them prove."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eth_account import Account
from eth_account.messages import encode_typed_data

from lockstep.protocol.claims import claim_id, typed_data, typed_hash
from lockstep.protocol.errors import Mismatch
from lockstep.protocol.jobs import Body, Claim
from lockstep.protocol.types import Address, ClaimId, Digest, JobId, Seed, StateRoot, TraceRoot


@dataclass(frozen=True)
class SignedClaim:
    """One EIP-712 `Claim` with its signature; whose it is, `signer` says."""

    said: Claim
    body: Body
    seed: Seed
    base: StateRoot
    signature: bytes

    @staticmethod
    def parse(fields: Mapping[str, Any]) -> SignedClaim:
        """From {"claim": {..}, "worker", "signature"} with 0x-hex values; raises Mismatch if it has another form."""
        try:
            claim = fields["claim"]
            said = Claim(
                job=JobId(_word(claim["job"])), worker=Address(str(fields["worker"])), round=_u32(claim["round"]),
                attempt=_u32(claim["attempt"]), slot=_u32(claim["slot"]), transitions=_u32(claim["transitions"]),
            )  # fmt: skip
            body = Body(
                TraceRoot(_word(claim["traceRoot"])), StateRoot(_word(claim["out"])), StateRoot(_word(claim["out2"]))
            )
            signature = bytes.fromhex(fields["signature"][2:])
            return SignedClaim(said, body, Seed(_word(claim["seed"])), StateRoot(_word(claim["base"])), signature)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise Mismatch(f"that is no signed claim: {error!r}", hint="see ClaimIn in /openapi.json") from error

    @property
    def id(self) -> ClaimId:
        """The claim that it is about."""
        return claim_id(self.said.job, self.said.round, self.said.attempt, self.said.slot)

    def digest(self, chain_id: int, market: Address) -> Digest:
        """What is signed, in the domain of one market."""
        return typed_hash(chain_id, market, self.said, self.body, self.seed, self.base)

    def signer(self, chain_id: int, market: Address) -> Address:
        """Whose signature it is; raises Mismatch if it is none."""
        message = typed_data(chain_id, market, self.said, self.body, self.seed, self.base)
        try:
            return Address(Account.recover_message(encode_typed_data(full_message=message), signature=self.signature))
        except Exception as error:  # eth-keys raises several unrelated families for bytes that are no signature
            raise Mismatch(f"that is no signature: {error}", hint="65 bytes r ‖ s ‖ v of the EIP-712 claim") from error

    def contradicts(self, other: SignedClaim) -> bool:
        """Whether both are about the same work and say different things of it: what `equivocate` convicts."""
        same = self.work() == other.work()
        return same and (self.body, self.said.transitions) != (other.body, other.said.transitions)

    def work(self) -> tuple[object, ...]:
        """DisputeGame's `Work`."""
        said = self.said
        return (said.job, said.round, said.attempt, said.slot, self.seed, self.base)

    def signed(self) -> tuple[object, ...]:
        """DisputeGame's `Signed`."""
        return (self.body.trace_root, self.said.transitions, self.body.out, self.body.out2, self.signature)


def _word(text: str) -> bytes:
    value = bytes.fromhex(text[2:])
    if len(value) != 32:
        raise ValueError(f"{text} is not 32 bytes")
    return value


def _u32(value: Any) -> int:
    number = int(value)
    if not 0 <= number < 1 << 32:
        raise ValueError(f"{number} is no uint32")
    return number
