"""Where the five contracts are: one small file that every process is given."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from lockstep.protocol.errors import NotFoundError, UsageError
from lockstep.protocol.types import Address


@dataclass(frozen=True)
class Addresses:
    """One deployment on one chain."""

    chain_id: int
    token: Address
    vault: Address
    market: Address
    game: Address
    arbiter: Address
    block: int = 0
    """The deployment's block: events are read from here on."""

    def save(self, path: Path) -> None:
        """Writes JSON, whole or not at all."""
        temporary = path.with_suffix(path.suffix + ".part")
        temporary.write_text(json.dumps(asdict(self), indent=2) + "\n")
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Addresses:
        """Reads what `save` wrote. Raises `NotFoundError` or `UsageError`."""
        try:
            value = json.loads(path.read_text())
            return cls(**value)
        except FileNotFoundError as failure:
            raise NotFoundError(f"no addresses file at {path}", "deploy first, or give its path") from failure
        except (ValueError, TypeError) as failure:
            raise UsageError(
                f"{path} is not an addresses file: {failure}", "deploy again, or give its path"
            ) from failure
