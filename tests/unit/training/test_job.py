"""The three Programs of a job, run natively, against eager PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.numerics.reference import drawn_row
from lockstep.numerics.validate import check_programs
from lockstep.protocol.errors import UsageError
from lockstep.protocol.programs import defects
from lockstep.protocol.programs.defects import Held, ProgramParts
from lockstep.storage.dataset import Dataset
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.payload import load_carry, load_payload, store_carry, store_payload, wire_length
from lockstep.training.baseline import flat_parameters, load_parameters
from lockstep.training.job import Batch, TracedPrograms, build_programs, training_job
from lockstep.training.models import GPT, GPTConfig, next_token_loss
from lockstep.training.optimizers import AdamW
from lockstep.training.parameters import initial_parameters
from lockstep.training.strategies import diloco
from tests.support import invalid, traced

CONFIG = GPTConfig(vocabulary=32, context=16, layers=1, heads=2, width=32)
ROW = CONFIG.context + 1
DATA = np.random.default_rng(3).integers(0, CONFIG.vocabulary, (40, ROW), dtype=np.int32)
SEED = bytes(range(32))
ROUND, SLOT, H = 1, 2, 4
INNER = AdamW(learning_rate=3e-3, warmup=2, restart_warmup=1)


def start() -> np.ndarray:
    """Weights with life in every part."""
    flat = initial_parameters(GPT(CONFIG), 1)
    flat[:GPT_USED] += 0.03 * np.random.default_rng(0).standard_normal(GPT_USED).astype(np.float32)
    return flat


GPT_USED = sum(p.numel() for p in GPT(CONFIG).parameters())


def built(**changes):
    fields = {name: changes.pop(name) for name in ("payload", "carry") if name in changes}
    spec = diloco.DiLoCo(inner=INNER, inner_steps=H, **fields)
    settings = {"batch": Batch(rows=3, row_length=ROW), "rounds": 3, "slots": 3, **changes}
    return traced.build_programs(GPT(CONFIG), next_token_loss, spec, **settings)


def slot_state(flat: np.ndarray, counter: int) -> list:
    zero = np.zeros_like(flat)
    return [flat, None, flat, None, zero, zero, np.array(counter, np.int32), None]


def trained(program, flat: np.ndarray) -> list:
    """The state after H steps of round 1, slot 2."""
    state, executable = slot_state(flat, ROUND * H), compile(program)
    for t in range(1, H + 1):
        state = list(executable.run(state, StepContext(SEED, ROUND, SLOT, t), DATA))
    return state


def eager(flat: np.ndarray, rows_per_step: int) -> np.ndarray:
    """The same steps by torch's AdamW in float64."""
    model = load_parameters(GPT(CONFIG), flat).double()
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(INNER.beta1, INNER.beta2), eps=INNER.epsilon, weight_decay=INNER.weight_decay
    )
    for t in range(1, H + 1):
        rate = INNER.rate(ROUND * H + t - 1, 3 * H) * min(1.0, t / (INNER.restart_warmup + 1))
        for group in optimizer.param_groups:
            group["lr"] = rate
        drawn = [drawn_row(SEED, (ROUND, SLOT, t), j, len(DATA)) for j in range(rows_per_step)]
        optimizer.zero_grad()
        next_token_loss(model, torch.from_numpy(DATA[drawn].astype(np.int64))).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), INNER.clip)
        optimizer.step()
    return flat_parameters(model)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", [Batch(3, ROW), Batch(2, ROW, accumulation=2)])
def test_steps_equal_torch_s_adamw_in_float64(batch: Batch) -> None:
    flat = start()
    state = trained(built(batch=batch).step, flat)
    due = eager(flat, batch.rows * batch.accumulation)
    moved = np.abs(due - flat)
    assert moved.max() > 1e-3, "the steps move the weights"
    np.testing.assert_allclose(state[0][:GPT_USED], due[:GPT_USED], rtol=0, atol=2e-3 * moved.max())
    assert np.median(np.abs(state[0] - due)) < 1e-7, "binary32 alone separates most of them"


# -- moments that are carried


def carried_round(program, base: np.ndarray, round_: int, carry: list) -> list:
    """The state after the H steps of a round that starts from `carry` = (m, v, age)."""
    empty = [None, None, None]
    state = [base, *empty, base, *empty, *carry, None, np.array(round_ * H, np.int32), *empty]
    executable = compile(program)
    for t in range(1, H + 1):
        state = list(executable.run(state, StepContext(SEED, round_, SLOT, t), DATA))
    return state


def no_carry(flat: np.ndarray) -> list:
    return [np.zeros_like(flat), np.zeros_like(flat), np.array(0, np.int32)]


def eager_rounds(bases: list[np.ndarray]) -> np.ndarray:
    """A round from each base in turn by torch's own AdamW in float64, its state kept from round to round."""
    model = load_parameters(GPT(CONFIG), bases[0]).double()
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(INNER.beta1, INNER.beta2), eps=INNER.epsilon, weight_decay=INNER.weight_decay
    )
    for round_, base in enumerate(bases):
        load_parameters(model, base)
        for t in range(1, H + 1):
            rate = INNER.rate(round_ * H + t - 1, 3 * H) * min(1.0, (round_ * H + t) / (INNER.restart_warmup + 1))
            for group in optimizer.param_groups:
                group["lr"] = rate
            drawn = [drawn_row(SEED, (round_, SLOT, t), j, len(DATA)) for j in range(3)]
            optimizer.zero_grad()
            next_token_loss(model, torch.from_numpy(DATA[drawn].astype(np.int64))).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), INNER.clip)
            optimizer.step()
    return flat_parameters(model)


@pytest.mark.slow
def test_carried_moments_train_as_torch_s_own_that_are_kept() -> None:
    programs, flat = built(carry=True), start()
    bases, carry = [flat, 0.97 * flat, 0.95 * flat], no_carry(flat)
    for round_, base in enumerate(bases):
        state = carried_round(programs.step, base, round_, carry)
        payload = compile(programs.encode).run(state, StepContext(SEED, round_, SLOT, H + 1), DATA)
        assert payload[0].tobytes() == (base - state[0]).tobytes()
        carry = list(payload[4:7])
        assert [x.tobytes() for x in carry] == [x.tobytes() for x in state[8:11]], "published as they are"
        assert int(carry[2]) == (round_ + 1) * H, "steps that the moments have seen"
    due = eager_rounds(bases)
    moved = np.abs(due - bases[-1])
    assert moved.max() > 1e-3, "the steps move the weights"
    np.testing.assert_allclose(state[0][:GPT_USED], due[:GPT_USED], rtol=0, atol=2e-3 * moved.max())
    forgotten = carried_round(programs.step, bases[-1], 2, no_carry(flat))[0]
    assert np.abs(forgotten - due).max() > 0.05 * moved.max(), "and not as those that restart"


def test_a_carry_of_zero_restarts_moments_and_warm_up_wherever_the_clock_stands() -> None:
    flat = start()
    state = carried_round(built(carry=True).step, flat, ROUND, no_carry(flat))
    due = eager(flat, 3)
    np.testing.assert_allclose(state[0][:GPT_USED], due[:GPT_USED], rtol=0, atol=2e-3 * np.abs(due - flat).max())
    assert int(state[10]) == H, "age"
    assert int(state[12]) == ROUND * H + H, "clock"


def test_the_merge_of_a_job_with_a_carry_is_that_without() -> None:
    rng = np.random.default_rng(5)
    base, momentum, *payloads = (rng.standard_normal(start().size).astype(np.float32) for _ in range(5))
    plain = merge(built().merge, 3, base, momentum, payloads, [1, 0, 1])
    half, empty = 16, [None, None, None]
    state = [base, *empty, momentum, *empty] + [None] * (2 * half - 8)
    state += [x for p in payloads for x in (p, *empty)] + [None] * (half - 12)
    state += [np.array([1, 0, 1], np.float32), *[None] * (half - 1)]
    carrying = compile(built(carry=True).merge).run(state, StepContext(SEED, ROUND, 0xFFFFFFFF, 1))
    assert (carrying[0].tobytes(), carrying[4].tobytes()) == (plain[0].tobytes(), plain[2].tobytes())


def test_the_merge_of_one_slot_is_a_step_along_its_payload_and_could_be_defended() -> None:
    programs, flat = built(slots=1), start()
    moved = np.full_like(flat, 0.25)
    state = [flat, None, np.zeros_like(flat), None, moved, None, np.ones(1, np.float32), None]
    assert len(programs.merge.inputs) == len(state)
    after = compile(programs.merge).run(state, StepContext(SEED, ROUND, 0xFFFFFFFF, 1))
    assert np.all(after[0] < flat), "along the payload"
    assert not_voided(programs, {"shared_depth": 1, "payload_depth": 1, "carry": 0, "slots": 1, "row_length": ROW})


def test_a_job_with_a_carry_could_be_defended_and_cannot_be_voided() -> None:
    programs = built(carry=True)
    assert not_voided(programs, {"shared_depth": 2, "payload_depth": 2, "carry": 1, "slots": 3, "row_length": ROW})


def not_voided(programs: TracedPrograms, shape: dict[str, int]) -> bool:
    """A job of this shape passes its parties' checks, and no evidence against it holds."""
    parts = tuple(ProgramParts.of(p) for p in (programs.step, programs.encode, programs.merge))
    names = ("step_program", "encode_program", "merge_program")
    roots = {name: part.root for name, part in zip(names, parts, strict=True)}
    params = replace(invalid.sound().job, **roots, **shape)
    check_programs(programs.step, programs.encode, programs.merge, params)
    return defects.find(Held(params, parts)) is None


def test_a_payload_travels_short_beside_its_carry_and_both_come_back(tmp_path: Path) -> None:
    programs, flat = built(payload="int8-block", carry=True), start()
    state = carried_round(programs.step, flat, 0, no_carry(flat))
    out = compile(programs.encode).run(state, StepContext(SEED, 0, SLOT, H + 1), DATA)
    layout = programs.encode.output_layout
    store = DirectoryStore(tmp_path)
    cid = store_payload(store, out[:1], "int8-block", store_carry(store, out[4:7]))
    assert store.get_node(cid)["format"] == "int8-block"
    assert wire_length(layout[:4], "int8-block", carries=True) < out[0].nbytes / 3.5 + 100
    back = load_payload(store, cid, layout[:4], carries=True)
    assert [x.tobytes() for x in back] == [out[0].tobytes()]
    carry = load_carry(store, cid, layout[:4], layout[4:])
    assert [x.tobytes() for x in carry] == [x.tobytes() for x in out[4:7]]


# -- the rest of the state


def test_anchor_stays_counter_counts_and_padding_stays_zero() -> None:
    flat = start()
    state = trained(built().step, flat)
    assert (state[2] == flat).all(), "anchor"
    assert int(state[6]) == ROUND * H + H, "counter"
    assert not state[0][GPT_USED:].any(), "what is no parameter"
    assert [s is None for s in state] == [False, True, False, True, False, False, False, True]


def test_encode_is_the_difference_bit_for_bit() -> None:
    programs, flat = built(), start()
    state = trained(programs.step, flat)
    payload = compile(programs.encode).run(state, StepContext(SEED, ROUND, SLOT, H + 1), DATA)
    assert payload[0].tobytes() == (flat - state[0]).tobytes()
    assert payload[1] is None


def test_int8_payload_loses_at_most_half_a_code_and_travels_as_bytes(tmp_path: Path) -> None:
    programs, flat = built(payload="int8-block"), start()
    state = trained(programs.step, flat)
    state[0] = np.concatenate([flat[:256], state[0][256:]])
    payload = compile(programs.encode).run(state, StepContext(SEED, ROUND, SLOT, H + 1), DATA)[0]
    difference = (flat - state[0]).reshape(-1, 256)
    bound = np.abs(difference).max(1, keepdims=True) / 127 * 0.501
    assert (np.abs(payload.reshape(-1, 256) - difference) <= bound).all()
    assert not payload[:256].any(), "a block that did not move is zero"
    layout = programs.encode.output_layout[:1]
    store = DirectoryStore(tmp_path)
    cid = store_payload(store, [payload], "int8-block")
    assert store.get_node(cid)["format"] == "int8-block"
    assert wire_length(layout, "int8-block") < payload.nbytes / 3.5
    assert load_payload(store, cid, layout)[0].tobytes() == payload.tobytes()


def test_int8_encode_in_eager_torch_gives_the_same_bits() -> None:
    programs, flat = built(payload="int8-block"), start()
    state = trained(programs.step, flat)
    spec = diloco.DiLoCo(payload="int8-block")
    difference = torch.from_numpy(flat) - torch.from_numpy(state[0].copy())
    due = spec.parts().codec.encode(difference, torch.tensor(ROUND)).numpy()
    got = compile(programs.encode).run(state, StepContext(SEED, ROUND, SLOT, H + 1), DATA)[0]
    assert got.tobytes() == due.tobytes()


def merge(program, slots: int, base, momentum, payloads, mask):
    half = len(program.inputs) // 4
    state = [base, None, momentum, None] + [None] * (2 * half - 4)
    state += [*payloads, *[None] * (half - slots), np.array(mask, np.float32), *[None] * (half - 1)]
    return compile(program).run(state, StepContext(SEED, ROUND, 0xFFFFFFFF, 1))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("slots", "mask"), [(2, [1, 1]), (3, [1, 0, 1]), (3, [0, 0, 0]), (6, [1, 1, 0, 1, 1, 1])])
def test_merge_is_nesterov_of_the_masked_mean(slots: int, mask: list[int]) -> None:
    program, rng = built(slots=slots).merge, np.random.default_rng(slots)
    base, momentum, *payloads = (rng.standard_normal(start().size).astype(np.float32) for _ in range(slots + 2))
    # What is masked out must not count, whatever it holds.
    payloads = [p if m else np.full_like(p, np.nan) for p, m in zip(payloads, mask, strict=True)]
    out = merge(program, slots, base, momentum, payloads, mask)
    counted = [p.astype(np.float64) for p, m in zip(payloads, mask, strict=True) if m]
    mean = sum(counted) / len(counted) if counted else np.zeros(base.size)
    spec = diloco.DiLoCo()
    next_momentum = spec.outer_momentum * momentum + mean
    due = base - spec.outer_learning_rate * (mean + spec.outer_momentum * next_momentum)
    np.testing.assert_allclose(out[2], next_momentum, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(out[0], due, rtol=1e-5, atol=1e-6)
    assert out[1] is None
    assert out[3] is None


@pytest.mark.parametrize(("rounds", "slots"), [(0, 3), (1, 0), (-1, 2)])
def test_job_without_rounds_or_slots_is_refused(rounds: int, slots: int) -> None:
    with pytest.raises(UsageError):
        built(rounds=rounds, slots=slots)


def test_batch_of_another_row_length_is_refused() -> None:
    with pytest.raises(UsageError, match="rows have"):
        training_job(
            GPT(CONFIG),
            diloco.DiLoCo(),
            Dataset(DATA, CONFIG.vocabulary),
            batch=Batch(rows=2, row_length=ROW - 1),
            rounds=1,
            slots=2,
            min_slots=1,
        )


def test_model_with_buffers_is_traced_with_them() -> None:
    class Shifted(GPT):
        """A GPT with a table that is no parameter."""

        def __init__(self) -> None:
            super().__init__(CONFIG)
            self.register_buffer("shift", torch.linspace(-1, 1, CONFIG.vocabulary))

        def forward(self, tokens_BT):
            """Logits, shifted."""
            return super().forward(tokens_BT) + self.shift

    programs = build_programs(
        Shifted(), next_token_loss, diloco.DiLoCo(inner_steps=H), batch=Batch(2, ROW), rounds=1, slots=2
    )
    assert len(programs.step.consts) == 2, "the schedule and the buffer"
