"""Replaces torch functions before torch selects a kernel or a generator: attention, dropout, batch norm."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint
from torch._C._functorch import TransformType
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from lockstep.protocol.errors import LoweringError
from lockstep.tracing import (
    alignment,
    bags,
    distances,
    guards,
    matrices,
    places,
    recurrent,
    routed,
    sampling,
    volumes,
)
from lockstep.tracing.complexes import ComplexFormulas
from lockstep.tracing.dropped import DroppedLayers
from lockstep.tracing.formulas import FORMULAS
from lockstep.tracing.known import KnownValues
from lockstep.tracing.sources import random_words
from lockstep.tracing.spectra import FourierFormulas

DROPOUT_STREAM = 1 << 30
"""Random stream of the first dropout of a Program; later dropouts take the following streams.

Users' `random_words` take lower ones.
"""
_FRACTION_BITS = 24
TRAINED = "_lockstep_trained"
"""Marks a trained tensor while no gradient is computed: its `requires_grad` reads True."""


class Replaced(TorchFunctionMode):
    """Calls our formulas in place of torch functions; one object per Program, because it numbers the dropouts."""

    def __init__(self, known: KnownValues) -> None:
        super().__init__()
        self.known = known
        self.dropouts = 0
        self.layers = DroppedLayers()
        self.complexes = ComplexFormulas(known)
        self.formulas: dict[Any, Callable[..., Any]] = {
            F.scaled_dot_product_attention: self.attention,
            F.dropout: self.dropout,
            torch.dropout: lambda x, p, train: self.dropout(x, p, train),
            F.batch_norm: batch_norm,
            F.instance_norm: instance_norm,
            torch.Tensor.data.__set__: replaced_data,  # type: ignore[attr-defined]
            torch._grouped_mm: grouped_product,
            F.one_hot: self.one_hot,
            torch.adaptive_avg_pool1d: averaged,
            F.adaptive_avg_pool2d: averaged_2d,
            F.gaussian_nll_loss: gaussian_nll,
            torch.fake_quantize_per_tensor_affine: fake_quantised,
            torch.fake_quantize_per_channel_affine: fake_quantised_channels,
            torch._VF._pack_padded_sequence: self.packed,
            **{product: _dense(product) for product in _PRODUCTS},
            torch.Tensor.__bool__: self.truth,
            torch.Tensor.item: self.number,
            torch.Tensor.split: routed.split,
            F.linear: routed.linear,
            torch.cat: routed.joined,
            torch.Tensor.as_strided: strided,
            torch.as_strided: strided,
            torch.rand: self.layers.drawn,
            torch.Tensor.lt: self.below(torch.lt),
            torch.Tensor.le: self.below(torch.le),
            torch._assert_async: lambda *_args: None,
            **FORMULAS,
            torch.Tensor.requires_grad.__get__: lambda x: x.requires_grad or hasattr(x, TRAINED),  # type: ignore[attr-defined]
            **recurrent.formulas(self.dropout),
            **alignment.FORMULAS,
            **bags.FORMULAS,
            **distances.FORMULAS,
            **matrices.FORMULAS,
            **places.FORMULAS,
            **places.PlaceFormulas(known).formulas,
            **sampling.FORMULAS,
            **volumes.FORMULAS,
            **self.complexes.formulas,
            **FourierFormulas(known).formulas,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        formula = self.formulas.get(func)
        if formula is None or any(isinstance(x, complex) for x in args):
            made = self.complexes.made(func, args, kwargs or {})
            if made is not NotImplemented:
                return made
        return (formula or func)(*args, **(kwargs or {}))

    def truth(self, x: torch.Tensor) -> bool:
        """Evaluates a tensor as a condition: its value if constant; in a guard, the value that passes the guard."""
        value = self.known.real(x)
        if value is None:
            if self.layers.decides(x):
                return False
            passing = guards.passing(sys._getframe(2))
            return x.__bool__() if passing is None else passing
        with _disable_current_modes():
            return bool(value)

    def number(self, x: torch.Tensor) -> Any:
        """Evaluates a tensor as a number: its value if constant; in a guard, a number that passes the guard."""
        passing = guards.passing_number(sys._getframe(2)) if self.known.real(x) is None else None
        return x.item() if passing is None else passing

    def packed(self, x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
        """`pack_padded_sequence` for constant lengths. Raises LoweringError if the lengths depend on data."""
        if self.known.real(lengths) is None:
            raise LoweringError(
                "a packed sequence, whose lengths depend on data",
                hint="pad and mask: give the layer whole rows, and weigh what it returns by positions < lengths",
            )
        return torch._VF._pack_padded_sequence(x, lengths, batch_first)

    def below(self, compare: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """Wraps `<` or `<=`, to record a comparison of a random draw with a limit: it may decide whether a layer is
        dropped.
        """

        def compared(x: torch.Tensor, *limit: Any, **kwargs: Any) -> torch.Tensor:
            result = compare(x, *limit, **kwargs)
            self.layers.compared(x, result, sys._getframe(2))
            return result

        return compared

    def one_hot(self, x: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        """One-hot encoding of classes, i64. Raises LoweringError unless the number of classes is given."""
        if num_classes < 0:
            return F.one_hot(x)
        return (x.unsqueeze(-1) == torch.arange(num_classes)).to(torch.int64)

    def attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """softmax(q k^T / sqrt(d) + mask) v (Vaswani 2017, section 3.2.1); shapes [..., T, d].

        As in torch, a query whose mask excludes every key gives zeros.
        """
        heads = query.shape[:-1]
        if enable_gqa:
            # Query heads that share keys become more rows of one product, so that one sum gives their gradients.
            query = query.reshape(*key.shape[:-2], -1, query.shape[-1])
        scores = (query @ key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        scores = scores.view(*heads, key.shape[-2])
        if is_causal:
            rows = torch.arange(scores.shape[-2]).unsqueeze(1)
            scores = scores.masked_fill(torch.arange(key.shape[-2]).unsqueeze(0) > rows, -math.inf)
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
        weights = self.dropout(torch.ops.aten._safe_softmax(scores, -1), dropout_p)
        return (weights.view(*query.shape[:-1], -1) @ value).view(*heads, value.shape[-1])

    def dropout(
        self,
        input: torch.Tensor,  # noqa: A002  (torch's name)
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> torch.Tensor:
        """Keeps each element with probability 1 - p and divides it by 1 - p; the others are 0.

        Reads Philox words of the job; 1 - p is rounded to 24 bits (Srivastava 2014, section 4, in its inverted form).
        """
        if not training or p == 0:
            return input
        if _in_vmap():
            # Its `randomness` says if rows share a draw.
            scale = torch.where(torch.rand(input.shape) < 1 - p, 1 / (1 - p) if p < 1 else 0.0, 0.0)
            return input.mul_(scale) if inplace else input * scale
        words = random_words(input.numel(), DROPOUT_STREAM + self.dropouts).view(input.shape)
        self.dropouts += 1
        kept = ((words >> (32 - _FRACTION_BITS)) & ((1 << _FRACTION_BITS) - 1)) < round((1 - p) * (1 << _FRACTION_BITS))
        scale = torch.where(kept, 1 / (1 - p) if p < 1 else 0.0, 0.0)
        return input.mul_(scale) if inplace else input * scale


def _in_vmap() -> bool:
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() == TransformType.Vmap for level in levels)


def averaged(input: torch.Tensor, output_size: int | tuple[int]) -> torch.Tensor:  # noqa: A002  (torch's name)
    """`adaptive_avg_pool1d`; a mean if the output has one element, because torch would give it other strides."""
    if output_size not in (1, (1,), [1]):
        return torch.adaptive_avg_pool1d(input, output_size)
    return input.unsqueeze(-2).mean((-1, -2), keepdim=True).squeeze(-2)


def averaged_2d(input: torch.Tensor, output_size: int | Sequence[int | None]) -> torch.Tensor:  # noqa: A002
    """`adaptive_avg_pool2d`; a mean if the output has one element, because torch would give it other strides."""
    if output_size not in (1, (1, 1), [1, 1]):
        return F.adaptive_avg_pool2d(input, output_size)  # type: ignore[arg-type]
    return input.mean((-1, -2), keepdim=True)


def gaussian_nll(
    input: torch.Tensor,  # noqa: A002  (torch's name)
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """`gaussian_nll_loss` without the check for negative variances, which depends on data (Nix and Weigend 1994)."""
    if not isinstance(var, torch.Tensor):
        var = var * torch.ones_like(input)
    if var.size() != input.size() and input.size()[:-1] == var.size():
        var = var.unsqueeze(-1)
    var = var.clone()
    with torch.no_grad():
        var.clamp_(min=eps)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


def fake_quantised(
    input: torch.Tensor,  # noqa: A002  (torch's name)
    scale: torch.Tensor | float,
    zero_point: torch.Tensor | float,
    quant_min: int,
    quant_max: int,
) -> torch.Tensor:
    """Rounds to the nearest code and back; the gradient passes where the code is in range (Jacob 2018, section 3)."""
    step = scale.detach() if isinstance(scale, torch.Tensor) else float(np.float32(scale))
    inverse = 1 / step if isinstance(step, torch.Tensor) else float(np.float32(1) / np.float32(step))
    with torch.no_grad():
        code = (input * inverse).round() + zero_point
        inside = (code >= quant_min) & (code <= quant_max)
        value = (code.clamp(quant_min, quant_max) - zero_point) * step
    passed = torch.where(inside, input, 0.0)
    return value + (passed - passed.detach())


def fake_quantised_channels(
    input: torch.Tensor,  # noqa: A002  (torch's name)
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> torch.Tensor:
    """`fake_quantised` with one scale and zero point per index of an axis."""
    shape = [-1 if i == axis % input.dim() else 1 for i in range(input.dim())]
    return fake_quantised(input, scale.view(shape), zero_point.view(shape), quant_min, quant_max)


_PRODUCTS = (
    torch.mm, torch.spmm, torch.sparse.mm, torch.matmul, torch.Tensor.mm, torch.Tensor.matmul, torch.Tensor.__matmul__,
    torch.addmm, torch.bmm,
)  # fmt: skip


def _dense(product: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a matrix product so that constant sparse factors become dense."""

    def dense(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.layout == torch.strided or isinstance(x, FakeTensor):
            return x
        with _disable_current_modes(), torch.no_grad():
            return x.to_dense()

    def multiplied(*args: Any, **kwargs: Any) -> Any:
        # torch.sparse.mm uses an operation of its own even for dense factors.
        return (torch.mm if product is torch.sparse.mm else product)(*map(dense, args), **kwargs)

    return multiplied


def grouped_product(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Multiplies rows [S, K], sorted by group, by their group's matrix of [G, K, N]; group g ends before row offs[g].

    The boundaries depend on data, so every row is multiplied by every matrix, as zeros where it is in another group.
    """
    if mat_a.dim() != 2 or mat_b.dim() != 3 or offs is None or bias is not None or out_dtype is not None:
        raise LoweringError(
            f"a grouped product of {tuple(mat_a.shape)} and {tuple(mat_b.shape)} is not supported",
            hint="use rows [S, K] by matrices [G, K, N] with offsets",
        )
    row = torch.arange(mat_a.shape[0]).unsqueeze(0)
    end = offs.unsqueeze(1)
    before = row < end
    own = torch.cat([before[:1], before[1:] & ~before[:-1]])
    return (torch.where(own.unsqueeze(-1), mat_a, 0.0) @ mat_b).sum(0)


def strided(
    input: torch.Tensor,  # noqa: A002  (torch's name)
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """`as_strided` for a tensor that is dense in memory, as overlapping windows of the flat tensor.

    From the longest stride to the shortest, each axis becomes an axis of windows; the last windows have one element.
    """
    held = input.stride()
    longest = sorted(range(input.dim()), key=lambda i: -held[i])
    dense = input.permute(longest)
    span = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    first = 0 if storage_offset is None else storage_offset - input.storage_offset()
    # INVARIANT: what is read is the tensor's own, in the order in which it lies in memory.
    if not dense.is_contiguous() or min((*size, *stride, first)) < 0 or first + span > input.numel():
        raise LoweringError(
            "as_strided of memory that is not the tensor's own", hint="call contiguous() first, or use unfold"
        )
    flat = dense.reshape(-1)[first : first + span]
    order = sorted(range(len(size)), key=lambda i: -stride[i])
    for i in order:
        n, step, length = size[i], stride[i], flat.shape[-1] - (size[i] - 1) * stride[i]
        if step:
            flat = flat.unfold(-1, length, step)
        else:
            flat = flat.unsqueeze(-2).expand(*flat.shape[:-1], n, length)
    return flat.squeeze(-1).permute([order.index(i) for i in range(len(order))])


@contextmanager
def without_checkpointing() -> Iterator[None]:
    """Runs checkpointed functions once, without recomputation: a Program plans its own memory.

    Torch would run the recomputation of a backward pass outside of every function mode, without our formulas.
    """
    module = torch.utils.checkpoint
    kept = module._checkpoint_without_reentrant_generator, module.CheckpointFunction

    def generator(*_args: Any, **_kwargs: Any) -> Iterator[None]:
        yield

    class Once:
        """Replaces the autograd function of reentrant checkpoints."""

        @staticmethod
        def apply(function: Callable[..., Any], _preserve: bool, *args: Any) -> Any:
            """Calls the function and returns its result."""
            return function(*args)

    module._checkpoint_without_reentrant_generator, module.CheckpointFunction = generator, Once  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        module._checkpoint_without_reentrant_generator, module.CheckpointFunction = kept  # type: ignore[misc]


@contextmanager
def without_compiling() -> Iterator[None]:
    """Disables `torch.compile`: functions run as written, because the whole Program is compiled later."""
    kept = torch.compile
    torch.compile = _as_written
    # If torch._dynamo is not imported yet, nothing is compiled yet; importing it takes seconds.
    config = sys.modules.get("torch._dynamo.config")
    try:
        with config.patch(error_on_nested_fx_trace=False) if config else nullcontext():
            yield
    finally:
        torch.compile = kept


@contextmanager
def without_autocast(known: KnownValues | None = None) -> Iterator[None]:
    """Disables the casts of torch.autocast; `known` records where it would have cast."""
    kind = torch.amp.autocast_mode.autocast
    kept = kind.__enter__, kind.__exit__

    def enter(self: torch.autocast) -> torch.autocast:
        if known is not None and self._enabled:
            known.note(f"autocast to {self.fast_dtype} is taken as torch.float32")
        return self

    kind.__enter__, kind.__exit__ = enter, lambda *_args: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        kind.__enter__, kind.__exit__ = kept  # type: ignore[method-assign]


def _as_written(model: Callable[..., Any] | None = None, **_options: Any) -> Any:
    """Replaces torch.compile, as a function and as a decorator."""
    return model if model is not None else lambda function: function


def replaced_data(x: torch.Tensor, value: torch.Tensor) -> None:
    """Performs `x.data = value` as a write to x, so that the trace sees it."""
    if isinstance(x, FakeTensor) or isinstance(value, FakeTensor):
        with torch.no_grad():
            x.detach().copy_(value)
    else:
        torch.Tensor.data.__set__(x, value)  # type: ignore[attr-defined]


class CumulativeMomentum:
    """Cumulative average for a batch norm without momentum: the weight 1 / n of the latest of n batches."""

    def __init__(self, norm: Any) -> None:
        self._norm = norm

    def value(self) -> torch.Tensor:
        """Returns 1 / n as an f32 scalar."""
        return 1 / self._norm.num_batches_tracked.to(torch.float32)


def batch_norm(
    input: torch.Tensor,  # noqa: A002  (torch's name)
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float | CumulativeMomentum = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Batch norm; writes the running statistics if they are arguments of the traced function.

    Raises LoweringError if they are buffers of a module that are not passed as arguments: the writes would be lost.
    """
    share: float | torch.Tensor
    share, momentum = (momentum.value(), 0.1) if isinstance(momentum, CumulativeMomentum) else (momentum, momentum)
    if not training or running_mean is None or running_var is None:
        moments = (None, None) if training else (running_mean, running_var)
        return torch.native_batch_norm(input, weight, bias, *moments, training, momentum, eps)[0]
    if not (isinstance(running_mean, FakeTensor) and isinstance(running_var, FakeTensor)):
        raise LoweringError(
            "batch norm writes running statistics that are no part of the state",
            hint="give nn.BatchNorm a momentum, or use track_running_stats=False, a GroupNorm, or model.eval()",
        )
    axes = [i for i in range(input.dim()) if i != 1]
    with torch.no_grad():
        mean, var = input.mean(axes), input.var(axes)
        running_mean.copy_((1 - share) * running_mean + share * mean)
        running_var.copy_((1 - share) * running_var + share * var)
    return torch.native_batch_norm(input, weight, bias, None, None, True, momentum, eps)[0]


def instance_norm(
    input: torch.Tensor,  # noqa: A002  (torch's name)
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Instance norm; writes the running statistics (means over the instances) if they are arguments of the traced
    function.

    Raises LoweringError if they are buffers of a module that are not passed as arguments.
    """
    if not use_input_stats or running_mean is None or running_var is None:
        return F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    if not (isinstance(running_mean, FakeTensor) and isinstance(running_var, FakeTensor)):
        raise LoweringError(
            "instance norm writes running statistics that are no part of the state",
            hint="use track_running_stats=False, a GroupNorm, or model.eval()",
        )
    axes = list(range(2, input.dim()))
    with torch.no_grad():
        mean, var = input.mean(axes).mean(0), input.var(axes).mean(0)
        running_mean.copy_((1 - momentum) * running_mean + momentum * mean)
        running_var.copy_((1 - momentum) * running_var + momentum * var)
    return F.instance_norm(input, None, None, weight, bias, True, momentum, eps)
