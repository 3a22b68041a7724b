"""Nothing but the error tree comes out of a decoder, whatever goes in; and a fuzzer would see it if it did."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fuzz.__main__ import LEAST, branches, fuzz
from tests.fuzz.loading import file_of
from tests.fuzz.targets import TARGETS

pytestmark = pytest.mark.uncounted
RUNS = int(os.environ.get("LOCKSTEP_FUZZ_RUNS", "1000"))
SLICE_SECONDS, SLICES = 10, 6
QUICKLY = ("cbor", "payload", "dagpb")
"""Those whose defect is looked for in every run of the tests."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_the_error_tree_comes_out(name: str, tmp_path: Path) -> None:
    run = fuzz(name, tmp_path, f"-runs={RUNS}", "-seed=1")
    assert not run.crash, run.crash
    assert run.executions >= RUNS, "every input was decoded"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", QUICKLY)
def test_a_planted_defect_is_found(name: str, tmp_path: Path) -> None:
    assert fuzz(name, tmp_path, "-max_total_time=60", "-seed=1", planted=True).crash


@pytest.mark.parametrize("name", TARGETS)
def test_planted_defects_are_in_the_source_once(name: str) -> None:
    change = TARGETS[name].planted
    source = file_of(change.module).read_text()
    assert change.apply(source) != source


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", TARGETS)
def test_a_longer_run_reaches_the_branches_of_a_decoder(name: str, tmp_path: Path) -> None:
    """It ends when it has reached them; `make fuzz` goes on for as long as it is told to."""
    for _ in range(SLICES):
        run = fuzz(name, tmp_path, f"-max_total_time={SLICE_SECONDS}")
        assert not run.crash, run.crash
        reached, total, missing = branches(name, tmp_path)
        if reached >= LEAST * total:
            return
    pytest.fail(f"not reached: {', '.join(missing)}")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(TARGETS) - set(QUICKLY)))
def test_every_planted_defect_is_found(name: str, tmp_path: Path) -> None:
    assert fuzz(name, tmp_path, "-max_total_time=60", "-seed=1", planted=True).crash
