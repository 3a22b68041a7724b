"""Plain format: any tensor, 32 bits per element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lockstep.storage.formats.base import Bytes, WireFormat, Words, words_of


@dataclass(frozen=True)
class PlainWords(WireFormat):
    """Encodes words as little-endian binary32."""

    kind: ClassVar[str] = "f32"

    def longest(self, n: int) -> int:
        """Returns 4 n bytes."""
        return 4 * n

    def _pack(self, words: Words) -> bytes:
        return words.astype("<u4", copy=False).tobytes()

    def _unpack(self, data: Bytes, n: int) -> Words:
        return words_of(data.copy())
