"""Runs a job's rounds in one process: its Programs, slot by slot, and the merges, without chain, store or stakes.

    rehearsal = Rehearsal(job)
    state = rehearsal.first()
    for _ in range(job.rounds):
        state = rehearsal.next(state)            # state.checkpoint, state.carries: all that a later process needs

The results have the same bits as on the market: states are built as in docs/protocol.md section 3, and payloads pass
through their wire format.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from lockstep.execution.jobs import State, Tensors, TrainingJob, tensors_of
from lockstep.execution.losses import STEP
from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.protocol.errors import UsageError
from lockstep.protocol.types import MERGE_SLOT, Cid
from lockstep.storage.payload import Checkpoint, decoded, encode_payload, encoded, format_of
from lockstep.storage.unixfs import cid_of


@dataclass(frozen=True)
class Rehearsed:
    """The state of a job between two rounds."""

    round: int
    """Number of merged rounds."""
    checkpoint: Checkpoint
    carries: tuple[Tensors | None, ...] = field(repr=False)
    """The carried tensors of each slot's owner; None: zeros."""
    sent: int = 0
    """Bytes of all published payloads, without carries."""


class Rehearsal:
    """Runs one job, whose Programs are compiled."""

    def __init__(self, job: TrainingJob, *, seed: int = 0, threads: int = 1, path: str = "auto") -> None:
        """`seed` determines the rounds' seeds."""
        if job.genesis is None:
            raise UsageError("a job without initial weights cannot run", "make it with its weights")
        self.job, self.genesis, self._seed = job, job.genesis, seed
        self._step, self._encode, self._merge = (
            compile(program, threads=threads, path=path)
            for program in (job.programs.step, job.programs.encode, job.programs.merge)
        )
        self._loss = None if job.loss is None else compile(job.loss, threads=threads, path=path)

    def first(self) -> Rehearsed:
        """The state before the first round."""
        return Rehearsed(0, self.genesis, (None,) * self.job.slots)

    def next(self, state: Rehearsed, absent: Collection[int] = ()) -> Rehearsed:
        """Returns the state after one more round, in which the slots of `absent` publish nothing."""
        payloads: list[Tensors | None] = []
        carries: list[Tensors | None] = []
        sent = state.sent
        for slot in range(self.job.slots):
            if slot in absent:
                payloads.append(None)
                carries.append(None)
                continue
            payload, carry = self.slot(state, slot)
            sent += self.published(payload)
            payloads.append(self.through_wire(payload))
            carries.append(carry if self.job.carry else None)
        return Rehearsed(state.round + 1, self.merged(state.checkpoint, payloads, state.round), tuple(carries), sent)

    def loss(self, state: Rehearsed) -> float | None:
        """Returns the loss after the merged rounds, as in `execution.losses`; None for a job that names no loss."""
        if self._loss is None:
            return None
        found = []
        for slot in range(self.job.slots):
            live = list(self.start(state, slot))
            out = self._loss.run(live, self._context(state.round, slot, STEP), self.job.dataset.rows)
            found += [float(tensor.reshape(-1)[0]) for tensor in out if tensor is not None]
        return math.fsum(found) / len(found)

    def slot(self, state: Rehearsed, slot: int) -> tuple[Tensors, Tensors]:
        """Returns (payload, carry) of a slot's steps in the next round."""
        live = self.start(state, slot)
        for t in range(1, self.job.inner_steps + 1):
            live = self.after(live, state.round, slot, t)
        return self.output(live, state.round, slot)

    def start(self, state: Rehearsed, slot: int) -> State:
        """S_0 of a slot in the next round."""
        steps_done, carried = state.round * self.job.inner_steps, state.carries[slot]
        return self.job.programs.slot_state(self.job.sections, state.checkpoint, steps_done, carried)

    def after(self, live: State, round_: int, slot: int, t: int) -> State:
        """S_t of S_{t-1}, for a step t of 1 .. H."""
        return list(self._step.run(list(live), self._context(round_, slot, t), self.job.dataset.rows))

    def output(self, live: State, round_: int, slot: int) -> tuple[Tensors, Tensors]:
        """Returns the (payload, carry) that `encode` outputs."""
        context = self._context(round_, slot, self.job.inner_steps + 1)
        out = list(self._encode.run(list(live), context, self.job.dataset.rows))
        return tensors_of(out[self.job.sections.payload]), tensors_of(out[self.job.sections.carried])

    def merged(self, base: Checkpoint, payloads: Sequence[Tensors | None], round_: int) -> Checkpoint:
        """Merges a round's payloads, in slot order, into the next checkpoint; None stands for a payload that was not
        accepted."""
        state = list(self.job.programs.merge_state(self.job.sections, base, payloads))
        out = list(self._merge.run(state, self._context(round_, MERGE_SLOT, 1)))
        return Checkpoint(tensors_of(out[self.job.sections.shared]), tensors_of(out[self.job.sections.outer]))

    def published(self, payload: Tensors) -> int:
        """Returns the bytes of a stored payload, manifest and blobs; of a carry only the link."""
        blobs: list[int] = []

        def named(blob: memoryview) -> Cid:
            blobs.append(len(blob))
            return cid_of(blob)

        beside = cid_of(b"") if self.job.carry else None
        return len(encode_payload(payload, self.job.wire_format, beside, named)) + sum(blobs)

    def through_wire(self, payload: Tensors) -> Tensors:
        """Encodes and decodes a payload in its wire format, which keeps its bits."""
        form = format_of(payload, self.job.wire_format)
        headers = [h for h in self.job.programs.encode.output_layout[self.job.sections.payload] if h is not None]
        return tuple(decoded(data, h, form) for data, h in zip(encoded(payload, form), headers, strict=True))

    def _context(self, round_: int, slot: int, t: int) -> StepContext:
        seed = sha256(self._seed.to_bytes(8, "little") + round_.to_bytes(4, "little")).digest()
        return StepContext(seed, round_, slot, t)
