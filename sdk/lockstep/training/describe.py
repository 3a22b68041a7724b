"""A job described in a file, as `lockstep train` reads it.

texts = "texts"      rounds = 6   slots = 3   min_slots = 2   seed = 0   terms = "devnet"   aggregator = ""
[model]              fields of GPTConfig
[batch]              rows, accumulation
[strategy]           fields of diloco.Spec;  [strategy.inner] fields of AdamW
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from lockstep.jobs import TrainingJob
from lockstep.protocol.errors import UsageError
from lockstep.protocol.jobs import ZERO_ADDRESS
from lockstep.protocol.presets import PRESETS
from lockstep.protocol.types import Address
from lockstep.training.data import (
    BYTE_VOCABULARY,
    EXCERPT_BYTES,
    SEPARATOR,
    Texts,
    byte_corpus,
    read_documents,
    split_documents,
)
from lockstep.training.job import Batch, training_job
from lockstep.training.models import GPT, GPTConfig
from lockstep.training.optimizers import AdamW
from lockstep.training.strategies import diloco

T = TypeVar("T")

KEYS = {"texts", "seed", "rounds", "slots", "min_slots", "terms", "aggregator", "model", "batch", "strategy"}
HELD_OUT_FRACTION = 20
"""One document in so many is held out."""


def job_of(described: Mapping[str, Any], folder: Path) -> TrainingJob:
    """The job of a description; paths are relative to `folder`. UsageError names the key that is wrong."""
    unknown = set(described) - KEYS
    if unknown:
        raise UsageError(f"the description has unknown keys: {', '.join(sorted(unknown))}", f"known: {sorted(KEYS)}")
    if "texts" not in described:
        raise UsageError("the description names no texts", 'texts = "a folder of *.txt"')
    config = _value(GPTConfig, described.get("model", {}), "model")
    batch = _value(Batch, {**_table(described, "batch"), "row_length": config.context + 1}, "batch")
    strategy = dict(_table(described, "strategy"))
    strategy["inner"] = _value(AdamW, strategy.get("inner", {}), "strategy.inner")
    spec = _value(diloco.Spec, strategy, "strategy")
    # INVARIANT: every token of the data names a row of the embedding.
    if config.vocabulary < BYTE_VOCABULARY:
        raise UsageError(
            f"a vocabulary of {config.vocabulary} for texts of bytes", f"model.vocabulary is {BYTE_VOCABULARY} at least"
        )
    terms = described.get("terms", "devnet")
    if not isinstance(terms, str) or terms not in PRESETS:
        raise UsageError(f"no terms are called {terms!r}", f"one of {', '.join(PRESETS)}")
    slots = _integer(described, "slots", 3)
    return training_job(
        GPT(config),
        spec,
        byte_corpus(_texts(folder / str(described["texts"])), row_tokens=batch.row_length).train,
        batch=batch,
        rounds=_integer(described, "rounds", 6),
        slots=slots,
        min_slots=_integer(described, "min_slots", max(1, slots - 1)),
        seed=_integer(described, "seed", 0),
        aggregator=_address(described.get("aggregator") or ZERO_ADDRESS),
        terms=PRESETS[terms],
    )


def _texts(folder: Path) -> Texts:
    documents = read_documents(folder)
    if len(documents) < 2:
        raise UsageError(f"{len(documents)} document in {folder}", "two at least: one is held out")
    # The order in which `split_documents` deals them, so that both sides come out whole.
    dealt = sorted(documents, key=lambda document: sha256(document.name.encode()).digest())
    held = max(1, len(dealt) // HELD_OUT_FRACTION)
    sizes = [len(d.text + SEPARATOR) for d in dealt]
    held_out = sum(min(n, EXCERPT_BYTES) for n in sizes[:held])
    return split_documents(documents, train_bytes=sum(sizes[held:]), held_out_bytes=held_out)


def _value(kind: type[T], given: Any, where: str) -> T:
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(given, Mapping) or set(given) - set(known):
        wrong = sorted(set(given) - set(known)) if isinstance(given, Mapping) else given
        raise UsageError(f"[{where}] has {wrong}", f"known: {', '.join(known)}")
    default = kind()
    for name, value in given.items():
        due = type(getattr(default, name))
        if not isinstance(value, due) and not (due is float and isinstance(value, int)):
            raise UsageError(f"{where}.{name} is {value!r}", f"a {due.__name__} is due")
    return kind(**given)


def _table(described: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = described.get(key, {})
    if not isinstance(value, Mapping):
        raise UsageError(f"{key} is {value!r}", f"a table is due: [{key}]")
    return value


def _address(value: object) -> Address:
    if not isinstance(value, str) or re.fullmatch(r"0x[0-9a-fA-F]{40}", value) is None:
        raise UsageError(f"aggregator is {value!r}", 'an address, 0x and 40 hex digits, or "" for none')
    return Address(value)


def _integer(described: Mapping[str, Any], key: str, default: int) -> int:
    value = described.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{key} is {value!r}", "a whole number is due")
    return value
