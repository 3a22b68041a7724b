"""Files mapped into memory that no open file stands behind: what a process keeps mapped takes none of its descriptors.

`mmap.mmap` keeps a descriptor of its own for as long as the mapping lives, and a process has few of them.
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
    """A file as it was when it was mapped."""

    path: str
    device: int
    inode: int
    size: int


_FILES: dict[int, MappedFile] = {}
"""The files that are mapped to be read, whole: by the address of their first byte."""


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
    weakref.finalize(memory, _unmap, address, size).atexit = False
    if not writes:
        _note(handle, address, size)
    found = np.frombuffer(memoryview(memory), np.uint8)
    found.flags.writeable = writes
    return found


def file_of(array: np.ndarray[Any, Any]) -> int | None:
    """An open file, to be read and closed by the caller, whose bytes are the array's and nothing else; None if it lies
    in no mapped file, or the file is not there any more under its name."""
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
