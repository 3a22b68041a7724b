"""Complex numbers as pairs of real tensors.

    z = torch.view_as_complex(x.view(..., -1, 2)) * torch.polar(ones, angles)
    y = torch.view_as_real(z)

Pairs come from `complex`, `polar`, `view_as_complex`, a Fourier transform, a factory with a complex dtype, and any
operation between a complex number and a real traced tensor. Linear functions apply to both parts; `OPERATIONS` lists
the others. A complex constant becomes a pair when it meets one. Any other function of a pair is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from lockstep.protocol.errors import LoweringError
from lockstep.tracing.known import KnownValues

_HINT = (
    "of complex numbers, arithmetic, products of matrices, exp, log, abs, angle, conj, sums, views, indexing and "
    "Fourier transforms are known; or use two real tensors: view_as_real(z)"
)
_DTYPES = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_LINEAR = frozenset(
    [
        "__getitem__",
        "as_strided",
        "broadcast_to",
        "cat",
        "chunk",
        "clone",
        "concat",
        "concatenate",
        "contiguous",
        "cumsum",
        "detach",
        "diag",
        "diag_embed",
        "diagonal",
        "dsplit",
        "dstack",
        "expand",
        "expand_as",
        "fft_fftshift",
        "fft_ifftshift",
        "flatten",
        "flip",
        "fliplr",
        "flipud",
        "gather",
        "hsplit",
        "hstack",
        "index_add",
        "index_select",
        "masked_fill",
        "masked_select",
        "mean",
        "moveaxis",
        "movedim",
        "narrow",
        "neg",
        "negative",
        "pad",
        "permute",
        "ravel",
        "repeat",
        "repeat_interleave",
        "requires_grad_",
        "reshape",
        "roll",
        "rot90",
        "select",
        "split",
        "split_with_sizes",
        "squeeze",
        "stack",
        "sum",
        "swapaxes",
        "swapdims",
        "t",
        "take_along_dim",
        "tensor_split",
        "tile",
        "trace",
        "transpose",
        "tril",
        "triu",
        "unbind",
        "unflatten",
        "unfold",
        "unsqueeze",
        "view",
        "view_as",
        "vsplit",
        "vstack",
        "where",
    ]
)
"""Names of functions that apply to the real and the imaginary part alike: sums and rearrangements of elements."""
_PRODUCTS = frozenset(["bmm", "dot", "einsum", "inner", "kron", "linear", "matmul", "mm", "mv", "outer", "tensordot"])
"""Names of functions that are linear in each tensor argument."""


class ComplexPair:
    """A complex tensor re + i im; both parts are f32 of one shape."""

    def __init__(self, re: Tensor, im: Tensor, known: KnownValues) -> None:
        self.re, self.im, self.known = re, im, known

    @property
    def real(self) -> Tensor:
        """The real part."""
        return self.re

    @property
    def imag(self) -> Tensor:
        """The imaginary part."""
        return self.im

    @property
    def dtype(self) -> torch.dtype:
        """Complex64, whose parts are float32."""
        return torch.complex64 if self.re.dtype == torch.float32 else torch.complex128

    @property
    def T(self) -> Any:
        """The transpose of a matrix, as in `torch.Tensor.T`."""
        return self.transpose(0, 1)

    @property
    def mT(self) -> Any:
        """Transposes of a batch of matrices."""
        return self.transpose(-2, -1)

    @property
    def mH(self) -> Any:
        """Conjugate transposes of a batch of matrices."""
        return self.mT.conj()

    H = mH

    @classmethod
    def __torch_function__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        pair = next(x for x in tree_leaves((args, kwargs)) if isinstance(x, ComplexPair))
        return operate(pair.known, func, getattr(func, "__name__", str(func)), args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "device", "ndim", "requires_grad", "is_cuda", "layout"):
            return getattr(self.re, name)
        if name in ("size", "dim", "numel", "is_contiguous", "stride", "nelement", "ndimension"):
            return getattr(self.re, name)
        if name.startswith("__") or not (name in _LINEAR or name in _PRODUCTS or name in OPERATIONS):
            raise LoweringError(f"{name} of complex numbers", hint=_HINT)
        return lambda *args, **kwargs: operate(self.known, getattr(Tensor, name, None), name, (self, *args), kwargs)

    def __len__(self) -> int:
        return len(self.re)

    def __iter__(self) -> Any:
        return iter(self.unbind(0))

    def __setitem__(self, index: Any, value: Any) -> None:
        other = pair_of(value, self.known)
        self.re[index], self.im[index] = other.re, other.im


def _operator(name: str, *, swapped: bool = False) -> Callable[..., Any]:
    def method(self: ComplexPair, *others: Any) -> Any:
        args = (*others, self) if swapped else (self, *others)
        return operate(self.known, getattr(Tensor, name, None), name, args, {})

    return method


for _name in ("add", "sub", "mul", "truediv", "matmul", "pow"):
    _called = {"truediv": "div"}.get(_name, _name)
    setattr(ComplexPair, f"__{_name}__", _operator(_called))
    setattr(ComplexPair, f"__r{_name}__", _operator(_called, swapped=True))
for _name in ("neg", "abs", "getitem"):
    setattr(ComplexPair, f"__{_name}__", _operator("__getitem__" if _name == "getitem" else _name))


def pair_of(x: Any, known: KnownValues) -> ComplexPair:
    """Converts a complex constant or a real tensor to a pair; returns a pair as it is."""
    if isinstance(x, ComplexPair):
        return x
    if isinstance(x, (bool, int, float, complex)):
        x = complex(x)
        return ComplexPair(torch.tensor(x.real), torch.tensor(x.imag), known)
    if not x.is_complex():
        return ComplexPair(x, torch.zeros_like(x), known)
    value = known.real(x)
    # INVARIANT: complex numbers that depend on data are pairs.
    if value is None:
        raise LoweringError("complex numbers that depend on data and are no pair", hint=_HINT)
    with _disable_current_modes(), torch.no_grad():
        re, im = (part.to(torch.get_default_dtype()).contiguous() for part in (value.real, value.imag))
    return ComplexPair(re, im, known)


def is_complex(x: Any) -> bool:
    """True for a pair, or for a complex number or tensor: the result of an operation on it is complex."""
    return isinstance(x, (ComplexPair, complex)) or (isinstance(x, Tensor) and x.is_complex())


def operate(known: KnownValues, func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Calls the torch function `name` on arguments of which at least one is a pair."""
    name = {"__radd__": "add", "__rmul__": "mul", "__rsub__": "rsub", "__rtruediv__": "rdiv", "__rdiv__": "rdiv",
            "__rpow__": "rpow", "__rmatmul__": "rmatmul", "__rmatmul": "rmatmul"}.get(name, name)  # fmt: skip
    if name in ("rsub", "rdiv", "rpow", "rmatmul"):
        name, args = name[1:], (args[1], args[0], *args[2:])
    if name in OPERATIONS:
        return OPERATIONS[name](*args, **kwargs)
    if name in _LINEAR:
        return _both(known, func or getattr(torch, name), args, kwargs)
    if name == "linear":
        return _linear(known, *args, **kwargs)
    if name in _PRODUCTS:
        return _multilinear(known, getattr(torch, name), args, kwargs)
    raise LoweringError(f"{name} of complex numbers", hint=_HINT)


def _both(known: KnownValues, func: Any, args: Any, kwargs: Any) -> Any:
    """Applies a linear function to the real and to the imaginary parts."""
    leaves, spec = tree_flatten((args, kwargs), is_leaf=lambda x: isinstance(x, ComplexPair))
    # Among real tensors, floats are values; integers and booleans are indices or masks.
    pairs = [
        pair_of(x, known) if is_complex(x) or (isinstance(x, Tensor) and x.is_floating_point()) else None
        for x in leaves
    ]
    parts = []
    for side in ("re", "im"):
        given, named = tree_unflatten(
            [x if p is None else getattr(p, side) for x, p in zip(leaves, pairs, strict=True)], spec
        )
        parts.append(func(*given, **named))
    if isinstance(parts[0], Tensor):
        return ComplexPair(parts[0], parts[1], known)
    return tuple(ComplexPair(re, im, known) for re, im in zip(*parts, strict=True))


def _multilinear(known: KnownValues, func: Any, args: Any, kwargs: Any) -> ComplexPair:
    """Expands a product of pairs: sums over every choice of real or imaginary parts, times i^(number of imaginary
    ones).
    """
    leaves, spec = tree_flatten((args, kwargs), is_leaf=lambda x: isinstance(x, ComplexPair))
    at = [k for k, x in enumerate(leaves) if is_complex(x)]
    pairs = [pair_of(leaves[k], known) for k in at]
    sums: list[Any] = [None, None]
    for choice in itertools.product((0, 1), repeat=len(at)):
        given = list(leaves)
        for k, pair, side in zip(at, pairs, choice, strict=True):
            given[k] = pair.im if side else pair.re
        inner, named = tree_unflatten(given, spec)
        term, turns = func(*inner, **named), sum(choice) % 4
        part = turns % 2
        if sums[part] is None:
            sums[part] = -term if turns >= 2 else term
        else:
            sums[part] = sums[part] - term if turns >= 2 else sums[part] + term
    return ComplexPair(sums[0], sums[1], known)


def _linear(known: KnownValues, x: Any, weight: Any, bias: Any = None) -> ComplexPair:
    """x W^T + b for pairs; the bias is added once, not multiplied."""
    product = _multilinear(known, F.linear, (x, weight), {})
    return product if bias is None else add(product, bias)


# --- arithmetic --------------------------------------------------------------------------------------------


def _made(x: ComplexPair, re: Tensor, im: Tensor) -> ComplexPair:
    re, im = torch.broadcast_tensors(re, im) if re.shape != im.shape else (re, im)
    return ComplexPair(re, im, x.known)


def _real_factor(x: Any) -> bool:
    """True if x is real, so that it multiplies both parts."""
    return isinstance(x, (bool, int, float)) or (isinstance(x, Tensor) and not x.is_complex())


def add(x: Any, y: Any, alpha: Any = 1) -> ComplexPair:
    """x + alpha y."""
    x, y = (z if isinstance(z, ComplexPair) or _real_factor(z) else _complex(z, x, y) for z in (x, y))
    y = y if alpha == 1 else multiply(y, alpha) if isinstance(y, ComplexPair) else y * alpha
    if not isinstance(x, ComplexPair):
        x, y = y, x
    if not isinstance(y, ComplexPair):
        return _made(x, x.re + y, x.im)
    return _made(x, x.re + y.re, x.im + y.im)


def subtract(x: Any, y: Any, alpha: Any = 1) -> ComplexPair:
    """x - alpha y."""
    return add(x, y, alpha=-alpha) if not isinstance(y, ComplexPair) or alpha != 1 else add(x, _negative(y))


def _negative(x: ComplexPair) -> ComplexPair:
    return ComplexPair(-x.re, -x.im, x.known)


def _complex(x: Any, *others: Any) -> ComplexPair:
    return pair_of(x, next(y.known for y in others if isinstance(y, ComplexPair)))


def multiply(x: Any, y: Any) -> ComplexPair:
    """(a + ib)(c + id) = ac - bd + i(ad + bc); or the product with a real number or tensor."""
    if not isinstance(x, ComplexPair):
        x, y = y, x
    if not isinstance(y, ComplexPair) and not _real_factor(y):
        if isinstance(y, complex):
            re = -(x.im * y.imag) if y.real == 0 else x.re * y.real - x.im * y.imag
            return _made(x, re, x.re * y.imag if y.real == 0 else x.re * y.imag + x.im * y.real)
        y = pair_of(y, x.known)
    if not isinstance(y, ComplexPair):
        return ComplexPair(x.re * y, x.im * y, x.known)
    re = x.re * y.re - x.im * y.im
    return ComplexPair(re, x.re * y.im + x.im * y.re, x.known)


def divide(x: Any, y: Any) -> ComplexPair:
    """x / y = x y* / |y|^2."""
    if _real_factor(y):
        return ComplexPair(x.re / y, x.im / y, x.known)
    y = y if isinstance(y, ComplexPair) else _complex(y, x)
    return multiply(x, reciprocal(y))


def reciprocal(x: ComplexPair) -> ComplexPair:
    """1 / x = x* / |x|^2."""
    size = x.re * x.re + x.im * x.im
    return ComplexPair(x.re / size, -x.im / size, x.known)


def power(x: Any, exponent: Any) -> ComplexPair:
    """x ** exponent: by multiplications for integers up to 16, else exp(e log x)."""
    if isinstance(exponent, int) and 0 < abs(exponent) <= 16:
        result = x
        for _ in range(abs(exponent) - 1):
            result = multiply(result, x)
        return result if exponent > 0 else reciprocal(result)
    if not isinstance(x, ComplexPair):
        x = _complex(x, exponent)
    return exponential(multiply(logarithm(x), exponent))


def absolute(x: ComplexPair) -> Tensor:
    """|x|; its gradient at zero is zero, as in torch."""
    squares = x.re * x.re + x.im * x.im
    zero = squares == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, squares).sqrt())


def conjugate(x: ComplexPair) -> ComplexPair:
    """The conjugate a - ib of a + ib."""
    return ComplexPair(x.re, -x.im, x.known)


def exponential(x: ComplexPair) -> ComplexPair:
    """exp(a + ib) = e^a (cos b + i sin b)."""
    size = x.re.exp()
    return ComplexPair(size * x.im.cos(), size * x.im.sin(), x.known)


def logarithm(x: ComplexPair) -> ComplexPair:
    """log |x| + i arg x."""
    return ComplexPair((x.re * x.re + x.im * x.im).log() * 0.5, torch.atan2(x.im, x.re), x.known)


def _sign(x: ComplexPair) -> ComplexPair:
    size = absolute(x)
    none = size == 0
    return ComplexPair(
        torch.where(none, 0.0, x.re / torch.where(none, 1.0, size)),
        torch.where(none, 0.0, x.im / torch.where(none, 1.0, size)),
        x.known,
    )


def _tanh(x: ComplexPair) -> ComplexPair:
    below = (2 * x.re).cosh() + (2 * x.im).cos()
    return ComplexPair((2 * x.re).sinh() / below, (2 * x.im).sin() / below, x.known)


def _sine(x: ComplexPair) -> ComplexPair:
    return ComplexPair(x.re.sin() * x.im.cosh(), x.re.cos() * x.im.sinh(), x.known)


def _cosine(x: ComplexPair) -> ComplexPair:
    return ComplexPair(x.re.cos() * x.im.cosh(), -(x.re.sin() * x.im.sinh()), x.known)


def _to(x: ComplexPair, *args: Any, **kwargs: Any) -> ComplexPair:
    """`Tensor.to` for a device or complex64. Raises LoweringError for another dtype."""
    for dtype in (v for v in (*args, *kwargs.values()) if isinstance(v, torch.dtype)):
        if dtype not in (torch.complex64, x.dtype):
            raise LoweringError(f"complex numbers as {dtype}", hint=_HINT)
    return x


def _norm(x: ComplexPair, *args: Any, **kwargs: Any) -> Tensor:
    return torch.linalg.vector_norm(absolute(x), *args, **kwargs)


def _like(value: float) -> Callable[..., Any]:
    def made(x: ComplexPair, **kwargs: Any) -> Any:
        re = torch.full_like(x.re, value)
        complexly = kwargs.get("dtype") is None or kwargs["dtype"].is_complex
        return ComplexPair(re, torch.zeros_like(x.re), x.known) if complexly else re

    return made


def _view(x: ComplexPair, *shape: Any) -> Any:
    if isinstance(shape[0], torch.dtype):
        if shape[0].is_complex:
            return x
        return torch.stack([x.re, x.im], -1).flatten(-2)
    return ComplexPair(x.re.reshape(*shape), x.im.reshape(*shape), x.known)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": add, "sub": subtract, "subtract": subtract, "mul": multiply, "multiply": multiply, "div": divide,
    "divide": divide, "true_divide": divide, "reciprocal": reciprocal, "pow": power, "square": lambda x: multiply(x, x),
    "abs": absolute, "absolute": absolute, "angle": lambda x: torch.atan2(x.im, x.re), "conj": conjugate,
    "conj_physical": conjugate, "resolve_conj": lambda x: x, "resolve_neg": lambda x: x, "exp": exponential,
    "log": logarithm, "sqrt": lambda x: exponential(multiply(logarithm(x), 0.5)), "sgn": _sign, "tanh": _tanh,
    "sin": _sine, "cos": _cosine, "sinh": lambda x: multiply(_sine(multiply(x, 1j)), -1j),
    "cosh": lambda x: _cosine(multiply(x, 1j)), "real": lambda x: x.re, "imag": lambda x: x.im, "to": _to,
    "is_complex": lambda x: True, "is_floating_point": lambda x: False, "linalg_vector_norm": _norm,
    "norm": lambda x, p=2, *args, **kwargs: _norm(x, 2 if p in (None, "fro") else p, *args, **kwargs),
    "linalg_norm": _norm, "linalg_matrix_norm":
        lambda x, *args, **kwargs: torch.linalg.matrix_norm(absolute(x), *args, **kwargs),
    "view_as_real": lambda x: torch.stack([x.re, x.im], -1), "adjoint": lambda x: x.mT.conj(), "view": _view,
    "zeros_like": _like(0.0), "ones_like": _like(1.0), "empty_like": _like(0.0), "type": _to,
    "cfloat": lambda x: x, "isnan": lambda x: x.re.isnan() | x.im.isnan(),
}  # fmt: skip
"""Maps the name of a torch function to its implementation on pairs."""
_MAKERS = frozenset(("zeros", "ones", "empty", "new_zeros", "new_ones", "new_empty"))
_CASTS = frozenset(("to", "type", "cfloat"))


def _pair(real: Tensor, imag: Tensor, known: KnownValues) -> ComplexPair:
    re, im = torch.broadcast_tensors(real, imag)
    return ComplexPair(re, im, known)


class ComplexFormulas:
    """Torch functions that create pairs; one object per trace."""

    def __init__(self, known: KnownValues) -> None:
        self.known = known
        self.formulas: dict[Any, Callable[..., Any]] = {
            torch.polar: self.polar,
            torch.complex: lambda real, imag: _pair(real, imag, known),
            torch.view_as_complex: self.view_as_complex,
            torch.view_as_real: self.view_as_real,
        }

    def polar(self, magnitude: Tensor, angle: Tensor) -> ComplexPair:
        """r (cos a + i sin a), of magnitude r and angle a."""
        return ComplexPair(magnitude * angle.cos(), magnitude * angle.sin(), self.known)

    def view_as_complex(self, x: Tensor) -> ComplexPair:
        """Converts a real tensor [..., 2] to pairs [...]."""
        return ComplexPair(x[..., 0], x[..., 1], self.known)

    def view_as_real(self, x: Any) -> Tensor:
        """Converts pairs [...] to a real tensor [..., 2]."""
        return torch.stack([x.re, x.im], -1) if isinstance(x, ComplexPair) else torch.view_as_real(x)

    def made(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Returns the pair that a function makes of real tensors with a complex number or dtype; NotImplemented if
        there is none.
        """
        name = getattr(func, "__name__", "")
        if name in _MAKERS and kwargs.get("dtype") in _DTYPES:
            re = func(*args, **{**kwargs, "dtype": _DTYPES[kwargs["dtype"]]})
            return ComplexPair(re, torch.zeros_like(re), self.known)
        given = [v for v in (*args[1:], *kwargs.values()) if isinstance(v, torch.dtype)]
        cast = name in _CASTS and (name == "cfloat" or any(v in _DTYPES for v in given))
        if cast and args and isinstance(args[0], Tensor) and self._unknown(args[0]):
            x = args[0].to(torch.get_default_dtype())
            return ComplexPair(x, torch.zeros_like(x), self.known)
        if not any(isinstance(x, complex) for x in args):
            return NotImplemented
        if not any(isinstance(x, Tensor) and self._unknown(x) for x in args):
            return NotImplemented
        pairs = [pair_of(x, self.known) if isinstance(x, Tensor) and not x.is_complex() else x for x in args]
        return operate(self.known, func, name, pairs, kwargs)

    def _unknown(self, x: Tensor) -> bool:
        return not x.is_complex() and self.known.real(x) is None
