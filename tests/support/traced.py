"""Caches Programs of registered models, traced once per process.

A trace takes most of a test's time, and its result depends on its arguments alone, as `test_trace.py` and
`test_host.py` check on uncached traces.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from inspect import signature
from typing import Any

import pytest
from torch import nn

from lockstep.protocol.errors import UsageError
from lockstep.tracing.arithmetic import Arithmetic
from lockstep.training import evaluation, job
from lockstep.training.models import describe


def _once(traced: Callable[..., job.TracedPrograms]) -> Callable[..., job.TracedPrograms]:
    """Returns the function with a cache for registered models, by their description without weights."""
    parameters, held = signature(traced), dict[Any, job.TracedPrograms]()

    def build(*given: Any, **named: Any) -> job.TracedPrograms:
        bound = parameters.bind(*given, **named)
        bound.apply_defaults()
        model, *others = bound.arguments.values()
        try:
            key = (_key(model), *(repr(x) if isinstance(x, Arithmetic) else x for x in others))
        except UsageError:
            return traced(*given, **named)
        if key not in held:
            held[key] = traced(*given, **named)
        return held[key]

    return build


def _key(model: nn.Module) -> tuple[Any, ...]:
    """Returns everything that a trace reads of a model. Raises UsageError for an unregistered one."""
    constants = [*model.named_buffers(), *((n, p) for n, p in model.named_parameters() if not p.requires_grad)]
    values = [None if t.is_meta else sha256(t.detach().numpy().tobytes()).digest() for _, t in constants]
    shapes = [(name, p.shape, p.requires_grad) for name, p in model.named_parameters()]
    described = json.dumps(describe(model), sort_keys=True)
    return type(model), described, model.training, tuple(shapes), tuple(values)


build_programs = _once(job.build_programs)
"""Cached `lockstep.training.job.build_programs`."""
build_evaluation = _once(evaluation.build_programs)
"""Cached `lockstep.training.evaluation.build_programs`."""


def install(patch: pytest.MonkeyPatch) -> None:
    """Lets jobs and evaluations use the cached Programs."""
    patch.setattr(job, "build_programs", build_programs)
    patch.setattr(evaluation, "build_programs", build_evaluation)
