"""Context managers that close an object when their block ends."""

from __future__ import annotations

from typing import Self


class Closing:
    """A context manager whose end is its `close`."""

    def close(self) -> None:
        """Releases what the object holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
