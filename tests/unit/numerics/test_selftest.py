"""The start-up self-test: its words are the reference's, and a machine that gives others is refused."""

from __future__ import annotations

import numpy as np
import pytest

from lockstep.numerics import paths, scalar, selftest
from lockstep.numerics.builder import ProgramBuilder
from lockstep.protocol.errors import DoctorError
from tests.unit.numerics.comparison import PATHS


@pytest.mark.parametrize("golden", selftest.GOLDEN, ids=lambda g: g.what)
def test_golden_word_is_the_reference(golden: selftest.Golden) -> None:
    assert scalar.apply(golden.op, golden.a, golden.b, golden.c) == golden.result


def test_golden_chains_are_the_reference() -> None:
    x, y = (operand.tolist() for operand in selftest.terms())
    for i, due in enumerate(selftest.CHAINS):
        chain = 0
        for k in range(256 * i, min(256 * (i + 1), selftest.TERMS)):
            chain = scalar.ffma(x[k], y[k], chain)
        assert chain == due, f"chunk {i}"


@pytest.mark.parametrize("path", PATHS)
def test_this_machine_passes_on_every_path(path: str) -> None:
    selftest.check_machine(path)


def test_a_machine_that_flushes_subnormals_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = selftest._native.apply_op

    def flushing(op: int, a: np.ndarray, b: np.ndarray, c: np.ndarray, path: str) -> np.ndarray:
        result = honest(op, a, b, c, path)
        return np.where(result & 0x7F800000, result, result & 0x80000000)

    monkeypatch.setattr(selftest._native, "apply_op", flushing)
    selftest._results.cache_clear()
    try:
        with pytest.raises(DoctorError, match="subnormal") as refused:
            paths.compile(ProgramBuilder([]).finish([]))
        assert "must not sign" in refused.value.hint
    finally:
        selftest._results.cache_clear()
