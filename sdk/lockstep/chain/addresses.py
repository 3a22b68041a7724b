"""Reads and writes the file of the contracts' addresses."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from lockstep.base.decoding import MAX_FILE_BYTES, U64, account, file_bytes, from_json, table, whole
from lockstep.base.files import write_atomically
from lockstep.base.naming import address_of
from lockstep.protocol.errors import Malformed, NotFoundError, UsageError
from lockstep.protocol.types import Address

CONTRACTS = ("token", "vault", "market", "game", "arbiter", "validator", "availability", "witnesses")
HINT = "pass --deployment FILE as the deployer, or `lockstep demo`, wrote it"
NO_MARKET = "`lockstep local up` starts one on this machine; --network NAME or URL finds one that is up elsewhere"

_FILE = table({"chain_id": whole(0, U64), **dict.fromkeys(CONTRACTS, account)}, {"block": whole(0, U64)})


@dataclass(frozen=True)
class Addresses:
    """The contract addresses of one deployment on one chain."""

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
    """The block of the deployment, from which events are read."""

    def text(self) -> str:
        """Returns the file's contents."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def save(self, path: Path) -> None:
        """Writes the file atomically, as JSON. Raises UsageError, DoctorError."""
        write_atomically(path, [self.text().encode()])

    @classmethod
    def load(cls, path: str | Path) -> Addresses:
        """Reads a file that `save` wrote; expands `~`. Raises `NotFoundError` or `UsageError`."""
        file = Path(path).expanduser()
        try:
            return cls.loads(file_bytes(file))
        except FileNotFoundError as failure:
            raise NotFoundError(f"no market is known here: {file} does not exist", NO_MARKET) from failure
        except OSError as failure:
            raise UsageError(f"{file} cannot be read: {failure.strerror}", HINT) from failure
        except Malformed as failure:
            raise UsageError(f"{file} is not a deployment: {failure.message}", HINT) from failure

    @classmethod
    def loads(cls, data: bytes) -> Addresses:
        """Reads the file's contents. Raises `Malformed`."""
        # INVARIANT: every field is what its name says before anything is sent to it.
        found = _FILE(from_json(data, MAX_FILE_BYTES), "the file")
        try:
            return cls(**found | {name: address_of(found[name], name) for name in CONTRACTS})
        except UsageError as failure:
            raise Malformed(failure.message) from failure
