"""Runs a Python module as an installation without compiled code does.

python tests/support/without_native.py -m MODULE ...
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

MODULES = ("lockstep.numerics._native", "lockstep.protocol._hash")


def block() -> None:
    """Prevents imports of the extensions, which must not be imported before."""
    if loaded := [name for name in MODULES if name in sys.modules]:
        raise ImportError(f"imported before: {loaded}")
    # importing a module whose entry is None raises ImportError
    sys.modules.update(dict.fromkeys(MODULES))  # type: ignore[arg-type]


if __name__ == "__main__":
    flag, name, *arguments = sys.argv[1:]
    if flag != "-m":
        sys.exit(__doc__)
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    block()
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)
