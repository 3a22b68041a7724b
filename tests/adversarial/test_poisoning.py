"""Poisoning "within tolerance": a payload pushed towards a backdoor by less than any norm bound would notice."""

import numpy as np
import pytest

from lockstep.numerics.trace import StepTrace
from tests.adversarial.cheat import Cheat, convicts, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import Lying, at, changed, named
from tests.support.toyjob import STEPS

ENCODE = STEPS + 1
RELATIVE = 1e-5
"""Of the payload's norm: far below what clipping or a median over payloads would see."""


def poisoned(run: Lying, t: int, step: StepTrace) -> StepTrace:
    """The payload, a hundred-thousandth of its length further in a direction of the attacker's choice."""
    op = named(step.program, "difference")
    payload = step.output(op).array
    direction = np.where(np.arange(payload.size) % 2, 1, -1).astype(np.float32)
    push = (np.float32(RELATIVE * np.linalg.norm(payload)) * direction).reshape(payload.shape)
    moved = (payload + push).astype(np.float32)
    assert 0 < np.linalg.norm(moved - payload) < 1e-4 * np.linalg.norm(payload), "within any tolerance"
    return changed(step, {op: moved})


def where(run):  # type: ignore[no-untyped-def]
    return Where(ENCODE, named(run.program(ENCODE), "difference"), 0, rule="op")


CHEAT = Cheat('poisoning "within tolerance"', "fraud", {"1e-5 of the norm": convicts(at(ENCODE, poisoned), where)})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_slightly_poisoned_payload_is_convicted_in_encode(court: Court, form: str) -> None:
    run(court, CHEAT, form)
