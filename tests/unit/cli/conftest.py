"""The `lockstep` command, run in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lockstep.base.settings import DEFAULTS
from lockstep.chain.devnet import key_of
from lockstep.chain.keys import KEYSTORE, NODE_KEY, create_account, create_node_key
from lockstep.chain.outbox import Outbox
from lockstep.cli.main import main
from lockstep.storage.directory import DirectoryStore
from tests.support import toyjob
from tests.support.world import World


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


class Killed(BaseException):
    """Ends a command as SIGKILL does: nothing is caught."""


@contextmanager
def killed_once_sent() -> Iterator[None]:
    """Ends the command within between sending a transaction and waiting for it; fails if it sends none."""

    def dies(self: Outbox, key: str, *_: object, **__: object) -> None:
        raise Killed(key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Outbox, "wait", dies)
        with pytest.raises(Killed):
            yield


def toy_market(folder: Path) -> World:
    """Opens a market in memory with one job of real Programs; the folder gets deployment.json and the job's blocks."""
    terms = toyjob.publish(DirectoryStore(folder / "blocks"), steps=1, slots=3, min_slots=2, rounds=3)
    changes = {name: getattr(toyjob.TOY_TERMS, name) for name in ("bond", "answer_seconds")}
    world = World.start(terms=terms, wealth=10**14, slots=3, min_slots=2, rounds=3, **changes)
    world.contracts.addresses.save(folder / "deployment.json")
    return world


def home_of(world: World, home: Path, name: str) -> Path:
    """Makes the home of an account of the market, with its keys under the password `password`."""
    home.mkdir()
    create_account(home / KEYSTORE, "password", key_of(world.devnet.seed, name), work=2)
    create_node_key(home / NODE_KEY)
    (home / "password").write_text("password")
    return home
