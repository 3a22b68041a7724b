"""A market of a real model: GPT-2 124M on Anvil, a liar among its workers, its result read by `transformers`."""

from __future__ import annotations

import gc
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lockstep.chain.devnet import Devnet
from lockstep.client import Network
from lockstep.demo.processes import Group
from lockstep.demo.run import Course
from lockstep.demo.world import READY_SECONDS, build
from lockstep.disputes.progress import game_reports
from lockstep.market.narrator import Line
from lockstep.presets import DEVNET
from lockstep.protocol.types import Address, Seconds
from lockstep.training.data import demo_corpus
from lockstep.training.job import Batch, training_job
from lockstep.training.optimizers import AdamW
from lockstep.training.strategies import diloco
from tests.size.memory import Sampler

pytestmark = [pytest.mark.slow, pytest.mark.size, pytest.mark.chain, pytest.mark.timeout(7200)]

transformers = pytest.importorskip("transformers")

CONTEXT = 1024
ROUNDS, STEPS, WORKERS = 2, 2, 2
MOST_BYTES = 20 * 10**9
WINDOW = Seconds(1200)
TERMS = replace(
    DEVNET,
    train_seconds=WINDOW, reveal_seconds=WINDOW, attest_seconds=WINDOW, merge_seconds=WINDOW,
    challenge_seconds=Seconds(3 * WINDOW), clock_seconds=WINDOW, step_seconds=Seconds(300), answer_seconds=WINDOW,
)  # fmt: skip
"""A step takes seconds and a replay a minute: nobody here is late. Seats that nobody takes are waited for a minute."""


def test_a_market_of_gpt2_124m(tmp_path: Path) -> None:
    begun = time.monotonic()
    spec = diloco.DiLoCo(
        inner=AdamW(learning_rate=1e-4, warmup=0), inner_steps=STEPS, payload="int8-block", outer_momentum=0.5
    )
    names = ["requester", "coordinator", "verifier", *(f"worker-{i}" for i in range(WORKERS))]
    with Sampler() as memory, Devnet(tmp_path / "chain", seed=0) as devnet, Group(tmp_path / "logs") as group:
        world = build(tmp_path, group, 0, devnet, names, unbond=Seconds(5 * WINDOW))
        coordinator = world.join("coordinator", "coordinator", ["coordinator", "up", "--port", "0"])
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
        job = training_job(
            model, spec, demo_corpus(CONTEXT + 1).train, batch=Batch(1, CONTEXT + 1), rounds=ROUNDS, slots=WORKERS,
            min_slots=1, aggregator=Address(world.account("coordinator").address), terms=TERMS,
        )  # fmt: skip
        parameters = job.genesis.shared[0].size
        requester = Network(devnet.w3, world.contracts, world.store, world.account("requester"), tmp_path / "requester")
        quote = requester.quote(job)
        assert quote.escrow == ROUNDS * (WORKERS * TERMS.slot_price + TERMS.merge_price)
        handle = requester.submit(quote, budget=quote.debit)
        del job, model
        gc.collect()
        submitted = time.monotonic()
        url = coordinator.wait_for("ready", READY_SECONDS)["url"]
        watched = ["--coordinator", url]
        processes = [coordinator, world.join("verifier", "verifier", ["verifier", "up", *watched])]
        for i in range(WORKERS):
            lie = ("one-ulp", 0) if i == 0 else None
            processes.append(world.join(f"worker-{i}", "worker", ["worker", "up", "--once", *watched], lie=lie))
        said: list[Line] = []
        course = Course(world, handle, processes, said.append)
        course.follow(submitted, limit=6600)
        trained = time.monotonic()
        for process in processes:
            process.stop()
        course.poll()
        path = handle.download(tmp_path / "model")
        games = game_reports(world.contracts, [e for e in course.events if e.contract != "TestToken"], handle.parts)
        lies_told = [e for p in processes for e in p.named("lie")]
        loaded = transformers.GPT2LMHeadModel.from_pretrained(path.parent)
        flat, settled = handle.checkpoint()[0].shared[0], handle.status()["settled"]
    found = {
        "parameters": parameters,
        "pss_gb": round(memory.peak / 1e9, 2),
        "at_peak": {k: round(v / 1e9, 2) for k, v in sorted(memory.at_peak.items(), key=lambda kv: -kv[1])[:8]},
        "samples": memory.samples,
        "submit_seconds": round(submitted - begun, 1),
        "market_seconds": round(trained - submitted, 1),
        "seconds": round(time.monotonic() - begun, 1),
        "transactions": [g["transactions"] for g in games],
    }
    print(json.dumps(found))
    (Path("out/reports") / "size-market.json").parent.mkdir(parents=True, exist_ok=True)
    (Path("out/reports") / "size-market.json").write_text(json.dumps(found, indent=2) + "\n")
    assert parameters > 124e6
    assert settled == ROUNDS
    assert lies_told, "the liar lied"
    assert {g["verdict"] for g in games} == {lies_told[0]["expectation"]["verdict"]}, "and was convicted"
    weights = {name: tensor.detach().numpy().reshape(-1) for name, tensor in loaded.named_parameters()}
    for parameter in handle.parts.spec.parameters:
        own = flat[parameter["offset"] : parameter["offset"] + int(np.prod(parameter["shape"]))]
        np.testing.assert_array_equal(weights[parameter["name"]], own, err_msg=parameter["name"])
    assert memory.samples > 30
    assert memory.peak <= MOST_BYTES
