"""Texts as the tokens of a Hugging Face tokenizer: streamed, the same on every machine, verifiable by anybody.

    tokenizer = Tokenizer.read(Path("tokenizer.json"))
    rows = token_dataset(documents_of(Path("texts"), "train"), Recipe(tokenizer.json, "</s>"), row_tokens=129)

A document is encoded piece by piece, so that a text of any length needs little memory. A piece ends after the last
newline among its PIECE_BYTES, else after the last space, else with the last whole character: its end depends only on
the text. Special tokens are not added, and a text that spells one is refused unless the recipe accepts it; the
separator follows each document. Tokens are written to a file in the user's cache and mapped from there. If a process is
killed, the next one rewrites its file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lockstep.base.files import open_regular, remove_unlocked, sync_folder, written_alone
from lockstep.base.settings import cache_directory
from lockstep.protocol.errors import DoctorError, Mismatch, UsageError
from lockstep.storage.dataset import (
    CONTROLS,
    MAPPED_BYTES,
    MAX_DATASET_BYTES,
    MAX_TOKENIZER_BYTES,
    SIDES,
    Dataset,
    Recipe,
)
from lockstep.training.data import EXCERPT_BYTES, HELD_OUT_FRACTION, SEPARATOR, windows_of_tokens
from lockstep.training.texts import FIELD, Source, refuse_zeros, sources_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Encoder

PIECE_BYTES = 1 << 18
"""Most bytes of a document that are encoded at a time."""
BATCH = 8
"""Pieces that threads encode in parallel."""
TRAIN, HELD_OUT, ALL = SIDES
_, TOKEN, TEXT = CONTROLS
READ_BYTES = 1 << 20
PART = ".part"
"""The suffix of an unfinished file of tokens."""
_WORD = np.dtype("<i4")


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer loaded from its file."""

    data: bytes = field(repr=False)
    """The bytes of `tokenizer.json`."""
    encoder: Encoder = field(repr=False)
    vocabulary: int
    """One more than the largest token."""
    unk: int | None = None
    """The unknown token; None if the tokenizer has none."""

    @staticmethod
    def read(path: Path) -> Tokenizer:
        """Reads the tokenizer in a file; UsageError if it cannot be read, is too large or is not a tokenizer."""
        try:
            with open_regular(path) as file:
                data = file.read(MAX_TOKENIZER_BYTES + 1)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}", "name a tokenizer.json") from error
        try:
            return Tokenizer.of(data)
        except UsageError as error:
            raise UsageError(f"{path}: {error.message}", error.hint) from error

    @staticmethod
    def of(data: bytes) -> Tokenizer:
        """Reads a tokenizer from the bytes of a `tokenizer.json`; raises UsageError if they are not one."""
        from tokenizers import Tokenizer as Encoder

        hint = "give a tokenizer.json as saved by Hugging Face's `tokenizers`"
        if len(data) > MAX_TOKENIZER_BYTES:
            raise UsageError(f"the tokenizer is larger than {MAX_TOKENIZER_BYTES >> 20} MiB", hint)
        try:
            encoder = Encoder.from_str(data.decode())
        except BaseException as error:
            # The library raises bare Exceptions, and its panics are BaseExceptions.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise UsageError(f"the file is not a tokenizer: {str(error)[:200]}", hint) from error
        encoder.no_truncation()
        encoder.no_padding()
        tokens = encoder.get_vocab(with_added_tokens=True)
        if not tokens:
            raise UsageError("the tokenizer's vocabulary is empty", hint)
        return Tokenizer(data, encoder, max(tokens.values()) + 1, _unknown_token(encoder, data))

    def controls(self, separator: str) -> dict[str, int]:
        """Returns the control tokens, which stand for no text, by spelling: the special ones, and the separator."""
        added = self.encoder.get_added_tokens_decoder().items()
        return {t.content: number for number, t in added if t.special or t.content == separator}

    def place_of(self, text: str, token: int | None) -> str:
        """Returns the place of a token in the text."""
        found = self.encoder.encode(text, add_special_tokens=False)
        start, end = next((o for o, number in zip(found.offsets, found.ids, strict=True) if number == token), (0, 0))
        return text[start : max(end, start + 1)]

    def separator(self, token: str) -> list[int]:
        """Returns the tokens between documents: the named one, or, for "", those of an empty line."""
        if not token:
            return self.encode([SEPARATOR.decode()])[0]
        found = self.encoder.token_to_id(token)
        if found is None:
            raise UsageError(f"the tokenizer has no token {token!r}", "set tokens.separator to one of its tokens")
        return [found]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text."""
        try:
            return [e.ids for e in self.encoder.encode_batch_fast(list(texts), add_special_tokens=False)]
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise UsageError(f"the tokenizer fails: {str(error)[:200]}", "its parts do not fit together") from error

    def unknown(self, character: str) -> bool:
        """Returns True if a character has no tokens of its own: it would vanish, or become the unknown token."""
        normalizer = self.encoder.normalizer
        # What the tokenizer itself takes for nothing is not lost.
        if character.isspace() or (normalizer is not None and not normalizer.normalize_str(character).strip()):
            return False
        (ids,) = self.encode([character])
        return not ids or self.unk in ids


def _unknown_token(encoder: Encoder, data: bytes) -> int | None:
    """Returns the unknown token's number, which a tokenizer's model gives by spelling or by index."""
    spelled = getattr(encoder.model, "unk_token", None)
    if isinstance(spelled, str):
        return encoder.token_to_id(spelled)
    place = json.loads(data).get("model", {}).get("unk_id")
    return place if isinstance(place, int) else None


def checked_side(side: str) -> str:
    """Returns the side unchanged; raises UsageError if it is not one."""
    if side not in SIDES:
        raise UsageError(f"side {side!r} is unknown", f"use one of {', '.join(SIDES)}")
    return side


def checked_control(control: str, name: str) -> str:
    """Returns the handling of control tokens unchanged; raises UsageError if it is invalid."""
    if control not in CONTROLS:
        raise UsageError(f"{name} is {control!r}", 'use "token", "text", or nothing, which refuses such texts')
    return control


def documents_of(texts: Path, side: str, named: str = FIELD) -> list[Source]:
    """Returns the documents of one side of a folder (or of a file, which is not split), in the split's order.

    The split is that of texts as bytes: one document in HELD_OUT_FRACTION is held out, with its first EXCERPT_BYTES.
    `named`: the field of *.jsonl lines that holds the document.
    """
    sources = sources_of(texts, named)
    if len(sources) == 1 and texts.is_file():
        if side == HELD_OUT:
            raise UsageError(f"{texts} is one document", "give a folder of at least two: one is held out")
        return sources
    if side == ALL:
        return sources
    if len(sources) < 2:
        raise UsageError(f"{texts} has only one document", "give at least two: one is held out")
    dealt = sorted(sources, key=lambda source: sha256(source.name.encode()).digest())
    held = max(1, len(dealt) // HELD_OUT_FRACTION)
    return [replace(source, most=EXCERPT_BYTES) for source in dealt[:held]] if side == HELD_OUT else dealt[held:]


def token_dataset(
    sources: Sequence[Source], recipe: Recipe, *, row_tokens: int, stride: int = 0, folder: Path | None = None
) -> Dataset:
    """Rows of the documents' tokens, mapped from a file in `folder` (default: the user's cache), which is made once.

    Rows start `stride` tokens apart; 0: they are disjoint. UsageError if a text is not UTF-8, has a character that the
    tokenizer does not know, or is too short.
    """
    tokenizer = Tokenizer.of(recipe.tokenizer)
    folder = cache_directory() / "tokens" if folder is None else folder
    path = folder / f"{_key(sources, recipe).hex()}.i32"
    if not path.is_file():
        _write(path, tokenizer, sources, recipe)
    # An empty file cannot be mapped.
    count = path.stat().st_size // _WORD.itemsize
    rows = count // row_tokens if row_tokens > 0 else 0
    if rows < 1:
        raise UsageError(f"{count} tokens do not fill a row of {row_tokens}", "give more text or shorter rows")
    if rows * row_tokens * _WORD.itemsize > MAX_DATASET_BYTES:
        raise UsageError(
            f"{rows} rows of {row_tokens} tokens; a dataset has at most {MAX_DATASET_BYTES // _WORD.itemsize} tokens",
            "train on less text in one job",
        )
    if stride not in (0, row_tokens):
        tokens = np.memmap(path, _WORD, "r", shape=(count,))
        kept = partial(_mapped, path.with_name(f"{path.stem}.{row_tokens}.{stride}{path.suffix}"))
        return replace(windows_of_tokens(tokens, tokenizer.vocabulary, row_tokens, stride, kept), recipe=recipe)
    words = np.memmap(path, _WORD, "r", shape=(rows, row_tokens))
    return Dataset(words, tokenizer.vocabulary, recipe)


def verify(
    dataset: Dataset, texts: Path, recipe: Recipe | None, folder: Path | None = None, named: str = FIELD
) -> None:
    """Raises Mismatch unless the dataset's rows are the texts' tokens by the recipe of its manifest."""
    if recipe is None:
        raise UsageError("the dataset is of bytes or images", "only a dataset with a tokenizer has a recipe to verify")
    windows = None if dataset.form is None else dataset.form.windows
    length, stride = (dataset.row_tokens, 0) if windows is None else (windows.length, windows.stride)
    sources = documents_of(texts, recipe.side, named)
    own = token_dataset(sources, recipe, row_tokens=length, stride=stride, folder=folder)
    # INVARIANT: every row is the tokenisation of the text, and no text is left out.
    if own.rows.shape != dataset.rows.shape:
        raise Mismatch(
            f"the texts have {own.row_count} rows of tokens, the dataset has {dataset.row_count}",
            "it was made from other texts",
        )
    for first in range(0, own.row_count, READ_BYTES // own.row_tokens + 1):
        part = slice(first, first + READ_BYTES // own.row_tokens + 1)
        wrong = (own.rows[part] != dataset.rows[part]).any(1)
        if wrong.any():
            raise Mismatch(
                f"row {first + int(wrong.argmax())} of the dataset differs from the texts",
                "the dataset was made from other texts",
            )


def pieces(file: BinaryIO, most: int | None, name: str) -> Iterator[str]:
    """Yields the pieces of a text; raises UsageError if it is not UTF-8, or has a NUL."""
    held, at, left = b"", 0, most
    while True:
        block = file.read(READ_BYTES if left is None else min(READ_BYTES, left))
        left = None if left is None else left - len(block)
        held += block
        ends = not block
        while len(held) > PIECE_BYTES or (ends and held):
            cut = _cut(held[:PIECE_BYTES]) if len(held) > PIECE_BYTES else len(held)
            if ends and cut == len(held) and most is not None:
                cut = _whole(held) or cut
                held = held[:cut]
            refuse_zeros(held[:cut], name, at)
            try:
                yield held[:cut].decode()
            except UnicodeDecodeError as error:
                raise UsageError(
                    f"{name} is not UTF-8: {error.reason} at byte {at + error.start}", "convert it first"
                ) from error
            held, at = held[cut:], at + cut
        if ends:
            return


def _cut(held: bytes) -> int:
    """Returns the length of the piece that these bytes begin with: up to the last newline, else the last space, else
    the last whole character."""
    for mark in (b"\n", b" "):
        found = held.rfind(mark)
        if found >= 0:
            return found + 1
    return _whole(held) or len(held)


def _whole(held: bytes) -> int:
    """Returns the number of bytes up to the end of the last complete UTF-8 character."""
    start = len(held)
    while start and len(held) - start < 4:
        start -= 1
        if held[start] & 0xC0 != 0x80:
            due = 1 + (held[start] >= 0xC0) + (held[start] >= 0xE0) + (held[start] >= 0xF0)
            return start if len(held) - start < due else len(held)
    return len(held)


def _mapped(path: Path, rows: NDArray[Any]) -> NDArray[Any]:
    """Returns the concatenated rows: mapped from a file, if they are many."""
    if rows.size * _WORD.itemsize < MAPPED_BYTES:
        return np.ascontiguousarray(rows)
    if not path.is_file():
        each = max(1, READ_BYTES // rows.shape[1])
        _make(path, (rows[first : first + each].tobytes() for first in range(0, len(rows), each)))
    return np.memmap(path, _WORD, "r", shape=rows.shape)


def _write(path: Path, tokenizer: Tokenizer, sources: Sequence[Source], recipe: Recipe) -> None:
    separator = tokenizer.separator(recipe.separator)
    _make(path, (np.asarray(each, _WORD).tobytes() for each in _tokens(tokenizer, sources, separator, recipe)))


def _make(path: Path, parts: Iterable[bytes]) -> None:
    """Writes a file of tokens atomically; of several processes that need it, one writes it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = path.with_suffix(PART)
        # Of processes that were killed: their texts may never be asked for again.
        remove_unlocked(path.parent.glob(f"*{PART}"))
        with written_alone(part) as file:
            if path.is_file():
                part.unlink()
                return
            for data in parts:
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
            # INVARIANT: the name is given to a whole file alone.
            os.replace(part, path)
        sync_folder(path.parent)
    except OSError as error:
        raise DoctorError(f"{path} cannot be written: {error.strerror}", "free some disk space") from error


def _tokens(
    tokenizer: Tokenizer, sources: Sequence[Source], separator: list[int], recipe: Recipe
) -> Iterator[list[int]]:
    known: set[str] = set()
    controls = {} if recipe.control == TOKEN else tokenizer.controls(recipe.separator)
    spelled = {} if recipe.control else controls
    tokenizer.encoder.encode_special_tokens = recipe.control == TEXT
    for source in sources:
        parts = _checked(_pieces_of(source), source.label, tokenizer, None if recipe.unknown else known)
        while batch := list(islice(parts, BATCH)):
            for text, tokens in zip(batch, tokenizer.encode(batch), strict=True):
                # INVARIANT: no document ends, and no turn of a chat begins, where its author merely spelled a token.
                if found := next((each for each in spelled if each in text), "") or _token_in(
                    tokens, controls, tokenizer
                ):
                    raise UsageError(
                        f"{source.label} spells {found!r}, a control token of the tokenizer",
                        'remove it; or set control = "text" under [tokens] (`dataset build --control text`) to read it '
                        'as characters, or control = "token" to read it as that token',
                    )
                if not recipe.unknown and tokenizer.unk in tokens:
                    lost = tokenizer.place_of(text, tokenizer.unk)[:40]
                    raise UsageError(
                        f"{source.label} has {lost!r}, which the tokenizer does not know",
                        "use another tokenizer, or unknown = true under [tokens] to accept it",
                    )
                yield tokens
        yield separator


def _token_in(tokens: list[int], controls: Mapping[str, int], tokenizer: Tokenizer) -> str:
    """Returns a control token that a normalizer made from other letters of a text; the unknown token has its own
    rule."""
    marks = {number: each for each, number in controls.items() if number != tokenizer.unk}
    return next((marks[number] for number in tokens if number in marks), "") if marks else ""


def _pieces_of(source: Source) -> Iterator[str]:
    with source.open() as file:
        yield from pieces(file, source.most, source.label)


def _checked(parts: Iterable[str], label: str, tokenizer: Tokenizer, known: set[str] | None) -> Iterator[str]:
    """Yields the pieces; raises UsageError for characters without tokens. `known`: those with tokens, or None."""
    for part in parts:
        for character in () if known is None else sorted(set(part) - known):
            if tokenizer.unknown(character):
                raise UsageError(
                    f"{label} has {character!r} (U+{ord(character):04X}), which the tokenizer does not know",
                    "use a byte-level tokenizer, or unknown = true under [tokens] to accept it",
                )
        if known is not None:
            known.update(part)
        yield part


def _key(sources: Sequence[Source], recipe: Recipe) -> bytes:
    """Hashes everything that determines the tokens: the texts' bytes, the recipe, the library's version."""
    import tokenizers

    said = [2, tokenizers.__version__, PIECE_BYTES, recipe.separator, recipe.unknown, recipe.control]
    key = sha256(json.dumps(said).encode())
    key.update(sha256(recipe.tokenizer).digest())
    for source in sources:
        content = sha256()
        with source.open() as file:
            left = source.most
            while block := file.read(READ_BYTES if left is None else min(READ_BYTES, left)):
                content.update(block)
                left = None if left is None else left - len(block)
        key.update(content.digest())
    return key.digest()
