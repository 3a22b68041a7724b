"""Jobs described in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.numerics.validate import validate
from lockstep.protocol.errors import UsageError
from lockstep.training.describe import job_of

MODEL = {"layers": 1, "heads": 2, "width": 32, "context": 16}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = tmp_path / "texts"
    texts.mkdir()
    for i in range(30):
        (texts / f"{i}.txt").write_text(f"document {i}: " + "words upon words, " * (10 + i))
    return tmp_path


def described(**changes: Any) -> dict[str, Any]:
    return {"texts": "texts", "rounds": 2, "slots": 2, "min_slots": 1, "model": MODEL, "batch": {"rows": 2}, **changes}


def test_description_becomes_a_job(folder: Path) -> None:
    strategy = {"inner_steps": 4, "payload": "int8-block", "inner": {"learning_rate": 0.01}}
    job = job_of(described(strategy=strategy, seed=3), folder)
    for program in (job.programs.step, job.programs.encode, job.programs.merge):
        validate(program)
    assert (job.rounds, job.slots, job.min_slots, job.inner_steps) == (2, 2, 1, 4)
    assert job.dataset.row_tokens == MODEL["context"] + 1
    assert job.model == {"model": "gpt", "vocabulary": 256, "tied": True, "gelu": "tanh", "bias": False, **MODEL}
    assert job.strategy["inner"]["learning_rate"] == 0.01


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"colour": "red"}, "colour"),
        ({"texts": "nowhere"}, "nowhere"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": "six"}, "rounds"),
        ({"slots": 1, "min_slots": 1}, "slots"),
        ({"min_slots": 3}, "slots"),
        ({"slots": 65}, "65"),
        ({"rounds": 10**9}, "rounds"),
        ({"terms": "moonnet"}, "moonnet"),
        ({"terms": ["devnet"]}, "terms"),
        ({"aggregator": "nobody"}, "nobody"),
        ({"aggregator": 7}, "aggregator"),
        ({"aggregator": "0x12"}, "0x12"),
        ({"batch": 7}, "batch"),
        ({"strategy": 7}, "strategy"),
        ({"model": {"depth": 3}}, "depth"),
        ({"model": {"width": 33, "heads": 2}}, "33"),
        ({"model": {"width": "wide"}}, "width"),
        ({"model": {**MODEL, "heads": 0}}, "heads"),
        ({"model": {**MODEL, "layers": 0}}, "layers"),
        ({"model": {**MODEL, "vocabulary": 255}}, "vocabulary"),
        ({"batch": {"rows": 0}}, "batch"),
        ({"strategy": {"payload": "zip"}}, "zip"),
        ({"strategy": {"inner_steps": 0}}, "inner"),
        ({"strategy": {"inner": {"learning_rate": -1.0}}}, "learning"),
    ],
)
def test_wrong_description_names_what_is_wrong(folder: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named) as caught:
        job_of(described(**changes), folder)
    assert caught.value.hint, "an error says what to do"
