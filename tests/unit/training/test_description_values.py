"""Wrong values in a job's file: each is refused with its place and a hint, never with a trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lockstep.cli.train import app
from lockstep.protocol.errors import LoweringError, UsageError
from lockstep.training.aggregates.registry import AGGREGATES
from lockstep.training.checking import check
from lockstep.training.codecs.registry import CODECS
from lockstep.training.describe import job_of, strategy_of
from lockstep.training.strategies.registry import OPTIMIZERS, STRATEGIES

JOB = """texts = "texts"
rounds = 2
slots = 2
min_slots = 1
[model]
layers = 1
heads = 2
width = 32
context = 16
[batch]
rows = 2
"""
WIDE = 10**400
"""An integer that no machine word holds."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "texts").mkdir()
    for i in range(3):
        (tmp_path / f"texts/{i}.txt").write_text(f"document {i}: " + "words upon words, " * 20)
    return tmp_path


def refused(path: Path) -> UsageError:
    """The error of `lockstep train quote` and `run`, which look at a description before they look for a market."""
    with pytest.raises(UsageError) as run:
        CliRunner().invoke(app, ["run", str(path), "--budget", "1"], catch_exceptions=False)
    done = CliRunner().invoke(app, ["quote", str(path)])
    assert isinstance(done.exception, UsageError), done.exception
    assert not isinstance(done.exception, LoweringError), "it is told before anything is traced"
    assert done.exception.hint
    assert run.value.message == done.exception.message
    return done.exception


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b'texts = "t\xff"\n', "no UTF-8: invalid start byte at byte 10"),
        ("\ufeff".encode() + JOB.encode(), "byte order mark"),
        (b"", "names no texts"),
        (JOB.encode() + b"rows = 3\n", "line 12"),
        (JOB.encode() + b"[model]\nlayers = 2\n", "line 12"),
        (b"texts: texts\n", "line 1"),
        (b'{"texts": "texts"}', "line 1"),
        (JOB.encode() + b'[strategy]\nname = "sparseloco"\ndecay = nan\n', "nan is not a finite number"),
        (JOB.encode() + b'[strategy]\nname = "sparseloco"\ndecay = 1e400\n', "1e400 is not a finite number"),
        (JOB.encode() + b"x = " + b"9" * 5000 + b"\n", "no TOML"),
        (JOB.encode() + b"[strategy]\ninner_steps = 0x" + b"f" * 5000 + b"\n", "20000 bits"),
        (JOB.encode() + b'[strategy]\nname = "sparselocko"\n', "sparselocko"),
    ],
)
def test_a_file_that_is_no_description_is_refused_by_its_name(folder: Path, text: bytes, named: str) -> None:
    path = folder / "job.toml"
    path.write_bytes(text)
    assert named in refused(path).message


def test_a_folder_in_the_place_of_a_file_is_told(folder: Path) -> None:
    assert "it is a folder" in refused(folder).message
    with pytest.raises(UsageError, match="describes a job") as wrong:
        check(str(folder / "job.toml"))
    assert "train quote" in wrong.value.hint


@pytest.mark.parametrize(
    ("strategy", "place", "hint"),
    [
        ("sparseloco", "strategy is 'sparseloco'", 'name = "sparseloco"'),
        ({"name": "sparseloco", "codec": "topk"}, "strategy.codec is 'topk'", 'name = "topk"'),
        ({"name": "sparseloco", "inner": "muon"}, "strategy.inner is 'muon'", 'name = "muon"'),
        ({"name": "sparseloco", "inner": {"name": "AdamW"}}, "strategy.inner.name", "'adamw'"),
        ({"name": "SparseLoCo-E"}, "strategy.name", "'sparseloco_e'"),
        ({"name": "sparseloco", "decay": 2.0}, "[strategy]: the residual's decay", "(0, 1]"),
        ({"name": "sparseloco", "decay": "high"}, "strategy.decay is 'high'", "of type float, e.g. 0.95"),
        ({"name": "sparseloco", "moments": "yes"}, "strategy.moments is 'yes'", "of type bool, e.g. true"),
        ({"name": "sparseloco", "inner_steps": 30.0}, "strategy.inner_steps is 30.0", "of type int, e.g. 30"),
        ({"inner_steps": 10**9}, "1000000000 steps", "16777216 steps"),
        ({"inner_steps": WIDE}, "strategy.inner_steps is an integer of 1329 bits", "64"),
        ({"name": "sparseloco", "codec": {"kept": 4097}}, "[strategy.codec]: 4097 of 4096", "kept 1 to block"),
        ({"name": "sparseloco", "codec": {"kept": 0}}, "[strategy.codec]: 0 of 4096", "kept 1 to block"),
        ({"name": "sparseloco", "codec": {"block": 0}}, "[strategy.codec]: 64 of 0", "power of two"),
        ({"name": "sparseloco", "codec": {"block": WIDE}}, "strategy.codec.block is an integer", "64"),
        ({"name": "sparseloco", "codec": {"width": 3}}, "[strategy.codec]: values have 3 bits", "1, 2, 4, 8, 16 or 32"),
        ({"name": "sparseloco", "codec": {"group": 10**12}}, "groups of 1000000000000", "a group of 1 to"),
        ({"name": "sparseloco", "codec": {"places": "rank"}}, "[strategy.codec]: places is 'rank'", '"ranked"'),
        ({"name": "cocktail", "codec": {"kept": 8192}}, "[strategy.codec]: 8192 of 4096", "kept 1 to block"),
        ({"name": "demo", "codec": {"rows": 0}}, "[strategy.codec]: the DCT has 0 x 64", "1 to 256 rows"),
        ({"name": "demo", "codec": {"then": {"kept": 0}}}, "[strategy.codec.then]: 0 of 4096", "kept 1 to block"),
        ({"name": "onebit", "block": 0}, "[strategy]: blocks of 0", "1 to"),
        ({"name": "onebit", "warmup": -1}, "[strategy]: no learning rate", "warmup not below"),
        ({"name": "onebit", "epsilon": -1.0}, "[strategy]: 1-bit Adam", "epsilon and warm_rounds above 0"),
        ({"inner": {"restart_warmup": -1}}, "[strategy.inner]: AdamW", "restart_warmup not below"),
        ({"inner": {"warmup": -1}}, "[strategy.inner]: no learning rate", "warmup not below"),
        ({"inner": {"final_fraction": 5.0}}, "[strategy.inner]: no learning rate", "final_fraction in [0, 1]"),
        ({"inner": {"weight_decay": -0.1}}, "[strategy.inner]: AdamW", "weight_decay and restart_warmup not below"),
        ({"inner": {"epsilon": 0.0}}, "[strategy.inner]: AdamW", "clip and epsilon above 0"),
        ({"inner": {"learning_rate": 1e300}}, "strategy.inner.learning_rate is 1e+300", "binary32"),
        ({"inner": {"learning_rate": float("nan")}}, "strategy.inner.learning_rate is nan", "binary32"),
        ({"inner": {"name": "muon", "warmup": -1}}, "[strategy.inner]: no learning rate", "warmup not below"),
        ({"inner": {"name": "sign_sgd", "warmup": -1}}, "[strategy.inner]: no learning rate", "warmup not below"),
        ({"outer_learning_rate": -0.7}, "[strategy]: Nesterov", "learning rate is above 0"),
        ({"name": "sparseloco", "aggregate": {"name": "median"}}, "[strategy]: a median", "use a mean"),
        ({"name": "demo", "aggregate": {"name": "trimmed"}}, "[strategy]: a trimmed mean", "use a mean"),
        (
            {"name": "allreduce", "aggregate": {"name": "trimmed", "wrong": 65}},
            "[strategy.aggregate]: wrong is 65",
            "64",
        ),
        (
            {"name": "allreduce", "aggregate": {"name": "krum", "picked": 65}},
            "[strategy.aggregate]: picked is 65",
            "64",
        ),
        (
            {"name": "allreduce", "aggregate": {"name": "geometric_median", "iterations": 10**9}},
            "[strategy.aggregate]: iterations is 1000000000",
            "1 to 256",
        ),
        (
            {"name": "allreduce", "aggregate": {"name": "centred_clipping", "radius": 0.0}},
            "[strategy.aggregate]: radius is 0.0",
            "above 0",
        ),
    ],
)
def test_a_wrong_value_of_a_strategy_is_refused_by_its_place(
    folder: Path, strategy: Any, place: str, hint: str
) -> None:
    described = {"texts": "texts", "slots": 2, "min_slots": 1, "model": {"layers": 1, "width": 32}}
    with pytest.raises(UsageError) as wrong:
        job_of({**described, "strategy": strategy}, folder, weights=False)
    assert not isinstance(wrong.value, LoweringError), "it is told before anything is traced"
    assert place in wrong.value.message
    assert hint in wrong.value.hint
    assert len(wrong.value.message) < 300


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"model": {"layers": 10**9}}, "model.layers is 1000000000"),
        ({"model": {"width": 10**15}}, "[model]: the parameters of"),
        ({"model": {"layers": 1, "width": 32}, "batch": {"accumulation": 10**9}}, "batch.accumulation is 1000000000"),
        ({"model": "llama"}, "model is 'llama'"),
        ({"batch": 8}, "batch is 8"),
        ({"seed": WIDE}, "seed is an integer of 1329 bits"),
    ],
)
def test_a_job_that_nobody_could_trace_is_refused(folder: Path, changes: dict[str, Any], place: str) -> None:
    with pytest.raises(UsageError) as wrong:
        job_of({"texts": "texts", "slots": 2, "min_slots": 1, **changes}, folder, weights=False)
    assert place in wrong.value.message
    assert wrong.value.hint


@pytest.mark.parametrize("codec", ["sign", "int8", "e3m0"])
@pytest.mark.parametrize("block", [0, -3, 10**12])
def test_blocks_that_none_can_be_are_refused(codec: str, block: int) -> None:
    with pytest.raises(UsageError, match=rf"\[strategy.codec\]: blocks of {block}"):
        strategy_of({"name": "opendiloco", "codec": {"name": codec, "block": block}})


def pieces() -> Iterator[tuple[str, str, str, str]]:
    """(strategy, its table, a piece of that kind, a field of the piece), of every registry."""
    for strategy, table, registry in (
        ("opendiloco", "codec", CODECS), ("allreduce", "outer", OPTIMIZERS), ("allreduce", "aggregate", AGGREGATES),
    ):  # fmt: skip
        for name, kind in registry.items():
            yield from ((strategy, table, name, f.name) for f in fields(kind))  # type: ignore[arg-type]


@pytest.mark.parametrize(("strategy", "table", "piece", "field"), [*pieces()])
def test_every_field_of_a_piece_is_read_and_refused_where_it_is_mistyped(
    strategy: str, table: str, piece: str, field: str
) -> None:
    with pytest.raises(UsageError) as wrong:
        strategy_of({"name": strategy, table: {"name": piece, field: ["nonsense"]}})
    assert f"strategy.{table}.{field} is" in wrong.value.message
    with pytest.raises(UsageError) as typo:
        strategy_of({"name": strategy, table: {"name": piece, field + field[-1]: 1}})
    assert typo.value.message == f"[strategy.{table}]: nothing is called {field + field[-1]!r}"
    assert typo.value.hint == f"did you mean {field!r}?"


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_s_name_is_found_whatever_its_capitals(name: str) -> None:
    for written in (name.upper(), name.title(), name + name[-1]):
        with pytest.raises(UsageError) as typo:
            strategy_of({"name": written})
        assert typo.value.hint == f"did you mean {name!r}?"
