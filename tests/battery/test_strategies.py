"""The duties of every strategy and every optimizer of the registry; a new one is a row of STRATEGY_CASES or
OPTIMIZER_CASES."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from lockstep.execution.jobs import TrainingJob
from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.numerics.validate import check_schedule
from lockstep.protocol.programs import defects
from lockstep.protocol.programs.defects import Held, ProgramParts
from lockstep.storage.dataset import Dataset
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.payload import load_payload, store_payload, wire_length
from lockstep.training.job import Batch, training_job
from lockstep.training.models import GPT, GPTConfig
from lockstep.training.optimizers import AdamW
from lockstep.training.strategies import diloco
from lockstep.training.strategies.base import Optimizer, Strategy
from lockstep.training.strategies.registry import OPTIMIZERS, STRATEGIES
from tests.support import invalid

CONFIG = GPTConfig(vocabulary=32, context=16, layers=1, heads=2, width=32)
ROW = CONFIG.context + 1
DATA = np.random.default_rng(3).integers(0, CONFIG.vocabulary, (40, ROW), dtype=np.int32)
SEED = bytes(range(32))
ROUNDS, SLOTS, H = 3, 3, 4

OPTIMIZER_CASES: dict[str, list[Optimizer]] = {
    "adamw": [AdamW(learning_rate=3e-3, warmup=2), AdamW(warmup=0, restart_warmup=2, clip=0.01)],
}
STRATEGY_CASES: dict[str, list[Strategy]] = {
    "diloco": [
        diloco.Spec(inner_steps=H),
        diloco.Spec(inner_steps=H, payload="int8-block", outer_momentum=0.0),
        diloco.Spec(inner_steps=H, payload="int8-block", carry=True),
    ],
}
CASES = [
    pytest.param(strategy, id=f"{name}-{i}") for name, made in STRATEGY_CASES.items() for i, strategy in enumerate(made)
] + [
    pytest.param(diloco.Spec(inner=inner, inner_steps=H, carry=carry), id=f"{name}-{i}{'-carried' * carry}")
    for name, made in OPTIMIZER_CASES.items()
    for i, inner in enumerate(made)
    for carry in (False, True)
]


class Traced(NamedTuple):
    """A job of a case, and the first state of one of its slots."""

    job: TrainingJob
    start: list[Any]

    def context(self, t: int) -> StepContext:
        """The step t of the first round, whose slots start from a zero carry."""
        return StepContext(SEED, 0, 1, t)

    def trained(self, state: list[Any], first: int, last: int, **how: Any) -> list[Any]:
        """The state after the steps `first` .. `last`."""
        step = compile(self.job.programs.step, **how)
        for t in range(first, last + 1):
            state = list(step.run(state, self.context(t), DATA))
        return state

    def payload(self) -> list[Any]:
        """The slot's output after its steps: its payload, then its carry."""
        state = self.trained(self.start, 1, H)
        return list(compile(self.job.programs.encode).run(state, self.context(H + 1), DATA))


@pytest.fixture(params=CASES)
def strategy(request: pytest.FixtureRequest) -> Strategy:
    found: Strategy = request.param
    return found


@pytest.fixture
def traced(strategy: Strategy) -> Traced:
    data = Dataset(DATA, CONFIG.vocabulary)
    batch = Batch(rows=2, row_length=ROW)
    job = training_job(GPT(CONFIG), strategy, data, batch=batch, rounds=ROUNDS, slots=SLOTS, min_slots=1, seed=1)
    assert job.genesis is not None
    quarter = 1 << job.shared_depth
    shared = [*job.genesis.shared, *[None] * (quarter - len(job.genesis.shared))]
    # Moments, their age and the clock are zero before the first step.
    layout = job.programs.step.output_layout[2 * quarter :]
    rest = [None if h is None else np.zeros(h.shape, np.int32 if h.shape == () else np.float32) for h in layout]
    return Traced(job, [*shared, *shared, *rest])


def bits(state: list[Any]) -> list[bytes | None]:
    return [None if x is None else np.asarray(x).tobytes() for x in state]


def test_every_row_of_the_registry_is_tried() -> None:
    assert set(STRATEGY_CASES) == set(STRATEGIES)
    assert set(OPTIMIZER_CASES) == set(OPTIMIZERS)
    for registry, cases in ((STRATEGIES, STRATEGY_CASES), (OPTIMIZERS, OPTIMIZER_CASES)):
        for name, made in cases.items():
            assert made, name
            assert all(type(value) is registry[name] for value in made), name


def test_its_description_names_it_and_holds_every_field(strategy: Strategy) -> None:
    said = strategy.to_dict()
    assert STRATEGIES[said["name"]] is type(strategy)
    assert OPTIMIZERS[said["inner"]["name"]] is type(strategy.inner)  # type: ignore[attr-defined]
    again = {**{k: v for k, v in said.items() if k not in ("name", "inner")}}
    inner = OPTIMIZERS[said["inner"]["name"]](**{k: v for k, v in said["inner"].items() if k != "name"})
    assert type(strategy)(**again, inner=inner) == strategy, "two descriptions that differ are two jobs"  # type: ignore[call-arg]


def test_its_programs_can_be_defended(traced: Traced) -> None:
    programs, job = traced.job.programs, traced.job
    parts = tuple(ProgramParts.of(p) for p in (programs.step, programs.encode, programs.merge))
    names = ("step_program", "encode_program", "merge_program")
    roots = {name: part.root for name, part in zip(names, parts, strict=True)}
    shape = {"shared_depth": job.shared_depth, "payload_depth": job.payload_depth, "carry": int(job.carry)}
    params = replace(invalid.sound().job, **roots, **shape, slots=SLOTS, row_length=ROW)
    check_schedule(programs.step, programs.encode, programs.merge, params)
    assert defects.find(Held(params, parts)) is None


def test_a_replay_gives_the_same_bits_on_every_path(traced: Traced) -> None:
    state = traced.trained(traced.start, 1, H)
    assert bits(state)[0] != bits(traced.start)[0], "the steps move the weights"
    assert bits(traced.trained(traced.start, 1, H, path="scalar")) == bits(state)
    assert bits(traced.trained(traced.start, 1, H, threads=2)) == bits(state)


def test_it_resumes_in_the_middle_of_a_round(traced: Traced, tmp_path: Path) -> None:
    half = traced.trained(traced.start, 1, H // 2)
    kept = {str(i): x for i, x in enumerate(half) if x is not None}
    np.savez(tmp_path / "state.npz", **kept)
    with np.load(tmp_path / "state.npz") as found:
        read = [found[str(i)] if str(i) in kept else None for i in range(len(half))]
    assert bits(traced.trained(read, H // 2 + 1, H)) == bits(traced.trained(traced.start, 1, H))


def test_its_payload_comes_back_from_a_store_in_its_wire_format(traced: Traced, tmp_path: Path) -> None:
    out, width = traced.payload(), 1 << traced.job.payload_depth
    layout = traced.job.programs.encode.output_layout
    carry = layout[width:] if traced.job.carry else []
    store = DirectoryStore(tmp_path)
    tensors = [x for x in out[:width] if x is not None]
    carried = [x for x in out[width:] if x is not None] if traced.job.carry else []
    cid = store_payload(store, tensors, traced.job.wire_format, carried)
    assert store.get_node(cid)["format"] == traced.job.wire_format, "encode leaves what its format carries"
    back = load_payload(store, cid, layout[:width], carry)
    assert bits(list(back)) == bits([*tensors, *carried])
    assert wire_length(layout[:width], traced.job.wire_format, carry) > 0


@pytest.mark.parametrize("mask", [[1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 0, 0]])
def test_a_merge_survives_missing_peers(traced: Traced, mask: list[int]) -> None:
    job, width = traced.job, 1 << traced.job.payload_depth
    payload = list(traced.payload()[:width])
    half, quarter = len(job.programs.merge.inputs) // 4, 1 << job.shared_depth
    assert job.genesis is not None
    outer = [*job.genesis.outer, *[None] * (quarter - len(job.genesis.outer))]
    shared = [*traced.start[:quarter], *outer]
    # What is masked out must not count, whatever it holds.
    slots = [x if m or x is None else np.full_like(x, np.nan) for m in mask for x in payload]
    state = [*shared, *[None] * (2 * half - len(shared)), *slots, *[None] * (half - len(slots))]
    state += [np.array(mask, np.float32), *[None] * (half - 1)]
    out = compile(job.programs.merge).run(state, StepContext(SEED, 0, 0xFFFFFFFF, 1))
    assert all(np.isfinite(x).all() for x in out if x is not None)
    moved = bits(list(out))[0] != bits(traced.start)[0]
    assert moved == any(mask), "no payload moves no weight from a zero outer state"
