"""Strategies against their papers' equations in float64.

A strategy's numbers come from a job's own Programs; aggregates are called as they are. A reference starts each step
from the state that the Programs left, so that an error shows where it is made. test_libraries.py has what the code of
others computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lockstep.protocol.errors import UsageError
from lockstep.storage.payload import Checkpoint
from lockstep.training.aggregates.mean import Average
from lockstep.training.aggregates.robust import CentredClipping, GeometricMedian, Krum, Median, Trimmed
from lockstep.training.codecs.exact import Exact
from lockstep.training.codecs.random_k import RandomK
from lockstep.training.codecs.topk import TopK
from lockstep.training.models import GPT
from lockstep.training.optimizers import Muon
from lockstep.training.parameters import layout_of
from lockstep.training.rehearsal import Rehearsal, Rehearsed
from lockstep.training.strategies import (
    allreduce,
    cocktail,
    demo,
    diloco,
    distro,
    fedavg,
    muloco,
    onebit,
    sparseloco,
    sparseloco_e,
)
from tests.battery.test_codecs import uniform64
from tests.battery.test_strategies import CONFIG, ROUNDS, SLOTS, traced_once

Wide = NDArray[np.float64]
OWN = layout_of(GPT(CONFIG)).own[0]
ABSENT = {1: {1}}
"""Round to the slots that publish nothing."""


def wide(x: Any) -> Wide:
    return np.asarray(x).astype(np.float64)


def apart(x: Any, due: Wide) -> float:
    """The relative error in norm."""
    return float(np.linalg.norm(wide(x) - due) / np.linalg.norm(due))


def draws(r: int, slot: int) -> NDArray[np.float32]:
    """A heavy-tailed move of all parameters, none of the padding."""
    normal = np.random.default_rng(100 * r + slot).standard_normal(layout_of(GPT(CONFIG)).size)
    normal[OWN:] = 0
    return (0.01 * normal * np.abs(normal)).astype(np.float32)


class Course:
    """Rounds of a strategy whose slots' moves are `draws`."""

    def __init__(self, strategy: Any) -> None:
        self.rehearsal = Rehearsal(traced_once(strategy).job)
        self.state = self.rehearsal.first()
        self.gradient = strategy.parts().sent == "gradient"

    def sent(self, slot: int) -> tuple[Wide, NDArray[np.float32], tuple[np.ndarray, ...]]:
        """(what a slot has found, its payload, its carry), of the next round."""
        r, (base,) = self.state.round, self.state.checkpoint.shared
        state = list(self.rehearsal.start(self.state, slot))
        state[0] = draws(r, slot) if self.gradient else base - draws(r, slot)
        (payload,), carry = self.rehearsal.output(state, r, slot)
        found = wide(state[0]) if self.gradient else wide(base) - wide(state[0])
        return found[:OWN], payload, carry

    def merge(self, payloads: Sequence[np.ndarray | None], carries: Sequence[Any]) -> Checkpoint:
        """Merges the next round, and goes on."""
        given = [None if p is None else (p,) for p in payloads]
        merged = self.rehearsal.merged(self.state.checkpoint, given, self.state.round)
        kept = tuple(c if self.rehearsal.job.carry else None for c in carries)
        self.state = Rehearsed(self.state.round + 1, merged, kept)
        return merged


# -- dense


def test_diloco_s_outer_step_is_torch_s_own() -> None:
    course = Course(diloco.DiLoCo(inner_steps=4))
    parameter = torch.nn.Parameter(torch.from_numpy(wide(course.rehearsal.genesis.shared[0])))
    outer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(ROUNDS):
        payloads = [course.sent(slot)[1] for slot in range(SLOTS)]
        merged = course.merge(payloads, [None] * SLOTS)
        parameter.grad = torch.from_numpy(np.mean(wide(payloads), axis=0))
        outer.step()
        assert apart(merged.shared[0], parameter.detach().numpy()) < 1e-6


# -- sparse


def sparse64(x: Wide, block: int = 4096, kept: int = 64) -> tuple[NDArray[np.bool_], Wide]:
    """(support, values) of the paper's TopK and its 2-bit bins."""
    mask = np.zeros(x.size, bool)
    for first in range(0, x.size, block):
        part = np.abs(x[first : first + block])
        mask[first + np.argsort(-part, kind="stable")[:kept]] = True
    values, (binned, margin) = np.zeros(x.size), uniform64(x[mask], 4)
    assert margin.min() > 1e-5, "no element is on a boundary of bins"
    values[mask] = binned
    return mask, values


@pytest.mark.sampled(1)
@pytest.mark.parametrize("aggregate", [Average(clip=True), Average(over="slots")], ids=["Templar", "paper"])
@pytest.mark.parametrize("kind", [sparseloco.SparseLoCo, sparseloco_e.SparseLoCoE])
def test_sparseloco_is_its_equations(kind: Any, aggregate: Average) -> None:
    course = Course(kind(inner_steps=4, aggregate=aggregate))
    kept = [np.zeros(OWN)] * SLOTS
    for r in range(ROUNDS):
        payloads: list[Any] = [None] * SLOTS
        carries: list[Any] = [None] * SLOTS
        for slot in range(SLOTS):
            if slot in ABSENT.get(r, ()):
                kept[slot] = np.zeros(OWN)
                continue
            found, payload, carries[slot] = course.sent(slot)
            x = kept[slot] + found
            mask, due = sparse64(x)
            np.testing.assert_array_equal(payload.view(np.uint32) != 0, mask, err_msg="equal supports")
            assert apart(payload, due) < 1e-6
            assert apart(carries[slot][-1], 0.95 * (x - due)) < 1e-6
            payloads[slot], kept[slot] = payload, wide(carries[slot][-1])
        (base,) = course.state.checkpoint.shared
        merged = course.merge(payloads, carries)
        there = [wide(p) for p in payloads if p is not None]
        if aggregate.clip:
            norms = [np.linalg.norm(p) for p in there]
            there = [p * min(1, np.median(norms) / n) for p, n in zip(there, norms, strict=True)]
        mean = sum(there) / (len(there) if aggregate.over == "contributors" else SLOTS)
        assert apart(wide(base)[:OWN] - wide(merged.shared[0])[:OWN], mean) < 1e-5, "the subtraction rounds"
        assert apart(merged.shared[0][:OWN], wide(base)[:OWN] - mean) < 1e-6


def newton_schulz64(x: Wide) -> Wide:
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if tall else x


def test_muon_is_its_equations_and_nearly_orthogonal() -> None:
    layout, optimizer = layout_of(GPT(CONFIG)), Muon(warmup=0)
    rules = optimizer.over(3, None, layout)
    p = torch.from_numpy(np.random.default_rng(1).standard_normal(layout.size).astype(np.float32))
    state = [torch.zeros_like(x) for x in rules.init([p], torch.zeros((), dtype=torch.int32))]
    due, momenta, seconds = {}, {}, {}
    for name, x in layout.split(p).items():
        due[name], momenta[name], seconds[name] = wide(x), np.zeros(x.shape), np.zeros(x.shape)
    hidden = [each for each in layout.parameters if optimizer.hidden(each)]
    assert {each.name.split(".")[-2] for each in hidden} == {"qkv", "proj", "up", "down"}
    for t in range(3):
        g = torch.from_numpy(draws(t, 0))
        state, (p,) = rules.update(state, torch.tensor(t, dtype=torch.int32), [p], [g])
        rate = optimizer.rate(t, 3)
        for each in layout.parameters:
            n, slope = each.name, wide(layout.split(g)[each.name])
            if optimizer.hidden(each):
                momenta[n] = 0.95 * momenta[n] + slope
                step = newton_schulz64(slope + 0.95 * momenta[n]) * 0.2 * np.sqrt(max(each.shape))
                values = np.linalg.svd(step, compute_uv=False) / (0.2 * np.sqrt(max(each.shape)))
                assert 0.5 < np.median(values) < 1.3, "singular values near 1"
            else:
                momenta[n] = 0.9 * momenta[n] + 0.1 * slope
                seconds[n] = 0.95 * seconds[n] + 0.05 * slope**2
                root = np.sqrt(seconds[n] / (1 - 0.95 ** (t + 1))) + 1e-8
                step = momenta[n] / (1 - 0.9 ** (t + 1)) / root
            due[n] = due[n] * (1 - rate * 0.1) - rate * step
            assert apart(layout.split(p)[n], due[n]) < 1e-6, n


@pytest.mark.slow
@pytest.mark.parametrize("width", [2, 4])
def test_muloco_keeps_nine_tenths_of_what_its_bins_leave_out(width: int) -> None:
    from lockstep.training.codecs.uniform import Uniform

    strategy = muloco.MuLoCo(inner_steps=4) if width == 4 else muloco.MuLoCo(inner_steps=4, codec=Uniform(width=2))
    course, kept, momentum = Course(strategy), [np.zeros(OWN)] * SLOTS, np.zeros(OWN)
    for _ in range(ROUNDS):
        sent = [course.sent(slot) for slot in range(SLOTS)]
        for slot, (found, payload, carry) in enumerate(sent):
            x = kept[slot] + found
            due, margin = uniform64(x, 1 << width)
            clear = margin > 1e-4
            assert clear.mean() > 0.99
            np.testing.assert_allclose(payload[clear], due[clear], rtol=2e-4, atol=1e-9)
            assert apart(carry[-1], 0.9 * (x - wide(payload))) < 1e-6
            kept[slot] = wide(carry[-1])
        (base,) = course.state.checkpoint.shared
        mean = np.mean([wide(payload) for _, payload, _ in sent], axis=0)
        momentum = 0.9 * momentum + mean
        merged = course.merge([payload for _, payload, _ in sent], [carry for *_, carry in sent])
        assert apart(merged.shared[0][:OWN], wide(base)[:OWN] - 0.7 * (mean + 0.9 * momentum)) < 1e-6
        assert apart(merged.outer[0][:OWN], momentum) < 1e-6


# -- gradients


def cosines() -> Wide:
    k, i = np.meshgrid(np.arange(64), np.arange(64), indexing="ij")
    return np.sqrt(np.where(k == 0, 1, 2) / 64) * np.cos(np.pi * (2 * i + 1) * k / 128)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "kept"), [(demo.DeMo(), 8), (distro.DisTrO(), 4)], ids=["demo", "distro"])
def test_demo_sends_the_strongest_cosines_of_what_is_left(strategy: demo.DeMo, kept: int) -> None:
    course, table, left = Course(strategy), cosines(), [np.zeros(OWN)] * SLOTS
    padded = OWN + -OWN % 4096
    for r in range(ROUNDS):
        sent = [course.sent(slot) for slot in range(SLOTS)]
        decoded = []
        for slot, (found, payload, carry) in enumerate(sent):
            x = left[slot] + found
            chunks = np.pad(x, (0, padded - OWN)).reshape(-1, 64, 64)
            coefficients = (table @ chunks @ table.T).reshape(-1)
            mask, _ = strongest(coefficients, kept)
            np.testing.assert_array_equal(payload.view(np.uint32) != 0, mask, err_msg="equal supports")
            if kept == 8:
                assert (np.abs(payload - coefficients)[mask] <= 2.0**-11 * 1.001 * np.abs(coefficients[mask])).all()
            else:
                level = np.abs(coefficients[mask]).mean()
                np.testing.assert_allclose(payload[mask], np.sign(coefficients[mask]) * level, rtol=1e-6)
            back = (table.T @ wide(payload).reshape(-1, 64, 64) @ table).reshape(-1)[:OWN]
            decoded.append(back)
            assert apart(carry[-1], 0.999 * (x - back)) < 1e-6
            left[slot] = wide(carry[-1])
        (base,) = course.state.checkpoint.shared
        merged = course.merge([payload for _, payload, _ in sent], [carry for *_, carry in sent])
        mean = np.mean(decoded, axis=0)
        clear = np.abs(mean) > 1e-6 * np.abs(mean).max()
        assert clear.mean() > 0.9
        due = wide(base)[:OWN] - strategy.outer.rate(r, ROUNDS) * np.sign(mean)  # type: ignore[attr-defined]
        assert apart(merged.shared[0][:OWN][clear], due[clear]) < 1e-6


def strongest(x: Wide, kept: int) -> tuple[NDArray[np.bool_], Wide]:
    mask = np.zeros(x.size, bool)
    for first in range(0, x.size, 4096):
        mask[first + np.argsort(-np.abs(x[first : first + 4096]), kind="stable")[:kept]] = True
    return mask, np.where(mask, x, 0)


@pytest.mark.slow
def test_onebit_is_adam_then_signs_over_a_frozen_second_moment() -> None:
    strategy = onebit.OneBit(warm_rounds=1)
    course = Course(strategy)
    m, v, left = np.zeros(OWN), np.zeros(OWN), [np.zeros(OWN)] * SLOTS
    behind = np.zeros(OWN)
    for r in range(ROUNDS):
        sent = [course.sent(slot) for slot in range(SLOTS)]
        for slot, (found, payload, carry) in enumerate(sent):
            x = left[slot] + found
            if r < 1:
                np.testing.assert_array_equal(payload, x.astype(np.float32))
            else:
                for first in range(0, OWN, 4096):
                    part = x[first : first + 4096]
                    due = np.where(part < 0, -1, 1) * np.abs(part).mean()
                    np.testing.assert_allclose(payload[first : first + 4096], due, rtol=1e-6)
                assert apart(carry[-1], x - wide(payload)) < 1e-6
            left[slot] = wide(carry[-1])
        (base,) = course.state.checkpoint.shared
        first, *others = [payload for _, payload, _ in sent]
        # Rounded as the merge rounds: what is compared is its step alone.
        mean = wide(sum(others, start=first) / np.float32(SLOTS) + behind.astype(np.float32))
        merged = course.merge([payload for _, payload, _ in sent], [carry for *_, carry in sent])
        if r < 1:
            m, v = 0.1 * mean, 0.001 * mean**2
        else:
            m = np.concatenate([
                np.where(part < 0, -1, 1) * np.abs(part).mean()
                for part in (mean[first : first + 4096] for first in range(0, OWN, 4096))
            ])  # fmt: skip
            assert apart(wide(merged.outer[-1])[:OWN] + wide(merged.outer[0])[:OWN], mean) < 1e-6, "nothing is lost"
        behind = wide(merged.outer[-1])[:OWN]
        # The mean of 4,096 magnitudes that are nearly all the same is a sum whose roundings add up.
        assert apart(merged.outer[0][:OWN], m) < 2e-6
        assert apart(merged.outer[1][:OWN], v) < 1e-6
        rate = rate_of(strategy, r)
        step = rate * (m / (1 - 0.9 ** (r + 1))) / (np.sqrt(v / (1 - 0.999)) + 1e-8)
        assert apart(merged.shared[0][:OWN], wide(base)[:OWN] - step) < 1e-5


def rate_of(strategy: onebit.OneBit, r: int) -> float:
    o = strategy
    return o.rate(r, ROUNDS)


@pytest.mark.slow
def test_cocktail_keeps_the_largest_of_a_seeded_part_and_both_ends_keep_the_rest() -> None:
    strategy = cocktail.Cocktail()
    course, left, behind = Course(strategy), [np.zeros(OWN)] * SLOTS, np.zeros(OWN)
    for r in range(ROUNDS):
        now = torch.tensor(r, dtype=torch.int32)
        seeded = RandomK(4096, 512).decode(RandomK(4096, 512).encode(torch.ones(OWN), now), OWN, now).numpy() != 0
        sent = [course.sent(slot) for slot in range(SLOTS)]
        back = [wide(strategy.codec.decode(torch.from_numpy(p.copy()), OWN, now)) for _, p, _ in sent]
        for slot, (found, _, carry) in enumerate(sent):
            x, kept = left[slot] + found, back[slot] != 0
            assert not (kept & ~seeded).any()
            for first in range(0, OWN - OWN % 4096, 4096):
                part = slice(first, first + 4096)
                assert kept[part].sum() == 56
                dropped = seeded[part] & ~kept[part]
                assert np.abs(x[part][kept[part]]).min() >= np.abs(x[part][dropped]).max() * (1 - 1e-6)
            assert np.unique(back[slot][kept]).size <= 16, "four bits"
            assert apart(carry[-1], x - back[slot]) < 1e-6
            left[slot] = wide(carry[-1])
        (base,) = course.state.checkpoint.shared
        mean = (np.mean(back, axis=0) + behind).astype(np.float32)
        merged = course.merge([p for _, p, _ in sent], [carry for *_, carry in sent])
        applied = wide(base)[:OWN] - wide(merged.shared[0])[:OWN]
        behind = wide(merged.outer[-1])[:OWN]
        assert np.abs(applied + behind - mean).max() < 1e-6 * np.abs(base).max(), "nothing is lost at the merge"
        assert 0 < (np.abs(applied) > 0).sum() <= 56 * -(-OWN // 4096)


# -- robust aggregates

POINTS = np.random.default_rng(9).standard_normal((7, 300)) * np.linspace(0.5, 2, 7)[:, None]
POINTS[2] += 40
"""Seven payloads, of which one is far away."""
MASKS = {"all": [1] * 7, "five": [1, 0, 1, 1, 0, 1, 1], "two": [0, 0, 1, 0, 0, 1, 0], "one": [0, 0, 0, 1, 0, 0, 0]}


def combined(aggregate: Any, mask: list[int]) -> Wide:
    given = [np.where(m, p, np.nan) for p, m in zip(POINTS, mask, strict=True)]
    payloads = [[torch.from_numpy(part.astype(np.float32)) for part in (p[:100], p[100:])] for p in given]
    return wide(torch.cat(aggregate.combine(payloads, torch.tensor(mask, dtype=torch.float32))))


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_medians_and_trimmed_means_are_numpy_s(mask: list[int]) -> None:
    there = POINTS[np.array(mask) > 0]
    assert apart(combined(Median(), mask), np.median(there, axis=0)) < 1e-6
    cut = min(1, (len(there) - 1) // 2)
    assert apart(combined(Trimmed(1), mask), np.sort(there, axis=0)[cut : len(there) - cut].mean(0)) < 1e-6


@pytest.mark.parametrize("picked", [1, 3])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_krum_picks_what_its_scores_say(mask: list[int], picked: int) -> None:
    there = POINTS[np.array(mask) > 0]
    squares = ((there[:, None] - there[None]) ** 2).sum(-1)
    near = max(1, len(there) - 1 - 2)
    scores = [np.sort(np.delete(row, i))[:near].sum() for i, row in enumerate(squares)]
    best = np.argsort(scores, kind="stable")[:picked]
    assert apart(combined(Krum(1, picked), mask), there[best].mean(0)) < 1e-6


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_clipping_and_the_geometric_median_are_their_iterations(mask: list[int]) -> None:
    there = POINTS[np.array(mask) > 0]
    z = np.zeros(300)
    for _ in range(8):
        weights = 1 / np.maximum(np.linalg.norm(there - z, axis=1), 1e-6)
        z = (weights[:, None] * there).sum(0) / weights.sum()
    assert apart(combined(GeometricMedian(), mask), z) < 1e-5
    v = np.zeros(300)
    for _ in range(3):
        gaps = there - v
        v = v + (gaps * np.minimum(1, 5 / np.linalg.norm(gaps, axis=1))[:, None]).mean(0)
    assert apart(combined(CentredClipping(5.0), mask), v) < 1e-6


ROBUST = {
    "median": Median(),
    "trimmed": Trimmed(1),
    "krum": Krum(1),
    "multi_krum": Krum(1, 6),
    "geometric_median": GeometricMedian(3, 0.1),
    "centred_clipping": CentredClipping(5.0),
}


def test_one_far_payload_moves_a_mean_and_no_robust_aggregate() -> None:
    honest = POINTS[[0, 1, 3, 4, 5, 6]].mean(0)
    assert apart(combined(Average(), [1] * 7), honest) > 5
    for aggregate in (Median(), Trimmed(1), Krum(1), Krum(1, 4), GeometricMedian(), Average(clip=True)):
        moved = np.linalg.norm(combined(aggregate, [1] * 7) - honest)
        assert moved < 0.2 * np.linalg.norm(POINTS[2] - honest), aggregate


@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("aggregate", ROBUST.values(), ids=ROBUST.keys())
def test_an_accepted_payload_that_is_no_number_does_not_win(aggregate: Any, strange: float) -> None:
    payloads = [[torch.from_numpy(p.astype(np.float32))] for p in POINTS]
    payloads[2] = [torch.full((300,), strange)]
    (found,) = aggregate.combine(payloads, torch.ones(7))
    assert np.linalg.norm(wide(found)) < 2 * np.linalg.norm(POINTS[[0, 1, 3, 4, 5, 6]], axis=1).max()


@pytest.mark.parametrize("aggregate", [Median(), Trimmed()])
def test_a_median_of_sparse_payloads_is_refused(aggregate: Any) -> None:
    for codec in (TopK(), RandomK(512, 64, TopK(64, 8)), demo.DeMo().codec):
        with pytest.raises(UsageError, match="keep") as refused:
            sparseloco.SparseLoCo(codec=codec, aggregate=aggregate)
        assert refused.value.hint
    sparseloco.SparseLoCo(aggregate=Krum())
    assert allreduce.AllReduce(aggregate=aggregate).parts().codec == Exact()
    assert replace(fedavg.FedAvg(), aggregate=aggregate)
