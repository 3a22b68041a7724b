"""Loads the C library, for functions that Python does not expose."""

from __future__ import annotations

import ctypes
from functools import cache


@cache
def libc() -> ctypes.CDLL:
    """Returns the C library, loaded once; `ctypes.get_errno` returns the calling thread's error number."""
    found = ctypes.CDLL(None, use_errno=True)
    number, place = ctypes.c_int, ctypes.c_void_p
    # Offsets have 64 bits on every supported system.
    found.mmap.argtypes, found.mmap.restype = [place, ctypes.c_size_t, number, number, number, ctypes.c_int64], place
    found.munmap.argtypes = [place, ctypes.c_size_t]
    return found
