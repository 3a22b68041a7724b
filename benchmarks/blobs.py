"""Payloads of a model of 10 M parameters as they are stored, and what making and reading them takes.

    python benchmarks/blobs.py                      strategies with a codec, a table
    python benchmarks/blobs.py --only sparseloco    one of them
    python benchmarks/blobs.py --json               one line of JSON on stdout

A slot takes `--steps` inner steps from the first weights on the demo's text, 8 rows of 256 tokens each; its payload is
encoded, packed into its wire format and read back, and must have the same bits; `sparseloco_e` packs the very tensors
of `sparseloco`. Bits are those of the whole payload, its manifest included, for
each parameter. `share` is the time of encode, pack and read as a part of 30 inner steps: medians of calls in turn, one
thread, so that a busy machine slows both sides.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from measure import in_turn, milliseconds
from strategies import INNER

from lockstep.execution.jobs import State, TrainingJob
from lockstep.protocol.errors import UsageError
from lockstep.storage.payload import decoded, encoded, format_of
from lockstep.training.data import Corpus, demo_corpus
from lockstep.training.job import Batch, training_job
from lockstep.training.models import GPT, GPTConfig
from lockstep.training.optimizers import AdamW
from lockstep.training.rehearsal import Rehearsal
from lockstep.training.strategies.registry import STRATEGIES

MODEL = GPTConfig(vocabulary=4096, context=256, layers=6, heads=6, width=384)
"""The GPT of `benchmarks/step.py`, with its batch."""
ROWS = 8
ROUND = 30
"""Inner steps that a payload is held against."""
STEPS = 30
TURNS = 5
NAMES = ("sparseloco", "sparseloco_e", "muloco", "intellect1", "opendiloco")


def job_of(name: str, corpus: Corpus) -> TrainingJob:
    """One round of a strategy, AdamW as `benchmarks.strategies` has it."""
    made: Any = STRATEGIES[name]()
    changes = {"inner": INNER} if isinstance(made.inner, AdamW) else {}
    batch = Batch(ROWS, MODEL.row_length)
    return training_job(
        GPT(MODEL), replace(made, inner_steps=ROUND, **changes), corpus.train, batch=batch, rounds=1, slots=2,
        min_slots=1,
    )  # fmt: skip


class Slot:
    """A slot at the end of its steps; `wire` is the format in which its payload travels."""

    def __init__(self, job: TrainingJob, steps: int) -> None:
        self.rehearsal, self.wire = Rehearsal(job), job.wire_format
        state = self.rehearsal.first()
        self.live: State = self.rehearsal.start(state, 0)
        for t in range(1, steps + 1):
            self.live = self.rehearsal.after(self.live, 0, 0, t)
        self.headers = [h for h in job.programs.encode.output_layout[job.sections.payload] if h is not None]

    def step(self) -> None:
        """One inner step more, whose result is dropped."""
        self.rehearsal.after(self.live, 0, 0, ROUND)

    def encode(self) -> None:
        """The payload's tensors."""
        self.payload, _ = self.rehearsal.output(self.live, 0, 0)

    def pack(self) -> None:
        """Their bytes."""
        self.form = format_of(self.payload, self.wire)
        self.blobs = [bytes(part) for part in encoded(self.payload, self.form)]

    def read(self) -> None:
        """The tensors of these bytes."""
        self.back = [decoded(memoryview(b), h, self.form) for b, h in zip(self.blobs, self.headers, strict=True)]


def row_of(name: str, slot: Slot, job: TrainingJob, turns: int) -> dict[str, Any]:
    """A row of the table."""
    slot.wire = job.wire_format
    times = [milliseconds(found) for found in in_turn(turns, slot.step, slot.encode, slot.pack, slot.read)]
    parameters = sum(math.prod(p["shape"]) for p in job.parameters)
    return {
        "strategy": name,
        "parameters": parameters,
        "bits_up": round(8 * Rehearsal(job).published(slot.payload) / parameters, 4),
        "bit_identical": [x.tobytes() for x in slot.back] == [x.tobytes() for x in slot.payload],
        "format": slot.form,
        "step_ms": round(times[0], 1),
        "encode_ms": round(times[1], 1),
        "pack_ms": round(times[2], 1),
        "read_ms": round(times[3], 1),
        "share": round(sum(times[1:]) / (ROUND * times[0]), 4),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures; prints a table, or one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    parser.add_argument("--only", nargs="*", default=list(NAMES), help="names of strategies")
    parser.add_argument("--steps", type=int, default=STEPS, help="inner steps before the payload")
    parser.add_argument("--turns", type=int, default=TURNS)
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.only) - set(NAMES))
    if unknown:
        raise UsageError(f"no codec of {unknown[0]!r} is measured", f"one of {', '.join(NAMES)}")
    torch.set_num_threads(1)
    corpus = demo_corpus(MODEL.row_length)
    rows = []
    slots: dict[tuple[bytes, bytes], Slot] = {}
    for name in given.only:
        job = job_of(name, corpus)
        # Strategies that differ in their wire format alone have one payload.
        programs = job.programs.step.root, job.programs.encode.root
        if programs not in slots:
            slots[programs] = Slot(job, given.steps)
        row = row_of(name, slots[programs], job, given.turns)
        rows.append(row)
        if not given.json:
            print(
                f"{name:<14}{row['parameters']:>12,}{row['bits_up']:>9.4f} bits, read alike: {row['bit_identical']}; "
                f"encode {row['encode_ms']:.0f} ms, pack {row['pack_ms']:.0f} ms, read {row['read_ms']:.0f} ms: "
                f"{100 * row['share']:.2f} % of {ROUND} steps of {row['step_ms']:.0f} ms",
                flush=True,
            )
    if given.json:
        print(json.dumps({"data": {"results": rows}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
