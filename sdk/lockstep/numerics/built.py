"""The kernels that compute on this machine's processor: the compiled ones, or numpy where nothing was built."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.numerics import _native as kernels
else:
    try:
        from lockstep.numerics import _native as kernels
    except ImportError:
        from lockstep.numerics import portable as kernels

__all__ = ["COMPILED", "kernels"]

COMPILED: bool = kernels.__name__.endswith("_native")
"""The extension is there; without it the bits are the same and take some hundred times as long."""
