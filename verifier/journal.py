"""A verifier's records on disk: claims found right, signed claims, and a witness's secrets and observations.

Everything else can be read from the chain again. The home is locked while a verifier runs: one key, one process.
"""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lockstep.base.closing import Closing
from lockstep.protocol.errors import DoctorError
from lockstep.protocol.market.types import StateLeaf
from lockstep.protocol.merkle import HASH_BYTES
from lockstep.protocol.programs.defects import Code
from lockstep.protocol.types import AuditId, ClaimId, Digest, StateRoot, TraceRoot
from lockstep.runtime.guard import lock

FILE_NAME = "audits.sqlite"
SCHEMA = """
CREATE TABLE IF NOT EXISTS matches (claim BLOB, trace_root BLOB, PRIMARY KEY (claim, trace_root)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS chains (head BLOB PRIMARY KEY, secret BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS observations (
    audit BLOB, i INTEGER, beacon BLOB, salt BLOB NOT NULL, roots BLOB NOT NULL, u INTEGER NOT NULL,
    leaf BLOB NOT NULL, header BLOB NOT NULL, code BLOB NOT NULL, leaf_proof BLOB NOT NULL, entry_proof BLOB NOT NULL,
    PRIMARY KEY (audit, i, beacon)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS signed (
    claim BLOB, work BLOB, digest BLOB, fields TEXT NOT NULL, PRIMARY KEY (claim, work, digest)
) WITHOUT ROWID;
"""
KEPT_SIGNED = 2
"""Number of different signed claims kept for one slot: two suffice to convict."""


@dataclass(frozen=True)
class Observation:
    """A witness's replay for a duty: its own S_1 .. S_t*, one leaf of a state, and the salt that hides the commitment
    to them."""

    audit: AuditId
    i: int
    beacon: Digest
    salt: Digest
    roots: tuple[StateRoot, ...]
    """S_1 .. S_t*; empty if the claim whose carry it starts from is wrong: the verdict is then "differs"."""

    u: int
    """The step whose state is committed to: t*, or the one before the last."""
    leaf: StateLeaf
    """A leaf of S_u with its Merkle proof; the state itself is not kept."""

    @property
    def state(self) -> StateRoot:
        """S_u; a random value that matches no state if there are no roots."""
        return self.roots[self.u - 1] if self.roots else StateRoot(self.salt)


class Journal(Closing):
    """The journal of one verifier's home; closes with the process."""

    def __init__(self, home: Path) -> None:
        """Lock `home` and open its journal; raises GuardRefused if a process works there, DoctorError if it is
        unusable."""
        with ExitStack() as stack:
            # INVARIANT: one home, one process.
            stack.enter_context(lock.held(home, "verifier"))
            try:
                self._db = sqlite3.connect(home / FILE_NAME, isolation_level=None)
                self._db.execute("PRAGMA journal_mode=WAL")
                # FULL: a witness's secrets survive the machine, not only the process.
                self._db.execute("PRAGMA synchronous=FULL")
                self._db.executescript(SCHEMA)
            except sqlite3.Error as error:
                raise DoctorError(
                    f"{home / FILE_NAME} cannot be used: {error}", hint="remove it: claims are then replayed once more"
                ) from error
            self._unlock = stack.pop_all()

    def matched(self, claim: ClaimId, trace_root: TraceRoot) -> bool:
        """Returns True if the claim was replayed and found right; a claim is its trace root, not its id alone."""
        row = self._db.execute("SELECT 1 FROM matches WHERE claim = ? AND trace_root = ?", (claim, trace_root))
        return row.fetchone() is not None

    def remember(self, claim: ClaimId, trace_root: TraceRoot) -> None:
        """Records that a claim is right."""
        self._db.execute("INSERT OR IGNORE INTO matches VALUES (?, ?)", (claim, trace_root))

    # -- what workers signed

    def keep_signed(self, claim: ClaimId, work: bytes, digest: Digest, fields: str) -> None:
        """Keeps a signed claim about a slot and the seed and base that it builds on (`work`); a third one adds
        nothing."""
        self._db.execute(
            "INSERT OR IGNORE INTO signed SELECT ?, ?, ?, ? "
            "WHERE (SELECT count(*) FROM signed WHERE claim = ? AND work = ?) < ?",
            (claim, work, digest, fields, claim, work, KEPT_SIGNED),
        )

    def signed(self, claim: ClaimId, work: bytes) -> list[str]:
        """Returns every signed claim that is kept about a slot and its work."""
        query = "SELECT fields FROM signed WHERE claim = ? AND work = ? ORDER BY digest"
        return [fields for (fields,) in self._db.execute(query, (claim, work))]

    def contradicted(self) -> list[tuple[ClaimId, bytes]]:
        """Returns each (claim, work) for which two different claims are signed."""
        query = "SELECT claim, work FROM signed GROUP BY claim, work HAVING count(*) >= ?"
        return [(ClaimId(claim), work) for claim, work in self._db.execute(query, (KEPT_SIGNED,))]

    # -- what a witness keeps to itself until it reveals

    def keep_chain(self, head: Digest, secret: bytes) -> None:
        """Keeps the secret seed of a hash chain, by the chain's head."""
        self._db.execute("INSERT OR IGNORE INTO chains VALUES (?, ?)", (head, secret))

    def secret_of(self, head: Digest) -> bytes | None:
        """Returns the secret seed of the hash chain with this head."""
        row = self._db.execute("SELECT secret FROM chains WHERE head = ?", (head,)).fetchone()
        return None if row is None else bytes(row[0])

    def keep_observation(self, seen: Observation) -> Observation:
        """Keeps the result of a duty's replay, unless one is kept already: a commitment to that one may be in
        flight."""
        leaf, code = seen.leaf, seen.leaf.code
        row = (
            seen.audit, seen.i, seen.beacon, seen.salt, b"".join(seen.roots), seen.u, leaf.digest, code.header,
            code.ops_root + code.consts_root, b"".join(leaf.leaf_proof), b"".join(leaf.entry_proof),
        )  # fmt: skip
        self._db.execute(f"INSERT OR IGNORE INTO observations VALUES ({', '.join('?' * len(row))})", row)
        kept = self.observation(seen.audit, seen.i, seen.beacon)
        assert kept is not None, "it was just written"
        return kept

    def observation(self, audit: AuditId, i: int, beacon: Digest) -> Observation | None:
        """Returns a duty's observation, if one is kept; a beacon that a reorganisation has changed is another duty."""
        row = self._db.execute(
            "SELECT salt, roots, u, leaf, header, code, leaf_proof, entry_proof FROM observations "
            "WHERE audit = ? AND i = ? AND beacon = ?",
            (audit, i, beacon),
        ).fetchone()
        if row is None:
            return None
        salt, roots, u, digest, header, code, leaf_proof, entry_proof = row
        leaf = StateLeaf(Digest(digest), Code(header, *_words(code)), _words(leaf_proof), _words(entry_proof))
        split = tuple(StateRoot(root) for root in _words(roots))
        return Observation(audit, i, beacon, Digest(salt), split, u, leaf)

    def close(self) -> None:
        """Close the journal and unlock the home."""
        self._db.close()
        self._unlock.close()


def _words(data: bytes) -> tuple[Digest, ...]:
    """Splits concatenated 32-byte hashes."""
    return tuple(Digest(data[at : at + HASH_BYTES]) for at in range(0, len(data), HASH_BYTES))
