"""The pages' scripts and styles: the libraries are npm's to the byte, all are small, nothing else is served."""

from __future__ import annotations

import importlib.util
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import pytest
from starlette.testclient import TestClient

from coordinator.assets import ASSETS, FOLDER, url

from .conftest import Api

MOST_BYTES = 60_000
"""Of all scripts, compressed."""


def vendored() -> ModuleType:
    """tools/vendored.py."""
    path = Path(__file__).parents[3] / "tools/vendored.py"
    spec = importlib.util.spec_from_file_location("vendored", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_library_is_its_packages_to_the_byte_and_has_its_licence() -> None:
    files = vendored().FILES
    for name, (_, _, digest) in files.items():
        assert sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name
    own = {path.name for path in FOLDER.iterdir()} - files.keys()
    assert own == {"page.css", "page.js"}, "every other file is ours"
    assert "Permission to use" in (FOLDER / "htmx.LICENSE").read_text()
    assert "MIT License" in (FOLDER / "uPlot.LICENSE").read_text()


def test_a_changed_library_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = vendored()
    for name, (package, path, _) in tool.FILES.items():
        target = tmp_path / "node_modules" / package / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((FOLDER / name).read_bytes())
    assert tool.differing(tmp_path) == []
    other = tmp_path / "node_modules/uplot/dist/uPlot.iife.min.js"
    other.write_bytes(other.read_bytes() + b" ")
    assert tool.differing(tmp_path) == ["uPlot.iife.min.js"]


def test_the_scripts_are_small() -> None:
    weight = sum(len(asset.compressed) for name, asset in ASSETS.items() if name.endswith(".js"))
    assert weight <= MOST_BYTES, f"{weight} bytes"


@pytest.mark.sampled(1)
def test_a_file_is_kept_by_its_version_and_comes_compressed(api: Api) -> None:
    client: TestClient = api.client
    answer = client.get(url("page.js"))
    assert answer.headers["content-encoding"] == "gzip"
    assert "immutable" in answer.headers["cache-control"]
    assert answer.content == (FOLDER / "page.js").read_bytes()
    plain = client.get("/static/page.js", headers={"Accept-Encoding": "identity"})
    assert plain.content == answer.content
    assert "immutable" not in plain.headers["cache-control"], "an address without its version changes"
    again = client.get("/static/page.js", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["absent.js", "..%2Fapi.py", "%2e%2e/api.py", "page.js%00", "."])
def test_nothing_else_is_served(api: Api, name: str) -> None:
    assert api.client.get(f"/static/{name}").status_code in (404, 405)
