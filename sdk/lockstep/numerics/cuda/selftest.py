"""Start-up self-test of a device: the golden words of `numerics.selftest`, and groups of extreme codes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.builder import ProgramBuilder, Quantised
from lockstep.numerics.cuda.device import Device
from lockstep.numerics.cuda.executable import CudaExecutable
from lockstep.numerics.scalar import ARITY
from lockstep.numerics.selftest import CHAINS, GOLDEN, TERMS, terms
from lockstep.protocol.errors import Crashed, DoctorError
from lockstep.protocol.programs.program import CHUNK, CODES, F32, I32, MAX_GROUP_WORDS, Program

HINT = "do not claim work computed on this device: use another, or report it with the output of nvidia-smi"
OPCODES = sorted({golden.op for golden in GOLDEN})

SIDE, GROUPS = 64, 3
"""Rows and columns of the tested product of codes (all lanes of all warps of a block), and its groups."""
BYTES = (-128, 127, -127, 1)
"""Codes at the limits of a byte. Quantisation never gives -128, but a Program may take any words as codes."""
PLACES = (0, 1, 15, 16, 100, 128, 239, 255)
"""Positions of the only 1 in rows of -128: two such rows give the sum 255 x 2^14 + 1, which needs every bit of the
accumulator.
"""


def golden_program() -> Program:
    """Returns a Program with every operation on every golden operand, the chains of a dot, and a product of codes."""
    count = len(GOLDEN)
    rows = 2 * SIDE * GROUPS
    golden = [(I32, count)] * 3 + [(F32, TERMS)] * 2
    b = ProgramBuilder([*golden, (I32, rows * MAX_GROUP_WORDS), (F32, rows)])
    words = [b.input(k) for k in range(3)]
    x, y = b.input(3), b.input(4)
    results = [b.map((count,), words[: ARITY[op]], lambda e, *r, op=op: e.apply(op, *r)) for op in OPCODES]
    ends = [*range(0, TERMS, CHUNK), TERMS]
    chains = [b.dot(x.slice(0, begin, end), y.slice(0, begin, end)) for begin, end in pairwise(ends)]
    codes, scales = b.input(5).reshape(2 * SIDE, GROUPS * MAX_GROUP_WORDS), b.input(6).reshape(2 * SIDE, GROUPS)
    left, right = (
        Quantised(codes.slice(0, begin, begin + SIDE), scales.slice(0, begin, begin + SIDE), MAX_GROUP_WORDS)
        for begin in (0, SIDE)
    )
    return b.finish([*results, *chains, b.qdot(left.unsqueeze(1), right)])


def extreme_groups() -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Returns codes [2 SIDE, GROUPS, 256] and scales [2 SIDE, GROUPS].

    Rows consist of one byte value, of two, or of several. Products of two scales range from 2^-144, a subnormal, to
    2^42.
    """
    row, group, k = np.ogrid[: 2 * SIDE, :GROUPS, : CODES * MAX_GROUP_WORDS]
    mixed = (row * 0x9E3779B1 + group * 0x85EBCA77 + k * 0xC2B2AE3D) >> 11
    codes = np.where(row % 8 < len(BYTES), np.array(BYTES)[row % len(BYTES)], mixed)
    codes = np.where(row % 8 == len(BYTES), np.where(k == np.array(PLACES)[row // 8 % len(PLACES)], 1, -128), codes)
    codes = codes.astype(np.int8)
    scales = (1 + np.arange(2 * SIDE * GROUPS) / 1023).reshape(2 * SIDE, GROUPS)
    scales *= 2.0 ** np.select([row[..., 0] % 16 == 5, row[..., 0] % 16 == 9], [-72.0, 20.0], -5.0)
    return codes, scales.astype(np.float32)


def products_of_groups(codes: npt.NDArray[np.int8], scales: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    """Returns the expected words for `extreme_groups`: exact integer sums, then one float product and one float sum per
    group.
    """
    sums = np.einsum("mgk,ngk->gmn", codes[:SIDE].astype(np.int32), codes[SIDE:].astype(np.int32)).astype(np.float32)
    total = np.zeros((SIDE, SIDE), np.float32)
    for group, exact in enumerate(sums):
        total = total + exact * (scales[:SIDE, group, None] * scales[None, SIDE:, group])
    return total.ravel().view(np.uint32)


def check_device(device: Device) -> None:
    """Raises DoctorError unless the device gives the golden words."""
    operands = np.array([(golden.a, golden.b, golden.c) for golden in GOLDEN], np.uint32).T.view(np.int32)
    codes, scales = extreme_groups()
    state = [
        *operands, *(array.view(np.float32) for array in terms()), codes.ravel().view(np.int32), scales.ravel(), None
    ]  # fmt: skip
    try:
        executable = CudaExecutable(golden_program(), device=device)
    except Crashed as error:
        # This Program is our own, so a compiler error is the machine's fault.
        raise DoctorError(f"self-test of {device.label}: {error.message}", hint=HINT) from error
    outputs = executable.run(state, StepContext(bytes(32), 0, 0, 0))
    found = [np.ravel(array).view(np.uint32) for array in outputs if array is not None]
    checks = [(golden.what, int(found[OPCODES.index(golden.op)][i]), golden.result) for i, golden in enumerate(GOLDEN)]
    checks += [(f"chunk {i} of a dot", int(found[len(OPCODES) + i][0]), due) for i, due in enumerate(CHAINS)]
    products = products_of_groups(codes, scales)
    at = int(np.argmax(found[-1] != products))  # the first difference, if any
    checks.append((f"product {at} of groups of codes by {device.unit}", int(found[-1][at]), int(products[at])))
    for what, got, due in checks:
        if got != due:
            raise DoctorError(f"self-test of {device.label}: {what}: got {got:#010x}, expected {due:#010x}", hint=HINT)
