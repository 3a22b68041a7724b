"""Traces layers that an `if` drops at random (LayerDrop, Fan 2019): always computed, then selected by `where`.

    if torch.rand([]) < self.layerdrop: continue
    hidden = layer(hidden)                              becomes  hidden = where(drawn, hidden, layer(hidden))

A condition qualifies if it compares a single draw of `torch.rand` with a number whose name contains "layerdrop". The
condition is traced as false, and the next module called is taken as the layer: it returns its input where the layer is
dropped.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.utils._pytree import tree_leaves

from lockstep.protocol.errors import LoweringError

_NAMED = re.compile(r"layer_?drop", re.IGNORECASE)
HINT = "turn it off: layerdrop = 0 in the configuration, or model.eval()"


class DroppedLayers:
    """The layers of one trace that may be dropped at random."""

    def __init__(self) -> None:
        self._draws: list[torch.Tensor] = []
        self._conditions: list[torch.Tensor] = []
        self._decided: list[torch.Tensor] = []
        self._pending: torch.Tensor | None = None
        self._open: list[tuple[torch.nn.Module, torch.Tensor]] = []

    def drawn(self, *size: Any, **kwargs: Any) -> torch.Tensor:
        """`torch.rand`; records the result if it is a single draw."""
        result = torch.rand(*size, **kwargs)
        if result.dim() == 0:
            self._draws.append(result)
        return result

    def compared(self, x: torch.Tensor, result: torch.Tensor, frame: FrameType) -> None:
        """Records the result of `x < number`, if the frame's expression decides whether a layer is dropped."""
        if any(x is d for d in self._draws) and _NAMED.search(_source(frame)):
            self._conditions.append(result)

    def decides(self, x: torch.Tensor) -> bool:
        """True if the condition drops a layer. The first such call assigns the condition to the next module called."""
        if not any(x is c for c in self._conditions):
            return False
        if not any(x is d for d in self._decided):
            self._settled()
            self._decided.append(x)
            self._pending = x
        return True

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Hooks module calls. Raises LoweringError if a drop condition is followed by no module call."""
        handles = [
            torch_module.register_module_forward_pre_hook(self._enter),
            torch_module.register_module_forward_hook(self._leave, with_kwargs=True),
        ]
        try:
            yield
            self._settled()
        finally:
            for handle in handles:
                handle.remove()

    def _settled(self) -> None:
        # INVARIANT: each decision is about one layer.
        if self._pending is not None:
            raise LoweringError("a layer that is dropped at random is never called", hint=HINT)

    def _enter(self, module: torch.nn.Module, _inputs: Any) -> None:
        if self._pending is not None:
            self._open.append((module, self._pending))
            self._pending = None

    def _leave(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if not self._open or self._open[-1][0] is not module:
            return None
        _, condition = self._open.pop()
        given = next((x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)), None)
        first = output[0] if isinstance(output, tuple) else output
        if given is None or not isinstance(first, torch.Tensor) or (given.shape, given.dtype) != (
            first.shape, first.dtype,
        ):  # fmt: skip
            raise LoweringError(
                "a layer that is dropped at random does not return a tensor of its input's shape", hint=HINT
            )
        chosen = torch.where(condition, given, first)
        return (chosen, *output[1:]) if isinstance(output, tuple) else chosen


def _source(frame: FrameType | None) -> str:
    """Returns the source text of the expression that a frame is evaluating."""
    # Frames of torch modes lie between the comparison and the user's line.
    while frame is not None and frame.f_code.co_name == "__torch_function__":
        frame = frame.f_back
    if frame is None:
        return ""
    line, _, start, end = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    return "" if line is None else linecache.getline(frame.f_code.co_filename, line)[start:end]
