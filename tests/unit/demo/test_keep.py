"""A demo whose market is kept: it writes over no market, and leaves one only if it ended well."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.demo import local
from lockstep.protocol.errors import DoctorError, GuardRefused, LockstepError, UsageError
from lockstep.runtime.guard import lock


def test_a_demo_that_ends_well_leaves_a_market_and_a_second_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "local"
    with local.to_keep(folder, local.LocalOptions(seed=3)):
        held = lock.holder(folder)
        assert held is not None
        assert held.who == local.DEMO
        with pytest.raises(GuardRefused, match="demo makes a market"):
            local.up(folder, {})
        assert not (folder / local.MADE).exists()
    assert (folder / local.MADE).exists()
    kept = local.LocalState.load(folder)
    assert kept is not None
    assert kept.options.seed == 3
    with pytest.raises(GuardRefused, match="holds a market") as refused, local.to_keep(folder, local.LocalOptions()):
        pass
    assert "local up" in refused.value.hint


def test_a_demo_that_failed_leaves_none_and_another_begins_anew(tmp_path: Path) -> None:
    folder = tmp_path / "local"

    def breaks() -> None:
        with local.to_keep(folder, local.LocalOptions()):
            (folder / "left").write_text("half")
            raise LockstepError("it broke")

    with pytest.raises(LockstepError, match="broke"):
        breaks()
    with local.to_keep(folder, local.LocalOptions()):
        assert not (folder / "left").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with (
        pytest.raises(DoctorError, match="not the folder of a local market"),
        local.to_keep(tmp_path, local.LocalOptions()),
    ):
        pass
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_market_that_is_kept_is_no_other_than_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "local"
    with local.to_keep(folder, local.LocalOptions(workers=3)):
        pass
    with pytest.raises(UsageError, match="has workers 3 and liar False") as refused:
        local.up(folder, {"workers": 2, "liar": True, "block_seconds": 1})
    assert "--fresh" in refused.value.hint
