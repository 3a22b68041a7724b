"""The effect of carried moments: the demo's job with `carry` on and off, the same weights, rows, rounds and merges.

    python benchmarks/carry.py             a table
    python benchmarks/carry.py --json      one line of JSON on stdout

Both sides run their own three Programs natively, slot by slot, and merge every round; a seed gives both the same first
weights and draws. The loss is the merged model's on held-out text by eager PyTorch, nats per token, at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.numerics import paths
from lockstep.numerics.arrays import Array, StepContext
from lockstep.protocol.types import MERGE_SLOT
from lockstep.storage.payload import F32_FORMAT, INT8_FORMAT, wire_length
from lockstep.training.data import Corpus, demo_corpus
from lockstep.training.demo import BATCH, MODEL, SPEC, DemoJob
from lockstep.training.job import build_programs
from lockstep.training.models import GPT, next_token_loss
from lockstep.training.strategies import diloco

SLOTS, ROUNDS, SEEDS = 3, 6, 3


class CarriedRounds:
    """A job's rounds in one process, one of the two ways."""

    def __init__(self, spec: diloco.DiLoCo, rounds: int, slots: int) -> None:
        """Traces and compiles the Programs."""
        programs = build_programs(GPT(MODEL), next_token_loss, spec, batch=BATCH, rounds=rounds, slots=slots)
        self._step, self._encode, self._merge = map(paths.compile, (programs.step, programs.encode, programs.merge))
        self.spec, self.rounds, self.slots = spec, rounds, slots
        self._sections, layout = programs.sections, programs.encode.output_layout
        self.payload_bytes = wire_length(layout[self._sections.payload], INT8_FORMAT, spec.carry)
        self.carry_bytes = wire_length(layout[self._sections.carried], F32_FORMAT) if spec.carry else 0

    def train(self, start: NDArray[np.float32], rows: NDArray[np.int32], seed: int) -> Iterator[NDArray[np.float32]]:
        """The merged parameters after each round."""
        zero, age = np.zeros_like(start), np.array(0, np.int32)
        moments: list[list[Array | None]] = [[zero, zero, age] if self.spec.carry else [zero, zero]] * self.slots
        base: Array = start
        momentum: Array = zero
        for r in range(self.rounds):
            words = bytes([seed, r]) * 16
            outs = [self._slot(base, moments[slot], rows, words, r, slot) for slot in range(self.slots)]
            if self.spec.carry:
                moments = [out[self._sections.carried] for out in outs]
            base, momentum = self._merged(base, momentum, [out[0] for out in outs], words, r)
            yield np.asarray(base)

    def _slot(
        self, base: Array, carry: list[Array | None], rows: Array, words: bytes, r: int, slot: int
    ) -> list[Array | None]:
        clock = np.array(r * self.spec.inner_steps, np.int32)
        state = self._sections.slot_state([base], [base], carry, clock)
        for t in range(1, self.spec.inner_steps + 1):
            state = list(self._step.run(state, StepContext(words, r, slot, t), rows))
        return list(self._encode.run(state, StepContext(words, r, slot, self.spec.inner_steps + 1), rows))

    def _merged(
        self, base: Array, momentum: Array, payloads: list[Array | None], words: bytes, r: int
    ) -> tuple[Array, Array]:
        mask = np.ones(self.slots, np.float32)
        state = self._sections.merge_state([base], [momentum], [[payload] for payload in payloads], mask)
        out = list(self._merge.run(state, StepContext(words, r, MERGE_SLOT, 1)))
        after, moved = out[self._sections.shared.start], out[self._sections.outer.start]
        assert after is not None, "a merge puts out parameters"
        assert moved is not None, "and their momentum"
        return after, moved


def results(rounds: int, slots: int, seeds: int, corpus: Corpus) -> dict[str, Any]:
    """Losses of both sides, seed by seed, in turn."""
    carrying = replace(SPEC, carry=True)
    sides = {"on": CarriedRounds(carrying, rounds, slots), "off": CarriedRounds(SPEC, rounds, slots)}
    losses: dict[str, list[float]] = {"on": [], "off": []}
    for seed in range(seeds):
        job = DemoJob(seed, slots, rounds, SPEC, corpus)
        for name, side in sides.items():
            *_, merged = side.train(job.start, corpus.train.rows, seed)
            losses[name].append(job.evaluate(merged))
    on, off = median(losses["on"]), median(losses["off"])
    return {
        "job": f"demo, {slots} slots, {rounds} rounds of {SPEC.inner_steps} steps",
        "seeds": seeds,
        "on": [round(loss, 5) for loss in losses["on"]],
        "off": [round(loss, 5) for loss in losses["off"]],
        "median_on": round(on, 5),
        "median_off": round(off, 5),
        "payload_bytes_on": sides["on"].payload_bytes,
        "carry_bytes_on": sides["on"].carry_bytes,
        "payload_bytes_off": sides["off"].payload_bytes,
        "ratio": round(on / off, 5),
    }


def main() -> int:
    """Trains them; prints a table, or one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = results(arguments.rounds, arguments.slots, arguments.seeds, demo_corpus(BATCH.row_length))
    if arguments.json:
        print(json.dumps({"data": {"results": [found]}}))
        return 0
    for name, value in found.items():
        print(f"{name:<20}{value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
