"""The demo's options, and how its end is held against what the liar declared."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.cli.screen import Screen
from lockstep.demo.run import CARRY_CHEATS, CHEATS, INDEX_CHEATS, INTEGER_CHEATS, DemoOptions, difference, run
from lockstep.protocol.errors import UsageError

GAME = {
    "verdict": "fraud", "program": "step", "step": 3, "op": {"index": 7, "kind": "fold", "name": "gradient"},
    "element": 5, "chunk": 2,
}  # fmt: skip
DECLARED = {
    "verdict": "fraud", "program": "step", "step": 3, "op_index": 7, "op_kind": "fold", "element": 5, "chunk": 2,
}  # fmt: skip


@pytest.mark.parametrize("cheat", CHEATS)
def test_every_cheat_is_an_option(cheat: str) -> None:
    assert DemoOptions(cheat=cheat).cheat == cheat


@pytest.mark.parametrize(("wrong", "named"), [({"cheat": "kindness"}, "kindness"), ({"workers": 1}, "workers is 1"),
                                              ({"workers": 17}, "workers is 17"),
                                              ({"products": "int4"}, "int4"),
                                              ({"strategy": "muloco", "carry": True}, "muloco"),
                                              ({"products": "float32", "cheat": "wrong-code"}, "wrong-code"),
                                              ])  # fmt: skip
def test_a_wrong_option_is_a_usage_error(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named) as refused:
        DemoOptions(**wrong)  # type: ignore[arg-type]
    assert refused.value.hint


def test_a_lie_about_codes_is_told_about_integers() -> None:
    for cheat in CHEATS:
        assert DemoOptions(cheat=cheat).arithmetic == ("int8" if cheat in INTEGER_CHEATS else "float32")
        assert DemoOptions(cheat=cheat, products="int8").arithmetic == "int8"


MEANT = {
    "sparseloco": {*CARRY_CHEATS, *INDEX_CHEATS}, "muloco": {*CARRY_CHEATS}, "opendiloco": {"stale-carry"},
    "demo": {*CARRY_CHEATS, *INDEX_CHEATS}, "diloco": set(), "fedavg": set(),
}  # fmt: skip
"""The lies about carries and places that have a meaning for a strategy."""


@pytest.mark.parametrize("strategy", MEANT)
@pytest.mark.parametrize("cheat", [*CARRY_CHEATS, *INDEX_CHEATS])
def test_a_lie_without_a_meaning_for_a_strategy_is_refused_with_another_strategy(strategy: str, cheat: str) -> None:
    options = DemoOptions(strategy=strategy, cheat=cheat)
    if cheat in MEANT[strategy]:
        assert options.spec().inner_steps >= 1
        return
    with pytest.raises(UsageError, match=f"{cheat} has no meaning for {strategy}") as refused:
        options.spec()
    assert "--strategy sparseloco" in refused.value.hint


def test_diloco_carries_where_it_is_told_to() -> None:
    assert DemoOptions(carry=True, cheat="stale-carry").spec().carry
    assert not DemoOptions().spec().carry
    with pytest.raises(UsageError, match="leave nothing for later"):
        DemoOptions(carry=True, cheat="tampered-residual").spec()


def test_a_folder_that_holds_something_is_refused_and_left_alone(tmp_path: Path) -> None:
    assert DemoOptions(folder=tmp_path).folder == tmp_path, "an empty one may be used"
    (tmp_path / "mine").write_text("mine")
    for folder in (tmp_path, tmp_path / "mine"):
        with pytest.raises(UsageError, match="not an empty folder"):
            DemoOptions(folder=folder)
    with pytest.raises(UsageError, match="mine/inside"):
        run(DemoOptions(folder=tmp_path / "mine" / "inside"), Screen())
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_a_game_that_ends_where_it_was_declared_does_not_differ() -> None:
    assert difference(DECLARED, GAME) is None
    assert difference({**DECLARED, "element": None, "chunk": None}, GAME) is None, (
        "what is not declared may be anything"
    )


@pytest.mark.parametrize("field", sorted(DECLARED))
def test_each_field_that_differs_is_told(field: str) -> None:
    told = difference({**DECLARED, field: "elsewhere"}, GAME)
    assert told is not None
    assert field in told
    assert "elsewhere" in told


def test_a_game_without_a_proof_differs_from_one_that_was_declared() -> None:
    assert difference(DECLARED, {**GAME, "op": None, "element": None, "chunk": None}) is not None
