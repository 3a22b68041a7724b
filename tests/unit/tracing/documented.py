"""Functions of torch's documentation by family, each with shapes that are drawn; `test_documented.py` sweeps them.

Shapes are words: a lower letter is an extent of 1 to 4, an upper one of 5 to 8, the same letter the same extent, and a
digit itself, # 32. A case gets one tensor for each word and returns a tensor, or several.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

A, L, S = torch.ops.aten, torch.linalg, torch.fft


@dataclass(frozen=True)
class Drawn:
    """A function and the shapes of its arguments."""

    shapes: str
    function: Callable[..., Any]


def cases(*pairs: Any) -> list[Drawn]:
    """shapes, function, shapes, function, ..."""
    return [Drawn(shapes, function) for shapes, function in zip(pairs[::2], pairs[1::2], strict=True)]


def indices(x: torch.Tensor, count: int) -> torch.Tensor:
    """int64 of x's shape, 0 .. count - 1: of data."""
    return (x.detach() * 1000).round().to(torch.int32).remainder(count).long()


def distinct(x: torch.Tensor) -> torch.Tensor:
    """As many different rows as x has, from the last to the first."""
    return torch.arange(x.shape[0] - 1, -1, -1)


def regular(x: torch.Tensor) -> torch.Tensor:
    """Square matrices far from singular."""
    n = x.shape[-1]
    return x / 4 + torch.eye(n) * (2 + torch.arange(n) / 2)


def definite(x: torch.Tensor) -> torch.Tensor:
    """Symmetric positive definite."""
    n = x.shape[-1]
    return x @ x.transpose(-2, -1) / 4 + torch.eye(n) * (1 + torch.arange(n) / 2)


def pair(x: torch.Tensor) -> torch.Tensor:
    """[.., 2 n] -> complex [.., n]."""
    return torch.view_as_complex(x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2).contiguous())


def parts(z: torch.Tensor) -> torch.Tensor:
    """Complex -> real."""
    return torch.view_as_real(z.resolve_conj())


def bag(**kwargs: Any) -> Callable[..., Any]:
    """A bag of rows [a, B] of a table."""
    return lambda x, i: F.embedding_bag(indices(i, x.shape[0]), x, **kwargs)


def ctc(**kwargs: Any) -> Callable[..., Any]:
    """Lengths of data, labels without the blank 0."""

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        steps, rows, classes = x.shape
        targets = indices(y, classes - 1) + 1
        given = torch.arange(rows).remainder(2)
        return F.ctc_loss(x.log_softmax(-1), targets, steps - given, y.shape[1] - given, **kwargs)

    return run


def grid(**kwargs: Any) -> Callable[..., Any]:
    """Places that lie partly outside."""
    return lambda x, g: F.grid_sample(x, g * 0.9, **kwargs)


FAMILIES: dict[str, dict[str, list[Drawn]]] = {
    "embedding": {
        "embedding_bag sum": cases("Ed aB", bag(mode="sum")),
        "embedding_bag mean": cases("Ed aB", bag()),
        "embedding_bag max": cases("Ed aB", bag(mode="max")),
        "embedding_bag per_sample_weights": cases(
            "Ed aB aB", lambda x, i, w: F.embedding_bag(indices(i, x.shape[0]), x, mode="sum", per_sample_weights=w)
        ),
        "embedding_bag offsets": cases(
            "Ed D",
            lambda x, i: F.embedding_bag(indices(i, x.shape[0]), x, torch.tensor([0, 2, 2, 4]), mode="sum"),
            "Ed D",
            lambda x, i: F.embedding_bag(indices(i, x.shape[0]), x, torch.tensor([0, 2, 2, 4])),
            "Ed D",
            lambda x, i: F.embedding_bag(indices(i, x.shape[0]), x, torch.tensor([0, 2, 2, 4]), mode="max"),
            "Ed 7 7",
            lambda x, i, w: F.embedding_bag(
                indices(i, x.shape[0]),
                x,
                torch.tensor([0, 2, 2, 4, 7]),
                mode="sum",
                per_sample_weights=w,
                include_last_offset=True,
            ),
        ),
        "embedding_bag offsets of data": cases(
            "Ed D 2",
            lambda x, i, o: F.embedding_bag(
                indices(i, x.shape[0]), x, torch.cat([torch.zeros(1).long(), 2 + indices(o, 2).cumsum(0)])
            ),
        ),
        "embedding_bag padding_idx": cases(
            "Ed aB",
            bag(mode="sum", padding_idx=1),
            "Ed aB",
            bag(padding_idx=-1),
            "Ed aB",
            bag(mode="max", padding_idx=0),
        ),
        "nn.EmbeddingBag": cases(
            "5d aB",
            lambda x, i: torch.func.functional_call(
                torch.nn.EmbeddingBag(5, x.shape[1], mode="sum", device="meta"), {"weight": x}, (indices(i, 5),)
            ),
        ),
        "embedding sparse": cases(
            "Ed aB", lambda x, i: F.embedding(indices(i, x.shape[0]), x, sparse=x.dtype == torch.float32)
        ),
        "embedding_bag sparse": cases(
            "Ed aB",
            lambda x, i: F.embedding_bag(indices(i, x.shape[0]), x, mode="sum", sparse=x.dtype == torch.float32),
        ),
        "embedding max_norm": cases(
            "Ed aB", lambda x, i: F.embedding(indices(i, x.shape[0]), (x * 1).detach(), max_norm=1.0) + 0 * x.sum()
        ),
        "embedding scale_grad_by_freq": cases(
            "Ed aB", lambda x, i: F.embedding(indices(i, x.shape[0]), x, scale_grad_by_freq=True)
        ),
    },
    "distances": {
        f"cdist p={p}": cases(
            "aBd Ed",
            lambda x, y, p=p: torch.cdist(x[0], y, p=p),
            "2aBd aDd",
            lambda x, y, p=p: torch.cdist(x, y, p=p),
            "bd cd",
            lambda x, y, p=p: torch.cdist(x, y, p=p),
        )
        for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf"))
    }
    | {
        "cdist by products": cases(
            "Bd Ed",
            lambda x, y: torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist"),
            "Bd 9E",
            lambda x, y: torch.cdist(torch.cat([x, x + 1, x + 2, x + 3, x + 4, x + 5]), x + 0.3),
        ),
        "cdist of equal rows": cases(
            "Bd",
            lambda x: torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist"),
            "Bd",
            lambda x: torch.cdist(x, x, p=1.0),
        ),
        "pdist": cases(
            "Bd",
            torch.pdist,
            "Bd",
            lambda x: F.pdist(x, 1.0),
            "Bd",
            lambda x: F.pdist(x, 3.0),
            "Bd",
            lambda x: F.pdist(x, float("inf")),
        ),
        "pairwise_distance": cases(
            "Bd Bd",
            F.pairwise_distance,
            "Bd Bd",
            lambda x, y: F.pairwise_distance(x, y, 1.0),
            "Bd Bd",
            lambda x, y: F.pairwise_distance(x, y, 3.0, keepdim=True),
        ),
        "cosine_similarity": cases("aBd aBd", lambda x, y: F.cosine_similarity(x, y, -1)),
    },
    "ctc": {
        "ctc_loss mean": cases("BaE a2", ctc()),
        "ctc_loss sum": cases("BaE a2", ctc(reduction="sum")),
        "ctc_loss none": cases("BaE a2", ctc(reduction="none")),
        "ctc_loss lengths as tuples": cases(
            "B2E 22",
            lambda x, y: F.ctc_loss(x.log_softmax(-1), indices(y, x.shape[2] - 1) + 1, (x.shape[0], 4), (2, 1)),
        ),
        "ctc_loss joined targets": cases(
            "B2E 3",
            lambda x, y: F.ctc_loss(
                x.log_softmax(-1), indices(y, x.shape[2] - 1) + 1, torch.tensor([x.shape[0], 4]), torch.tensor([2, 1])
            ),
        ),
        "ctc_loss blank": cases(
            "B3E 33",
            lambda x, y: F.ctc_loss(
                x.log_softmax(-1),
                indices(y, x.shape[2] - 1),
                torch.full((3,), x.shape[0]),
                torch.full((3,), 2),
                blank=x.shape[2] - 1,
                reduction="none",
            ),
        ),
        "ctc_loss zero_infinity": cases(
            "332 33",
            lambda x, y: F.ctc_loss(
                x.log_softmax(-1), indices(y, 1) + 1, torch.full((3,), 3), torch.tensor([3, 2, 1]), zero_infinity=True
            ),
        ),
        "ctc_loss lengths of data": cases(
            "B3E 33 3",
            lambda x, y, n: F.ctc_loss(
                x.log_softmax(-1), indices(y, x.shape[2] - 1) + 1, torch.full((3,), x.shape[0]), indices(n, 3) + 1
            ),
        ),
        "ctc_loss of one": cases(
            "BE 2",
            lambda x, y: F.ctc_loss(
                x.log_softmax(-1), indices(y, x.shape[1] - 1) + 1, torch.tensor(x.shape[0]), torch.tensor(2)
            ),
        ),
        "ctc_loss of no log_softmax": cases(
            "B2E 22",
            lambda x, y: F.ctc_loss(-x.abs(), indices(y, x.shape[2] - 1) + 1, (5, 4), (2, 2)),
        ),
    },
    "3-D": {
        "conv3d": cases(
            "a3DEB d3212",
            lambda x, w: F.conv3d(x, w),
            "a4BEB 42333 4",
            lambda x, w, b: F.conv3d(x, w, b, stride=(1, 2, 3), padding=(2, 0, 1), groups=2),
            "24E7B 34222",
            lambda x, w: F.conv3d(x, w, stride=2),
            "4E7B 34222",
            lambda x, w: F.conv3d(x, w, dilation=(2, 1, 2)),
            "a2E7B 32323",
            lambda x, w: F.conv3d(x, w, padding="same"),
            "a2456 32323",
            lambda x, w: F.conv3d(x, w, padding="valid"),
        ),
        "nn.Conv3d": cases(
            "a2E7B 22333 2",
            lambda x, w, b: torch.func.functional_call(
                torch.nn.Conv3d(2, 2, 3, padding=1, device="meta"), {"weight": w, "bias": b}, (x,)
            ),
            "a2E7B 22333",
            lambda x, w: torch.func.functional_call(
                torch.nn.Conv3d(2, 2, 3, padding=1, padding_mode="replicate", bias=False, device="meta"),
                {"weight": w},
                (x,),
            ),
            "a2E7B 22333",
            lambda x, w: torch.func.functional_call(
                torch.nn.Conv3d(2, 2, 3, padding=1, padding_mode="circular", bias=False, device="meta"),
                {"weight": w},
                (x,),
            ),
        ),
        "conv_transpose3d": cases(
            "a3abc 3d232",
            lambda x, w: F.conv_transpose3d(x, w),
            "a4234 42333 4",
            lambda x, w, b: F.conv_transpose3d(x, w, b, (1, 2, 3), (1, 0, 1), (0, 1, 2), groups=2),
            "4234 42222",
            lambda x, w: F.conv_transpose3d(x, w, stride=2),
            "a2234 23323",
            lambda x, w: F.conv_transpose3d(x, w, stride=(2, 1, 1), dilation=(2, 1, 2)),
        ),
        "max_pool3d": cases(
            "abDEB",
            lambda x: F.max_pool3d(x, 2),
            "abDEB",
            lambda x: F.max_pool3d(x, (3, 2, 1), (2, 1, 3), (1, 1, 0)),
            "bDEB",
            lambda x: F.max_pool3d(x.contiguous(), 2, ceil_mode=True),
            "abDEB",
            lambda x: F.max_pool3d(x, 2, 1, dilation=3),
        ),
        "max_pool3d with indices": cases(
            "abDEB",
            lambda x: F.max_pool3d(x, 3, 2, 1, return_indices=True),
            "bDEB",
            lambda x: F.max_pool3d(x.contiguous(), (1, 2, 3), return_indices=True),
        ),
        "avg_pool3d": cases(
            "abDEB",
            lambda x: F.avg_pool3d(x, 2),
            "abDEB",
            lambda x: F.avg_pool3d(x, (3, 2, 3), (2, 1, 3), (1, 1, 0)),
            "bDEB",
            lambda x: F.avg_pool3d(x, 2, ceil_mode=True),
            "abDEB",
            lambda x: F.avg_pool3d(x, 3, 2, 1, count_include_pad=False),
            "abDEB",
            lambda x: F.avg_pool3d(x, 3, 2, 1, ceil_mode=True, divisor_override=5),
        ),
        "adaptive_avg_pool3d": cases(
            "abDEB",
            lambda x: F.adaptive_avg_pool3d(x, 1),
            "abDEB",
            lambda x: F.adaptive_avg_pool3d(x, (3, 2, 4)),
            "bDEB",
            lambda x: F.adaptive_avg_pool3d(x, (None, 2, 4)),
        ),
        "interpolate trilinear": cases(
            "abcde",
            lambda x: F.interpolate(x, (5, 3, 2), mode="trilinear"),
            "abcde",
            lambda x: F.interpolate(x, (5, 3, 2), mode="trilinear", align_corners=True),
            "abcde",
            lambda x: F.interpolate(x, scale_factor=1.7, mode="trilinear"),
        ),
        "interpolate nearest 3-D": cases(
            "abcde",
            lambda x: F.interpolate(x, (5, 3, 2)),
            "abcde",
            lambda x: F.interpolate(x, scale_factor=2),
        ),
        "interpolate area 3-D": cases("abDEB", lambda x: F.interpolate(x, (5, 3, 2), mode="area")),
        "pad reflect 3-D": cases("abDEB", lambda x: F.pad(x, (1, 2, 3, 0, 2, 2), "reflect")),
        "pad replicate 3-D": cases(
            "abDEB",
            lambda x: F.pad(x, (1, 2, 3, 0, 2, 2), "replicate"),
            "aDEB",
            lambda x: F.pad(x, (1, 2, 3, 0, 2, 2), "replicate"),
        ),
        "pad circular 3-D": cases("abDEB", lambda x: F.pad(x, (1, 2, 3, 0, 2, 2), "circular")),
        "pad constant 3-D": cases("abDEB", lambda x: F.pad(x, (1, -2, 3, 0, 2, 2), value=0.5)),
        "batch_norm 3-D": cases("23234", lambda x: F.batch_norm(x, None, None, training=True)),
        "instance_norm 3-D": cases("23234", lambda x: F.instance_norm(x)),
        "group_norm 3-D": cases("24234", lambda x: F.group_norm(x, 2)),
    },
    "pooling": {
        "adaptive_max_pool1d": cases(
            "abD",
            lambda x: F.adaptive_max_pool1d(x, 3),
            "bD",
            lambda x: F.adaptive_max_pool1d(x, 1),
            "a6",
            lambda x: F.adaptive_max_pool1d(x, 3, return_indices=True),
        ),
        "adaptive_max_pool2d": cases(
            "abDE",
            lambda x: F.adaptive_max_pool2d(x, (3, 2)),
            "bDE",
            lambda x: F.adaptive_max_pool2d(x, (None, 4), return_indices=True),
            "ab64",
            lambda x: F.adaptive_max_pool2d(x, 2),
        ),
        "adaptive_max_pool3d": cases(
            "abDEB",
            lambda x: F.adaptive_max_pool3d(x, (3, 2, 4)),
            "abDEB",
            lambda x: F.adaptive_max_pool3d(x, 3, return_indices=True),
        ),
        "max_unpool1d": cases("abE", lambda x: F.max_unpool1d(*F.max_pool1d(x, 2, return_indices=True), 2)),
        "max_unpool2d": cases(
            "ab46",
            lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
            "abDE",
            lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=x.shape),
        ),
        "max_unpool3d": cases("ab644", lambda x: F.max_unpool3d(*F.max_pool3d(x, 2, return_indices=True), 2)),
        "local_response_norm": cases(
            "aBD",
            lambda x: F.local_response_norm(x, 3),
            "aBDE",
            lambda x: F.local_response_norm(x, 4, 0.1, 0.5, 2.0),
            "aBcde",
            lambda x: F.local_response_norm(x.contiguous(), 2),
        ),
        "lp_pool1d": cases("abE", lambda x: F.lp_pool1d(x, 2, 3, 2), "bE", lambda x: F.lp_pool1d(x.abs() + 1, 3.0, 2)),
        "lp_pool2d": cases("abDE", lambda x: F.lp_pool2d(x, 2, 2), "abDE", lambda x: F.lp_pool2d(x, 4, (3, 2), 1)),
        "lp_pool3d": cases("abDEB", lambda x: F.lp_pool3d(x, 2, 2), "abDEB", lambda x: F.lp_pool3d(x, 2, (3, 2, 1), 2)),
        "max_pool1d with indices": cases("abE", lambda x: F.max_pool1d(x, 3, 2, 1, return_indices=True)),
        "avg_pool1d": cases("abE", lambda x: F.avg_pool1d(x, 3, 2, 1)),
        "interpolate nearest-exact": cases(
            "abE",
            lambda x: F.interpolate(x, 7, mode="nearest-exact"),
            "abDE",
            lambda x: F.interpolate(x, (7, 3), mode="nearest-exact"),
            "abcDE",
            lambda x: F.interpolate(x, (2, 7, 3), mode="nearest-exact"),
            "abDE",
            lambda x: F.interpolate(x, scale_factor=1.6, mode="nearest-exact"),
        ),
        "interpolate antialiased bilinear": cases(
            "abDE",
            lambda x: F.interpolate(x, (3, 9), mode="bilinear", antialias=True),
            "abDE",
            lambda x: F.interpolate(x, (2, 3), mode="bilinear", antialias=True, align_corners=True),
            "abDE",
            lambda x: F.interpolate(x, scale_factor=0.4, mode="bilinear", antialias=True),
        ),
        "interpolate antialiased bicubic": cases(
            "abDE",
            lambda x: F.interpolate(x, (3, 9), mode="bicubic", antialias=True),
            "abDE",
            lambda x: F.interpolate(x, (2, 3), mode="bicubic", antialias=True, align_corners=True),
        ),
        "interpolate area": cases(
            "abE", lambda x: F.interpolate(x, 3, mode="area"), "abDE", lambda x: F.interpolate(x, (3, 2), mode="area")
        ),
        "unfold": cases("abDE", lambda x: F.unfold(x, (3, 2), 1, 1, 2), "bDE", lambda x: F.unfold(x, 2)),
        "fold": cases(
            "2E6", lambda x: F.fold(x.repeat(1, 4, 1), (3, 4), 2), "8D", lambda x: F.fold(x[:, :4], (3, 3), 2)
        ),
        "Tensor.unfold": cases("aEb", lambda x: x.unfold(1, 3, 2), "aE", lambda x: x.unfold(-1, 2, 1)),
        "pixel_shuffle": cases("a4cd", lambda x: F.pixel_shuffle(x, 2)),
        "upsample": cases("abcd", lambda x: F.upsample_nearest(x, scale_factor=2)),
    },
    "spectra": {
        "fft.rfft": cases(
            "aE",
            lambda x: parts(S.rfft(x)),
            "aEb",
            lambda x: parts(S.rfft(x, dim=1, norm="ortho")),
            "aE",
            lambda x: parts(S.rfft(x, 4)),
            "aE",
            lambda x: parts(S.rfft(x, 11, norm="forward")),
            "a1",
            lambda x: parts(S.rfft(x)),
        ),
        "fft.irfft": cases(
            "a8",
            lambda x: S.irfft(pair(x)),
            "a8",
            lambda x: S.irfft(pair(x), 5),
            "a8",
            lambda x: S.irfft(pair(x), 9, norm="ortho"),
            "a8b",
            lambda x: S.irfft(pair(x.movedim(1, 2)), dim=0, n=3),
            "aE",
            lambda x: S.irfft(x),
        ),
        "fft.fft": cases(
            "aE",
            lambda x: parts(S.fft(x)),
            "a8",
            lambda x: parts(S.fft(pair(x), 6, norm="ortho")),
            "Ea",
            lambda x: parts(S.fft(x, dim=0, n=3, norm="forward")),
        ),
        "fft.ifft": cases("aE", lambda x: parts(S.ifft(x)), "a8", lambda x: parts(S.ifft(pair(x), 6, norm="ortho"))),
        "fft.fft2": cases("aDE", lambda x: parts(S.fft2(x)), "aDE", lambda x: parts(S.fft2(x, (4, 9), norm="ortho"))),
        "fft.ifft2": cases("aD8", lambda x: parts(S.ifft2(pair(x)))),
        "fft.fftn": cases(
            "abE", lambda x: parts(S.fftn(x)), "abE", lambda x: parts(S.fftn(x, (3, 4), (0, -1), "ortho"))
        ),
        "fft.ifftn": cases("ab6", lambda x: parts(S.ifftn(pair(x), dim=(0, 2)))),
        "fft.rfft2": cases(
            "aDE", lambda x: parts(S.rfft2(x)), "aDE", lambda x: parts(S.rfft2(x, (4, 9), norm="ortho"))
        ),
        "fft.irfft2": cases("aD8", lambda x: S.irfft2(pair(x)), "aD8", lambda x: S.irfft2(pair(x), (4, 5))),
        "fft.rfftn": cases("abE", lambda x: parts(S.rfftn(x)), "abE", lambda x: parts(S.rfftn(x, (3, 4), (0, -1)))),
        "fft.irfftn": cases("ab8", lambda x: S.irfftn(pair(x)), "ab8", lambda x: S.irfftn(pair(x), (3, 5), (1, 2))),
        "fft.hfft": cases("a8", lambda x: S.hfft(pair(x)), "a8", lambda x: S.hfft(pair(x), 5, norm="ortho")),
        "fft.ihfft": cases("aE", lambda x: parts(S.ihfft(x)), "aE", lambda x: parts(S.ihfft(x, norm="ortho"))),
        "fft.fftshift": cases(
            "aE",
            S.fftshift,
            "aE",
            lambda x: S.ifftshift(x, 1),
            "a8",
            lambda x: parts(S.fftshift(pair(x))),
        ),
        "fft.fftfreq": cases("5", lambda x: x * S.fftfreq(5, 0.5), "4", lambda x: x * S.rfftfreq(6)),
        "stft": cases(
            "a#",
            lambda x: parts(torch.stft(x, 8, return_complex=True)),
            "a#",
            lambda x: parts(
                torch.stft(x, 8, 3, 6, torch.hann_window(6), center=False, normalized=True, return_complex=True)
            ),
            "# 8",
            lambda x, w: parts(torch.stft(x, 8, 4, window=w, onesided=False, return_complex=True)),
            "a#",
            lambda x: torch.stft(x, 8, window=torch.hamming_window(8), pad_mode="constant", return_complex=True).abs(),
        ),
        "istft": cases(
            "a#",
            lambda x: torch.istft(
                torch.stft(x, 8, 2, window=torch.hann_window(8), return_complex=True), 8, 2, window=torch.hann_window(8)
            ),
            "a#",
            lambda x: torch.istft(torch.stft(x, 8, 4, return_complex=True) * 2, 8, 4, length=30),
            "#",
            lambda x: torch.istft(
                torch.stft(x, 8, 2, window=torch.hann_window(8), normalized=True, return_complex=True),
                8,
                2,
                window=torch.hann_window(8),
                normalized=True,
            ),
        ),
        "windows": cases(
            "7",
            lambda x: [
                x * w(7)
                for w in (torch.hann_window, torch.hamming_window, torch.blackman_window, torch.bartlett_window)
            ],
            "7",
            lambda x: [x * torch.kaiser_window(7), x * torch.hann_window(7, periodic=False)],
        ),
        "signal.windows": cases(
            "7",
            lambda x: [x * torch.signal.windows.hann(7), x * torch.signal.windows.gaussian(7, std=1.5)],
        ),
        "spectral loss": cases(
            "a# a#",
            lambda x, y: (
                (torch.stft(x, 8, 2, return_complex=True).abs() - torch.stft(y, 8, 2, return_complex=True).abs())
                .abs()
                .mean()
            ),
        ),
    },
    "complex": {
        "complex": cases("ab ab", lambda x, y: parts(torch.complex(x, y))),
        "polar": cases("ab ab", lambda x, y: parts(torch.polar(x.abs() + 0.1, y))),
        "view_as_complex": cases("ab2", lambda x: parts(torch.view_as_complex(x.contiguous()) * 2)),
        "real, imag": cases("a8", lambda x: [pair(x).real, pair(x).imag, torch.real(pair(x)), torch.imag(pair(x))]),
        "abs": cases("a8", lambda x: [pair(x).abs(), torch.abs(pair(x)), abs(pair(x))]),
        "angle": cases("a8", lambda x: [pair(x).angle(), torch.angle(pair(x))]),
        "conj": cases("a8", lambda x: [parts(pair(x).conj().resolve_conj()), parts(torch.conj(pair(x)) * pair(x))]),
        "add, sub": cases(
            "a8 a8 a4",
            lambda x, y, z: [
                parts(pair(x) + pair(y)),
                parts(pair(x) - 2),
                parts(z - pair(x)),
                parts(-pair(x)),
                parts(1 + pair(x)),
            ],
        ),
        "mul": cases(
            "a8 a8 a4",
            lambda x, y, z: [
                parts(pair(x) * pair(y)),
                parts(z * pair(x)),
                parts(pair(x) * 2j),
                parts(torch.mul(pair(x), 0.5)),
                parts(1j * pair(x)),
            ],
        ),
        "div": cases(
            "a8 a8 a4",
            lambda x, y, z: [
                parts(pair(x) / (pair(y) + 4)),
                parts(z / (pair(x) + 4)),
                parts(pair(x) / 2),
                parts(1 / (pair(x) + 4)),
                parts((pair(x) + 4).reciprocal()),
            ],
        ),
        "pow": cases("a8", lambda x: [parts(pair(x) ** 2), parts(pair(x).square()), parts(pair(x).pow(3))]),
        "exp": cases("a8", lambda x: [parts(pair(x).exp()), parts(torch.exp(pair(x)))]),
        "log, sqrt": cases("a8", lambda x: [parts((pair(x) + 3).log()), parts((pair(x) + 3).sqrt())]),
        "tanh": cases("a8", lambda x: parts(pair(x).tanh())),
        "sum, mean": cases(
            "a8", lambda x: [parts(pair(x).sum()), parts(pair(x).mean(0)), parts(torch.sum(pair(x), 1, keepdim=True))]
        ),
        "matmul": cases(
            "a8 48",
            lambda x, y: parts(pair(x) @ pair(y)),
            "a8 4b",
            lambda x, y: parts(torch.matmul(pair(x), torch.complex(y, y))),
            "ab8 a42",
            lambda x, y: parts(torch.bmm(pair(x), pair(y))),
        ),
        "einsum": cases(
            "ab8 b88",
            lambda x, y: parts(torch.einsum("bix,iox->box", pair(x), pair(y))),
            "a8 8",
            lambda x, y: parts(torch.einsum("ax,x->a", pair(x), pair(y))),
        ),
        "reshape": cases(
            "ab8",
            lambda x: [
                parts(pair(x).reshape(-1, 2)),
                parts(pair(x).permute(2, 0, 1)),
                parts(pair(x).transpose(0, 1)),
                parts(pair(x).flatten()),
                parts(pair(x).unsqueeze(0).squeeze(0)),
                parts(pair(x).flip(0)),
                parts(pair(x).expand(2, *pair(x).shape)),
                parts(pair(x).view(-1)),
                parts(pair(x).roll(1, 0)),
            ],
        ),
        "cat, stack": cases(
            "a8 a8", lambda x, y: [parts(torch.cat([pair(x), pair(y)], 1)), parts(torch.stack([pair(x), pair(y)]))]
        ),
        "indexing": cases(
            "a8",
            lambda x: [
                parts(pair(x)[:, 1:]),
                parts(pair(x)[..., :2]),
                parts(pair(x)[0]),
                *map(parts, pair(x).chunk(2, -1)),
            ],
        ),
        "zeros and a slice written": cases(
            "a8",
            lambda x: parts(_written(pair(x))),
        ),
        "where": cases("a8 a8", lambda x, y: parts(torch.where(y[:, :4] > 0, pair(x), pair(y)))),
        "pad": cases("a8", lambda x: parts(F.pad(pair(x), (1, 2)))),
        "is_complex": cases("a8", lambda x: x * (2.0 if pair(x).is_complex() and torch.is_complex(pair(x)) else 1.0)),
        "to": cases(
            "a8",
            lambda x: parts(torch.complex(x, x * 0)),
            "a4",
            lambda x: parts(x.to(torch.cfloat if x.dtype == torch.float32 else torch.cdouble) * 2j),
        ),
        "FNO": cases(
            "ab8 bb62",
            lambda x, w: S.irfft(
                torch.einsum("bix,iox->box", S.rfft(x)[:, :, :3], torch.view_as_complex(w.contiguous())[:, :, :3]), n=8
            ),
        ),
        "sgn": cases("a8", lambda x: parts(torch.sgn(pair(x)))),
        "norm": cases("a8", lambda x: torch.linalg.vector_norm(pair(x))),
        "mse of pairs": cases("a8 a8", lambda x, y: (pair(x) - pair(y)).abs().pow(2).mean()),
    },
    "linear algebra": {
        "trace": cases("cd", torch.trace, "cc", lambda x: x.trace()),
        "diag": cases("c", torch.diag, "c", lambda x: x.diag(2), "cd", torch.diag, "DE", lambda x: torch.diag(x, -1)),
        "diag_embed": cases(
            "abc", torch.diag_embed, "abc", lambda x: torch.diag_embed(x, 1, 0, 2), "ab", lambda x: x.diag_embed(-2)
        ),
        "diagflat": cases("ab", torch.diagflat, "b", lambda x: torch.diagflat(x, 1)),
        "diagonal": cases("abc", lambda x: torch.diagonal(x, 1, -1, 0), "ab", lambda x: L.diagonal(x)),
        "cross": cases(
            "a3 a3",
            lambda x, y: torch.cross(x, y, dim=1),
            "3b 3b",
            lambda x, y: L.cross(x, y, dim=0),
            "1a3 ba3",
            L.cross,
        ),
        "block_diag": cases("ab cd e", torch.block_diag),
        "addr": cases("ab a b", torch.addr, "ab a b", lambda x, u, v: torch.addr(x, u, v, beta=0.5, alpha=2)),
        "addbmm": cases("ad bac bcd", lambda x, y, z: torch.addbmm(x, y, z, beta=0.5, alpha=2)),
        "addmv": cases("a ab b", torch.addmv),
        "bilinear": cases("ab ac dbc d", F.bilinear, "eab eac dbc", F.bilinear),
        "kron": cases("ab cd", lambda x, y: torch.kron(x.contiguous(), y.contiguous()), "a cd", torch.kron),
        "outer": cases("a b", torch.outer, "a b", torch.ger),
        "inner": cases("ab cb", torch.inner, "b b", torch.inner),
        "vdot": cases("b b", torch.vdot),
        "tensordot": cases("abc bcd", torch.tensordot, "abc dab", lambda x, y: torch.tensordot(x, y, ([0, 1], [1, 2]))),
        "chain_matmul": cases("ab bc cd", lambda *x: torch.chain_matmul(*x), "ab bc cd", lambda *x: L.multi_dot(x)),
        "einsum": cases(
            "abc acd", lambda x, y: torch.einsum("abc,acd->abd", x, y), "aab", lambda x: torch.einsum("aab->ab", x)
        ),
        "baddbmm": cases("abd abc acd", torch.baddbmm),
        "tril_indices": cases(
            "BE",
            lambda x: x[tuple(torch.tril_indices(*x.shape, -1))],
            "BE",
            lambda x: x[tuple(torch.triu_indices(*x.shape))],
        ),
        "matrix_power": cases(
            "acc",
            lambda x: torch.matrix_power(x, 3),
            "cc",
            lambda x: x.matrix_power(0),
            "cc",
            lambda x: L.matrix_power(regular(x), -2),
        ),
        "vander": cases("ab", lambda x: L.vander(x, N=4)),
        "vector_norm": cases(
            "ab",
            lambda x: L.vector_norm(x),
            "ab",
            lambda x: L.vector_norm(x, 3, 1),
            "ab",
            lambda x: L.vector_norm(x, -float("inf"), 0),
            "ab",
            lambda x: L.vector_norm(x, 0),
            "ab",
            lambda x: L.vector_norm(x, 0.5, -1, keepdim=True),
            "ab",
            lambda x: x.norm(3),
        ),
        "matrix_norm": cases(
            "abc",
            L.matrix_norm,
            "abc",
            lambda x: L.matrix_norm(x, 1),
            "abc",
            lambda x: L.matrix_norm(x, float("inf")),
            "abc",
            lambda x: L.norm(x, "fro", dim=(-2, -1)),
            "bc",
            lambda x: x.norm(),
        ),
        "matrix_norm by singular values": cases(
            "45",
            lambda x: L.matrix_norm(x, "nuc"),
            "45",
            lambda x: L.matrix_norm(x, 2),
            "45",
            lambda x: torch.norm(x, "nuc"),
        ),
        "inv": cases(
            "aDD",
            lambda x: L.inv(regular(x)),
            "dd",
            lambda x: torch.inverse(regular(x)),
            "11",
            lambda x: regular(x).inverse(),
        ),
        "solve": cases(
            "aDD aDb",
            lambda x, y: L.solve(regular(x), y),
            "DD D",
            lambda x, y: L.solve(regular(x), y),
            "aDD bD",
            lambda x, y: L.solve(regular(x), y[0].expand(x.shape[0], -1)),
            "DD bD",
            lambda x, y: L.solve(regular(x), y, left=False),
        ),
        "solve_triangular": cases("aDD aDb", lambda x, y: L.solve_triangular(regular(x), y, upper=True)),
        "triangular_solve": cases("DD Db", lambda x, y: torch.triangular_solve(y, regular(x))[0]),
        "cholesky": cases(
            "aDD",
            lambda x: L.cholesky(definite(x)),
            "dd",
            lambda x: torch.cholesky(definite(x), upper=True),
            "dd",
            lambda x: L.cholesky(definite(x), upper=True),
        ),
        "cholesky_solve": cases(
            "DD Db",
            lambda x, y: torch.cholesky_solve(y, L.cholesky(definite(x))),
            "DD",
            lambda x: torch.cholesky_inverse(L.cholesky(definite(x))),
        ),
        "qr": cases(
            "aDd",
            lambda x: L.qr(x),
            "DD",
            lambda x: torch.linalg.qr(regular(x)),
            "Dd",
            lambda x: torch.qr(x),
            "Dd",
            lambda x: L.qr(x.detach(), mode="r")[1],
        ),
        "qr of wide matrices": cases("dD", lambda x: L.qr(x[:, :4])[0] if x.shape[0] > 4 else L.qr(x)[1]),
        "det": cases("aDD", lambda x: L.det(regular(x)), "dd", torch.det, "cc", lambda x: x.det()),
        "slogdet": cases("aDD", lambda x: L.slogdet(regular(x))[1], "DD", lambda x: torch.slogdet(-regular(x))),
        "logdet": cases("aDD", lambda x: torch.logdet(regular(x)), "DD", lambda x: definite(x).logdet()),
        "pinv": cases(
            "aDd",
            lambda x: L.pinv(x),
            "dD",
            lambda x: torch.pinverse(x),
            "cc",
            lambda x: L.pinv(definite(x), hermitian=True),
        ),
        "lstsq": cases("Dd Db", lambda x, y: L.lstsq(x, y).solution, "aDd aDb", lambda x, y: L.lstsq(x, y)[0]),
        "lu": cases(
            "DD",
            lambda x: L.lu(regular(x)),
            "aDD",
            lambda x: L.lu(x)[2],
            "DD",
            lambda x: L.lu_factor(x)[0],
            "DD Db",
            lambda x, y: L.lu_solve(*L.lu_factor(x), y),
        ),
        "matrix_exp": cases(
            "aDD", torch.matrix_exp, "dd", lambda x: L.matrix_exp(x * 3), "dd", lambda x: x.matrix_exp()
        ),
        "eigh": cases(
            "DD",
            lambda x: L.eigh(definite(x))[0],
            "aDD",
            lambda x: L.eigvalsh(definite(x)),
            "DD",
            lambda x: L.eigh(definite(x))[1].abs(),
            "DD",
            lambda x: torch.linalg.eigh(x + x.t())[0],
        ),
        "svd": cases(
            "Dd",
            lambda x: L.svd(x, full_matrices=False)[1],
            "aDE",
            lambda x: L.svdvals(x),
            "Dd",
            lambda x: [y.abs() for y in torch.svd(x)],
            "dD",
            lambda x: L.svd(x, full_matrices=False)[1],
        ),
        "matrix_rank": cases("Dd", lambda x: x * L.matrix_rank(x)),
        "cond": cases("DD", lambda x: L.cond(regular(x)), "DD", lambda x: L.cond(regular(x).detach(), 1)),
        "tensorinv": cases("6", lambda x: L.tensorsolve(torch.eye(6).view(2, 3, 6) * 2, x.view(2, 3))),
        "householder_product": cases("Dd d", lambda x, t: L.householder_product(x, t)),
        "cov": cases("BD", torch.cov, "BD", torch.corrcoef),
        "trapezoid": cases("aE", torch.trapezoid, "aE", torch.cumulative_trapezoid),
        "orthogonal": cases("DD", lambda x: torch.matrix_exp(x.triu(1) - x.triu(1).t())),
        "multivariate normal": cases(
            "DD aD",
            lambda x, y: torch.distributions.MultivariateNormal(
                torch.zeros(x.shape[0]), definite(x), validate_args=False
            ).log_prob(y),
        ),
    },
    "sampling": {
        f"grid_sample {mode} {padding}": cases(
            "abDE ac32",
            grid(mode=mode, padding_mode=padding, align_corners=False),
            "abde ac32",
            grid(mode=mode, padding_mode=padding, align_corners=True),
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
    }
    | {
        "grid_sample 3-D": cases(
            "abDEB a2343",
            grid(align_corners=False),
            "abDEB a2343",
            grid(mode="nearest", align_corners=True),
            "abDEB a2343",
            grid(padding_mode="border", align_corners=False),
            "abDEB a2343",
            grid(padding_mode="reflection", align_corners=True),
        ),
        "affine_grid": cases(
            "a23",
            lambda t: F.affine_grid(t, (t.shape[0], 1, 4, 5), align_corners=False),
            "a23",
            lambda t: F.affine_grid(t, (t.shape[0], 1, 4, 1), align_corners=True),
            "a34",
            lambda t: F.affine_grid(t, (t.shape[0], 1, 2, 4, 5), align_corners=False),
        ),
        "spatial transformer": cases(
            "abDE a23",
            lambda x, t: F.grid_sample(x, F.affine_grid(t, x.shape, align_corners=False), align_corners=False),
        ),
    },
    "indexing": {
        "masked_scatter": cases(
            "aE aE #",
            lambda x, m, s: x.masked_scatter(m > 0, s.reshape(-1)),
            "aE E #",
            lambda x, m, s: torch.masked_scatter(x, m > 0, s),
        ),
        "masked_fill": cases("aE E", lambda x, m: x.masked_fill(m > 0, 2.0)),
        "index_copy": cases("aEb acb", lambda x, y: x.index_copy(1, distinct(y[0]), y)),
        "index_fill": cases(
            "aE c",
            lambda x, i: x.index_fill(1, indices(i, x.shape[1]), 2.0),
            "aE c",
            lambda x, i: x.index_fill(-1, indices(i, x.shape[1]), x.sum()),
        ),
        "index_add": cases("aE ac c", lambda x, y, i: x.index_add(1, indices(i, x.shape[1]), y, alpha=2)),
        "index_put": cases(
            "aE c", lambda x, i: x.index_put((torch.zeros(i.shape).long(), indices(i, x.shape[1])), i, accumulate=True)
        ),
        "take": cases(
            "aE bc",
            lambda x, i: torch.take(x, indices(i, x.numel())),
            "aE c",
            lambda x, i: x.take(indices(i, x.numel()) - x.numel()),
        ),
        "put": cases(
            "aE 3",
            lambda x, s: x.put(torch.tensor([3, 0, 4]), s),
            "aE 3",
            lambda x, s: torch.put(x, torch.tensor([3, 3, 4]), s, accumulate=True),
        ),
        "take_along_dim": cases(
            "aE aB",
            lambda x, i: torch.take_along_dim(x, indices(i, x.shape[1]), 1),
            "aE bc",
            lambda x, i: x.contiguous().take_along_dim(indices(i, x.numel()).contiguous()),
            "aE 1B",
            lambda x, i: torch.take_along_dim(x, indices(i, x.shape[1]), -1),
        ),
        "rot90": cases(
            "aEb", torch.rot90, "aEb", lambda x: x.rot90(2, (1, 2)), "aEb", lambda x: torch.rot90(x, -1, (0, 2))
        ),
        "flip": cases("aEb", lambda x: x.flip(0, -1), "aE", torch.fliplr, "aE", torch.flipud),
        "roll": cases("aEb", lambda x: x.roll((1, -2), (0, 1)), "aE", lambda x: x.roll(3)),
        "diagonal_scatter": cases("BD c", lambda x, y: x.diagonal_scatter(y.sum().expand(min(x.shape)))),
        "select_scatter": cases("aEb ab", lambda x, y: x.select_scatter(y, 1, -2)),
        "slice_scatter": cases(
            "a6b a3b", lambda x, y: x.slice_scatter(y, 1, 0, 6, 2), "a6b a2b", lambda x, y: x.slice_scatter(y, 1, -2)
        ),
        "fill_diagonal_": cases(
            "BD",
            lambda x: (x * 1).fill_diagonal_(3.0) * x,
            "EB",
            lambda x: (x * 1).fill_diagonal_(3.0, wrap=True),
            "ccc",
            lambda x: (x * 1).fill_diagonal_(3.0),
        ),
        "scatter": cases("aE a2", lambda x, y: x.scatter(1, torch.tensor([[3, 1]]).expand(y.shape), y)),
        "scatter_add": cases("aE aB", lambda x, y: x.scatter_add(1, indices(y, x.shape[1]), y)),
        "scatter_reduce prod": cases(
            "aE aB",
            lambda x, y: x.scatter_reduce(1, indices(y, x.shape[1]), y, "prod"),
            "aE aB",
            lambda x, y: x.scatter_reduce(1, indices(y, x.shape[1]), y, "prod", include_self=False),
        ),
        "scatter_reduce amax": cases("aE aB", lambda x, y: x.scatter_reduce(1, indices(y, x.shape[1]), y, "amax")),
        "scatter_reduce mean": cases("aE aB", lambda x, y: x.scatter_reduce(1, indices(y, x.shape[1]), y, "mean")),
        "index_reduce": cases(
            *[
                v
                for how in ("prod", "amax", "amin", "mean")
                for v in ("aE aB B", lambda x, y, i, how=how: x.index_reduce(1, indices(i, x.shape[1]), y, how))
            ],
            "aE aB B",
            lambda x, y, i: x.index_reduce(1, indices(i, x.shape[1]), y, "amax", include_self=False),
        ),
        "repeat_interleave": cases(
            "aE",
            lambda x: x.repeat_interleave(3, 1),
            "aE",
            lambda x: torch.repeat_interleave(x, 2),
            "4E",
            lambda x: x.repeat_interleave(torch.tensor([2, 0, 1, 3]), 0),
            "4E 4",
            lambda x, n: x.repeat_interleave((indices(n, 1) + 2), 0, output_size=8),
        ),
        "as_strided": cases(
            "BE",
            lambda x: x.contiguous().as_strided((3, 2, 2), (1, 4, 2), 1),
            "BE",
            lambda x: torch.as_strided(x.contiguous(), (5,), (1,)),
        ),
        "unfold of a dimension": cases("Ea", lambda x: x.unfold(0, 3, 2)),
        "combinations": cases(
            "B",
            torch.combinations,
            "B",
            lambda x: torch.combinations(x, 3),
            "B",
            lambda x: torch.combinations(x, 2, True),
        ),
        "cartesian_prod": cases("B c", torch.cartesian_prod, "B", torch.cartesian_prod),
        "tensor_split": cases(
            "Ea",
            lambda x: x.tensor_split(3),
            "aE",
            lambda x: x.tensor_split((1, 3), -1),
            "aE",
            lambda x: x.tensor_split(torch.tensor([1, 3]), 1),
        ),
        "hsplit": cases(
            "2E",
            lambda x: torch.hsplit(x, (1, 3)),
            "4E",
            lambda x: torch.vsplit(x, 2),
            "ab4",
            lambda x: torch.dsplit(x, 2),
        ),
        "hstack": cases(
            "aE aB",
            lambda *x: torch.hstack(x),
            "aE bE",
            lambda *x: torch.vstack(x),
            "aE aE",
            lambda *x: torch.dstack(x),
            "a a",
            lambda *x: torch.column_stack(x),
        ),
        "meshgrid": cases(
            "a b",
            lambda x, y: torch.meshgrid(x, y, indexing="ij"),
            "a b",
            lambda x, y: torch.meshgrid(x, y, indexing="xy"),
        ),
        "tile": cases("aE", lambda x: x.tile(2, 3)),
        "movedim": cases(
            "abE", lambda x: x.movedim((0, 1), (-1, 0)), "abE", lambda x: x.swapaxes(0, 2), "ab", lambda x: x.adjoint()
        ),
        "unflatten": cases("a6", lambda x: x.unflatten(1, (2, 3)).flatten(0, 1)),
        "narrow": cases("aE", lambda x: x.narrow(1, 1, 3), "aE", lambda x: torch.narrow_copy(x, 1, 2, 2)),
        "index_select": cases("aE c", lambda x, i: x.index_select(1, indices(i, x.shape[1]))),
        "gather": cases("aE aB", lambda x, i: x.gather(1, indices(i, x.shape[1]))),
        "unbind": cases("ab", torch.unbind),
        "broadcast_to": cases(
            "a1b", lambda x: x.broadcast_to(2, x.shape[0], 4, x.shape[2]), "ab b", torch.broadcast_tensors
        ),
        "mask of constants": cases("BB", lambda x: x[~torch.eye(x.shape[0], dtype=torch.bool)]),
        "argwhere of constants": cases("BB", lambda x: x[tuple(torch.argwhere(torch.ones(4, 4).tril() > 0).t())]),
        "channel_shuffle": cases("a4de", lambda x: F.channel_shuffle(x, 2)),
        "atleast": cases("a", torch.atleast_2d, "a", torch.atleast_3d),
        "tril": cases("aDE", lambda x: x.tril(-1), "aDE", lambda x: x.triu(1)),
        "one_hot": cases("aE", lambda x: x.sum() * F.one_hot(indices(x, 4), 4)),
    },
}


def _written(z: torch.Tensor) -> torch.Tensor:
    """As FNO's spectral layers have it."""
    out = torch.zeros(z.shape[0], 6, dtype=z.dtype)
    out[:, 1:5] = z
    return out
