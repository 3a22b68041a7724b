"""Fabricated trace: nothing is trained. States are made up, or their roots are noise with nothing behind them."""

import numpy as np
import pytest

from lockstep.execution.jobs import ClaimRun
from lockstep.numerics.trace import StepTrace
from lockstep.protocol import merkle
from lockstep.protocol.types import StateRoot
from tests.adversarial.cheat import Cheat, Ended, convict, refuted, run
from tests.adversarial.court import Court, Where, with_trace
from tests.adversarial.lies import Lying, changed, lying, named
from worker.progress import Material


def random_states(honest: ClaimRun) -> Lying:
    """Parameters and moments of every step are drawn at random."""

    def lie(run: Lying, t: int, step: StepTrace) -> StepTrace | None:
        if t > run.job.params.role.inner_steps:
            return None
        random = np.random.default_rng(t)
        ops = [named(step.program, name) for name in ("m", "v", "p")]
        return changed(step, {op: random.normal(size=step.output(op).array.shape).astype(np.float32) for op in ops})

    return lying(honest, lie)


def made_up(court: Court) -> Ended:
    honest = court.run(0)
    return convict(court, random_states(honest), Where(1, named(honest.program(1), "m"), 0, rule="op"))


def noise(court: Court) -> Ended:
    """Random roots up to a true S_T: there is no G to defend the first of them with."""

    def change(m: Material) -> Material:
        roots = tuple(StateRoot(merkle.leaf(bytes([t]) * 32)) for t in range(len(m.roots) - 1))
        return with_trace(court, m, (*roots, m.roots[-1]))

    return refuted(court, change, Where(t=1))


CHEATS = (
    Cheat("fabricated trace", "fraud", {"random states": made_up}),
    Cheat("fabricated trace", "timeout", {"random roots": noise}),
)


@pytest.mark.parametrize(("cheat", "form"), [(c, f) for c in CHEATS for f in c.forms])
def test_a_trace_that_was_made_up_is_convicted_at_its_first_state(court: Court, cheat: Cheat, form: str) -> None:
    run(court, cheat, form)
