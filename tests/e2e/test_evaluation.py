"""A checkpoint evaluated by workers that are processes: the loss on chain is the one that anybody computes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lockstep
from lockstep.execution import jobs
from lockstep.numerics.trace import tensor_root
from lockstep.protocol.errors import TryLater
from lockstep.protocol.jobs import JobStatus, Phase
from lockstep.protocol.types import JobId
from lockstep.training.baseline import Sample, flat_parameters
from lockstep.training.export import load_model, save_model
from lockstep.training.models import GPT, GPTConfig, describe, next_token_loss
from lockstep.training.parameters import initial_parameters, layout_of
from tests.support import evaluations
from tests.support.toyjob import TOY_TERMS
from tests.support.waiting import PATIENCE, wait

from .test_carry import verifying, wait_for_audit, where
from .test_worker import WATCHED, Market, homes_of, ledger_of, up

pytestmark = [pytest.mark.slow, pytest.mark.chain]

ROUNDS, SLOTS = 2, 2
TERMS = replace(TOY_TERMS, **{**WATCHED, "max_lead": ROUNDS})


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    market = Market.build(tmp_path)
    yield market
    market.close()


def test_a_loss_is_claimed_merged_audited_paid_and_read(market: Market, tmp_path: Path) -> None:
    *homes, watcher, asker = homes_of(market, "w0", "w1", "verifier", "requester")
    net = lockstep.connect(
        rpc=market.devnet.url, storage=market.store.url, deployment=market.folder / "deployment.json",
        account=market.devnet.account("requester"), home=asker,
    )  # fmt: skip
    quote = net.quote(evaluations.job(rounds=ROUNDS, slots=SLOTS, min_slots=SLOTS, terms=TERMS))
    assert quote.params.genesis.shared == tensor_root(evaluations.parameters()), "its base is the checkpoint"
    # Up before its windows begin: a busy machine takes its time to start them.
    verifier = verifying(market, watcher)
    workers = [up(market, home, "--once") for home in homes]
    handle = net.submit(quote, budget=quote.debit)
    with pytest.raises(TryLater):
        handle.metrics()

    wait(lambda: net.contracts.market.phase(handle.id, ROUNDS - 1) == Phase.LEAD, "merge of the last round")
    rounds = ledger_of(market).jobs[handle.id].rounds
    for claim in (c for r in rounds.values() for c in r.claims.values()):
        assert wait_for_audit(verifier, claim)["verdict"] == "match"
    assert verifier.stop() == 0
    market.devnet.advance(TERMS.challenge_seconds)
    assert [w.popen.wait(PATIENCE) for w in workers] == [0, 0]
    books = net.contracts.market.job(handle.id)
    assert (books.status, books.paid) == (JobStatus.DONE, ROUNDS * quote.params.round_pay)

    # What the chain names is what anybody computes again, to the last bit, and what eager PyTorch says of these rows.
    payloads, eager = [], []
    for r in range(ROUNDS):
        for slot in range(SLOTS):
            *_, (_, final, _) = jobs.slot_run(handle.parts, quote.job.genesis, rounds[r].seed, r, slot).states()
            payloads.append(final[0])
            sample = Sample(evaluations.ROWS, evaluations.BATCH, rounds[r].seed, r, slot)
            with torch.no_grad():
                model = evaluations.model()
                eager += [float(sample.value(model, next_token_loss, t + 1)) for t in range(evaluations.BATCHES)]
    checkpoint, source = handle.checkpoint()
    assert source["round"] == ROUNDS - 1
    assert checkpoint.outer[0].tobytes() == evaluations.added(payloads).tobytes()
    found = handle.metrics()
    assert found.loss == pytest.approx(np.mean(eager), rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(found.loss))
    assert (found.batches, found.rows) == (len(eager), len(eager) * evaluations.BATCH.rows)

    # The model that was evaluated comes back as it went in; the command says what the SDK says.
    handle.download(tmp_path / "model")
    assert flat_parameters(load_model(tmp_path / "model")).tobytes() == evaluations.parameters().tobytes()
    key = ["--home", str(asker), "--password-file", str(asker / "password")]
    for more in (["--json"], []):
        told = market.start("metrics", ["train", "metrics", handle.id.hex(), *where(market), *key, *more])
        assert told.popen.wait(PATIENCE) == 0, told.log.read_text()
        if more:
            assert json.loads(told.out.read_text())["data"] == found.__dict__
        else:
            assert told.out.read_text().startswith(f"loss {found.loss:.8g}, perplexity")


TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 8
DESCRIBED = """
texts = "texts"
batch = { rows = 2 }
slots = 2
evaluation = { model = "pulled", batches = 3, documents = "all" }
"""


def test_an_evaluation_is_described_quoted_and_opened_by_command(market: Market, tmp_path: Path) -> None:
    trains = market.submit().id
    (asker,) = homes_of(market, "requester")
    options = [*where(market), "--home", str(asker), "--password-file", str(asker / "password"), "--json"]
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/tale.txt").write_text(TEXT)
    (tmp_path / "eval.toml").write_text(DESCRIBED)
    model = GPT(GPTConfig(context=16, layers=1, heads=2, width=32))
    flat = initial_parameters(model, 0)
    save_model(tmp_path / "pulled", flat, layout_of(model).describe(), describe(model))

    def told(code: int, *command: str) -> Any:
        process = market.start(command[0], ["train", *command, *options])
        assert process.popen.wait(PATIENCE) == code, process.log.read_text()
        envelope = json.loads(process.out.read_text())
        return envelope["data" if code == 0 else "error"]

    quoted = told(0, "quote", str(tmp_path / "eval.toml"))
    assert (quoted["rounds"], quoted["slots"], quoted["inner_steps"]) == (1, 2, 3)
    job = told(0, "run", str(tmp_path / "eval.toml"), "--budget", f"{quoted['debit']}wei")["job"]
    assert market.contracts.market.params(JobId(bytes.fromhex(job))).genesis.shared == tensor_root(flat)
    for early in (("metrics", job), ("pull", job, "--out", str(tmp_path / "early"))):
        assert told(75, *early)["code"] == "try_later"
    assert not (tmp_path / "early").exists()

    assert told(75, "metrics", trains.hex())["code"] == "try_later", "a job that trains has metrics too, once it merges"
