"""The three Programs of a job, run natively, against eager PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lockstep.numerics.executor import Context, compile  # noqa: A004
from lockstep.numerics.reference import drawn_row
from lockstep.protocol.errors import UsageError
from lockstep.storage.dataset import Dataset
from lockstep.storage.payload import decode_payload, encode_payload, wire_length
from lockstep.training.baseline import flat_parameters, load_parameters
from lockstep.training.job import Batch, build_programs, training_job
from lockstep.training.models import GPT, GPTConfig, next_token_loss
from lockstep.training.optimizers import AdamW
from lockstep.training.parameters import initial_parameters
from lockstep.training.strategies import diloco

CONFIG = GPTConfig(vocabulary=32, context=16, layers=2, heads=2, width=32)
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
    spec = diloco.Spec(inner=INNER, inner_steps=H, payload=changes.pop("payload", "f32"))
    settings = {"batch": Batch(rows=3, row_length=ROW), "rounds": 3, "slots": 3, **changes}
    return build_programs(GPT(CONFIG), next_token_loss, spec, **settings)


def slot_state(flat: np.ndarray, counter: int) -> list:
    zero = np.zeros_like(flat)
    return [flat, None, flat, None, zero, zero, np.array(counter, np.int32), None]


def trained(program, flat: np.ndarray) -> list:
    """The state after H steps of round 1, slot 2."""
    state, executable = slot_state(flat, ROUND * H), compile(program)
    for t in range(1, H + 1):
        state = list(executable.run(state, Context(SEED, ROUND, SLOT, t), DATA))
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


@pytest.mark.parametrize("batch", [Batch(3, ROW), Batch(2, ROW, accumulation=2)])
def test_steps_equal_torch_s_adamw_in_float64(batch: Batch) -> None:
    flat = start()
    state = trained(built(batch=batch).step, flat)
    due = eager(flat, batch.rows * batch.accumulation)
    moved = np.abs(due - flat)
    assert moved.max() > 1e-3, "the steps move the weights"
    np.testing.assert_allclose(state[0][:GPT_USED], due[:GPT_USED], rtol=0, atol=2e-3 * moved.max())
    assert np.median(np.abs(state[0] - due)) < 1e-7, "binary32 alone separates most of them"


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
    payload = compile(programs.encode).run(state, Context(SEED, ROUND, SLOT, H + 1), DATA)
    assert payload[0].tobytes() == (flat - state[0]).tobytes()
    assert payload[1] is None


def test_int8_payload_loses_at_most_half_a_code_and_travels_as_bytes() -> None:
    programs, flat = built(payload="int8-block"), start()
    state = trained(programs.step, flat)
    state[0] = np.concatenate([flat[:256], state[0][256:]])
    payload = compile(programs.encode).run(state, Context(SEED, ROUND, SLOT, H + 1), DATA)[0]
    difference = (flat - state[0]).reshape(-1, 256)
    bound = np.abs(difference).max(1, keepdims=True) / 127 * 0.501
    assert (np.abs(payload.reshape(-1, 256) - difference) <= bound).all()
    assert not payload[:256].any(), "a block that did not move is zero"
    layout = programs.encode.output_layout[:1]
    data = encode_payload([payload], "int8-block")
    assert len(data) == wire_length(layout, "int8-block") < payload.nbytes / 3.5
    assert decode_payload(data, layout)[0].tobytes() == payload.tobytes()


def test_int8_encode_in_eager_torch_gives_the_same_bits() -> None:
    programs, flat = built(payload="int8-block"), start()
    state = trained(programs.step, flat)
    spec = diloco.Spec(payload="int8-block")
    due = diloco.encode(spec, torch.from_numpy(flat), torch.from_numpy(state[0].copy())).numpy()
    got = compile(programs.encode).run(state, Context(SEED, ROUND, SLOT, H + 1), DATA)[0]
    assert got.tobytes() == due.tobytes()


def merge(program, slots: int, base, momentum, payloads, mask):
    half = len(program.inputs) // 4
    state = [base, None, momentum, None] + [None] * (2 * half - 4)
    state += [*payloads, *[None] * (half - slots), np.array(mask, np.float32), *[None] * (half - 1)]
    return compile(program).run(state, Context(SEED, ROUND, 0xFFFFFFFF, 1))


@pytest.mark.parametrize(("slots", "mask"), [(2, [1, 1]), (3, [1, 0, 1]), (3, [0, 0, 0]), (6, [1, 1, 0, 1, 1, 1])])
def test_merge_is_nesterov_of_the_masked_mean(slots: int, mask: list[int]) -> None:
    program, rng = built(slots=slots).merge, np.random.default_rng(slots)
    base, momentum, *payloads = (rng.standard_normal(start().size).astype(np.float32) for _ in range(slots + 2))
    # What is masked out must not count, whatever it holds.
    payloads = [p if m else np.full_like(p, np.nan) for p, m in zip(payloads, mask, strict=True)]
    out = merge(program, slots, base, momentum, payloads, mask)
    counted = [p.astype(np.float64) for p, m in zip(payloads, mask, strict=True) if m]
    mean = sum(counted) / len(counted) if counted else np.zeros(base.size)
    spec = diloco.Spec()
    next_momentum = spec.outer_momentum * momentum + mean
    due = base - spec.outer_learning_rate * (mean + spec.outer_momentum * next_momentum)
    np.testing.assert_allclose(out[2], next_momentum, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(out[0], due, rtol=1e-5, atol=1e-6)
    assert out[1] is None
    assert out[3] is None


@pytest.mark.parametrize(("rounds", "slots"), [(0, 3), (1, 1), (-1, 2)])
def test_job_without_rounds_or_peers_is_refused(rounds: int, slots: int) -> None:
    with pytest.raises(UsageError):
        built(rounds=rounds, slots=slots)


def test_batch_of_another_row_length_is_refused() -> None:
    with pytest.raises(UsageError, match="rows of"):
        training_job(
            GPT(CONFIG),
            diloco.Spec(),
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
        Shifted(), next_token_loss, diloco.Spec(inner_steps=H), batch=Batch(2, ROW), rounds=1, slots=2
    )
    assert len(programs.step.consts) == 2, "the schedule and the buffer"
