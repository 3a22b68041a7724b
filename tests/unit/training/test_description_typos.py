"""Every typo in a job's file is refused with the nearest name, in every table."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from lockstep.protocol.errors import UsageError
from lockstep.tracing.arithmetic import Arithmetic
from lockstep.training.describe import KEYS, Evaluation, Tokens, job_of
from lockstep.training.job import Batch
from lockstep.training.models import MODELS, LoRAConfig
from lockstep.training.strategies.registry import OPTIMIZERS, STRATEGIES


def names(kind: Any) -> set[str]:
    """Of its fields."""
    return {f.name for f in fields(kind)}


TABLES: dict[tuple[str, ...], set[str]] = {
    (): KEYS,
    ("tokens",): names(Tokens),
    ("model",): {"kind", *names(MODELS["gpt"].config)},
    ("adapters",): {"base", *names(LoRAConfig)},
    ("batch",): names(Batch) - {"row_length"},
    ("strategy",): {"name", *names(STRATEGIES["diloco"])},
    ("strategy", "inner"): {"name", *names(OPTIMIZERS["adamw"])},
    ("evaluation",): names(Evaluation),
    ("arithmetic",): names(Arithmetic),
}
"""The keys of every table."""


def typos(name: str, known: set[str]) -> Iterator[str]:
    """A letter left out, two exchanged, one typed twice, a dash for a line; none that is another key."""
    made = {name[0] + name[2:], name[0] + name[2:3] + name[1:2] + name[3:], name + name[-1], name.replace("_", "-")}
    yield from sorted(made - known)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "texts").mkdir()
    for i in range(3):
        (tmp_path / f"texts/{i}.txt").write_text(f"document {i}: " + "words upon words, " * 20)
    return tmp_path


@pytest.mark.parametrize("table", TABLES, ids=lambda table: ".".join(table) or "top")
def test_every_typo_of_a_key_is_refused_with_the_nearest_name(folder: Path, table: tuple[str, ...]) -> None:
    seen = 0
    for name in sorted(TABLES[table]):
        for typo in typos(name, TABLES[table]):
            described: dict[str, Any] = {"texts": "texts", "model": {"layers": 1, "width": 32}}
            if table and table[0] in ("adapters", "evaluation"):
                del described["model"]
            inside = described
            for key in table:
                inside = inside.setdefault(key, {})
            inside[typo] = 1
            with pytest.raises(UsageError) as refused:
                job_of(described, folder, weights=False)
            assert repr(typo) in refused.value.message, f"{typo}: {refused.value}"
            assert refused.value.hint == f"did you mean {name!r}?", f"{typo}: {refused.value.hint}"
            seen += 1
    assert seen >= 3 * len(TABLES[table]) - 3


def test_every_key_of_the_example_is_one_that_is_checked() -> None:
    """`train init` writes no key that the tables above lack."""
    from lockstep.cli.templates import TEMPLATE

    lines = [
        line.removeprefix("# ") if " = " in line or line.startswith("# [") else line for line in TEMPLATE.splitlines()
    ]
    text = "\n".join(lines)
    found = tomllib.loads(text)
    for table, known in TABLES.items():
        inside = found
        for key in table:
            inside = inside.get(key, {})
        assert {k for k in inside if (*table, k) not in TABLES} <= known, table
