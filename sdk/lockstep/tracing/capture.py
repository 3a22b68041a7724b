"""Captures a torch function as an aten graph; every node records its module and its source line.

Two stages (docs/numerics.md, Tracing): `make_fx` over fake tensors, with `torch.autograd.grad` running inside it; then,
if anything is written in place, once more through `functionalize`. Operations for which torch would choose a kernel or
a generator are replaced by formulas first (`functions.py`).
"""

from __future__ import annotations

import linecache
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import (
    ProxyTorchDispatchMode,
    PythonKeyTracer,
    get_proxy_mode,
    get_proxy_slot,
    make_fx,
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules import module as torch_module

from lockstep.protocol.errors import LockstepError, LoweringError
from lockstep.tracing.attributes import Caches, refuse_left
from lockstep.tracing.decomposed import DECOMPOSED
from lockstep.tracing.formulas import without_loops
from lockstep.tracing.functions import Replaced, without_autocast, without_checkpointing, without_compiling
from lockstep.tracing.graph import Origin
from lockstep.tracing.host import HINT, HostDraws
from lockstep.tracing.known import UNKEPT_HINT, UNKEPT_WRITE, KnownValues
from lockstep.tracing.routed import counting

_TORCH = str(Path(torch.__file__).parent)
_OWN = str(Path(__file__).parent)
_STEPS = f"{Path(__file__).parents[1] / 'training'}/"
"""Folder whose files call users' losses.

Source lines in its subfolders (models, optimizers, strategies) are reported in errors.
"""
ORIGIN = "lockstep_origin"
"""Key of a node's Origin in `fx.Node.meta`."""
SHAPES_HINT = (
    "no nonzero, unique, torch.where of a mask alone or boolean-mask indexing: keep every element and weigh it, as "
    "torch.where(mask, values, 0.0).sum() / mask.sum(), or give a loss its ignore_index; give every expert all rows"
)
NO_VALUES = "buffers and frozen parameters are constants: training.parameters.without_weights() keeps buffers' values"


_NAMED: ContextVar[tuple[torch.nn.Module, ...]] = ContextVar("named", default=())

_WARNED: ContextVar[set[str] | None] = ContextVar("warned", default=None)


@contextmanager
def naming(model: torch.nn.Module) -> Iterator[None]:
    """Names modules relative to the given model, whichever of them is called first."""
    token = _NAMED.set((*_NAMED.get(), model))
    try:
        yield
    finally:
        _NAMED.reset(token)


class _Recorder:
    """Attributes every traced node to a module and a source line; a backward node to its forward node."""

    def __init__(self) -> None:
        self.stack: list[str] = []
        self.paths: dict[int, str] = {}
        self.forward: dict[int, Origin] = {}
        self.inherited: Origin | None = None

    def enter(self, module: torch.nn.Module, _inputs: Any) -> None:
        """Records that a module's forward call begins; a forward pre-hook."""
        if not self.stack:
            for model in (module, *_NAMED.get()):
                self.paths |= {id(m): name for name, m in model.named_modules()}
        self.stack.append(self.paths.get(id(module), type(module).__name__))

    def leave(self, _module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        """Records that a module's forward call ends; a forward hook that also runs after an exception."""
        self.stack.pop()

    def origin(self, aten: str) -> Origin:
        """Returns the origin of the node under construction."""
        if self.inherited is not None:
            return self.inherited
        running = torch._C._current_autograd_node()
        if running is not None:
            source = self.forward.get(running._sequence_nr(), Origin())
            return Origin(source.module, aten, source.place, source.inside, backward=True)
        here = Origin(self.stack[-1] if self.stack else "", aten, _place(sys._getframe(2)), bool(self.stack))
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
    """Replays a graph node by node; every new node inherits the origin of the one it replaces."""

    def __init__(self, graph_module: fx.GraphModule, recorder: _Recorder) -> None:
        super().__init__(graph_module)
        self.recorder = recorder

    def run_node(self, n: fx.Node) -> Any:
        self.recorder.inherited = n.meta.get(ORIGIN, Origin())
        result = super().run_node(n)
        # A value computed from constants may be written in place like any other; a constant itself may not.
        if _is_fresh(n) and isinstance(result, torch.Tensor) and not torch._is_functional_tensor(result):
            return torch.ops.aten.lift(result)
        return result

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operation as recorded, but copies where a view would need another memory layout once writes are
        gone.
        """
        try:
            return super().call_function(target, args, kwargs)
        except (RuntimeError, ValueError):
            if target is not torch.ops.aten.view.default:
                raise
            return args[0].reshape(args[1])


def capture(fn: Callable[..., Any], examples: Sequence[torch.Tensor]) -> fx.GraphModule:
    """Returns the aten graph of `fn`, traced on fake tensors with the dtypes and shapes of the examples.

    Raises LoweringError where torch cannot trace the function, and where the host draws random numbers.
    """
    draws = HostDraws()
    with draws.watching(), Caches(draws.caches):
        graph_module = _captured(fn, examples, _Recorder())
        if draws.drawn() is None:
            return graph_module
        recorder = _Recorder()
        again: list[fx.GraphModule] = []
        found = draws.located(
            lambda: again.append(_captured(fn, examples, recorder)),
            lambda frame: partial(
                _module_and_line, recorder.stack[-1] if recorder.stack else "", frame.f_code, frame.f_lineno
            ),
        )
    # INVARIANT: a Program holds no number that the host drew.
    if found:
        name, module, place = found
        raise LoweringError(
            f"module `{module or '(top level)'}` uses numbers drawn on the host ({name}) at "
            f"{place or 'an unknown line'}",
            hint=HINT,
        )
    return again[0]


def _module_and_line(module: str, code: CodeType, line: int) -> tuple[str, str]:
    return module, _line(code, line)


def _captured(
    fn: Callable[..., Any], examples: Sequence[torch.Tensor], recorder: _Recorder, *, zeros_have_values: bool = False
) -> fx.GraphModule:
    with FakeTensorMode(
        allow_fallback_kernels=True, allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True
    ):
        fakes = [torch.empty(e.shape, dtype=e.dtype, device="cpu") for e in examples]
    known = KnownValues(
        lambda: _place(sys._getframe(1)),
        lambda: Origin(recorder.stack[-1] if recorder.stack else "", "", _place(sys._getframe(1))),
        zeros_have_values=zeros_have_values,
    )

    def watched(*tensors: torch.Tensor) -> Any:
        with known:
            return fn(*tensors)

    replaced, lost = Replaced(known), False
    with (
        recorder.recording(),
        without_checkpointing(),
        without_compiling(),
        without_loops(),
        without_autocast(known),
        sdpa_kernel(SDPBackend.MATH),
        replaced,
    ):
        try:
            with replaced.layers.watching(), counting(known):
                graph_module = _made(watched)(*fakes)
            if known.unkept is not None:
                what, origin = known.unkept
                raise RefusedEarlier(origin, what, UNKEPT_HINT)
            if any(_mutates(n) for n in graph_module.graph.nodes):
                again = torch.func.functionalize(
                    lambda *args: _Retrace(graph_module, recorder).run(*args), remove="mutations"
                )
                graph_module = _made(again)(*fakes)
        except Exception as error:
            # Torch loses the device of zero tensors without values in second derivatives.
            lost = known.tangents and not zeros_have_values and "two devices" in str(error)
            if not lost:
                raise _explain(error, recorder, known) from error
    if lost:
        recorder.inherited = None
        return _captured(fn, examples, recorder, zeros_have_values=True)
    _drop_empty_parts(graph_module)
    graph_module.graph.eliminate_dead_code()
    _refuse_left(graph_module)
    if known.narrowed is not None:
        what, place = known.narrowed
        warn_once(f"{what} at {place or 'an unknown line'}: a Program computes in binary32 and integers of 32 bits")
    return graph_module


@contextmanager
def warning_once() -> Iterator[None]:
    """Deduplicates warnings across the traces inside this context."""
    token = _WARNED.set(set())
    try:
        yield
    finally:
        _WARNED.reset(token)


def warn_once(text: str) -> None:
    """Warns, unless an earlier trace in the same `warning_once` context gave this warning."""
    warned = _WARNED.get()
    if warned is None or text not in warned:
        warnings.warn(text, stacklevel=2)
    if warned is not None:
        warned.add(text)


def _refuse_left(graph_module: fx.GraphModule) -> None:
    """Raises LoweringError for a graph that reads a tensor left by the previous step."""
    for node in graph_module.graph.nodes:
        if node.op == "get_attr" and isinstance(value := getattr(graph_module, str(node.target)), torch.Tensor):
            try:
                refuse_left(value)
            except LoweringError as error:
                origin = next((n.meta[ORIGIN] for n in node.users if ORIGIN in n.meta), Origin())
                raise _at(origin.module, error.message, origin.place, error.hint) from None


def _made(fn: Callable[..., Any]) -> Callable[..., fx.GraphModule]:
    return make_fx(fn, decomposition_table=DECOMPOSED, tracing_mode="fake", _allow_non_fake_inputs=True)


def _drop_empty_parts(graph_module: fx.GraphModule) -> None:
    """Removes parts without elements from concatenations: caches of keys and values start with an empty part."""
    for node in graph_module.graph.nodes:
        if node.target is torch.ops.aten.cat.default:
            parts = [part for part in node.args[0] if _elements(graph_module, part) != 0]
            node.args = (parts, *node.args[1:])


def _elements(graph_module: fx.GraphModule, node: fx.Node) -> int | None:
    value = getattr(graph_module, str(node.target)) if node.op == "get_attr" else node.meta.get("val")
    return value.numel() if isinstance(value, torch.Tensor) else None


def _mutates(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _is_fresh(node: fx.Node) -> bool:
    """True if no result of the node shares memory with an argument."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and all(r.alias_info is None for r in schema.returns)


def _aten_name(target: Any) -> str:
    return str(target).removesuffix(".default") if isinstance(target, torch._ops.OpOverload) else str(target)


def _is_user(code: CodeType) -> bool:
    name = code.co_filename
    return not (
        name.startswith((_TORCH, _OWN, "<"))
        or "/contextlib.py" in name
        or (name.startswith(_STEPS) and "/" not in name[len(_STEPS) :])
    )


def _place(frame: FrameType | None) -> str:
    """Returns `file.py:12 source` for the innermost line of a frame that is neither torch's nor this package's."""
    while frame is not None and not _is_user(frame.f_code):
        frame = frame.f_back
    return _line(frame.f_code, frame.f_lineno) if frame is not None else ""


def _line(code: CodeType, number: int) -> str:
    return f"{Path(code.co_filename).name}:{number}  {linecache.getline(code.co_filename, number).strip()}".strip()


class RefusedEarlier(LoweringError):
    """A refusal that concerns an earlier source line, not the line that is being traced."""

    def __init__(self, origin: Origin, message: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.origin = origin


def origin_of(value: Any) -> Origin:
    """Returns the origin of a tensor, or of a pair of tensors, in the trace in progress."""
    mode, tensor = get_proxy_mode(), getattr(value, "re", value)
    if not isinstance(mode, ProxyTorchDispatchMode) or not isinstance(tensor, torch.Tensor):
        return Origin()
    found: Any = get_proxy_slot(tensor, mode.tracer, None, lambda slot: slot.proxy.node.meta.get(ORIGIN))
    return found or Origin()


def place_here() -> str:
    """Returns `file.py:12 source` for the user's line that is being traced."""
    return _place(sys._getframe(1))


def _explain(error: Exception, recorder: _Recorder, values: KnownValues) -> LockstepError:
    """Returns an error that names the user's operation that could not be traced, with its module and line."""
    if isinstance(error, LockstepError) and not isinstance(error, LoweringError):
        return error
    # During a replay of a graph the failing node has the origin, and no frame has it.
    known = recorder.inherited or Origin()
    module, place, aten = known.module, known.place, known.aten
    trace = error.__traceback__
    while trace is not None and recorder.inherited is None:
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
    if isinstance(error, RefusedEarlier):
        module, place = error.origin.module, error.origin.place
    if isinstance(error, LoweringError):
        what, hint = error.message, error.hint
    elif kind in ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode") or (
        any(text in str(error) for text in ("tracing tensor", "'_Unknown'", ".numpy() is not supported"))
    ):
        what = f"a value or shape that depends on data ({aten or 'aten._local_scalar_dense'})"
        hint = (
            SHAPES_HINT
            if kind == "GuardOnDataDependentSymNode"
            else (
                "a Program's shapes and control flow are fixed: no .item(), .numpy(), nonzero, boolean-mask indexing "
                "or `if tensor`; choose with torch.where"
            )
        )
    elif "SymIntArrayRef" in str(error) and values.sized_at is not None:
        # A backward pass has no source line of the user.
        what, place, hint = "a shape that depends on data", values.sized_at, SHAPES_HINT
    elif "Sparse" in str(error):
        what, hint = f"a sparse tensor ({aten or kind})", "make a constant one beforehand, or a dense one: to_dense()"
    elif "two devices" in str(error) and "meta" in str(error):
        what, hint = f"a constant that has no values ({aten})", NO_VALUES
    elif "mutating a non-functional tensor" in str(error):
        what, hint = f"{UNKEPT_WRITE} ({aten or 'in place'})", UNKEPT_HINT
    else:
        what = f"what torch cannot trace ({aten or kind}: {str(error).strip().splitlines()[0] if str(error) else kind})"
        hint = "run it eagerly on these inputs first; if that works, write the line with other operations of torch"
    return _at(module, what, place, hint)


def _at(module: str, what: str, place: str, hint: str) -> LoweringError:
    return LoweringError(f"module `{module or '(top level)'}` uses {what} at {place or 'an unknown line'}", hint=hint)
