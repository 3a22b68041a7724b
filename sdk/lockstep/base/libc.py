"""The C library of this process, for what Python does not call itself. It keeps the error number of each thread."""

from __future__ import annotations

import ctypes
from functools import cache


@cache
def libc() -> ctypes.CDLL:
    """The library, opened once; `ctypes.get_errno` tells why a call failed."""
    found = ctypes.CDLL(None, use_errno=True)
    number, place = ctypes.c_int, ctypes.c_void_p
    # An offset of 64 bits, as on every system that this runs on.
    found.mmap.argtypes, found.mmap.restype = [place, ctypes.c_size_t, number, number, number, ctypes.c_int64], place
    found.munmap.argtypes = [place, ctypes.c_size_t]
    return found
