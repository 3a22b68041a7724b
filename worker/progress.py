"""Work in progress on disk: a killed worker continues from its last complete step, with the same bits.

Files under `home/work/<claim>/`. `progress` is rewritten for every step (roots S_1..S_t and the tensors that step
changed) while the next one is computed; it is replaced atomically and believed only if this build wrote it and its
tensors hash to its last root. The state after the step that is to be checked is `unchecked` until the check has passed,
so that a killed worker comes to that step again. `material.json` is written once, before the claim is committed: what a
later process needs to defend it, beside what is public. A merge's lies under the name of its round's merge
(`parts.claim_of`), and under the id of each claim of it from when the chain has given that (`Defence.adopt`).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.base.files import write_atomically
from lockstep.base.log import Logger
from lockstep.execution.jobs import ClaimRun, Entries, State, trace_root
from lockstep.numerics.built import build_name
from lockstep.protocol import merkle
from lockstep.protocol.errors import Mismatch
from lockstep.protocol.programs.program import Alias, Program
from lockstep.protocol.types import Cid, ClaimId, Digest, JobId, Seed, StateRoot, TraceRoot
from lockstep.runtime.guard.memory import SigningRecord
from lockstep.runtime.refusals import Refusal, Refusals
from lockstep.storage.tensors import head_line, read_tensors, tensor_at, words_of

log = Logger(__name__)

PROGRESS, UNCHECKED, MATERIAL = "progress", "unchecked", "material.json"


@dataclass(frozen=True)
class Material:
    """A claim as this home computed it: its values, and where they are stored."""

    claim: ClaimId
    """The claim's id; for a merge that is not claimed yet, its local name (`parts.claim_of`)."""
    job: JobId
    round: int
    attempt: int
    """The attempt in the claim's id."""
    slot: int
    """MERGE_SLOT for a merge."""
    seed: Seed
    roots: tuple[StateRoot, ...]
    """S_1..S_T."""
    out: Digest
    out2: Digest
    trace_cid: Cid
    payload_cid: Cid
    """The CID of a slot's payload, or of a merge's checkpoint."""
    carries: bool = False
    """True if it starts from the carry of the claim in the round before, not from zero."""

    def __post_init__(self) -> None:
        # INVARIANT: the two outputs are the halves of the last state.
        if merkle.node(self.out, self.out2) != self.roots[-1]:
            raise Mismatch("a claim's outputs do not add up to its last state", hint="compute the claim again")

    @property
    def trace_root(self) -> TraceRoot:
        """The root of the trace, which the claim commits to."""
        return TraceRoot(trace_root(self.roots))

    @property
    def proof_t(self) -> tuple[Digest, ...]:
        """The Merkle proof of the trace's last leaf, node(out, out2): siblings upward."""
        tree = merkle.levels([merkle.leaf(r) for r in self.roots])
        return tuple(merkle.proof(tree, len(self.roots) - 1))

    def record(self, nonce: bytes) -> SigningRecord:
        """The signing record of the claim: its roots and CIDs, with the nonce."""
        return SigningRecord(self.trace_root, self.out, self.out2, nonce, self.trace_cid, self.payload_cid)

    def to_json(self) -> str:
        """Returns the material as one line of JSON, bytes in hex."""
        return json.dumps(asdict(self), default=lambda b: b.hex())

    @staticmethod
    def from_json(text: str) -> Material:
        """Parses the output of `to_json`."""
        f: dict[str, Any] = json.loads(text)
        return Material(
            ClaimId(bytes.fromhex(f["claim"])), JobId(bytes.fromhex(f["job"])), f["round"], f["attempt"], f["slot"],
            Seed(bytes.fromhex(f["seed"])), tuple(StateRoot(bytes.fromhex(r)) for r in f["roots"]),
            Digest(bytes.fromhex(f["out"])), Digest(bytes.fromhex(f["out2"])), Cid(f["trace_cid"]),
            Cid(f["payload_cid"]), f["carries"],
        )  # fmt: skip


class WorkFolder:
    """The files of one claim: the progress from which its work resumes, and the material that defends it."""

    def __init__(self, home: Path, claim: ClaimId) -> None:
        """Sets the folder of a claim; the first save creates it."""
        self.claim = claim
        self.path = home / "work" / claim.hex()

    def save_step(self, run: ClaimRun, state: State, roots: Sequence[StateRoot], due: int = 0) -> None:
        """Saves the tensors of S_t, t = len(roots); a kill before this returns costs that step and the one being
        computed.

        `due` is the step that the self-check verifies (0: none). S_due is saved apart until `believe` is called.
        """
        t = len(roots)
        changed = _changed(run.program(t))
        head = {
            "t": t, "seed": run.seed.hex(), "build": build_name(), "checked": due if t >= due else 0,
            "roots": [r.hex() for r in roots], "entries": changed,
        }  # fmt: skip
        # No fsync: this guards against a killed process, whose writes the system keeps. After a power cut the root
        # below tells, and the claim starts again from S_0.
        parts: list[bytes | memoryview] = [head_line(head), *(_words(state[k]) for k in changed)]
        write_atomically(self._folder() / (UNCHECKED if t == due else PROGRESS), parts, sync=False)

    def believe(self) -> None:
        """Accepts the state that waited for the self-check, which has passed, as progress."""
        os.replace(self.path / UNCHECKED, self.path / PROGRESS)

    def resume(self, run: ClaimRun, due: int = 0) -> tuple[State, list[StateRoot]]:
        """Returns (tensors of S_t, S_1..S_t) of the last whole step; (S_0's tensors, []) if no valid one is on disk.

        `due` is the step that the self-check verifies (0: none).
        """
        try:
            head, body = read_tensors(self.path / PROGRESS)
            t = int(head["t"])
            roots = [StateRoot(bytes.fromhex(r)) for r in head["roots"]]
            if len(roots) != t or not 1 <= t <= run.transitions or head["seed"] != run.seed.hex():
                return run.start, []
            # INVARIANT: no work continues from a state of another build, or from one past a check that has not passed.
            if head["build"] != build_name() or (0 < due <= t and head["checked"] != due):
                return run.start, []
            state = _restored(run, t, head["entries"], body)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return run.start, []
        # INVARIANT: work continues only from a state that hashes to its root.
        return (state, roots) if run.root(t, state) == roots[-1] else (run.start, [])

    def save_material(self, material: Material) -> None:
        """Saves what defends the claim; it is durable when this returns."""
        write_atomically(self._folder() / MATERIAL, [material.to_json().encode()])

    def material(self) -> Material | None:
        """Returns the material that `save_material` kept; None if it is missing or damaged."""
        try:
            return Material.from_json((self.path / MATERIAL).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            # One damaged file must not end what defends the other claims.
            log.error(
                "the material of a claim is damaged: restore it from a backup", path=str(self.path), why=repr(error)
            )
            return None

    def drop_progress(self) -> None:
        """Removes the saved tensors, which the claim's material suffices to compute again."""
        for name in (PROGRESS, UNCHECKED):
            (self.path / name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Removes all files of the claim, once nobody can challenge it any more."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _folder(self) -> Path:
        self.path.mkdir(parents=True, exist_ok=True)
        return self.path


def clear(home: Path, refusal: Refusal) -> None:
    """Allows a refused job again; the claim that failed is computed from its start."""
    if refusal.claim is not None:
        # INVARIANT: no work continues from states that a faulty executor left.
        WorkFolder(home, refusal.claim).drop_progress()
    Refusals(home).forget(refusal.job)


def materials(home: Path) -> list[Material]:
    """Returns every claim whose material lies under `home`."""
    claims = (ClaimId(bytes.fromhex(p.parent.name)) for p in home.glob(f"work/*/{MATERIAL}"))
    found = (WorkFolder(home, claim).material() for claim in claims)
    return [m for m in found if m is not None]


def _changed(program: Program) -> list[int]:
    """Returns the entries of the state to save: those that are not passed on from the same entry of the input state."""
    return [
        k
        for k, (alias, header) in enumerate(zip(program.outputs, program.output_layout, strict=True))
        if header is not None and alias != Alias(Alias.STATE_KIND, k)
    ]


def _restored(run: ClaimRun, t: int, entries: Sequence[int], body: memoryview) -> State:
    """Rebuilds S_t's tensors from the saved ones, taking S_0's for each entry that is passed on."""
    layout = run.program(t).output_layout
    state: Entries = [None if header is None else run.start[k] for k, header in enumerate(layout)]
    at = 0
    for k in entries:
        header = layout[k]
        if header is None:
            raise ValueError(f"entry {k} is EMPTY")
        state[k], at = tensor_at(body, at, header)
    if at != len(body):
        raise ValueError(f"{len(body)} bytes where {at} are due")
    return state


def _words(tensor: np.ndarray | None) -> memoryview:
    assert tensor is not None, "changed entries hold tensors"
    return words_of(tensor)
