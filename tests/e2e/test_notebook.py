"""The notebook of the tutorials, run cell by cell by a kernel of its own against a local market."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.chain]

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "docs/tutorials/first-model.ipynb"


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a reader with a local market and a folder of texts; the market ends with the test."""
    (tmp_path / "work").mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
    environment = {
        **kept, "HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LOCKSTEP_CACHE": str(tmp_path / "cache"), "IPYTHONDIR": str(tmp_path / "ipython"),
    }  # fmt: skip

    def typed(command: str) -> None:
        words = command.split()
        subprocess.run(words, cwd=tmp_path / "work", env=environment, check=True, timeout=PATIENCE, capture_output=True)

    try:
        typed("lockstep local up")
        typed("lockstep train init net.py --example")
        yield environment
    finally:
        typed("lockstep local down")


def shown(cell: Any, kind: str) -> str:
    """All that a cell put out in one form: "text", what it printed; or a MIME type."""
    if kind == "text":
        return "".join(out.text for out in cell.outputs if out.output_type == "stream" and out.name == "stdout")
    return "\n".join(out.data[kind] for out in cell.outputs if kind in out.get("data", {}))


def test_every_cell_runs_and_shows_what_its_text_says(
    surroundings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook, timeout=PATIENCE, kernel_name="python3", resources={"metadata": {"path": str(tmp_path / "work")}}
    )
    client.execute(env=surroundings)
    found = {"".join(cell.source).splitlines()[-1]: cell for cell in notebook.cells if cell.cell_type == "code"}
    assert "<caption>market</caption>" in shown(found["net"], "text/html")
    assert "<th>debit</th>" in shown(found["net.quote(job)"], "text/html")
    waited = shown(found["handle.wait(timeout=900)"], "text/html")
    assert "<td>2 of 2</td>" in waited
    assert "the job is done" in waited, "the progress stands in the cell"
    assert "<polyline" in shown(found["handle.curve()"], "text/html")
    assert len(shown(found['print(handle.sample("The people "))'], "text")) > 100
    assert "round 1: merged by" in shown(found["print(handle.text())"], "text")
    assert shown(found['handle.audit("model", claims=1).ok'], "text/plain") == "True"
