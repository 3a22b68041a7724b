"""A job's rounds in one process: its Programs run slot by slot and merged, without chain, store or stakes.

    rehearsal = Rehearsal(job)
    state = rehearsal.first()
    for _ in range(job.rounds):
        state = rehearsal.next(state)            # state.checkpoint, state.carries: all that a later process needs

What comes out has the bits of the market's: states are built as docs/protocol.md section 3 says, and a payload passes
through its wire format.
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
    """A job between two rounds."""

    round: int
    """Rounds that are merged."""
    checkpoint: Checkpoint
    carries: tuple[Tensors | None, ...] = field(repr=False)
    """The tensors that each slot's owner carries; None: zeros."""
    sent: int = 0
    """Bytes that all slots have published as payloads, without carries."""


class Rehearsal:
    """One job, its Programs compiled."""

    def __init__(self, job: TrainingJob, *, seed: int = 0, threads: int = 1, path: str = "auto") -> None:
        """`seed` determines the rounds' seeds."""
        if job.genesis is None:
            raise UsageError("a job without first weights cannot run", "make it with its weights")
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
        """The state after one more round, in which the slots of `absent` published nothing."""
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
        """The loss after the rounds that are merged, as `execution.losses` has it; None for a job that names none."""
        if self._loss is None:
            return None
        found = []
        for slot in range(self.job.slots):
            live = list(self.start(state, slot))
            out = self._loss.run(live, self._context(state.round, slot, STEP), self.job.dataset.rows)
            found += [float(tensor.reshape(-1)[0]) for tensor in out if tensor is not None]
        return math.fsum(found) / len(found)

    def slot(self, state: Rehearsed, slot: int) -> tuple[Tensors, Tensors]:
        """(payload, carry) of a slot's steps in the next round."""
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
        """(payload, carry) that `encode` puts out."""
        context = self._context(round_, slot, self.job.inner_steps + 1)
        out = list(self._encode.run(list(live), context, self.job.dataset.rows))
        return tensors_of(out[self.job.sections.payload]), tensors_of(out[self.job.sections.carried])

    def merged(self, base: Checkpoint, payloads: Sequence[Tensors | None], round_: int) -> Checkpoint:
        """Merges a round's payloads, in slot order, into the next checkpoint; None is a payload that was not
        accepted."""
        state = list(self.job.programs.merge_state(self.job.sections, base, payloads))
        out = list(self._merge.run(state, self._context(round_, MERGE_SLOT, 1)))
        return Checkpoint(tensors_of(out[self.job.sections.shared]), tensors_of(out[self.job.sections.outer]))

    def published(self, payload: Tensors) -> int:
        """Bytes of a payload as it is stored, manifest and blobs; of a carry the link alone."""
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
