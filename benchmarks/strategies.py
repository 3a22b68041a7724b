"""Strategies in one process: loss on held-out text against the bits that a worker sends, fetches, and is audited by.

    python benchmarks/strategies.py                      every strategy at 0.1 M parameters, a table
    python benchmarks/strategies.py --tune               the outer step of each is tuned first, with a seed of its own
    python benchmarks/strategies.py --seeds 5            paired seeds, and intervals of what sets each apart
    python benchmarks/strategies.py --orderings          more workers, no residual, absent slots, other means
    python benchmarks/strategies.py --only sparseloco    one of them
    python benchmarks/strategies.py --out results        where rows and half-finished runs are kept
    python benchmarks/strategies.py --picture FILE.svg   the table's losses, or the orderings', as a chart
    python benchmarks/strategies.py --json               one line of JSON on stdout

A job's own Programs run slot by slot and merge every round (`lockstep.training.rehearsal`); every strategy has the same
first weights, rows, batches and steps a worker. Within a round all have the same AdamW, but MuLoCo its Muon. A run that
is ended goes on from its last merged round, with the same bits, and a finished row is not computed again.

Bits are those of a parameter and a round, manifests included: `bits_up` of a payload; `bits_down` of the checkpoint
that a worker fetches before a round; `bits_audit` of what a witness fetches to replay a claim, beside that checkpoint:
the payload, and the carry that the claim starts from.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

# Run from a checkout: tests import this module by its full name.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from benchmarks.charts import Chart, Line
from lockstep.execution.jobs import TrainingJob
from lockstep.protocol.errors import UsageError
from lockstep.storage.payload import F32_FORMAT, Checkpoint, encode_checkpoint, wire_length
from lockstep.storage.unixfs import cid_of
from lockstep.training.aggregates.mean import SLOTS, Average
from lockstep.training.baseline import evaluate, load_parameters
from lockstep.training.data import Corpus, demo_corpus
from lockstep.training.job import Batch, training_job
from lockstep.training.models import GPT, GPTConfig, next_token_loss
from lockstep.training.optimizers import SGD, AdamW
from lockstep.training.rehearsal import Rehearsal, Rehearsed
from lockstep.training.strategies import diloco
from lockstep.training.strategies.base import Strategy
from lockstep.training.strategies.loop import Parts
from lockstep.training.strategies.registry import STRATEGIES
from lockstep.training.strategies.sparseloco import SparseLoCo

SIZES = {
    "0.1M": GPTConfig(vocabulary=256, context=64, layers=2, heads=4, width=48),
    "1M": GPTConfig(vocabulary=256, context=128, layers=4, heads=4, width=128),
}
CARRIES = "diloco, moments kept"
BOLD = ("fedavg", "diloco", CARRIES, "sparseloco", "sparseloco_e", "muloco", "intellect1")
"""Those that are tried at 1 M, too."""
PEERS = ("fedavg", "diloco", CARRIES)
"""Those that all others are held against."""
STEPS, LOCAL_STEPS, WORKERS, ROWS = 120, 10, 2, 8
HELD_OUT_ROWS = 256
INNER = AdamW(learning_rate=3e-3, warmup=10)
TUNING_SEED = 1000
"""The seed with which outer steps are tuned; their losses are those of other held-out rows than a table's."""
KEPT_SECONDS = 20.0
"""A half-finished run is written to its file once in so many seconds."""
SAME_STATES = {"sparseloco_e": "sparseloco"}
"""Strategies whose states are another's, bit for bit: so is their outer step."""
COARSE = (-3, -1, 1)
"""Powers of two that every outer step is tried with; then those beside the best of them."""
FARTHEST = 8
"""No factor beyond this power of two, or its inverse, is tried."""
ORDERED = (CARRIES, "sparseloco")
"""Those whose workers, slots and means are varied."""
WHOLE, HALF_ABSENT = "", "half absent"
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t, two sides, 95 %, of 1 to 9 degrees of freedom."""


@dataclass(frozen=True)
class NoResidual(SparseLoCo):
    """SparseLoCo that drops what a payload leaves out."""

    def parts(self) -> Parts:
        """Without a decay."""
        return super().parts()._replace(decay=None)


VARIANTS: dict[str, Callable[[], Strategy]] = {
    CARRIES: lambda: diloco.DiLoCo(carry=True),
    "sparseloco no residual": NoResidual,
    "sparseloco over all slots": lambda: SparseLoCo(aggregate=Average(over=SLOTS, clip=True)),
}
"""Rows that are no strategy's default: the first as Douillard (2023) has it, the others of the orderings alone."""


@dataclass(frozen=True)
class Setting:
    """The parameters of a row."""

    size: str = "0.1M"
    steps: int = STEPS
    """Steps of one worker."""
    local_steps: int = LOCAL_STEPS
    """H of the strategies that choose it."""
    workers: int = WORKERS
    seed: int = 0
    factor: float = 1.0
    """The outer step, in its strategy's own."""
    slots: str = WHOLE
    """HALF_ABSENT: of every round another half of the slots is missing."""


def strategy_for(name: str, setting: Setting) -> Strategy:
    """The strategy with the table's AdamW inside where it has an AdamW or an SGD, H of the setting where it has more
    than one step, and the outer step of the setting."""
    made: Any = (STRATEGIES | VARIANTS)[name]()
    changes: dict[str, Any] = {}
    if made.inner_steps > 1:
        changes["inner_steps"] = setting.local_steps
        if isinstance(getattr(made, "inner", None), (AdamW, SGD)):
            changes["inner"] = INNER
    elif isinstance(getattr(made, "inner", None), AdamW):
        changes["inner"] = INNER
    if isinstance(getattr(made, "outer", None), AdamW):
        changes["outer"] = INNER
    made = replace(made, **changes)
    changes = {}
    for field in ("outer_learning_rate", "learning_rate"):
        if hasattr(made, field):
            changes[field] = getattr(made, field) * setting.factor
    outer = getattr(made, "outer", None)
    if outer is not None:
        changes["outer"] = replace(outer, learning_rate=outer.learning_rate * setting.factor)
    return replace(made, **changes)  # type: ignore[no-any-return]


def tunable(name: str) -> bool:
    """True if a strategy has an outer step."""
    made = (STRATEGIES | VARIANTS)[name]()
    return any(getattr(made, field, None) is not None for field in ("outer_learning_rate", "learning_rate", "outer"))


def job_for(name: str, setting: Setting, corpus: Corpus) -> TrainingJob:
    """The job of a row."""
    strategy, config = strategy_for(name, setting), SIZES[setting.size]
    return training_job(
        GPT(config), strategy, corpus.train, batch=Batch(ROWS, config.row_length),
        rounds=setting.steps // strategy.inner_steps, slots=setting.workers, min_slots=1, seed=setting.seed,
    )  # fmt: skip


def row_of(name: str, setting: Setting, corpus: Corpus, folder: Path, pause: Callable[[int], None]) -> dict[str, Any]:
    """A row of the table: from its file, or computed from the last round that was kept."""
    stem = "-".join([name, *(str(v) for v in asdict(setting).values())]).replace(" ", "_")
    done, kept = folder / f"{stem}.json", folder / f"{stem}.npz"
    if done.exists():
        found: dict[str, Any] = json.loads(done.read_text())
        return found
    job = job_for(name, setting, corpus)
    rehearsal = Rehearsal(job, seed=setting.seed)
    state = _read(kept) if kept.exists() else rehearsal.first()
    written = time.monotonic()
    while state.round < job.rounds:
        state = rehearsal.next(state, absent_of(setting, state.round))
        if time.monotonic() - written >= KEPT_SECONDS:
            _write(kept, state)
            written = time.monotonic()
        pause(state.round)
    row = {
        "strategy": name,
        "setting": asdict(setting),
        "seed": setting.seed,
        "rounds": job.rounds,
        **bits_of(job, state, sum(setting.workers - len(absent_of(setting, r)) for r in range(job.rounds))),
        "bytes_sent": state.sent // setting.workers,
        **losses_of(setting.size, state.checkpoint, corpus),
    }
    _replaced(done, json.dumps(row).encode())
    kept.unlink(missing_ok=True)
    return row


def absent_of(setting: Setting, round_: int) -> frozenset[int]:
    """The slots that publish nothing in a round."""
    if setting.slots == WHOLE:
        return frozenset()
    return frozenset(Random(f"{setting.seed}/{round_}").sample(range(setting.workers), setting.workers // 2))


def bits_of(job: TrainingJob, state: Rehearsed, payloads: int) -> dict[str, Any]:
    """The bits of a parameter and a round: of a payload (the mean of as many), a checkpoint, an audit."""
    parameters = sum(math.prod(p["shape"]) for p in job.parameters)
    lengths: list[int] = []

    def named(blob: memoryview) -> Any:
        lengths.append(len(blob))
        return cid_of(blob)

    manifest = len(encode_checkpoint(state.checkpoint, named))
    layout = job.programs.encode.output_layout[job.sections.carried]
    carry = wire_length(layout, F32_FORMAT) if job.carry else 0
    up, unit = state.sent / payloads, 8 / parameters
    return {
        "parameters": parameters,
        "bits_up": round(unit * up, 4),
        "bits_down": round(unit * (manifest + sum(lengths)), 4),
        "bits_audit": round(unit * (up + carry), 4),
    }


def losses_of(size: str, checkpoint: Checkpoint, corpus: Corpus) -> dict[str, float]:
    """The loss on held-out text in nats per byte, and that by which outer steps are chosen, on other rows."""
    model = load_parameters(GPT(SIZES[size]), np.concatenate(checkpoint.shared))
    rows = corpus.held_out.rows
    loss = evaluate(model, next_token_loss, rows[:HELD_OUT_ROWS])
    tuning = evaluate(model, next_token_loss, rows[HELD_OUT_ROWS:]) if len(rows) > HELD_OUT_ROWS else loss
    return {"loss": round(loss, 5), "tuning_loss": round(tuning, 5)}


# -- the outer step ----------------------------------------------------------------------------------------------------


def tuned(name: str, setting: Setting, run: Callable[[str, Setting], dict[str, Any]]) -> float:
    """The factor of the outer step, a power of two, whose loss with TUNING_SEED is the least: on a coarse grid, beside
    its best, and on from there while the least is the last that was tried. A walk from 1 can stop at a worse minimum.
    """
    name = SAME_STATES.get(name, name)
    if not tunable(name):
        return 1.0

    def loss(power: int) -> float:
        found: float = run(name, replace(setting, seed=TUNING_SEED, factor=2.0**power))["tuning_loss"]
        return found if math.isfinite(found) else math.inf

    best = min(COARSE, key=loss)
    tried = [*COARSE, best - 1, best + 1]
    best = min(tried, key=loss)
    while best in (min(tried), max(tried)) and abs(best) < FARTHEST:
        tried.append(best - 1 if best == min(tried) else best + 1)
        best = min(tried, key=loss)
    return float(2.0**best)


# -- what sets rows apart ----------------------------------------------------------------------------------------------


def apart(rows: Sequence[dict[str, Any]], peer: Sequence[dict[str, Any]]) -> tuple[float, float] | None:
    """(mean, half of the 95 % interval) of the losses' difference in per cent of the peer's, seed by seed; None for
    fewer than two seeds in common."""
    theirs = {row["seed"]: row["loss"] for row in peer}
    found = [100 * (row["loss"] / theirs[row["seed"]] - 1) for row in rows if row["seed"] in theirs]
    if len(found) < 2:
        return None
    return fmean(found), T_95[len(found) - 2] * stdev(found) / math.sqrt(len(found))


def orderings(setting: Setting, factors: dict[str, float]) -> Iterator[tuple[str, Setting]]:
    """The rows of the published orderings, with the outer steps that were tuned."""
    for name in ORDERED:
        of = replace(setting, factor=factors[name])
        for workers in (1, 2, 4, 8):
            yield name, replace(of, workers=workers)
        yield name, replace(of, workers=4, slots=HALF_ABSENT)
    of = replace(setting, factor=factors["sparseloco"], workers=4)
    yield "sparseloco no residual", of
    yield "sparseloco over all slots", of
    yield "sparseloco over all slots", replace(of, slots=HALF_ABSENT)


# -- pictures ----------------------------------------------------------------------------------------------------------


def picture(rows: Sequence[dict[str, Any]]) -> Chart:
    """The mean loss of each strategy against the bits that a worker sends in the whole run."""
    sent: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        sent.setdefault(row["strategy"], []).append((row["bits_up"] * row["rounds"], row["loss"]))
    means = {name: (fmean(x for x, _ in found), fmean(y for _, y in found)) for name, found in sent.items()}
    by_loss = sorted(means.items(), key=lambda item: item[1][1])
    lines = [Line(name, [point], dots=True) for name, point in by_loss]
    setting = rows[0]["setting"]
    title = f"{rows[0]['parameters'] / 1e6:.1f} M parameters, {setting['workers']} workers of {setting['steps']} steps"
    return Chart(
        title, "bits per parameter that a worker sends", "loss, nats per byte", lines, log_x=True, from_zero=False
    )


def picture_of_orderings(rows: Sequence[dict[str, Any]]) -> Chart:
    """The mean loss against the number of workers; rows of one number of workers are dots."""
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        setting = row["setting"]
        name = f"{row['strategy']}, {setting['slots']}" if setting["slots"] else row["strategy"]
        found.setdefault(name, {}).setdefault(setting["workers"], []).append(row["loss"])
    lines = [
        Line(name, [(k, fmean(losses)) for k, losses in sorted(by_workers.items())], dots=len(by_workers) == 1)
        for name, by_workers in found.items()
    ]
    return Chart("Workers of as many steps each", "workers", "loss, nats per byte", lines, log_x=True, from_zero=False)


# -- a run that is ended -----------------------------------------------------------------------------------------------


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


# -- the table ---------------------------------------------------------------------------------------------------------


def _told(key: tuple[str, str, int], rows: Sequence[dict[str, Any]], peers: dict[str, list[dict[str, Any]]]) -> str:
    name, slots, workers = key
    row = rows[0]
    label = f"{name}, {slots}" if slots else name
    text = f"{label:<40}{workers:>3}{row['setting']['factor']:>9g}"
    text += "".join(f"{row[bits]:>10.4f}" for bits in ("bits_up", "bits_down", "bits_audit"))
    text += f"{fmean(r['loss'] for r in rows):>9.4f}{len(rows):>4}"
    for peer in PEERS:
        found = apart(rows, peers.get(peer, []))
        text += f"{'':>28}" if found is None or name == peer else f"{found[0]:>+20.2f} +-{found[1]:>5.2f}"
    return text


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each strategy, its seeds together."""
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows:
        setting = row["setting"]
        groups.setdefault((row["strategy"], setting["slots"], setting["workers"]), []).append(row)
    usual = rows[0]["setting"]["workers"]
    peers = {name: found for (name, slots, k), found in groups.items() if name in PEERS and not slots and k == usual}
    head = f"{'strategy':<40}{'K':>3}{'outer x':>9}{'up':>10}{'down':>10}{'audit':>10}{'loss':>9}{'n':>4}"
    head += "".join(f"{f'% of {peer}':>28}" for peer in PEERS)
    return "\n".join([head, *(_told(key, found, peers) for key, found in groups.items())])


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains what is not yet there; prints a table, or one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    parser.add_argument("--only", nargs="*", help="names of strategies; default: all, those of BOLD above 0.1M")
    parser.add_argument("--size", choices=list(SIZES), default="0.1M")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--local-steps", type=int, default=LOCAL_STEPS, help="H of strategies that choose it")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tune", action="store_true", help="tune the outer step of each first")
    parser.add_argument("--orderings", action="store_true", help="the published orderings in place of all strategies")
    parser.add_argument("--out", type=Path, default=Path("out/strategies"))
    parser.add_argument("--picture", type=Path, help="an SVG to write")
    given = parser.parse_args(arguments)
    names = given.only or ([*STRATEGIES, CARRIES] if given.size == "0.1M" else list(BOLD))
    known = STRATEGIES | VARIANTS
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise UsageError(f"no strategy is called {unknown[0]!r}", f"one of {', '.join(known)}")
    if not 1 <= given.seeds <= len(T_95) + 1:
        raise UsageError(f"{given.seeds} seeds", f"1 to {len(T_95) + 1}")
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    corpus = demo_corpus(SIZES[given.size].row_length)
    setting = Setting(given.size, given.steps, given.local_steps, given.workers)

    def run(name: str, of: Setting) -> dict[str, Any]:
        row = row_of(name, of, corpus, given.out, lambda r: None)
        print(f"{name}, {of.workers} workers, seed {of.seed}, outer x {of.factor:g}: {row['loss']}", file=sys.stderr)
        return row

    wanted = ORDERED if given.orderings else names
    factors = {name: tuned(name, setting, run) if given.tune else 1.0 for name in wanted}
    due = [(name, replace(setting, factor=factors[name])) for name in names if name in factors]
    if given.orderings:
        due = list(orderings(setting, factors))
    rows = [run(name, replace(of, seed=seed)) for seed in range(given.seeds) for name, of in due]
    if given.picture is not None:
        given.picture.write_text((picture_of_orderings if given.orderings else picture)(rows).svg())
    print(json.dumps({"data": {"results": rows}}) if given.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
