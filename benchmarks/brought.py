"""Ten training scripts brought to a market: the lines that change, the minutes to a running job, the loss at the end.

    python benchmarks/brought.py              a table of all scripts
    python benchmarks/brought.py gcn dpo      of these
    python benchmarks/brought.py --json       one line of JSON a script on stdout
    python benchmarks/brought.py --rehearse   the rounds on this machine, without a market

`benchmarks/scripts/NAME/` has `train.py` as its author wrote it, `net.py`, which is what the author made of it by
docs/tutorials/own-script.md, and `job.toml` with the loop's numbers. `train.py` trains in eager PyTorch and writes
`ckpt.pt`; `net.py:make` is a job on a local market of processes, and `train pull` brings its weights. Both weights, and
the first ones, have the loss of `net.py` over the same batches, in evaluation mode and from one seed of torch.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lockstep.training.baseline import Sample
from lockstep.training.brought import Brought, bring
from lockstep.training.data import speeches
from lockstep.training.export import load_model

SCRIPTS = Path(__file__).parent / "scripts"
TEXT = 40_000
"""Bytes of `input.txt`, for the scripts that read a text."""
BATCHES = 32
"""Batches over which the losses are taken."""
BUDGET = 1_000
WORKERS = 2


@dataclass(frozen=True)
class BroughtScript:
    """One script's lines, seconds and losses."""

    script: str
    lines: int
    """Lines of `train.py`, without empty ones."""
    removed: int
    """Lines of `train.py` that `net.py` has not: the loop for the most part."""
    added: int
    """Lines of `net.py` that `train.py` has not."""
    eager_seconds: float
    merged_seconds: float
    """From `train run` to the first merge that stands; of a rehearsal to the end of its first round."""
    done_seconds: float
    """From `train run` to the end of the job."""
    first_loss: float
    eager_loss: float
    job_loss: float

    @property
    def ratio(self) -> float:
        """The job's loss over the script's."""
        return self.job_loss / self.eager_loss


def lines_of(path: Path) -> list[str]:
    """The lines of a file that are not empty, without the spaces around them."""
    return [line.strip() for line in path.read_text().splitlines() if line.strip()]


def changed(before: Path, after: Path) -> tuple[int, int]:
    """(lines removed, lines added) between two files."""
    said = [line[0] for line in difflib.ndiff(lines_of(before), lines_of(after))]
    return said.count("-"), said.count("+")


@contextmanager
def workplace(name: str) -> Iterator[Path]:
    """A folder with a script's files and the text that some of them read."""
    with tempfile.TemporaryDirectory() as folder:
        for file in (SCRIPTS / name).iterdir():
            if file.is_file():
                shutil.copy(file, folder)
        text = b" ".join(document.text for document in speeches()).decode().encode("ascii", "ignore")
        Path(folder, "input.txt").write_bytes(text[:TEXT])
        yield Path(folder)


class Shell:
    """Types commands in a folder, as somebody whose home is empty."""

    def __init__(self, home: Path):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = kept | {"HOME": str(home), "PATH": path, "PYTHONUNBUFFERED": "1"}

    def run(self, folder: Path, *command: str) -> str:
        """Returns what the command prints on stdout; raises RuntimeError with the rest if it fails."""
        done = subprocess.run(
            command, cwd=folder, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def events(self, folder: Path, *command: str) -> Iterator[dict[str, Any]]:
        """The lines of JSON that a command prints, as they come."""
        with subprocess.Popen(
            command, cwd=folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                yield json.loads(line)


@contextmanager
def market() -> Iterator[Shell]:
    """A local market and a shell that finds it."""
    with tempfile.TemporaryDirectory() as home:
        shell = Shell(Path(home))
        shell.run(Path(home), "lockstep", "local", "up", "--workers", str(WORKERS))
        try:
            yield shell
        finally:
            shell.run(Path(home), "lockstep", "local", "down")


def job_of(shell: Shell, folder: Path) -> tuple[float, float]:
    """Runs the job of `job.toml` to its end and pulls its model; (seconds to the first merge, to the end)."""
    began, merged = time.monotonic(), 0.0
    said = json.loads(shell.run(folder, "lockstep", "train", "run", "job.toml", "--budget", str(BUDGET), "--json"))
    job = said["data"]["job"]
    for event in shell.events(folder, "lockstep", "train", "watch", job, "--json"):
        if event.get("event") == "Merged" and not merged:
            merged = time.monotonic() - began
    done = time.monotonic() - began
    shell.run(folder, "lockstep", "train", "pull", job, "--out", "pulled")
    return merged, done


def rehearsal_of(folder: Path) -> tuple[float, float]:
    """Runs the rounds of `job.toml` in this folder; (seconds to the first merge, to the end)."""
    began = time.monotonic()
    command = ["lockstep", "train", "rehearse", "job.toml", "--out", "pulled", "--json"]
    said = json.loads(Shell(folder).run(folder, *command))["data"]
    done = time.monotonic() - began
    return done - sum(said["seconds"][1:]), done


def loss_of(brought: Brought, model: nn.Module) -> float:
    """The mean of the brought loss over batches of its rows, the same for every model."""
    assert brought.dataset is not None
    sample = Sample(brought.dataset.rows, brought.batch.of(brought.dataset), bytes(32))
    torch.manual_seed(7)
    model.eval()
    with torch.no_grad():
        return sum(float(sample.value(model, brought.loss, t)) for t in range(1, BATCHES + 1)) / BATCHES


def fill(model: nn.Module, kept: dict[str, Any]) -> None:
    """Loads what a script saved: a state of the model, of one of its children, or of several by their names."""
    if all(isinstance(value, dict) for value in kept.values()):
        for child, state in kept.items():
            model.get_submodule(child).load_state_dict(state)
        return
    fitting = [m for m in (model, *model.children()) if m.state_dict().keys() == kept.keys()]
    if not fitting:
        raise RuntimeError(f"ckpt.pt has {', '.join(kept)}, which no module of net.py has")
    fitting[0].load_state_dict(kept)


def tried(name: str, shell: Shell | None) -> BroughtScript:
    """Trains one script both ways."""
    with workplace(name) as folder:
        began = time.monotonic()
        Shell(folder).run(folder, sys.executable, "train.py")
        eager_seconds = time.monotonic() - began
        merged, done = rehearsal_of(folder) if shell is None else job_of(shell, folder)
        brought = bring("net.py:make", folder)
        first = loss_of(brought, brought.model)
        job = loss_of(brought, load_model(folder / "pulled", brought.model))
        fill(brought.model, torch.load(folder / "ckpt.pt", weights_only=True))
        removed, added = changed(folder / "train.py", folder / "net.py")
        counted = len(lines_of(folder / "train.py"))
        eager = loss_of(brought, brought.model)
    return BroughtScript(name, counted, removed, added, eager_seconds, merged, done, first, eager, job)


def table(rows: Sequence[BroughtScript]) -> str:
    """A table for a document."""
    head = ["script", "lines", "removed", "added", "eager, s", "first merge, s", "done, s", "loss at first", "script's"]
    lines = ["| " + " | ".join([*head, "job's", "ratio"]) + " |", "|" + "---|" * (len(head) + 2)]
    for row in rows:
        seconds = [f"{x:.0f}" for x in (row.eager_seconds, row.merged_seconds, row.done_seconds)]
        losses = [f"{x:.4g}" for x in (row.first_loss, row.eager_loss, row.job_loss, row.ratio)]
        cells = [row.script, str(row.lines), str(row.removed), str(row.added), *seconds, *losses]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Parses, trains, says."""
    known = sorted(path.name for path in SCRIPTS.iterdir() if (path / "net.py").exists())
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="SCRIPT", help=", ".join(known))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rehearse", action="store_true", help="without a market")
    given = parser.parse_args()
    if unknown := sorted({*given.names} - {*known}):
        parser.error(f"there is no script {', '.join(unknown)}; there are {', '.join(known)}")
    torch.set_num_threads(1)
    rows = []

    def all_of(shell: Shell | None) -> None:
        for name in given.names or known:
            row = tried(name, shell)
            rows.append(row)
            print(json.dumps(asdict(row)) if given.json else f"{name}: {row.done_seconds:.0f} s", flush=True)

    if given.rehearse:
        all_of(None)
    else:
        with market() as shell:
            all_of(shell)
    if not given.json:
        print(table(rows))


if __name__ == "__main__":
    main()
