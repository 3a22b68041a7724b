"""The duties of every strategy and every optimizer of the registry; a new one is a row of STRATEGY_CASES or
OPTIMIZER_CASES."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from lockstep.chain.devnet import CHAIN_ID
from lockstep.demo.cheats.lies import cheat_of
from lockstep.execution.jobs import TrainingJob
from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.numerics.validate import check_programs
from lockstep.presets import Terms
from lockstep.protocol.programs import defects
from lockstep.protocol.programs.defects import Held, ProgramParts
from lockstep.protocol.types import MERGE_SLOT
from lockstep.storage.dataset import Dataset
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.payload import (
    load_carry,
    load_payload,
    store_carry,
    store_payload,
    stored_length,
    varies,
    wire_length,
)
from lockstep.training.codecs.exact import Exact
from lockstep.training.codecs.uniform import Uniform
from lockstep.training.describe import strategy_of
from lockstep.training.job import Batch, training_job
from lockstep.training.models import GPT, GPTConfig
from lockstep.training.optimizers import (
    LAMB,
    SGD,
    SOAP,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Adan,
    Groups,
    Lion,
    Members,
    Muon,
    NAdam,
    Nesterov,
    PacedPart,
    RAdam,
    RMSprop,
    ScheduleFree,
    Several,
    Shampoo,
    SignSGD,
    Yogi,
)
from lockstep.training.optimizers.schedules import StableDecay
from lockstep.training.parameters import layout_of
from lockstep.training.rehearsal import Rehearsal, Rehearsed
from lockstep.training.strategies import (
    allreduce,
    cocktail,
    demo,
    diloco,
    distro,
    fedadam,
    fedavg,
    fedyogi,
    intellect1,
    muloco,
    onebit,
    opendiloco,
    photon,
    sparseloco,
    sparseloco_e,
)
from lockstep.training.strategies.base import Optimizer, Strategy
from lockstep.training.strategies.registry import OPTIMIZERS, STRATEGIES
from tests.adversarial.court import LONG, Court
from tests.support import invalid, own_models
from tests.support.stored import stored_bytes
from tests.support.toyjob import TOY_TERMS

CONFIG = GPTConfig(vocabulary=32, context=16, layers=1, heads=2, width=32)
ROW = CONFIG.context + 1
DATA = np.random.default_rng(3).integers(0, CONFIG.vocabulary, (40, ROW), dtype=np.int32)
SEED = bytes(range(32))
ROUNDS, SLOTS, H = 3, 3, 4
NUMBER = 1
"""The round of a payload or a merge that is looked at alone."""

BIASES = Groups.of({"*norm*": {"weight_decay": 0.1, "learning_rate": 1e-2}})
MATRICES = AdamW(warmup=1, decayed="matrices", schedule=StableDecay(decay=0.5), groups=BIASES)
OPTIMIZER_CASES: dict[str, list[Optimizer]] = {
    "adamw": [AdamW(learning_rate=3e-3, warmup=2), AdamW(warmup=0, restart_warmup=2, clip=0.01), MATRICES],
    "sgd": [
        SGD(learning_rate=0.1),
        SGD(learning_rate=0.1, weight_decay=0.01),
        SGD(0.1, momentum=0.9, dampening=0.1, clip_value=0.1, schedule=StableDecay(), groups=BIASES),
    ],
    "nesterov": [Nesterov(0.1, 0.9)],
    "sign_sgd": [SignSGD(warmup=0), SignSGD(weight_decay=0.1)],
    "adam": [Adam(), Adam(corrected=False)],
    "yogi": [Yogi()],
    "muon": [Muon(warmup=0)],
    "lion": [Lion(warmup=0, weight_decay=0.1)],
    "rmsprop": [RMSprop(warmup=0, momentum=0.9, centered=True)],
    "adagrad": [Adagrad(warmup=0, rate_decay=0.1, clip=1.0)],
    "nadam": [NAdam(warmup=0)],
    "radam": [RAdam(warmup=0)],
    "adan": [Adan(warmup=0)],
    "lamb": [LAMB(warmup=0)],
    "adafactor": [Adafactor(warmup=0)],
    "shampoo": [Shampoo(warmup=0, block=16)],
    "soap": [SOAP(warmup=0, block=4)],
    "schedule_free": [ScheduleFree(weight_decay=0.1)],
    "several": [
        Several(Members((("*", PacedPart(AdamW(warmup=0))), ("*.weight", PacedPart(SGD(0.1, momentum=0.9), 2)))))
    ],
}
STRATEGY_CASES: dict[str, list[Strategy]] = {
    "diloco": [
        diloco.DiLoCo(inner_steps=H),
        diloco.DiLoCo(inner_steps=H, payload="int8-block", outer_momentum=0.0),
        diloco.DiLoCo(inner_steps=H, payload="int8-block", carry=True),
    ],
    "allreduce": [allreduce.AllReduce()],
    "fedavg": [fedavg.FedAvg(inner_steps=H), fedavg.FedAvg(inner=AdamW(), inner_steps=H)],
    "fedadam": [fedadam.FedAdam(inner_steps=H)],
    "fedyogi": [fedyogi.FedYogi(inner_steps=H)],
    "photon": [photon.Photon(inner_steps=H)],
    "opendiloco": [opendiloco.OpenDiLoCo(inner_steps=H)],
    "intellect1": [intellect1.Intellect1(inner_steps=H)],
    "sparseloco": [sparseloco.SparseLoCo(inner_steps=H), sparseloco.SparseLoCo(inner_steps=H, moments=False)],
    "sparseloco_e": [sparseloco_e.SparseLoCoE(inner_steps=H)],
    "muloco": [muloco.MuLoCo(inner_steps=H), muloco.MuLoCo(inner_steps=H, codec=Uniform(width=2))],
    "demo": [demo.DeMo()],
    "distro": [distro.DisTrO()],
    "cocktail": [cocktail.Cocktail()],
    "onebit": [onebit.OneBit(warm_rounds=1)],
}
IDS: dict[str, Strategy] = {f"{name}-{i}": s for name, made in STRATEGY_CASES.items() for i, s in enumerate(made)}
IDS |= {
    f"{name}-{i}{'-carried' * carry}": diloco.DiLoCo(inner=inner, inner_steps=H, carry=carry)
    for name, made in OPTIMIZER_CASES.items()
    for i, inner in enumerate(made)
    for carry in (False, True)
}
QUICK = {"diloco-2", "sparseloco-0"}
"""Rows that `make test` tries; `make test-slow` tries the others."""


def case_of(strategy: Strategy, name: str, quick: bool) -> Any:
    return pytest.param(strategy, id=name, marks=() if quick else pytest.mark.slow)


CASES = [case_of(strategy, name, name in QUICK) for name, strategy in IDS.items()]
FIRST = [case_of(made[0], name, f"{name}-0" in QUICK) for name, made in STRATEGY_CASES.items()]


class Traced(NamedTuple):
    """A job of a case, and the first state of one of its slots."""

    job: TrainingJob
    start: list[Any]

    def context(self, t: int) -> StepContext:
        """The step t of a round whose slots start from a zero carry."""
        return StepContext(SEED, NUMBER, 1, t)

    def trained(self, state: list[Any], first: int, last: int, **how: Any) -> list[Any]:
        """The state after the steps `first` .. `last`."""
        step = compile(self.job.programs.step, **how)
        for t in range(first, last + 1):
            state = list(step.run(state, self.context(t), self.job.dataset.rows))
        return state

    def payload(self) -> list[Any]:
        """The slot's output after its steps: its payload, then its carry."""
        steps = self.job.inner_steps
        state = self.trained(self.start, 1, steps)
        return list(compile(self.job.programs.encode).run(state, self.context(steps + 1), DATA))


def job_of(strategy: Strategy, rows: np.ndarray = DATA, slots: int = SLOTS, **changes: Any) -> TrainingJob:
    made = {"rounds": ROUNDS, "min_slots": 1, "seed": 1, "batch": Batch(rows=2, row_length=ROW), **changes}
    return training_job(GPT(CONFIG), strategy, Dataset(rows, CONFIG.vocabulary), slots=slots, **made)


@cache
def traced_once(strategy: Strategy) -> Traced:
    job = job_of(strategy)
    assert job.genesis is not None
    # What is a slot's own is zero before the first step.
    layout = job.programs.step.output_layout[job.sections.carry]
    own = [None if h is None else np.zeros(h.shape, np.int32 if h.shape == () else np.float32) for h in layout]
    clock = np.array(NUMBER * job.inner_steps, np.int32)
    return Traced(job, job.sections.slot_state(job.genesis.shared, job.genesis.shared, own, clock))


@pytest.fixture(params=CASES)
def strategy(request: pytest.FixtureRequest) -> Strategy:
    found: Strategy = request.param
    return found


@pytest.fixture
def traced(strategy: Strategy) -> Traced:
    return traced_once(strategy)


def bits(state: Any) -> list[bytes | None]:
    return [None if x is None else np.asarray(x).tobytes() for x in state]


def all_bits(state: Rehearsed) -> list[bytes | None]:
    """The bits of everything that a later round starts from."""
    carries = [x for carry in state.carries for x in carry or ()]
    return bits([*state.checkpoint.shared, *state.checkpoint.outer, *carries])


def test_every_row_of_the_registry_is_tried() -> None:
    assert set(STRATEGY_CASES) == set(STRATEGIES)
    assert set(OPTIMIZER_CASES) == set(OPTIMIZERS)
    for registry, cases in ((STRATEGIES, STRATEGY_CASES), (OPTIMIZERS, OPTIMIZER_CASES)):
        for name, made in cases.items():
            assert made, name
            assert all(type(value) is registry[name] for value in made), name


def without_wire(said: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in said.items() if k != "wire"}


def test_its_description_names_it_and_holds_every_field(strategy: Strategy) -> None:
    said = json.loads(json.dumps(strategy.to_dict()))
    assert STRATEGIES[said["name"]] is type(strategy)
    assert said["wire"] == strategy.wire
    assert strategy_of(without_wire(said)) == strategy, "two descriptions that differ are two jobs"


def test_its_programs_can_be_defended(traced: Traced) -> None:
    programs, job = traced.job.programs, traced.job
    parts = tuple(ProgramParts.of(p) for p in (programs.step, programs.encode, programs.merge))
    names = ("step_program", "encode_program", "merge_program")
    roots = {name: part.root for name, part in zip(names, parts, strict=True)}
    shape = {"shared_depth": job.shared_depth, "payload_depth": job.payload_depth, "carry": int(job.carry)}
    params = replace(invalid.sound().job, **roots, **shape, slots=SLOTS, row_length=ROW)
    check_programs(programs.step, programs.encode, programs.merge, params)
    assert defects.find(Held(params, parts)) is None


def test_a_replay_gives_the_same_bits_on_every_path(traced: Traced) -> None:
    steps = traced.job.inner_steps
    state = traced.trained(traced.start, 1, steps)
    assert bits(state)[0] != bits(traced.start)[0], "the steps move what is sent"
    assert bits(traced.trained(traced.start, 1, steps, path="scalar")) == bits(state)
    assert bits(traced.trained(traced.start, 1, steps, threads=2)) == bits(state)


def test_it_resumes_in_the_middle_of_a_round(traced: Traced, tmp_path: Path) -> None:
    steps = traced.job.inner_steps
    cut = max(1, steps // 2)
    half = traced.trained(traced.start, 1, cut)
    kept = {str(i): x for i, x in enumerate(half) if x is not None}
    np.savez(tmp_path / "state.npz", **kept)
    with np.load(tmp_path / "state.npz") as found:
        read = [found[str(i)] if str(i) in kept else None for i in range(len(half))]
    state = traced.trained(read, cut + 1, steps)
    assert bits(state) == bits(traced.trained(traced.start, 1, steps))
    encode = compile(traced.job.programs.encode)
    assert bits(encode.run(state, traced.context(steps + 1), DATA)) == bits(traced.payload())


def test_its_payload_comes_back_from_a_store_in_its_wire_format(traced: Traced, tmp_path: Path) -> None:
    out, width, form = traced.payload(), traced.job.sections.payload.stop, traced.job.wire_format
    layout = traced.job.programs.encode.output_layout
    store, carries = DirectoryStore(tmp_path), traced.job.carry
    tensors = [x for x in out[:width] if x is not None]
    carried = [x for x in out[width:] if x is not None] if carries else []
    cid = store_payload(store, tensors, form, store_carry(store, carried) if carries else None)
    assert store.get_node(cid)["format"] == form, "encode leaves what its format carries"
    assert bits(load_payload(store, cid, layout[:width], wire_format=form, carries=carries)) == bits(tensors)
    if carries:
        back = load_carry(store, cid, layout[:width], layout[width:], wire_format=form)
        assert bits(back) == bits(carried), "every bit of it, in a container of its own"
    due, sent = wire_length(layout[:width], form, carries), stored_bytes(store, cid)
    assert sent <= due if varies(form) else sent == due, "the wire has the bytes that were declared"
    assert stored_length(store, cid, layout[:width], wire_format=form, carries=carries) == sent, "its manifest says so"
    assert Rehearsal(traced.job).published(tuple(tensors)) == sent, "as a rehearsal counts them"


def test_a_merge_survives_missing_peers(traced: Traced, strategy: Strategy) -> None:
    job, sections = traced.job, traced.job.sections
    payload = list(traced.payload()[sections.payload])
    assert job.genesis is not None
    decays = getattr(getattr(strategy, "outer", None), "weight_decay", 0.0) > 0
    merge = compile(job.programs.merge)
    for mask in ([1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 0, 0]):
        # What is masked out must not count, whatever it holds.
        slots = [[x if m or x is None else np.full_like(x, np.nan) for x in payload] for m in mask]
        state = sections.merge_state(job.genesis.shared, job.genesis.outer, slots, np.array(mask, np.float32))
        out = merge.run(state, StepContext(SEED, NUMBER, MERGE_SLOT, 1))
        assert all(np.isfinite(x).all() for x in out if x is not None), mask
        moved = bits(list(out))[0] != bits(traced.start)[0]
        assert moved == any(mask) or (decays and not any(mask)), "no payload moves no weight from a zero outer state"


# -- whole rounds


def rounds(strategy: Strategy) -> Iterator[Rehearsed]:
    """The state after each round of a job, of which one misses a slot."""
    rehearsal = Rehearsal(traced_once(strategy).job)
    state = rehearsal.first()
    for r in range(ROUNDS):
        state = rehearsal.next(state, absent={1} if r == 1 else ())
        yield state


def digest(strategy: Strategy) -> str:
    """A hash of everything after the last round."""
    *_, last = rounds(strategy)
    return sha256(b"".join(x for x in all_bits(last) if x is not None)).hexdigest()


@pytest.mark.parametrize("strategy", FIRST)
def test_rounds_end_alike_in_whatever_order_payloads_arrive_and_wherever_a_slot_resumes(
    strategy: Strategy, tmp_path: Path
) -> None:
    rehearsal = Rehearsal(traced_once(strategy).job, threads=2)
    state, store, form = rehearsal.first(), DirectoryStore(tmp_path), rehearsal.job.wire_format
    layout = rehearsal.job.programs.encode.output_layout[rehearsal.job.sections.payload]
    cut = max(1, rehearsal.job.inner_steps // 2)
    for r, due in enumerate(rounds(strategy)):
        cids, carries = {}, {}
        for slot in (2, 0, 1):
            if (r, slot) == (1, 1):
                continue
            live = rehearsal.start(state, slot)
            for t in range(1, rehearsal.job.inner_steps + 1):
                live = rehearsal.after(live, r, slot, t)
                if t == cut:
                    live = [None if x is None else np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape) for x in live]
            payload, carries[slot] = rehearsal.output(live, r, slot)
            cids[slot] = store_payload(store, payload, form)
        payloads = {s: load_payload(store, cids[s], layout, wire_format=form) for s in (1, 2, 0) if s in cids}
        merged = rehearsal.merged(state.checkpoint, [payloads.get(s) for s in range(SLOTS)], r)
        kept = tuple(carries.get(s) if rehearsal.job.carry else None for s in range(SLOTS))
        state = Rehearsed(r + 1, merged, kept)
        assert all_bits(state) == all_bits(due), f"round {r}"
        assert bits(merged.shared) != bits(rehearsal.genesis.shared), "it trains"


@pytest.mark.slow
def test_a_fresh_process_ends_in_the_same_bits() -> None:
    program = "from tests.battery import test_strategies as b; import json; print(json.dumps(b.digests()))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(found.stdout) == digests()


ROOT = Path(__file__).parents[2]


def digests() -> dict[str, str]:
    """The digest of the first row of each strategy."""
    return {name: digest(made[0]) for name, made in STRATEGY_CASES.items()}


@pytest.mark.parametrize("strategy", FIRST)
def test_parameters_that_the_loss_never_reads_stay_as_they_are(strategy: Strategy) -> None:
    model = own_models.spare()
    rehearsal = Rehearsal(own_models.job(model, strategy, rounds=2))
    layout, state = layout_of(model), rehearsal.first()
    for _ in range(2):
        state = rehearsal.next(state)
    before, after = (
        layout.split(*(torch.from_numpy(np.array(x)) for x in held.shared))
        for held in (rehearsal.genesis, state.checkpoint)
    )
    kept = {name for name, values in before.items() if torch.equal(values, after[name])}
    spare = {name for name in before if name.startswith("spare")}
    assert spare <= kept, "as torch leaves them where a gradient is None"
    assert kept < set(before), "the others move"
    # What is sent of a sparse payload may be another parameter's for some rounds.
    assert kept == spare or strategy.wire.startswith("sparse")


# -- one worker

ALIKE = np.repeat(DATA[:1], 4, axis=0)
"""Rows that are all the same: whatever a slot draws, it sees the same."""


def alone(strategy: Strategy, count: int) -> list[Rehearsed]:
    """The states of a job in which one slot of two works, `count` rounds."""
    rehearsal = Rehearsal(job_of(strategy, ALIKE, slots=2, rounds=count))
    states = [rehearsal.first()]
    for _ in range(count):
        states.append(rehearsal.next(states[-1], absent={1}))
    return states


def plain(optimizer: Optimizer, steps: int) -> np.ndarray:
    """The parameters after `steps` of an optimizer by itself."""
    job = job_of(diloco.DiLoCo(inner=optimizer, inner_steps=steps, carry=True), ALIKE, slots=2, rounds=1)
    rehearsal = Rehearsal(job)
    live = rehearsal.start(rehearsal.first(), 0)
    for t in range(1, steps + 1):
        live = rehearsal.after(live, 0, 0, t)
    found = live[0]
    assert found is not None
    return np.asarray(found)


@dataclass(frozen=True)
class Alone:
    """A strategy whose one worker is an optimizer by itself."""

    strategy: Strategy
    optimizer: Optimizer
    rounds: int = 4


ALONE = {
    "allreduce": Alone(allreduce.AllReduce(), AdamW()),
    "allreduce, muon": Alone(allreduce.AllReduce(outer=Muon()), Muon()),
    "allreduce, sign": Alone(allreduce.AllReduce(outer=SignSGD(weight_decay=0.1)), SignSGD(weight_decay=0.1)),
    "allreduce, adam": Alone(allreduce.AllReduce(outer=Adam()), Adam()),
    "allreduce, yogi": Alone(allreduce.AllReduce(outer=Yogi()), Yogi()),
    "demo": Alone(demo.DeMo(codec=Exact(), outer=SignSGD()), SignSGD()),
    "fedavg": Alone(fedavg.FedAvg(inner_steps=2), SGD(learning_rate=0.1)),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("row", ALONE.values(), ids=ALONE.keys())
def test_one_worker_without_a_codec_is_the_plain_optimizer_bit_for_bit(row: Alone) -> None:
    *_, last = alone(row.strategy, row.rounds)
    due = plain(row.optimizer, row.rounds * row.strategy.inner_steps)
    assert last.checkpoint.shared[0].tobytes() == due.tobytes()


DIFFERING: dict[str, Strategy] = {
    "opendiloco": opendiloco.OpenDiLoCo(inner_steps=3, codec=Exact()),
    "sparseloco": sparseloco.SparseLoCo(inner_steps=3, codec=Exact()),
    "muloco": muloco.MuLoCo(inner_steps=3, codec=Exact()),
    "cocktail": cocktail.Cocktail(codec=Exact(), down=Exact()),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("strategy", DIFFERING.values(), ids=DIFFERING.keys())
def test_one_worker_without_a_codec_sends_the_plain_optimizer_s_difference_bit_for_bit(strategy: Strategy) -> None:
    rehearsal = Rehearsal(job_of(strategy, ALIKE, slots=2, rounds=1))
    (payload,), carry = rehearsal.slot(rehearsal.first(), 0)
    base = rehearsal.genesis.shared[0]
    own = payload.size
    assert payload.tobytes() == (base - plain(strategy.inner, strategy.inner_steps))[:own].tobytes()  # type: ignore[attr-defined]
    if strategy.parts().decay is not None:  # type: ignore[attr-defined]
        assert not carry[-1].any(), "nothing is left out"


@pytest.mark.slow
def test_the_coded_form_of_a_tensor_does_not_change_a_job() -> None:
    listed, ranked = sparseloco.SparseLoCo(inner_steps=H), sparseloco_e.SparseLoCoE(inner_steps=H)
    for a, b in zip(rounds(listed), rounds(ranked), strict=True):
        assert all_bits(a) == all_bits(b), "sparseloco_e is sparseloco, bit for bit"
        assert b.sent < a.sent


# -- the market


def terms_of() -> Terms:
    windows = {k: v for k, v in LONG.items() if k not in ("rounds", "max_lead")}
    return replace(TOY_TERMS, **windows, max_lead=ROUNDS)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Court]:
    running = Court.in_memory(tmp_path_factory.mktemp("market"))
    yield running
    running.stop()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", FIRST)
def test_it_trains_on_the_chain_in_memory_and_an_audit_finds_nothing(strategy: Strategy, court: Court) -> None:
    court.forget()
    court.hire(replace(traced_once(strategy).job, rounds=2, terms=terms_of()))
    for r in range(2):
        court.seal(r)
        court.claim(r=r, absent=(1,) if r else ())
        court.merge(r=r)
    found = court.audits(wrong_only=False)
    assert len(found) == 3 + 2 + 2, "every claim of two rounds"
    assert all(audit.matches for audit in found.values())
    court.settle()
    due = wire_length(court.job.payload_layout, court.job.wire_format, court.job.params.role.carries)
    for e in court.ledger().jobs[court.job_id].rounds[1].claims.values():
        assert e.payload_cid is not None
        assert stored_bytes(court.store, e.payload_cid) <= due


CARRYING: dict[str, Strategy] = {
    "sparseloco": sparseloco.SparseLoCo(inner_steps=H),
    "muloco": muloco.MuLoCo(inner_steps=H),
    "diloco": diloco.DiLoCo(inner_steps=H, carry=True),
}
"""Strategies whose slots keep moments; those of the first two also keep what their payloads lack."""
TOLD = [
    *((name, lie) for name in CARRYING for lie in ("stale-carry", "scaled-payload")),
    *((name, "tampered-residual") for name in ("sparseloco", "muloco")),
    ("sparseloco", "wrong-index"),
]
"""Lies that have a meaning for a strategy."""


@pytest.mark.slow
@pytest.mark.parametrize(("told", "name"), TOLD)
def test_a_lie_of_a_slot_that_carries_is_convicted_on_the_chain_in_memory(told: str, name: str, court: Court) -> None:
    court.forget()
    court.hire(replace(traced_once(CARRYING[told]).job, rounds=2, terms=terms_of()))
    court.seal(0)
    court.claim()
    court.merge()
    court.seal(1)
    cheat = cheat_of(name, court.job.programs, court.params, 0, CHAIN_ID)
    claims = court.claim({2: cheat.run(court.run(2, 1))}, r=1)
    (game,) = court.audit_and_play()
    assert court.convicted(claims[2])
    found, expected = court.found(game), cheat.expectation
    assert (found.t, found.op, found.rule) == (expected.step, expected.op_index, "op")
    moves = [s for s in court.spent if s.label.startswith("DisputeGame.")]
    assert len(moves) <= 16, "transactions"
    assert sum(s.gas for s in moves) <= 1_700_000, "gas"
    court.settle()
    court.balance({"worker-2": court.params.role.slot_stake})
