"""Runs a Python module with another build of the native extension.

    python tests/support/with_native.py FILE.so -m MODULE ...

`FILE.so` stands in for lockstep.numerics._native: what another compiler made of the same sources.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

NAME = "lockstep.numerics._native"


def load(path: Path) -> None:
    """Loads the extension at `path` in place of the usual one, which must not be imported before."""
    import lockstep.numerics

    if NAME in sys.modules:
        raise ImportError(f"{NAME} was imported before")
    spec = importlib.util.spec_from_file_location(NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no extension module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    lockstep.numerics._native = module


if __name__ == "__main__":
    place, flag, name, *arguments = sys.argv[1:]
    if flag != "-m":
        sys.exit(__doc__)
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    load(Path(place))
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)
