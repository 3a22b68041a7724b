"""Compares this tree with another commit and prints what differs.

    python tools/unchanged.py COMMIT          vectors, contracts, Programs, commands
    python tools/unchanged.py COMMIT --demo   and the report of the demo, which runs twice: some minutes

Gas follows from the contracts' code, and stands in tests/vectors besides. Of commands and of the demo the exit code is
compared and the shape of what is printed: keys and types. Native kernels are not compared: both trees run today's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import site
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COMPILED = ("lockstep.numerics._native", "lockstep.protocol._hash")
COMMITTED = ("tests/vectors", "sdk/lockstep/chain/abi")
JOB = """
texts = "texts"
rounds = 2
slots = 2
min_slots = 1
[model]
kind = "{kind}"
layers = 1
heads = 2
width = 32
context = 16
[batch]
rows = 2
[strategy]
inner_steps = 3
payload = "{payload}"
carry = {carry}
"""
COMMANDS = (
    "key new --home {folder}/home --password-file {folder}/password",
    "key new --home {folder}/home --password-file {folder}/password --backup {folder}/backup.json",
    "key show --home {folder}/home --password-file {folder}/password",
    "key show --home {folder}/nowhere --password-file {folder}/password",
    "storage put {folder}/password --storage dir://{folder}/store", "storage get nothing --storage dir://{folder}/store",
    "dataset build {folder}/texts --tokenizer none --row-tokens 17 --storage dir://{folder}/store",
    "dataset verify nothing --storage dir://{folder}/store",
    "train init {folder}/job.toml", "train init {folder}/job.toml", "train quote {folder}/none.toml",
    "train quote {folder}/job.toml --rpc http://127.0.0.1:1",
    "worker status --home {folder}/home --password-file {folder}/password --rpc http://127.0.0.1:1",
    "worker why nothing", "verifier void nothing", "replay nothing", "guard export {folder}/guard.json",
    "coordinator migrate --home {folder}/coordinator", "coordinator doctor --home {folder}/coordinator", "doctor",
    "nonsense",
)  # fmt: skip
DEMO = "demo --seed 1"


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A folder with the commit's files."""
    with tempfile.TemporaryDirectory(dir=ROOT / "out") as name:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "-x", "-C", name], input=archive, check=True)
        tree = Path(name)
        (tree / "node_modules").symlink_to(ROOT / "node_modules")
        for module in COMPILED:
            built = find_spec(module)
            assert built is not None
            assert built.origin is not None
            shutil.copy(built.origin, tree / "sdk" / Path(*module.split(".")[:-1]))
        _declare(tree)
        _install(tree)
        yield tree


def _declare(tree: Path) -> None:
    """Name the tree's entry points as an installation of it would."""
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    folder = tree / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project.get("entry-points", {}).items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")


def _install(tree: Path) -> None:
    """An environment whose processes import the tree's own files, and everything else from ours."""
    venv.create(tree / "env", symlinks=True)
    (packages,) = (tree / "env/lib").glob("*/site-packages")
    # What ours adds to its path by files of this kind, our own tree, is not read again.
    paths = [tree, tree / "sdk", *(Path(folder) for folder in site.getsitepackages())]
    (packages / "tree.pth").write_text("".join(f"{path}\n" for path in paths))


def committed(tree: Path) -> dict[str, str]:
    """Digests of vectors; of contracts their code, and what a caller needs: names of types are left out."""
    found = {}
    for folder in COMMITTED:
        for file in sorted((tree / folder).glob("*.json*")):
            content: Any = file.read_bytes()
            if folder.endswith("abi"):
                content = json.dumps(_without(json.loads(content), "internalType"), sort_keys=True).encode()
            found[f"{folder}/{file.name}"] = sha256(content).hexdigest()
    return found


def _without(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return {k: _without(v, key) for k, v in value.items() if k != key}
    return [_without(v, key) for v in value] if isinstance(value, list) else value


def origin() -> str:
    """The folder whose code is imported."""
    from lockstep.protocol import jobs

    return str(Path(jobs.__file__).parents[3])


def programs() -> dict[str, str]:
    """Roots of the Programs of small jobs, and digests of their first weights, by the code that is imported."""
    from lockstep.training.describe import job_of

    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _texts(folder)
        for kind, payload, carry in product(("gpt", "llama", "encoder"), ("int8-block", "f32"), ("false", "true")):
            job = job_of(tomllib.loads(JOB.format(kind=kind, payload=payload, carry=carry)), folder)
            parts = job.programs.step, job.programs.encode, job.programs.merge
            for which, part in zip(("step", "encode", "merge"), parts, strict=True):
                found[f"{kind} {payload} {carry}: {which}"] = part.root.hex() if part else "none"
            found[f"{kind} {payload} {carry}: genesis"] = _digest([*job.genesis.shared, *job.genesis.outer])
    return found


def _digest(tensors: Iterable[Any]) -> str:
    found = sha256()
    for tensor in tensors:
        found.update(b"-" if tensor is None else tensor.tobytes())
    return found.hexdigest()


def _texts(folder: Path) -> None:
    texts = folder / "texts"
    texts.mkdir()
    for number in range(30):
        (texts / f"{number}.txt").write_text(f"The quick brown fox number {number} jumps over the lazy dog. " * 9)


def commands(demo: bool) -> dict[str, Any]:
    """(exit code, shape) of each command with --json."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "password").write_text("a password for tests\n")
        (folder / "password").chmod(0o600)
        _texts(folder)
        for number, command in enumerate([*COMMANDS, *([DEMO] if demo else [])]):
            arguments = [*command.format(folder=folder).split(), "--json"]
            run = subprocess.run(
                [sys.executable, "-m", "lockstep.cli.main", *arguments], capture_output=True, text=True, cwd=folder
            )
            found[f"{number}: {command}"] = [run.returncode, [shape(json.loads(x)) for x in run.stdout.splitlines()]]
    return found


def shape(value: Any, key: str = "") -> Any:
    """Keys and types of JSON; lists are as their first item. Error codes are kept as they are."""
    if isinstance(value, dict):
        return {k: shape(v, k) for k, v in sorted(value.items())}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return value if key in ("code", "schema", "ok") else type(value).__name__


def facts(tree: Path, demo: bool) -> dict[str, Any]:
    """All of a tree's."""
    python = sys.executable if tree == ROOT else str(tree / "env/bin/python")
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    asked = [python, str(Path(__file__).resolve()), "--facts", *(["--demo"] if demo else [])]
    told = subprocess.run(asked, env=environment, check=True, stdout=subprocess.PIPE, cwd=tree).stdout
    imported, found = json.loads(told.splitlines()[-1])
    assert Path(imported) == tree, f"{imported} was looked at, not {tree}"
    return {**committed(tree), **found}


def main() -> int:
    """Print what differs; 1 if anything does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?")
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--facts", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.facts:
        print(json.dumps([origin(), {**programs(), **commands(asked.demo)}]))
        return 0
    if asked.commit is None:
        parser.error("name a commit")
    with checked_out(asked.commit) as before:
        then, now = facts(before, asked.demo), facts(ROOT, asked.demo)
    differ = [name for name in sorted(then.keys() | now.keys()) if then.get(name) != now.get(name)]
    for name in differ:
        print(f"{name}\n  before {then.get(name)}\n  now    {now.get(name)}")
    print(json.dumps({"commit": asked.commit, "compared": len(then.keys() | now.keys()), "differ": len(differ)}))
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
