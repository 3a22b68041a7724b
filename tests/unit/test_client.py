"""The front door: light to import, and a submission that survives being told twice."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from web3.types import RPCEndpoint

import lockstep
from lockstep.base.amounts import Currency
from lockstep.chain.deployment import deploy
from lockstep.chain.outbox import Outbox
from lockstep.client import Network, connect
from lockstep.execution import jobs
from lockstep.protocol.errors import BudgetExceeded, ChainError, UsageError
from lockstep.protocol.programs.program import Const
from lockstep.protocol.types import Address, Seconds, Wei
from lockstep.storage.containers import encode_program
from tests.support import toyjob
from tests.support.memory.devnet import MemoryDevnet
from tests.support.waiting import PATIENCE


def test_the_package_is_light_until_its_front_door_is_used() -> None:
    program = "import sys, json, lockstep; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert {"web3", "torch", "numpy"} & set(json.loads(done.stdout)) == set()
    assert lockstep.connect is connect
    assert [name for name in lockstep.__all__ if getattr(lockstep, name).__module__.startswith("lockstep.")] == (
        lockstep.__all__
    )
    with pytest.raises(AttributeError, match="disconnect"):
        _ = lockstep.disconnect


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """A requester on a chain that mines at once; the vault keeps stakes for an hour."""
    folder = tmp_path_factory.mktemp("client")
    with MemoryDevnet() as devnet:
        deployer, requester = devnet.account("deployer"), devnet.account("requester")
        addresses = deploy(devnet.w3, deployer, unbond_seconds=Seconds(3600))
        net = connect(
            rpc=devnet.url, storage=f"dir://{folder}/blocks", deployment=addresses, account=requester,
            home=folder / "home",
        )  # fmt: skip
        outbox = Outbox(folder / "deployer.sqlite", devnet.w3, deployer)
        outbox.send(net.contracts.token.mint(Address(requester.address), Wei(10**21)), "mint")
        outbox.close()
        yield net


def test_a_job_with_a_carry_is_opened_and_loads_as_its_parties_load_it(net: Network) -> None:
    quote = net.quote(toyjob.training_job(carry=True))
    assert quote.params.role.carry_period == quote.params.schedule.max_lead - 1
    assert quote.params.role.payload_depth == quote.params.genesis.shared_depth
    handle = net.submit(quote, budget=quote.debit)
    params = net.contracts.market.params(handle.id)
    assert params == quote.params
    assert jobs.load(handle.id, params, net.store).carry_layout == quote.job.programs.step.inputs[4:6]


def test_a_part_that_no_party_would_read_is_refused_by_the_quote(net: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    job = toyjob.training_job()
    largest = len(encode_program(job.programs.step))
    monkeypatch.setattr("lockstep.requester.quotes.MAX_PROGRAM_BYTES", largest)
    assert net.quote(job).job is job, "exactly as many bytes are read"
    monkeypatch.setattr("lockstep.requester.quotes.MAX_PROGRAM_BYTES", largest - 1)
    with pytest.raises(UsageError, match=f"the step Program has {largest} bytes"):
        net.quote(job)


def test_terms_of_another_token_are_told_apart_from_a_small_budget(
    net: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net.contracts.token, "_currency", Currency("USDC", 6))
    job = toyjob.training_job()
    with pytest.raises(BudgetExceeded, match="budget is 9 USDC") as told:
        net.submit(net.quote(job), budget=Wei(9 * net.currency.unit))
    assert "terms=LOCAL.in_decimals(6)" in told.value.hint
    scaled = replace(job, terms=job.terms.in_decimals(6))
    with pytest.raises(BudgetExceeded, match="budget is 1 USDC") as small:
        net.submit(net.quote(scaled), budget=Wei(net.currency.unit))
    assert "raise the budget" in small.value.hint


def test_weights_that_changed_since_the_quote_open_no_job(net: Network) -> None:
    job = toyjob.training_job()
    step = job.programs.step
    words = np.frombuffer(step.consts[0].data, "<f4").copy()
    mapped = replace(step, consts=(Const(step.consts[0].header, memoryview(words).cast("B")), *step.consts[1:]))
    assert mapped.root == step.root, "a buffer of the caller's is a constant like any other"
    quote = net.quote(replace(job, programs=replace(job.programs, step=mapped)))
    words[7] += 1
    sent = net.w3.eth.get_transaction_count(net.account.address)
    with pytest.raises(UsageError, match="step changed since the quote"):
        net.submit(quote, budget=quote.debit)
    assert net.w3.eth.get_transaction_count(net.account.address) == sent

    words[:] = np.frombuffer(step.consts[0].data, "<f4")
    net.submit(quote, budget=quote.debit)


def test_jobs_without_a_nonce_are_different_jobs(net: Network) -> None:
    quote = net.quote(toyjob.training_job())
    first, second = (net.submit(quote, budget=quote.debit) for _ in range(2))
    assert first.id != second.id
    assert [net.job(h.id).status()["escrow"] for h in (first, second)] == [str(quote.escrow)] * 2


def test_a_submission_told_again_while_it_is_not_mined_is_paid_once(net: Network) -> None:
    quote, token, owner = net.quote(toyjob.training_job(rounds=1)), net.contracts.token, net.account.address
    before, sent = token.balance_of(Address(owner)), net.w3.eth.get_transaction_count(owner)
    # The next process of an impatient requester: the same account and home, opened anew.
    again = Network(net.w3, net.contracts, net.store, net.account, net.home)
    anvil = net.w3.provider.make_request
    anvil(RPCEndpoint("evm_setAutomine"), [False])
    try:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(net.submit, quote, quote.debit, 10**6)
            while net.w3.eth.get_transaction_count(owner, "pending") == sent:
                assert not first.done(), first.result()
                time.sleep(0.05)
            second = pool.submit(again.submit, quote, quote.debit, 10**6)
            time.sleep(1.0)
            assert not second.done(), "it waits for the transaction that is on its way"
            anvil(RPCEndpoint("anvil_mine"), [])
            assert first.result(60).id == second.result(60).id
    finally:
        anvil(RPCEndpoint("evm_setAutomine"), [True])
    assert net.w3.eth.get_transaction_count(owner, "pending") == sent + 1
    assert token.balance_of(Address(owner)) == before - quote.escrow - quote.deposit


def test_terms_that_the_market_refuses_are_refused_by_the_quote_with_their_bounds(net: Network) -> None:
    terms = replace(toyjob.TOY_TERMS, challenge_seconds=Seconds(7200))
    with pytest.raises(ChainError) as refused:
        net.quote(toyjob.training_job(terms=terms))
    assert "3600" in refused.value.hint, "the vault's delay is named"


def test_eight_parallel_submissions_of_one_account_are_eight_jobs(net: Network) -> None:
    """A permit is good for one nonce of the token: they take turns, in threads as in processes."""
    quote = net.quote(toyjob.training_job(rounds=1))
    others = [Network(net.w3, net.contracts, net.store, net.account, net.home) for _ in range(8)]
    before = net.contracts.token.balance_of(Address(net.account.address))
    with ThreadPoolExecutor(8) as pool:
        handles = list(pool.map(lambda other: other.submit(quote, quote.debit), others))
    assert len({handle.id for handle in handles}) == 8
    assert {handle.status()["status"] for handle in handles} == {"active"}
    spent = before - net.contracts.token.balance_of(Address(net.account.address))
    assert spent == 8 * quote.debit


@pytest.mark.slow
def test_the_debit_never_exceeds_the_budget_in_a_thousand_random_jobs(net: Network) -> None:
    """Whatever the terms and the budget: the wallet pays the quote's debit, or nothing."""
    random, token, owner = Random(15), net.contracts.token, Address(net.account.address)
    opened = 0
    deployer = Outbox(net.home / "minter.sqlite", net.w3, net.account)
    deployer.send(token.mint(owner, Wei(10**27)), "mint")
    deployer.close()
    for _ in range(1_000):
        price = random.randint(1, 4) * 10**18
        terms = replace(
            toyjob.TOY_TERMS, slot_price=Wei(price), merge_price=Wei(random.randint(1, 10**18)),
            slot_stake=Wei(40 * price), merge_stake=Wei(40 * 10**18),
        )  # fmt: skip
        quote = net.quote(toyjob.training_job(rounds=random.randint(1, 9), terms=terms))
        budget = Wei(max(1, quote.debit + random.choice([-1, 0, 1, random.randint(-(10**18), 10**18)])))
        before = token.balance_of(owner)
        if budget < quote.debit:
            with pytest.raises(BudgetExceeded):
                net.submit(quote, budget)
            assert token.balance_of(owner) == before
        else:
            net.submit(quote, budget)
            opened += 1
            assert before - token.balance_of(owner) == quote.debit <= budget
    assert 250 < opened < 900
