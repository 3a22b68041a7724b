"""Llamas of real shape become Programs that a market takes, in time and memory that grow with operations alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import size
from benchmarks.size import MAX_TRACE_GB, MAX_TRACE_SECONDS, MODELS, Size, check

pytest.importorskip("transformers")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters", "shards"), [("Llama 1.2B", 1_235_814_400, 2), ("Llama 8B", 8_030_261_248, 8)]
)
def test_a_llama_of_real_shape_is_traced_and_validated(name: str, parameters: int, shards: int) -> None:
    (row,) = size.measure(name, [1], 1)
    assert (row.parameters, row.shards) == (parameters, shards)
    assert row.trace_gb < MAX_TRACE_GB / 4, "a hundredth of the weights"
    assert row.trace_seconds < MAX_TRACE_SECONDS
    assert row.worker_gb > 16 * parameters / 1e9, "parameters, anchor and moments at least"
    assert row.step_seconds is None


def row(**changes: object) -> Size:
    fields = {
        "model": "a", "products": "float32", "parameters": 1, "tokens": 1, "ops": 1, "elements": 1, "shards": 1,
        "trace_seconds": 1.0, "trace_gb": 1.0, "worker_gb": 1.0, "payload_gb": 1.0, "threads": 1,
        "ratio": 0.9, "memory_ratio": 1.0,
    }  # fmt: skip
    return Size(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"trace_seconds": 121.0}, "traced"), ({"trace_gb": 4.1}, "traced"), ({"ratio": 0.96}, "time"),
     ({"memory_ratio": 1.16}, "memory")],
)  # fmt: skip
def test_a_bound_that_is_not_kept_is_told(changes: dict[str, object], what: str) -> None:
    assert not check(row())
    (told,) = check(row(**changes))
    assert what in told


@pytest.mark.slow
def test_a_side_that_dies_ends_the_benchmark(tmp_path: Path) -> None:
    child = size.SteppingChild("ours", next(iter(MODELS)), 1, tmp_path / "missing")
    with child as side, pytest.raises(ChildProcessError):
        side.step()
