"""The start-up self-test of a device: the golden words of `numerics.selftest`, by a Program."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.builder import ProgramBuilder
from lockstep.numerics.cuda.device import Device
from lockstep.numerics.cuda.executable import CudaExecutable
from lockstep.numerics.scalar import ARITY
from lockstep.numerics.selftest import CHAINS, GOLDEN, HINT, TERMS, terms
from lockstep.protocol.errors import DoctorError
from lockstep.protocol.programs.program import CHUNK, F32, I32, Program

OPCODES = sorted({golden.op for golden in GOLDEN})


def golden_program() -> Program:
    """Every operation on every golden operand, and the chains of a dot."""
    count = len(GOLDEN)
    b = ProgramBuilder([(I32, count), (I32, count), (I32, count), (F32, TERMS), (F32, TERMS)])
    words = [b.input(k) for k in range(3)]
    x, y = b.input(3), b.input(4)
    results = [b.map((count,), words[: ARITY[op]], lambda e, *r, op=op: e.apply(op, *r)) for op in OPCODES]
    ends = [*range(0, TERMS, CHUNK), TERMS]
    chains = [b.dot(x.slice(0, begin, end), y.slice(0, begin, end)) for begin, end in pairwise(ends)]
    return b.finish([*results, *chains])


def check_device(device: Device) -> None:
    """Raises DoctorError unless the device gives the golden words."""
    operands = np.array([(golden.a, golden.b, golden.c) for golden in GOLDEN], np.uint32).T.view(np.int32)
    state = [*operands, *(array.view(np.float32) for array in terms()), None, None, None]
    executable = CudaExecutable(golden_program(), device=device)
    outputs = executable.run(state, StepContext(bytes(32), 0, 0, 0))
    found = [np.ravel(array).view(np.uint32) for array in outputs if array is not None]
    checks = [(golden.what, int(found[OPCODES.index(golden.op)][i]), golden.result) for i, golden in enumerate(GOLDEN)]
    checks += [(f"chunk {i} of a dot", int(found[len(OPCODES) + i][0]), due) for i, due in enumerate(CHAINS)]
    for what, got, due in checks:
        if got != due:
            raise DoctorError(f"self-test of {device.label}: {what} gives {got:#010x}, not {due:#010x}", hint=HINT)
