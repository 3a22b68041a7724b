"""Files mapped into memory that no open file stands behind: what a process keeps mapped takes none of its descriptors.

`mmap.mmap` keeps a descriptor of its own for as long as the mapping lives, and a process has few of them.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from mmap import MAP_SHARED, PROT_READ, PROT_WRITE

import numpy as np

from lockstep.base.libc import libc

FAILED = ctypes.c_void_p(-1).value


def mapped(handle: int, size: int, *, writes: bool = False) -> np.ndarray:
    """The first `size` bytes of an open file, mapped for as long as anything views them; the caller closes the file.

    `writes`: what is written there is the file's. Raises OSError if the system maps nothing more, ValueError if the
    file is shorter.
    """
    if size > os.fstat(handle).st_size:
        raise ValueError(f"{size} bytes are more than the file has")
    rights = PROT_READ | PROT_WRITE if writes else PROT_READ
    address = libc().mmap(None, size, rights, MAP_SHARED, handle, 0)
    if address == FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, libc().munmap, address, size).atexit = False
    found = np.frombuffer(memoryview(memory), np.uint8)
    found.flags.writeable = writes
    return found
