"""Rows of floats, images and numbers by processes on Anvil: trained by three workers, audited, as eager PyTorch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.execution.jobs import TrainingJob
from lockstep.execution.merging import base_checkpoint
from lockstep.protocol.jobs import JobStatus, Phase
from lockstep.protocol.types import Seed
from lockstep.storage.dataset import load_manifest
from lockstep.training.baseline import Sample, load_parameters
from lockstep.training.job import Batch, training_job
from lockstep.training.optimizers.sgd import SGD
from lockstep.training.rows import dataset_of
from lockstep.training.strategies import diloco
from tests.e2e.test_carry import verifying, wait_for_audit
from tests.e2e.test_worker import WATCHED, Market, homes_of, ledger_of, maps, up
from tests.support.toyjob import TOY_TERMS
from tests.support.waiting import PATIENCE, wait

pytestmark = [pytest.mark.slow, pytest.mark.chain]

ROUNDS, STEPS = 2, 3


class Sensor(nn.Module):
    """A number of a small image and of some readings."""

    def __init__(self) -> None:
        super().__init__()
        self.eye, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4 + 3, 1)

    def forward(self, image: Tensor, readings: Tensor) -> Tensor:
        seen = torch.relu(self.eye(image.unsqueeze(1).float() / 255)).mean((2, 3))
        return self.head(torch.cat([seen, readings], 1)).squeeze(1)


def loss(model: Any, image: Tensor, readings: Tensor, due: Tensor, good: Tensor) -> Tensor:
    return ((model(image, readings) - due) ** 2 * good).mean()


def data() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    image, readings = rng.integers(0, 256, (60, 6, 6)).astype(np.uint8), rng.standard_normal((60, 3))
    due = readings @ [1.0, -2.0, 0.5] - image.mean((1, 2)) / 100
    return {"image": image, "readings": readings, "due": due, "good": rng.random(60) < 0.9}


def job(model: nn.Module) -> TrainingJob:
    terms = replace(TOY_TERMS, **{**WATCHED, "max_lead": ROUNDS})
    spec = diloco.DiLoCo(inner=SGD(learning_rate=0.05), inner_steps=STEPS, payload="f32")
    size = {"rounds": ROUNDS, "slots": 3, "min_slots": 3}
    return training_job(model, spec, dataset_of(data()), batch=Batch(rows=5), loss=loss, terms=terms, **size)


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    market = Market.build(tmp_path)
    yield market
    market.close()


def test_fields_are_trained_on_and_audited_and_give_the_loss_of_eager_pytorch(market: Market, tmp_path: Path) -> None:
    homes = homes_of(market, "w0", "w1", "w2", "verifier", "requester")
    workers = [up(market, home, "--once") for home in homes[:3]]
    verifier = verifying(market, homes[3])
    net = lockstep.connect(
        rpc=market.devnet.url, storage=market.store.url, deployment=tmp_path / "deployment.json",
        account=market.devnet.account("requester"), home=homes[4],
    )  # fmt: skip
    torch.manual_seed(0)
    own = job(Sensor())
    quote = net.quote(own)
    handle = net.submit(quote, budget=quote.debit)
    wait(lambda: market.contracts.market.phase(handle.id, ROUNDS - 1) == Phase.LEAD, "merge of the last round")
    ledger, parts = ledger_of(market).jobs[handle.id], handle.parts
    for record in [c for r in ledger.rounds.values() for c in r.claims.values()]:
        assert wait_for_audit(verifier, record)["verdict"] == "match"
    assert "torch" not in maps(verifier), "rows of floats need none"
    market.devnet.advance(own.terms.challenge_seconds)
    assert [w.popen.wait(PATIENCE) for w in workers] == [0, 0, 0]
    assert market.contracts.market.job(handle.id).status == JobStatus.DONE

    manifest = load_manifest(market.store, parts.spec.dataset)
    assert str(manifest.form) == "image uint8[6, 6], readings float32[3], due float32[], good bool[]"
    batch, found = Batch(rows=5).of(own.dataset), list(handle.losses())
    for k in range(ROUNDS):
        checkpoint = base_checkpoint(parts, market.store, ledger.records(k, 3))
        eager = load_parameters(Sensor(), np.asarray(checkpoint.shared[0]))
        seed = Seed(ledger.rounds[max(0, k - 1)].seed)
        due = [Sample(own.dataset.rows, batch, seed, k, slot).value(eager, loss, 1).item() for slot in range(3)]
        assert found[k].loss == pytest.approx(np.mean(due), rel=1e-5), "eager PyTorch's on the same rows"
    assert found[-1].loss < 0.7 * found[0].loss, "and it learns"
    folder = handle.download(tmp_path / "model").parent
    assert json.loads((folder / "provenance.json").read_text())["rows"] == str(manifest.form)
