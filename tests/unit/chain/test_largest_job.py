"""The largest job that the market takes fits the gas limits that its wrappers set."""

from pathlib import Path

import pytest
from eth_account import Account

from lockstep.chain.contracts import GAS, Contracts
from lockstep.chain.devnet import Devnet, deploy, key_of
from lockstep.chain.journal import SentReceipt
from lockstep.chain.outbox import Outbox
from lockstep.protocol import merkle
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import Body, Phase, Reveal
from lockstep.protocol.market import ids
from lockstep.protocol.market.job_rules import MAX_SLOTS
from lockstep.protocol.types import Address, Seconds, StateRoot, TraceRoot, Wei
from tests.support.params import amended, measured

pytestmark = [pytest.mark.chain, pytest.mark.slow]


def test_the_loops_over_all_slots_fit_their_limits(tmp_path: Path) -> None:
    with Devnet(tmp_path / "anvil", block_seconds=0) as chain:
        contracts = Contracts.at(chain.w3, deploy(chain.w3, chain.account("deployer")))
        token, vault, market = contracts.token, contracts.vault, contracts.market
        workers = [Outbox(tmp_path / f"{i}.db", chain.w3, chain.account(f"worker {i}")) for i in range(MAX_SLOTS)]
        requester = Outbox(tmp_path / "requester.db", chain.w3, chain.account("requester"))
        for outbox in (requester, *workers):
            who = Address(outbox.address)
            calls = [token.mint(who, Wei(10**6)), token.approve(vault.address, Wei(10**6)), vault.deposit(Wei(10**4))]
            outbox.send_all((f"fund {i}", call) for i, call in enumerate(calls))
        aggregator = Address(Account.from_key(key_of(chain.seed, "requester")).address)
        params = amended(
            measured(), slots=MAX_SLOTS, min_slots=1, rounds=2, inner_steps=1, max_lead=1,
            max_fail=1, carry_period=0, slot_stake=Wei(101), slot_price=Wei(10), aggregator=aggregator,
            train_seconds=Seconds(10_000),
            reveal_seconds=Seconds(10_000), challenge_seconds=Seconds(10_000), merge_seconds=Seconds(10_000),
        )  # fmt: skip
        requester.send(market.create(params, 0, params.escrow), "create")
        job = ids.job_id(chain.w3.eth.chain_id, contracts.addresses.market, aggregator, 0, params)
        used: list[SentReceipt] = []

        requester.send(market.start_round(job, 0), "start 0")
        for s, outbox in enumerate(workers):
            outbox.send(market.join(job, 0, s), "join 0")
        chain.mine(2)
        requester.send(market.seal(job, 0), "seal 0")
        opened = {}
        for s, outbox in enumerate(workers):
            claim = market.claim_id_of(job, 0, s)
            opened[s] = _opened(claim)
            commitment = ids.commitment(claim, Address(outbox.address), opened[s])
            outbox.send(market.commit(job, 0, s, commitment), "commit 0")
        for s, outbox in enumerate(workers):
            outbox.send(market.reveal(job, 0, s, opened[s]), "reveal 0")
        everybody = 2**MAX_SLOTS - 1
        given = [
            receipt
            for s in range(MAX_SLOTS)
            for receipt in contracts.sign_receipts(chain.account(f"worker {s}"), job, 0, 0, everybody, [s])
        ]
        attest = market.attest(job, 0, given)
        assert requester.send(attest, "attest 0").gas_used < 0.9 * attest.gas, "as many receipts as there can be"
        chain.advance(Seconds(10_001))
        used.append(requester.send(market.freeze(job, 0, [opened[s].body for s in range(MAX_SLOTS)]), "freeze 0"))
        assert market.round(job, 0).accepted == MAX_SLOTS
        requester.send(market.merge(job, 0, keccak(b"out"), keccak(b"outer"), "cid"), "merge 0")
        chain.advance(Seconds(10_001))
        used.append(requester.send(market.finalize(job, 0), "finalize 0"))
        assert market.job(job).paid == params.round_pay

        requester.send(market.start_round(job, 1), "start 1")
        for s, outbox in enumerate(workers):
            outbox.send(market.join(job, 1, s), "join 1")
        chain.mine(2)
        requester.send(market.seal(job, 1), "seal 1")
        chain.advance(Seconds(10_001))
        used.append(requester.send(market.freeze(job, 1, []), "freeze 1"))
        assert market.phase(job, 1) == Phase.FAILED
        assert vault.credits("0x000000000000000000000000000000000000dEaD") == MAX_SLOTS * 10, "everybody was absent"
        requester.send(market.finish(job), "finish")
        assert vault.total_escrow() == 0

        for receipt in used:
            print(f"{receipt.key}: {receipt.gas_used} gas of {GAS[receipt.label]}")
            assert receipt.gas_used < 0.9 * GAS[receipt.label], receipt.label


def _opened(claim: bytes) -> Reveal:
    """A made-up trace of two states."""
    out, out2, first = keccak(claim), keccak(claim + b"2"), merkle.leaf(keccak(claim + b"1"))
    levels = merkle.levels([first, merkle.leaf(merkle.node(out, out2))])
    body = Body(TraceRoot(levels[-1][0]), StateRoot(out), StateRoot(out2))
    return Reveal(body, keccak(claim + b"n"), tuple(merkle.proof(levels, 1)), "t", "p")
