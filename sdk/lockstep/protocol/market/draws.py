"""Draws of witnesses: computes account, slot, step and commitment of a duty. Twin of contracts/libraries/Draws.sol."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import ZERO_ADDRESS, word
from lockstep.protocol.types import Address, AuditId, ClaimId, Digest, JobId, StateRoot, Step


def stake_key(job: JobId, account: Address) -> bytes:
    """Returns keccak(abi.encode(JobId, account)), the key of a witness's stake."""
    return keccak(job + word(account))


def beacon_of(block_hash: bytes, audit: AuditId) -> Digest:
    """Returns the beacon of an audit: keccak(abi.encode(blockhash(beaconBlock), AuditId))."""
    return keccak(word(block_hash) + audit)


def account_word(beacon: Digest, i: int) -> int:
    """Returns a word that, modulo the list's length, is the index at which the search for the i-th duty's account
    begins.
    """
    return int.from_bytes(keccak(beacon + word(2 * i)), "big")


def slot_word(beacon: Digest, i: int) -> int:
    """Returns a word that, modulo their number, selects the i-th duty's slot among the revealed slots not yet
    assigned.
    """
    return int.from_bytes(keccak(beacon + word(2 * i + 1)), "big")


def slot_order(beacon: Digest, slots: Sequence[int], count: int) -> list[int]:
    """Returns the slots of the first `count` duties: each slot once before any twice (Fisher, Yates 1938; Durstenfeld
    1964).
    """
    order = list(slots)
    for i in range(min(count, len(order))):
        j = i + slot_word(beacon, i) % (len(order) - i)
        order[i], order[j] = order[j], order[i]
    return [order[i % len(order)] for i in range(count)] if order else []


def pick(accounts: Sequence[Address], beacon: Digest, i: int, owner: Address, drawn: Sequence[Address]) -> Address:
    """Returns the i-th duty's account, which is neither the slot's owner nor drawn before; ZERO_ADDRESS if there is
    none.
    """
    n = len(accounts)
    if n == 0:
        return ZERO_ADDRESS
    first = account_word(beacon, i) % n
    # The search skips at most all drawn accounts and the owner.
    for k in range(min(n, len(drawn) + 2)):
        account = accounts[(first + k) % n]
        if account != owner and account not in drawn:
            return account
    return ZERO_ADDRESS


def step_of(preimage: Digest, beacon: Digest, i: int, transitions: int) -> Step:
    """Returns t* = 1 + keccak(preimage, beacon, i) mod T, the step up to which the i-th duty replays."""
    return Step(1 + int.from_bytes(keccak(preimage + beacon + word(i)), "big") % transitions)


def seen_of(t: int, transitions: int) -> Step:
    """Returns the step whose state a witness commits to: t*, or T - 1 if t* is T, because the claim publishes S_T."""
    return Step(min(t, transitions - 1))


def leaf_word(preimage: Digest, beacon: Digest, i: int) -> int:
    """Returns keccak(preimage, beacon, i) / 2^128, which selects the leaf of S that the i-th duty's commitment
    binds.
    """
    return int.from_bytes(keccak(preimage + beacon + word(i)), "big") >> 128


def commitment(
    claim: ClaimId, account: Address, state: StateRoot, leaf: Digest, preimage: Digest, salt: Digest
) -> Digest:
    """Returns keccak(abi.encode(ClaimId, account, S, leaf, preimage, salt))."""
    return keccak(b"".join(word(part) for part in (claim, account, state, leaf, preimage, salt)))


@lru_cache(maxsize=64)
def chained(value: Digest, links: int) -> Digest:
    """Applies keccak `links` times.

    The result is cached, because a witness needs the same link while a duty is open.
    """
    for _ in range(links):
        value = keccak(value)
    return value
