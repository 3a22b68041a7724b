"""Robust aggregates as byzfl 0.0.11 computes them, written to byzfl.json beside this file.

    pip download --no-deps byzfl==0.0.11 && unzip -d byzfl byzfl-0.0.11-py3-none-any.whl
    python tests/vectors/strategies/byzfl_reference.py byzfl         # with numpy, scipy and torch

The package's own __init__ asks for plotting; its aggregators alone are loaded. Its Krum adds up n - f - 1 distances,
the paper n - f - 2: the draws are such that both pick the same.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import numpy as np

SLOTS, SIZE, WRONG = 7, 60, 1


def main() -> None:
    """Loads the aggregators of the folder given, and runs them on the same draws."""
    package = types.ModuleType("byzfl")
    package.__path__ = [str(Path(sys.argv[1]) / "byzfl")]
    sys.modules["byzfl"] = package
    from byzfl.aggregators import CenteredClipping, GeometricMedian, Krum, Median, MultiKrum, TrMean

    rng = np.random.default_rng(17)
    points = rng.standard_normal((SLOTS, SIZE)) * np.linspace(0.5, 2, SLOTS)[:, None]
    points[3] += 30
    made = {
        "median": Median(),
        "trimmed": TrMean(f=WRONG),
        "krum": Krum(f=WRONG),
        "multi_krum": MultiKrum(f=WRONG),
        "geometric_median": GeometricMedian(nu=0.1, T=3),
        "centred_clipping": CenteredClipping(L=3, tau=5.0),
    }
    found = {name: np.asarray(aggregate(points.copy())).tolist() for name, aggregate in made.items()}
    data = {"byzfl": "0.0.11", "points": points.tolist(), "found": found}
    Path(__file__).with_name("byzfl.json").write_text(json.dumps(data) + "\n")


if __name__ == "__main__":
    main()
