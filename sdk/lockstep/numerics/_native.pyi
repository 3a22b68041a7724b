"""The native executor of Programs (profile F32-C256)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

def best_isa() -> str:
    """The widest instruction set with a kernel path on this machine: the last one of `paths()`."""

def paths() -> list[str]:
    """The kernel paths of this machine, the widest last: "scalar", then "avx2", "avx512" and "vnni" on x86-64, "neon"
    and "dotprod" on AArch64."""

def apply_op(
    op: int, a: npt.NDArray[Any], b: npt.NDArray[Any], c: npt.NDArray[Any], path: str = "auto"
) -> npt.NDArray[np.uint32]:
    """op(a, b, c) element by element: flat arrays of 32-bit words of one length."""

def chunk_results(mode: int, a: npt.NDArray[Any], b: npt.NDArray[Any], path: str = "auto") -> npt.NDArray[np.uint32]:
    """The chunks of a fold (`Fold`'s number) over flat operands of one length; b is read by a dot alone."""

def bytes_of_run(header: bytes, descriptors: Sequence[bytes], const_elements: Sequence[int]) -> tuple[int, int, int]:
    """(arena, results, what a game holds in their place), in bytes: what a run holds beside its inputs. Nothing is
    allocated; ValueError as `Executor`."""

def work_of_run(header: bytes, descriptors: Sequence[bytes], const_elements: Sequence[int]) -> tuple[float, float]:
    """(multiply-adds of products, terms of other ops) that a run computes; ValueError as `Executor`."""

class Executor:
    """A Program ready to run. ValueError if its bytes do not parse or reach outside of a tensor."""

    def __init__(
        self, header: bytes, descriptors: Sequence[bytes], consts: Sequence[npt.NDArray[Any]], plain: bool = False
    ) -> None:
        """`plain` runs every op by itself, unfused."""
    @property
    def plain(self) -> str:
        """A reason why ops are not fused, or "" if they are."""
    def run(
        self,
        state: list[npt.NDArray[Any] | None],
        seed: bytes,
        round: int,  # noqa: A002
        slot: int,
        t: int,
        dataset: npt.NDArray[Any] | None,
        keep: bool,
        threads: int,
        path: str,
        nanoseconds: list[int] | None = None,
        into: dict[int, npt.NDArray[Any]] = ...,
    ) -> list[npt.NDArray[Any] | None]:
        """One read-only output array per op, None where it was not kept; appends to `nanoseconds` each op's time.

        `into`: by op, memory of the caller's for an output that is kept; None is returned in its place.
        """
    def sweep(
        self,
        state: list[npt.NDArray[Any] | None],
        seed: bytes,
        round: int,  # noqa: A002
        slot: int,
        t: int,
        dataset: npt.NDArray[Any] | None,
        threads: int,
        path: str,
        visit: Callable[[int, memoryview], None],
    ) -> None:
        """Calls visit(op, bytes) with every op's output, in order; the bytes can be read during the call alone."""
    def some(
        self,
        state: list[npt.NDArray[Any] | None],
        seed: bytes,
        round: int,  # noqa: A002
        slot: int,
        t: int,
        dataset: npt.NDArray[Any] | None,
        threads: int,
        path: str,
        ops: list[int],
    ) -> list[npt.NDArray[Any] | None]:
        """One read-only output array per op, None for those that are not in `ops`."""
    def rest(self) -> None:
        """Gives back the memory that is kept from run to run, unless one is under way."""
    def loops(
        self,
    ) -> list[
        tuple[int, tuple[tuple[str, int], ...], tuple[tuple[int, int, int, int, int], ...], tuple[int, ...], bool]
    ]:
        """Per loop: elements, operands (form, step), instructions (op, a, b, c, imm), registers of the results, and
        whether these are written past the caches."""
    def attach(self, loop: int, address: int, path: str) -> bool:
        """Lets a loop run the function at an address; False, and nothing changes, if it gives other bits."""
