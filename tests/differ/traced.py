"""Caches the first Programs of random networks: a capture takes half a second, and importing torch seconds.

The cache is out/differ/traced; it is renewed when the tracer or the generator of networks changes.
"""

from __future__ import annotations

import random
from functools import cache
from hashlib import sha256
from pathlib import Path

from lockstep.protocol.programs.program import Program
from lockstep.storage.containers import decode_program, encode_program
from tests.differ.case import Case, filled

ROOT = Path(__file__).resolve().parents[2]
TRACED = ROOT / "out/differ/traced"
KEPT = 4096
"""Number of seeds whose Programs are cached."""


@cache
def _sources() -> str:
    """Returns a digest of the sources on which a trace depends."""
    files = [Path(__file__).with_name("nets.py"), *sorted((ROOT / "sdk/lockstep/tracing").glob("*.py"))]
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def program_of(seed: int) -> Program | None:
    """Returns the Program of a seed; None if the tracer refuses it."""
    if seed >= KEPT:
        return _traced(seed)
    kept = TRACED / _sources() / str(seed)
    if not kept.exists():
        program = _traced(seed)
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_name(f"{seed}.{random.SystemRandom().getrandbits(64)}")
        partial.write_bytes(b"" if program is None else encode_program(program))
        partial.rename(kept)
        return program
    data = kept.read_bytes()
    return decode_program(data) if data else None


def _traced(seed: int) -> Program | None:
    from tests.differ import nets  # torch takes seconds to import

    return nets.program_of(seed)


def make(seed: int, name: str) -> Case | None:
    """Returns the case of a seed."""
    program = program_of(seed)
    return None if program is None else filled(name, program, seed)
