"""Both wheels in a fresh environment and an empty folder: the built one without a compiler, the portable one without
compiled code. The other distributions are the checkout's, so that no network is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from lockstep.chain.devnet import find_anvil
from lockstep.cli.doctor import PORTABLE
from lockstep.protocol.errors import DoctorError
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
PURE = ("-C", "wheel.cmake=false", "-C", "wheel.py-api=py3")


@dataclass(frozen=True)
class Installed:
    """An environment that has the wheel, and an empty folder."""

    place: Path
    wheel: str

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A command of the wheel; nothing but it and `more` is on the PATH, and no compiler is anywhere."""
        empty = self.place / "empty"
        empty.mkdir(exist_ok=True)
        environment: Mapping[str, str] = {
            "PATH": str(self.place / "bin"), "HOME": str(self.place / "home"), "CXX": "/nonexistent",
            "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8", **more,
        }  # fmt: skip
        return subprocess.run(
            ["lockstep", *arguments], executable=self.place / "bin/lockstep", cwd=empty, env=dict(environment),
            capture_output=True, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip


def install(folder: Path, *options: str) -> Installed:
    """Build a wheel and install it."""
    pip = [sys.executable, "-m", "pip", "--quiet"]
    wheels = folder / "wheels"
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", *options, "--wheel-dir", str(wheels), str(ROOT)]
    subprocess.run(build, check=True, env={**os.environ})
    (wheel,) = wheels.iterdir()
    place = folder / "environment"
    venv.create(place)
    subprocess.run([*pip, "--python", str(place / "bin/python"), "install", "--no-deps", str(wheel)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # A path, and no site folder: the checkout's own installation in place stays out.
    (place / "lib" / version / "site-packages/rest.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (place / "home").mkdir()
    return Installed(place, wheel.name)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("portable"), *PURE)


def test_the_built_wheel_runs_the_demo_without_a_compiler(built: Installed, tmp_path: Path) -> None:
    assert built.run("--version").stdout.strip() == "0.1.0"
    found = subprocess.run(
        [built.place / "bin/python", "-c", "import lockstep; print(lockstep.__file__)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(found.stdout.strip()).is_relative_to(built.place), "the wheel's, not the checkout's"
    missing = built.run("demo", "--json")
    assert missing.returncode == DoctorError.exit_code
    assert "npm install @foundry-rs/anvil" in json.loads(missing.stdout)["error"]["hint"]
    done = built.run("demo", "--json", "--seed", "0", LOCKSTEP_ANVIL=str(find_anvil()))
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(done.stdout.splitlines()[-1])["data"]
    assert data["loss_last"] < data["loss_first"], data
    assert int(data["slashed"]) > 0, "the liar was convicted"


def test_the_portable_wheel_has_nothing_compiled_and_checks_this_machine(portable: Installed) -> None:
    assert portable.wheel.endswith("-py3-none-any.whl")
    assert portable.run("--version").stdout.strip() == "0.1.0"
    told = portable.run("doctor", "--device", "cpu")
    assert told.returncode == 0, told.stderr
    assert PORTABLE in told.stdout
    assert not list(portable.place.rglob("lockstep/**/*.so"))
