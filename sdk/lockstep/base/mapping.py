"""Maps files into memory without keeping a descriptor open.

`mmap.mmap` keeps a descriptor for as long as the mapping lives, and a process has few of them.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from contextlib import suppress
from dataclasses import dataclass
from mmap import MAP_SHARED, PROT_READ, PROT_WRITE
from typing import Any

import numpy as np

from lockstep.base.libc import libc

FAILED = ctypes.c_void_p(-1).value


@dataclass(frozen=True)
class MappedFile:
    """A file's identity and size when it was mapped."""

    path: str
    device: int
    inode: int
    size: int


_FILES: dict[int, MappedFile] = {}
"""Files that are mapped as a whole for reading, by the address of the first byte."""


def mapped(handle: int, size: int, *, writes: bool = False) -> np.ndarray:
    """Maps the first `size` bytes of an open file for as long as an array views them; the caller closes the file.

    With `writes`, writes to the array change the file. Raises OSError if the system refuses the mapping, ValueError if
    the file is shorter.
    """
    if size > os.fstat(handle).st_size:
        raise ValueError(f"{size} bytes are more than the file has")
    rights = PROT_READ | PROT_WRITE if writes else PROT_READ
    address = libc().mmap(None, size, rights, MAP_SHARED, handle, 0)
    if address == FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, _unmap, address, size).atexit = False
    if not writes:
        _note(handle, address, size)
    found = np.frombuffer(memoryview(memory), np.uint8)
    found.flags.writeable = writes
    return found


def file_of(array: np.ndarray[Any, Any]) -> int | None:
    """Opens the file whose bytes are exactly the array's, which the caller closes; None if the array is not a whole
    mapped file, or the file no longer exists under its name."""
    known = _FILES.get(array.ctypes.data)
    if known is None or known.size != array.nbytes or not array.flags.c_contiguous:
        return None
    try:
        handle = os.open(known.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    seen = os.fstat(handle)
    if (seen.st_dev, seen.st_ino, seen.st_size) == (known.device, known.inode, known.size):
        return handle
    os.close(handle)
    return None


def _note(handle: int, address: int, size: int) -> None:
    with suppress(OSError):
        seen = os.fstat(handle)
        if seen.st_size == size:
            path = os.readlink(f"/proc/self/fd/{handle}")
            _FILES[address] = MappedFile(path, seen.st_dev, seen.st_ino, size)


def _unmap(address: int, size: int) -> None:
    _FILES.pop(address, None)
    libc().munmap(address, size)
