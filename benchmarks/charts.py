"""Line charts as SVG text: the same numbers give the same bytes, a changed figure is a changed line of a diff."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 40, 52
COLOURS = (
    "#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#16a085", "#7f8c8d", "#34495e", "#a04000", "#e84393",
    "#00b8d4", "#8d9f00", "#5d3fd3", "#000000", "#f4c20d",
)  # fmt: skip


Axis = tuple[Callable[[float], float], list[float]]
"""A value's place in pixels, and the values to mark."""


@dataclass(frozen=True)
class Line:
    """Points in order, joined, or `dots` by themselves."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False
    dashed: bool = False
    colour: str = ""
    """One of the palette's, if empty."""


@dataclass(frozen=True)
class Chart:
    """Axes, what they say, and the lines."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    log_x: bool = False
    y_most: float | None = None
    """The end of the axis; None: the data's largest. Points beyond it are left out."""
    from_zero: bool = True
    """The y axis begins at 0; else at the data's least."""

    def svg(self) -> str:
        """The picture."""
        points = [point for line in self.lines for point in line.points]
        to_x, x_ticks = _axis([x for x, _ in points], LEFT, WIDTH - RIGHT, log=self.log_x)
        highest = [y for _, y in points if self.y_most is None or y <= self.y_most]
        if self.y_most is not None:
            highest.append(self.y_most)
        to_y, y_ticks = _axis([0.0, *highest] if self.from_zero else highest, HEIGHT - BOTTOM, TOP)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            _text(LEFT, 22, self.title, size=15),
            _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, self.x, anchor="middle"),
            _text(16, (TOP + HEIGHT - BOTTOM) / 2, self.y, anchor="middle", turned=True),
        ]
        for tick in x_ticks:
            parts.append(_rule(to_x(tick), TOP, to_x(tick), HEIGHT - BOTTOM))
            parts.append(_text(to_x(tick), HEIGHT - BOTTOM + 18, f"{tick:g}", anchor="middle"))
        for tick in y_ticks:
            parts.append(_rule(LEFT, to_y(tick), WIDTH - RIGHT, to_y(tick)))
            parts.append(_text(LEFT - 8, to_y(tick) + 4, f"{tick:g}", anchor="end"))
        for i, line in enumerate(self.lines):
            colour = line.colour or COLOURS[i % len(COLOURS)]
            shown = [(to_x(x), to_y(y)) for x, y in line.points if self.y_most is None or y <= self.y_most]
            parts += _drawn(line, shown, colour)
            parts += _drawn(line, [(WIDTH - RIGHT + 14, TOP + 18 * i), (WIDTH - RIGHT + 38, TOP + 18 * i)], colour)
            parts.append(_text(WIDTH - RIGHT + 46, TOP + 18 * i + 4, line.name))
        return "\n".join([*parts, "</svg>", ""])


def _axis(values: Sequence[float], start: float, end: float, *, log: bool = False) -> Axis:
    """Between two pixels; marked are whole steps of 1, 2 or 5, of each decade if `log`."""
    if log:
        low, high = log10(min(values)), log10(max(values))
        marks = [m * 10.0**e for e in range(floor(low), ceil(high) + 1) for m in (1, 2, 5)]
        shown = [mark for mark in marks if low - 1e-9 <= log10(mark) <= high + 1e-9]
        return lambda v: start + (log10(v) - low) / (high - low or 1.0) * (end - start), shown
    low, high = min(values), max(values)
    raw = (high - low or 1.0) / 6
    power = 10.0 ** floor(log10(raw))
    step = power * next(m for m in (1, 2, 5, 10) if m * power >= raw)
    low, high = floor(low / step) * step, ceil(high / step - 1e-9) * step
    ticks = [round(low + i * step, 10) for i in range(round((high - low) / step) + 1)]
    return lambda v: start + (v - low) / (high - low) * (end - start), ticks


def _drawn(line: Line, points: Sequence[tuple[float, float]], colour: str) -> list[str]:
    if line.dots:
        return [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in points]
    dash = ' stroke-dasharray="6 4"' if line.dashed else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>']


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e3e3e3"/>'


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{turn}>{escape(text)}</text>'
