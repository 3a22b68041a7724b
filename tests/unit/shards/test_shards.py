"""Dealing, running and resuming: real processes of pytest over files made here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shards import __main__ as shards
from tests.shards import starting
from tests.shards.dealing import SHARDS_PER_JOB, UNKNOWN, deal
from tests.shards.recorder import Outcome, read

PASSES = "def test_passes():\n    assert True\n"
FAILS = "def test_fails():\n    assert 1 == 2, 'as it must'\n"
DIES = "import os\n\ndef test_passes():\n    pass\n\ndef test_dies():\n    os._exit(9)\n"
NOT_NEEDED = ("cacheprovider", "hypothesispytest", "schemathesis", "anyio", "cov", "xdist", "timeout")
"""Plugins that take seconds to load."""
LATER = "from pathlib import Path\n\ndef test_b():\n    assert Path('out/there').exists()\n"
SLOW = "import pytest\n\n@pytest.mark.slow\ndef test_slow():\n    pass\n"


def test_files_are_dealt_so_that_shards_end_together() -> None:
    files = [Path(f"tests/test_{i}.py") for i in range(40)]
    seconds = {"tests/test_0.py": 60.0, "tests/test_1.py": 50.0, "tests/test_2.py": 7.0}
    dealt = deal(files, seconds, jobs=2)
    assert sorted(f for shard in dealt for f in shard) == sorted(files), "each once"
    assert len(dealt) == 2 * SHARDS_PER_JOB
    assert dealt[0] == [files[0]]
    assert dealt[1] == [files[1]]
    totals = [sum(seconds.get(f.as_posix(), UNKNOWN) for f in shard) for shard in dealt]
    assert totals == sorted(totals, reverse=True), "the longest begins first"
    assert max(totals[2:]) - min(totals[2:]) <= 2 * UNKNOWN
    assert deal(files[:1], {}, jobs=4) == [files[:1]], "no shard is empty"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of its own, in which `run` runs."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['slow: takes long']\n")
    (tmp_path / ".gitignore").write_text("out\n__pycache__\n")
    for name, value in (("ROOT", tmp_path), ("OUT", tmp_path / "out"), ("SECONDS", tmp_path / "seconds.json")):
        monkeypatch.setattr(shards, name, value)
    monkeypatch.setattr(starting, "PRELOADED", ("pytest",))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    who = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def run(tree: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(
        sys, "argv", ["shards", *arguments, "--jobs", "2", str(tree / "tests"), "--", "-p", "no:cacheprovider"]
    )
    return shards.main()


@pytest.mark.slow
def test_a_failure_and_a_death_are_told_and_the_rest_runs(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("a", PASSES), ("b", FAILS), ("c", DIES), ("d", SLOW)):
        (tree / f"tests/test_{name}.py").write_text(text)
    assert run(tree, monkeypatch, "quick") == 1
    said = capsys.readouterr().out
    assert "as it must" in said
    assert "FAILED tests/test_b.py::test_fails" in said
    assert "status 9, after tests/test_c.py::test_passes" in said
    assert "2 passed, 1 failed, 0 skipped, 1 processes died" in said
    assert run(tree, monkeypatch, "slow") == 0
    assert "1 passed, 0 failed, 0 skipped" in capsys.readouterr().out


@pytest.mark.slow
def test_it_resumes_on_the_same_tree_alone(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "tests/test_a.py").write_text(PASSES)
    (tree / "tests/test_b.py").write_text(
        "from pathlib import Path\n\ndef test_b():\n    assert Path('out/there').exists()\n"
    )
    assert run(tree, monkeypatch, "quick") == 1
    (tree / "out/there").write_text("")
    assert run(tree, monkeypatch, "quick", "--resume") == 0
    assert "1 passed, 0 failed, 0 skipped, 1 passed before" in capsys.readouterr().out
    assert run(tree, monkeypatch, "quick", "--resume") == 0
    assert "0 passed, 0 failed, 0 skipped, 2 passed before" in capsys.readouterr().out
    (tree / "tests/test_a.py").write_text(PASSES + "\n")
    assert run(tree, monkeypatch, "quick", "--resume", "--record") == 0
    assert "2 passed, 0 failed, 0 skipped; " in capsys.readouterr().out
    assert json.loads((tree / "seconds.json").read_text()) == {"quick": {}}, "none took a second"


@pytest.mark.slow
def test_a_file_that_cannot_be_imported_fails(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "tests/test_a.py").write_text("import nothing_of_that_name\n")
    assert run(tree, monkeypatch, "quick") == 1
    said = capsys.readouterr().out
    assert "nothing_of_that_name" in said
    assert "FAILED tests/test_a.py" in said


def test_a_line_that_was_cut_off_is_no_outcome(tmp_path: Path) -> None:
    path = tmp_path / "told.jsonl"
    path.write_text('{"test": "a", "outcome": "passed", "seconds": 1.0}\n{"test": "b", "outc')
    assert list(read(path)) == [Outcome("a", "passed", 1.0)]
