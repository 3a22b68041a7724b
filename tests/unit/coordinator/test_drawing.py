"""Pictures: what strangers wrote is text, every number has a place, the bisection has a row for each cut."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from coordinator import drawing
from coordinator.drawing import Cell, Series

EVIL = '"><script>alert(1)</script>'
SVG = "{http://www.w3.org/2000/svg}"


def parsed(markup: str) -> ElementTree.Element:
    """The picture as XML; fails if it is none."""
    return ElementTree.fromstring(str(markup).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def pictures(markup: str) -> list[ElementTree.Element]:
    """The pictures of a plot: one for wide screens and one for narrow ones, or blocks that stand side by side."""
    inner = str(markup).removeprefix('<div class="heats">').removesuffix("</div>")
    return [parsed(f"{svg}</svg>") for svg in inner.split("</svg>")[:-1]]


def test_every_picture_escapes_what_it_is_told() -> None:
    tree = {"label": EVIL, "challenger": "differs", "node": None, "first": 1, "last": 2, "parts": []}
    for markup in (
        drawing.icicle(EVIL, tree),
        drawing.chart(EVIL, [Series(EVIL, [(0, 1, EVIL), (1, 2, EVIL)])], EVIL, EVIL),
        drawing.sparkline([1.0, 2.0], EVIL),
        drawing.heatmap(EVIL, [Cell(0, 0, EVIL, EVIL, EVIL)], [EVIL], [EVIL]),
        drawing.strip(EVIL, [{EVIL: 1}], [EVIL]),
        drawing.waterfall(EVIL, [(EVIL, 3, EVIL), (EVIL, 3, EVIL)]),
    ):
        assert "<script" not in markup
        assert {picture.tag for picture in pictures(markup)} == {f"{SVG}svg"}


def test_no_picture_has_a_style_or_a_script() -> None:
    drawn = drawing.chart("loss", [Series("loss", [(0, 1, "a"), (1, 0.5, "b")])], "steps", "loss")
    assert "style=" not in drawn
    assert [len(picture.findall(f"{SVG}circle")) for picture in pictures(drawn)] == [2, 2], "wide and narrow"


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, math.nan]])
def test_a_chart_without_numbers_says_so(values: list[float]) -> None:
    drawn = drawing.chart("loss", [Series("loss", [(0.0, v, "") for v in values])], "steps", "loss")
    assert "nothing to draw yet" in drawn


def test_a_point_that_is_no_number_is_left_out() -> None:
    points = [(0.0, 1.0, "a"), (1.0, math.inf, "b"), (2.0, math.nan, "c"), (3.0, 2.0, "d")]
    drawn = pictures(drawing.chart("x", [Series("x", points)], "x", "y"))
    assert [len(picture.findall(f"{SVG}circle")) for picture in drawn] == [2, 2]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (2.1, 5.6), (0, 48_000), (-3, 3), (1e-9, 3e-9), (7, 7)])
def test_ticks_are_few_round_and_within(low: float, high: float) -> None:
    found = drawing.ticks(low, high)
    assert 1 <= len(found) <= 7
    slack = (high - low) * 1e-9
    assert all(low - slack <= tick <= high + slack for tick in found)


def part(label: str, said: str, first: int, last: int, *parts: dict[str, object]) -> dict[str, object]:
    """A range."""
    return {"label": label, "challenger": said, "node": None, "first": first, "last": last, "parts": list(parts)}


def test_the_bisection_has_a_row_for_each_cut_and_ends_where_the_game_stands() -> None:
    inner = part("S_3", "differs", 3, 3)
    tree = part("S_1 to S_4", "differs", 1, 4, part("S_1 to S_2", "agrees", 1, 2),
                part("S_3 to S_4", "differs", 3, 4, inner, part("S_4", "unsaid", 4, 4)))  # fmt: skip
    levels = drawing.levels_of(tree)
    assert [[p["label"] for p in level.parts] for level in levels] == [
        ["S_1 to S_4"], ["S_1 to S_2", "S_3 to S_4"], ["S_3", "S_4"],
    ]  # fmt: skip
    assert [level.chosen for level in levels] == [0, 1, 0]
    open_game = part("S_1 to S_4", "differs", 1, 4, part("a", "unsaid", 1, 2), part("b", "unsaid", 3, 4))
    assert drawing.levels_of(open_game)[-1].chosen is None
    for picture in pictures(drawing.icicle("bisection", tree)):
        assert len(picture.findall(f"{SVG}rect")) == 5
        assert len(picture.findall(f"{SVG}path")) == 2, "one opening between two rows"
        assert [text.text for text in picture.findall(f"{SVG}text")] == ["S_1 to S_4", "S_3 to S_4", "S_3"]


@pytest.mark.parametrize(("rounds", "blocks"), [(1, 1), (10, 1), (11, 1), (16, 2), (30, 2), (31, 3)])
def test_a_heat_map_has_blocks_that_fit_a_phone(rounds: int, blocks: int) -> None:
    names = [str(i) for i in range(rounds)]
    cells = [Cell(i, 0, "final", f"/claims/{i}", f"round {i}") for i in range(rounds)]
    drawn = pictures(drawing.heatmap("rounds by slots", cells, names, ["slot 0"]))
    assert len(drawn) == blocks
    assert [a.get("href") for picture in drawn for a in picture.findall(f"{SVG}a")] == [c.href for c in cells]
    for picture in drawn:
        width = int(picture.get("width", "0"))
        assert width <= 332, "a window of 360 without its margins"
        assert all(float(r.get("x", "0")) + float(r.get("width", "0")) <= width for r in picture.iter(f"{SVG}rect"))


def test_a_waterfall_stays_within_its_picture() -> None:
    steps = [("in", 10, "10"), ("out", 0, "0"), ("sum", 10, "10")]
    for picture in pictures(drawing.waterfall("money", steps)):
        width = float(picture.get("viewBox", "").split()[2])
        assert all(float(r.get("x", "0")) + float(r.get("width", "0")) <= width for r in picture.iter(f"{SVG}rect"))


def test_many_rounds_share_columns_and_no_claim_is_lost() -> None:
    counts = [{"final": 3, "convicted": int(i == 700)} for i in range(1000)]
    binned = drawing._binned(counts, 4)
    assert len(binned) == 250
    assert sum(c["final"] for c in binned) == 3000
    assert sum(c["convicted"] for c in binned) == 1
    drawn = parsed(drawing.strip("rounds", counts, ("final", "convicted")))
    assert [path.get("class") for path in drawn] == ["s-final", "s-convicted"]
    assert str(drawing.strip("rounds", counts, ("final",))).count("M") == 250


def test_a_long_line_is_thinned_and_keeps_its_ends() -> None:
    points = [(float(i), float(i), "") for i in range(1000)]
    kept = drawing._thinned(points)
    assert len(kept) <= drawing.POINTS + 1
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert drawing._thinned(points[:300]) == points[:300]


def test_a_word_shows_its_bits_and_those_that_differ() -> None:
    shown = drawing.word("0x3f800001", "0x3f800000")
    assert shown.count("<i ") == 32
    assert shown.count("differs") == 1
    assert 'aria-label="00111111100000000000000000000001"' in shown
    assert drawing.word(None, "0x00000000") == drawing.word("0x" + "00" * 32, None) == ""


def test_a_waterfall_of_nothing_says_so() -> None:
    assert "No money" in drawing.waterfall("x", [("a", 0, "0"), ("b", 0, "0")])
