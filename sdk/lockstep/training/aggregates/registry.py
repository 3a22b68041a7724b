"""Aggregates by name. A new one is a module here, a line below and a test in tests/unit/training/test_references.py."""

from __future__ import annotations

from lockstep.training.aggregates.base import Aggregate
from lockstep.training.aggregates.mean import Average
from lockstep.training.aggregates.robust import CentredClipping, GeometricMedian, Krum, Median, Trimmed

AGGREGATES: dict[str, type[Aggregate]] = {
    "mean": Average,
    "trimmed": Trimmed,
    "median": Median,
    "krum": Krum,
    "geometric_median": GeometricMedian,
    "centred_clipping": CentredClipping,
}
