"""The twin against the contracts: some hundred random histories, call by call, in forge's EVM."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from lockstep.protocol.jobs import ClaimStatus, Phase
from tests.support import recordings
from tests.support.market import history

pytestmark = pytest.mark.slow

FIRST_HISTORY = 1_000
HISTORIES = 60
BLOCKS = 250


@pytest.fixture
def folder(repository: Path) -> Path:
    """Below the repository: forge reads nothing else."""
    made = repository / f"out/histories-{os.getpid()}"
    shutil.rmtree(made, ignore_errors=True)
    return made


def replayed(repository: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The folder's recordings on the contracts."""
    recordings.write_list(folder)
    (binary,) = (repository / "node_modules/@foundry-rs").glob("forge-*/bin/forge")
    environment = os.environ | {
        "LOCKSTEP_RECORDINGS": folder.relative_to(repository).as_posix(),
        # One test reads every history: it spends more gas than a block has.
        "FOUNDRY_GAS_LIMIT": str(2**64 - 1),
    }
    return subprocess.run(
        [binary, "test", "--match-contract", "^ChainReplay$"],
        cwd=repository, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_contracts_accept_refuse_and_store_as_the_twin(repository: Path, folder: Path) -> None:
    played = history.write(folder, range(FIRST_HISTORY, FIRST_HISTORY + HISTORIES), BLOCKS)
    run = replayed(repository, folder)
    assert run.returncode == 0, run.stdout[-2_000:] + run.stderr[-2_000:]
    refused = sum((one.refused for one in played), Counter[str]())
    rounds = [ro for one in played for ro in one.state.rounds.values()]
    claims = [claim for one in played for claim in one.state.claims.values()]
    assert sum(len(one.acts) for one in played) - refused.total() > 40 * HISTORIES, "most calls are accepted"
    assert len(refused) >= 30, f"many rules are broken: {refused}"
    assert {Phase.FINAL, Phase.FAILED, Phase.VOID, Phase.LEAD, Phase.MERGING} <= {ro.phase for ro in rounds}
    assert {ClaimStatus.FINAL, ClaimStatus.CONVICTED, ClaimStatus.VOID, ClaimStatus.ABSENT} <= {
        claim.status for claim in claims
    }
    assert any(claim.carries for claim in claims), "slots start from what they carry"
    assert any(ro.attempt > 0 for ro in rounds), "rounds were run again"


def test_a_difference_is_seen(repository: Path, folder: Path) -> None:
    (one,) = history.write(folder, [3], 40)
    (path,) = folder.iterdir()
    last = next(act for act in reversed(one.acts) if isinstance(act.said, history.Said) and act.said.events)
    logs = history.logged(last.said.events).hex()  # type: ignore[union-attr]
    assert logs in path.read_text()
    path.write_text(path.read_text().replace(logs, bytes(32).hex()))
    run = replayed(repository, folder)
    assert run.returncode != 0
    assert "Differs" in run.stdout
