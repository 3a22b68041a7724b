"""A few histories, and every find kept: with its fix it hurts nobody, without it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.search.engine import Played, play
from tests.search.fixes import FIXES, reverted
from tests.search.rules import Violation
from tests.search.scene import setting_of
from tests.search.shrink import CORPUS, replay, shrink, told

HISTORIES = 80
FINDS = sorted(CORPUS.glob("*.json"))


def test_no_coalition_hurts_anybody() -> None:
    calls = 0
    for seed in range(HISTORIES):
        played = play(setting_of(seed))
        assert played.violation is None, told(played)
        calls += played.calls
    assert calls > 100 * HISTORIES


def test_every_fix_has_a_find() -> None:
    assert {path.name.partition("-")[0] for path in FINDS} == set(FIXES)


@pytest.mark.parametrize("path", FINDS, ids=lambda path: path.stem)
def test_a_find_hurts_without_its_fix_alone(path: Path) -> None:
    hurt = replay(path, with_fix=False)
    assert isinstance(hurt.violation, Violation)
    assert told(hurt).endswith(str(hurt.violation))
    assert replay(path, with_fix=True).violation is None


def test_a_find_is_made_small() -> None:
    with reverted("M3") as machine:
        played = play(setting_of(13), machine=machine)
    assert played.violation is not None
    small = shrink(played, "M3")
    assert small.violation is not None
    assert small.violation.kind == played.violation.kind
    assert len(small.script) < len(played.script)


def trail(played: Played) -> list[object]:
    """What was done, and when."""
    assert played.scene is not None
    return [(block.number, block.time, call, error) for block, call, error in played.scene.trail]


def test_a_seed_is_a_history() -> None:
    first, again = play(setting_of(7)), play(setting_of(7))
    assert first.script == again.script
    assert trail(first) == trail(again)
