"""A job for unit tests with every part of a real one, small and without torch.

Eight parameters; a step draws rows of 600 tokens, forms a gradient by folds of three chunks, clips it, keeps moments
and moves by a table of rates. The payload is anchor - live; the merge is a masked mean with momentum. With `integers`
= 1 the gradient is a product of codes, the error's rounded at random; with 2 it is a row of a
product of matrices, as a device's tensor cores take it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lockstep.execution import jobs
from lockstep.execution.jobs import Job, JobPrograms, TrainingJob
from lockstep.numerics.builder import ProgramBuilder, Tensor
from lockstep.numerics.trace import layout_root, tensor_root
from lockstep.presets import Terms
from lockstep.protocol.jobs import ZERO_ADDRESS, JobParams
from lockstep.protocol.programs.program import F32, I32, STOCHASTIC, Program
from lockstep.protocol.types import Address, Digest, JobId, Seconds, Seed, StateRoot, Wei
from lockstep.storage import ContentStore
from lockstep.storage.containers import JobSpec, encode_program
from lockstep.storage.dataset import Dataset, store_dataset
from lockstep.storage.payload import Checkpoint, store_checkpoint
from tests.support.params import amended, job_params

SIZE, TERMS, ROWS, STEPS, SLOTS, ROUNDS = 8, 600, 40, 5, 3, 3
SEED = Seed(bytes(range(32)))
ID = JobId(b"toy job".ljust(32, b"."))


TOY_TERMS = Terms(
    join_seconds=Seconds(20),
    train_seconds=Seconds(60),
    reveal_seconds=Seconds(30),
    attest_seconds=Seconds(20),
    merge_seconds=Seconds(20),
    challenge_seconds=Seconds(30),
    clock_seconds=Seconds(120),
    step_seconds=Seconds(10),
    max_lead=ROUNDS,
    max_fail=2,
    slot_price=Wei(10**18),
    merge_price=Wei(10**17),
    slot_stake=Wei(10 * 10**18),
    merge_stake=Wei(10 * 10**18),
    bond=Wei(10**18),
    answer_seconds=Seconds(24),
    gas_price=Wei(0),
    fee_cap=100 * 10**9,
)
"""Short windows, small stakes."""
UNHURRIED = {
    "join_seconds": Seconds(600), "train_seconds": Seconds(600), "reveal_seconds": Seconds(600),
    "merge_seconds": Seconds(600), "challenge_seconds": Seconds(1500), "clock_seconds": Seconds(900),
    "answer_seconds": Seconds(600),
}  # fmt: skip
"""Windows that no party is too slow for: each ends when all have acted, or a test advances the clock."""


def step_program(steps: int = STEPS, rounds: int = ROUNDS, *, integers: int = 0) -> Program:
    """Returns the step Program: [p, -] [anchor, -] [m, v] [counter, -] -> the same layout."""
    b = ProgramBuilder([(F32, SIZE), None, (F32, SIZE), None, (F32, SIZE), (F32, SIZE), (I32, None), None])
    p, m, v, counter = b.input(0), b.input(4), b.input(5), b.input(6)
    rows = b.draw(1, TERMS, name="rows")
    x = b.map((TERMS,), [rows.reshape(TERMS)], lambda e, t: e.fmul(e.i2f(t), e.f32(0.01)), F32, "scale tokens")
    wave = b.const(np.sin(np.arange(SIZE * TERMS)).astype(np.float32).reshape(SIZE, TERMS))
    features = b.map((SIZE, TERMS), [x, wave], lambda e, a, c: e.fmul(a, c), F32, "features")
    hidden = _predict(b, features, p)
    error = b.map((TERMS,), [hidden, x], lambda e, h, t: e.fsub(h, t), F32, "error")
    if integers:
        if integers == 2:
            error = b.concat([t.reshape(1, TERMS) for t in (error, x)], axis=0, name="error and tokens")
        coded, of_features = b.quant(error, stream=STOCHASTIC + 1, name="error"), b.quant(features, name="features")
        if integers == 2:
            grad = b.qdot(coded.unsqueeze(1), of_features, name="gradient").slice(0, 0, 1).reshape(SIZE)
        else:
            grad = b.qdot(of_features, coded, name="gradient")
    else:
        grad = b.dot(features, error, name="gradient")
    norm = b.sum(b.map((SIZE,), [grad], lambda e, g: e.fmul(g, g), name="squares"), name="norm squared")
    clipped = b.map((SIZE,), [norm, grad], lambda e, n, g: e.fdiv(g, e.fadd(e.fsqrt(n), e.f32(1e-6))), F32, "clip")
    m2 = b.map((SIZE,), [clipped, m], lambda e, g, old: e.ffma(e.f32(0.9), old, e.fmul(e.f32(0.1), g)), F32, "m")
    v2 = b.map(
        (SIZE,), [clipped, v], lambda e, g, old: e.ffma(e.f32(0.95), old, e.fmul(e.f32(0.05), e.fmul(g, g))), F32, "v"
    )
    total = steps * rounds
    table = b.const(np.stack([np.full(total, 0.999), np.linspace(0.02, 0.01, total)], 1).astype(np.float32))
    rates = b.gather(counter, table, name="rates")
    decay, rate = rates.slice(0, 0, 1), rates.slice(0, 1, 2)

    def moved(e, old, first, second, keep, speed):  # type: ignore[no-untyped-def]
        e.fsub(e.fmul(old, keep), e.fmul(speed, e.fdiv(first, e.fadd(e.fsqrt(second), e.f32(1e-8)))))

    p2 = b.map((SIZE,), [p, m2, v2, decay, rate], moved, F32, "p")
    ticked = b.map((), [counter], lambda e, c: e.iadd(c, e.i32(1)), I32, "tick")
    return b.finish([p2, None, b.input(2), None, m2, v2, ticked, None])


def _predict(b: ProgramBuilder, features: Tensor, p: Tensor) -> Tensor:
    turned = b.map((TERMS, SIZE), [features.permute(1, 0)], name="features, turned")
    return b.dot(turned, p, name="predict")


def encode_program_of(carry: bool = False, wide: bool = False) -> Program:
    """Returns the encode Program: slot state -> [anchor - p] [-], if `wide` [anchor - p, -] [-, -], with a carry
    [anchor - p, -] [m, v].
    """
    b = ProgramBuilder([(F32, SIZE), None, (F32, SIZE), None, (F32, SIZE), (F32, SIZE), (I32, None), None])
    moved = b.map((SIZE,), [b.input(2), b.input(0)], lambda e, a, p: e.fsub(a, p), F32, "difference")
    if carry:
        return b.finish([moved, None, b.input(4), b.input(5)])
    return b.finish([moved, None, None, None] if wide else [moved, None])


def merge_program(slots: int = SLOTS, carry: bool = False) -> Program:
    """Returns the merge Program: [p, -, momentum, -] lifted, payloads, mask -> [p, -, momentum, -]."""
    payload: list[tuple[int, int | None] | None] = [(F32, SIZE), None] if carry or slots == 1 else [(F32, SIZE)]
    lanes = len(payload) << (slots - 1).bit_length()
    width = 2 * lanes
    entries: list[tuple[int, int | None] | None] = [(F32, SIZE), None, (F32, SIZE), None, *[None] * (width - 4)]
    entries += [*payload * slots, *[None] * (lanes - len(payload) * slots), (F32, slots), *[None] * (lanes - 1)]
    b = ProgramBuilder(entries)
    p, momentum = b.input(0), b.input(2)
    payloads = [b.input(width + len(payload) * s) for s in range(slots)]
    count = b.sum(b.input(width + lanes), name="count")

    def mean(e, n, *values):  # type: ignore[no-untyped-def]
        total = values[0]
        for value in values[1:]:
            total = e.fadd(total, value)
        e.fdiv(total, n)

    average = b.map((SIZE,), [count, *payloads], mean, F32, "mean")
    next_momentum = b.map((SIZE,), [momentum, average], lambda e, o, a: e.ffma(e.f32(0.9), o, a), F32, "momentum")
    next_p = b.map((SIZE,), [p, next_momentum], lambda e, o, a: e.fsub(o, e.fmul(e.f32(0.7), a)), F32, "next")
    return b.finish([next_p, None, next_momentum, None])


def schedule(steps: int = STEPS, carry: bool = False, *, integers: int = 0, slots: int = SLOTS) -> JobPrograms:
    """Returns the three Programs for rounds of `steps` steps. With one slot, the payload is as deep as the base."""
    encode = encode_program_of(carry, wide=slots == 1)
    return JobPrograms(step_program(steps, integers=integers), encode, merge_program(slots, carry))


def genesis() -> Checkpoint:
    """Returns the first checkpoint."""
    start = np.linspace(-0.1, 0.1, SIZE).astype(np.float32)
    return Checkpoint((start,), (np.zeros(SIZE, np.float32),))


def dataset() -> Dataset:
    """Returns ROWS rows of TERMS tokens."""
    return Dataset(np.random.default_rng(7).integers(0, 100, (ROWS, TERMS), dtype=np.int32), 100)


def publish(
    store: ContentStore, steps: int = STEPS, carry: int = 0, *, integers: int = 0, **changes: object
) -> JobParams:
    """Stores a job's parts; returns its parameters, with short windows unless `changes` says otherwise."""
    slots = int(changes.get("slots", SLOTS))  # type: ignore[call-overload]
    programs = schedule(steps, bool(carry), integers=integers, slots=min(slots, SLOTS))
    data, first = dataset(), genesis()
    wide = carry or slots == 1
    # The longest period that the rounds in flight allow.
    period = max(2, int(changes.get("max_lead", TOY_TERMS.max_lead)) - 1) if carry else 0  # type: ignore[call-overload]
    cids = {
        name: store.put(encode_program(program, store.put))
        for name, program in (("step", programs.step), ("encode", programs.encode), ("merge", programs.merge))
    }
    spec = JobSpec(cids, store_dataset(store, data), store_checkpoint(store, first), {}, (), {"name": "toy"})
    store.put(spec.encode(), codec="dag-cbor")
    zero = np.zeros(SIZE, np.float32)
    vector = programs.step.inputs[0]
    pair = [vector, None]
    params = job_params(
        spec_digest=spec.digest,
        step_program=Digest(programs.step.root),
        encode_program=Digest(programs.encode.root),
        merge_program=Digest(programs.merge.root),
        dataset_root=Digest(data.root),
        dataset_rows=ROWS,
        row_length=TERMS,
        genesis_shared=layout_root(pair, [first.shared[0], None]),
        genesis_outer=layout_root(pair, [first.outer[0], None]),
        zero_carry=layout_root([vector, vector], [zero, zero]),
        zero_payload=layout_root(pair, [zero, None]) if wide else StateRoot(tensor_root(zero)),
        shared_depth=1,
        payload_depth=int(wide),
        carry_period=period,
        inner_steps=steps,
        rounds=ROUNDS,
        slots=SLOTS,
        min_slots=min(2, slots),
        aggregator=Address(ZERO_ADDRESS),
        **TOY_TERMS.__dict__,
    )
    return amended(params, **changes)  # type: ignore[arg-type]


def training_job(carry: bool = False, **changes: object) -> TrainingJob:
    """Returns the same job as a requester passes it to the SDK."""
    job = TrainingJob(
        programs=schedule(carry=carry),
        dataset=dataset(),
        genesis=genesis(),
        model={},
        parameters=(),
        strategy={"name": "toy"},
        inner_steps=STEPS,
        rounds=ROUNDS,
        slots=SLOTS,
        min_slots=2,
        shared_depth=1,
        payload_depth=int(carry),
        carry=carry,
        terms=TOY_TERMS,
    )
    return replace(job, **changes)  # type: ignore[arg-type]


def load(store: ContentStore, threads: int = 1, carry: int = 0, *, integers: int = 0) -> Job:
    """Loads the published job, checked."""
    return jobs.load(ID, publish(store, carry=carry, integers=integers), store, threads)
