"""The game's twin against the contracts with the real Arbiter: a thousand random games, call by call, in forge's EVM.

python -m tests.differential.test_random_games --games 1000
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.property import vectors
from tests.property.vectors import Recorder

pytestmark = pytest.mark.slow

BATCH = 200
"""Games of one run of forge: it holds a whole file's history in memory."""


def replay(repository: Path, path: Path) -> subprocess.CompletedProcess[str]:
    """The file's histories against the contracts."""
    (binary,) = (repository / "node_modules/@foundry-rs").glob("forge-*/bin/forge")
    environment = os.environ | {
        "LOCKSTEP_GAMES": path.relative_to(repository).as_posix(),
        # One test reads every history: it spends more gas than a block has.
        "FOUNDRY_GAS_LIMIT": str(2**64 - 1),
    }
    return subprocess.run(
        [binary, "test", "--match-contract", "^GamesReplay$"],
        cwd=repository, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def compare(repository: Path, games: int, first: int = 1_000_000) -> Counter[str]:
    """At least that many games, batch by batch; counts of games, moves and refusals. Raises on the first difference."""
    path = repository / f"out/vectors/games-{os.getpid()}.jsonl"
    seen: Counter[str] = Counter()
    while seen["games"] < games:
        recorded = vectors.write(path, min(BATCH, games - seen["games"]), first + seen["histories"])
        run = replay(repository, path)
        assert run.returncode == 0, run.stdout[-2_000:] + run.stderr[-2_000:]
        seen += _counts(recorded)
    path.unlink()
    return seen


def _counts(recorded: list[Recorder]) -> Counter[str]:
    seen: Counter[str] = Counter(histories=len(recorded))
    for recorder in recorded:
        seen["games"] += len(recorder.table.records)
        for act in recorder.acts:
            seen[act.rule or "moves"] += 1
    return seen


def test_contracts_and_twin_agree_on_every_move_of_a_thousand_games(repository: Path) -> None:
    seen = compare(repository, 1_000)
    assert seen["games"] >= 1_000
    assert seen["moves"] >= 4 * seen["games"], "games are played, not only opened"
    rules = {"PhaseWrong", "ProofInvalid", "EqualBits", "StatementWrong", "LengthWrong", "ClockRunning"}
    assert rules | {"StandingStale", "OutOfRange", "OpeningsWrong", "Unauthorized"} <= seen.keys()


def test_a_difference_is_seen(repository: Path) -> None:
    path = repository / "out/vectors/games-wrong.jsonl"
    (recorder, *_) = vectors.write(path, 1)
    last = next(made for made in reversed(recorder.digests) if made != bytes(32))
    path.write_text(path.read_text().replace(last.hex(), bytes(32).hex()))
    run = replay(repository, path)
    assert run.returncode != 0
    assert "Differs" in run.stdout


def main() -> int:
    """Compares as many games as are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--games", type=int, default=1_000)
    begun = time.monotonic()
    seen = compare(Path(__file__).resolve().parents[2], parser.parse_args().games)
    counts = f"{seen.pop('games')} games in {seen.pop('histories')} histories, {seen.pop('moves')} moves played"
    print(f"{counts}, {seen.total()} refused alike, {time.monotonic() - begun:.0f} s")
    print("refused: " + ", ".join(f"{rule} {times}" for rule, times in seen.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
