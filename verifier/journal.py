"""A verifier's records on disk: claims found right, signed claims, a witness's secrets.

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
"""Different signed claims that are kept for one slot: two convict."""


@dataclass(frozen=True)
class Observation:
    """A witness's replay for a duty: its own S_1 .. S_t*, a leaf, and the salt that hides what is committed."""

    audit: AuditId
    i: int
    beacon: Digest
    salt: Digest
    roots: tuple[StateRoot, ...]
    """S_1 .. S_t*; empty if the claim that its carry comes from is wrong: the word is then "differs"."""

    u: int
    """The step whose state is committed to: t*, or the one before the last."""
    leaf: StateLeaf
    """A leaf of that state, with its way up to the root: the state itself is not kept."""

    @property
    def state(self) -> StateRoot:
        """S_u; without roots some word that is nobody's."""
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
        """Keep that a claim is right."""
        self._db.execute("INSERT OR IGNORE INTO matches VALUES (?, ?)", (claim, trace_root))

    # -- what workers signed

    def keep_signed(self, claim: ClaimId, work: bytes, digest: Digest, fields: str) -> None:
        """Keep a signed claim about a slot with its seed and base (`work`); a third one says nothing new."""
        self._db.execute(
            "INSERT OR IGNORE INTO signed SELECT ?, ?, ?, ? "
            "WHERE (SELECT count(*) FROM signed WHERE claim = ? AND work = ?) < ?",
            (claim, work, digest, fields, claim, work, KEPT_SIGNED),
        )

    def signed(self, claim: ClaimId, work: bytes) -> list[str]:
        """Every signed claim that is kept about a slot's work."""
        query = "SELECT fields FROM signed WHERE claim = ? AND work = ? ORDER BY digest"
        return [fields for (fields,) in self._db.execute(query, (claim, work))]

    def contradicted(self) -> list[tuple[ClaimId, bytes]]:
        """(claim, work) for which two different claims are signed."""
        query = "SELECT claim, work FROM signed GROUP BY claim, work HAVING count(*) >= ?"
        return [(ClaimId(claim), work) for claim, work in self._db.execute(query, (KEPT_SIGNED,))]

    # -- what a witness keeps to itself until it reveals

    def keep_chain(self, head: Digest, secret: bytes) -> None:
        """Keep the bottom of a hash chain."""
        self._db.execute("INSERT OR IGNORE INTO chains VALUES (?, ?)", (head, secret))

    def secret_of(self, head: Digest) -> bytes | None:
        """The bottom of the chain with this top."""
        row = self._db.execute("SELECT secret FROM chains WHERE head = ?", (head,)).fetchone()
        return None if row is None else bytes(row[0])

    def keep_observation(self, seen: Observation) -> Observation:
        """Keep what a duty's replay gave; the first one counts: a commitment to it may be on its way."""
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
    """Hashes that were written one behind the other."""
    return tuple(Digest(data[at : at + HASH_BYTES]) for at in range(0, len(data), HASH_BYTES))
