"""Complex numbers as pairs of real tensors, for rotary embeddings and Fourier transforms.

    z = torch.view_as_complex(x.view(..., -1, 2)) * torch.polar(ones, angles)
    y = torch.view_as_real(z)

A pair is made by `polar`, `view_as_complex` or `fft.fftn`, multiplied, cut, and made real again. What else is done with
it is refused. A constant table of complex numbers may be a factor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from lockstep.protocol.errors import LoweringError
from lockstep.tracing.known import KnownValues

_HINT = "of complex numbers, products, indexing, unsqueeze, real and view_as_real are known; or use two real tensors"
MAX_TERMS = 4096
"""The longest axis of a Fourier transform: its table has the square of that."""


class ComplexPair:
    """re + i im, both f32 of one shape."""

    def __init__(self, re: torch.Tensor, im: torch.Tensor, known: KnownValues) -> None:
        self.re, self.im, self.known = re, im, known

    @property
    def real(self) -> torch.Tensor:
        """The real part."""
        return self.re

    @property
    def imag(self) -> torch.Tensor:
        """The imaginary part."""
        return self.im

    @property
    def shape(self) -> torch.Size:
        """The shape of the pair's tensors."""
        return self.re.shape

    @property
    def device(self) -> torch.device:
        """The device of the pair's tensors."""
        return self.re.device

    @classmethod
    def __torch_function__(cls, func: Any, _types: Any, _args: Any = (), _kwargs: Any = None) -> Any:
        raise LoweringError(f"{getattr(func, '__name__', func)} of complex numbers is not supported", hint=_HINT)

    def __mul__(self, other: Any) -> ComplexPair:
        """(a + ib)(c + id) = ac - bd + i(ad + bc); or times something real."""
        if isinstance(other, torch.Tensor) and other.is_complex():
            other = self._of_constant(other)
        if not isinstance(other, ComplexPair):
            return ComplexPair(self.re * other, self.im * other, self.known)
        re = self.re * other.re - self.im * other.im
        return ComplexPair(re, self.re * other.im + self.im * other.re, self.known)

    __rmul__ = __mul__

    def __getitem__(self, index: Any) -> ComplexPair:
        return ComplexPair(self.re[index], self.im[index], self.known)

    def unsqueeze(self, dim: int) -> ComplexPair:
        """Inserts an axis of extent 1."""
        return ComplexPair(self.re.unsqueeze(dim), self.im.unsqueeze(dim), self.known)

    def to(self, device: Any) -> ComplexPair:
        """As a tensor's, for a device; LoweringError for a dtype."""
        if isinstance(device, torch.dtype):
            raise LoweringError(f"complex numbers on {device} are not supported", hint=_HINT)
        return self

    def _of_constant(self, table: torch.Tensor) -> ComplexPair:
        value = self.known.real(table)
        # INVARIANT: complex numbers that depend on data are pairs.
        if value is None:
            raise LoweringError(
                "complex numbers that depend on data and are not a pair of real tensors are not supported", hint=_HINT
            )
        with _disable_current_modes(), torch.no_grad():
            re, im = (part.to(torch.float32).contiguous() for part in (value.real, value.imag))
        return ComplexPair(re, im, self.known)


class ComplexFormulas:
    """The functions of torch that make pairs, and make them real; one for each trace."""

    def __init__(self, known: KnownValues) -> None:
        self.known = known
        self.formulas: dict[Any, Callable[..., Any]] = {
            torch.fft.fft: lambda x, n=None, dim=-1, norm=None: self.fftn(x, n, (dim,), norm),
            torch.fft.fft2: lambda x, s=None, dim=(-2, -1), norm=None: self.fftn(x, s, dim, norm),
            torch.fft.fftn: self.fftn,
            torch.polar: self.polar,
            torch.view_as_complex: self.view_as_complex,
            torch.view_as_real: self.view_as_real,
            torch.Tensor.mul: self.product,
        }

    def polar(self, magnitude: torch.Tensor, angle: torch.Tensor) -> ComplexPair:
        """r (cos a + i sin a)."""
        return ComplexPair(magnitude * angle.cos(), magnitude * angle.sin(), self.known)

    def view_as_complex(self, x: torch.Tensor) -> ComplexPair:
        """[..., 2] -> pairs [...]."""
        return ComplexPair(x[..., 0], x[..., 1], self.known)

    def view_as_real(self, x: Any) -> torch.Tensor:
        """Pairs [...] -> [..., 2]."""
        return torch.stack([x.re, x.im], -1) if isinstance(x, ComplexPair) else torch.view_as_real(x)

    def fftn(self, x: Any, s: Any = None, dim: Sequence[int] | None = None, norm: str | None = None) -> ComplexPair:
        """The discrete Fourier transform along axes, as a product with a table of roots of unity for each axis."""
        if s is not None or norm not in (None, "backward"):
            raise LoweringError(
                "a Fourier transform with n, s or norm is not supported", hint="leave n, s and norm out"
            )
        pair = x if isinstance(x, ComplexPair) else ComplexPair(x, torch.zeros_like(x), self.known)
        first = isinstance(x, torch.Tensor)
        for axis in range(len(x.shape)) if dim is None else dim:
            pair, first = self._turned(pair, axis, imaginary=not first), False
        return pair

    def _turned(self, x: ComplexPair, axis: int, *, imaginary: bool) -> ComplexPair:
        """One axis' transform: X_k = sum over j of x_j exp(-2 pi i j k / n)."""
        re, im = x.re.movedim(axis, -1), x.im.movedim(axis, -1)
        n = re.shape[-1]
        if n > MAX_TERMS:
            raise LoweringError(
                f"a Fourier transform of {n} terms is not supported",
                hint=f"use at most {MAX_TERMS} terms: cut the signal into frames",
            )
        with _disable_current_modes():
            # The exponent is reduced before it becomes an angle: the table's entries are rounded once.
            angles = 2 * np.pi * (np.outer(np.arange(n), np.arange(n)) % n) / n
            cos, sin = (torch.from_numpy(f(angles)).to(torch.get_default_dtype()) for f in (np.cos, np.sin))
        real, turned = re @ cos, -(re @ sin)
        if imaginary:
            real, turned = real + im @ sin, turned + im @ cos
        return ComplexPair(real.movedim(-1, axis), turned.movedim(-1, axis), self.known)

    def product(self, x: Any, y: Any) -> Any:
        """`x * y`, where the second is a pair too."""
        return y * x if isinstance(y, ComplexPair) else torch.mul(x, y)
