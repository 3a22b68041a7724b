"""Whatever is missing, `lockstep coordinator` says so: one envelope, the documented exit code, nothing left behind."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import coordinator
from lockstep.base import trust
from lockstep.chain.addresses import CONTRACTS, Addresses
from lockstep.chain.keys import create_account
from lockstep.cli.main import main
from lockstep.protocol.types import Address

NOWHERE = "http://127.0.0.1:9"
SOMEWHERE = Address("0x" + "11" * 20)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """`up` takes logging over."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a key; its deployment names a chain that is not there."""
    create_account(tmp_path / "home" / "keystore.json", "right", bytes([1]) * 32, work=2)
    (tmp_path / "password").write_text("right")
    addresses = Addresses(31337, *[SOMEWHERE] * len(CONTRACTS))
    addresses.save(tmp_path / "deployment.json")
    return tmp_path / "home"


def lockstep(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and envelope of a command."""
    with pytest.raises(SystemExit) as left:
        main(["coordinator", *arguments, "--json"])
    return int(left.value.code or 0), json.loads(capsys.readouterr().out)


def options(home: Path, **changes: str) -> list[str]:
    given = {
        "rpc": NOWHERE, "storage": f"dir://{home}/blocks", "home": str(home),
        "deployment": str(home.parent / "deployment.json"), "password-file": str(home.parent / "password"),
    }  # fmt: skip
    return [part for name, value in (given | changes).items() for part in (f"--{name}", value)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("changes", "code", "error"),
    [
        ({}, 9, "unreachable"),
        ({"deployment": "/nowhere/deployment.json"}, 7, "not_found"),
        ({"password-file": "/nowhere/password"}, 4, "key"),
        ({"host": "256.0.0.1"}, 3, "doctor"),
        ({"port": "70000"}, 2, "usage"),
        ({"threads": "0"}, 2, "usage"),
    ],
    ids=["rpc down", "no deployment", "no password", "no such host", "no such port", "no threads"],
)
def test_up_leaves_with_the_trees_exit_code(
    home: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str], code: int, error: str
) -> None:
    exit_code, envelope = lockstep(capsys, "up", "--port", "0", *options(home, **changes))
    assert (exit_code, envelope["error"]["code"]) == (code, error), envelope
    assert envelope["error"]["hint"]
    assert not list(home.glob("*.sqlite")), "nothing half-written"


def test_a_wrong_password_is_a_key_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home.parent / "password").write_text("wrong")
    exit_code, envelope = lockstep(capsys, "up", "--port", "0", *options(home))
    assert (exit_code, envelope["error"]["code"]) == (4, "key.password")


def test_doctor_names_what_is_missing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, envelope = lockstep(capsys, "doctor", *options(home))
    assert exit_code == 3
    found = {row["check"]: row for row in envelope["data"]}
    assert not found["chain"]["ok"]
    assert NOWHERE in found["chain"]["message"]
    assert all(row["hint"] for row in found.values() if not row["ok"])
    assert "contracts" not in found, "a chain that is not there says nothing of its contracts"
    assert found["database"]["ok"]
    assert not (home / "index.sqlite").exists(), "nothing is made"


def test_migrate_makes_the_index(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, envelope = lockstep(capsys, "migrate", "--home", str(home))
    assert (exit_code, envelope["ok"]) == (0, True)
    newest = max(path.name for path in Path(coordinator.__file__).parent.glob("migrations/versions/0*.py"))
    assert envelope["data"]["revision"] == newest.partition("_")[0]
    assert (home / "index.sqlite").exists()


def test_migrate_refuses_a_database_that_cannot_be_opened(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, envelope = lockstep(capsys, "migrate", "--home", str(home), "--database", "sqlite:////no/such/folder/x")
    assert (exit_code, envelope["error"]["code"]) == (3, "doctor")


def test_settings_follow_flag_environment_file_default(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from coordinator.settings import resolve_coordinator

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCKSTEP_CONFIG", str(tmp_path / "config"))
    assert resolve_coordinator(home=str(home)).port == 8700
    file = tmp_path / "lockstep.toml"
    file.write_text("coordinator_port = 1\n")
    trust.accept(file, file.read_bytes())
    assert resolve_coordinator(home=str(home)).port == 1
    monkeypatch.setenv("LOCKSTEP_COORDINATOR_PORT", "2")
    assert resolve_coordinator(home=str(home)).port == 2
    assert resolve_coordinator(home=str(home), port=3).port == 3
    child = resolve_coordinator(home=str(home), port=3).environment()
    monkeypatch.setenv("LOCKSTEP_COORDINATOR_PORT", child["LOCKSTEP_COORDINATOR_PORT"])
    assert resolve_coordinator(home=str(home)) == resolve_coordinator(home=str(home), port=3), "a child's are the same"
