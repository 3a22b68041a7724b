"""`lockstep dataset`: builds datasets from texts or numeric files, stores them, and compares one with its source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.cli.options import Commands, Json, Storage
from lockstep.cli.output import emit
from lockstep.cli.storage import storage_url
from lockstep.protocol.errors import Mismatch, UsageError

if TYPE_CHECKING:
    from lockstep.storage.dataset import Dataset
    from lockstep.training.sides import Data

app = Commands(name="dataset", help="Build, show and check datasets of tokens or numbers.", no_args_is_help=True)

TextsArgument = Annotated[
    Path, typer.Argument(metavar="TEXTS", help="Folder of *.txt, *.md, *.jsonl (each optionally .gz), or one file.")
]
Field = Annotated[str, typer.Option(help="Field of each *.jsonl line that holds the document.")]
DataArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DATA", help="A .csv, .tsv, .parquet, .npz, .npy, .safetensors, .pt or .bin file, or a folder of them."
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(metavar="FIELD=COLUMN,...", help="Columns that together form a field; may be repeated."),
]
HeldOut = Annotated[int, typer.Option(min=0, metavar="N", help="Leave out one row in N, as `data.held_out` does.")]
Kind = Annotated[str, typer.Option("--type", metavar="TYPE", help='Number type of *.bin files, e.g. "uint16".')]
Cid = Annotated[str, typer.Argument(metavar="CID", help="CID of the dataset's manifest.")]


@app.command("build")
def build(
    texts: TextsArgument,
    tokenizer: Annotated[Path, typer.Option(help="A Hugging Face tokenizer.json.")],
    row_tokens: Annotated[int, typer.Option(min=1, help="Tokens per row: the model's context + 1.")],
    separator: Annotated[str, typer.Option(help="Token appended to each document; default: an empty line.")] = "",
    side: Annotated[str, typer.Option(help='Documents to use: "train", "held out" or "all".')] = "all",
    unknown: Annotated[bool, typer.Option(help="Accept characters that the tokenizer does not know.")] = False,
    control: Annotated[
        str, typer.Option(help='Encode control tokens spelled in a text as "token" or "text"; default: refuse them.')
    ] = "",
    field: Field = "text",
    stride: Annotated[
        int, typer.Option(min=0, help="Tokens between the starts of consecutive rows; 0: a row's length.")
    ] = 0,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Tokenise texts and store the rows; prints the manifest's CID."""
    from lockstep.storage import open_store
    from lockstep.storage.dataset import Recipe, store_dataset
    from lockstep.training.tokens import Tokenizer, checked_control, checked_side, documents_of, token_dataset

    recipe = Recipe(
        Tokenizer.read(tokenizer).data, separator, checked_side(side), unknown, checked_control(control, "--control")
    )
    dataset = token_dataset(documents_of(texts, side, field), recipe, row_tokens=row_tokens, stride=stride)
    with open_store(storage_url(storage)) as store:
        cid = store_dataset(store, dataset)
    data = {
        "cid": cid, "root": dataset.root.hex(), "rows": dataset.row_count, "row_tokens": dataset.row_tokens,
        "vocabulary": dataset.vocabulary, "tokenizer_sha256": recipe.sha256.hex(),
    }  # fmt: skip
    emit(data, as_json, text=cid)


@app.command("pack")
def pack(
    data: DataArgument,
    columns: Columns = None,
    kind: Kind = "",
    length: Annotated[int, typer.Option(min=0, help="Window length of a series, in steps; 0: the data are rows.")] = 0,
    stride: Annotated[int, typer.Option(min=1, help="Steps between the starts of consecutive windows.")] = 1,
    held_out: HeldOut = 0,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Store rows of numbers as a dataset; prints the manifest's CID."""
    from lockstep.storage import open_store
    from lockstep.storage.dataset import store_dataset

    dataset = _packed(data, columns, kind, length, stride, held_out)
    with open_store(storage_url(storage)) as store:
        cid = store_dataset(store, dataset)
    found = _described(cid, dataset)
    emit(found, as_json, text=f"{cid}\n{dataset.row_count} rows of {found['form']}")


@app.command("show")
def show(
    cid: Cid,
    rows: Annotated[int, typer.Option(min=0, help="Number of rows to print, too.")] = 0,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Show the format of a dataset's rows, and some of the rows."""
    from lockstep.storage import open_store
    from lockstep.storage.dataset import load_dataset, load_manifest
    from lockstep.storage.fields import unpacked

    with open_store(storage_url(storage)) as store:
        held: Any = load_dataset(store, cid) if rows else load_manifest(store, cid)
    found, values = _described(cid, held), []
    if rows:
        first, form = held.rows[:rows], held.form
        fields = {"tokens": first} if not held.fielded else dict(
            zip((f.name for f in form.fields), unpacked(form, first), strict=True)
        )  # fmt: skip
        values = [{name: _plain(array[k]) for name, array in fields.items()} for k in range(len(first))]
    lines = [f"{found['rows']} rows of {found['form']}; {found['row_words']} words each, root {found['root']}"]
    emit({**found, "values": values}, as_json, text="\n".join([*lines, *map(str, values)]))


def _plain(value: Any) -> Any:
    """Returns an array as JSON values; as strings if it has numbers that are not finite."""
    import numpy as np

    plain = np.asarray(value)
    return plain.tolist() if plain.dtype.kind != "f" or np.isfinite(plain).all() else plain.astype(str).tolist()


def _described(cid: str, held: Any) -> dict[str, Any]:
    """Returns the command's `data` for a dataset or its manifest."""
    form, rows = held.form, getattr(held, "row_count", None) or held.rows
    fields = [] if form is None else form.read()
    return {
        "cid": cid, "root": held.root.hex(), "rows": rows, "row_words": held.row_tokens, "vocabulary": held.vocabulary,
        "form": f"{held.row_tokens} tokens" if form is None else str(form),
        "fields": [{"name": f.name, "dtype": f.dtype, "shape": list(f.shape)} for f in fields],
    }  # fmt: skip


def _packed(path: Path, columns: list[str] | None, kind: str, length: int, stride: int, held_out: int) -> Dataset:
    from lockstep.training.sides import Data
    from lockstep.training.tokens import ALL, TRAIN

    given: Data = Data(str(path), _fields(columns), kind, stride if length else 0, length, held_out)
    return given.dataset(Path(), None, TRAIN if held_out else ALL)


def _fields(columns: list[str] | None) -> dict[str, list[str]]:
    """Returns the fields that `--columns` names."""
    found = {}
    for each in columns or ():
        name, equals, named = each.partition("=")
        if not name or not equals or not all(named.split(",")):
            raise UsageError(f"--columns {each}", hint="FIELD=COLUMN,..., e.g. x=area,rooms")
        found[name] = named.split(",")
    return found


@app.command("verify")
def verify(
    cid: Cid,
    source: Annotated[Path, typer.Argument(metavar="TEXTS|DATA", help="The source texts or numeric files.")],
    field: Field = "text",
    columns: Columns = None,
    kind: Kind = "",
    held_out: HeldOut = 0,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Rebuild a dataset's rows from their source and compare every one; exit code 10 if one differs."""
    from lockstep.storage import open_store
    from lockstep.storage.dataset import load_dataset, load_manifest
    from lockstep.training import tokens

    with open_store(storage_url(storage)) as store:
        dataset = load_dataset(store, cid)
        link = load_manifest(store, cid).tokenizer
        recipe = None if link is None else link.recipe(store)
    if recipe is None and dataset.form is not None:
        windows = dataset.form.windows
        length, stride = (0, 0) if windows is None else (windows.length, windows.stride)
        own = _packed(source, columns, kind, length, stride, held_out)
        # INVARIANT: every row is that of the data, and none is left out.
        if own.root != dataset.root or own.form != dataset.form:
            raise Mismatch(
                f"{source} has {own.row_count} rows of {own.form}: they differ from {cid}", "compare the files"
            )
    else:
        tokens.verify(dataset, source, recipe, named=field)
    data = {"cid": cid, "root": dataset.root.hex(), "rows": dataset.row_count, "matches": True}
    said = "the tokens" if recipe is not None else "those"
    emit(data, as_json, text=f"{dataset.row_count} rows are {said} of {source}")
