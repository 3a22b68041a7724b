"""Stores datasets as compact shards and a manifest that names them; a job commits to the root of the whole tensor.

A dataset is a matrix of tokens (N, L); its root on chain is that of the i32 tensor. The stored form is smaller: whole
rows in the narrowest unsigned little-endian type that holds the vocabulary, cut into shards of about 1 MiB, and a
DAG-CBOR manifest {version, dtype, rows, row_tokens, vocabulary, shard_rows, shards: [links], root}. If a tokenizer made
the tokens, the manifest links to the tokenizer's file, with its SHA-256 and options, so that the dataset can be rebuilt
from the texts.

Rows of fields (`storage.fields`) are arbitrary 32-bit words, stored unchanged: dtype "words", vocabulary 0. Their
manifest has version 2 and the rows' `form`, as has the manifest of rows with several windows.

    cid = store_dataset(store, dataset)
    assert load_dataset(store, cid, root=dataset.root).rows.shape == dataset.rows.shape
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.base.decoding import U32, flag, octets, one_of, refusing, several, table, text, whole
from lockstep.protocol.errors import BlobMissing, Mismatch, PayloadInvalid, RowMissing, UsageError
from lockstep.protocol.types import Cid, TensorRoot
from lockstep.storage.fields import FORM, RowForm
from lockstep.storage.links import link_of, read_link
from lockstep.storage.store import ContentStore

MANIFEST_VERSION = 1
FORM_VERSION = 2
"""Version of a manifest that has its rows' form."""
SHARD_BYTES = 1 << 20
MAX_DATASET_BYTES = 1 << 33
"""Largest i32 tensor, in bytes, that a reader accepts: a tensor has at most 2^31 - 1 elements."""
MAPPED_BYTES = 1 << 24
"""Size in bytes from which the i32 tensor is a memory-mapped file in the user's cache, written once."""
SIDES = ("train", "held out", "all")
"""Sides of the split of the texts."""
MAX_TOKENIZER_BYTES = 1 << 26
"""Largest tokenizer file in bytes; those with 256,000 tokens have half of that."""
MAX_SHARDS = 1 << 15
"""Most shards; their links must fit into the manifest's single block."""

CONTROLS = ("", "token", "text")
"""Treatments of a text that spells a control token of its tokenizer: refuse it, read the token, or read the
characters.
"""

_I32 = 1
_TOKEN_DTYPES: dict[str, np.dtype[Any]] = {"u8": np.dtype("<u1"), "u16": np.dtype("<u2"), "u32": np.dtype("<u4")}
WORDS = "words"
"""Type of shards of fields: the i32 words of the rows."""
_WORD = np.dtype("<i4")


@dataclass(frozen=True)
class Recipe:
    """The rule by which texts were converted to tokens (lockstep.training.tokens)."""

    tokenizer: bytes = field(repr=False)
    """The bytes of its `tokenizer.json`."""
    separator: str = ""
    """The token after each document; "" stands for an empty line."""
    side: str = "all"
    """The side of the texts' split: "train", "held out" or "all"."""
    unknown: bool = False
    """True if characters unknown to the tokenizer were accepted."""
    control: str = ""
    """Treatment of a text that spells a control token: "token", "text", or "" if it is refused."""

    @property
    def sha256(self) -> bytes:
        """SHA-256 of the tokenizer's file."""
        return sha256(self.tokenizer).digest()


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows of tokens, each below `vocabulary`, or rows of fields."""

    rows: NDArray[np.int32]
    """(N, L) with N and L >= 1, contiguous; for tokens L = context + 1, so that a row holds inputs and targets."""
    vocabulary: int
    """Number of different tokens: 1 to 2^31 - 1; 0 for fields."""
    recipe: Recipe | None = None
    """The rule by which texts became these tokens; None for bytes and images, and if it was not loaded."""
    form: RowForm | None = None
    """The fields of a row, or its windows of tokens; None: a row of tokens is read whole."""

    def __post_init__(self) -> None:
        if self.rows.ndim != 2 or self.rows.dtype != np.int32 or 0 in self.rows.shape:
            raise UsageError(
                f"dataset rows are {self.rows.dtype} of shape {self.rows.shape}",
                "give int32 of shape (N, L), N, L >= 1",
            )
        if self.form is not None and (self.form.words != self.rows.shape[1] or (self.vocabulary == 0) != self.fielded):
            raise UsageError(
                f"dataset rows have {self.rows.shape[1]} words, their form has {self.form.words}", "pack them again"
            )
        # INVARIANT: every token names a row of the embedding.
        if not self.fielded and (self.rows.min() < 0 or self.rows.max() >= self.vocabulary):
            raise UsageError(
                f"tokens range from {self.rows.min()} to {self.rows.max()}, the vocabulary has {self.vocabulary}",
                "use the tokenizer that the vocabulary belongs to",
            )
        object.__setattr__(self, "rows", np.ascontiguousarray(self.rows, dtype="<i4"))
        self.rows.flags.writeable = False

    @property
    def row_count(self) -> int:
        """N, the number of rows."""
        return int(self.rows.shape[0])

    @property
    def row_tokens(self) -> int:
        """L, the number of tokens (or words) in a row."""
        return int(self.rows.shape[1])

    @property
    def fielded(self) -> bool:
        """True for rows of fields, whose words are not tokens."""
        return self.form is not None and bool(self.form.fields)

    @property
    def token_bytes(self) -> int:
        """Bytes per token in a shard: the narrowest type that holds the vocabulary."""
        return _dtype_of(self.vocabulary)[1].itemsize

    @cached_property
    def root(self) -> TensorRoot:
        """Root of the i32 tensor (N, L); a job's `datasetRoot`."""
        from lockstep.protocol.merkle import tensor_root

        return tensor_root(_I32, self.rows.shape, self.rows.reshape(-1).data)


_COUNT = whole(1, (1 << 31) - 1)
_TOKENIZER = table(
    {"cid": read_link, "sha256": octets(32), "separator": text(256), "side": one_of(*SIDES), "unknown": flag},
    {"control": one_of(*CONTROLS[1:])},
)
_MANIFEST = table(
    {
        "version": whole(0, U32),
        "dtype": text(8),
        "rows": _COUNT,
        "row_tokens": _COUNT,
        "vocabulary": whole(0, (1 << 31) - 1),
        "shard_rows": _COUNT,
        "shards": several(read_link, MAX_SHARDS),
        "root": octets(32),
    },
    {"tokenizer": _TOKENIZER, "form": FORM},
)


@dataclass(frozen=True)
class TokenizerLink:
    """A recipe that names its tokenizer by CID."""

    cid: Cid
    sha256: bytes
    separator: str
    side: str
    unknown: bool
    control: str = ""

    def recipe(self, store: ContentStore) -> Recipe:
        """Fetches the tokenizer and returns the recipe with it.

        Raises Mismatch for another tokenizer, PayloadInvalid if it is too large.
        """
        data = store.get(self.cid, max_bytes=MAX_TOKENIZER_BYTES)
        # INVARIANT: a tokenizer is the one that its dataset names.
        if sha256(data).digest() != self.sha256:
            raise Mismatch(f"the tokenizer {self.cid} is not the one that its dataset names", "do not use the dataset")
        return Recipe(data, self.separator, self.side, self.unknown, self.control)


@dataclass(frozen=True)
class Manifest:
    """A dataset's manifest: CIDs of its shards, shape and root of the whole."""

    dtype: str
    """Type of the shards' tokens: "u8", "u16" or "u32", the narrowest that holds the vocabulary; "words" for fields."""
    rows: int
    row_tokens: int
    vocabulary: int
    shard_rows: int
    """Rows in every shard but the last, which has the remaining ones."""
    shards: tuple[Cid, ...]
    root: TensorRoot
    """Root of the whole dataset as an i32 tensor."""
    tokenizer: TokenizerLink | None = None
    form: RowForm | None = None

    def __post_init__(self) -> None:
        if self.dtype != _dtype_of(self.vocabulary)[0]:
            raise PayloadInvalid(f"a dataset manifest has dtype {self.dtype!r}", "store the dataset again")
        if self.fielded != (self.vocabulary == 0) or (self.form is not None and self.form.words != self.row_tokens):
            raise PayloadInvalid(
                f"a dataset manifest has rows of {self.row_tokens} words of another form", "store the dataset again"
            )
        if len(self.shards) != -(-self.rows // self.shard_rows):
            raise PayloadInvalid(
                f"a dataset manifest names {len(self.shards)} shards for {self.rows} rows", "store the dataset again"
            )

    @property
    def fielded(self) -> bool:
        """True if a row has fields, in the place of tokens."""
        return self.form is not None and bool(self.form.fields)

    @property
    def row_length(self) -> int:
        """Tokens that a loss gets of a row: the row's, or those of one of its windows."""
        windows = None if self.form is None else self.form.windows
        return self.row_tokens if windows is None else windows.length

    def rows_of(self, shard: int) -> int:
        """Returns the number of rows in a shard, counted from 0."""
        return min(self.shard_rows, self.rows - shard * self.shard_rows)

    def to_node(self) -> dict[str, Any]:
        """Returns the DAG-CBOR value; shards are links, so that pinning the manifest pins them."""
        node = {
            "version": MANIFEST_VERSION if self.form is None else FORM_VERSION,
            "dtype": self.dtype,
            "rows": self.rows,
            "row_tokens": self.row_tokens,
            "vocabulary": self.vocabulary,
            "shard_rows": self.shard_rows,
            "shards": [link_of(cid) for cid in self.shards],
            "root": bytes(self.root),
        }
        if self.tokenizer is not None:
            options = {name: value for name, value in vars(self.tokenizer).items() if name != "control" or value}
            node["tokenizer"] = {**options, "cid": link_of(self.tokenizer.cid)}
        if self.form is not None:
            node["form"] = self.form.to_node()
        return node

    @classmethod
    def from_node(cls, node: Any) -> Manifest:
        """Parses a DAG-CBOR value. Raises PayloadInvalid unless it is a manifest."""
        with refusing(PayloadInvalid, "a dataset manifest", "name the CID that storing it printed"):
            fields = _MANIFEST(node, "the manifest")
        version, root, shards = fields.pop("version"), TensorRoot(fields.pop("root")), tuple(fields.pop("shards"))
        form = None if "form" not in fields else RowForm.of(fields.pop("form"))
        if version != (MANIFEST_VERSION if form is None else FORM_VERSION):
            raise PayloadInvalid(
                f"dataset manifest version {version!r}, this build reads {MANIFEST_VERSION}, and {FORM_VERSION} with a "
                "form",
                "install the job's release",
            )
        linked = fields.pop("tokenizer", None)
        link = None if linked is None else TokenizerLink(**linked)
        return cls(shards=shards, root=root, tokenizer=link, form=form, **fields)


def store_dataset(store: ContentStore, dataset: Dataset, *, shard_bytes: int = SHARD_BYTES) -> Cid:
    """Stores a dataset; returns its manifest's CID, which is the same in every store."""
    (dtype, kind), recipe = _dtype_of(dataset.vocabulary), dataset.recipe
    shard_rows = max(1, shard_bytes // (dataset.row_tokens * kind.itemsize))
    shards = tuple(
        store.put(dataset.rows[first : first + shard_rows].astype(kind).tobytes())
        for first in range(0, dataset.row_count, shard_rows)
    )
    tokenizer = None
    if recipe is not None:
        cid = store.put(recipe.tokenizer)
        tokenizer = TokenizerLink(cid, recipe.sha256, recipe.separator, recipe.side, recipe.unknown, recipe.control)
    manifest = Manifest(
        dtype=dtype,
        rows=dataset.row_count,
        row_tokens=dataset.row_tokens,
        vocabulary=dataset.vocabulary,
        shard_rows=shard_rows,
        shards=shards,
        root=dataset.root,
        tokenizer=tokenizer,
        form=dataset.form,
    )
    return store.put_node(manifest.to_node())


def load_manifest(store: ContentStore, cid: str) -> Manifest:
    """Loads the manifest named `cid`. Raises PayloadInvalid if the content is something else."""
    return Manifest.from_node(store.get_node(cid))


def load_dataset(
    store: ContentStore, cid: str, *, root: bytes | None = None, max_bytes: int = MAX_DATASET_BYTES
) -> Dataset:
    """Loads the dataset whose manifest is named `cid`, complete and checked against its root.

    `root` is the job's `datasetRoot`; `max_bytes` bounds the i32 tensor. Raises Mismatch if a root differs,
    PayloadInvalid if the manifest or a shard is malformed or too large, RowMissing with the first missing row, and the
    store's BlobCorrupt and Unreachable.
    """
    try:
        manifest = load_manifest(store, cid)
    except BlobMissing as error:
        raise RowMissing(error, 0) from error
    # INVARIANT: a worker trains on the job's data or not at all.
    if root is not None and manifest.root != root:
        raise Mismatch(
            f"manifest {cid} is of dataset {manifest.root.hex()}, the job names {root.hex()}", "do not run the job"
        )
    if 4 * manifest.rows * manifest.row_tokens > max_bytes:
        raise PayloadInvalid(
            f"the dataset has {manifest.rows} x {manifest.row_tokens} tokens, {max_bytes // 4} are accepted here",
            "raise the limit, or refuse the job",
        )
    size = 4 * manifest.rows * manifest.row_tokens
    read = _read if size < MAPPED_BYTES else _mapped
    dataset = read(store, cid, manifest)
    if dataset.root != manifest.root:
        raise Mismatch(f"the shards of {cid} do not add up to its root {manifest.root.hex()}", "do not run the job")
    return dataset


def _read(store: ContentStore, cid: str, manifest: Manifest) -> Dataset:
    return _dataset(cid, manifest, b"".join(_parts(store, manifest)))


def _mapped(store: ContentStore, cid: str, manifest: Manifest) -> Dataset:
    """Maps the rows from a file in the user's cache; writes it once, and again if it was damaged."""
    name, size = f"{cid}.rows", 4 * manifest.rows * manifest.row_tokens
    parts = partial(_parts, store, manifest)
    try:
        dataset = _dataset(cid, manifest, store.cache.made(name, size, parts))
        if dataset.root == manifest.root:
            return dataset
    except PayloadInvalid:
        # Errors in the shards themselves are reported below.
        pass
    store.cache.refresh(Cid(cid))
    return _dataset(cid, manifest, store.cache.made(name, size, parts))


def _parts(store: ContentStore, manifest: Manifest) -> Iterator[memoryview]:
    """Yields the shards' rows as i32, in pieces of at most a few MiB, however large a shard is."""
    for shard, cid in enumerate(manifest.shards):
        try:
            yield from _tokens(store, manifest, cid, manifest.rows_of(shard))
        except BlobMissing as error:
            raise RowMissing(error, shard * manifest.shard_rows) from error


def _dataset(cid: str, manifest: Manifest, words: bytes | memoryview) -> Dataset:
    try:
        rows = np.frombuffer(words, "<i4").reshape(manifest.rows, manifest.row_tokens)
        return Dataset(rows, manifest.vocabulary, form=manifest.form)
    except UsageError as error:
        raise PayloadInvalid(f"dataset {cid}: {error.message}", "do not run the job") from error


def _tokens(store: ContentStore, manifest: Manifest, cid: Cid, rows: int) -> Iterator[memoryview]:
    _, dtype = _dtype_of(manifest.vocabulary)
    due, found, rest = rows * manifest.row_tokens * dtype.itemsize, 0, b""
    # INVARIANT: no shard is held whole: its tokens go to their place piece by piece.
    for piece in store.get_stream(cid, max_bytes=due):
        found += len(piece)
        data = rest + piece
        count = len(data) // dtype.itemsize
        tokens, rest = np.frombuffer(data, dtype, count), data[count * dtype.itemsize :]
        # INVARIANT: no token wraps into another on its way to i32.
        if manifest.vocabulary and tokens.max(initial=0) >= manifest.vocabulary:
            raise PayloadInvalid(f"shard {cid} holds token {tokens.max()}", "do not run the job")
        yield tokens.astype("<i4").data.cast("B")
    if found != due:
        raise PayloadInvalid(f"shard {cid} has {found} bytes instead of {due}", "do not run the job")


def _dtype_of(vocabulary: int) -> tuple[str, np.dtype[Any]]:
    """Returns (name, type) of the shards' words: the narrowest that holds the vocabulary; words of fields for
    vocabulary 0.
    """
    if not vocabulary:
        return WORDS, _WORD
    name = "u8" if vocabulary <= 1 << 8 else "u16" if vocabulary <= 1 << 16 else "u32"
    return name, _TOKEN_DTYPES[name]
