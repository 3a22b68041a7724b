"""The demo as a user runs it: one line on stdout, every number accounted for.

One market that is honest and one with a lie. `make demo-all` plays all lies; `tests/adversarial/table.py` holds where
each is declared, how it ends and who loses what, and `tests/unit/demo/test_report.py` that the report's money adds up.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.chain]

MAX_TRANSACTIONS, MAX_GAS, MAX_GAS_ONCE = 16, 2_000_000, 600_000


def demo(cheat: str, folder: Path, *more: str) -> dict[str, Any]:
    """`data` of one run; the run itself fails unless every game ends where its lie declared."""
    command = [sys.executable, "-m", "lockstep.cli.main", "demo", "--json", "--no-browser", "--seed", "0"]
    done = subprocess.run(
        [*command, "--cheat", cheat, "--out", str(folder), *more], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("\n") == 1, "one line on stdout"
    answer = json.loads(done.stdout)
    assert answer["ok"]
    assert not left_behind(folder), "no process is left behind"
    data: dict[str, Any] = answer["data"]
    return data


def left_behind(folder: Path) -> list[str]:
    """Command lines of running processes that name the demo's folder."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            lines.append(line)
    return lines


def assert_money_adds_up(data: dict[str, Any]) -> None:
    n = {
        k: int(data[k])
        for k in ("escrow_in", "paid_out", "refunded", "slashed", "burned", "to_challenger", "to_requester", "to_work")
    }
    assert n["escrow_in"] + n["to_work"] == n["paid_out"] + n["refunded"], "escrow"
    assert n["slashed"] == n["burned"] + n["to_challenger"] + n["to_requester"] + n["to_work"], "slash"
    assert n["paid_out"] == sum(int(p["earned"]) for p in data["parties"]), "pay"
    lost = sum(int(p["stake_before"]) - int(p["stake_after"]) for p in data["parties"])
    assert lost == n["slashed"] + int(data["bonds_lost"]), "stakes"
    assert int(data["witness_fees"]) == sum(int(p["witness_fees"]) for p in data["parties"]), "fees"
    assert n["to_challenger"] + n["to_requester"] + int(data["bonds_to_defender"]) == sum(
        int(p["received_from_slash"]) for p in data["parties"]
    ), "shares"


def assert_sent(data: dict[str, Any], strategy: str, bits: float) -> None:
    """The strategy that was asked for, and payloads of as many bits a parameter; their manifests are 0.001 of it."""
    assert data["strategy"] == strategy
    assert data["bits_per_parameter"] == pytest.approx(bits, rel=0.01)


def assert_trained(data: dict[str, Any]) -> None:
    assert data["loss_last"] < data["loss_first"]
    assert Path(data["model_path"]).is_file()
    assert len(data["sample"]) > 100


def test_a_lie_of_a_strategy_that_carries_is_convicted(tmp_path: Path) -> None:
    data = demo("wrong-index", tmp_path / "demo", "--strategy", "sparseloco")
    assert_convicted(data)
    assert_sent(data, "sparseloco", 0.2212)
    assert [game["program"] for game in data["games"]] == ["encode"]


def assert_convicted(data: dict[str, Any]) -> None:
    (game,) = data["games"]
    assert game["verdict"] == "fraud"
    assert game["claimed_bits"] != game["contract_bits"]
    assert game["transactions"] <= MAX_TRANSACTIONS
    assert game["gas_total"] <= MAX_GAS
    assert game["gas_max"] <= MAX_GAS_ONCE
    liar = next(p for p in data["parties"] if p["cheat"])
    assert int(liar["stake_before"]) - int(liar["stake_after"]) == int(data["slashed"]) > 0
    assert_money_adds_up(data)
    assert_trained(data)


def test_an_honest_market_has_no_game_and_slashes_nobody(tmp_path: Path) -> None:
    data = demo("none", tmp_path / "demo")
    assert data["games"] == []
    assert data["slashed"] == data["bonds_lost"] == "0"
    verifier = next(p for p in data["parties"] if p["role"] == "verifier")
    assert int(verifier["witness_fees"]) > 0, "it was drawn, looked, and was paid"
    assert int(verifier["stake_after"]) == int(verifier["stake_before"]) > 0
    assert data["loss_last"] <= data["baseline_loss"] + 0.15
    assert_sent(data, "diloco", 8.125)
    assert_money_adds_up(data)
    assert_trained(data)
