"""Rows that somebody demands are posted once, and told of once they are on chain."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import reading
from coordinator.answering import RowAnswers
from tests.support.coordinating import JOB, Sent
from tests.unit.coordinator.test_decide import DECIDER, PARAMS


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def answers(parts: Any, sent: Sent, monkeypatch: pytest.MonkeyPatch) -> Any:
    aggregators = SimpleNamespace(of=lambda job, params: SimpleNamespace(job=None))
    made: Any = RowAnswers(parts, sent, aggregators)  # type: ignore[arg-type]
    keys = {1: "commit/1", 2: "row/2", 3: None}
    made._answers = SimpleNamespace(row=lambda demand, job, now: (key, None) if (key := keys[demand.id[0]]) else None)
    asked = [SimpleNamespace(id=bytes([n])) for n in keys]
    monkeypatch.setattr(reading, "row_demands", lambda session, job, now: asked)
    return made


def told(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [(line["event"], line["demand"]) for line in lines]


def test_what_is_due_is_posted_and_told(answers: Any, sent: Sent, capsys: pytest.CaptureFixture[str]) -> None:
    assert answers.answer(JOB, PARAMS, DECIDER.now)
    assert sent.keys == ["commit/1", "row/2"], "of the third nothing is due"
    assert told(capsys) == [("precommitted", "01"), ("answered", "02")]


def test_what_was_posted_before_or_by_another_is_not_told(
    answers: Any, sent: Sent, capsys: pytest.CaptureFixture[str]
) -> None:
    sent.known_keys, sent.refused = {"commit/1"}, {"row/2"}
    assert not answers.answer(JOB, PARAMS, DECIDER.now)
    assert sent.keys == ["row/2"]
    assert told(capsys) == []
