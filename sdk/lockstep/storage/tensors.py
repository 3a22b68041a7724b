"""Tensor files: a line of JSON, then the tensors' words, memory-mapped for reading.

The line is padded so that the first tensor is aligned for kernels. Nothing is copied: a tensor is a view of its file,
and keeps its contents when the file is replaced or removed.
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
"""Alignment in bytes: a cache line, and the widest load."""
MAX_LINE_BYTES = 1 << 26
"""Longest first line in bytes: a claim of 2^16 steps names as many roots."""

PIECE_BYTES = 1 << 16
"""Bytes that are searched at a time for the line's end."""


def head_line(head: Mapping[str, Any]) -> bytes:
    """Encodes the first line of a file."""
    line = json.dumps(head).encode()
    return line + b" " * (-(len(line) + 1) % ALIGNED) + b"\n"


def read_tensors(path: Path) -> tuple[dict[str, Any], memoryview]:
    """Reads a file; returns (parsed first line, remaining bytes).

    Raises OSError, or ValueError if there is no such line.
    """
    data = mapped_file(path)
    end = _end_of_line(data)
    head = json.loads(bytes(data[: max(end, 0)]))
    if not isinstance(head, dict):
        raise ValueError("its first line is not a header")
    return head, data[end + 1 :]


def _end_of_line(data: memoryview) -> int:
    """Returns the offset of the first line's end; -1 if there is none."""
    for at in range(0, min(len(data), MAX_LINE_BYTES), PIECE_BYTES):
        found = bytes(data[at : at + PIECE_BYTES]).find(b"\n")
        if found >= 0:
            return at + found
    return -1


def tensor_at(body: memoryview, at: int, header: TensorHeader) -> tuple[np.ndarray, int]:
    """Returns (read-only tensor at offset `at`, offset after it). Raises ValueError."""
    end = at + 4 * header.elements
    kind = np.int32 if header.dtype else np.float32
    return np.frombuffer(body[at:end], dtype=kind).reshape(header.shape), end


def words_of(tensor: np.ndarray) -> memoryview:
    """Returns a tensor's bytes."""
    words: memoryview = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
    return words
