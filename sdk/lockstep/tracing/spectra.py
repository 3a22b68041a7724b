"""Fourier transforms as matrix products with tables of roots of unity; `stft` and `istft` over frames."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import _disable_current_modes

from lockstep.protocol.errors import LoweringError
from lockstep.tracing.complexes import ComplexPair, conjugate, is_complex, pair_of
from lockstep.tracing.known import KnownValues

MAX_TERMS = 4096
"""Longest axis of a Fourier transform; its table has MAX_TERMS^2 entries."""
_NORMS = {None: 0, "backward": 0, "ortho": 1, "forward": 2}
"""Maps the name of a normalisation to the power of 1 / sqrt(n) in the forward transform: 0, 1 or 2."""


class FourierFormulas:
    """Fourier transforms of one trace."""

    def __init__(self, known: KnownValues) -> None:
        self.known = known
        f = torch.fft
        self.formulas: dict[Any, Callable[..., Any]] = {
            torch.stft: self.stft,
            torch.Tensor.stft: self.stft,
            torch.istft: self.istft,
            torch.Tensor.istft: self.istft,
        }
        # Transforms over one axis, two, or all; of complex tensors, of real ones, and back to real ones.
        for one, two, every, made in (
            (f.fft, f.fft2, f.fftn, partial(self.transformed, back=False)),
            (f.ifft, f.ifft2, f.ifftn, partial(self.transformed, back=True)),
            (f.rfft, f.rfft2, f.rfftn, self.halved),
            (f.irfft, f.irfft2, f.irfftn, self.restored),
            (f.hfft, f.hfft2, f.hfftn, self.hermitian),
            (f.ihfft, f.ihfft2, f.ihfftn, self.of_hermitian),
        ):
            self.formulas[one] = partial(_along_one, made)
            self.formulas[two] = partial(_along_two, made)
            self.formulas[every] = made

    def transformed(
        self,
        input: Any,  # noqa: A002  (torch's names)
        s: Any = None,
        dim: Any = None,
        norm: str | None = None,
        *,
        back: bool,
        first: bool = True,
    ) -> ComplexPair:
        """The discrete Fourier transform along axes, or its inverse (`back`), one axis after another."""
        real = isinstance(input, Tensor) and not is_complex(input)
        pair = pair_of(input, self.known)
        axes, lengths = _axes(pair.re, s, dim)
        sizes = [pair.shape[axis] if n is None else n for axis, n in zip(axes, lengths, strict=True)]
        for axis, n in zip(axes, sizes, strict=True):
            pair = self._turned(_resized(pair, axis, n), axis, imaginary=not (real and first), back=back)
            first = False
        return _scaled(pair, prod(sizes), norm, back)

    def _turned(self, x: ComplexPair, axis: int, *, imaginary: bool, back: bool) -> ComplexPair:
        """The transform along one axis: X_k = sum over j of x_j exp(-2 pi i j k / n)."""
        re, im = x.re.movedim(axis, -1), x.im.movedim(axis, -1)
        cos, sin = _table(re.shape[-1])
        if back:
            real, turned = re @ cos, re @ sin
            if imaginary:
                real, turned = real - im @ sin, turned + im @ cos
        else:
            real, turned = re @ cos, -(re @ sin)
            if imaginary:
                real, turned = real + im @ sin, turned + im @ cos
        return ComplexPair(real.movedim(-1, axis), turned.movedim(-1, axis), self.known)

    def halved(self, input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> ComplexPair:  # noqa: A002
        """Transforms a real tensor to its first n / 2 + 1 coefficients; the others are conjugates."""
        axes, lengths = _axes(input, s, dim)
        n = input.shape[axes[-1]] if lengths[-1] is None else lengths[-1]
        real = _resized_part(input, axes[-1], n).movedim(axes[-1], -1)
        cos, sin = (table[:, : n // 2 + 1] for table in _table(n))
        re, im = real @ cos, -(real @ sin)
        pair = ComplexPair(re.movedim(-1, axes[-1]), im.movedim(-1, axes[-1]), self.known)
        if len(axes) > 1:
            pair = self.transformed(pair, None if s is None else lengths[:-1], axes[:-1], norm, back=False)
        return _scaled(pair, n, norm, False)

    def restored(self, input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:  # noqa: A002
        """Inverts `halved`: from n / 2 + 1 coefficients, whose conjugates are implied, to the real tensor."""
        pair = pair_of(input, self.known)
        axes, lengths = _axes(pair.re, s, dim)
        axis = axes[-1]
        n = 2 * (pair.shape[axis] - 1) if lengths[-1] is None else lengths[-1]
        if len(axes) > 1:
            pair = self.transformed(pair, None if s is None else lengths[:-1], axes[:-1], norm, back=True)
        pair = _resized(pair, axis, n // 2 + 1)
        cos, sin = _table(n)
        # All coefficients except the first, and the middle one of an even n, count twice.
        twice = [1.0 if k == 0 or 2 * k == n else 2.0 for k in range(n // 2 + 1)]
        with _disable_current_modes():
            weight = torch.tensor(twice, dtype=cos.dtype).unsqueeze(1)
            cos, sin = cos[: n // 2 + 1] * weight, sin[: n // 2 + 1] * weight
        real = pair.re.movedim(axis, -1) @ cos - pair.im.movedim(axis, -1) @ sin
        return _scaled(real.movedim(-1, axis), n, norm, True)

    def hermitian(self, input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:  # noqa: A002
        """Transforms half of a conjugate-symmetric signal to its real spectrum."""
        return self.restored(conjugate(pair_of(input, self.known)), s, dim, _other(norm))

    def of_hermitian(self, input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> ComplexPair:  # noqa: A002
        """The inverse of `hermitian`."""
        return conjugate(self.halved(input, s, dim, _other(norm)))

    # --- frames -------------------------------------------------------------------------------------------

    def stft(
        self,
        input: Tensor,  # noqa: A002
        n_fft: int,
        hop_length: int | None = None,
        win_length: int | None = None,
        window: Tensor | None = None,
        center: bool = True,
        pad_mode: str = "reflect",
        normalized: bool = False,
        onesided: bool | None = None,
        return_complex: bool | None = None,
        align_to_window: bool | None = None,
    ) -> Any:
        """Short-time Fourier transform [.., T] -> [.., n_fft / 2 + 1, frames] (Griffin and Lim 1984)."""
        if is_complex(input) or align_to_window:
            raise LoweringError("a short-time transform of complex numbers", hint="transform both parts by themselves")
        hop = n_fft // 4 if hop_length is None else hop_length
        rows = input.unsqueeze(0) if input.dim() == 1 else input
        if center:
            rows = F.pad(rows.unsqueeze(1), (n_fft // 2, n_fft // 2), pad_mode).squeeze(1)
        frames = _frames(rows, n_fft, hop)
        shape = _window(window, win_length, n_fft)
        if shape is not None:
            frames = frames * shape
        norm = "ortho" if normalized else None
        whole = onesided is False
        z = self.transformed(frames, None, (-1,), norm, back=False) if whole else self.halved(frames, None, (-1,), norm)
        z = z.transpose(1, 2)
        z = z.squeeze(0) if input.dim() == 1 else z
        return z if return_complex else torch.stack([z.re, z.im], -1)

    def istft(
        self,
        input: Any,  # noqa: A002
        n_fft: int,
        hop_length: int | None = None,
        win_length: int | None = None,
        window: Tensor | None = None,
        center: bool = True,
        normalized: bool = False,
        onesided: bool | None = None,
        length: int | None = None,
        return_complex: bool = False,
    ) -> Tensor:
        """Inverse short-time transform [.., n_fft / 2 + 1, frames] -> [.., T]: overlap-add, divided by the sum of
        squared windows.
        """
        if return_complex:
            raise LoweringError("a complex signal of short-time spectra", hint="leave return_complex off")
        hop = n_fft // 4 if hop_length is None else hop_length
        z = pair_of(input, self.known)
        z = (z.unsqueeze(0) if len(z.shape) == 2 else z).transpose(1, 2)
        norm = "ortho" if normalized else None
        if onesided is False:
            frames = self.transformed(z, None, (-1,), norm, back=True).re
        else:
            frames = self.restored(z, (n_fft,), (-1,), norm)
        shape = _window(window, win_length, n_fft)
        squares = torch.ones(n_fft) if shape is None else shape * shape
        count = frames.shape[1]
        total = _added(frames if shape is None else frames * shape, hop)
        weight = _added(squares.expand(1, count, n_fft), hop)
        first = n_fft // 2 if center else 0
        end = first + length if length is not None else total.shape[-1] - (n_fft // 2 if center else 0)
        signal = total[:, first:end] / weight[:, first:end]
        if length is not None:
            signal = F.pad(signal, (0, length - signal.shape[-1]))
        return signal.squeeze(0) if len(input.shape) == 2 else signal


def _along_one(made: Any, input: Any, n: Any = None, dim: int = -1, norm: Any = None) -> Any:  # noqa: A002
    return made(input, None if n is None else (n,), (dim,), norm)


def _along_two(made: Any, input: Any, s: Any = None, dim: Any = (-2, -1), norm: Any = None) -> Any:  # noqa: A002
    return made(input, s, dim, norm)


def _other(norm: str | None) -> str:
    return {0: "forward", 1: "ortho", 2: "backward"}[_NORMS[norm]]


def _axes(x: Tensor, s: Any, dim: Any) -> tuple[list[int], list[int | None]]:
    """Resolves torch's arguments to (axes, length of each or None)."""
    if dim is None:
        dim = range(x.dim()) if s is None else range(x.dim() - len(s), x.dim())
    axes = [dim] if isinstance(dim, int) else list(dim)
    lengths: list[int | None] = [None] * len(axes) if s is None else [None if n == -1 else n for n in s]
    return axes, lengths


def _resized_part(x: Tensor, axis: int, n: int) -> Tensor:
    held = x.shape[axis]
    if held >= n:
        return x if held == n else x.narrow(axis, 0, n)
    axis %= x.dim()
    return torch.cat([x, torch.zeros(*x.shape[:axis], n - held, *x.shape[axis + 1 :])], axis)


def _resized(x: ComplexPair, axis: int, n: int) -> ComplexPair:
    if x.shape[axis] == n:
        return x
    return ComplexPair(_resized_part(x.re, axis, n), _resized_part(x.im, axis, n), x.known)


def _table(n: int) -> tuple[Tensor, Tensor]:
    """Returns tables of cos and sin of 2 pi j k / n."""
    if n > MAX_TERMS:
        raise LoweringError(f"a Fourier transform of {n} terms", hint=f"at most {MAX_TERMS}: cut it into frames")
    with _disable_current_modes():
        # j k is reduced modulo n before it becomes an angle, so that each entry is rounded once.
        angles = 2 * np.pi * (np.outer(np.arange(n), np.arange(n)) % n) / n
        cos, sin = (torch.from_numpy(f(angles)).to(torch.get_default_dtype()) for f in (np.cos, np.sin))
    return cos, sin


def _scaled(x: Any, n: int, norm: str | None, back: bool) -> Any:
    if norm not in _NORMS:
        raise LoweringError(f"a Fourier transform of the norm {norm!r}", hint="backward, ortho or forward")
    halves = 2 - _NORMS[norm] if back else _NORMS[norm]
    return x if halves == 0 else x * float(n) ** (-halves / 2)


def _window(window: Tensor | None, length: int | None, n: int) -> Tensor | None:
    """Returns the window, centred in n elements with zeros around it."""
    if window is None:
        if length is None or length == n:
            return None
        window = torch.ones(length)
    missing = n - window.shape[0]
    return window if missing == 0 else F.pad(window, (missing // 2, missing - missing // 2))


def _frames(x: Tensor, size: int, hop: int) -> Tensor:
    """Splits [B, T] into frames [B, frames, size], composed of blocks of `hop`, so that the gradient adds a few shifted
    blocks.
    """
    count = (x.shape[1] - size) // hop + 1
    if count < 1:
        raise LoweringError(f"frames of {size} of a signal of {x.shape[1]}", hint="pad it, or use a shorter n_fft")
    shifts = -(-size // hop)
    whole = (count - 1 + shifts) * hop
    blocks = F.pad(x, (0, whole - x.shape[1])).view(x.shape[0], -1, hop)
    return torch.cat([blocks[:, j : j + count] for j in range(shifts)], 2)[..., :size]


def _added(frames: Tensor, hop: int) -> Tensor:
    """Overlap-adds frames [B, frames, size] -> [B, T]; each frame begins `hop` after the previous one."""
    rows, count, size = frames.shape
    shifts = -(-size // hop)
    blocks = F.pad(frames, (0, shifts * hop - size)).view(rows, count, shifts, hop)
    total: Any = 0
    for j in range(shifts):
        total = total + F.pad(blocks[:, :, j], (0, 0, j, shifts - 1 - j))
    return total.reshape(rows, -1)[:, : (count - 1) * hop + size]
