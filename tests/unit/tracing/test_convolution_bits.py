"""Convolutions read their windows where they lie: the bits of the separate ops on every path, no copy of windows."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lockstep.numerics import paths
from lockstep.numerics.arrays import Array
from lockstep.numerics.cuda import CudaExecutable
from lockstep.numerics.cuda.emulator import Emulator
from lockstep.numerics.executor import Executable
from lockstep.protocol.programs.program import Kind, Op, Program
from lockstep.tracing import trace
from lockstep.tracing.windows import Remainder, Window, phases_of
from tests.unit.numerics.comparison import CONTEXT, PATHS, compare, normal, strange, words


@dataclass(frozen=True)
class Layer:
    """A convolution of square images and kernels."""

    images: int
    channels: int
    outputs: int
    size: int
    kernel: int = 3
    stride: int = 1
    padding: int = 1
    dilation: int = 1
    groups: int = 1

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Shapes of the input, the weight and the output."""
        reach = self.dilation * (self.kernel - 1) + 1
        side = (self.size + 2 * self.padding - reach) // self.stride + 1
        weight = (self.outputs, self.channels // self.groups, self.kernel, self.kernel)
        return (
            (self.images, self.channels, self.size, self.size),
            weight,
            (self.images, self.outputs, side, side),
        )

    def step(self, x: Tensor, weight: Tensor, wanted: Tensor) -> list[Tensor]:
        """The output and both gradients, flat."""
        shapes = self.shapes
        leaves = [t.detach().view(s).requires_grad_() for t, s in zip((x, weight), shapes, strict=False)]
        y = F.conv2d(
            *leaves, stride=self.stride, padding=self.padding, dilation=self.dilation, groups=self.groups
        )  # fmt: skip
        gradients = torch.autograd.grad((y * wanted.view(shapes[2])).sum(), leaves)
        return [t.reshape(-1) for t in (y, *gradients)]

    def program(self) -> Program:
        """The step, traced."""
        return trace(self.step, *(torch.zeros(prod(shape)) for shape in self.shapes))


SMALL = [
    Layer(2, 3, 5, 9),
    Layer(2, 4, 6, 8, stride=2),
    Layer(2, 4, 6, 9, stride=2, groups=2),
    Layer(1, 30, 20, 6),
    Layer(2, 3, 4, 8, kernel=1, stride=2, padding=0),
    Layer(1, 4, 4, 11, kernel=5, stride=3, padding=2),
    Layer(1, 4, 4, 12, stride=2, padding=2, dilation=2),
    Layer(2, 2, 3, 13, stride=3, dilation=2),
    Layer(2, 2, 2, 10, kernel=2, stride=3, padding=0),
    Layer(1, 2, 2, 9, stride=4, padding=1),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layer", SMALL, ids=str)
@pytest.mark.parametrize("data", [normal, strange])
def test_convolutions_give_the_reference_bits(layer: Layer, data) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(layer.size)
    state: list[Array | None] = [data(rng, prod(shape)) for shape in layer.shapes]
    compare(layer.program(), [*state, None], threads=(1, 2))


TURNED = [
    Layer(3, 5, 16, 8),  # rows of eight pixels, and three taps
    Layer(2, 30, 48, 8),  # two chunks of terms; a panel, and half of one
    Layer(2, 3, 40, 6),  # rows that four does not divide
    Layer(1, 4, 16, 36),  # more windows than are summed up at a time
    Layer(3, 6, 32, 16, stride=2),  # pixels two apart; four products for the input
    Layer(2, 6, 32, 9, stride=2, groups=2),
    Layer(3, 16, 16, 8, kernel=1, stride=2, padding=0),
    Layer(2, 4, 16, 12, stride=2, padding=2, dilation=2),
    Layer(2, 16, 32, 11, kernel=5, padding=2),
    Layer(4, 16, 16, 32),  # several shares of the padding
    Layer(7, 32, 16, 4),
]
"""With enough outputs that lanes are taken from them and windows are read where they lie."""


def faint(rng: np.random.Generator, n: int) -> Array:
    """Numbers whose products are subnormal, or zeros with a sign."""
    return (normal(rng, n) * np.float32(2e-22)).astype(np.float32)


def negative(rng: np.random.Generator, n: int) -> Array:
    """Zeros with a sign, and a number here and there: sums of negative zeros."""
    x = np.full(n, -0.0, np.float32)
    at = rng.integers(0, n, max(1, n // 50))
    x[at] = normal(rng, len(at))
    return x


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layer", TURNED, ids=str)
@pytest.mark.parametrize("data", [normal, strange, faint, negative])
def test_turned_products_give_the_reference_bits(layer: Layer, data) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(layer.outputs)
    state: list[Array | None] = [data(rng, prod(shape)) for shape in layer.shapes]
    compare(layer.program(), [*state, None], threads=(1, 2) if data is strange else (2,))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("layer", SMALL[:3], ids=str)
def test_the_emulated_device_gives_the_same_bits(layer: Layer) -> None:
    rng = np.random.default_rng(layer.size)
    state: list[Array | None] = [*(strange(rng, prod(shape)) for shape in layer.shapes), None]
    program = layer.program()
    due = paths.compile(program).run(state, CONTEXT)
    got = CudaExecutable(program, device=Emulator()).run(state, CONTEXT)
    for array, wanted, what in zip(got, due, ("output", "input", "weight"), strict=False):
        np.testing.assert_array_equal(words(array), words(wanted), err_msg=what)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [8, 28, 34])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1)])
def test_pooling_gives_the_reference_bits(size: int, kernel: int, stride: int, padding: int) -> None:
    """Rows of two words and of every second one, blocks cut at an image's end, iotas of several blocks."""

    def step(x: Tensor) -> list[Tensor]:
        leaf = x.detach().view(3, 5, size, size).requires_grad_()
        y = F.max_pool2d(F.relu(leaf), kernel, stride, padding)
        (gradient,) = torch.autograd.grad((y * y).sum(), leaf)
        return [y.reshape(-1), gradient.reshape(-1)]

    program = trace(step, torch.zeros(3 * 5 * size * size))
    rng = np.random.default_rng(size)
    state: list[Array | None] = [strange(rng, 3 * 5 * size * size)]
    compare(program, state, threads=(1, 2))
    compiled = Executable(program, fused="require")
    for array, wanted in zip(compiled.run(state, CONTEXT), paths.compile(program).run(state, CONTEXT), strict=True):
        if wanted is not None:
            np.testing.assert_array_equal(words(array), words(wanted), err_msg="loops compiled")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layer", SMALL, ids=str)
def test_gradients_of_stepped_windows_are_those_of_float64(layer: Layer) -> None:
    rng = np.random.default_rng(layer.kernel)
    state = [normal(rng, prod(shape)) for shape in layer.shapes]
    got = paths.compile(layer.program()).run([*state, None], CONTEXT)
    due = layer.step(*(torch.from_numpy(x).double() for x in state))
    for array, wanted, what in zip(got, due, ("output", "input", "weight"), strict=False):
        np.testing.assert_allclose(array, wanted.detach(), rtol=1e-4, atol=1e-4, err_msg=what)


def test_strides_multiply_no_zeros() -> None:
    """Each input of a window with step 2 is multiplied with the taps that read it alone."""
    layer = Layer(2, 4, 6, 8, stride=2)
    program = layer.program()
    terms = sorted(op.k_terms for op in program.ops if op.kind == Kind.FOLD and op.header.elements == 2 * 4 * 4 * 4)
    assert terms == [6, 12, 12, 24], "one, two, two and four of nine taps, six channels each"


def copies_run(program: Program, state: list[Array | None]) -> list[Op]:
    """The copies that a plain run makes."""
    spent = paths.compile(program, path="scalar").profile(state, CONTEXT)
    return [op for op, nanoseconds in zip(program.ops, spent, strict=True) if nanoseconds and is_copy(op)]


def is_copy(op: Op) -> bool:
    return op.kind == Kind.MAP and [instr.op for instr in op.instrs] == [0]


@pytest.mark.parametrize("layer", [Layer(3, 4, 5, 12), Layer(3, 4, 5, 12, stride=2)], ids=str)
def test_windows_are_never_copied_together(layer: Layer) -> None:
    program = layer.program()
    rng = np.random.default_rng(0)
    state: list[Array | None] = [normal(rng, prod(shape)) for shape in layer.shapes]
    windows = max(op.header.elements for op in program.ops if op.kind == Kind.MAP)
    assert windows >= prod(layer.shapes[0]) * 9 // layer.stride**2, "the committed form has them side by side"
    assert all(op.header.elements < windows for op in copies_run(program, [*state, None])), "and a run does not"


def test_a_weight_that_all_images_share_is_not_turned_around() -> None:
    """The gradient of the input reads each weight's taps backwards, where they lie."""
    layer = Layer(3, 16, 32, 12)
    rng = np.random.default_rng(0)
    state: list[Array | None] = [normal(rng, prod(shape)) for shape in layer.shapes]
    program = layer.program()

    def is_turned(op: Op) -> bool:
        return is_copy(op) and min(op.views[0].strides) < 0

    assert any(map(is_turned, program.ops)), "the committed form has them so"
    assert not any(map(is_turned, copies_run(program, [*state, None]))), "and a run does not"


@dataclass(frozen=True)
class Norm:
    """A batch norm in training of images of height x width."""

    images: int
    channels: int
    height: int
    width: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the images."""
        return (self.images, self.channels, self.height, self.width)

    def step(self, x: Tensor, weight: Tensor, bias: Tensor, wanted: Tensor) -> list[Tensor]:
        """The output and all gradients, flat."""
        leaves = [x.detach().view(self.shape).requires_grad_(), *(t.detach().requires_grad_() for t in (weight, bias))]
        y = F.batch_norm(leaves[0], None, None, leaves[1], leaves[2], training=True)
        gradients = torch.autograd.grad((y * wanted.view(self.shape)).sum(), leaves)
        return [t.reshape(-1) for t in (y, *gradients)]

    def program(self) -> Program:
        """The step, traced."""
        return trace(self.step, *(torch.zeros(n) for n in self.sizes))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of the arguments."""
        return (prod(self.shape), self.channels, self.channels, prod(self.shape))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "norm",
    [Norm(3, 8, 4, 4), Norm(5, 20, 8, 10), Norm(2, 33, 16, 16), Norm(3, 16, 4, 12), Norm(2, 9, 3, 5), Norm(2, 4, 8, 8)],
    ids=str,
)
@pytest.mark.parametrize("data", [normal, strange, faint, negative])
def test_sums_over_images_give_the_reference_bits(norm: Norm, data) -> None:  # type: ignore[no-untyped-def]
    """Whole pieces and others, lanes without a channel, one chunk of terms and several."""
    rng = np.random.default_rng(norm.channels)
    state: list[Array | None] = [data(rng, n) for n in norm.sizes]
    compare(norm.program(), state, threads=(1, 2))


def test_sums_over_more_than_a_chunk_of_chunks() -> None:
    norm = Norm(5, 8, 128, 128)
    program = norm.program()
    rng = np.random.default_rng(0)
    state: list[Array | None] = [strange(rng, n) for n in norm.sizes]
    state[0], state[3] = (normal(rng, n) for n in (norm.sizes[0], norm.sizes[3]))
    for path in PATHS:
        executable = paths.compile(program, path=path, threads=2)
        every, final = executable.run(state, CONTEXT, keep=True), executable.run(state, CONTEXT)
        for k, alias in enumerate(program.outputs):
            np.testing.assert_array_equal(words(final[k]), words(every[alias.index]), err_msg=f"output {k} on {path}")


def test_channels_are_never_copied_together() -> None:
    norm = Norm(3, 16, 8, 8)
    program = norm.program()
    rng = np.random.default_rng(0)
    state: list[Array | None] = [normal(rng, n) for n in norm.sizes]

    def together(op: Op) -> bool:
        return is_copy(op) and op.extents[:2] == (norm.channels, norm.images)

    assert any(map(together, program.ops)), "the committed form does"
    assert not any(map(together, copies_run(program, state))), "and a run does not"


@pytest.mark.parametrize(
    ("window", "due"),
    [
        (Window(3, 2, 1), [Remainder(1, 1, 2, 0, 1), Remainder(0, 2, 2, 1, 1)]),
        (Window(1, 2), [Remainder(0, 1, 2, 0, 1), Remainder(0, 0, 2, 0, 1)]),
        (Window(3, 2, 2, 2), [Remainder(0, 3, 1, 1, 1), Remainder(0, 0, 1, 1, 1)]),
    ],
)
def test_phases_name_the_taps_of_each_remainder(window: Window, due: list[Remainder]) -> None:
    assert phases_of(window) == due
