"""Strategies in one process: bits per byte of held-out text against the bytes that a worker has sent.

    python benchmarks/strategies.py                      every strategy at 0.1 M parameters, a table
    python benchmarks/strategies.py --only sparseloco    one of them
    python benchmarks/strategies.py --out results        where rows and half-finished runs are kept
    python benchmarks/strategies.py --json               one line of JSON on stdout

A job's own Programs run slot by slot and merge every round (`lockstep.training.rehearsal`); every strategy has the same
first weights, rows, batches and steps a worker. Bytes are those of a payload as it is stored; carries are not counted.
A run that is ended goes on from its last merged round, with the same bits, and a finished row is not computed again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lockstep.execution.jobs import TrainingJob
from lockstep.protocol.errors import UsageError
from lockstep.storage.payload import Checkpoint
from lockstep.training.baseline import evaluate, load_parameters
from lockstep.training.data import Corpus, demo_corpus
from lockstep.training.job import Batch, training_job
from lockstep.training.models import GPT, GPTConfig, next_token_loss
from lockstep.training.optimizers import AdamW
from lockstep.training.rehearsal import Rehearsal, Rehearsed
from lockstep.training.strategies.base import Strategy
from lockstep.training.strategies.registry import STRATEGIES

SIZES = {
    "0.1M": GPTConfig(vocabulary=256, context=64, layers=2, heads=4, width=48),
    "1M": GPTConfig(vocabulary=256, context=128, layers=4, heads=4, width=128),
}
STEPS, LOCAL_STEPS, WORKERS, ROWS = 120, 10, 2, 8
HELD_OUT_ROWS = 256
INNER = AdamW(learning_rate=3e-3, warmup=10)


@dataclass(frozen=True)
class Setting:
    """The parameters that all rows of a table share."""

    size: str = "0.1M"
    steps: int = STEPS
    """Steps of one worker."""
    local_steps: int = LOCAL_STEPS
    """H of the strategies that choose it."""
    workers: int = WORKERS
    seed: int = 0


def strategy_for(name: str, setting: Setting) -> Strategy:
    """The strategy with AdamW inside where it has an AdamW, and H of the setting where it has more than one step."""
    made: Any = STRATEGIES[name]()
    changes: dict[str, Any] = {}
    if made.inner_steps > 1:
        changes["inner_steps"] = setting.local_steps
    for field in ("inner", "outer"):
        if isinstance(getattr(made, field, None), AdamW):
            changes[field] = INNER
    return replace(made, **changes)  # type: ignore[no-any-return]


def job_for(name: str, setting: Setting, corpus: Corpus) -> TrainingJob:
    """The job of a row."""
    strategy, config = strategy_for(name, setting), SIZES[setting.size]
    return training_job(
        GPT(config), strategy, corpus.train, batch=Batch(ROWS, config.row_length),
        rounds=setting.steps // strategy.inner_steps, slots=setting.workers, min_slots=1, seed=setting.seed,
    )  # fmt: skip


def row_of(name: str, setting: Setting, corpus: Corpus, folder: Path, pause: Callable[[int], None]) -> dict[str, Any]:
    """A row of the table: from its file, or computed from the last round that was kept."""
    stem = "-".join([name, *(str(v) for v in asdict(setting).values())])
    done, kept = folder / f"{stem}.json", folder / f"{stem}.npz"
    if done.exists():
        found: dict[str, Any] = json.loads(done.read_text())
        return found
    job = job_for(name, setting, corpus)
    rehearsal = Rehearsal(job, seed=setting.seed)
    state = _read(kept) if kept.exists() else rehearsal.first()
    while state.round < job.rounds:
        state = rehearsal.next(state)
        _write(kept, state)
        pause(state.round)
    model = load_parameters(GPT(SIZES[setting.size]), np.concatenate(state.checkpoint.shared))
    loss = evaluate(model, next_token_loss, corpus.held_out.rows[:HELD_OUT_ROWS])
    parameters = sum(math.prod(p["shape"]) for p in job.parameters)
    row = {
        "strategy": name,
        "setting": asdict(setting),
        "rounds": job.rounds,
        "parameters": parameters,
        "bytes_sent": state.sent // setting.workers,
        "bits": round(8 * state.sent / (setting.workers * job.rounds * parameters), 4),
        "bits_per_byte": round(loss / math.log(2), 5),
    }
    _replaced(done, json.dumps(row).encode())
    kept.unlink()
    return row


def _write(path: Path, state: Rehearsed) -> None:
    parts: dict[str, Any] = {"round": np.array(state.round), "sent": np.array(state.sent)}
    groups: list[tuple[str, Sequence[Any]]] = [("shared", state.checkpoint.shared), ("outer", state.checkpoint.outer)]
    groups += [(f"carry{slot}", carry or ()) for slot, carry in enumerate(state.carries)]
    for key, tensors in groups:
        parts |= {f"{key}.{i}": x for i, x in enumerate(tensors)}
    parts["slots"] = np.array(len(state.carries))
    made = path.with_suffix(".new.npz")
    np.savez(made, **parts)
    os.replace(made, path)


def _read(path: Path) -> Rehearsed:
    with np.load(path) as found:

        def group(key: str) -> tuple[Any, ...]:
            count = sum(name.startswith(f"{key}.") for name in found.files)
            return tuple(found[f"{key}.{i}"] for i in range(count))

        carries = tuple(group(f"carry{slot}") or None for slot in range(int(found["slots"])))
        checkpoint = Checkpoint(group("shared"), group("outer"))
        return Rehearsed(int(found["round"]), checkpoint, carries, int(found["sent"]))


def _replaced(path: Path, data: bytes) -> None:
    made = path.with_suffix(".new")
    made.write_bytes(data)
    os.replace(made, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains what is not yet there; prints a table, or one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    parser.add_argument("--only", nargs="*", default=list(STRATEGIES), help="names of strategies")
    parser.add_argument("--size", choices=list(SIZES), default="0.1M")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/strategies"))
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.only) - set(STRATEGIES))
    if unknown:
        raise UsageError(f"no strategy is called {unknown[0]!r}", f"one of {', '.join(STRATEGIES)}")
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    corpus = demo_corpus(SIZES[given.size].row_length)
    rows = []
    for seed in range(given.seeds):
        setting = Setting(given.size, given.steps, LOCAL_STEPS, given.workers, seed)
        for name in given.only:
            rows.append(row_of(name, setting, corpus, given.out, lambda r: None))
            if not given.json:
                row = rows[-1]
                print(f"{name:<14}{row['bits']:>9.4f} bits{row['bytes_sent']:>13,} B{row['bits_per_byte']:>9.4f} bpb")
    if given.json:
        print(json.dumps({"data": {"results": rows}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
