"""Settings: which source wins, and what a wrong value says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lockstep.base import files, trust
from lockstep.base.settings import DEFAULTS, resolve
from lockstep.protocol.errors import KeyStoreError, LockstepError, UsageError


@pytest.fixture(autouse=True)
def _nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment and no file of the machine that the test runs on."""
    monkeypatch.setenv("LOCKSTEP_CONFIG", str(tmp_path / "config"))
    for name in DEFAULTS:
        monkeypatch.delenv(f"LOCKSTEP_{name.upper()}", raising=False)
    monkeypatch.chdir(tmp_path)


def test_flag_beats_environment_beats_file_beats_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve().threads == 1, "default"
    Path("lockstep.toml").write_text("threads = 2\n")
    assert resolve().threads == 2, "file"
    monkeypatch.setenv("LOCKSTEP_THREADS", "3")
    assert resolve().threads == 3, "environment"
    assert resolve(threads=4).threads == 4, "flag"
    assert resolve(threads=None).threads == 3, "a flag that was not given"


@pytest.mark.parametrize(
    ("device", "path"),
    [("auto", "auto"), ("cpu", "auto"), ("cuda", "cuda:0"), ("cuda:12", "cuda:12"), ("emulated", "emulated")],
)
def test_a_device_is_a_path_of_the_kernels(device: str, path: str) -> None:
    assert resolve(device=device).path == path


@pytest.mark.parametrize("device", ["", "CUDA", "cuda:", "cuda:01", "cuda:-1", "cuda:1000", "cuda:0 ", "gpu", "cpu\n"])
def test_a_device_that_there_cannot_be_is_a_usage_error(device: str) -> None:
    with pytest.raises(UsageError, match="device is"):
        resolve(device=device)


@pytest.mark.parametrize("text", ["threads = 'many'", "threads = [1]", "threads = 0", "threads = ", "\x00"])
def test_a_wrong_file_is_a_usage_error(text: str) -> None:
    Path("lockstep.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        resolve()
    assert caught.value.hint


def test_a_file_that_is_not_text_is_a_usage_error() -> None:
    Path("lockstep.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"lockstep\.toml"):
        resolve()


def test_a_home_is_private_and_is_made_only_when_it_is_used(tmp_path: Path) -> None:
    settings = resolve(home=str(tmp_path / "a" / "b"))
    assert settings.home_path == tmp_path / "a" / "b"
    assert not (tmp_path / "a").exists()
    assert settings.home_dir.stat().st_mode & 0o777 == 0o700


def test_a_home_that_is_a_file_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for home in ("file", "file/inside"):
        with pytest.raises(UsageError, match="home"):
            _ = resolve(home=str(tmp_path / home)).home_dir


@pytest.mark.parametrize(
    ("content", "named"),
    [(None, "No such file"), (b"\xff\xfe", "not text")],
)
def test_a_password_file_that_cannot_be_read_says_why(tmp_path: Path, content: bytes | None, named: str) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KeyStoreError, match=named) as caught:
        resolve(password_file=str(path)).password()
    assert caught.value.hint
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o660])
def test_a_password_that_others_can_read_is_refused_unless_its_folder_is_closed(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "password"
    path.write_text("swordfish")
    path.chmod(mode)
    assert resolve(password_file=str(path)).password() == "swordfish", "nobody else reaches the folder of this test"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "OTHERS_FOLDERS", 0o777)
        with pytest.raises(KeyStoreError, match="others can read") as refused:
            resolve(password_file=str(path)).password()
        assert "chmod 600" in refused.value.hint
        link = tmp_path / "link"
        link.symlink_to(path)
        with pytest.raises(KeyStoreError, match="others can read"):
            resolve(password_file=str(link)).password()
        patched.setattr(files, "SECRETS", folder)
        assert resolve(password_file=str(path)).password() == "swordfish", "a container's secrets have mode 0444"
        patched.setattr(files, "SECRETS", Path("/run/secrets"))
        path.chmod(0o600)
        assert resolve(password_file=str(path)).password() == "swordfish"


def test_a_password_may_come_through_a_pipe() -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"swordfish\n")
    os.close(theirs)
    try:
        assert resolve(password_file=f"/dev/fd/{ours}").password() == "swordfish"
    finally:
        os.close(ours)


def test_no_password_file_names_the_option() -> None:
    with pytest.raises(LockstepError) as caught:
        resolve().password()
    assert "--password-file" in caught.value.hint


def test_a_password_ends_before_its_newline(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(" correct horse \n")
    assert resolve(password_file=str(tmp_path / "password")).password() == " correct horse "


@pytest.mark.parametrize(("text", "wei"), [("40 gwei", 40 * 10**9), ("0.05GWEI", 5 * 10**7), ("7 wei", 7)])
def test_a_fee_has_a_unit(text: str, wei: int) -> None:
    settings = resolve(max_fee=text, max_tip=text)
    assert (settings.max_fee_wei, settings.max_tip_wei) == (wei, wei)
    assert resolve().max_fee_wei is None, "not said: the highest fee that a job refunds"


@pytest.mark.parametrize(
    ("text", "hint"),
    [("40", "40 gwei"), ("40 gewi", "'gwei'"), ("0.5 wei", "decimals"), ("2 eth", "40 gwei"), ("-1 gwei", "unit")],
)
@pytest.mark.parametrize("name", ["max_fee", "max_tip"])
def test_a_fee_that_cannot_be_meant_is_a_usage_error(name: str, text: str, hint: str) -> None:
    with pytest.raises(UsageError, match=name) as refused:
        resolve(**{name: text})
    assert hint in refused.value.hint


@pytest.mark.parametrize("text", ["latest", "safe", "Finalized", "0", "12"])
def test_a_finality_is_a_name_or_a_number_of_blocks(text: str) -> None:
    assert resolve(finality=text).finality == text.lower()


@pytest.mark.parametrize(("text", "hint"), [("finalised", "finalized"), ("save", "safe"), ("-3", "number of blocks")])
def test_another_finality_is_a_usage_error(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match="finality") as refused:
        resolve(finality=text)
    assert hint in refused.value.hint


def test_a_setting_of_an_earlier_version_is_read_by_todays_name(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path("lockstep.toml")
    file.write_text("confirmations = 12\n")
    trust.accept(file, file.read_bytes())
    assert resolve().finality == "12"
    monkeypatch.setenv("LOCKSTEP_CONFIRMATIONS", "7")
    assert resolve().finality == "7"
    monkeypatch.setenv("LOCKSTEP_FINALITY", "safe")
    assert resolve().finality == "safe"
