"""`lockstep dataset`: tokenises texts, stores the tokens as a dataset, and verifies a dataset against its texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.options import Commands, Json, Storage
from lockstep.cli.output import emit
from lockstep.cli.storage import storage_url

app = Commands(name="dataset", help="Datasets of tokens.", no_args_is_help=True)

TextsArgument = Annotated[
    Path, typer.Argument(metavar="TEXTS", help="Folder of *.txt, *.md, *.jsonl (each also .gz), or one file.")
]
Field = Annotated[str, typer.Option(help="Field of a line of *.jsonl that is the document.")]


@app.command("build")
def build(
    texts: TextsArgument,
    tokenizer: Annotated[Path, typer.Option(help="A Hugging Face tokenizer.json.")],
    row_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a row: a model's context + 1.")],
    separator: Annotated[str, typer.Option(help="Token after each document; default: an empty line.")] = "",
    side: Annotated[str, typer.Option(help='"train", "held out" or "all" of the documents.')] = "all",
    unknown: Annotated[bool, typer.Option(help="Let characters through that the tokenizer does not know.")] = False,
    control: Annotated[
        str, typer.Option(help='A text that spells a control token: "token", "text"; default: refused.')
    ] = "",
    field: Field = "text",
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Tokenise texts and store the rows; prints the manifest's CID."""
    from lockstep.storage import open_store, store_dataset
    from lockstep.storage.dataset import Recipe
    from lockstep.training.tokens import Tokenizer, checked_control, checked_side, documents_of, token_dataset

    recipe = Recipe(
        Tokenizer.read(tokenizer).data, separator, checked_side(side), unknown, checked_control(control, "--control")
    )
    dataset = token_dataset(documents_of(texts, side, field), recipe, row_tokens=row_tokens)
    with open_store(storage_url(storage)) as store:
        cid = store_dataset(store, dataset)
    data = {
        "cid": cid, "root": dataset.root.hex(), "rows": dataset.row_count, "row_tokens": dataset.row_tokens,
        "vocabulary": dataset.vocabulary, "tokenizer_sha256": recipe.sha256.hex(),
    }  # fmt: skip
    emit(data, as_json, text=cid)


@app.command("verify")
def verify(
    cid: Annotated[str, typer.Argument(metavar="CID", help="CID of the dataset's manifest.")],
    texts: TextsArgument,
    field: Field = "text",
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Tokenise texts again and compare every row; exit code 10 if one differs."""
    from lockstep.storage import load_dataset, load_manifest, open_store
    from lockstep.training import tokens

    with open_store(storage_url(storage)) as store:
        dataset = load_dataset(store, cid)
        link = load_manifest(store, cid).tokenizer
        recipe = None if link is None else link.recipe(store)
    tokens.verify(dataset, texts, recipe, named=field)
    data = {"cid": cid, "root": dataset.root.hex(), "rows": dataset.row_count, "matches": True}
    emit(data, as_json, text=f"{dataset.row_count} rows are the tokens of {texts}")
