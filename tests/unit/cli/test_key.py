"""`lockstep key`: two keys and a backup, or nothing at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.chain.keys import create_account, load_account, load_node_key

from .conftest import Lockstep

PASSWORD = "correct horse"


@pytest.fixture
def password(lockstep: Lockstep) -> Path:
    """A password file in the folder where the commands run."""
    path = Path("password")
    path.write_text(PASSWORD + "\n")
    return path


def test_new_makes_two_keys_and_a_backup_and_show_opens_them(lockstep: Lockstep, password: Path) -> None:
    made = lockstep("key", "new", "--home", "home", "--password-file", password, "--backup", "backup.json", "--json")
    assert made.code == 0
    address = load_account(Path("home/keystore.json"), PASSWORD).address
    public = bytes(load_node_key(Path("home/node.key")).verify_key).hex()
    assert made.data == {
        "address": address, "node_key": public, "keystore": "home/keystore.json", "backup": "backup.json",
    }  # fmt: skip
    assert load_account(Path("backup.json"), PASSWORD).address == address, "the backup opens too"
    private = [Path(p).stat().st_mode & 0o077 for p in ("home", "home/keystore.json", "home/node.key", "backup.json")]
    assert private == [0, 0, 0, 0]
    shown = lockstep("key", "show", "--home", "home", "--password-file", password, "--json")
    assert shown.data == {"address": address, "node_key": public}


def test_new_without_a_backup_makes_nothing(lockstep: Lockstep, password: Path) -> None:
    for backup in ((), ("--backup", "no/such/folder/backup.json"), ("--backup", password)):
        ended = lockstep("key", "new", "--home", "home", "--password-file", password, *backup, "--json")
        assert (ended.code, ended.error["code"]) == (4, "key"), backup
        assert sorted(Path.cwd().iterdir()) == [Path.cwd() / "password"], backup
    assert password.read_text() == PASSWORD + "\n", "a file that was there is not written over"


def test_a_backup_that_fails_takes_its_keys_along(lockstep: Lockstep, password: Path) -> None:
    Path("home").mkdir()
    Path("home/keep").write_text("mine")
    # A link that leads nowhere: no file is there, and none can be made.
    Path("backup.json").symlink_to("no/such/folder/backup.json")
    ended = lockstep("key", "new", "--home", "home", "--password-file", password, "--backup", "backup.json", "--json")
    assert (ended.code, ended.error["code"]) == (4, "key")
    assert [p.name for p in Path("home").iterdir()] == ["keep"]


@pytest.mark.parametrize("there", ["keystore.json", "node.key"])
def test_a_key_is_never_written_over(lockstep: Lockstep, password: Path, there: str) -> None:
    Path("home").mkdir()
    (Path("home") / there).write_text("an older key")
    ended = lockstep("key", "new", "--home", "home", "--password-file", password, "--backup", "b", "--json")
    assert (ended.code, ended.error["code"]) == (4, "key")
    assert there in ended.error["message"]
    assert {p.name: p.read_text() for p in Path("home").iterdir()} == {there: "an older key"}
    assert not Path("b").exists()


def test_an_empty_password_is_refused(lockstep: Lockstep, password: Path) -> None:
    password.write_text("\n")
    ended = lockstep("key", "new", "--home", "home", "--password-file", password, "--backup", "b", "--json")
    assert (ended.code, ended.error["code"]) == (4, "key")
    assert not Path("home").exists()


def test_show_of_no_home_makes_none(lockstep: Lockstep, password: Path) -> None:
    ended = lockstep("key", "show", "--home", "nowhere", "--password-file", password, "--json")
    assert (ended.code, ended.error["code"]) == (4, "key")
    assert "lockstep key new" in ended.error["hint"]
    assert not Path("nowhere").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"crypto": {"cipher": "rot13"}}'])
def test_a_keystore_that_is_none_is_4(lockstep: Lockstep, password: Path, content: bytes) -> None:
    Path("home").mkdir()
    Path("home/keystore.json").write_bytes(content)
    ended = lockstep("key", "show", "--home", "home", "--password-file", password, "--json")
    assert (ended.code, ended.error["code"]) == (4, "key"), ended
    assert Path("home/keystore.json").read_bytes() == content


def test_a_wrong_password_is_4_and_says_so(lockstep: Lockstep, password: Path) -> None:
    create_account(Path("home/keystore.json"), PASSWORD, work=2)
    password.write_text("battery staple")
    ended = lockstep("key", "show", "--home", "home", "--password-file", password, "--json")
    assert (ended.code, ended.error["code"]) == (4, "key.password")
    assert "battery" not in ended.out + ended.err, "no secret is printed"
