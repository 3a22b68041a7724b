"""Keys at rest: private, encrypted, never overwritten; a wrong password is a KeyStoreError with a hint."""

import json
import stat
from pathlib import Path

import pytest

from lockstep.chain import keys
from lockstep.protocol.errors import KeyStoreError

WORK = 1 << 10


def test_staking_key_opens_with_its_password(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "staking.json"
    account = keys.create_account(path, "correct horse", work=WORK)
    assert keys.load_account(path, "correct horse").key == account.key
    assert account.key.hex() not in path.read_text(), "the secret is not in the file"
    assert json.loads(path.read_text())["version"] == 3


def test_wrong_password_is_refused_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "staking.json"
    keys.create_account(path, "right", work=WORK)
    with pytest.raises(KeyStoreError, match="password does not open") as caught:
        keys.load_account(path, "wrong")
    assert caught.value.exit_code == 4
    assert caught.value.hint


@pytest.mark.parametrize("make", [lambda p: keys.create_account(p, "x", work=WORK), keys.create_node_key])
def test_files_are_private_and_never_overwritten(tmp_path: Path, make: object) -> None:
    path = tmp_path / "key"
    make(path)  # type: ignore[operator]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    with pytest.raises(KeyStoreError, match="exists"):
        make(path)  # type: ignore[operator]
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["key"], "no temporary file is left"


def test_given_secrets_are_kept(tmp_path: Path) -> None:
    secret = bytes(range(1, 33))
    assert keys.create_account(tmp_path / "a", "x", secret, work=WORK).key == secret
    assert bytes(keys.create_node_key(tmp_path / "b", secret)) == secret
    assert bytes(keys.load_node_key(tmp_path / "b")) == secret


def test_missing_and_malformed_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(KeyStoreError, match="no key at") as caught:
        keys.load_account(tmp_path / "none", "x")
    assert "key new" in caught.value.hint
    for text in (b"", b"[]", b'{"version": 3}', b"\xff\xfe", b'{"version": 3, "crypto": {}}'):
        path = tmp_path / "bad"
        path.write_bytes(text)
        path.chmod(0o600)
        with pytest.raises(KeyStoreError):
            keys.load_account(path, "x")
        with pytest.raises(KeyStoreError):
            keys.load_node_key(path)


def test_node_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    keys.create_node_key(path)
    path.chmod(0o644)
    with pytest.raises(KeyStoreError, match="others can read") as caught:
        keys.load_node_key(path)
    assert "chmod 600" in caught.value.hint


def test_a_link_out_of_its_folder_is_no_key_of_a_home(tmp_path: Path) -> None:
    (home := tmp_path / "home").mkdir()
    (clone := tmp_path / "clone").mkdir()
    account = keys.create_account(home / "keystore.json", "right", work=WORK)
    keys.create_node_key(home / "node.key")
    for name, read in (
        ("keystore.json", lambda path: keys.load_account(path, "right")),
        ("keystore.json", keys.account_address),
        ("node.key", keys.load_node_key),
    ):
        for target in (home / name, Path("..") / "home" / name):
            (clone / name).symlink_to(target)
            with pytest.raises(KeyStoreError, match="link out of its folder") as refused:
                read(clone / name)
            assert str(home) in refused.value.hint
            (clone / name).unlink()
    (clone / "keystore.json").symlink_to("keystore.json")
    with pytest.raises(KeyStoreError, match="cannot read"):
        keys.account_address(clone / "keystore.json")
    (tmp_path / "way").symlink_to(home)
    assert keys.load_account(tmp_path / "way/keystore.json", "right").key == account.key, (
        "its folder is named by a link"
    )
    (home / "keystore.json").rename(home / "1.json")
    (home / "keystore.json").symlink_to("1.json")
    assert keys.load_account(home / "keystore.json", "right").key == account.key, "as mounted secrets are"


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 4},
        {"address": 5},
        {"crypto": None},
        {"crypto": {}},
        {"kdfparams": {"dklen": 32, "n": 3, "r": 8, "p": 1, "salt": "ab"}},
        {"kdfparams": {"dklen": 32, "n": 1 << 24, "r": 1 << 24, "p": 1, "salt": "ab"}},
        {"kdfparams": {"dklen": 32, "n": 2, "r": 8, "p": 1, "salt": None}},
        {"kdf": "none"},
        {"mac": "xyz"},
    ],
    ids=str,
)
def test_keystore_with_a_field_that_is_none_is_refused_before_its_password_is_tried(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    path = tmp_path / "keystore.json"
    keys.create_account(path, "secret", work=2)
    keystore = json.loads(path.read_text())
    inner = {k: v for k, v in changed.items() if k in keystore["crypto"]}
    whole = {**keystore, **{k: v for k, v in changed.items() if k not in inner}}
    if inner:
        whole["crypto"] = {**whole["crypto"], **inner}
    path.write_text(json.dumps(whole))
    for read in (lambda: keys.load_account(path, "secret"), lambda: keys.account_address(path)):
        with pytest.raises(KeyStoreError, match="not a v3 keystore"):
            read()


def test_address_of_a_keystore_needs_no_password(tmp_path: Path) -> None:
    made = keys.create_account(tmp_path / "keystore.json", "secret", work=2)
    assert keys.account_address(tmp_path / "keystore.json") == made.address
