"""Torch function to aten graph, every node with the module and the line that it comes from.

Two stages (document 3, "Tracing"): `make_fx` over fake tensors, with `torch.autograd.grad` running inside it; then,
if anything is written in place, once more through `functionalize`. Fused attention is replaced by its formula before
torch can choose a kernel.
"""

from __future__ import annotations

import linecache
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import PythonKeyTracer, make_fx
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode

from lockstep.protocol.errors import LockstepError, LoweringError
from lockstep.tracing.graph import Origin

_TORCH = str(Path(torch.__file__).parent)
_OWN = str(Path(__file__).parent)
ORIGIN = "lockstep_origin"
"""Key of a node's Origin in `fx.Node.meta`."""


class _Attention(TorchFunctionMode):
    """Replaces fused attention by its formula."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """softmax(q k^T / sqrt(d) + mask) v (Vaswani 2017, section 3.2.1); shapes [..., T, d]; refuses dropout."""
    if dropout_p:
        raise LoweringError(
            "scaled_dot_product_attention with dropout cannot become a Program",
            hint="set the attention's dropout to 0",
        )
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key = torch.repeat_interleave(key, groups, -3)
        value = torch.repeat_interleave(value, groups, -3)
    scores = (query @ key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        rows = torch.arange(query.shape[-2]).unsqueeze(1)
        scores = scores.masked_fill(torch.arange(key.shape[-2]).unsqueeze(0) > rows, -math.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return torch.softmax(scores, -1) @ value


class _Recorder:
    """Attributes every traced node to a module and a source line; a backward node to its forward."""

    def __init__(self) -> None:
        self.stack: list[str] = []
        self.paths: dict[int, str] = {}
        self.forward: dict[int, Origin] = {}
        self.inherited: Origin | None = None

    def enter(self, module: torch.nn.Module, _inputs: Any) -> None:
        """Forward pre-hook."""
        if not self.stack:
            self.paths |= {id(m): name for name, m in module.named_modules()}
        self.stack.append(self.paths.get(id(module), type(module).__name__))

    def leave(self, _module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        """Forward hook; runs after an exception too."""
        self.stack.pop()

    def origin(self, aten: str) -> Origin:
        """Of the node being made now."""
        if self.inherited is not None:
            return self.inherited
        running = torch._C._current_autograd_node()
        if running is not None:
            source = self.forward.get(running._sequence_nr(), Origin())
            return Origin(source.module, aten, source.place)
        here = Origin(self.stack[-1] if self.stack else "", aten, _place(sys._getframe(2)))
        if torch.is_grad_enabled():
            self.forward.setdefault(torch.autograd._get_sequence_nr() - 1, here)
        return here

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Hooks module calls and node creation."""
        original = PythonKeyTracer.create_node

        def create_node(tracer: PythonKeyTracer, kind: str, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
            node = original(tracer, kind, target, *args, **kwargs)
            node.meta[ORIGIN] = self.origin(_aten_name(target))
            return node

        handles = [
            torch_module.register_module_forward_pre_hook(self.enter),
            torch_module.register_module_forward_hook(self.leave, always_call=True),
        ]
        PythonKeyTracer.create_node = create_node  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            PythonKeyTracer.create_node = original  # type: ignore[method-assign]
            for handle in handles:
                handle.remove()


class _Retrace(fx.Interpreter):
    """Runs a graph node by node; what each becomes inherits its origin."""

    def __init__(self, graph_module: fx.GraphModule, recorder: _Recorder) -> None:
        super().__init__(graph_module)
        self.recorder = recorder

    def run_node(self, n: fx.Node) -> Any:
        self.recorder.inherited = n.meta.get(ORIGIN, Origin())
        return super().run_node(n)


def capture(fn: Callable[..., Any], examples: Sequence[torch.Tensor]) -> fx.GraphModule:
    """The aten graph of `fn(*examples)`; raises LoweringError where torch cannot trace it."""
    recorder = _Recorder()
    with recorder.recording(), _Attention():
        try:
            graph_module = make_fx(fn, tracing_mode="fake", _allow_non_fake_inputs=True)(*examples)
            if any(_mutates(n) for n in graph_module.graph.nodes):
                again = torch.func.functionalize(
                    lambda *args: _Retrace(graph_module, recorder).run(*args), remove="mutations"
                )
                graph_module = make_fx(again, tracing_mode="fake", _allow_non_fake_inputs=True)(*examples)
        except Exception as error:
            raise _explain(error, recorder) from error
    graph_module.graph.eliminate_dead_code()
    return graph_module


def _mutates(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _aten_name(target: Any) -> str:
    return str(target).removesuffix(".default") if isinstance(target, torch._ops.OpOverload) else str(target)


def _is_user(code: CodeType) -> bool:
    name = code.co_filename
    return not (name.startswith((_TORCH, _OWN, "<")) or "/contextlib.py" in name)


def _place(frame: FrameType | None) -> str:
    """`file.py:12  source` of the innermost line that is neither torch's nor ours."""
    while frame is not None and not _is_user(frame.f_code):
        frame = frame.f_back
    return _line(frame.f_code, frame.f_lineno) if frame is not None else ""


def _line(code: CodeType, number: int) -> str:
    return f"{Path(code.co_filename).name}:{number}  {linecache.getline(code.co_filename, number).strip()}".strip()


def _explain(error: Exception, recorder: _Recorder) -> LockstepError:
    """What the user wrote that could not be traced, with its module and line."""
    if isinstance(error, LockstepError) and not isinstance(error, LoweringError):
        return error
    module, place, aten = "", "", ""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module) and frame.f_code.co_name == "forward":
            module = recorder.paths.get(id(owner), module)
        if _is_user(frame.f_code):
            place = _line(frame.f_code, trace.tb_lineno)
        if "func" in frame.f_locals and isinstance(frame.f_locals["func"], torch._ops.OpOverload):
            aten = _aten_name(frame.f_locals["func"])
        trace = trace.tb_next
    kind = type(error).__name__
    if isinstance(error, LoweringError):
        what, hint = error.message, error.hint
    elif kind in ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode") or (
        "tracing tensor" in str(error)
    ):
        what = f"a value or shape that depends on data ({aten or 'aten._local_scalar_dense'})"
        hint = (
            "a Program's shapes and control flow are fixed: no .item(), nonzero, boolean-mask indexing or `if tensor`"
        )
    else:
        what = f"what torch cannot trace ({aten or kind}: {str(error).strip().splitlines()[0] if str(error) else kind})"
        hint = "run the function eagerly on these inputs first; if that works, the operation has no fake kernel"
    return LoweringError(f"module `{module or '(top level)'}` uses {what} at {place or 'an unknown line'}", hint=hint)
