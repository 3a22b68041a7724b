"""The `lockstep` command, run in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lockstep.base.settings import DEFAULTS
from lockstep.cli.main import main


@dataclass(frozen=True)
class Ended:
    """A command that ran to its end."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Of the one envelope on stdout; fails unless it says ok."""
        assert self.out.count("\n") == 1, f"one line on stdout: {self.out!r}"
        envelope = json.loads(self.out)
        assert envelope.keys() == {"schema", "ok", "data"}, envelope
        assert (envelope["schema"], envelope["ok"]) == ("lockstep/1", True)
        return envelope["data"]

    @property
    def error(self) -> dict[str, str]:
        """Of the one envelope on stdout; fails unless it has a code, a message and a hint."""
        assert self.out.count("\n") == 1, f"one line on stdout: {self.out!r}"
        envelope = json.loads(self.out)
        assert envelope.keys() == {"schema", "ok", "error"}, envelope
        assert (envelope["schema"], envelope["ok"]) == ("lockstep/1", False)
        error: dict[str, str] = envelope["error"]
        assert error.keys() == {"code", "message", "hint"}
        assert all(error.values()), error
        return error


Lockstep = Callable[..., Ended]


@pytest.fixture
def lockstep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Lockstep]:
    """Runs a command in an empty folder, without settings of the machine."""
    for name in DEFAULTS:
        monkeypatch.delenv(f"LOCKSTEP_{name.upper()}", raising=False)
    # A command that chooses a network sets it: it is taken back with this.
    monkeypatch.setenv("LOCKSTEP_NETWORK", "")
    monkeypatch.setenv("LOCKSTEP_LOCAL", str(tmp_path / "local"))
    monkeypatch.setenv("LOCKSTEP_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def run(*arguments: str | Path) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Ended(left.value.code, out, err)

    yield run
    assert not (tmp_path / "user").exists(), "nothing is written where nobody said"
