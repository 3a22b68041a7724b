"""Rows that somebody demands are posted once, own demands are ended, and both are told of once they are on chain."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import reading
from coordinator.answering import DemandsOfJobs
from tests.support.coordinating import JOB, Sent
from tests.unit.coordinator.test_decide import DECIDER, PARAMS


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def answers(parts: Any, sent: Sent, monkeypatch: pytest.MonkeyPatch) -> Any:
    aggregators = SimpleNamespace(of=lambda job, params: SimpleNamespace(job=None))
    made: Any = DemandsOfJobs(parts, sent, aggregators)  # type: ignore[arg-type]
    keys = {1: "commit/1", 2: "answer/2", 3: None, 4: "settle/4", 5: "keep/5", 6: None}

    def due(demand: Any, *_: Any) -> tuple[str, None] | None:
        return (key, None) if (key := keys[demand.id[0]]) else None

    made._answers = SimpleNamespace(row=due, own=due)
    asked = [SimpleNamespace(id=bytes([n])) for n in keys]
    monkeypatch.setattr(reading, "row_demands", lambda session, job, now: asked[:3])
    monkeypatch.setattr(reading, "own_demands", lambda session, job, me: asked[3:])
    return made


def told(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [(line["event"], line["demand"]) for line in lines]


def test_what_is_due_is_posted_and_told(answers: Any, sent: Sent, capsys: pytest.CaptureFixture[str]) -> None:
    assert answers.tend(JOB, PARAMS, DECIDER.now)
    assert sent.keys == ["commit/1", "answer/2", "settle/4", "keep/5"], "of the others nothing is due"
    assert told(capsys) == [("precommitted", "01"), ("answered", "02"), ("settled", "04")], "a seed is kept in silence"


def test_what_was_posted_before_or_by_another_is_not_told(
    answers: Any, sent: Sent, capsys: pytest.CaptureFixture[str]
) -> None:
    sent.known_keys, sent.refused = {"commit/1", "settle/4"}, {"answer/2", "keep/5"}
    assert not answers.tend(JOB, PARAMS, DECIDER.now)
    assert sent.keys == ["answer/2", "keep/5"]
    assert told(capsys) == []
