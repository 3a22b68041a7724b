"""Linear algebra of small matrices as torch formulas: every step of a factorisation becomes ops of the Program.

The steps of a factorisation are not differentiated. Its gradient is the closed form, by triangular systems (Giles 2008;
Walter and Lehmann 2018 for QR), so a backward pass costs a few products. Four factorisations give all other functions.
Matrices have at most `MAX_ROWS` rows. Where torch raises for an exactly singular matrix, these formulas give infinities
or NaNs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.protocol.errors import LoweringError

MAX_ROWS = 16
"""Most rows of a factorised matrix: about twelve ops per row, and 120 rotations per sweep for a diagonalisation."""
_SQUARINGS = 10
_DEGREE = 12
"""Terms of the series for the exponential of a matrix of norm at most 1/2: the remainder is below 1e-13."""
L = torch.linalg
_NAMED: Any = torch.return_types


def times(a: Tensor, b: Tensor) -> Tensor:
    """Multiplies [..., M, K] x [..., K, N] in float32, whatever arithmetic the model's own products use."""
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2)


def _bounded(rows: int, what: str) -> None:
    if rows > MAX_ROWS:
        raise LoweringError(
            f"{what} of {rows} rows",
            hint=f"at most {MAX_ROWS}: use blocks of {MAX_ROWS}, steps of gradient descent, Newton-Schulz or conjugate "
            "gradients, or linalg.solve_triangular with a triangular parameter, which has any size",
        )


def _square(a: Tensor, what: str) -> int:
    n = a.shape[-1]
    if a.dim() < 2 or a.shape[-2] != n:
        raise LoweringError(f"{what} of a tensor {list(a.shape)}", hint="its matrices must be square")
    _bounded(n, what)
    return n


class _Formula(torch.autograd.Function):
    """Base of the factorisations: `forward` is not differentiated, `backward` consists of differentiable operations."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, _inputs: Any, output: Any) -> None:
        """Saves the factors for the backward pass."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*(output if isinstance(output, tuple) else (output,)))


# --- triangular factors -------------------------------------------------------------------------------------


class _Lu(_Formula):
    """LU of square matrices with partial pivoting: (L and U in one, the order of the rows, the sign of that
    permutation).
    """

    @staticmethod
    def forward(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n = a.shape[-1]
        rows = torch.arange(n)
        order = rows
        sign = torch.ones(a.shape[:-2])
        packed = a
        for k in range(n):
            size = torch.where(rows >= k, packed[..., :, k].abs(), -1.0)
            pivot = size.argmax(-1, keepdim=True)
            swap = torch.where(rows == k, pivot, torch.where(rows == pivot, k, rows))
            packed = packed.gather(-2, swap.unsqueeze(-1).expand(packed.shape))
            order = order.gather(-1, swap) if k else swap
            sign = torch.where(pivot.squeeze(-1) == k, sign, -sign)
            top = packed[..., k : k + 1, :]
            head = top[..., k : k + 1]
            below = (rows > k).unsqueeze(-1)
            factor = torch.where(below, packed[..., :, k : k + 1] / torch.where(head == 0, 1.0, head), 0.0)
            packed = torch.where(below & (rows == k), factor, packed - factor * torch.where(rows > k, top, 0.0))
        return packed, order, sign

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Saves the factors, and the order of the rows, which has no gradient."""
        _Formula.setup_context(ctx, inputs, output)
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_none: Any) -> Tensor | None:
        packed, order, _ = ctx.saved_tensors
        if grad is None:
            return None
        lower, upper = _halves(packed)
        inner = times(lower.mT, grad.tril(-1)).tril(-1) + times(grad.triu(), upper.mT).triu()
        inner = L.solve_triangular(lower.mT, inner, upper=True, unitriangular=True)
        inner = L.solve_triangular(upper.mT, inner, upper=False, left=False)
        return torch.zeros_like(inner).scatter(-2, order.unsqueeze(-1).expand(inner.shape), inner)


def _halves(packed: Tensor) -> tuple[Tensor, Tensor]:
    return packed.tril(-1) + torch.eye(packed.shape[-1]), packed.triu()


def _lu(a: Tensor, what: str) -> tuple[Tensor, Tensor, Tensor]:
    _square(a, what)
    return _Lu.apply(a)


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """Solves A x = B (or x A = B) by elimination with partial pivoting."""
    if B.dim() == 1 or (B.dim() == A.dim() - 1 and B.shape == A.shape[:-1]):
        return solve(A, B.unsqueeze(-1)).squeeze(-1)
    if not left:
        return solve(A.mT, B.mT).mT
    packed, order, _ = _lu(A, "a system of equations")
    batch = torch.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    packed, order = packed.expand(*batch, *packed.shape[-2:]), order.expand(*batch, order.shape[-1])
    B = B.expand(*batch, *B.shape[-2:])
    return _back(packed, B.gather(-2, order.unsqueeze(-1).expand(B.shape)))


def _back(packed: Tensor, b: Tensor) -> Tensor:
    y = L.solve_triangular(packed, b, upper=False, unitriangular=True)
    return L.solve_triangular(packed, y, upper=True)


def inverse(A: Tensor) -> Tensor:
    """Inverts square matrices."""
    return solve(A, torch.eye(_square(A, "an inverse")).expand(A.shape))


def lu(A: Tensor, *, pivot: bool = True) -> Any:
    """Returns (P, L, U) with A = P L U."""
    packed, order = _pivoted(A, pivot)
    rows = torch.arange(A.shape[-1]).unsqueeze(-1)
    return _NAMED.linalg_lu(((order.unsqueeze(-2) == rows).to(A.dtype), *_halves(packed)))


def _pivoted(a: Tensor, pivot: bool) -> tuple[Tensor, Tensor]:
    if not pivot:
        raise LoweringError("an LU factorisation without pivots", hint="leave pivot=True")
    packed, order, _ = _lu(a, "an LU factorisation")
    return packed, order


def determinant(A: Tensor) -> Tensor:
    """The determinant; for up to three rows as a polynomial, so that singular matrices have a gradient too."""
    n = _square(A, "a determinant")
    if n <= 3:
        return _expanded(A)
    packed, _, sign = _lu(A, "a determinant")
    return sign * packed.diagonal(0, -2, -1).prod(-1)


def _expanded(a: Tensor) -> Tensor:
    n = a.shape[-1]
    if n < 2:
        return a[..., 0, 0] if n else torch.ones(a.shape[:-2])
    if n == 2:
        return a[..., 0, 0] * a[..., 1, 1] - a[..., 0, 1] * a[..., 1, 0]
    (a0, a1, a2), (b0, b1, b2), (c0, c1, c2) = ([a[..., i, j] for j in range(3)] for i in range(3))
    return a0 * (b1 * c2 - b2 * c1) - a1 * (b0 * c2 - b2 * c0) + a2 * (b0 * c1 - b1 * c0)


def _sign_and_log(a: Tensor) -> tuple[Tensor, Tensor]:
    packed, _, sign = _lu(a, "a determinant")
    diagonal = packed.diagonal(0, -2, -1)
    return (sign * diagonal.detach().sign().prod(-1)), diagonal.abs().log().sum(-1)


def log_determinant(input: Tensor) -> Tensor:  # noqa: A002
    """log det(A); NaN if the determinant is negative."""
    sign, log = _sign_and_log(input)
    return log + sign.log()


class _Cholesky(_Formula):
    """Cholesky factorisation A = L L^T; reads only the lower half of A."""

    @staticmethod
    def forward(a: Tensor) -> Tensor:
        rows, columns = torch.arange(a.shape[-1]).unsqueeze(-1), []
        for k in range(a.shape[-1]):
            column = torch.where(rows >= k, a[..., :, k : k + 1] / a[..., k : k + 1, k : k + 1].sqrt(), 0.0)
            columns.append(column)
            a = a - column * column.mT
        return torch.cat(columns, -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Tensor | None:
        (lower,) = ctx.saved_tensors
        if grad is None:
            return None
        inner = times(lower.mT, grad).tril()
        inner = (inner + inner.mT - torch.eye(lower.shape[-1]) * inner) / 2
        inner = L.solve_triangular(lower.mT, inner, upper=True)
        return L.solve_triangular(lower, inner, upper=False, left=False)


def cholesky(A: Tensor, upper: bool = False) -> Tensor:
    """The triangular factor of positive definite matrices; NaNs for other matrices."""
    _square(A, "a Cholesky factorisation")
    lower = _Cholesky.apply(A)
    return lower.mT if upper else lower


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """Solves L L^T x = B."""
    lower = L.mT if upper else L
    y = torch.linalg.solve_triangular(lower, B, upper=False)
    return torch.linalg.solve_triangular(lower.mT, y, upper=True)


# --- orthogonal factors ------------------------------------------------------------------------------------


class _Qr(_Formula):
    """QR of matrices with M >= N by Householder reflections: Q [..., M, N] and R [..., N, N], with LAPACK's signs."""

    @staticmethod
    def forward(a: Tensor) -> tuple[Tensor, Tensor]:
        m, n = a.shape[-2:]
        rows = torch.arange(m).unsqueeze(-1)
        vectors = []
        for k in range(min(n, m - 1)):
            x = torch.where(rows >= k, a[..., :, k : k + 1], 0.0)
            head = x[..., k : k + 1, :]
            norm = (x * x).sum(-2, keepdim=True).sqrt()
            rest = torch.where(rows > k, x, 0.0).abs().amax(-2, keepdim=True)
            v = x - torch.where(rows == k, torch.where(head < 0, norm, -norm), 0.0)
            v = v * torch.where(rest == 0, 0.0, (2 / (v * v).sum(-2, keepdim=True)).sqrt())
            a = a - v * (v * a).sum(-2, keepdim=True)
            vectors.append(v)
        q = torch.eye(m, n).expand(a.shape)
        for v in reversed(vectors):
            q = q - v * (v * q).sum(-2, keepdim=True)
        return q, a[..., :n, :].triu()

    @staticmethod
    def backward(ctx: Any, grad_q: Tensor | None, grad_r: Tensor | None) -> Tensor | None:
        q, r = ctx.saved_tensors
        if grad_q is None and grad_r is None:
            return None
        grad_q = torch.zeros_like(q) if grad_q is None else grad_q
        inner = -times(q.mT, grad_q)
        inner = (inner if grad_r is None else inner + times(grad_r, r.mT)).triu()
        inner = inner + inner.mT - torch.eye(r.shape[-1]) * inner
        return L.solve_triangular(r.mT, grad_q + times(q, inner), upper=False, left=False)


def _reduced(a: Tensor) -> tuple[Tensor, Tensor]:
    m, n = a.shape[-2:]
    _bounded(min(m, n), "a QR factorisation")
    if m >= n:
        return _Qr.apply(a)
    q, r = _Qr.apply(a[..., :m])
    return q, torch.cat([r, times(q.mT, a[..., m:])], -1)


def qr(A: Tensor, mode: str = "reduced") -> Any:
    """Returns Q with orthonormal columns and R upper triangular."""
    m, n = A.shape[-2:]
    if mode == "complete" and m > n:
        raise LoweringError("a complete QR factorisation of more rows than columns", hint='use mode="reduced"')
    q, r = _reduced(A)
    return _NAMED.linalg_qr((torch.zeros(0) if mode == "r" else q, r))


def pseudoinverse(A: Tensor, *_tolerance: Any, **_kwargs: Any) -> Tensor:
    """Pseudoinverse of a matrix A of full rank: R^-1 Q^T."""
    if A.shape[-2] < A.shape[-1]:
        return pseudoinverse(A.mT).mT
    q, r = _reduced(A)
    return L.solve_triangular(r, q.mT, upper=True)


def least_squares(A: Tensor, B: Tensor, rcond: Any = None, *, driver: Any = None) -> Any:
    """Solves min |A x - B| for A of full rank; if several x reach the minimum, returns the one of least norm."""
    vector = B.dim() == 1 or (B.dim() == A.dim() - 1 and B.shape == A.shape[:-1])
    right = B.unsqueeze(-1) if vector else B
    if A.shape[-2] >= A.shape[-1]:
        q, r = _reduced(A)
        x = L.solve_triangular(r, times(q.mT, right), upper=True)
    else:
        q, r = _reduced(A.mT)
        x = times(q, L.solve_triangular(r.mT, right, upper=False))
    rest = (times(A, x) - right).square().sum(-2) if A.shape[-2] > A.shape[-1] else torch.zeros(0)
    rank = torch.full(A.shape[:-2], min(A.shape[-2:]))
    return _NAMED.linalg_lstsq((x.squeeze(-1) if vector else x, rest, rank, torch.zeros(0)))


def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """Returns the first columns of a product of Householder reflections."""
    (m, n), count = A.shape[-2:], tau.shape[-1]
    _bounded(count, "a product of reflections")
    rows = torch.arange(m).unsqueeze(-1)
    q = torch.eye(m, n).expand(A.shape)
    for k in reversed(range(count)):
        v = torch.where(rows > k, A[..., :, k : k + 1], torch.where(rows == k, 1.0, 0.0))
        q = q - tau[..., k : k + 1].unsqueeze(-1) * v * (v * q).sum(-2, keepdim=True)
    return q


# --- eigenvalues and singular values -----------------------------------------------------------------------


def _rotated(a: Tensor) -> tuple[Tensor, Tensor]:
    """Orthogonalises the columns of a [..., M, N] by one-sided Jacobi rotations; returns (a V, V) (Hestenes 1958).

    A sweep pairs all columns once, N / 2 pairs at a time, as in a round-robin tournament. Convergence is quadratic: 3 +
    log2 N sweeps reach the rounding of binary32.
    """
    m, n = a.shape[-2:]
    both = torch.cat([a, torch.eye(n).expand(*a.shape[:-2], n, n)], -2)
    if n == 1:
        return a, both[..., m:, :]
    if n % 2:
        both = torch.cat([both, torch.zeros(*both.shape[:-1], 1)], -1)
    half = both.shape[-1] // 2
    p, q = both[..., :half], both[..., half:]
    for _ in range((3 + math.ceil(math.log2(n))) * (2 * half - 1)):
        u, v = p[..., :m, :], q[..., :m, :]
        alpha, beta, gamma = ((x * y).sum(-2, keepdim=True) for x, y in ((u, u), (v, v), (u, v)))
        # Rotations that would not change a bit are skipped; zeros would otherwise be rotated for ever.
        turned = gamma * gamma > 1e-15 * alpha * beta
        zeta = (beta - alpha) / torch.where(turned, 2 * gamma, 1.0)
        t = torch.where(zeta < 0, -1.0, 1.0) / (zeta.abs() + (1 + zeta * zeta).sqrt())
        t = torch.where(turned, t, 0.0)
        c = 1 / (1 + t * t).sqrt()
        p, q = c * p - c * t * q, c * t * p + c * q
        if half > 1:
            p, q = torch.cat([p[..., :1], q[..., :1], p[..., 1:-1]], -1), torch.cat([q[..., 1:], p[..., -1:]], -1)
    # After whole sweeps every column is back in its first position.
    both = torch.cat([p, q], -1)[..., :n]
    return both[..., :m, :], both[..., m:, :]


def _ordered(keys: Tensor, *columns: Tensor, descending: bool) -> list[Tensor]:
    at = keys.argsort(-1, descending=descending)
    return [keys.gather(-1, at), *(x.gather(-1, at.unsqueeze(-2).expand(x.shape)) for x in columns)]


class _Eigen(_Formula):
    """Eigenvalues (ascending) and eigenvectors of symmetric matrices."""

    @staticmethod
    def forward(a: Tensor) -> tuple[Tensor, Tensor]:
        # Adds a multiple of the identity that makes the matrix positive, so that singular vectors are eigenvectors.
        size = (a * a).sum((-2, -1), keepdim=True).sqrt()
        _, vectors = _rotated(a + size * torch.eye(a.shape[-1]))
        values = (vectors * times(a, vectors)).sum(-2)
        values, vectors = _ordered(values, vectors, descending=False)
        return values, vectors

    @staticmethod
    def backward(ctx: Any, grad_values: Tensor | None, grad_vectors: Tensor | None) -> Tensor | None:
        values, vectors = ctx.saved_tensors
        eye = torch.eye(values.shape[-1])
        inner = None if grad_values is None else eye * grad_values.unsqueeze(-1)
        if grad_vectors is not None:
            apart = values.unsqueeze(-2) - values.unsqueeze(-1)
            turn = times(vectors.mT, grad_vectors) * (1 - eye) / (apart + eye)
            inner = turn if inner is None else inner + turn
        return None if inner is None else times(times(vectors, inner), vectors.mT)


def eigh(A: Tensor, UPLO: str = "L") -> Any:
    """Eigenvalues and eigenvectors of symmetric matrices; reads one half of A."""
    n = _square(A, "eigenvalues")
    half = A.triu() if UPLO.upper() == "U" else A.tril()
    return _NAMED.linalg_eigh(_Eigen.apply(half + half.mT - torch.eye(n) * A))


class _Singular(_Formula):
    """Singular value decomposition (U, S, V) of matrices with M >= N; S is descending."""

    @staticmethod
    def forward(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        turned, right = _rotated(a)
        sizes, turned, right = _ordered((turned * turned).sum(-2).sqrt(), turned, right, descending=True)
        below = sizes.unsqueeze(-2)
        return turned / torch.where(below == 0, 1.0, below), sizes, right

    @staticmethod
    def backward(ctx: Any, grad_u: Tensor | None, grad_s: Tensor | None, grad_v: Tensor | None) -> Tensor | None:
        u, s, v = ctx.saved_tensors
        n = s.shape[-1]
        eye = torch.eye(n)
        row, column = s.unsqueeze(-2), s.unsqueeze(-1)
        apart = row * row - column * column + eye
        inner: Any = 0.0 if grad_s is None else eye * grad_s.unsqueeze(-1)
        outer: Any = 0.0
        if grad_u is not None:
            turn = times(u.mT, grad_u)
            inner = inner + (turn - turn.mT) * (1 - eye) / apart * row
            outer = outer + times((grad_u - times(u, turn)) / row, v.mT)
        if grad_v is not None:
            turn = times(v.mT, grad_v)
            inner = inner + column * ((turn - turn.mT) * (1 - eye) / apart)
            outer = outer + times(u / row, (grad_v - times(v, turn)).mT)
        if isinstance(inner, float):
            return None
        return times(times(u, inner), v.mT) + outer


def _decomposed(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    _bounded(min(a.shape[-2:]), "singular values")
    if a.shape[-2] >= a.shape[-1]:
        return _Singular.apply(a)
    v, s, u = _Singular.apply(a.mT)
    return u, s, v


def svd(A: Tensor, full_matrices: bool = True, *, driver: Any = None) -> Any:
    """Returns (U, S, V^T) for matrices of full rank."""
    if full_matrices and A.shape[-2] != A.shape[-1]:
        raise LoweringError("a full singular value decomposition", hint="use full_matrices=False")
    u, s, v = _decomposed(A)
    return _NAMED.linalg_svd((u, s, v.mT))


def svd_of_old(input: Tensor, some: bool = True, compute_uv: bool = True) -> Any:  # noqa: A002
    """`torch.svd`: returns (U, S, V)."""
    if not some and input.shape[-2] != input.shape[-1]:
        raise LoweringError("a full singular value decomposition", hint="use some=True")
    return _NAMED.svd(_decomposed(input))


def singular_values(A: Tensor, *, driver: Any = None) -> Tensor:
    """Singular values, descending."""
    return _decomposed(A)[1]


def rank(A: Tensor, *tolerances: Any, **kwargs: Any) -> Tensor:
    """Counts the singular values above the largest one times binary32's rounding error."""
    if tolerances or any(v is not None and v is not False for v in kwargs.values()):
        raise LoweringError("a rank by a tolerance of one's own", hint="count linalg.svdvals(A) > tolerance")
    s = singular_values(A.detach())
    return (s > s[..., :1] * (max(A.shape[-2:]) * torch.finfo(A.dtype).eps)).sum(-1)


def _of_values(a: Tensor, order: Any, dim: Sequence[int], keepdim: bool) -> Tensor:
    s = singular_values(a.movedim(tuple(dim), (-2, -1)))
    value = s.sum(-1) if order == "nuc" else s.amax(-1) if order > 0 else s.amin(-1)
    if keepdim:
        for axis in sorted(d % a.dim() for d in dim):
            value = value.unsqueeze(axis)
    return value


def matrix_norm(
    A: Tensor,
    ord: Any = "fro",  # noqa: A002
    dim: Any = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Tensor:
    """A norm of matrices; the nuclear and spectral norms use the singular values."""
    if ord not in ("nuc", 2, -2):
        return L.matrix_norm(A, ord, dim, keepdim, dtype=dtype)
    return _of_values(A, ord, dim, keepdim)


def norm(A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, **kw: Any) -> Tensor:  # noqa: A002
    """Replaces `torch.linalg.norm`: norms of singular values are computed here, others by torch."""
    both = tuple(dim) if isinstance(dim, (tuple, list)) else (-2, -1) if dim is None and A.dim() == 2 else ()
    if ord in ("nuc", 2, -2) and len(both) == 2:
        return _of_values(A, ord, both, keepdim)
    return L.norm(A, ord, dim, keepdim, dtype=dtype, **kw)


def norm_of_old(input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Tensor:  # noqa: A002
    """Replaces `torch.norm`: the nuclear norm is computed here, others by torch."""
    if p != "nuc":
        return torch.norm(input, p, dim, keepdim, **kwargs)
    return _of_values(input, p, (-2, -1) if dim is None else dim, keepdim)


def condition(A: Tensor, p: Any = None) -> Tensor:
    """The condition number of A in a given norm."""
    if p in (None, 2, -2):
        s = singular_values(A)
        return s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
    return matrix_norm(A, p) * matrix_norm(inverse(A), p)


# --- functions of matrices ---------------------------------------------------------------------------------


def exponential(A: Tensor) -> Tensor:
    """e^A by scaling and squaring (Higham 2008, section 10.3), for norms up to 2^9.

    The number of squarings depends on the norm of each matrix; the Program computes the largest number and selects.
    """
    n = _square(A, "a matrix exponential")
    size = A.detach().abs().sum(-2).amax(-1)
    halvings = torch.zeros_like(size)
    for k in range(_SQUARINGS):
        halvings = torch.where(size > 0.5 * 2.0**k, k + 1.0, halvings)
    halvings = halvings.unsqueeze(-1).unsqueeze(-1)
    small = A
    for k in range(_SQUARINGS):
        small = torch.where(halvings > k, small * 0.5, small)
    result = torch.eye(n) + small / _DEGREE
    for k in range(_DEGREE - 1, 0, -1):
        result = torch.eye(n) + times(small, result) / k
    for k in range(_SQUARINGS):
        result = torch.where(halvings > k, times(result, result), result)
    return result


def power(A: Tensor, n: int) -> Tensor:
    """A^n as a product; for negative n of inverses."""
    return torch.matrix_power(A if n >= 0 else inverse(A), abs(n))


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The sum over i, j of x_i W_kij y_j."""
    out, left, right = weight.shape
    halfway = input1.reshape(-1, left) @ weight.permute(1, 0, 2).reshape(left, out * right)
    sums = (halfway.view(-1, out, right) * input2.reshape(-1, 1, right)).sum(-1).view(*input1.shape[:-1], out)
    return sums if bias is None else sums + bias


def _tensor_solve(A: Tensor, B: Tensor, dims: Any = None) -> Tensor:
    if dims is not None:
        A = A.movedim(tuple(dims), tuple(range(A.dim() - len(dims), A.dim())))
    return solve(A.reshape(B.numel(), -1), B.reshape(-1)).view(A.shape[B.dim() :])


def _sign_log(named: Any) -> Callable[..., Any]:
    return lambda A: named(_sign_and_log(A))


FORMULAS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.trace, torch.Tensor.trace), lambda A: A.diagonal().sum()),
    **dict.fromkeys((L.inv, torch.inverse, torch.Tensor.inverse), inverse),
    L.inv_ex: lambda A, **_k: (inverse(A), torch.zeros(A.shape[:-2], dtype=torch.int32)),
    L.solve: solve,
    L.lu: lu,
    L.lu_factor: lambda A, *, pivot=True: _NAMED.linalg_lu_factor(_pivoted(A, pivot)),
    L.lu_solve: lambda LU, pivots, B: _back(LU, B.gather(-2, pivots.unsqueeze(-1).expand(B.shape))),
    **dict.fromkeys((L.det, torch.det, torch.Tensor.det), determinant),
    L.slogdet: _sign_log(_NAMED.linalg_slogdet),
    **dict.fromkeys((torch.slogdet, torch.Tensor.slogdet), _sign_log(_NAMED.slogdet)),
    **dict.fromkeys((torch.logdet, torch.Tensor.logdet), log_determinant),
    L.cholesky: lambda A, *, upper=False: cholesky(A, upper),
    L.cholesky_ex: lambda A, *, upper=False, **_k: (cholesky(A, upper), torch.zeros(A.shape[:-2], dtype=torch.int32)),
    **dict.fromkeys((torch.cholesky, torch.Tensor.cholesky), cholesky),
    **dict.fromkeys((torch.cholesky_solve, torch.Tensor.cholesky_solve), cholesky_solve),
    **dict.fromkeys(
        (torch.cholesky_inverse, torch.Tensor.cholesky_inverse),
        lambda L, upper=False: cholesky_solve(torch.eye(L.shape[-1]).expand(L.shape), L, upper),
    ),
    **dict.fromkeys(
        (torch.triangular_solve, torch.Tensor.triangular_solve),
        lambda b, A, upper=True, transpose=False, unitriangular=False: (
            L.solve_triangular(A.mT if transpose else A, b, upper=upper != transpose, unitriangular=unitriangular),
            A.clone(),
        ),
    ),
    L.qr: qr,
    **dict.fromkeys((torch.qr, torch.Tensor.qr), lambda A, some=True: qr(A, "reduced" if some else "complete")),
    **dict.fromkeys((L.pinv, torch.pinverse, torch.Tensor.pinverse), pseudoinverse),
    L.lstsq: least_squares,
    **dict.fromkeys((L.householder_product, torch.orgqr, torch.Tensor.orgqr), householder_product),
    L.eigh: eigh,
    L.eigvalsh: lambda A, UPLO="L": eigh(A, UPLO)[0],
    L.svd: svd,
    L.svdvals: singular_values,
    **dict.fromkeys((torch.svd, torch.Tensor.svd), svd_of_old),
    L.matrix_rank: rank,
    L.matrix_norm: matrix_norm,
    L.norm: norm,
    **dict.fromkeys((torch.norm, torch.Tensor.norm), norm_of_old),
    L.cond: condition,
    **dict.fromkeys((torch.matrix_exp, L.matrix_exp, torch.Tensor.matrix_exp), exponential),
    **dict.fromkeys((torch.matrix_power, L.matrix_power, torch.Tensor.matrix_power), power),
    **dict.fromkeys((torch.nn.functional.bilinear, torch.bilinear), bilinear),
    **dict.fromkeys(
        (torch.addbmm, torch.Tensor.addbmm),
        lambda x, a, b, *, beta=1, alpha=1: beta * x + alpha * torch.bmm(a, b).sum(0),
    ),
    L.tensorsolve: _tensor_solve,
}
"""Maps a torch function to its formula."""
