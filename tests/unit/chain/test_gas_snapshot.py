"""The committed gas of every verb is what the contracts of this commit use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import gas


@pytest.mark.uncounted
@pytest.mark.chain
@pytest.mark.slow
def test_the_committed_snapshot_is_what_receipts_say(tmp_path: Path) -> None:
    committed, found = json.loads(gas.SNAPSHOT.read_text()), gas.snapshot(tmp_path)
    was, now = ({verb: row["gas"] for verb, row in s["verbs"].items()} for s in (committed, found))
    changed = {verb: (was.get(verb), now.get(verb)) for verb in sorted(was | now) if was.get(verb) != now.get(verb)}
    assert changed == {}, "run `make gas-snapshot` and commit"
    assert found == committed
    assert gas.text(found) == gas.SNAPSHOT.read_text()
