"""Generates tables for notebooks and terminals, and a curve, without scripts or external files; untrusted text is
escaped.

>>> table("job", [("status", "<script>")])
'<table><caption>job</caption><tr><th>status</th><td>&lt;script&gt;</td></tr></table>'
>>> print(aligned("job", [("status", "active"), ("paid", "1 LST")]))
job
  status  active
  paid    1 LST
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from lockstep.base.escaping import on_one_line
from lockstep.base.redaction import scrubbed

WIDTH, HEIGHT, MARGIN = 480, 160, 28


def table(title: str, rows: Sequence[tuple[str, object]]) -> str:
    """Returns an HTML table of names and values."""
    body = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows)
    return f"<table><caption>{_text(title)}</caption>{body}</table>"


def aligned(title: str, rows: Sequence[tuple[str, object]]) -> str:
    """Returns the same table as lines of text, its values in one column."""
    width = max((len(name) for name, _ in rows), default=0)
    lines = [title, *(f"  {name:<{width}}  {value}".rstrip() for name, value in rows)]
    # INVARIANT: no text of a stranger moves a cursor, and no key of a URL is shown.
    return "\n".join(on_one_line(scrubbed(line)) for line in lines)


def curve(points: Sequence[tuple[float, float, str]], title: str) -> str:
    """Returns an SVG of points (x, y, label); points that are not finite are left out."""
    known = [p for p in points if math.isfinite(p[1])]
    if not known:
        return f"<p>{_text(title)}: nothing to draw yet</p>"
    xs, ys = [p[0] for p in known], [p[1] for p in known]
    at = [(_scaled(x, xs, MARGIN, WIDTH - MARGIN), _scaled(y, ys, HEIGHT - MARGIN, MARGIN)) for x, y, _ in known]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="currentColor"><title>{_text(what)}</title></circle>'
        for (x, y), (_, _, what) in zip(at, known, strict=True)
    )
    labels = "".join(
        f'<text x="2" y="{y}" font-size="10" fill="currentColor">{value:.4g}</text>'
        for y, value in ((MARGIN - 8, max(ys)), (HEIGHT - MARGIN + 16, min(ys)))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img"><title>{_text(title)}</title><polyline points="{line}" fill="none" stroke="currentColor" '
        f'stroke-width="2"/>{dots}{labels}</svg>'
    )


def in_place() -> Callable[[str], None] | None:
    """Returns a function that shows HTML in a notebook's cell, replacing what it showed before; None outside a
    notebook.

    IPython is never imported for it: in a notebook it is loaded already.
    """
    shell: Any = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    if running is None or getattr(running, "kernel", None) is None:
        return None
    display = sys.modules["IPython"].display
    handle = display.display(display.HTML(""), display_id=True)
    return lambda markup: handle.update(display.HTML(markup))


def _text(value: object) -> str:
    # INVARIANT: no text of a stranger is markup, and no key of a URL is shown.
    return escape(scrubbed(str(value)), quote=True)


def _scaled(value: float, values: Sequence[float], low: float, high: float) -> float:
    least, span = min(values), max(values) - min(values)
    return (low + high) / 2 if span == 0 else low + (value - least) / span * (high - low)
