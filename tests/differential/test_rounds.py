"""The market's twin against the contracts: some hundred random histories, act by act, in forge's EVM."""

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from lockstep.protocol.jobs import ClaimStatus, Phase
from tests.support import histories

pytestmark = pytest.mark.slow

FIRST_HISTORY = 1_000
HISTORIES = 200
ACTS = 90


def _forge(repository: Path, path: Path) -> subprocess.CompletedProcess[str]:
    (binary,) = (repository / "node_modules/@foundry-rs").glob("forge-*/bin/forge")
    environment = os.environ | {
        "LOCKSTEP_HISTORIES": path.relative_to(repository).as_posix(),
        # One test reads every history: it spends more gas than a block has.
        "FOUNDRY_GAS_LIMIT": str(2**64 - 1),
    }
    return subprocess.run(
        [binary, "test", "--match-contract", "^RoundsReplay$"],
        cwd=repository, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_contracts_accept_refuse_and_store_as_the_twin(repository: Path) -> None:
    path = repository / "out/vectors/rounds-random.jsonl"
    players = histories.write(path, range(FIRST_HISTORY, FIRST_HISTORY + HISTORIES), ACTS)

    run = _forge(repository, path)

    assert run.returncode == 0, run.stdout[-2_000:] + run.stderr[-2_000:]
    errors = Counter(act.error for player in players for act in player.acts)
    phases = {ro.phase for player in players for ro in player.market.rounds.values()}
    statuses = {player.market.status(claim) for player in players for claim in player.market.claims}
    assert errors[""] > 40 * HISTORIES, "most acts are accepted"
    assert len(errors) >= 15, f"many rules are broken: {errors}"
    assert {Phase.FINAL, Phase.FAILED, Phase.VOID, Phase.LEAD, Phase.MERGING} <= phases
    assert {ClaimStatus.FINAL, ClaimStatus.CONVICTED, ClaimStatus.VOID, ClaimStatus.ABSENT} <= statuses
    assert sum(player.carries for player in players) > HISTORIES, "slots start from what they carry"
    assert any(ro.attempt > 0 for player in players for ro in player.market.rounds.values()), "rounds were run again"


def test_a_difference_is_seen(repository: Path) -> None:
    (player,) = histories.write(repository / "out/vectors/rounds-wrong.jsonl", [3], 20)
    path = repository / "out/vectors/rounds-wrong.jsonl"
    last = next(act for act in reversed(player.acts) if not act.error)
    path.write_text(path.read_text().replace(last.digest.hex(), bytes(32).hex()))
    run = _forge(repository, path)
    assert run.returncode != 0
    assert "Differs" in run.stdout
