"""What rounds compute, by hand: what is merged, where a slot starts, what is signed; money in random histories.

Which call does what, in which state, tests/rules/table.py says.
"""

from __future__ import annotations

import pytest

from lockstep.protocol import merkle
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import ClaimStatus
from lockstep.protocol.market import ids, state_roots
from lockstep.protocol.market.settling import worth
from lockstep.protocol.market.types import BURN, Keeper
from lockstep.protocol.types import Digest
from tests.rules.vectors import worlds
from tests.support.market.history import History
from tests.support.market.twin import ACCOUNTS, AT, CHAIN_ID, KEYS, PARAMS, STAKE, World, begun
from tests.support.params import amended


def of_deep_roots() -> World:
    """A round of which one slot is left out, of a job whose states are several entries deep."""
    params = amended(PARAMS, shared_depth=3, payload_depth=2, carry_period=0)
    return begun().create(params, 2).to_revealed().attest(mask=5).freeze()


def test_merge_in_holds_every_accepted_payload_and_the_mask() -> None:
    world = of_deep_roots()
    genesis, outs = world.params.genesis, [world.made(slot).body.out for slot in range(3)]
    payloads = [outs[0], world.params.role.zero_payload, outs[2], merkle.EMPTY[2]]
    left = merkle.lift(merkle.node(genesis.shared, genesis.outer), 4, 5)
    mask = merkle.tensor_root(0, (3,), bytes.fromhex("0000803f 00000000 0000803f"))
    assert world.round().mask == 0b101
    assert world.round().merge_in == merkle.node(left, merkle.node(merkle.tree(payloads), merkle.lift(mask, 0, 4)))


def test_state_zero_of_a_slot_is_the_base_twice_and_the_clock_at_the_rounds_start() -> None:
    base, carry = keccak(b"base"), PARAMS.role.zero_carry
    clock = merkle.lift(merkle.scalar_root(1, 3), 0, 3)
    expected = merkle.node(merkle.node(base, base), merkle.node(carry, clock))
    assert state_roots.slot_zero(base, carry, 3, 3) == expected


@pytest.mark.parametrize("stake", [1, 2, 3, 7, 99, 10**18 + 1])
def test_a_slash_is_divided_exactly(stake: int) -> None:
    world = begun().then("worker-0", "token.mint", "worker-0", stake).then("worker-0", "vault.deposit", stake)
    key = keccak(b"claim")
    world.do("market", "vault.lock", "worker-0", key, stake)
    world.do("market", "vault.slash", key, 0, [ACCOUNTS["verifier"]], [], "requester")
    got = world.state.credits
    assert got[BURN] + got[ACCOUNTS["verifier"]] + got[ACCOUNTS["requester"]] == stake
    assert got[BURN] >= stake - stake // 2, "at least half is burned"
    assert world.state.free[ACCOUNTS["worker-0"]] == STAKE


# -- random histories


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(500, 512))
def test_money_is_conserved_in_random_histories(seed: int) -> None:
    s = History.of(seed).play(150).state
    assert s.balances[s.at.vault] == s.owed, "the vault holds exactly what it owes"
    due = sum(worth(p, ro) for (job, _), ro in s.rounds.items() if ro.due and (p := s.params[job]))
    left = sum(j.escrow - j.paid - j.refunded + j.deposit for j in s.jobs.values())
    assert s.total_escrow == left + due, "escrow = held + paid + refunded, but for what slashes owe"
    locked = {key for key, lock in s.locks.items() if lock.keeper == Keeper.MARKET}
    staked = {claim for claim, c in s.claims.items() if ClaimStatus.JOINED <= c.status <= ClaimStatus.MISSING}
    assert locked == staked, "every claim that can be slashed has its lock, and no other"


def test_typed_hash_is_eip_712() -> None:
    from eth_account import Account

    world = worlds()["attesting"]
    claim, body = world.state.claims[world.claim(0)], world.made(0).body
    said = CHAIN_ID, AT["JobMarket"], claim, body, world.round().seed, PARAMS.genesis.shared
    signed = KEYS["worker-0"].sign_typed_data(full_message=ids.typed_data(*said))
    digest: Digest = ids.typed_hash(*said)
    assert bytes(signed.message_hash) == digest
    assert Account._recover_hash(digest, signature=signed.signature) == ACCOUNTS["worker-0"]
