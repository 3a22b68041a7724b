"""Identity is content: ids, commitments and the typed data that a worker signs (docs/protocol.md, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import Body, Claim, JobParams, Reveal, word
from lockstep.protocol.types import Address, AuditId, ClaimId, Digest, JobId, Seed, StateRoot

HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0
"""Half the order of secp256k1, rounded down: OpenZeppelin's ECDSA accepts only the lower of the signatures s and -s."""

REMEMBERED_IDS = 1 << 14
"""Number of cached ids: every poll needs the same ids again."""


def spec_hash(params: JobParams) -> Digest:
    """Returns the hash of a job's parameters: keccak(abi.encode(JobParams))."""
    return keccak(params.encode())


def job_id(chain_id: int, market: Address, requester: Address, nonce: int, params: JobParams) -> JobId:
    """Returns keccak(abi.encode(chainId, market, requester, nonce, specHash))."""
    return JobId(keccak(word(chain_id) + word(market) + word(requester) + word(nonce) + spec_hash(params)))


@lru_cache(REMEMBERED_IDS)
def claim_id(job: JobId, r: int, attempt: int, slot: int) -> ClaimId:
    """Returns keccak(abi.encode(JobId, round, attempt, slot)); a merge's slot is MERGE_SLOT."""
    return ClaimId(keccak(job + word(r) + word(attempt) + word(slot)))


def seed(block_hash: bytes, job: JobId, r: int, attempt: int) -> Seed:
    """Returns keccak(abi.encode(blockhash(seedBlock), JobId, round, attempt))."""
    return Seed(keccak(word(block_hash) + job + word(r) + word(attempt)))


def commitment(claim: ClaimId, worker: Address, opened: Reveal) -> Digest:
    """Returns keccak(abi.encode(ClaimId, worker, traceRoot, out, out2, carries, nonce))."""
    said = opened.body
    parts = (claim, worker, said.trace_root, said.out, said.out2, opened.carries, opened.nonce)
    return keccak(b"".join(word(part) for part in parts))


def body_hash(body: Body) -> Digest:
    """Returns keccak(abi.encode(Body)), which is stored for a revealed claim."""
    return keccak(body.trace_root + body.out + body.out2)


CLAIM_TYPE = {
    "Claim": [
        {"name": "job", "type": "bytes32"},
        {"name": "round", "type": "uint32"},
        {"name": "attempt", "type": "uint32"},
        {"name": "slot", "type": "uint32"},
        {"name": "seed", "type": "bytes32"},
        {"name": "base", "type": "bytes32"},
        {"name": "traceRoot", "type": "bytes32"},
        {"name": "transitions", "type": "uint32"},
        {"name": "out", "type": "bytes32"},
        {"name": "out2", "type": "bytes32"},
    ]
}
"""The EIP-712 struct of a claim.

Two signatures over one (job, round, attempt, slot) with different roots are an equivocation.
"""

_DOMAIN = [
    {"name": "name", "type": "string"},
    {"name": "version", "type": "string"},
    {"name": "chainId", "type": "uint256"},
    {"name": "verifyingContract", "type": "address"},
]
_DOMAIN_TYPE = b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"


def domain(chain_id: int, market: Address) -> dict[str, Any]:
    """Returns the EIP-712 domain of one market on one chain."""
    return {"name": "Lockstep", "version": "1", "chainId": chain_id, "verifyingContract": market}


@lru_cache(REMEMBERED_IDS)
def audit_id(job: JobId, r: int, attempt: int) -> AuditId:
    """Returns keccak(abi.encode(JobId, round, attempt))."""
    return AuditId(keccak(job + word(r) + word(attempt)))


RECEIPT_TYPE = "Receipt(bytes32 job,uint32 round,uint32 attempt,uint32 who,uint256 mask)"


def receipt_hash(chain_id: int, market: Address, job: JobId, r: int, attempt: int, who: int, mask: int) -> Digest:
    """Returns the digest that the signature of a receipt covers."""
    said = job + word(r) + word(attempt) + word(who) + word(mask)
    return _typed(chain_id, market, keccak(keccak(RECEIPT_TYPE.encode()) + said))


def typed_data(chain_id: int, market: Address, claim: Claim, body: Body, seed: Seed, base: StateRoot) -> dict[str, Any]:
    """Returns the full message for eth_signTypedData: {types, primaryType, domain, message}."""
    return {
        "types": {"EIP712Domain": _DOMAIN, **CLAIM_TYPE},
        "primaryType": "Claim",
        "domain": domain(chain_id, market),
        "message": {
            "job": claim.job,
            "round": claim.round,
            "attempt": claim.attempt,
            "slot": claim.slot,
            "seed": seed,
            "base": base,
            "traceRoot": body.trace_root,
            "transitions": claim.transitions,
            "out": body.out,
            "out2": body.out2,
        },
    }


def typed_hash(chain_id: int, market: Address, claim: Claim, body: Body, seed: Seed, base: StateRoot) -> Digest:
    """Returns the signed digest keccak(0x1901 ‖ domain separator ‖ struct hash), EIP-712 section "encode"."""
    message = typed_data(chain_id, market, claim, body, seed, base)["message"]
    return claim_digest(chain_id, market, [message[field["name"]] for field in CLAIM_TYPE["Claim"]])


def claim_digest(chain_id: int, market: Address, values: Sequence[bytes | int | str]) -> Digest:
    """Returns the EIP-712 digest of the fields of CLAIM_TYPE, given in order."""
    fields = CLAIM_TYPE["Claim"]
    signature = "Claim(" + ",".join(f"{field['type']} {field['name']}" for field in fields) + ")"
    return _typed(chain_id, market, keccak(keccak(signature.encode()) + b"".join(word(value) for value in values)))


def separator(name: str, chain_id: int, contract: Address) -> Digest:
    """Returns the hash of an EIP-712 domain with version 1."""
    return keccak(keccak(_DOMAIN_TYPE) + keccak(name.encode()) + keccak(b"1") + word(chain_id) + word(contract))


def typed_digest(name: str, chain_id: int, contract: Address, struct_hash: Digest) -> Digest:
    """Returns the digest that is signed for a struct in a contract's domain (EIP-712)."""
    return keccak(b"\x19\x01" + separator(name, chain_id, contract) + struct_hash)


def _typed(chain_id: int, market: Address, struct_hash: Digest) -> Digest:
    return typed_digest("Lockstep", chain_id, market, struct_hash)
