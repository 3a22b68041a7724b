"""Checks units with `systemd-analyze verify`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.servers import REQUIRED
from tests.support.waiting import PATIENCE


def faults(folder: Path, name: str, unit: str) -> list[str]:
    """Returns the complaints about a unit; none if systemd accepts it.

    Skips without systemd, or fails where it is required.
    """
    analyze = shutil.which("systemd-analyze")
    if analyze is None and os.environ.get(REQUIRED) == "required":
        pytest.fail("systemd is not installed")
    if analyze is None:
        pytest.skip("systemd is not installed")
    file = folder / name
    file.write_text(unit)
    done = subprocess.run([analyze, "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=PATIENCE)
    return [line for line in (done.stdout + done.stderr).splitlines() if "lockstep" in line]
