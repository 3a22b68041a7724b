"""Bits do not depend on the caller's modes: a processor that flushes subnormals, rounds towards zero."""

from __future__ import annotations

import ctypes
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from lockstep.numerics import paths
from lockstep.numerics.builder import ProgramBuilder
from lockstep.protocol.programs.program import F32
from tests.unit.numerics.comparison import CONTEXT, PATHS, normal, strange, words

MODES = {"x86_64": (28, 0xFFC0), "aarch64": (0, 0x01C00000)}
"""Where glibc's fenv_t has the register of modes, MXCSR or FPCR, and a value that flushes and rounds towards zero."""
MODE = MODES.get(platform.machine() if platform.libc_ver()[0] == "glibc" else "")
FLAGS = 0x3F
"""Of MXCSR: the exceptions that have happened, which are no mode."""


@contextmanager
def another_mode(offset: int, value: int) -> Iterator[None]:
    """Asserts at the end that the mode is still the one that was set."""
    libm = ctypes.CDLL("libm.so.6")
    saved, after = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
    libm.fegetenv(saved)
    other = ctypes.create_string_buffer(saved.raw, 64)
    struct.pack_into("<I", other, offset, value)
    libm.fesetenv(other)
    try:
        yield
        libm.fegetenv(after)
    finally:
        libm.fesetenv(saved)
    (left,) = struct.unpack_from("<I", after, offset)
    assert left & ~FLAGS == value & ~FLAGS, "the caller's mode is restored"


@pytest.mark.skipif(MODE is None, reason="the place of the modes is known for glibc on x86-64 and AArch64")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("path", PATHS)
def test_the_bits_do_not_depend_on_the_callers_modes(path: str, threads: int) -> None:
    rng = np.random.default_rng(24)
    b = ProgramBuilder([(F32, 60 * 300)] * 3)
    x, y, z = (b.input(i).reshape(60, 300) for i in range(3))
    quantised = b.quant(z, 16, 1 << 31)
    outputs = [
        b.map((60, 300), [x, y], lambda e, v, w: e.fadd(e.fmul(v, w), v)),
        b.dot(x.unsqueeze(1), y),
        b.sum(x),
        quantised.codes,
        b.qdot(quantised.unsqueeze(1), quantised),
    ]
    small = normal(rng, 60 * 300) * np.float32(2.0**-127)
    program = b.finish(outputs)
    state = [small, strange(rng, 60 * 300), normal(rng, 60 * 300), *[None] * (len(program.inputs) - 3)]
    executable = paths.compile(program, path=path, threads=threads, fused="off")
    due = executable.run(state, CONTEXT, keep=True)
    least = np.array([1e-40], np.float32)
    assert MODE is not None
    with another_mode(*MODE):
        flushed = (least * np.float32(1))[0] == 0
        found = executable.run(state, CONTEXT, keep=True)
    assert flushed, "the mode has an effect"
    for i, (got, expected) in enumerate(zip(found, due, strict=True)):
        np.testing.assert_array_equal(words(got), words(expected), err_msg=f"op {i} on {path}")
