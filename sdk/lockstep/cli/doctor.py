"""`lockstep doctor`: shows the devices of this machine, tests their arithmetic, and measures their speed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from lockstep.base.settings import Settings, cache_location, resolve
from lockstep.cli.options import Device, Json, Threads
from lockstep.cli.output import emit
from lockstep.protocol.errors import DoctorError, TryLater

if TYPE_CHECKING:
    from lockstep.numerics.devices import Examined


BOX_BYTES = 256 << 20
"""Memory limit of the process that the sandbox check starts."""
PORTABLE = (
    "no compiled kernels: this machine verifies, replays and quotes with the same bits, about a hundred times slower; "
    "to train, install a wheel built for it, or build one (pip wheel, with a C++ compiler)"
)
"""The notice for an installation of the portable wheel."""


def doctor(device: Device = None, threads: Threads = None, as_json: Json = False) -> None:
    """Test and benchmark the processor and every CUDA device, or only the named one; exit code 3 if one fails.

    Also shows the device that `--device auto` selects, whether compiled kernels are cached across starts, and which
    parts of the sandbox for strangers' Programs the operating system's kernel lacks.
    """
    settings = resolve(device=device, threads=threads)
    data, lines, passed = report(settings)
    emit(data, as_json, text="\n".join(lines))
    if not passed:
        raise typer.Exit(DoctorError.exit_code)


def report(settings: Settings) -> tuple[dict[str, Any], list[str], bool]:
    """Returns (as JSON, as lines of text, True if every device passed) the devices of this machine."""
    from lockstep.numerics.built import COMPILED
    from lockstep.numerics.devices import choose, examine, present

    named = [settings.device] if settings.device != "auto" else present()
    examined = [examine(each, settings.threads) for each in named]
    kernels = _kernels()
    data: dict[str, Any] = {"devices": [asdict(e) for e in examined], "threads": settings.threads, "kernels": kernels}
    lines = [_line(e) for e in examined]
    try:
        data["auto"] = asdict(choose("auto"))
        lines.append(f"--device auto selects {data['auto']['device']}: {data['auto']['why']}")
    except DoctorError as error:
        lines.append(f"--device auto selects nothing: {error.message}")
    if not COMPILED:
        lines.append(PORTABLE)
    box, whole = _box()
    data["box"] = box
    lines.append(f"strangers' Programs run {'sandboxed' if whole else 'NOT SANDBOXED'}: {_described(box)}")
    kept = f"{kernels['files']} files, {kernels['bytes']:,} bytes" if kernels["kept"] else kernels["message"]
    lines.append(f"compiled kernels in {kernels['path']}: {kept}")
    return data, lines, all(e.passed for e in examined) and (whole or not box["offered"])


def _line(found: Examined) -> str:
    if not found.passed:
        return f"FAILED  {found.device}: {found.message}"
    memory = f"{found.memory_bytes / 1e9:.1f} GB of memory, {found.free_bytes / 1e9:.1f} free"
    speed = f"{found.gflops:,.1f} GFLOP/s in float32, ready in {found.start_seconds:.2f} s"
    return f"ok      {found.device}: {found.name}; self-test passed; {memory}; {speed}"


def _box() -> tuple[dict[str, Any], bool]:
    """Returns (as JSON, True if it starts) the state of the sandboxed process in which strangers' Programs run."""
    from lockstep.execution.box.confinement import OFFERED, Allowance
    from lockstep.execution.box.handle import Box

    found: dict[str, Any] = {"offered": OFFERED, "starts": False, "lacking": [], "message": ""}
    if not OFFERED:
        return found | {"message": "this system cannot sandbox a process"}, False
    try:
        with Box(Allowance(memory=BOX_BYTES)) as box:
            return found | {"starts": True, "lacking": box.lacking}, True
    except (TryLater, DoctorError) as error:
        return found | {"message": error.message}, False


def _described(box: dict[str, Any]) -> str:
    if box["message"]:
        return str(box["message"])
    return "; ".join(box["lacking"]) or "this kernel supports the whole sandbox"


def _kernels() -> dict[str, Any]:
    """The state of the cache of compiled code."""
    from lockstep.numerics import compiled

    state = {"path": str(cache_location()), "kept": False, "files": 0, "bytes": 0, "message": ""}
    try:
        sizes = [size for _, size, _ in compiled.entries()]
    except DoctorError as error:
        return state | {"message": f"{error.message}: kernels are compiled at every start ({error.hint})"}
    return state | {"kept": True, "files": len(sizes), "bytes": sum(sizes)}
