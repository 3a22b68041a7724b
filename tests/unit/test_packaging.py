"""The distribution: whose names it takes, what it brings."""

import importlib
import json
import subprocess
import sys
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest

NAMES = ("lockstep", "coordinator", "worker", "verifier")


@pytest.mark.parametrize("name", NAMES)
def test_no_other_distribution_owns_our_top_level_names(name: str) -> None:
    owners = set(packages_distributions().get(name, []))
    assert owners <= {"lockstep-compute"}, f"{name} is also a package of {owners}"


@pytest.mark.parametrize("name", NAMES)
def test_packages_come_from_this_checkout(name: str, repository: Path) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    assert Path(module.__file__).is_relative_to(repository)
    assert ".venv" not in Path(module.__file__).parts


def test_base_install_does_not_require_torch() -> None:
    base = [line for line in distribution("lockstep-compute").requires or [] if "extra ==" not in line]
    assert not any(line.startswith(("torch", "fastapi", "celery")) for line in base), base


def test_importing_lockstep_loads_neither_torch_nor_web3() -> None:
    code = "import json, sys, lockstep; print(json.dumps(sorted({'torch', 'web3', 'numpy'} & set(sys.modules))))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert loaded == []


def test_native_kernels_are_built_for_this_machine() -> None:
    native = importlib.import_module("lockstep.numerics._native")
    assert Path(native.__file__ or "").suffix == ".so"
