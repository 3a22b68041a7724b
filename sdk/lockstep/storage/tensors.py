"""Files of tensors: a line of JSON, then their words, mapped when they are read.

The line is padded so that the first tensor lies where a kernel reads it best. Nothing is copied: a tensor is a window
of its file, and stays what it is when the file is replaced or removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.protocol.merkle import TensorHeader
from lockstep.storage.cache import mapped_file

ALIGNED = 64
"""Bytes of a cache line, and of the widest load."""
MAX_LINE_BYTES = 1 << 26
"""A claim of 2^16 steps names as many roots."""

PIECE_BYTES = 1 << 16
"""Bytes that are looked through at once for the line's end."""


def head_line(head: Mapping[str, Any]) -> bytes:
    """The first line of a file."""
    line = json.dumps(head).encode()
    return line + b" " * (-(len(line) + 1) % ALIGNED) + b"\n"


def read_tensors(path: Path) -> tuple[dict[str, Any], memoryview]:
    """(head, the rest) of a file; raises OSError, or ValueError if it has no such line."""
    data = mapped_file(path)
    end = _end_of_line(data)
    head = json.loads(bytes(data[: max(end, 0)]))
    if not isinstance(head, dict):
        raise ValueError("its first line is not a header")
    return head, data[end + 1 :]


def _end_of_line(data: memoryview) -> int:
    """The first line's end; -1 if it has none."""
    for at in range(0, min(len(data), MAX_LINE_BYTES), PIECE_BYTES):
        found = bytes(data[at : at + PIECE_BYTES]).find(b"\n")
        if found >= 0:
            return at + found
    return -1


def tensor_at(body: memoryview, at: int, header: TensorHeader) -> tuple[np.ndarray, int]:
    """The tensor that begins at a byte, read-only, and the first byte after it; raises ValueError."""
    end = at + 4 * header.elements
    kind = np.int32 if header.dtype else np.float32
    return np.frombuffer(body[at:end], dtype=kind).reshape(header.shape), end


def words_of(tensor: np.ndarray) -> memoryview:
    """A tensor's bytes."""
    words: memoryview = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
    return words
