"""The committed costs are what signed transactions take today."""

import json
from pathlib import Path

import pytest

from tests.support import costs


@pytest.mark.slow
@pytest.mark.chain
def test_the_committed_costs_are_measured(tmp_path: Path) -> None:
    committed, found = json.loads(costs.FILE.read_text()), costs.snapshot(tmp_path)
    for what, rows in found["costs"].items():
        assert rows.keys() == committed["costs"][what].keys(), "run `make gas-snapshot` and commit"
        for name, row in rows.items():
            held = committed["costs"][what][name]
            assert row["calls"] == held["calls"], name
            for of in ("gas", "compressed", "others"):
                # Signatures and storage slots differ by a byte, and a warm slot, from run to run.
                assert row[of] == pytest.approx(held[of], rel=0.02), (name, of)
