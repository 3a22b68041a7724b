"""Recognises guards: conditions that only decide whether an error is raised or a message is logged.

A Program's control flow is fixed: no condition may depend on data. An `assert`, or an `if` without `else` whose body
raises or logs, has the same graph for all data that pass the guard, so the trace assumes that they pass. The Program
does not check the condition.
"""

from __future__ import annotations

import ast
import linecache
import math
from collections.abc import Iterator
from functools import cache
from types import FrameType

_LOGGERS = ("logger", "logging", "warnings", "log")


def passing(frame: FrameType | None) -> bool | None:
    """Returns the truth value with which the frame's current guard lets the call go on; None outside of a guard."""
    for statement, place in _asked(frame):
        nots = _nots(statement.test, place)
        if nots is not None:
            return (nots % 2 == 0) == isinstance(statement, ast.Assert)
    return None


def passing_number(frame: FrameType | None) -> float | None:
    """Returns the infinity with which a guard (`<`, `<=`, `>` or `>=`) on the current instruction's result passes; None
    if there is no such guard."""
    for statement, place in _asked(frame):
        test = statement.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and _place(test.left) == place:
            below = {ast.Lt: True, ast.LtE: True, ast.Gt: False, ast.GtE: False}.get(type(test.ops[0]))
            if below is not None:
                return -math.inf if below == isinstance(statement, ast.Assert) else math.inf
    return None


def _asked(frame: FrameType | None) -> Iterator[tuple[ast.Assert | ast.If, tuple[int | None, ...]]]:
    """Yields each guard of the frame's file, with the source positions to which the current instruction may belong."""
    # Frames of torch modes lie between the statement and its condition.
    while frame is not None and frame.f_code.co_name == "__torch_function__":
        frame = frame.f_back
    if frame is None:
        return
    places = list(frame.f_code.co_positions())
    # A jump has the position of its whole statement; the instruction before the jump computed its condition.
    for at in (frame.f_lasti // 2, frame.f_lasti // 2 - 1):
        for statement in _guards(frame.f_code.co_filename):
            yield statement, places[at]


@cache
def _guards(path: str) -> tuple[ast.Assert | ast.If, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return ()
    return tuple(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert) or (isinstance(node, ast.If) and not node.orelse and _only_tells(node.body))
    )


def _only_tells(body: list[ast.stmt]) -> bool:
    """True if the statements raise, log, or do nothing."""
    return all(isinstance(s, (ast.Raise, ast.Pass)) or (isinstance(s, ast.Expr) and _logs(s.value)) for s in body)


def _logs(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return isinstance(value, ast.Constant)
    function = value.func
    return (
        isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id in _LOGGERS
    )


def _place(test: ast.expr) -> tuple[int | None, ...]:
    return test.lineno, test.end_lineno, test.col_offset, test.end_col_offset


def _nots(test: ast.expr, place: tuple[int | None, ...]) -> int | None:
    """Counts the negations above the expression at a source position in a test; None if it is not a condition there."""
    if _place(test) == place:
        return 0
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _nots(test.operand, place)
        return None if inner is None else inner + 1
    if isinstance(test, ast.BoolOp):
        return next((n for value in test.values if (n := _nots(value, place)) is not None), None)
    return None
