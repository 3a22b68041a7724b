"""One named case: made, run on all ways, and what came of it in a word."""

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
"""One case in so many runs compiled loops, too, which a compiler takes seconds for."""
FEW = 4
"""Ways that a case runs on where it is the planner alone that is looked at."""
RARE = 16
"""Such cases run compiled loops so many times more rarely."""
MOST_MEMORY = 6 << 30
"""Bytes of addresses that planning may take, the process's own among them."""
NOTHING, EQUAL = "none", "equal"


def seed_of(name: str) -> int:
    """A number that a case's name alone decides."""
    return crc32(name.encode())


def planned(case: Case) -> None:
    """Plans a Program that nobody could run, in bounded memory."""
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
    """NOTHING where both the kernels' decoder and numpy's refuse the Program, what happened where one of them does."""
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
    """The first difference of the case on all its ways, or on a few, of most cases from the kernels' own words."""
    seed = seed_of(case.name)
    ways = random.Random(seed).sample(ways_of(case, seed, all_ways=False), FEW) if few else None
    if (found := next(differences(case, seed, ways, native=few), None)) is not None:
        return found
    if seed % (COMPILED * (RARE if few else 1)) == 0 and not quick:
        return next(differences(case, seed, ways_of_compiled(), compiled=True), None)
    return None


def ways_of_compiled() -> list[tuple[str, int, str]]:
    """Those of a case with compiled loops, each path's compiled for it."""
    first, last = kernels.paths()[0], kernels.paths()[-1]
    return [(last, 1, "run"), (last, 3, "run"), (last, 1, "some"), (last, 2, "sweep"), (first, 1, "run")]


def tried(name: str, *, device: str = "", quick: bool = False, compiled: bool = False, few: bool = False) -> str:
    """EQUAL, NOTHING where the seed gives no case, or what differs; `compiled`: of what runs compiled loops."""
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
