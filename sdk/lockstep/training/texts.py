"""The documents of a folder or of one file: found in an order that is the same on every machine, read as a stream.

    for source in sources_of(Path("texts")):
        with source.open() as file: ...

*.txt and *.md are one document each, *.jsonl one per line (the text of one field); each may be gzipped. Subfolders are
read, hidden ones are not. A document's name is its path from the folder, with the line of a *.jsonl:
names decide on which side of a split a document falls. A UTF-8 byte order mark is not part of a text.
"""

from __future__ import annotations

import gzip
import io
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from lockstep.base.decoding import from_json
from lockstep.base.files import open_regular
from lockstep.base.settings import cache_directory
from lockstep.protocol.errors import Malformed, UsageError

LINES = ".jsonl"
"""The suffix of files with a document per line."""
PACKED = ".gz"
ENDINGS = (".txt", ".md", LINES)
READABLE = "*.txt, *.md or *.jsonl, each also packed as .gz"
FIELD = "text"
"""The default field of *.jsonl lines that holds the document."""
MARK = b"\xef\xbb\xbf"
"""UTF-8's byte order mark."""
MAX_UNPACKED_BYTES = 1 << 32
"""Largest unpacked size of a .gz: a small file may unpack to terabytes of zeros."""
MAX_LINE_BYTES = 1 << 26
"""The longest line of a *.jsonl."""
BLOCK_BYTES = 1 << 20
TABLES = {".csv": "read_csv", ".tsv": "read_table", ".parquet": "read_parquet", ".feather": "read_feather",
          ".arrow": "read_feather", ".json": "read_json"}  # fmt: skip
"""Endings of tables, and pandas's reader of each."""


@dataclass(frozen=True)
class Source:
    """A document on disk."""

    path: Path
    most: int | None = None
    """Bytes of it that are used, cut back to whole characters; None: all."""
    name: str = field(default="", compare=False)
    """Unique among the documents of a folder; decides on which side of a split it falls."""
    line: JsonLine | None = None
    """The line of a *.jsonl that it is; None: the file."""

    @property
    def label(self) -> str:
        """The document's location, for messages."""
        return str(self.path) if self.line is None else f"{self.path}, line {self.line.number}"

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Opens the document's bytes without a byte order mark; raises UsageError if they cannot be read."""
        with readable(self.path):
            if self.line is not None:
                yield io.BytesIO(self.line.text(self.path).removeprefix(MARK))
            else:
                with opened(self.path) as file:
                    buffered = io.BufferedReader(cast(Any, file), BLOCK_BYTES)
                    if buffered.peek(len(MARK)).startswith(MARK):
                        buffered.read(len(MARK))
                    yield cast(BinaryIO, buffered)

    def read(self) -> bytes:
        """The whole document."""
        with self.open() as file:
            return file.read()


@dataclass(frozen=True)
class JsonLine:
    """A line of a *.jsonl."""

    number: int
    """From 1."""
    start: int
    size: int
    field: str
    unpacked: Any = None
    """The file's content, if it was packed: a temporary file that ends with its last line."""

    def text(self, path: Path) -> bytes:
        """The document in the line; raises OSError, UsageError."""
        if self.unpacked is not None:
            data = os.pread(self.unpacked.fileno(), self.size, self.start)
        else:
            with open_regular(path) as file:
                file.seek(self.start)
                data = file.read(self.size)
        return _document(data, self.field, f"{path}, line {self.number}")


def sources_of(texts: Path, named: str = FIELD) -> list[Source]:
    """Returns the documents of a folder or file, by name. `named`: the field of *.jsonl lines that holds the document.

    Raises UsageError if there are none, or if one cannot be read or is not a regular file.
    """
    with readable(texts):
        if texts.is_dir():
            found = [(path, "/".join(parts)) for parts, path in sorted(_walk(texts, (), ()))]
        elif texts.exists():
            _refuse_table(texts)
            with open_regular(texts):
                found = [(texts, texts.name)]
        else:
            found = []
        sources = [source for path, name in found for source in _of_file(path, name, named)]
    if not sources:
        tables = sorted(p for p in texts.glob("*") if p.suffix in TABLES) if texts.is_dir() else []
        for path in tables:
            _refuse_table(path)
        raise UsageError(f"no {READABLE} in {texts}", "name a folder of text files, or one file")
    return sources


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raises UsageError where the block raises an error of the system or of gzip."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path} cannot be unpacked: {error}", "gzip it again") from error
    except OSError as error:
        raise UsageError(
            f"{error.filename or path} cannot be read: {error.strerror}",
            "make it readable, or move it out of the folder: a text is a regular file, or a link to one",
        ) from error


def _walk(
    folder: Path, parts: tuple[str, ...], above: tuple[tuple[int, int], ...]
) -> Iterator[tuple[tuple[str, ...], Path]]:
    """Yields the texts below a folder with the parts of their names; `above`: the folders that lead to it."""
    status = folder.stat()
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        return
    for path in folder.iterdir():
        if _ending(path.name):
            yield (*parts, path.name), path
        elif path.is_dir() and not path.name.startswith("."):
            yield from _walk(path, (*parts, path.name), (*above, identity))


def _ending(name: str) -> str:
    """Returns the suffix by which a file is read, without .gz; "" for a file that is not read."""
    return next((each for each in ENDINGS if name.removesuffix(PACKED).endswith(each)), "")


def _of_file(path: Path, name: str, named: str) -> Iterator[Source]:
    if _ending(path.name) != LINES:
        # Whether it can be opened is known before anything is made of the others.
        with open_regular(path):
            yield Source(path, name=name)
        return
    unpacked: Any = None
    with opened(path) as file:
        if path.name.endswith(PACKED):
            # It ends with the last line that refers to it.
            unpacked = tempfile.TemporaryFile(dir=cache_directory())  # noqa: SIM115
        number, start = 0, 0
        while data := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(data) > MAX_LINE_BYTES:
                raise UsageError(
                    f"{path}, line {number} has more than {MAX_LINE_BYTES >> 20} MiB",
                    "a line is one document: split it",
                )
            if unpacked is not None:
                unpacked.write(data)
            if data.strip():
                yield Source(path, name=f"{name}:{number}", line=JsonLine(number, start, len(data), named, unpacked))
            start += len(data)
        if unpacked is not None:
            unpacked.flush()


def _document(data: bytes, named: str, label: str) -> bytes:
    try:
        value = from_json(data.removeprefix(MARK), MAX_LINE_BYTES)
    except Malformed as error:
        raise UsageError(f"{label} is not JSON: {error.message}", "a line of a *.jsonl is one object") from error
    if not isinstance(value, dict):
        raise UsageError(f"{label} is not a JSON object", f'a line looks like {{"{named}": "a document"}}')
    text = value.get(named)
    if not isinstance(text, str):
        have = ", ".join(sorted(str(key) for key, each in value.items() if isinstance(each, str)))[:200] or "none"
        raise UsageError(f"{label} has no text under {named!r}", f'set field = "NAME"; fields with text: {have}')
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{label} has half of a surrogate pair, which is not UTF-8", "write the line again") from error


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file's bytes, unpacked."""
    with open_regular(path) as file:
        if not path.name.endswith(PACKED):
            yield file
            return
        with gzip.GzipFile(fileobj=file) as packed:
            yield cast(BinaryIO, io.BufferedReader(cast(Any, _Bounded(packed, path)), BLOCK_BYTES))


class _Bounded(io.RawIOBase):
    """A packed file that ends with UsageError behind MAX_UNPACKED_BYTES."""

    def __init__(self, packed: gzip.GzipFile, path: Path) -> None:
        super().__init__()
        self._packed, self._path, self._left = packed, path, MAX_UNPACKED_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._packed.read(len(buffer))
        self._left -= len(data)
        # INVARIANT: what a packed file stands for is bounded before it is held.
        if self._left < 0:
            raise UsageError(
                f"{self._path} unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB",
                "if that is intended, unpack it yourself, and split it into several files",
            )
        buffer[: len(data)] = data
        return len(data)


def _refuse_table(path: Path) -> None:
    reader = TABLES.get(path.suffix)
    if reader is not None:
        raise UsageError(
            f"{path} is a table, not text",
            f"make one document a line of it: python -c \"import pandas; pandas.{reader}('{path.name}')"
            f".to_json('{path.stem}.jsonl', orient='records', lines=True)\"; field = \"NAME\" names the column",
        )


def refuse_zeros(text: bytes, label: str, at: int = 0) -> None:
    """Raises UsageError for a text with a NUL: in UTF-16 without a mark half of the bytes are NULs, valid in UTF-8."""
    found = text.find(b"\0")
    if found >= 0:
        raise UsageError(
            f"{label} has a NUL at byte {at + found}: it may be UTF-16, or not a text",
            "convert it first, e.g. with iconv -f UTF-16LE -t UTF-8; bytes = true in the description reads any bytes",
        )
