"""What a notebook shows: whatever a stranger wrote is text, and a notebook is looked for, not imported."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from lockstep.base.markup import curve, in_place, table
from lockstep.execution.losses import Curve, MergedLoss
from lockstep.protocol.types import Cid

HOSTILE = "<script>alert('x')</script>\"&"


def test_a_stranger_s_text_is_no_markup() -> None:
    for shown in (table(HOSTILE, [(HOSTILE, HOSTILE)]), curve([(0, 1.0, HOSTILE), (1, 2.0, HOSTILE)], HOSTILE)):
        assert "<script" not in shown
        assert "&lt;script&gt;" in shown
        texts = list(ElementTree.fromstring(shown).itertext())
        assert HOSTILE in texts, "and it reads as it was written"


def test_a_curve_falls_where_the_loss_falls() -> None:
    losses = [MergedLoss(i, None, loss, 3, "ab" * 32, Cid("bafy")) for i, loss in enumerate((5.5, 4.0, 2.5))]
    drawn = ElementTree.fromstring(Curve(losses)._repr_html_())
    line = next(part for part in drawn.iter() if part.tag.endswith("polyline"))
    ys = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    assert ys == sorted(ys), "SVG counts downwards"
    assert len(ys) == 3
    assert "2.500000 after 2 merges, claim abababab" in list(drawn.itertext())


def test_what_is_no_number_is_left_out() -> None:
    assert "nothing to draw" in curve([(0, math.nan, "a"), (1, math.inf, "b")], "loss")
    assert curve([(0, math.nan, "a"), (1, 2.0, "b")], "loss").count("<circle") == 1
    assert "nan" not in curve([(0, 2.0, "a")], "loss")


@dataclass
class Cell:
    """A notebook's output."""

    shown: list[str] = field(default_factory=list)

    def update(self, markup: Any) -> None:
        """In the place of the last."""
        self.shown.append(markup)


def test_a_cell_is_written_over_only_where_ipython_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert in_place() is None
    assert "IPython" not in sys.modules, "it is not imported for it"
    cell = Cell()
    display = SimpleNamespace(display=lambda first, display_id: cell, HTML=lambda text: text)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None, display=display))
    assert in_place() is None, "a library has imported it"
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=display))
    assert in_place() is None, "IPython in a terminal shows no HTML"
    shell.kernel = object()
    show = in_place()
    assert show is not None
    show("a")
    show("b")
    assert cell.shown == ["a", "b"]
