"""Exports and imports signing records, to move a key to another machine: JSON, versioned, bound to one chain, market
and account.

    {"metadata": {"format": "lockstep-guard", "version": 1, "chain_id", "genesis", "market", "account"},
     "promises": [{"claim", "seed", "base", "trace_root", "out", "out2", "nonce", "trace_cid", "payload_cid", "torn"}]}

Bytes are 0x-prefixed hex. The nonces open unrevealed commitments, so the file must stay secret.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.base.decoding import U32, anything, flag, from_json, hexes, mapping, refusing, several, table, text, whole
from lockstep.protocol.errors import Mismatch, UsageError
from lockstep.protocol.types import Cid, ClaimId, Digest, Seed, StateRoot, TraceRoot
from lockstep.runtime.guard.memory import RecordKey, Scope, SigningRecord

FORMAT, VERSION = "lockstep-guard", 1
WORDS = ("claim", "seed", "base", "trace_root", "out", "out2", "nonce")
"""Fields of 32 bytes each."""
MAX_EXPORT_BYTES, MAX_EXPORT_ITEMS = 1 << 28, 1 << 22
"""Bounds on an export: about 400,000 records, which a worker creates in years."""

_NAMED, _NUMBER = text(64), whole(0, U32)
_FILE = table({"metadata": mapping(anything), "promises": several(anything, MAX_EXPORT_ITEMS)})
_ROW = table(
    {
        **dict.fromkeys(WORDS, hexes(32, bare=True)),
        **dict.fromkeys(("trace_cid", "payload_cid"), text(128)),
        "torn": flag,
    }
)


def dumps(scope: Scope, records: Sequence[tuple[RecordKey, SigningRecord]]) -> str:
    """Returns the text of an export."""
    rows = [
        {
            **{name: "0x" + bytes(getattr(place, name)).hex() for name in ("claim", "seed", "base")},
            **{name: "0x" + bytes(getattr(p, name)).hex() for name in ("trace_root", "out", "out2", "nonce")},
            "trace_cid": p.trace_cid,
            "payload_cid": p.payload_cid,
            "torn": p.torn,
        }
        for place, p in records
    ]
    return json.dumps({"metadata": _metadata(scope), "promises": rows}, indent=1) + "\n"


def loads(exported: str, scope: Scope) -> list[tuple[RecordKey, SigningRecord]]:
    """Parses an export; raises UsageError if the text is not one, Mismatch if it is of another chain, market or
    account."""
    with refusing(UsageError, "an export of a guard", hint="`guard export` writes one"):
        file = _FILE(from_json(exported, MAX_EXPORT_BYTES, most_items=MAX_EXPORT_ITEMS), "the export")
        metadata = file["metadata"]
        named = _NAMED(metadata.get("format"), "format"), _NUMBER(metadata.get("version"), "version")
    if named != (FORMAT, VERSION):
        raise UsageError(
            f"this release cannot read {named[0]} version {named[1]}", hint=f"it reads {FORMAT} version {VERSION}"
        )
    # INVARIANT: promises bind one account of one market on one chain.
    if metadata != _metadata(scope):
        other = sorted(k for k, v in _metadata(scope).items() if metadata.get(k) != v)
        raise Mismatch(
            f"the export is of another {', '.join(other)}", hint="import it where the same key serves the same market"
        )
    with refusing(UsageError, "an export of a guard", hint="export it again; nothing was imported"):
        return [_entry(_ROW(row, f"promise {i}")) for i, row in enumerate(file["promises"])]


def save(path: Path, text: str) -> None:
    """Writes a new file of mode 0600. Raises UsageError if it exists or cannot be written."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint="name a new file") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _metadata(scope: Scope) -> dict[str, Any]:
    return {
        "format": FORMAT, "version": VERSION, "chain_id": scope.chain_id, "genesis": "0x" + scope.genesis.hex(),
        "market": scope.market.lower(), "account": scope.account.lower(),
    }  # fmt: skip


def _entry(row: dict[str, Any]) -> tuple[RecordKey, SigningRecord]:
    place = RecordKey(ClaimId(row["claim"]), Seed(row["seed"]), StateRoot(row["base"]))
    record = SigningRecord(
        TraceRoot(row["trace_root"]), Digest(row["out"]), Digest(row["out2"]), row["nonce"],
        Cid(row["trace_cid"]), Cid(row["payload_cid"]), row["torn"],
    )  # fmt: skip
    return place, record
