"""A settings file that came with a folder chooses no key, chain or money before its user has read it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.settings import resolve_coordinator
from lockstep.base import trust
from lockstep.base.settings import DEFAULTS, FOLDER_FILE, resolve
from lockstep.protocol.errors import UsageError

VALUES = {"int": "7", "str": '"all"'}
GRAVE = [name for name in (*DEFAULTS, "network", "coordinator_port") if name not in trust.HARMLESS]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cloned folder, with a user who has settings nowhere else."""
    for name in (*DEFAULTS, "network"):
        monkeypatch.delenv(f"LOCKSTEP_{name.upper()}", raising=False)
    monkeypatch.setenv("LOCKSTEP_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("LOCKSTEP_LOCAL", str(tmp_path / "local"))
    (tmp_path / "clone").mkdir()
    monkeypatch.chdir(tmp_path / "clone")
    return tmp_path / "clone"


def written(folder: Path, text: str) -> Path:
    file = folder / FOLDER_FILE
    file.write_text(text)
    return file


@pytest.mark.parametrize("name", GRAVE)
@pytest.mark.parametrize("resolved", [resolve, resolve_coordinator])
def test_what_could_cost_its_user_is_refused(folder: Path, name: str, resolved: Callable[[], object]) -> None:
    kind = type(DEFAULTS.get(name, 0 if name.endswith("port") else "")).__name__
    written(folder, f"{name} = {VALUES[kind]}\nthreads = 2\n")
    with pytest.raises(UsageError, match=f"sets {name}, and this folder is not trusted") as refused:
        resolved()
    assert "lockstep trust" in refused.value.hint


def test_what_costs_nothing_is_taken(folder: Path) -> None:
    written(folder, "".join(f"{name} = 3\n" for name in sorted(trust.HARMLESS - {"device"})) + 'device = "cpu"\n')
    assert (resolve().threads, resolve().device, resolve().max_memory_mib) == (3, "cpu", 3)


def test_a_file_is_trusted_as_it_was_read(folder: Path) -> None:
    file = written(folder, 'rpc = "http://first"\n')
    trust.accept(file, file.read_bytes())
    assert resolve().rpc == "http://first"
    written(folder, 'rpc = "http://second"\n')
    with pytest.raises(UsageError, match="not trusted"):
        resolve()
    trust.accept(file, file.read_bytes())
    assert resolve().rpc == "http://second"
    assert len((folder.parent / "config/trusted").read_text().splitlines()) == 1, "one line a file"


def test_the_same_text_in_another_folder_is_not_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(folder, 'rpc = "http://first"\n')
    trust.accept(file, file.read_bytes())
    (other := folder.parent / "other").mkdir()
    written(other, file.read_text())
    monkeypatch.chdir(other)
    with pytest.raises(UsageError, match="not trusted"):
        resolve()


@pytest.mark.parametrize("named", [".", "{folder}", "../clone", "~/.lockstep"])
def test_a_folder_that_calls_itself_the_home_is_refused(folder: Path, named: str) -> None:
    home = named.format(folder=folder)
    written(folder, f'rpc = "http://of-folder"\nhome = "{home}"\n')
    with pytest.raises(UsageError, match="sets home, rpc"):
        resolve()
    with pytest.raises(UsageError, match="sets home, rpc"):
        resolve_coordinator()


def test_a_folder_that_its_user_names_as_the_home_is_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(folder, f'rpc = "http://of-home"\nhome = "{folder}"\n')
    assert resolve(home=str(folder)).rpc == "http://of-home"
    assert resolve(home=".").rpc == "http://of-home"
    with pytest.raises(UsageError, match="sets home, rpc"):
        resolve(home=str(folder.parent))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LOCKSTEP_HOME", str(folder))
        assert resolve().rpc == "http://of-home"
        file.write_text('rpc = "http://of-home"\n')
        assert resolve().rpc == "http://of-home"
    (default := folder.parent / "user/.lockstep").mkdir(parents=True)
    written(default, 'rpc = "http://of-default"\n')
    monkeypatch.setenv("HOME", str(default.parent))
    monkeypatch.chdir(default)
    assert resolve().rpc == "http://of-default", "the user's default home"


def test_a_link_to_a_file_of_the_home_makes_no_folder_the_home(folder: Path) -> None:
    (home := folder.parent / "home").mkdir()
    (folder / FOLDER_FILE).symlink_to(written(home, 'rpc = "http://of-home"\n'))
    with pytest.raises(UsageError, match="sets rpc"):
        resolve(home=str(home))
