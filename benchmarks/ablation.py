"""Integer products beside float32 and bfloat16: what each choice of the arithmetic costs in loss.

    python benchmarks/ablation.py                   runs what is missing, then a table
    python benchmarks/ablation.py --hours 0         the table of what has been run
    python benchmarks/ablation.py --json            one line of JSON on stdout

Emulates `quant` and `qdot` in PyTorch, exactly: the sum of a group is a float32 product of codes, which is exact as an
integer below 2^24. Everything but products is eager float32. Runs of one model, size and seed have the same first
weights and rows, so that their losses differ by the arithmetic alone. Every finished run is a line of the state file.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

from lockstep.training.baseline import evaluate, load_parameters, optimise
from lockstep.training.data import demo_corpus
from lockstep.training.models import GPT, GPTConfig, Llama, LlamaConfig, next_token_loss
from lockstep.training.optimizers import AdamW
from lockstep.training.parameters import initial_parameters

STATE = Path("out/ablation.jsonl")
LAST = 20
"""Training losses at the end whose mean is compared."""
HELD_OUT_ROWS = 256
BITS = 16
"""Random bits that round one element."""


@dataclass(frozen=True)
class Recipe:
    """Choices of the arithmetic; 0 limbs leave a product in float32."""

    group: int = 256
    scale: str = "127"
    """"127": a / 127, rounded; "power": the power of two at or below a, divided by 64."""
    stochastic: bool = True
    """Gradients are rounded up with the probability of their fraction, other operands to nearest."""
    linear: int = 1
    head: int = 2
    attention: int = 1
    """Scores, forward."""
    values: int = 0
    """Probabilities times values, forward: integers there are not causal."""
    attention_gradients: int = 2
    down: int = 1
    """The second product of a feed-forward network, forward and backward."""


RECIPE = Recipe()
ARMS: dict[str, Recipe | None] = {
    "float32": None,
    "bfloat16": None,
    "int8": RECIPE,
    "nearest gradients": replace(RECIPE, stochastic=False),
    "power of two": replace(RECIPE, scale="power"),
    "one-limb head": replace(RECIPE, head=1),
    "one-limb attention gradients": replace(RECIPE, attention_gradients=1),
    "two-limb down": replace(RECIPE, down=2),
    "one limb everywhere": replace(RECIPE, head=1, attention_gradients=1),
    "groups of 128": replace(RECIPE, group=128),
    "values in codes": replace(RECIPE, values=1),
    "float32 attention": replace(RECIPE, attention=0, attention_gradients=0),
    "two limbs everywhere": replace(RECIPE, linear=2, attention=2, values=2, down=2),
    "power of two and nearest": replace(RECIPE, scale="power", stochastic=False),
}
"""The float32 run comes first: the others are stated against it."""


@dataclass(frozen=True)
class Scale:
    """A model's shape and how long it is trained."""

    layers: int
    width: int
    context: int
    rows: int
    steps: int


SIZES = {
    "small": Scale(layers=2, width=256, context=64, rows=8, steps=200),
    "medium": Scale(layers=4, width=256, context=128, rows=8, steps=400),
    "large": Scale(layers=6, width=320, context=128, rows=8, steps=1500),
}


def model_of(kind: str, size: Scale) -> nn.Module:
    """A byte-level GPT, or a Llama with its gated feed-forward network."""
    heads = size.width // 64
    if kind == "gpt":
        return GPT(GPTConfig(context=size.context, layers=size.layers, heads=heads, width=size.width))
    hidden, shared = size.width * 8 // 3 // 8 * 8, heads // 2 if heads % 2 == 0 else 1
    return Llama(LlamaConfig(256, size.context, size.layers, heads, shared, size.width, hidden))


# --- the arithmetic ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Codes:
    """An operand as codes and scales, one group after another along its last axis."""

    codes: list[Tensor]
    """f32 [..., M, K']: integers of -127 to 127, a tensor for each group."""
    scales: list[Tensor]
    """f32 [..., M, 1]."""


def quantised(x: Tensor, arithmetic: Recipe, random: torch.Generator | None) -> tuple[Codes, Tensor]:
    """Codes of x [..., M, K] along K, and what they stand for; `random` rounds stochastically."""
    codes, scales = [], []
    for part in x.split(arithmetic.group, -1):
        largest = part.abs().amax(-1, keepdim=True)
        if arithmetic.scale == "127":
            scale = largest.clamp_min(1e-30) / 127
            steps = part * (127 / largest.clamp_min(1e-30))
        else:
            scale = torch.exp2(torch.frexp(largest.clamp_min(1e-30))[1].float() - 7)
            steps = part / scale
        if random is None:
            steps = steps.round()
        else:
            steps = (steps + torch.randint(0, 1 << BITS, steps.shape, generator=random) / (1 << BITS)).floor()
        codes.append(steps.clamp(-127, 127))
        scales.append(scale)
    return Codes(codes, scales), torch.cat([c * s for c, s in zip(codes, scales, strict=True)], -1)


def exact(a: Codes, b: Codes, start: Tensor | None = None) -> Tensor:
    """[..., M, N]: over groups in order, the integer sum of a group times the product of its scales."""
    total = start
    for code_a, scale_a, code_b, scale_b in zip(a.codes, a.scales, b.codes, b.scales, strict=True):
        word = (code_a @ code_b.mT) * (scale_a * scale_b.mT)
        total = word if total is None else total + word
    assert total is not None, "an operand has a group"
    return total


def product(a: Tensor, b: Tensor, limbs: int, arithmetic: Recipe, random: torch.Generator | None = None) -> Tensor:
    """a b^T of [..., M, K] and [..., N, K]; `random` rounds a, a gradient, stochastically."""
    if not limbs:
        return a @ b.mT
    # Of two limbs the second is what rounding leaves: only there does it matter which way it goes.
    high_a, near_a = quantised(a, arithmetic, random if limbs == 1 else None)
    high_b, near_b = quantised(b, arithmetic, None)
    result = exact(high_a, high_b)
    if limbs == 2:
        low_a, _ = quantised(a - near_a, arithmetic, random)
        low_b, _ = quantised(b - near_b, arithmetic, None)
        result = exact(low_a, high_b, exact(high_a, low_b, result))
    return result


class Product(torch.autograd.Function):
    """a b^T and its two gradients, each a product of its own whose operands are quantised along its own k."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, limbs: tuple[int, int], emulation: Emulation) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.limbs, ctx.emulation = limbs[1], emulation
        return product(a, b, limbs[0], emulation.arithmetic)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        arithmetic, random = ctx.emulation.arithmetic, ctx.emulation.random
        grad_a = product(grad, b.mT.contiguous(), ctx.limbs, arithmetic, random)
        grad_b = product(grad.mT.contiguous(), a.mT.contiguous(), ctx.limbs, arithmetic, random)
        return grad_a, grad_b, None, None


class Emulation(TorchFunctionMode):
    """Calls integer products where a model calls torch's."""

    def __init__(self, model: nn.Module, arithmetic: Recipe, seed: int) -> None:
        super().__init__()
        self.arithmetic = arithmetic
        self.random = torch.Generator().manual_seed(seed) if arithmetic.stochastic else None
        named = {id(m.weight): name for name, m in model.named_modules() if isinstance(m, nn.Linear)}
        self.limbs = {key: self._limbs_of(name) for key, name in named.items()}

    def _limbs_of(self, name: str) -> int:
        last = name.rpartition(".")[2]
        if last in ("head", "lm_head"):
            return self.arithmetic.head
        return self.arithmetic.down if last in ("down", "down_proj") else self.arithmetic.linear

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            return self.linear(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            return self.attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """A linear layer whose three products have the limbs of its place."""
        limbs = self.limbs[id(weight)]
        y = Product.apply(x.reshape(-1, x.shape[-1]), weight, (limbs, limbs), self)
        y = y if bias is None else y + bias
        return y.view(*x.shape[:-1], -1)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, enable_gqa: bool = False) -> Tensor:
        """Causal attention, its two products and their four gradients."""
        gradients = self.arithmetic.attention_gradients
        if enable_gqa:
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        scores = Product.apply(q, k, (self.arithmetic.attention, gradients), self) / math.sqrt(q.shape[-1])
        later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
        weights = torch.softmax(scores.masked_fill(later, -math.inf), -1)
        return Product.apply(weights, v.mT, (self.arithmetic.values, gradients), self)


# --- the runs ------------------------------------------------------------------------------------------------


def run(kind: str, size_name: str, arm: str, seed: int) -> dict[str, Any]:
    """One training; its losses, nats per byte."""
    size = SIZES[size_name]
    corpus = demo_corpus(size.context + 1)
    model = model_of(kind, size)
    load_parameters(model, initial_parameters(model, seed))
    rows = corpus.train.rows
    draws = np.random.Generator(np.random.Philox(key=seed)).integers(0, len(rows), (size.steps, size.rows))
    inner = AdamW(learning_rate=1e-3, warmup=20)
    begin = time.process_time()

    def value(t: int) -> Tensor:
        return next_token_loss(model, torch.from_numpy(rows[draws[t - 1]].astype(np.int64)))

    def narrow(t: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return value(t)

    arithmetic = ARMS[arm]
    if arithmetic is not None:
        with Emulation(model, arithmetic, seed):
            losses = optimise(model, value, inner, steps=size.steps)
    else:
        step: Callable[[int], Tensor] = narrow if arm == "bfloat16" else value
        losses = optimise(model, step, inner, steps=size.steps)
    return {
        "model": kind,
        "size": size_name,
        "arm": arm,
        "seed": seed,
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": size.steps,
        "loss": statistics.fmean(losses[-LAST:]),
        "held_out": evaluate(model, next_token_loss, corpus.held_out.rows[:HELD_OUT_ROWS]),
        "cpu_seconds": round(time.process_time() - begin, 1),
    }


def runs_of(state: Path) -> list[dict[str, Any]]:
    """The runs that were finished, in the order in which they were."""
    return [json.loads(line) for line in state.read_text().splitlines()] if state.exists() else []


def key_of(row: dict[str, Any]) -> tuple[str, str, str, int]:
    """The fields by which two runs are the same one."""
    return row["size"], row["model"], row["arm"], row["seed"]


def resume(state: Path, sizes: list[str], models: list[str], arms: list[str], seeds: int, hours: float) -> None:
    """Runs what the state lacks, small sizes and all arms of a seed first, until it holds `hours` of processor time."""
    state.parent.mkdir(parents=True, exist_ok=True)
    done = runs_of(state)
    spent, known = sum(row["cpu_seconds"] for row in done), {key_of(row) for row in done}
    wanted = [(s, m, a, seed) for s in sizes for seed in range(seeds) for m in models for a in arms]
    for size, kind, arm, seed in wanted:
        if (size, kind, arm, seed) in known:
            continue
        if spent >= hours * 3600:
            print(f"{spent / 3600:.2f} core-hours are spent", file=sys.stderr)
            return
        row = run(kind, size, arm, seed)
        spent += row["cpu_seconds"]
        with state.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{size} {kind} {arm} {seed}: {row['loss']:.4f}, {row['cpu_seconds']} s", file=sys.stderr)


def table(done: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each model, size and arm: percent by which its losses exceed float32's of the same seed, and their spread."""
    plain = {(r["size"], r["model"], r["seed"]): r for r in done if r["arm"] == "float32"}
    rows: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in done:
        rows.setdefault((row["size"], row["model"], row["arm"]), []).append(row)
    found = []
    for (size, kind, arm), own in rows.items():
        pairs = [(r, plain[size, kind, r["seed"]]) for r in own if (size, kind, r["seed"]) in plain]
        if not pairs:
            continue
        excess = {what: [100 * (r[what] / p[what] - 1) for r, p in pairs] for what in ("loss", "held_out")}
        found.append(
            {
                "size": size,
                "model": kind,
                "arm": arm,
                "seeds": len(pairs),
                "parameters": own[0]["parameters"],
                "steps": own[0]["steps"],
                "loss": round(statistics.fmean(r["loss"] for r, _ in pairs), 4),
                "excess": round(statistics.fmean(excess["loss"]), 3),
                "spread": round(max(excess["loss"]) - min(excess["loss"]), 3),
                "held_out": round(statistics.fmean(r["held_out"] for r, _ in pairs), 4),
                "held_out_excess": round(statistics.fmean(excess["held_out"]), 3),
                "held_out_spread": round(max(excess["held_out"]) - min(excess["held_out"]), 3),
            }
        )
    return sorted(found, key=lambda r: (list(SIZES).index(r["size"]), r["model"], list(ARMS).index(r["arm"])))


def main() -> int:
    """Runs what is missing; prints a table, or one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    parser.add_argument("--hours", type=float, default=6.0, help="core-hours that all runs may take (default 6)")
    parser.add_argument("--state", type=Path, default=STATE, help=f"file of finished runs (default {STATE})")
    parser.add_argument("--sizes", default="small,medium", help=f"of {','.join(SIZES)} (default small,medium)")
    parser.add_argument("--models", default="gpt,llama", help="of gpt, llama (default both)")
    parser.add_argument("--arms", default=",".join(ARMS), help="separated by commas (default all, float32 among them)")
    parser.add_argument("--seeds", type=int, default=3, help="of each run (default 3)")
    arguments = parser.parse_args()
    sizes, models, arms = (x.split(",") for x in (arguments.sizes, arguments.models, arguments.arms))
    for what, given, known in (("size", sizes, SIZES), ("model", models, ("gpt", "llama")), ("arm", arms, ARMS)):
        for name in given:
            if name not in known:
                parser.error(f"no {what} is called {name!r}: one of {', '.join(known)}")
    torch.set_num_threads(1)
    resume(arguments.state, sizes, models, arms, arguments.seeds, arguments.hours)
    found = table(runs_of(arguments.state))
    if arguments.json:
        print(json.dumps({"data": {"results": found}}))
        return 0
    print(f"{'size':<8}{'model':<7}{'arithmetic':<34}{'seeds':>6}{'loss':>9}{'excess %':>10}{'spread':>8}{'held out':>10}{'excess %':>10}{'spread':>8}")  # fmt: skip  # noqa: E501
    for r in found:
        print(
            f"{r['size']:<8}{r['model']:<7}{r['arm']:<34}{r['seeds']:>6}{r['loss']:>9.4f}{r['excess']:>10.3f}"
            f"{r['spread']:>8.3f}{r['held_out']:>10.4f}{r['held_out_excess']:>10.3f}{r['held_out_spread']:>8.3f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
