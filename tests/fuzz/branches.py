"""The branches of a decoder's functions that a corpus reaches, measured by coverage.py.

python -m tests.fuzz.branches NAME CORPUS      {"reached": .., "all": .., "missing": [..]} on stdout
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coverage import Coverage

from tests.fuzz.loading import ROOT, file_of
from tests.fuzz.targets import TARGETS


def measured(name: str, corpus: Path) -> dict[str, Any]:
    """Counts over the functions that the target names, and the arcs that nothing took."""
    target = TARGETS[name]
    files = {str(file_of(module)): wanted for module, wanted in target.functions.items()}
    counted = Coverage(data_file=None, branch=True, include=list(files), config_file=False)
    counted.start()
    seeds, run = target.open()
    for data in [*seeds, *(path.read_bytes() for path in sorted(corpus.iterdir()) if path.is_file())]:
        run(data)
    counted.stop()
    reached = total = 0
    missing: list[str] = []
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        counted.json_report(outfile=str(report))
        found = json.loads(report.read_text())["files"]
    for file, wanted in files.items():
        functions = next(f for path, f in found.items() if ROOT / path == Path(file))["functions"]
        unknown = [w for w in wanted if not any(_is(w, f) for f in functions)]
        if unknown:
            raise ValueError(f"{file} has no {unknown}")
        for function, about in functions.items():
            if function and (not wanted or any(_is(w, function) for w in wanted)):
                reached += about["summary"]["covered_branches"]
                total += about["summary"]["num_branches"]
                missing += [f"{Path(file).name}:{a}->{b}" for a, b in about["missing_branches"]]
    return {"reached": reached, "all": total, "missing": missing}


def _is(wanted: str, function: str) -> bool:
    """A function itself, or one that it defines."""
    return function == wanted or function.startswith(wanted + ".")


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], Path(sys.argv[2]))))
