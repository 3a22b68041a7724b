"""Replays one case, by name or from its file, on all paths; and shrinks it.

python -m tests.differ replay layers:3             the differences on all paths
python -m tests.differ replay out/differ/x.npz     the same for a case in a file
python -m tests.differ shrink layers:3             writes the smallest failing case to out/differ
"""

from __future__ import annotations

from pathlib import Path

from tests.differ import shrink
from tests.differ.case import Case
from tests.differ.hunt import OUT
from tests.differ.kinds import made
from tests.differ.trial import seed_of
from tests.differ.ways import differences, on_device, ways_of


def case_of(named: str) -> Case:
    """Returns the case in a file, or of a name."""
    if named.endswith(".npz"):
        return Case.load(Path(named))
    case = made(named)
    if case is None:
        raise SystemExit(f"the seed of {named} gives no case")
    return case


def replay(named: str, device: str = "") -> bool:
    """Prints the differences by path; returns True if there are none."""
    case = case_of(named)
    print(shrink.described(case))
    if device:
        found = on_device(case, seed_of(case.name), device)
        print(found or f"{device} gives the bits")
        return found is None
    ways = ways_of(case, seed_of(case.name), all_ways=True)
    count = 0
    for difference in differences(case, seed_of(case.name), ways):
        print(difference)
        count += 1
    print(f"{count} of {len(ways)} ways differ")
    return count == 0


def smallest(named: str) -> tuple[Case, Path]:
    """Shrinks a failing case as far as possible; returns it with its file."""
    case = case_of(named)
    seed, ways = seed_of(case.name), ways_of(case, seed_of(case.name), all_ways=True)
    fails = shrink.apart(lambda c: next(differences(c, seed, ways), None) is not None)
    due = fails(case)
    if not due:
        raise SystemExit(f"{named} does not fail")
    # One path suffices, and is much faster.
    for way in ways:
        alone = shrink.apart(lambda c, way=way: next(differences(c, seed, [way]), None) is not None)  # type: ignore[misc]
        if alone(case) == due:
            fails = alone
            break
    case = shrink.shrunk(case, fails)
    path = OUT / f"{case.name.replace(':', '-')}.npz"
    case.save(path)
    return case, path
