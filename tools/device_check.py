"""A CUDA device examined in ten minutes: whether its bits are right, how fast it is, where its time goes.

    PYTHON=.venv/bin/python tools/device-check pack    what the machine with the device will need, into out/travel
    tools/device-check                     every stage there; results as they come in out/device-check/results.jsonl
    tools/device-check --budget 300        leaves out the last stages
    tools/device-check --only roots steps
    tools/device-check --emulated          the same stages on the emulated device, as far as it has them
    tools/device-check report FILE         the tables of docs/measured.md, of a file of results

A machine that is seldom at hand has a driver, Python and torch, and perhaps no network: what else the stages need
travels with the tree. Each stage is a process with a time limit of its own. One that fails or hangs ends none of the
others; the exit status is then 1. This file needs the standard library alone, since it says what is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TRAVEL = ROOT / "out/travel"
OUT = Path(os.environ.get("OUT") or ROOT / "out/device-check")
SITE = Path(os.environ.get("LOCKSTEP_SITE", "/tmp/lockstep-site"))
"""The environment that is made on the machine with the device."""
PROGRAMS, DUE, CACHE, ANVIL = TRAVEL / "programs", TRAVEL / "due.json", TRAVEL / "cache.tar.xz", TRAVEL / "anvil.xz"
WHEELS, SOURCES = TRAVEL / "wheels", TRAVEL / "sources"
PACKAGES, SUFFIXES = ("sdk", "coordinator", "worker", "verifier"), (".py", ".cpp", ".hpp", ".cuh", ".inl", ".h")
ANVIL_PLACE = ROOT / "node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil"
SMALL, LARGE = ("gpt-small", "llama-small", "cnn-small"), ("gpt2-124m", "llama-124m")
ARCHITECTURE = "sm_90a"
"""The device for which kernels are compiled ahead."""
NEEDED = ("numpy", "torch", "cuda.bindings.driver", "cuda.bindings.nvrtc", "lockstep", "web3", "pytest")
LEFT_OUT = ("numpy", "cytoolz")
"""Wheels that do not travel: the machine has numpy, and toolz stands in for cytoolz."""
TESTS_NEED = ("pytest", "pytest-timeout", "hypothesis", "coverage", "psutil")
MOST_BYTES = 64 << 20
"""Most that may travel, the tree included."""
NOTHING = -1
"""In the place of an exit status: the stage measured nothing, as where there is no device."""
LAST_LINES = 12
"""Lines of a stage's output that are shown when it failed."""


@dataclass(frozen=True)
class DeviceStage:
    """A question and the process that answers it."""

    name: str
    limit: int
    """Seconds; all limits together are at most 600."""
    command: tuple[str, ...]
    """Arguments of Python."""
    emulated: tuple[str, ...] = ()
    """The same on the emulated device; empty: only a device has it."""


def gpu(*arguments: str, models: Sequence[str] = ()) -> tuple[str, ...]:
    """benchmarks/gpu.py over the Programs and roots that have travelled."""
    lines, chosen = ("--lines", str(OUT / "results.jsonl")), ("--model", *models) if models else ()
    given = ("--program", str(PROGRAMS)) if models else ()
    if models and "roots" in arguments:
        given = (*given, "--due", str(DUE))
    return ("benchmarks/gpu.py", "--stages", *arguments, *chosen, *given, *lines)


def small(stage: str) -> tuple[str, ...]:
    """A stage of benchmarks/gpu.py on the emulated device."""
    return (*gpu(stage, "--steps", "2", "--runs", "1"), "--emulate")


CASES = ("-m", "tests.differ", "--kinds", "layers,anything,windows,nearly", "--first", "500000")
MARKET = ("-m", "pytest", "-q", "-m", "slow or not slow", "tests/e2e/test_devices.py", "-k")

STAGES = (
    DeviceStage("selftest", 20, gpu("selftest"), small("selftest")),
    DeviceStage("roots", 70, gpu("roots", "--steps", "100", models=SMALL), small("roots")),
    DeviceStage("steps of a GPT", 50, gpu("steps", "--runs", "10", models=LARGE[:1])),
    DeviceStage("steps of a Llama", 50, gpu("steps", "--runs", "10", models=LARGE[1:])),
    DeviceStage("products", 40, gpu("products", "--runs", "10")),
    DeviceStage("profile", 60, gpu("profile", "--runs", "5", models=LARGE), small("profile")),
    DeviceStage("roots of large models", 60, gpu("roots", "--steps", "2", models=LARGE)),
    DeviceStage("random Programs", 50, (*CASES, "--device", "cuda:0", "--seconds", "35", "--jobs", "12"),
          (*CASES, "--device", "emulated", "--cases", "8")),
    DeviceStage("market", 100, (*MARKET, "cuda:0"), (*MARKET, "emulated")),
    DeviceStage("kernels", 40, gpu("kernels", models=SMALL[:1]), small("kernels")),
    DeviceStage("compiled steps", 60, gpu("compiled", "--runs", "10", models=LARGE[:1])),
)  # fmt: skip


# --- what travels ---------------------------------------------------------------------------------------------------


def pack(python: str) -> int:
    """Makes all of it that is not there; prints a table of sizes. `python` is of the version on the other machine, with
    this project's tools for a build."""
    from lockstep.base.files import write_atomically  # it is installed where this runs, and not where the device is

    TRAVEL.mkdir(parents=True, exist_ok=True)
    models = (*SMALL, *LARGE)
    own = [sys.executable, str(ROOT / "benchmarks/gpu.py")]
    if not PROGRAMS.exists():
        part = TRAVEL / "programs.part"
        subprocess.run([*own, "--model", *models, "--trace", str(part)], check=True)
        part.rename(PROGRAMS)
    if not DUE.exists():
        roots: dict[str, list[str]] = {}
        for chosen, steps in ((SMALL, 100), (LARGE, 2)):
            part = TRAVEL / "part.json"
            part.unlink(missing_ok=True)
            given = ["--program", str(PROGRAMS), "--due", str(part), "--steps", str(steps)]
            subprocess.run([*own, "--model", *chosen, *given], check=True)
            roots |= json.loads(part.read_text())
            part.unlink()
        write_atomically(DUE, [json.dumps(roots).encode()])
    if not SOURCES.exists() or SOURCES.read_text() != sources():
        bring_wheels(python)
        CACHE.unlink(missing_ok=True)
        write_atomically(SOURCES, [sources().encode()])
    if not ANVIL.exists() and ANVIL_PLACE.exists():
        write_atomically(ANVIL, [lzma.compress(ANVIL_PLACE.read_bytes())])
    if not CACHE.exists():
        # NVRTC of the other machine's version: PYTHONPATH and LD_LIBRARY_PATH may name one.
        folder = TRAVEL / "cache"
        warm = [*own, "--model", *models, "--program", str(PROGRAMS), "--warm", ARCHITECTURE]
        if subprocess.run(warm, env={**os.environ, "LOCKSTEP_CACHE": str(folder)}).returncode:
            print("kernels do not travel: the device's machine compiles them, which takes minutes", file=sys.stderr)
        else:
            subprocess.run(["tar", "-C", str(folder), "-cJf", f"{CACHE}.part", "."], check=True)
            Path(f"{CACHE}.part").rename(CACHE)
        shutil.rmtree(folder, ignore_errors=True)
    return table()


def sources() -> str:
    """A digest of what the wheel of this project is made of."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in PACKAGES for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def bring_wheels(python: str) -> None:
    """Wheels of this project and of what it needs beside numpy and torch, for that Python."""
    part = TRAVEL / "wheels.part"
    shutil.rmtree(part, ignore_errors=True)
    pip = [python, "-m", "pip"]
    constraints = TRAVEL / "constraints.txt"
    locked = (ROOT / "tools/constraints.txt").read_text().splitlines()
    kept = [line for line in locked if not line.startswith(("torch", "numpy", "cuda", "nvidia"))]
    constraints.write_text("\n".join(kept) + "\n")
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", str(part), str(ROOT)], check=True)
    (own,) = part.glob("*.whl")
    needs = ["-c", str(constraints), str(own), *TESTS_NEED]
    subprocess.run([*pip, "wheel", "-q", "-w", str(part), *needs], check=True)
    for name in LEFT_OUT:
        for wheel in part.glob(f"{name}-*.whl"):
            wheel.unlink()
    shutil.rmtree(WHEELS, ignore_errors=True)
    part.rename(WHEELS)


def table() -> int:
    """Prints the size of all that travels; 1 if it is too much."""
    listed = subprocess.check_output(["git", "-C", str(ROOT), "ls-files", "-z"], text=True).split("\0")
    sizes = {"tree": sum((ROOT / name).lstat().st_size for name in listed if name and (ROOT / name).exists())}
    for path in sorted(TRAVEL.iterdir()):
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        sizes[path.name] = sum(file.stat().st_size for file in files)
    for name, size in sizes.items():
        print(f"{name:20}{size / 1e6:8.2f} MB")
    total = sum(sizes.values())
    print(f"{'all':20}{total / 1e6:8.2f} MB of {MOST_BYTES / 1e6:.1f}")
    return int(total > MOST_BYTES)


# --- on the machine with the device ---------------------------------------------------------------------------------


def prepare() -> dict[str, str]:
    """Unpacks what has travelled; returns the environment of the stages."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if WHEELS.exists():
        # An environment of its own: what it lacks, torch first of all, is in the one that runs this file.
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(SITE)], check=True)
        (packages,) = SITE.glob("lib/python*/site-packages")
        around = [path for path in sys.path[1:] if path.rstrip("/").endswith("-packages")]
        (packages / "around.pth").write_text("\n".join(around) + "\n")
        for path in map(Path, around):  # where cuda.bindings looks for NVRTC: beside no package but the environment's
            if (path / "nvidia").is_dir() and not (packages / "nvidia").exists():
                (packages / "nvidia").symlink_to(path / "nvidia")
        wheels = [str(path) for path in sorted(WHEELS.glob("*.whl"))]
        install = ["-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--upgrade", "--target"]
        subprocess.run([sys.executable, *install, str(packages), *wheels], check=True)
        environment["PATH"] = f"{SITE / 'bin'}{os.pathsep}{environment['PATH']}"
        environment["PYTHON"] = str(SITE / "bin/python")
    if ANVIL.exists() and not ANVIL_PLACE.exists():
        ANVIL_PLACE.parent.mkdir(parents=True, exist_ok=True)
        ANVIL_PLACE.write_bytes(lzma.decompress(ANVIL.read_bytes()))
        ANVIL_PLACE.chmod(0o755)
    if CACHE.exists():
        cache = Path(environment.setdefault("LOCKSTEP_CACHE", "/tmp/lockstep-cache"))
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        subprocess.run(["tar", "-C", str(cache), "-xJf", str(CACHE), "--no-same-owner"], check=True)
    return environment


def python_of(environment: dict[str, str]) -> str:
    """The interpreter of the stages."""
    return environment.get("PYTHON", sys.executable)


def missing(environment: dict[str, str]) -> list[str]:
    """Names what the stages need and this machine lacks."""
    said = []
    for name in (*NEEDED, "hypothesis", "coverage", "psutil"):
        found = subprocess.run(
            [python_of(environment), "-c", f"import {name}"], env=environment, capture_output=True, text=True
        )
        if found.returncode:
            said.append(f"{name}: {found.stderr.strip().rpartition(chr(10))[2] or found.returncode}")
    said += [f"{path}: tools/device-check pack makes it" for path in (PROGRAMS, DUE) if not path.exists()]
    if WHEELS.exists() and (not SOURCES.exists() or SOURCES.read_text() != sources()):
        said.append(f"{WHEELS} of these sources: what is examined is another tree's; tools/device-check pack again")
    return said


def run(stage: DeviceStage, command: tuple[str, ...], limit: float, environment: dict[str, str]) -> dict[str, object]:
    """Runs a stage to its end or its limit; its output goes behind that of the others."""
    log, results, begin = OUT / "log.txt", OUT / "results.jsonl", time.monotonic()
    before = results.stat().st_size
    with log.open("ab") as output:
        output.write(f"\n--- {stage.name}: {' '.join(command)}\n".encode())
        output.flush()
        at = output.tell()
        process = subprocess.Popen(
            [python_of(environment), *command],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    said = log.read_bytes()[at:].decode(errors="replace")
    if code == 0 and "--lines" in command and results.stat().st_size == before:
        code = NOTHING
    seconds = round(time.monotonic() - begin, 1)
    print(
        f"{'right' if code == 0 else 'LIMIT' if code is None else 'WRONG':6}{seconds:6.1f} s  {stage.name}", flush=True
    )
    if code != 0:
        print("\n".join(f"       {line[:300]}" for line in said.splitlines()[-LAST_LINES:]), flush=True)
    return {"what": "stage", "stage": stage.name, "seconds": seconds, "exit": code}


def check(arguments: argparse.Namespace) -> int:
    """Runs the stages; 1 if one of them was not right."""
    begin = time.monotonic()
    OUT.mkdir(parents=True, exist_ok=True)
    results = OUT / "results.jsonl"
    results.write_text("")
    environment = {**os.environ} if arguments.emulated else prepare()
    if not arguments.emulated:
        for line in missing(environment):
            print(f"missing: {line}", flush=True)
        print(f"{platform.machine()}, Python {platform.python_version()}, {time.monotonic() - begin:.1f} s to prepare")
    good = bool(arguments.only is None or set(arguments.only) <= {stage.name.split()[0] for stage in STAGES})
    if not good:
        print(f"no stage begins with one of {arguments.only}: {', '.join(stage.name for stage in STAGES)}")
    for stage in STAGES:
        command = stage.emulated if arguments.emulated else stage.command
        left = arguments.budget - (time.monotonic() - begin)
        if not command or (arguments.only and stage.name.split()[0] not in arguments.only):
            continue
        if left < stage.limit and not arguments.emulated:
            print(f"skipped        {stage.name}: {left:.0f} s are left of the budget, it may take {stage.limit}")
            continue
        limit = stage.limit if not arguments.emulated else arguments.budget
        found = run(stage, command, limit, environment)
        good &= found["exit"] == 0
        with results.open("a") as file:
            file.write(json.dumps(found) + "\n")
    for line in results.read_text().splitlines():
        row = json.loads(line)
        if row["what"] != "stage":
            print(" ".join(str(value)[:24] for name, value in row.items() if name != "what"))
    return int(not good)


# --- what is told of it ---------------------------------------------------------------------------------------------

Row = dict[str, Any]


def report(file: Path) -> int:
    """Prints the results as tables in Markdown."""
    rows: list[Row] = [json.loads(line) for line in file.read_text().splitlines()]
    by_what: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_what[row["what"]].append(row)
    told = [(f"{row['model']}, {row['products']}", f"{row['equal']} of {row['steps']}") for row in by_what["roots"]]
    print_table(("state roots of", "equal to the processor's"), told)
    for what in ("step", "step and root", "product"):
        for kind in ("eager", "compiled") if what != "product" else ("",):
            own = [row for row in by_what[what] if row["against"].endswith(kind)]
            print_table((f"{what}, {kind}".rstrip(", "), "ms", *PEERS), [times_of(of) for of in groups_of(own)])
    for model, products in dict.fromkeys((row["model"], row["products"]) for row in by_what["profile"]):
        own = [row for row in by_what["profile"] if (row["model"], row["products"]) == (model, products)]
        parts = [(row["kernel"], f"{row['launches']}", f"{row['ms']:.1f}", f"{row['share']:.3f}") for row in own]
        print_table((f"kernel of {model}, {products}", "launches", "ms", "share"), parts)
    return 0


PEERS = ("torch float32", "torch tf32", "torch bfloat16", "torch int8")


def groups_of(rows: Sequence[Row]) -> list[list[Row]]:
    """The comparisons of each step or product with its peers."""
    found: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        found[row["model"], row["products"]].append(row)
    return list(found.values())


def times_of(rows: Sequence[Row]) -> tuple[str, ...]:
    """A name, our time, and the ratio to each peer with the peer's time."""
    first = rows[0]
    theirs = {row["against"].split(",")[0]: f"{row['ratio']:.2f} ({row['theirs_ms']:.3g})" for row in rows}
    rate = f", {first['rate']:.0f} TFLOP/s" if first["what"] == "product" else ""
    name = f"{first['model']}, {first['products']}{rate}"
    return (name, f"{first['ms']:.3g}", *(theirs.get(peer, "") for peer in PEERS))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table in Markdown; nothing without rows."""
    if rows:
        print("\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)), end="\n\n")


def main() -> int:
    """Parses, runs, says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("check", "pack", "report"), default="check")
    parser.add_argument("file", nargs="?", type=Path, default=OUT / "results.jsonl", help="of results, to report")
    parser.add_argument("--budget", type=float, default=600, help="seconds (default 600)")
    parser.add_argument("--only", nargs="+", help="stages by their first words")
    parser.add_argument("--emulated", action="store_true", help="on the emulated device")
    parser.add_argument("--python", default=sys.executable, help="of the other machine's version, to pack for")
    arguments = parser.parse_args()
    if arguments.what == "report":
        return report(arguments.file)
    return pack(arguments.python) if arguments.what == "pack" else check(arguments)


if __name__ == "__main__":
    sys.exit(main())
