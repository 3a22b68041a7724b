"""Measures, on Anvil, gas and bytes of a deployment, of a job of 10 rounds x 8 slots, and of a game.

python -m tests.support.costs        writes sdk/lockstep/chain/costs.json anew (`make gas-snapshot`)
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from eth_account import Account

from lockstep.chain import artifacts, deployment
from lockstep.chain.contracts import Call, Contracts
from lockstep.chain.deployment import deploy
from lockstep.chain.devnet import HARDFORK, Devnet, key_of
from lockstep.chain.fees import Sent
from lockstep.chain.outbox import Outbox
from lockstep.protocol import merkle
from lockstep.protocol.dispute import moves
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import Body, Phase, Reveal
from lockstep.protocol.market import ids
from lockstep.protocol.types import Address, Seconds, StateRoot, TraceRoot, Wei
from tests.support import games, gas
from tests.support.params import amended, measured

FILE = Path(artifacts.__file__).parent / "costs.json"
ROUNDS, SLOTS = 10, 8
PLAYED = 3
"""The claim in tests/support/gas.py with the longest game: a fold with a tree of partials."""
Table = dict[str, Sent]
GENESIS = gas.GENESIS


def add(table: Table, name: str, raw: bytes, used: int) -> None:
    """Adds a transaction to the row `name`."""
    sent = Sent.of(raw, used)
    table[name] = table[name] + sent if name in table else sent


def signed(data: bytes, to: str | None, nonce: int, limit: int) -> bytes:
    """Returns a transaction of these bytes, signed by a fixed account with fixed numbers."""
    account = Account.from_key(key_of(0, "costs"))
    transaction: dict[str, Any] = {
        "type": 2, "chainId": 10, "nonce": nonce, "data": data, "value": 0, "gas": limit,
        "maxPriorityFeePerGas": 10**9, "maxFeePerGas": 3 * 10**9,
    }  # fmt: skip
    if to is not None:
        transaction["to"] = to
    return bytes(account.sign_transaction(transaction).raw_transaction)


def of_deployment(devnet: Devnet) -> Table:
    """Measures each creation."""
    account = devnet.account("measured deployer")
    addresses = deploy(devnet.w3, account)
    table: Table = {}
    for each in deployment.plan(Address(account.address), 0).creations:
        [found] = [
            tx
            for n in range(addresses.block, devnet.w3.eth.block_number + 1)
            for tx in devnet.w3.eth.get_block(n, full_transactions=True)["transactions"]
            if tx["from"] == account.address and tx["nonce"] == each.nonce  # type: ignore[index]
        ]
        used = devnet.w3.eth.get_transaction_receipt(found["hash"])["gasUsed"]  # type: ignore[index]
        add(table, each.artifact, signed(each.data, None, each.nonce, deployment.GAS), used)
    return table


def of_job(devnet: Devnet, folder: Path) -> Table:
    """Measures every transaction of an undisputed job, from its creation to the last withdrawal."""
    contracts = Contracts.at(devnet.w3, deploy(devnet.w3, devnet.account("deployer")))
    token, vault, market = contracts.token, contracts.vault, contracts.market
    table: Table = {}

    def send(outbox: Outbox, call: Call, counted: bool = True) -> None:
        key = f"{call.label}/{len(outbox.keys(''))}"
        receipt = outbox.send(call, key)
        row = outbox._journal.row(key)
        assert row is not None
        if counted:
            add(table, call.label, signed(call.data, call.to, row["nonce"], call.gas), receipt.gas_used)

    workers = [Outbox(folder / f"{i}.db", devnet.w3, devnet.account(f"worker {i}")) for i in range(SLOTS)]
    requester = Outbox(folder / "requester.db", devnet.w3, devnet.account("requester"))
    for outbox in (requester, *workers):
        who = Address(outbox.address)
        send(outbox, token.mint(who, Wei(10**9)), counted=False)
        send(outbox, token.approve(vault.address, Wei(10**9)))
        send(outbox, vault.deposit(Wei(10**5)))
    params = amended(
        measured(), slots=SLOTS, min_slots=1, rounds=ROUNDS, inner_steps=1, max_lead=1, max_fail=1,
        carry_period=0,
        slot_stake=Wei(101), slot_price=Wei(10), aggregator=Address(requester.address), train_seconds=Seconds(10_000),
        reveal_seconds=Seconds(10_000), challenge_seconds=Seconds(10_000), merge_seconds=Seconds(10_000),
        join_seconds=Seconds(10_000), attest_seconds=Seconds(10_000),
    )  # fmt: skip
    send(requester, market.create(params, 0, Wei(params.escrow)))
    job = ids.job_id(devnet.w3.eth.chain_id, contracts.addresses.market, Address(requester.address), 0, params)
    for r in range(ROUNDS):
        send(requester, market.start_round(job, r))
        for s, outbox in enumerate(workers):
            send(outbox, market.join(job, r, s))
        devnet.mine(2)
        send(requester, market.seal(job, r))
        opened = {s: _opened(market.claim_id_of(job, r, s)) for s in range(SLOTS)}
        for s, outbox in enumerate(workers):
            claim = market.claim_id_of(job, r, s)
            send(outbox, market.commit(job, r, s, ids.commitment(claim, Address(outbox.address), opened[s])))
        for s, outbox in enumerate(workers):
            send(outbox, market.reveal(job, r, s, opened[s]))
        # One worker submits all receipts, which are signed off chain.
        given = [
            receipt
            for s in range(SLOTS)
            for receipt in contracts.sign_receipts(devnet.account(f"worker {s}"), job, r, 0, 2**SLOTS - 1, [s])
        ]
        send(requester, market.attest(job, r, given))
        devnet.advance(Seconds(10_001))
        send(requester, market.freeze(job, r, [opened[s].body for s in range(SLOTS)]))
        assert market.round(job, r).accepted == SLOTS
        send(requester, market.merge(job, r, keccak(b"out%d" % r), keccak(b"outer%d" % r), "b" * 59))
        devnet.advance(Seconds(10_001))
        send(requester, market.finalize(job, r))
        assert market.phase(job, r) == Phase.FINAL
    send(requester, market.finish(job))
    for outbox in workers:
        send(outbox, vault.call("withdraw"))
    for outbox in (requester, *workers):
        outbox.close()
    return table


def of_game(folder: Path) -> Table:
    """Measures the longest game of the scenario, both sides."""
    with gas.chain(folder) as arena:
        scenario = gas.Scenario(arena)
        claims = scenario.claims()
        calls: list[Call] = []
        send = arena.send

        def recorded(call: Call, *rest: Any, **options: Any) -> Any:
            calls.append(call)
            return send(call, *rest, **options)

        arena.send = recorded  # type: ignore[method-assign]
        held = scenario.held(scenario.seed, PLAYED)
        truth = replace(held, lie=None, tampered={})
        opening = games.open_at(scenario.as_stored(claims[PLAYED]), held, 1, PLAYED)
        outcome = arena.play(opening, games.defends(held), games.challenges(truth))
        assert outcome.verdict == moves.Verdict.FRAUD
    table: Table = {}
    assert len(calls) == len(outcome.spent)
    for nonce, (call, spent) in enumerate(zip(calls, outcome.spent, strict=True)):
        add(table, spent.call, signed(call.data, call.to, nonce, call.gas), spent.gas)
    return table


def _opened(claim: bytes) -> Reveal:
    """Returns the reveal of a made-up trace with two states."""
    out, out2, first = keccak(claim), keccak(claim + b"2"), merkle.leaf(keccak(claim + b"1"))
    levels = merkle.levels([first, merkle.leaf(merkle.node(out, out2))])
    body = Body(TraceRoot(levels[-1][0]), StateRoot(out), StateRoot(out2))
    return Reveal(body, keccak(claim + b"n"), tuple(merkle.proof(levels, 1)), "t" * 59, "p" * 59)


def snapshot(folder: Path) -> dict[str, Any]:
    """Returns all three measurements in the committed form."""
    with Devnet(folder / "anvil", block_seconds=0, genesis_time=GENESIS) as devnet:
        tables = {"deployment": of_deployment(devnet), "job": of_job(devnet, folder)}
    tables["game"] = of_game(folder / "game")
    costs = {what: {name: asdict(table[name]) for name in sorted(table)} for what, table in tables.items()}
    return {"hardfork": HARDFORK, "rounds": ROUNDS, "slots": SLOTS, "costs": costs}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        FILE.write_text(json.dumps(snapshot(Path(folder)), indent=1) + "\n")
