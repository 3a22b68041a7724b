"""Compiles a Program for a processor or device: maps flat state tensors to flat state tensors, with the same bits on
every machine.

>>> from lockstep.numerics.builder import ProgramBuilder
>>> b = ProgramBuilder([(F32, 4)])
>>> x = b.input(0)
>>> y = b.map((4,), [x], lambda e, v: e.fadd(v, v))
>>> executable = compile(b.finish([y]))
>>> executable.run([np.arange(4, dtype=np.float32)], StepContext(bytes(32), 0, 0, 1))[0].tolist()
[0.0, 2.0, 4.0, 6.0]
"""

from __future__ import annotations

import os

from lockstep.numerics import cuda
from lockstep.numerics.built import kernels as _native
from lockstep.numerics.executor import Executable
from lockstep.numerics.fused import mode_of
from lockstep.numerics.selftest import check_machine
from lockstep.protocol.errors import UsageError
from lockstep.protocol.programs.program import Program


def compile(  # noqa: A001 - the verb that the field uses
    program: Program, *, threads: int | None = None, path: str = "auto", fused: str | None = None
) -> Executable:
    """Decodes and plans a Program. `threads` defaults to OMP_NUM_THREADS, or 1; `fused` to LOCKSTEP_FUSED, or "auto".

    The paths "cuda", "cuda:N" and "emulated" give a `cuda.CudaExecutable` on that device. Raises ProgramInvalid for an
    invalid Program; DoctorError if the machine's arithmetic fails the self-test, or if `fused="require"` and loops
    cannot be compiled; UsageError for a path that this machine does not have.
    """
    if path == "emulated" or path.partition(":")[0] == "cuda":
        return cuda.CudaExecutable(program, device=cuda.open_device("cuda:0" if path == "cuda" else path))
    mode = mode_of(fused)
    try:
        check_machine(path)
    except ValueError as error:
        raise UsageError(str(error), hint=f"this machine's widest is {_native.best_isa()}; auto chooses it") from error
    if threads is None:
        setting = os.environ.get("OMP_NUM_THREADS", "1").split(",")[0]
        threads = max(1, int(setting)) if setting.isdigit() else 1
    return Executable(program, threads, path, mode)
