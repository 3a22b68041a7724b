"""`lockstep storage put | get | stat`: content in and out by CID, data on stdout alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer

from lockstep.cli.storage import storage_app
from lockstep.protocol.errors import BlobMissing, DoctorError, LockstepError, PayloadInvalid, Unreachable, UsageError
from lockstep.storage import cid_of

from .conftest import Lockstep

DATA = bytes(range(256)) * 3000
"""Three blocks, and not text."""


def run(*arguments: str) -> None:
    typer.main.get_command(storage_app)(args=list(arguments), standalone_mode=False)


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = (tmp_path / "store").as_uri().replace("file", "dir", 1)
    monkeypatch.setenv("LOCKSTEP_STORAGE", url)
    (tmp_path / "model.bin").write_bytes(DATA)
    monkeypatch.chdir(tmp_path)
    return url


@pytest.mark.usefixtures("storage")
def test_put_prints_the_cid_and_get_the_content(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    run("put", "model.bin")
    cid = capfdbinary.readouterr().out.decode().strip()
    assert cid == cid_of(DATA), "the CID and nothing else"
    run("get", cid)
    assert capfdbinary.readouterr().out == DATA, "the content and nothing else"
    run("get", cid, "--out", "copy.bin")
    assert Path("copy.bin").read_bytes() == DATA, "or a file"
    capfdbinary.readouterr()
    run("stat", cid)
    assert capfdbinary.readouterr().out == b"768000 bytes\n", "its size"


def test_json_is_one_envelope(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    cid = cid_of(DATA)
    for arguments, expected in (
        (("put", "model.bin"), {"cid": cid, "bytes": len(DATA), "storage": storage}),
        (("get", cid, "--out", "copy.bin"), {"cid": cid, "bytes": len(DATA), "path": "copy.bin"}),
        (("stat", cid), {"cid": cid, "bytes": len(DATA)}),
    ):
        run(*arguments, "--json")
        (line,) = capsys.readouterr().out.splitlines()
        assert json.loads(line) == {"schema": "lockstep/1", "ok": True, "data": expected}, arguments


@pytest.mark.parametrize(
    "url",
    [
        "http://some-body:pass-word@127.0.0.1:5001", "http://127.0.0.1:5001/?token=pass-word",
        "http://127.0.0.1:5001/#pass-word", "http://some-body:pass-word/@127.0.0.1:5001", "http://:pass-word@[::1",
        "some-body:pass-word@127.0.0.1:5001", "dir://some-body:pass-word@host/store", "ftp://some-body:pass-word@host",
        "/ip4/127.0.0.1/tcp/1/http?token=pass-word", "gateway+http://some-body:pass-word@127.0.0.1:1",
        "dir://STORE,gateway+http://some-body:pass-word@127.0.0.1:1", "gateway+http://127.0.0.1:1/?token=pass-word",
    ],
)  # fmt: skip
def test_no_user_password_or_query_of_a_store_is_told(
    lockstep: Lockstep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str
) -> None:
    url = url.replace("STORE", str(tmp_path / "store"))
    Path("f").write_bytes(b"hello")
    monkeypatch.setenv("LOCKSTEP_STORAGE", url)
    for arguments in (("put", "f"), ("get", cid_of(b"hello")), ("put", "f", url)):
        for options in ((), ("--storage", url), ("--json",)):
            done = lockstep("storage", *arguments, *options)
            told = done.out + done.err
            assert "bug" not in told
            assert not [secret for secret in ("some-body", "pass-word") if secret in told], told


@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("get", cid_of(b"nowhere")), BlobMissing),
        (("stat", cid_of(b"nowhere")), BlobMissing),
        (("get", "no-cid"), UsageError),
        (("put", "absent.bin"), UsageError),
        (("put", "."), UsageError),
        (("get", cid_of(DATA), "--json"), UsageError),
        (("get", cid_of(DATA), "--out", "no/such/folder/x"), UsageError),
        (("stat", cid_of(DATA), "--storage", "nonsense"), UsageError),
        (("stat", cid_of(DATA), "--storage", "http://127.0.0.1:9"), Unreachable),
    ],
)
def test_bad_input_is_an_error_with_a_hint_and_writes_nothing(
    arguments: tuple[str, ...], expected: type[LockstepError], capsys: pytest.CaptureFixture[str]
) -> None:
    run("put", "model.bin")
    capsys.readouterr()
    before = sorted(Path.cwd().rglob("*"))
    with pytest.raises(expected) as error:
        run(*arguments)
    assert error.value.hint, "with a hint"
    assert capsys.readouterr().out == "", "nothing on stdout"
    assert sorted(Path.cwd().rglob("*")) == before, "nothing written"


def test_serving_without_a_web_server_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "lockstep.storage.server", raising=False)
    with pytest.raises(DoctorError) as error:
        run("serve", "--home", str(tmp_path))
    assert "lockstep-compute[coordinator]" in error.value.hint


@pytest.mark.usefixtures("storage")
def test_content_above_the_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large.bin").write_bytes(bytes(2 << 20))
    run("put", "large.bin")
    with pytest.raises(PayloadInvalid):
        run("get", cid_of(bytes(2 << 20)), "--out", "copy.bin", "--max-mib", "1")
    assert not Path("copy.bin").exists(), "no half-written file"
