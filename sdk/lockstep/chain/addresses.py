"""Where the contracts are: one small file that every process is given."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from lockstep.protocol.errors import NotFoundError, UsageError
from lockstep.protocol.types import Address

CONTRACTS = ("token", "vault", "market", "game", "arbiter", "validator", "availability", "witnesses")
HINT = "pass --deployment FILE as the deployer, or `lockstep demo`, wrote it"


@dataclass(frozen=True)
class Addresses:
    """One deployment on one chain."""

    chain_id: int
    token: Address
    vault: Address
    market: Address
    game: Address
    arbiter: Address
    validator: Address
    availability: Address
    witnesses: Address
    block: int = 0
    """The deployment's block: events are read from here on."""

    def save(self, path: Path) -> None:
        """Writes JSON, whole or not at all."""
        temporary = path.with_suffix(path.suffix + ".part")
        temporary.write_text(json.dumps(asdict(self), indent=2) + "\n")
        temporary.replace(path)

    @classmethod
    def load(cls, path: str | Path) -> Addresses:
        """Reads what `save` wrote; `~` is the user's home. Raises `NotFoundError` or `UsageError`."""
        file = Path(path).expanduser()
        try:
            found = cls(**json.loads(file.read_text()))
        except FileNotFoundError as failure:
            raise NotFoundError(f"no deployment at {file}", HINT) from failure
        except OSError as failure:
            raise UsageError(f"{file} cannot be read: {failure.strerror}", HINT) from failure
        except (ValueError, TypeError) as failure:
            raise UsageError(f"{file} is no deployment: {failure}", HINT) from failure
        found._check(file)
        return found

    def _check(self, file: Path) -> None:
        # INVARIANT: every field is what its name says before anything is sent to it.
        for name, value in asdict(self).items():
            fits = _is_address(value) if name in CONTRACTS else type(value) is int and value >= 0
            if not fits:
                raise UsageError(f"{file} is no deployment: {name} is {value!r}", HINT)


def _is_address(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"0x[0-9a-fA-F]{40}", value) is not None
