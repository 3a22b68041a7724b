"""The pages' pictures as SVG, drawn on the server: curves, heat-maps, the bisection. Colours are the stylesheet's.

No style attribute and no script: the pages' Content-Security-Policy allows neither. What strangers wrote is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup, escape

RIGHT, TOP, BOTTOM = 16, 24, 34
CELL, GAP = 13, 2
LARGE_CELL, FEW_COLUMNS = 24, 10
"""The width and height of a cell where the rounds are few."""
BLOCK_COLUMNS = 15
"""The most columns of a block of cells: a narrow screen shows the blocks one below the other."""
ROW, DROP = 22, 10
BARS, LABELS, NARROW, WORDS = 560, 500, 350, 18
"""The width of the bisection's bars and of the words beside them; of narrow bars, and the height of words above."""
POINTS = 300
"""The most points of a drawn line."""
COLUMNS = 300
"""The most columns of a strip; where there are more rounds, neighbours share one."""
LETTER = 7.6
"""The width of a letter of a label."""
LEAST = 10
"""The least width of a part of a bar."""
Range = tuple[float, float]
GLYPHS = {"convicted": "×", "absent": "–", "excluded": "o", "void": "·"}
"""The marks on cells beside their colour."""
HOLDS_CONVICTED = "!"
"""The mark on a merge that holds a convicted payload."""


@dataclass(frozen=True)
class ChartSize:
    """The size of a chart: a page has both, and its stylesheet shows the one that fits the screen."""

    name: str
    width: int
    height: int
    left: int
    """The room for the numbers of the y axis."""
    most_ticks: int


FRAMES = (ChartSize("wide", 720, 260, 64, 5), ChartSize("narrow", 330, 240, 56, 3))


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str
    points: Sequence[tuple[float, float, str]]
    """(x, y, what the point is)."""
    style: str = "a"
    """a to f: its class."""


@dataclass(frozen=True)
class Axes:
    """The axes of a chart."""

    x_name: str
    y_name: str
    xs: Range
    ys: Range
    shown: Callable[[float], str]
    """Formats a number of the x axis."""


def chart(
    title: str, series: Sequence[Series], x_name: str, y_name: str, shown: Callable[[float], str] = str
) -> Markup:  # fmt: skip
    """Draws lines over linear axes; points that are not finite are left out. `shown` formats a number of the x axis."""
    known = [p for line in series for p in line.points if math.isfinite(p[0]) and math.isfinite(p[1])]
    if not known:
        return Markup('<p class="empty">{}: nothing to draw yet.</p>').format(title)
    xs, ys = _range([p[0] for p in known]), _range([p[1] for p in known])
    axes = Axes(x_name, y_name, xs, ys, shown)
    return Markup("").join(_chart(frame, title, series, axes) for frame in FRAMES)


def _chart(frame: ChartSize, title: str, series: Sequence[Series], axes: Axes) -> Markup:
    right, bottom = frame.width - RIGHT, frame.height - BOTTOM
    head = '<svg class="chart {}" viewBox="0 0 {} {}" role="img" aria-label="{}">'
    parts = [Markup(head).format(frame.name, frame.width, frame.height, title)]
    for value in ticks(*axes.ys):
        y = _place(value, axes.ys, bottom, TOP)
        parts.append(Markup('<line class="rule" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
            frame.left, right, y, y))  # fmt: skip
        parts.append(Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
            frame.left - 8, y + 4, number(value)))  # fmt: skip
    # A step or a round has no half.
    whole = all(float(x).is_integer() for line in series for x, y, _ in line.points if math.isfinite(x + y))
    for value in (t for t in ticks(*axes.xs, frame.most_ticks) if not whole or float(t).is_integer()):
        x = _place(value, axes.xs, frame.left, right)
        parts.append(Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
            x, bottom + 16, axes.shown(value)))  # fmt: skip
    parts.append(Markup('<text class="tick" x="{}" y="{}" text-anchor="end">{}</text>').format(
        right, frame.height - 3, axes.x_name))  # fmt: skip
    parts.append(Markup('<text class="tick" x="4" y="10">{}</text>').format(axes.y_name))
    parts += [_line(frame, line, axes) for line in series]
    return Markup("").join([*parts, Markup("</svg>")])


def _line(frame: ChartSize, line: Series, axes: Axes) -> Markup:
    xs, ys = axes.xs, axes.ys
    at = [
        (_place(x, xs, frame.left, frame.width - RIGHT), _place(y, ys, frame.height - BOTTOM, TOP), what)
        for x, y, what in _thinned(line.points)
        if math.isfinite(x) and math.isfinite(y)
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in at)
    drawn = Markup('<polyline class="line {}" points="{}"/>').format(line.style, path)
    if len(at) > 120:
        return drawn
    dots = (Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="3"><title>{}</title></circle>').format(
        line.style, x, y, what) for x, y, what in at)  # fmt: skip
    return drawn + Markup("").join(dots)


def _thinned(points: Sequence[tuple[float, float, str]]) -> Sequence[tuple[float, float, str]]:
    """Returns at most POINTS of the points, and the last one."""
    step = -(-len(points) // POINTS)
    return points if step <= 1 else [*points[:-1:step], points[-1]]


def sparkline(values: Sequence[float | str], title: str) -> Markup:
    """A small curve without axes."""
    known = [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]
    if len(known) < 2:
        return Markup('<span class="empty">–</span>')
    low, high = min(known), max(known)
    path = " ".join(
        f"{2 + 96 * i / (len(known) - 1):.1f},{22 - 20 * ((v - low) / (high - low) if high > low else 0.5):.1f}"
        for i, v in enumerate(known)
    )
    head = '<svg class="spark" viewBox="0 0 100 24" role="img" aria-label="{}">'
    return Markup(head + '<polyline points="{}"/></svg>').format(title, path)


# -- the heat-map ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One claim in a heat-map."""

    column: int
    row: int
    state: str
    href: str
    title: str
    mark: str = ""
    """A sign on it; "": that of its state."""


def heatmap(title: str, cells: Sequence[Cell], columns: Sequence[str], rows: Sequence[str]) -> Markup:
    """Draws rounds x slots: a column for each round, a row for each slot, a cell with a link to its claim. Blocks of
    columns stand beside one another as far as the screen is wide."""
    size = len(columns) if len(columns) <= FEW_COLUMNS else BLOCK_COLUMNS
    begins = range(0, len(columns), size) if columns else range(1)
    blocks: dict[int, list[Cell]] = {begin: [] for begin in begins}
    for cell in cells:
        begin = cell.column // size * size
        blocks[begin].append(replace(cell, column=cell.column - begin))
    cell_size = LARGE_CELL if len(columns) <= FEW_COLUMNS else CELL
    drawn = [
        _block(title if len(blocks) == 1 else f"{title}, from round {columns[begin]}", found,
               columns[begin : begin + size], rows, cell_size)
        for begin, found in blocks.items()
    ]  # fmt: skip
    return Markup('<div class="heats">') + Markup("").join(drawn) + Markup("</div>")


def _block(title: str, cells: Sequence[Cell], columns: Sequence[str], rows: Sequence[str], cell_size: int) -> Markup:
    left, top, size = 52, 18, cell_size + GAP
    middle = cell_size // 2 + 5
    width, height = left + size * len(columns) + 4, top + size * len(rows) + 4
    head = f'<svg class="heat" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="group" '
    parts = [Markup(head + 'aria-label="{}">').format(title)]
    # A label has the width of three small cells.
    every = 1 if cell_size == LARGE_CELL else 3
    for i, name in enumerate(columns):
        if i % every == 0:
            parts.append(Markup('<text class="tick" x="{}" y="12">{}</text>').format(left + size * i, name))
    for i, name in enumerate(rows):
        parts.append(Markup('<text class="tick" x="{}" y="{}" text-anchor="end">{}</text>').format(
            left - 6, top + size * i + middle, name))  # fmt: skip
    for cell in cells:
        x, y = left + size * cell.column, top + size * cell.row
        # One format for each cell: a page has a thousand.
        state, href, said = escape(cell.state), escape(cell.href), escape(cell.title)
        glyph = cell.mark or GLYPHS.get(cell.state, "")
        mark = f'<text class="glyph" x="{x + cell_size / 2}" y="{y + middle}" text-anchor="middle">{glyph}</text>'
        parts.append(Markup(
            f'<a href="{href}" aria-label="{said}" tabindex="-1"><title>{said}</title>'
            f'<rect class="s-{state}" x="{x}" y="{y}" width="{cell_size}" height="{cell_size}" rx="2"/>'
            f'{mark if glyph else ""}</a>'
        ))  # fmt: skip
    return Markup("").join([*parts, Markup("</svg>")])


def strip(title: str, counts: Sequence[dict[str, int]], states: Sequence[str]) -> Markup:
    """Draws all rounds: a column for each, stacked by the states of its claims."""
    if not counts:
        return Markup('<p class="empty">No round has begun.</p>')
    counts = _binned(counts, -(-len(counts) // COLUMNS))
    width, height = 720, 60
    most = max(1, max(sum(c.values()) for c in counts))
    step = width / len(counts)
    paths: dict[str, list[str]] = {}
    for i, count in enumerate(counts):
        y = float(height)
        for state in states:
            n = count.get(state, 0)
            if n:
                h = height * n / most
                y -= h
                bar = f"M{i * step:.2f} {y:.2f}h{step * 0.92:.2f}v{h:.2f}h-{step * 0.92:.2f}z"
                paths.setdefault(state, []).append(bar)
    drawn = [Markup('<path class="s-{}" d="{}"/>').format(state, "".join(d)) for state, d in paths.items()]
    head = Markup('<svg class="strip" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">')
    return Markup("").join([head.format(width, height, title), *drawn, Markup("</svg>")])


def _binned(counts: Sequence[dict[str, int]], size: int) -> Sequence[dict[str, int]]:
    """The counts of `size` neighbours added up; a last group that is not full is left as it is."""
    if size <= 1:
        return counts
    return [
        {state: sum(c.get(state, 0) for c in group) for state in dict.fromkeys(s for c in group for s in c)}
        for group in (counts[i : i + size] for i in range(0, len(counts), size))
    ]


# -- the bisection --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """One halving of the bisection: its parts, and the one that differs."""

    parts: Sequence[dict[str, Any]]
    chosen: int | None
    """The index of the part that differs; None if the game has not gone further."""

    @property
    def words(self) -> str:
        """The caption of this level of the bisection."""
        part = self.parts[self.chosen if self.chosen is not None else 0]
        return str(part["label"])


def levels_of(tree: dict[str, Any]) -> list[Cut]:
    """Returns the levels of a tree of ranges, from the claim's trace down to the number."""
    levels, at = [Cut([tree], 0)], tree
    while at["parts"]:
        parts = at["parts"]
        chosen = next((i for i, part in enumerate(parts) if part["challenger"] == "differs"), None)
        levels.append(Cut(parts, chosen))
        if chosen is None:
            break
        at = parts[chosen]
    return levels


def icicle(title: str, tree: dict[str, Any]) -> Markup:
    """Each range that was halved, one below the other; the half that differs opens into the next row.

    Drawn twice: with the words beside the bars, and for narrow screens with the words above them.
    """
    levels = levels_of(tree)
    return _bars(title, levels, BARS, LABELS, 0, "wide") + _bars(title, levels, NARROW, 0, WORDS, "narrow")


def _bars(title: str, levels: Sequence[Cut], bars: int, beside: int, above: int, shape: str) -> Markup:
    """Draws the bars of all levels, `bars` px wide with `beside` px of text next to them; `above` is the text's height
    on top."""
    step = ROW + DROP + above
    head = '<svg class="icicle {c}" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img" aria-label="{t}">'
    parts = [Markup(head).format(c=shape, w=bars + beside, h=step * len(levels), t=title)]
    for i, level in enumerate(levels):
        y = i * step + above
        edges = _edges(level.parts, bars)
        for j, part in enumerate(level.parts):
            x, width = edges[j], edges[j + 1] - edges[j]
            said = escape(f"{part['label']}: {part['challenger']}")
            kind = escape(_kind(levels, i, str(part["challenger"])))
            parts.append(Markup(
                f'<rect class="r-{kind}" x="{x:.1f}" y="{y}" width="{max(1.0, width - 1):.1f}" '
                f'height="{ROW}"><title>{said}</title></rect>'
            ))  # fmt: skip
        if level.chosen is not None and i + 1 < len(levels):
            left, right, below = edges[level.chosen], edges[level.chosen + 1], y + step
            parts.append(Markup(
                f'<path class="funnel" d="M{left:.1f} {y + ROW}L{right:.1f} {y + ROW}L{bars} {below}L0 {below}z"/>'
            ))  # fmt: skip
        judged = len(level.parts) == 1 and _kind(levels, i, "differs") == "judged"
        last = f" strong{' judged' if judged else ''}" if i + 1 == len(levels) else ""
        x, baseline = (bars + 12, y + ROW - 6) if beside else (0, y - 5)
        parts.append(Markup('<text class="said{}" x="{}" y="{}">{}</text>').format(
            last, x, baseline, _short(level.words, int(((beside or bars) - 12) / LETTER))))  # fmt: skip
    return Markup("").join([*parts, Markup("</svg>")])


def _kind(levels: Sequence[Cut], i: int, said: str) -> str:
    """Returns the CSS class of a part of row `i`; where a tree begins, and for the contract's own word, no part was
    chosen."""
    if len(levels[i].parts) > 1 or said != "differs":
        return said
    judged = levels[i].words.startswith(("the contract computes", "the Program says"))
    return "judged" if judged else "whole"


def _edges(parts: Sequence[dict[str, Any]], bars: int) -> list[float]:
    sizes = [max(1, (p["last"] or 0) - (p["first"] or 0) + 1) if p["first"] is not None else 1 for p in parts]
    free = bars - LEAST * len(parts)
    edges = [0.0]
    for size in sizes:
        edges.append(edges[-1] + LEAST + free * size / sum(sizes))
    return edges


def word(bits: str | None, other: str | None) -> Markup:
    """Draws the 32 bits of a word (sign, exponent, fraction), with those marked that differ from another word."""
    if bits is None or len(bits) != 10:
        return Markup("")
    mine = int(bits, 16)
    marked = mine ^ int(other, 16) if other is not None and len(other) == 10 else 0
    spans = []
    for i in range(31, -1, -1):
        kind = "sign" if i == 31 else "exponent" if i >= 23 else "fraction"
        differs = " differs" if marked >> i & 1 else ""
        spans.append(f'<i class="{kind}{differs}">{mine >> i & 1}</i>')
    return Markup(f'<span class="bits" role="img" aria-label="{mine:032b}">' + "".join(spans) + "</span>")


def waterfall(title: str, steps: Sequence[tuple[str, int, str]]) -> Markup:
    """Draws amounts that add up, bar by bar: (name, amount with its sign, as text); the last one is the sum."""
    top = running = 0
    for _, amount, _ in steps[:-1]:
        running += amount
        top = max(top, running)
    if top <= 0:
        return Markup('<p class="empty">No money has moved.</p>')
    bars, running = [], 0
    for i, (name, amount, shown) in enumerate(steps):
        whole = i == len(steps) - 1
        begin, end = (0, amount) if whole else sorted((running, running + amount))
        running += 0 if whole else amount
        kind = "whole" if whole else "plus" if amount >= 0 else "minus"
        bars.append(Bar(name, begin / top, (end - begin) / top, shown, kind))
    return _wide_bars(title, bars) + _narrow_bars(title, bars)


@dataclass(frozen=True)
class Bar:
    """One bar of a waterfall."""

    name: str
    begin: float
    """The place of its left end, as a share of the width."""
    share: float
    shown: str
    kind: str
    """plus, minus, whole."""


def _wide_bars(title: str, bars: Sequence[Bar]) -> Markup:
    """The names stand left of the bars, and the amounts right of them."""
    row, left, width = 30, 190, 340
    head = '<svg class="fall wide" viewBox="0 0 {} {}" role="img" aria-label="{}">'
    parts = [Markup(head).format(left + width + 170, row * len(bars), title)]
    for i, bar in enumerate(bars):
        x, w, y = left + min(width * bar.begin, width - 1), max(1, width * bar.share), row * i + 5
        parts.append(Markup(
            '<text class="name" x="{}" y="{}" text-anchor="end">{}</text>'
            '<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="20"/>'
            '<text class="name" x="{:.1f}" y="{}">{}</text>'
        ).format(left - 10, y + 15, bar.name, bar.kind, x, y, w, x + w + 8, y + 15, bar.shown))  # fmt: skip
    return Markup("").join([*parts, Markup("</svg>")])


def _narrow_bars(title: str, bars: Sequence[Bar]) -> Markup:
    """The names and the amounts stand above the bars."""
    row, width = 44, 310
    head = '<svg class="fall narrow" viewBox="0 0 {} {}" role="img" aria-label="{}">'
    parts = [Markup(head).format(width, row * len(bars), title)]
    for i, bar in enumerate(bars):
        y = row * i
        parts.append(Markup(
            '<text class="name" x="0" y="{}">{}</text><text class="name" x="{}" y="{}" text-anchor="end">{}</text>'
            '<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="16"/>'
        ).format(y + 14, bar.name, width, y + 14, bar.shown, bar.kind, min(width * bar.begin, width - 1), y + 20,
                 max(1, width * bar.share)))  # fmt: skip
    return Markup("").join([*parts, Markup("</svg>")])


# -- numbers --------------------------------------------------------------------------------------------


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Returns round numbers within a range: steps of 1, 2 or 5 times a power of ten."""
    span = high - low
    if span <= 0:
        return [low]
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw)
    first = math.ceil(low / step)
    return [step * k for k in range(first, math.floor(high / step) + 1)]


def number(value: float) -> str:
    """Formats a number of an axis."""
    if value and abs(value) >= 10_000:
        for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
            if abs(value) >= size:
                return f"{value / size:.4g}{unit}"
    return f"{value:.6g}"


def _range(values: Sequence[float]) -> Range:
    low, high = min(values), max(values)
    if high > low:
        return low, high
    return low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2


def _place(value: float, values: Range, low: float, high: float) -> float:
    return low + (value - values[0]) / (values[1] - values[0]) * (high - low)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
