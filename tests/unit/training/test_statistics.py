"""Running statistics of batch norms: a step writes them, a payload carries them, a merge takes their mean."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.numerics.validate import validate
from lockstep.training import evaluation
from lockstep.training.baseline import Sample, optimise
from lockstep.training.comparison import compare
from lockstep.training.job import Batch, build_programs
from lockstep.training.optimizers import AdamW
from lockstep.training.parameters import first_statistics, initial_parameters, layout_of, running_statistics
from lockstep.training.strategies import allreduce, diloco
from lockstep.training.strategies.base import Strategy

SIDE, CLASSES = 8, 4
BATCH = Batch(6, SIDE * SIDE)
SEED, SLOTS = bytes(32), 2
INNER = AdamW(learning_rate=3e-3, warmup=5)


class Block(nn.Module):
    """Two convolutions and a shortcut (He 2016, figure 2)."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(out) for _ in range(3))
        self.shortcut = nn.Conv2d(width, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, width, H, W] -> [B, out, H / stride, W / stride]."""
        inner = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        return F.relu(inner + self.norms[2](self.shortcut(x)))


class ResNet(nn.Module):
    """A small residual network with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8, momentum=0.2)
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Images [B, 64] of 0 .. 15 -> scores [B, 4]."""
        x = F.relu(self.norm(self.stem(rows.float().view(-1, 1, SIDE, SIDE) / 8 - 1)))
        return self.head(self.blocks(x).mean((2, 3)))


def resnet() -> ResNet:
    torch.manual_seed(3)
    return ResNet()


def value(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of which quarter of an image is the brightest."""
    quarters = rows.view(-1, 2, 4, 2, 4).sum((2, 4)).view(-1, 4)
    return F.cross_entropy(model(rows), quarters.argmax(1))


def images() -> np.ndarray:
    drawn = np.random.default_rng(1).integers(0, 12, (96, 2, 4, 2, 4))
    at = np.random.default_rng(2).integers(0, 4, 96)
    drawn[np.arange(96), at // 2, :, at % 2] += 3
    return np.ascontiguousarray(drawn.reshape(96, -1).astype(np.int32))


def programs(model: nn.Module, spec: Strategy | None = None, batch: Batch = BATCH, loss=value):
    return build_programs(
        model, loss, spec or diloco.DiLoCo(inner=INNER, inner_steps=200), batch=batch, rounds=1, slots=SLOTS
    )


def start_of(model: nn.Module) -> list:
    """S_0 of DiLoCo with AdamW."""
    first = initial_parameters(model, 0)
    zero, shared = np.zeros_like(first), [first, *first_statistics(model, layout_of(model))]
    return [*shared, *shared, zero, zero, np.array(0, np.int32), None]


def trained(model: nn.Module, steps: int, batch: Batch = BATCH, loss=value) -> list:
    step, state, rows = compile(programs(model, batch=batch, loss=loss).step), start_of(model), images()
    for t in range(1, steps + 1):
        state = list(step.run(state, StepContext(SEED, 0, 0, t), rows))
    return state


def eager(model: nn.Module, steps: int, batch: Batch = BATCH, loss=value) -> nn.Module:
    model, sample = copy.deepcopy(model), Sample(images(), batch, SEED)
    # The schedule is that of 200 steps.
    optimise(model, lambda t: sample.value(model, loss, t), INNER, steps=steps)
    return model


def test_layout_has_the_statistics_behind_the_shards() -> None:
    layout = layout_of(resnet())
    assert len(layout.statistics) == 7 * 3, "mean, variance and counter of seven norms"
    assert layout.held == (*layout.sizes, 256), "167 words in whole leaves"
    described = layout.describe()
    assert [p["shard"] for p in described] == [0] * len(layout.parameters) + [1] * 21
    assert not layout_of(resnet().eval()).statistics, "in evaluation mode they are constants"
    assert len(running_statistics(nn.BatchNorm1d(3, momentum=None))) == 3
    assert not running_statistics(nn.BatchNorm1d(3, track_running_stats=False))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_step_writes_the_statistics_that_torch_does(accumulation: int) -> None:
    model = resnet()
    batch = Batch(BATCH.rows, BATCH.row_length, accumulation)
    before = copy.deepcopy(model.state_dict())
    state, layout = trained(model, 1, batch), layout_of(model)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items()), "the model is left as it was"
    due = dict(eager(model, 1, batch).named_buffers())
    found = layout.buffers([torch.from_numpy(np.array(x)) for x in state[:2]])
    assert set(found) == set(due)
    for name, values in found.items():
        np.testing.assert_allclose(values, due[name].float(), rtol=2e-5, atol=1e-6, err_msg=name)
    assert found["norm.num_batches_tracked"] == accumulation
    assert np.array_equal(state[3], start_of(model)[3]), "the anchor stays"


@pytest.mark.slow
def test_second_call_of_the_model_goes_on_from_the_first_one_s_statistics() -> None:
    model = resnet()

    def twice(called: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        return value(called, rows) + value(called, rows.flip(1))

    state, due = trained(model, 1, loss=twice), dict(eager(model, 1, loss=twice).named_buffers())
    found = layout_of(model).buffers([torch.from_numpy(np.array(x)) for x in state[:2]])
    assert found["norm.num_batches_tracked"] == 2
    np.testing.assert_allclose(found["norm.running_var"], due["norm.running_var"], rtol=2e-5)


@pytest.mark.slow
def test_payload_carries_them_and_a_merge_takes_the_mean_of_the_accepted() -> None:
    model = resnet()
    built = programs(model)
    for program in (built.step, built.encode, built.merge):
        validate(program)
    assert (built.sections.shared_depth, built.sections.payload_depth) == (1, 1)
    states = [start_of(model), trained(model, 1)]
    payloads = [list(compile(built.encode).run(s, StepContext(SEED, 0, k, 3)))[:2] for k, s in enumerate(states)]
    for sent, state in zip(payloads, states, strict=True):
        assert np.array_equal(sent[1], state[1]), "as it is"
    base, outer = states[0][:2], [np.zeros_like(states[0][0]), None]
    half = [*base, *outer, None, None, None, None]

    def merged(*mask: float) -> np.ndarray:
        given = [*half, *payloads[0], *payloads[1], np.array(mask, np.float32), None, None, None]
        return np.asarray(list(compile(built.merge).run(given, StepContext(SEED, 0, 0, 1)))[1])

    both = (payloads[0][1] + payloads[1][1]) / np.float32(2)
    assert np.array_equal(merged(1, 1), both)
    assert np.array_equal(merged(0, 1), payloads[1][1]), "a slot that was not accepted does not count"
    assert np.array_equal(merged(0, 0), base[1])


@pytest.mark.slow
def test_strategy_of_gradients_keeps_them_apart_from_the_gradient() -> None:
    model = resnet()
    built = programs(model, allreduce.AllReduce())
    for program in (built.step, built.encode, built.merge):
        validate(program)
    layout, first = layout_of(model), start_of(model)[:2]
    start = built.sections.slot_state(first, first, [], np.array(0, np.int32))
    state = list(compile(built.step).run(start, StepContext(SEED, 0, 0, 1), images()))
    due = dict(eager(model, 1).named_buffers())
    found = layout.buffers([torch.from_numpy(np.array(x)) for x in state[:2]])
    np.testing.assert_allclose(found["norm.running_mean"], due["norm.running_mean"], rtol=2e-5, atol=1e-6)


def test_evaluation_reads_the_statistics_of_the_checkpoint() -> None:
    model = resnet()
    built = evaluation.build_programs(model, value, batch=BATCH, batches=1, rounds=1, slots=1)
    first, sample = initial_parameters(model, 0), Sample(images(), BATCH, SEED)
    moved = eager(model, 3).eval()
    statistics = first_statistics(moved, layout_of(model))[0]
    with torch.no_grad():
        plain = copy.deepcopy(model).eval()
        for name, buffer in plain.named_buffers():
            buffer.copy_(dict(moved.named_buffers())[name])
        due = sample.value(plain, value, 1).item()
    state = [first, statistics, first, statistics, np.zeros(2, np.float32), None, np.array(0, np.int32), None]
    total = list(compile(built.step).run(state, StepContext(SEED, 0, 0, 1), images()))[4]
    assert total[0] == pytest.approx(due, rel=1e-5)


@pytest.mark.slow
def test_residual_network_trains_as_in_eager_and_replays_to_the_bit() -> None:
    model, rows = resnet(), images()
    first = initial_parameters(model, 0)
    found = compare(model, value, rows, first, INNER, batch=BATCH, steps=200)
    assert found.ratio == pytest.approx(1, abs=0.01)
    once, again = trained(model, 200), trained(model, 200)
    assert np.asarray(once[1]).tobytes() == np.asarray(again[1]).tobytes(), "the running statistics, bit by bit"
    due = dict(eager(model, 200).named_buffers())
    statistics = layout_of(model).buffers([torch.from_numpy(np.array(x)) for x in once[:2]])
    assert statistics["norm.num_batches_tracked"] == 200
    np.testing.assert_allclose(statistics["norm.running_mean"], due["norm.running_mean"], rtol=0.05, atol=0.02)
