"""Another worker's payload: honest steps, and then the payload that slot 1 computed, claimed as one's own."""

import pytest

from lockstep.execution.jobs import payload_of
from lockstep.numerics.trace import StepTrace
from tests.adversarial.cheat import Cheat, Ended, convict, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import Lying, at, changed, lying, named
from tests.support.toyjob import STEPS

ENCODE = STEPS + 1


def play(court: Court) -> Ended:
    neighbour = court.run(1)
    *_, (_, final, _) = neighbour.states()
    (theirs,) = payload_of(court.job, final)

    def lie(run: Lying, t: int, step: StepTrace) -> StepTrace:
        op = named(step.program, "difference")
        return changed(step, {op: theirs.reshape(step.output(op).array.shape)})

    honest = court.run(0)
    declared = Where(ENCODE, named(honest.program(ENCODE), "difference"), 0, rule="op")
    return convict(court, lying(honest, at(ENCODE, lie)), declared)


CHEAT = Cheat("another worker's payload", "fraud", {"slot 1's in slot 0": play})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_anothers_payload_is_convicted_in_encode(court: Court, form: str) -> None:
    run(court, CHEAT, form)
