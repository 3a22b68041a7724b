"""Generates one named case, runs it on all paths, and summarises the result."""

from __future__ import annotations

import os
import random
import resource
from zlib import crc32

from lockstep.numerics import portable
from lockstep.numerics.arrays import to_array
from lockstep.numerics.built import kernels
from tests.differ.case import Case
from tests.differ.kinds import made
from tests.differ.ways import Difference, differences, on_device, ways_of

COMPILED = 97
"""One in so many cases also runs compiled loops, which a compiler needs seconds for."""
FEW = 4
"""Number of paths of a case that only tests the planner."""
RARE = 16
"""Factor by which such cases run compiled loops more rarely."""
MOST_MEMORY = 6 << 30
"""Most address space in bytes that planning may use, the process's own included."""
NOTHING, EQUAL = "none", "equal"


def seed_of(name: str) -> int:
    """Returns a number that depends on a case's name alone."""
    return crc32(name.encode())


def planned(case: Case) -> None:
    """Plans a Program that is too large to run, in bounded memory."""
    program = case.program
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    # A sanitizer takes addresses by the terabyte.
    resource.setrlimit(resource.RLIMIT_AS, (soft if "ASAN_OPTIONS" in os.environ else MOST_MEMORY, hard))
    try:
        for told in (kernels.bytes_of_run, kernels.work_of_run):
            told(program.header, list(program.descriptors), [c.header.elements for c in program.consts])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def refused(case: Case) -> str:
    """Returns NOTHING if both decoders, the kernels' and numpy's, refuse the Program, else a description."""
    program = case.program
    given = program.header, list(program.descriptors), [to_array(c.header, c.data).reshape(-1) for c in program.consts]
    said = []
    for library in (kernels, portable):
        try:
            library.Executor(*given)
        except ValueError as error:
            said.append(str(error))
    return NOTHING if len(said) == 2 else "".join(f"refused by one alone: {own}" for own in said)


def first_difference(case: Case, *, quick: bool = False, few: bool = False) -> Difference | None:
    """Returns the case's first difference on all paths, or on a few; most cases are compared with the kernels' own
    words.
    """
    seed = seed_of(case.name)
    ways = random.Random(seed).sample(ways_of(case, seed, all_ways=False), FEW) if few else None
    if (found := next(differences(case, seed, ways, native=few), None)) is not None:
        return found
    if seed % (COMPILED * (RARE if few else 1)) == 0 and not quick:
        return next(differences(case, seed, ways_of_compiled(), compiled=True), None)
    return None


def ways_of_compiled() -> list[tuple[str, int, str]]:
    """Returns the paths of a case with compiled loops, each compiled for its own path."""
    first, last = kernels.paths()[0], kernels.paths()[-1]
    return [(last, 1, "run"), (last, 3, "run"), (last, 1, "some"), (last, 2, "sweep"), (first, 1, "run")]


def tried(name: str, *, device: str = "", quick: bool = False, compiled: bool = False, few: bool = False) -> str:
    """Returns EQUAL, NOTHING if the seed gives no case, or the difference. With `compiled`, compiled loops run."""
    case = made(name)
    if case is None:
        return NOTHING
    if name.startswith("huge:"):
        planned(case)
        return EQUAL
    if name.startswith("unruled:") and (said := refused(case)):
        return said
    if compiled:
        found = next(differences(case, seed_of(name), ways_of_compiled()[:3], compiled=True), None)
        return EQUAL if found is None else str(found)
    found = on_device(case, seed_of(name), device) if device else first_difference(case, quick=quick, few=few)
    return EQUAL if found is None else str(found)
