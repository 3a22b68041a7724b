"""Generates random small networks in torch, traced as a job's step: activation, loss, gradients and update.

Torch takes most of the time of a trace, so that one capture of a network gives several functions.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import LockstepError
from lockstep.protocol.programs.program import Program
from lockstep.tracing.arithmetic import Arithmetic, Products
from lockstep.tracing.trace import Captured, Lowered
from tests.differ.case import Case

FUNCTIONS = ("gradients", "activation", "update", "input", "loss")
"""What a function of a network computes: the loss with all gradients, or with the updated parameters; or one alone."""
ARITHMETICS = ("float32", "int8", "int8x2")
TURNS = 4
"""Number of networks whose functions take turns in the order of seeds."""
MOST = 6000
"""Most elements of an activation."""
TOKENS = 24

Tensor = torch.Tensor
Layer = Callable[..., Tensor]
"""Maps (x, *parameters) to the next layer's input."""


class Module(nn.Module):
    """A layer as a module, so that the policy of integer products can name its products."""

    def __init__(self, function: Layer) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, *parameters: Tensor) -> Tensor:
        return self.function(x, *parameters)


@dataclass
class Net:
    """Layers with the shapes of their parameters, added one by one as their activations are computed."""

    rng: random.Random
    x: Tensor
    """The current activation."""
    layers: list[tuple[Module, list[tuple[int, ...]]]] = field(default_factory=list)

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def add(self, function: Layer, *shapes: tuple[int, ...]) -> bool:
        """Adds a layer unless torch refuses it, or its activation is too large or empty."""
        if any(prod(shape) > MOST for shape in shapes):
            return False
        try:
            y = function(self.x, *(torch.full(shape, 0.1) for shape in shapes))
        except (RuntimeError, ValueError, IndexError):
            return False
        if not 0 < y.numel() <= MOST or y.dim() > 5 or y.dtype != torch.float32:
            return False
        self.x = y
        self.layers.append((Module(function), list(shapes)))
        return True

    # --- layers of images -------------------------------------------------------------------------------------------

    def convolution(self) -> bool:
        rng, dims = self.rng, self.x.dim() - 2
        inputs = self.x.shape[1]
        groups = rng.choice([g for g in (1, 1, 1, 2, 3, 4, inputs) if inputs % g == 0])
        outputs = groups * rng.choice((1, 2, 3, 4, 6, 8, 12, 16))
        kernel = [rng.choice((1, 1, 2, 3, 3, 5)) for _ in range(dims)]
        if self.chance(0.5):
            kernel = kernel[:1] * dims
        stride, dilation = rng.choice((1, 1, 1, 2, 3)), rng.choice((1, 1, 1, 2))
        padding = rng.choice((0, 1, 2, [k // 2 for k in kernel]))
        if self.chance(0.1):
            stride, padding = tuple(kernel), 0  # type: ignore[assignment]
        bias = self.chance(0.5)
        conv = F.conv1d if dims == 1 else F.conv2d

        def layer(x: Tensor, w: Tensor, *b: Tensor) -> Tensor:
            return conv(x, w, b[0] if b else None, stride, padding, dilation, groups)

        return self.add(layer, (outputs, inputs // groups, *kernel), *([(outputs,)] if bias else []))

    def deconvolution(self) -> bool:
        rng, dims, inputs = self.rng, self.x.dim() - 2, self.x.shape[1]
        outputs, k, stride = rng.choice((1, 2, 3, 5, 8)), rng.choice((2, 3, 4)), rng.choice((1, 2, 2, 3))
        padding = rng.choice((0, 0, 1))
        conv = F.conv_transpose1d if dims == 1 else F.conv_transpose2d
        return self.add(lambda x, w: conv(x, w, stride=stride, padding=padding), (inputs, outputs, *[k] * dims))

    def batch_norm(self) -> bool:
        c = (self.x.shape[1],)
        return self.add(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), c, c)

    def group_norm(self) -> bool:
        c = self.x.shape[1]
        groups = self.rng.choice([g for g in (1, 2, 3, 4, c) if c % g == 0])
        return self.add(lambda x, w, b: F.group_norm(x, groups, w, b), (c,), (c,))

    def pool(self) -> bool:
        k, dims = self.rng.choice((2, 2, 3)), self.x.dim() - 2
        stride = self.rng.choice((None, 1, 2))
        choices: list[Layer] = [
            lambda x: (F.max_pool1d if dims == 1 else F.max_pool2d)(x, k, stride),
            lambda x: (F.avg_pool1d if dims == 1 else F.avg_pool2d)(x, k, stride),
            lambda x: (F.adaptive_avg_pool1d if dims == 1 else F.adaptive_avg_pool2d)(x, 1),
        ]
        return self.add(self.rng.choice(choices))

    def residual(self) -> bool:
        c, k = self.x.shape[1], self.rng.choice((1, 3))
        dims = self.x.dim() - 2
        conv = F.conv1d if dims == 1 else F.conv2d
        return self.add(lambda x, w: x + conv(F.relu(x), w, padding=k // 2), (c, c, *[k] * dims))

    def channels_last(self) -> bool:
        """Adds a linear layer over the channels of an image."""
        c, outputs = self.x.shape[1], self.rng.choice((1, 3, 6, 8, 16))
        n = self.x.dim()
        ahead, back = [0, *range(2, n), 1], [0, n - 1, *range(1, n - 1)]
        return self.add(lambda x, w: F.linear(x.permute(ahead), w).permute(back), (outputs, c))

    # --- layers of any tensor ---------------------------------------------------------------------------------------

    def linear(self) -> bool:
        outputs = self.rng.choice((1, 2, 3, 5, 6, 8, 12, 16, 24, 40))
        shapes = [(outputs, self.x.shape[-1])] + ([(outputs,)] if self.chance(0.6) else [])
        return self.add(lambda x, w, *b: F.linear(x, w, *b), *shapes)

    def linear_elsewhere(self) -> bool:
        """Adds a linear layer over an axis that is not the last."""
        axis = self.rng.randrange(self.x.dim())
        size, outputs = self.x.shape[axis], self.rng.choice((1, 2, 3, 6, 8, 16))
        return self.add(lambda x, w: F.linear(x.transpose(axis, -1), w).transpose(axis, -1), (outputs, size))

    def einsum(self) -> bool:
        letters = "abcde"[: self.x.dim()]
        sums = self.rng.sample(letters, self.rng.randint(1, max(1, len(letters) - 1)))
        own = "xy"[: self.rng.randint(1, 2)]
        right = [*sums, *own]
        if len(letters) > len(sums) and self.chance(0.4):
            right.append(self.rng.choice([letter for letter in letters if letter not in sums]))
        self.rng.shuffle(right)
        left_out = [letter for letter in letters if letter not in sums]
        out = [*left_out, *own]
        if self.chance(0.5):
            self.rng.shuffle(out)
        sizes = dict(zip(letters, self.x.shape, strict=True)) | {
            letter: self.rng.choice((2, 3, 6, 8, 16)) for letter in own
        }
        text = f"{letters},{''.join(right)}->{''.join(out)}"
        return self.add(lambda x, w: torch.einsum(text, x, w), tuple(sizes[letter] for letter in right))

    def gram(self) -> bool:
        """Adds a product of the activation with itself."""
        if self.x.dim() < 2:
            return False
        first = self.chance(0.5)
        return self.add(lambda x: x.transpose(-1, -2) @ x if first else x @ x.transpose(-1, -2))

    def activation(self) -> bool:
        choices: tuple[Layer, ...] = (
            F.relu, F.silu, F.gelu, torch.tanh, torch.sigmoid, lambda x: x.softmax(-1), lambda x: x * x,
            lambda x: F.softmax(x, x.dim() - 2 if x.dim() > 1 else 0), lambda x: F.leaky_relu(x, 0.1), F.softplus,
        )  # fmt: skip
        return self.add(self.rng.choice(choices))

    def norm(self) -> bool:
        d = (self.x.shape[-1],)
        if self.chance(0.5):
            return self.add(lambda x, w, b: F.layer_norm(x, d, w, b), d, d)
        return self.add(lambda x, w: x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * w, d)

    def reshape(self) -> bool:
        n = self.x.dim()
        choices: list[Layer] = [lambda x: x.flatten(1), lambda x: x.flip(-1), lambda x: x.roll(1, -1)]
        if n > 1:
            choices += [lambda x: x.transpose(0, 1), lambda x: x.transpose(-1, -2).contiguous(), lambda x: x[:, 1:]]
            choices += [lambda x: x.mean(1), lambda x: x.sum(-1), lambda x: x[..., ::2], lambda x: x.amax(-1)]
        choices += [lambda x: F.pad(x, (1, 2)), lambda x: torch.cat([x, x * 2], -1), lambda x: torch.stack([x, -x], 1)]
        if n == 4:
            choices += [lambda x: F.pad(x, (1, 1, 1, 1)), lambda x: F.interpolate(x, scale_factor=2)]
            choices += [lambda x: x.flatten(2).transpose(1, 2)]
        if n == 2 and self.x.shape[1] % 4 == 0:
            choices += [lambda x: x.reshape(len(x), 4, -1)] * 3
        return self.add(self.rng.choice(choices))

    # --- layers of sequences ----------------------------------------------------------------------------------------

    def attention(self) -> bool:
        """Adds softmax attention: heads, shared keys, a causal, windowed or additive mask."""
        if self.x.dim() != 3:
            return False
        _, steps, width = self.x.shape
        heads, size = self.rng.choice((1, 2, 3, 4, 5)), self.rng.choice((2, 3, 4, 8))
        shared = self.rng.choice([h for h in range(1, heads + 1) if heads % h == 0])
        mask = self.rng.choice(("", "causal", "causal", "window", "bias"))
        by_hand = self.chance(0.5)

        def layer(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor) -> Tensor:
            q = F.linear(x, wq).view(-1, steps, heads, size).transpose(1, 2)
            k, v = (F.linear(x, w).view(-1, steps, shared, size).transpose(1, 2) for w in (wk, wv))
            k, v = (t.repeat_interleave(heads // shared, 1) for t in (k, v))
            at = torch.arange(steps)
            near = at[:, None] - at[None] < 3
            allowed = (at[:, None] >= at[None]) & (near if mask == "window" else near | ~near)
            bias = (at[:, None] - at[None]).abs().float() * -0.1
            if by_hand:
                scores = q @ k.transpose(-1, -2) * size**-0.5
                if mask == "bias":
                    scores = scores + bias
                elif mask:
                    scores = scores.masked_fill(~allowed, float("-inf"))
                y = scores.softmax(-1) @ v
            else:
                chosen = {"": None, "bias": bias}.get(mask, allowed)
                y = F.scaled_dot_product_attention(q, k, v, chosen)
            return x + F.linear(y.transpose(1, 2).reshape(-1, steps, heads * size), wo)

        return self.add(
            layer, (heads * size, width), (shared * size, width), (shared * size, width), (width, heads * size)
        )

    def recurrence(self) -> bool:
        """Adds a recurrent cell over a few steps: plain, gated, or with memory."""
        if self.x.dim() != 3 or self.x.shape[1] > 8:
            return False
        width, size, kind = self.x.shape[2], self.rng.choice((2, 3, 5, 8)), self.rng.choice(("plain", "gru", "lstm"))
        gates = {"plain": 1, "gru": 3, "lstm": 4}[kind]

        def layer(x: Tensor, wi: Tensor, wh: Tensor) -> Tensor:
            h = c = x[:, 0, :1].expand(-1, size) * 0
            found = []
            for t in range(x.shape[1]):
                a, b = F.linear(x[:, t], wi), F.linear(h, wh)
                if kind == "plain":
                    h = torch.tanh(a + b)
                elif kind == "gru":
                    (ar, az, an), (br, bz, bn) = a.chunk(3, -1), b.chunk(3, -1)
                    z = torch.sigmoid(az + bz)
                    h = (1 - z) * torch.tanh(an + torch.sigmoid(ar + br) * bn) + z * h
                else:
                    i, f, g, o = (a + b).chunk(4, -1)
                    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                    h = torch.sigmoid(o) * torch.tanh(c)
                found.append(h)
            return torch.stack(found, 1)

        return self.add(layer, (gates * size, width), (gates * size, size))

    def scan(self) -> bool:
        return self.x.dim() == 3 and self.add(lambda x: x.cumsum(1) * 0.1)

    # --- the whole --------------------------------------------------------------------------------------------------

    def grow(self) -> None:
        anything: list[tuple[Callable[[], bool], int]] = [
            (self.linear, 3), (self.linear_elsewhere, 3), (self.einsum, 3), (self.gram, 1), (self.activation, 3),
            (self.norm, 2), (self.reshape, 4),
        ]  # fmt: skip
        images = [
            (self.convolution, 8), (self.deconvolution, 2), (self.batch_norm, 3), (self.group_norm, 1), (self.pool, 2),
            (self.residual, 2), (self.channels_last, 2),
        ]  # fmt: skip
        sequences = [(self.attention, 6), (self.recurrence, 3), (self.scan, 1)]
        for _ in range(self.rng.choice((1, 2, 2, 3, 4, 6))):
            steps = list(anything)
            steps += images if self.x.dim() == 4 else []
            steps += [*sequences, *images[:4]] if self.x.dim() == 3 else []
            for _ in range(8):
                if self.rng.choices([s for s, _ in steps], [weight for _, weight in steps])[0]():
                    break


@dataclass(frozen=True)
class Step:
    """A function with its inputs, and its results by what they are."""

    function: Callable[..., list[Tensor]]
    """Maps (input, parameters...) to the results, all flat."""
    examples: tuple[Tensor, ...]
    results: dict[str, list[int]]
    """For each of FUNCTIONS the positions of its results; a network of tokens has no gradient of its input."""


def step_of(net: int) -> Step:
    """Returns the function of a network's number."""
    rng = random.Random(net)
    batch = rng.choice((1, 1, 2, 2, 3, 4, 5, 9))
    kind = rng.choice(("image", "image", "image", "line", "sequence", "sequence", "rows", "tokens"))
    side = rng.choice((2, 2, 3, 4, 5, 6, 7, 8, 12))
    shape: tuple[int, ...] = {
        "image": (batch, rng.choice((1, 2, 3, 4, 6, 8)), side, rng.choice((side, side, rng.choice((1, 3, 6))))),
        "line": (batch, rng.choice((1, 3, 8, 12)), rng.choice((3, 8, 17, 48, 96))),
        "sequence": (batch, rng.choice((2, 3, 5, 8, 17, 33)), rng.choice((3, 6, 8, 16))),
        "rows": (batch * rng.choice((1, 8, 40, 70)), rng.choice((3, 8, 17, 32))),
        "tokens": (batch, rng.choice((4, 7, 16))),
    }[kind]
    embedded = kind == "tokens"
    width = rng.choice((3, 4, 8, 12))
    grown = Net(rng, torch.linspace(-1, 1, prod(shape)).reshape(shape) if not embedded else torch.zeros(*shape, width))
    grown.grow()
    if not grown.layers:
        grown.linear()
    shapes = [(TOKENS, width)] if embedded else []
    shapes += [own for _, all_shapes in grown.layers for own in all_shapes]
    classes = grown.x.shape[-1]
    loss_kind = rng.choice(
        ("square", "weighted", "classes") if grown.x.dim() == 2 and classes > 1 else ("square", "weighted")
    )
    update = rng.choice(("momentum", "adam"))
    weights = torch.arange(grown.x.numel()).reshape(grown.x.shape).float() / grown.x.numel() - 0.5

    def forward(x: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        left = list(parameters)
        y = F.embedding(x.long(), left.pop(0)) if embedded else x
        for module, own in grown.layers:
            y = module(y, *left[: len(own)])
            left = left[len(own) :]
        if loss_kind == "square":
            return y, y.pow(2).mean()
        if loss_kind == "weighted":
            return y, (y * weights.to(y.dtype)).sum()
        return y, F.cross_entropy(y, torch.arange(len(y)) % classes)

    def function(x: Tensor, *flat: Tensor) -> list[Tensor]:
        leaves = [p.detach().view(s).requires_grad_() for p, s in zip(flat, shapes, strict=False)]
        inputs = x.detach().view(shape)
        by = list(leaves)
        if not embedded:
            by.append(inputs.requires_grad_())
        y, loss = forward(by[-1] if not embedded else inputs, leaves)
        grads = torch.autograd.grad(loss, by, allow_unused=True)
        # A parameter that the loss does not read has the gradient 0.
        grads = [torch.zeros_like(p) if g is None else g for p, g in zip(by, grads, strict=True)]
        moments, updated = [], []
        for p, g in zip(leaves, grads, strict=False):
            if update == "momentum":
                moments.append(p * 0.9 + g)
                updated.append(p - 0.1 * moments[-1])
            else:
                m, v = p * 0.9 + 0.1 * g, p * p * 0.99 + 0.01 * g * g
                updated.append(p - 0.01 * m / (v.sqrt() + 1e-8))
        return [t.detach().reshape(-1) for t in (y, loss, *grads, *moments, *updated)]

    count, inputs = len(shapes), [] if embedded else [2 + len(shapes)]
    updates = (2 if update == "momentum" else 1) * count
    first = 2 + count + len(inputs)
    results = {
        "activation": [0], "loss": [1], "gradients": list(range(1, first)), "input": inputs,
        "update": [1, *range(first, first + updates)],
    }  # fmt: skip
    dtype = torch.int32 if embedded else torch.float32
    examples = (torch.zeros(prod(shape), dtype=dtype), *(torch.zeros(prod(s)) for s in shapes))
    return Step(function, examples, results)


@lru_cache(4 * TURNS)
def _captured(net: int) -> tuple[Step, Captured] | None:
    torch.manual_seed(0)
    with suppress(LockstepError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = step_of(net)
        return step, Captured.of(step.function, *step.examples)
    return None


@lru_cache(4 * TURNS)
def _lowered(net: int, arithmetic: str) -> tuple[Step, Lowered] | None:
    if (found := _captured(net)) is None:
        return None
    step, captured = found
    products = Arithmetic() if arithmetic == "float32" else Arithmetic("int8", {"*": arithmetic})
    with suppress(LockstepError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return step, captured.lowered(Products(products))
    return None


def function_of(seed: int) -> tuple[int, str, str]:
    """Returns the network of a seed, one of FUNCTIONS and one of ARITHMETICS.

    A process that runs every second or fourth seed captures each network once.
    """
    turn, at = divmod(seed, TURNS * len(ARITHMETICS) * len(FUNCTIONS))
    variant, place = divmod(at, TURNS)
    arithmetic, function = divmod(variant, len(FUNCTIONS))
    return (
        turn * TURNS + place,
        FUNCTIONS[(function + turn) % len(FUNCTIONS)],
        ARITHMETICS[(arithmetic + turn) % len(ARITHMETICS)],
    )


def seed_of(net: int, function: str, arithmetic: str) -> int:
    """Returns the seed of a network's function, as `function_of` reads it."""
    turn, place = divmod(net, TURNS)
    which = (FUNCTIONS.index(function) - turn) % len(FUNCTIONS)
    variant = (ARITHMETICS.index(arithmetic) - turn) % len(ARITHMETICS) * len(FUNCTIONS) + which
    return (turn * len(ARITHMETICS) * len(FUNCTIONS) + variant) * TURNS + place


def program_of(seed: int) -> Program | None:
    """Returns the Program of a seed; None if the tracer refuses it."""
    net, function, arithmetic = function_of(seed)
    if (found := _lowered(net, arithmetic)) is None:
        return None
    step, lowered = found
    if not (kept := step.results[function]):
        return None
    with suppress(LockstepError):
        program = lowered.program(kept)
        return program if program.ops else None  # an activation may be a view of the input
    return None


def eager(case: Case, seed: int, dtype: torch.dtype) -> list[np.ndarray]:
    """Returns torch's results on a case's state in a float type."""
    net, function, _ = function_of(seed)
    step = step_of(net)
    arrays = [a for a in case.state if a is not None]
    given = [torch.from_numpy(np.array(a)) for a in arrays]
    found = step.function(*(t if t.dtype == torch.int32 else t.to(dtype) for t in given))
    return [found[i].numpy() for i in step.results[function]]
