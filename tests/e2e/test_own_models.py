"""A model with batch norm by processes on Anvil: quoted, trained by three workers, audited, downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import lockstep
from lockstep.execution.jobs import slot_run
from lockstep.execution.merging import base_checkpoint
from lockstep.protocol.jobs import JobStatus, Phase
from lockstep.protocol.types import Seed
from lockstep.training.export import load_model
from lockstep.training.strategies import diloco
from tests.e2e.test_carry import verifying, wait_for_audit
from tests.e2e.test_worker import WATCHED, Market, homes_of, ledger_of, maps, up
from tests.support import own_models
from tests.support.toyjob import TOY_TERMS
from tests.support.waiting import PATIENCE, wait

pytestmark = [pytest.mark.slow, pytest.mark.chain]

ROUNDS, ENTRY = 2, 1


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    market = Market.build(tmp_path)
    yield market
    market.close()


def test_running_statistics_are_trained_merged_audited_and_downloaded(market: Market, tmp_path: Path) -> None:
    homes = homes_of(market, "w0", "w1", "w2", "verifier", "requester")
    workers = [up(market, home, "--once") for home in homes[:3]]
    verifier = verifying(market, homes[3])
    net = lockstep.connect(
        rpc=market.devnet.url, storage=market.store.url, deployment=tmp_path / "deployment.json",
        account=market.devnet.account("requester"), home=homes[4],
    )  # fmt: skip
    terms = replace(TOY_TERMS, **{**WATCHED, "max_lead": ROUNDS})
    spec = diloco.DiLoCo(inner_steps=own_models.STEPS, payload="int8-block")
    job = own_models.job(own_models.normed(), spec, rounds=ROUNDS, terms=terms, ema=0.5)
    quote = net.quote(job)
    handle = net.submit(quote, budget=quote.debit)
    wait(lambda: market.contracts.market.phase(handle.id, ROUNDS - 1) == Phase.LEAD, "merge of the last round")
    ledger, parts = ledger_of(market).jobs[handle.id], handle.parts
    claims = [c for r in ledger.rounds.values() for c in r.claims.values()]
    assert len(claims) == 3 * ROUNDS
    for record in claims:
        assert wait_for_audit(verifier, record)["verdict"] == "match"
    assert "torch" not in maps(verifier)
    market.devnet.advance(terms.challenge_seconds)
    assert [w.popen.wait(PATIENCE) for w in workers] == [0, 0, 0]
    assert market.contracts.market.job(handle.id).status == JobStatus.DONE

    base = base_checkpoint(parts, market.store, ledger.records(ROUNDS - 1, 3))
    sent = []
    for slot in range(3):
        *_, (_, final, _) = slot_run(parts, base, Seed(ledger.rounds[ROUNDS - 1].seed), ROUNDS - 1, slot).states()
        sent.append(final[ENTRY])
    checkpoint, _ = handle.checkpoint()
    mean = (sent[0] + sent[1] + sent[2]) / 3
    assert checkpoint.shared[ENTRY].tobytes() == mean.tobytes(), "the mean of what the slots' steps wrote"
    with own_models.registered():
        model = load_model(handle.download(tmp_path / "model").parent)
    assert model.norm.num_batches_tracked == ROUNDS * own_models.STEPS
    assert model.norm.running_mean.any()

    assert checkpoint.outer[-1].tobytes() != checkpoint.shared[0].tobytes()
    with own_models.registered():
        averaged = load_model(handle.download(tmp_path / "average", ema=True).parent)
        loaded = handle.load(ema=True)
    names = [p["name"] for p in parts.spec.parameters if p.get("shard", 0) == 0]
    first = next(p for p in parts.spec.parameters if p["name"] == names[0])
    begin, count = first["offset"], averaged.get_parameter(names[0]).numel()
    assert averaged.get_parameter(names[0]).detach().numpy().tobytes() == (
        checkpoint.outer[-1][begin : begin + count].tobytes()
    )
    assert all((a == b).all() for a, b in zip(averaged.parameters(), loaded.parameters(), strict=True))
    assert averaged.norm.running_mean.tolist() == model.norm.running_mean.tolist(), "buffers have no average"
    assert handle.audit(tmp_path / "average", claims=0).ok
