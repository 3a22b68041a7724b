"""Runs cases in a separate process, and reports each before and after, by lines of JSON.

    python -m tests.differ.worker KINDS FIRST STEP [--cases N] [--seconds S] [--kernels FILE] [--device NAME]

A kernel that crashes or hangs affects only this process; the last line identifies the case.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import sys
import time
from pathlib import Path


def use_kernels(path: Path) -> None:
    """Loads the extension at `path` in place of the installed one. Must be called before anything imports that."""
    name = "lockstep.numerics._native"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    import lockstep.numerics

    lockstep.numerics._native = module  # type: ignore[attr-defined]


def use_header(path: Path) -> None:
    """Makes the emulated device compile this header in place of its own header of that name."""
    from lockstep.numerics.cuda import emulator

    own = vars(emulator)["HEADERS"]
    vars(emulator)["HEADERS"] = tuple(path if header.name == path.name else header for header in own)


def main() -> None:
    """Runs until the cases or the seconds are used up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds")
    parser.add_argument("first", type=int)
    parser.add_argument("step", type=int)
    parser.add_argument("--cases", type=int, default=1 << 60)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--kernels", type=Path)
    parser.add_argument("--device", default="", help="emulated or cuda:N, in the place of the processor")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--few", action="store_true", help="four ways of each case, numpy on one in sixteen")
    parser.add_argument("--compiled", action="store_true", help="loops of every case")
    parser.add_argument("--header", type=Path, help="in the place of that of this name, for the emulated device")
    given = parser.parse_args()
    if given.kernels is not None:
        use_kernels(given.kernels)
    if given.header is not None:
        use_header(given.header)
    from tests.differ.kinds import names
    from tests.differ.trial import tried

    if "nets" in given.kinds.split(","):
        from tests.differ import nets

        # A trace searches all objects for random generators; torch's million objects are excluded.
        nets.program_of(0)
        gc.freeze()

    began, at = time.monotonic(), given.first
    while at < given.cases and time.monotonic() - began < given.seconds:
        (name,) = names(given.kinds.split(","), at, 1)
        print(json.dumps({"begin": at, "name": name}), flush=True)
        t = time.monotonic()
        said = tried(name, device=given.device, quick=given.quick, compiled=given.compiled, few=given.few)
        print(
            json.dumps({"end": at, "name": name, "said": said, "seconds": round(time.monotonic() - t, 3)}), flush=True
        )
        at += given.step


if __name__ == "__main__":
    main()
