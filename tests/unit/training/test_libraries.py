"""Strategies against the published code of others: flwr, torchft, hivemind, pytorch-optimizer, byzfl and torch.

All but torch ran once, each in an environment of its own, and left what they computed beside the script that ran them
(tests/vectors/strategies/). A job's own Programs are given the same numbers here. What differs by construction is said
above each test, and measured in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lockstep.execution.jobs import Tensors
from lockstep.storage.formats.registry import named
from lockstep.storage.payload import Checkpoint
from lockstep.training.baseline import Sample, flat_parameters, load_parameters, optimise
from lockstep.training.codecs.dct import DCT
from lockstep.training.codecs.topk import TopK
from lockstep.training.job import Batch
from lockstep.training.models import GPT, next_token_loss
from lockstep.training.optimizers import AdamW, SignSGD
from lockstep.training.rehearsal import Rehearsal, Rehearsed
from lockstep.training.strategies import (
    allreduce,
    demo,
    diloco,
    distro,
    fedadam,
    fedavg,
    fedyogi,
    intellect1,
    opendiloco,
    photon,
)
from lockstep.training.strategies.base import Strategy
from tests.battery.test_strategies import CONFIG, DATA, ROUNDS, ROW, SLOTS, traced_once
from tests.support import own_models
from tests.unit.training.test_references import ROBUST, Wide, apart, wide

VECTORS = Path(__file__).parents[2] / "vectors" / "strategies"
FLWR = json.loads((VECTORS / "flwr.json").read_text())
BYZFL = json.loads((VECTORS / "byzfl.json").read_text())
Single = NDArray[np.float32]


def fixture_of(library: str) -> dict[str, np.ndarray]:
    """What a library's script has written."""
    with np.load(VECTORS / f"{library}.npz") as found:
        return dict(found)


TORCHFT, HIVEMIND, DEMO = fixture_of("torchft"), fixture_of("hivemind"), fixture_of("demo")


class Matrix:
    """The Programs of a job whose model is one matrix."""

    def __init__(self, strategy: Strategy, start: np.ndarray, *, slots: int, rounds: int) -> None:
        config = own_models.MatrixConfig(*np.atleast_2d(start).shape)
        self.used = start.size
        first = np.zeros(-(-start.size // 256) * 256, np.float32)
        first[: start.size] = start.reshape(-1)
        changes = {"slots": slots, "min_slots": 1, "rounds": rounds, "first": first}
        self.rehearsal = Rehearsal(own_models.job(own_models.Matrix(config), strategy, **changes))
        self.size = first.size

    def flat(self, x: np.ndarray) -> Single:
        """A matrix as the flat tensor of the job, padding behind it."""
        return np.pad(np.asarray(x, np.float32).reshape(-1), (0, self.size - self.used))

    def sent(self, live: np.ndarray, state: Rehearsed, slot: int) -> tuple[Single, Tensors]:
        """(payload, carry) of a slot that has come to the parameters `live`, or has found that gradient."""
        start = self.rehearsal.start(state, slot)
        (payload,), carry = self.rehearsal.output([self.flat(live), *start[1:]], state.round, slot)
        return payload, carry

    def merged(self, payloads: Sequence[Single], base: Checkpoint, round_: int) -> Checkpoint:
        """The checkpoint of a round's payloads."""
        return self.rehearsal.merged(base, [(p,) for p in payloads], round_)


# -- flwr


FEDERATED: dict[str, Strategy] = {
    "fedavg": fedavg.FedAvg(),
    "fedadam": fedadam.FedAdam(),
    "fedyogi": fedyogi.FedYogi(),
    "photon": photon.Photon(),
}
FIELDS = {"eta": "learning_rate", "beta_1": "beta1", "beta_2": "beta2", "tau": "tau", "server_learning_rate":
          "learning_rate", "server_momentum": "momentum"}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FEDERATED)
def test_a_merge_is_that_of_flwr(name: str) -> None:
    assert FLWR["flwr"] == "1.42.0"
    strategy, given, start = FEDERATED[name], FLWR["strategies"][name], np.array(FLWR["start"])
    outer = strategy.parts().outer  # type: ignore[attr-defined]
    assert all(getattr(outer, FIELDS[key]) == value for key, value in given["options"].items()), "of the same options"
    job = Matrix(strategy, start, slots=len(FLWR["moves"][0]), rounds=len(FLWR["moves"]))
    state = job.rehearsal.first()
    for r, (moves, due) in enumerate(zip(FLWR["moves"], given["bases"], strict=True)):
        base = wide(state.checkpoint.shared[0])[: job.used]
        payloads = [job.sent(base + np.array(move), state, slot)[0] for slot, move in enumerate(moves)]
        state = Rehearsed(r + 1, job.merged(payloads, state.checkpoint, r), state.carries)
        assert apart(state.checkpoint.shared[0][: job.used], np.array(due)) < 1e-6


# -- torchft


@pytest.mark.sampled(1)
@pytest.mark.parametrize("strategy", [diloco.DiLoCo(inner_steps=4), opendiloco.OpenDiLoCo(inner_steps=4)])
def test_an_outer_step_is_that_of_torchft(strategy: Any) -> None:
    assert str(TORCHFT["torchft"]) == "0.2.0"
    start, lives = TORCHFT["start"], TORCHFT["lives"]
    bases = [start, *TORCHFT["bases"]]
    momenta = [np.zeros_like(start), *TORCHFT["momenta"]]
    exact = isinstance(strategy, diloco.DiLoCo)
    job = Matrix(strategy, start, slots=lives.shape[1], rounds=len(lives))
    state = job.rehearsal.first()
    for r, found in enumerate(lives):
        # From the state that torchft has reached.
        base = Checkpoint((job.flat(bases[r]),), (job.flat(momenta[r]),))
        here = Rehearsed(r, base, state.carries)
        payloads = [job.sent(live, here, slot)[0] for slot, live in enumerate(found)]
        differences = [job.flat(bases[r] - live) for live in found]
        due = differences if exact else [np.float16(d).astype(np.float32) for d in differences]
        assert all(np.array_equal(p, d) for p, d in zip(payloads, due, strict=True)), "bit for bit"
        merged = job.merged(differences, base, r)
        assert apart(merged.shared[0], wide(job.flat(bases[r + 1]))) < 1e-6
        assert apart(merged.outer[0], wide(job.flat(momenta[r + 1]))) < 1e-6
        # From its own.
        state = Rehearsed(r + 1, job.merged(differences, state.checkpoint, r), state.carries)
        assert apart(state.checkpoint.shared[0], wide(job.flat(bases[r + 1]))) < 1e-6
        assert apart(state.checkpoint.outer[0], wide(job.flat(momenta[r + 1]))) < 1e-6


# -- hivemind


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["normal", "heavy", "shifted", "layers", "sparse"])
def test_intellect1_sends_what_hivemind_s_uniform_quantisation_does(name: str) -> None:
    """A table is one of a whole tensor there; here of 2^20 elements, which all of the draws are below.

    hivemind multiplies by the scale's reciprocal where this divides, and adds a bin up in another order: means agree to
    rounding, codes wherever an element lies by more than 1e-5 of a bin from a boundary. One of 15,000 does not.
    """
    assert str(HIVEMIND["hivemind"]) == "1.1.12"
    x, codes, averages, decoded = (HIVEMIND[f"{name}_{key}"] for key in ("x", "codes", "averages", "decoded"))
    strategy = intellect1.Intellect1(inner_steps=1)
    job = Matrix(strategy, np.zeros_like(x), slots=1, rounds=1)
    payload, _ = job.sent(-x, job.rehearsal.first(), 0)
    ratio = (wide(x) - wide(x).mean()) / (6 * wide(x).std(ddof=1) / 256)
    doubtful = (np.abs(ratio - np.floor(ratio) - 0.5) < 1e-5) & (np.abs(ratio) < 128)
    assert doubtful.sum() == (name == "layers")
    # Either bin beside such a boundary may have it: both are left out, in "layers" 23 % of the elements.
    sides = np.array([np.floor(ratio[doubtful]), np.ceil(ratio[doubtful])]) + 128
    sure = ~np.isin(codes, np.clip(sides, 0, 255).astype(np.uint8))
    assert sure.mean() > 0.75
    for sent in (payload, named(strategy.wire).unpack(named(strategy.wire).pack(payload), payload.size)):
        used = np.unique(codes[sure])
        firsts = np.array([sent[codes == code][0] for code in used])
        assert np.array_equal(sent[sure], firsts[np.searchsorted(used, codes[sure])]), "equal codes"
        assert np.unique(firsts).size == used.size, "a bin each"
        assert apart(firsts, wide(averages[used])) < 1e-6
        assert apart(sent[sure], wide(decoded)[sure]) < 1e-6
        largest = np.array([np.abs(x[codes == code]).max() for code in used])
        assert (np.abs(wide(firsts) - averages[used]) <= 1e-6 * largest).all(), "each average by itself"


# -- pytorch-optimizer


RATE, SCALE, DECAY = float(DEMO["rate"]), float(DEMO["scale"]), 0.999
STEADY = SignSGD(learning_rate=RATE, warmup=0, final_fraction=1.0)
SHAPE = (128, 64)
"""Of 64 columns: a chunk of the matrix has consecutive elements, as here every chunk has. Of other matrices other
elements share a chunk there than here."""


def demo_job(codec: DCT, kind: type[demo.DeMo] = demo.DeMo) -> Matrix:
    return Matrix(kind(codec=codec, outer=STEADY), np.zeros(SHAPE), slots=2, rounds=2)


def gradient_of(drawn: str, r: int, slot: int) -> Single:
    found: Single = np.float32(SCALE) * DEMO[f"gradients_{drawn}"][r, slot].astype(np.float32)
    return found


def sent_by(case: str, r: int, slot: int) -> Wide:
    """The coefficients that a worker of pytorch-optimizer sent, where they stood; in units of the rate."""
    rows = np.zeros((2, 4096))
    np.put_along_axis(rows, DEMO[f"{case}_indices"][r, slot].astype(np.int64), wide(DEMO[f"{case}_values"][r, slot]), 1)
    return rows.reshape(-1) / RATE


def test_demo_is_that_of_pytorch_optimizer() -> None:
    """Values of 32 bits, as there. There the residual decays when the next round begins, here when it is carried; the
    gradient is multiplied by the rate there, the whole residual by nothing here."""
    assert str(DEMO["pytorch_optimizer"]) == "4.1.0"
    job = demo_job(DCT(then=TopK(kept=8, width=32)))
    state = job.rehearsal.first()
    for r in range(2):
        outputs = [job.sent(gradient_of("apart", r, slot), state, slot) for slot in range(2)]
        for slot, (payload, carry) in enumerate(outputs):
            due = sent_by("demo", r, slot)
            assert np.array_equal(payload.view(np.uint32) != 0, due != 0), "equal supports"
            assert apart(payload, due) < 1e-6
            delta = wide(DEMO["demo_delta"][r, slot]).reshape(-1) / RATE
            assert apart(carry[-1], DECAY * delta) < 1e-6
        merged = job.merged([payload for payload, _ in outputs], state.checkpoint, r)
        assert not (sent_by("demo", r, 0) * sent_by("demo", r, 1)).any(), "nothing is sent twice"
        # So that their mean over those that sent a coefficient is twice the mean over all.
        decoded = wide(DEMO["demo_decoded"][r]).reshape(-1)
        clear = np.abs(decoded) > 1e-6 * np.abs(decoded).max()
        assert clear.mean() > 0.999
        steps = np.round(merged.shared[0] / RATE)
        assert np.array_equal(steps[clear], DEMO["demo_parameter"][r].reshape(-1)[clear]), "bit for bit"
        state = Rehearsed(r + 1, merged, tuple(carry for _, carry in outputs))


@pytest.mark.slow
def test_demo_s_mean_is_over_all_slots_and_pytorch_optimizer_s_over_those_that_sent_a_coefficient() -> None:
    job = demo_job(DCT(then=TopK(kept=8, width=32)))
    state = job.rehearsal.first()
    payloads = [job.sent(gradient_of("shared", 0, slot), state, slot)[0] for slot in range(2)]
    there = np.array([sent_by("shared", 0, slot) for slot in range(2)])
    assert np.array_equal(np.array(payloads).view(np.uint32) != 0, there != 0), "equal supports"
    senders = (there != 0).sum(0)
    assert (senders == 1).any()
    assert (senders == 2).any()
    over_all = job.rehearsal.genesis.shared[0] - job.merged(payloads, state.checkpoint, 0).shared[0]
    theirs = np.sign(DEMO["shared_decoded"][0].reshape(-1))
    assert 0.10 < (np.sign(over_all) != theirs).mean() < 0.12, "7 coefficients of 25 are sent by both"
    # Weighed as they weigh it, ours is theirs.
    weighed = [np.where(senders == 1, 2, 1).astype(np.float32) * p for p in payloads]
    same = job.rehearsal.genesis.shared[0] - job.merged(weighed, state.checkpoint, 0).shared[0]
    assert np.array_equal(np.sign(same), theirs)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "kind"), [("demo", demo.DeMo), ("distro", distro.DisTrO)])
def test_demo_and_distro_send_what_pytorch_optimizer_does_in_fewer_bits(case: str, kind: type[demo.DeMo]) -> None:
    strategy = kind()
    job = demo_job(strategy.codec, kind)  # type: ignore[arg-type]
    state = job.rehearsal.first()
    for slot in range(2):
        payload, _ = job.sent(gradient_of("apart", 0, slot), state, slot)
        due = sent_by(case, 0, slot)
        assert np.array_equal(payload.view(np.uint32) != 0, due != 0), "equal supports"
        mask = due != 0
        if kind is demo.DeMo:
            assert (np.abs(payload - due)[mask] <= 2.0**-11 * 1.001 * np.abs(due[mask])).all(), "a binary16 each"
        else:
            assert apart(payload, np.sign(due) * np.abs(due[mask]).mean()) < 1e-6


# -- torch


def test_allreduce_is_torch_s_adamw_on_the_rows_of_all_slots() -> None:
    strategy = allreduce.AllReduce()
    rehearsal = Rehearsal(traced_once(strategy).job)
    state, flat = rehearsal.first(), rehearsal.genesis.shared[0]
    model = load_parameters(GPT(CONFIG), flat).double()
    assert isinstance(strategy.outer, AdamW)

    def value(t: int) -> torch.Tensor:
        seed = sha256(bytes(8) + (t - 1).to_bytes(4, "little")).digest()  # as a rehearsal of seed 0 makes it
        samples = [Sample(DATA, Batch(2, ROW), seed, t - 1, slot) for slot in range(SLOTS)]
        return torch.stack([sample.value(model, next_token_loss, 1) for sample in samples]).mean()

    for _ in range(ROUNDS):
        state = rehearsal.next(state)
    optimise(model, value, strategy.outer, steps=ROUNDS)
    assert apart(state.checkpoint.shared[0], wide(flat_parameters(model))) < 1e-6
    assert apart(wide(state.checkpoint.shared[0]) - flat, wide(flat_parameters(model)) - flat) < 1e-5, "the move alone"


# -- byzfl


@pytest.mark.parametrize("name", ROBUST)
def test_a_robust_aggregate_is_that_of_byzfl(name: str) -> None:
    assert BYZFL["byzfl"] == "0.0.11"
    payloads = [[torch.tensor(point, dtype=torch.float32)] for point in BYZFL["points"]]
    (found,) = ROBUST[name].combine(payloads, torch.ones(len(payloads)))
    assert apart(found, np.array(BYZFL["found"][name])) < 1e-6
