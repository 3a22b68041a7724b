"""What a quote says of a job, against the same job when it runs."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from lockstep.base.machine import Memory
from lockstep.execution import quoting
from lockstep.execution.footprint import ROLES
from lockstep.execution.jobs import TrainingJob
from lockstep.execution.quoting import figures_of
from lockstep.protocol.jobs import NO_STATE, ZERO
from lockstep.protocol.market.job_rules import ChainTimes
from lockstep.protocol.types import Cid
from lockstep.requester.quotes import params_of
from lockstep.storage import cid_of
from lockstep.storage.payload import encode_payload
from lockstep.training.describe import job_of

pytestmark = pytest.mark.usefixtures("traced_once")
WORDS = "words upon words about nothing in particular, "
MODEL = {"layers": 2, "heads": 4, "width": 128, "context": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("described")
    (path / "texts").mkdir()
    for i in range(20):
        (path / "texts" / f"{i}.txt").write_text(f"document {i}: " + WORDS * 20)
    return path


def described(folder: Path, *, weights: bool = False, **changes: object) -> TrainingJob:
    model = {"model": MODEL, "strategy": {"inner_steps": 4, "payload": "int8-block"}}
    return job_of({"texts": "texts", "slots": 2, "rounds": 3, **model, **changes}, folder, weights=weights)


@pytest.mark.slow
def test_a_quote_needs_no_weights_and_says_the_same_as_with_them(folder: Path) -> None:
    bare, whole = described(folder), described(folder, weights=True)
    assert bare.genesis is None
    assert whole.genesis is not None
    assert [getattr(bare.programs, k).root for k in ("step", "encode", "merge")] == [
        getattr(whole.programs, k).root for k in ("step", "encode", "merge")
    ]
    params = params_of(bare, None, ChainTimes())
    assert (params.spec.digest, params.genesis.shared, params.role.zero_carry) == (ZERO, NO_STATE, NO_STATE)
    found = figures_of(bare, params, ChainTimes(), budget_seconds=0)
    again = figures_of(whole, params, ChainTimes(), budget_seconds=0)
    assert replace(found, step=again.step, round_seconds=again.round_seconds, machine=again.machine) == again
    assert found.trained == 256 * 128 + 64 * 128 + 2 * (12 * 128 * 128 + 2 * 128) + 128
    assert found.memory == {name: role(bare.programs, params.role.slots) for name, role in ROLES.items()}


def test_a_step_is_measured_where_the_budget_allows_it_and_estimated_else(folder: Path) -> None:
    job = described(folder)
    params = params_of(job, None, ChainTimes())
    tried, guessed = (figures_of(job, params, ChainTimes(), budget_seconds=b).step for b in (30, 0))
    assert (tried.how, guessed.how) == ("measured", "estimated")
    assert 1 / 8 < guessed.seconds / tried.seconds < 8, "of the same order, on a machine that does other things too"
    assert tried.tokens == 8 * 65, "rows of context + 1"
    assert tried.operations > 6 * 400_000 * 8 * 64, "six a parameter and token at least"


def test_a_step_that_does_not_fit_is_not_tried_and_no_role_is_offered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = described(folder)
    monkeypatch.setattr(quoting, "memory", lambda: Memory(10**6, 10**6))
    found = figures_of(job, params_of(job, None, ChainTimes()), ChainTimes(), budget_seconds=30)
    assert found.step.how == "estimated"
    for role, verdict in found.verdicts.items():
        assert not verdict.fits
        assert "this machine has 1.0 MB" in verdict.why, role


@pytest.mark.slow
def test_windows_that_are_too_short_for_this_machine_are_said(folder: Path) -> None:
    job = described(folder, rounds=1, strategy={"inner_steps": 10**6})
    found = figures_of(job, params_of(job, None, ChainTimes()), ChainTimes(), budget_seconds=0)
    assert "train_seconds" in found.verdicts["worker"].why
    assert found.round_seconds > found.train_seconds / 2
    assert found.verdicts["aggregator"].fits


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("payload", "carry"), [("int8-block", False), ("f32", False), ("int8-block", True)])
def test_bytes_of_a_round_are_those_of_the_wire(folder: Path, payload: str, carry: bool) -> None:
    job = described(folder, weights=True, strategy={"inner_steps": 4, "payload": payload, "carry": carry})
    assert job.genesis is not None
    params = params_of(job, None, ChainTimes())
    (flat,) = job.genesis.shared
    moments = (flat, flat, flat[:1]) if carry else ()
    # Zeros are what every block can be written as; first weights are not.
    sent: list[int] = []

    def named(blob: memoryview) -> Cid:
        sent.append(len(blob))
        return cid_of(blob)

    own = (np.zeros_like(flat),) if payload == "int8-block" else (flat,)
    beside = cid_of(encode_payload(moments)) if carry else None
    sent.append(len(encode_payload(own, payload, beside, named)))
    merged = sum(sent)
    if carry:
        sent.append(len(encode_payload(moments, name=named)))
    traffic = figures_of(job, params, ChainTimes(), budget_seconds=0).round
    upload = traffic["worker"].upload - quoting.ROOT_BYTES * params.role.transitions - quoting.RECEIPT_BYTES
    assert upload == pytest.approx(sum(sent), rel=0.001)
    assert traffic["aggregator"].download == pytest.approx(2 * merged, rel=0.001), "a merge needs no carry"
    assert traffic["verifier"].download - traffic["aggregator"].download > 2 * (upload - merged - 1)
    assert traffic["aggregator"].upload == 2 * flat.nbytes


def test_cost_follows_from_the_terms_and_json_keeps_every_digit(folder: Path) -> None:
    job = described(folder, terms="mainnet")
    params = params_of(job, None, ChainTimes())
    found = figures_of(job, params, ChainTimes(), budget_seconds=0)
    told = json.loads(json.dumps(found.to_dict()))
    assert int(told["cost"]["escrow"]) == params.escrow
    assert int(told["cost"]["witness_fees"]) == params.role.witnesses * params.role.witness_fee > 0
    drawn = params.schedule.rounds * params.role.slots * params.role.inner_steps * 8 * 65
    assert float(told["cost"]["per_token"]) == pytest.approx(params.escrow / drawn, rel=1e-5)
    assert told["memory"]["worker"]["total"] == sum(v for k, v in told["memory"]["worker"].items() if k != "total")
    assert all(figure in "\n".join(found.lines()) for figure in ("estimated", "escrow", "worker", "aggregator"))


@pytest.mark.parametrize(
    ("value", "digits"),
    [
        (Fraction(5 * 10**18, 272), "18382400000000000"),
        (Fraction(1, 3), "0.333333"),
        (Fraction(1, 10**9), "0.000000001"),
    ],
)
def test_a_price_has_no_exponent(value: Fraction, digits: str) -> None:
    assert quoting._digits(value) == digits
