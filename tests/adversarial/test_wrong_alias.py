"""Wrong alias: every op is honest, and the new state names another op's output than the Program's table says."""

import pytest

from lockstep.numerics.trace import StepTrace
from tests.adversarial.cheat import Cheat, convicts, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import Lie, Lying, at, named, next_of, outputs_of, written

STEP = 2


def swaps(entry: int, shown: str | int) -> Lie:
    """State entry `entry` holds the output of another op (a name) or another tensor of S_{t-1} (a number)."""

    def lie(run: Lying, t: int, step: StepTrace) -> StepTrace:
        other = step.output(named(step.program, shown)).array if isinstance(shown, str) else step.before[shown]
        after = tuple(other if k == entry else tensor for k, tensor in enumerate(next_of(step)))
        return written(step, outputs_of(step), after)

    return at(STEP, lie)


def where(entry: int):  # type: ignore[no-untyped-def]
    return lambda run: Where(STEP, entry, rule="alias")


CHEAT = Cheat(
    "wrong alias", "fraud",
    {
        "the first moment for the second": convicts(swaps(5, "m"), where(5)),
        "the old parameters for the new": convicts(swaps(0, 0), where(0)),
        "the anchor moved": convicts(swaps(2, "p"), where(2)),
    },
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_state_entry_that_is_another_tensor_is_convicted_as_an_alias(court: Court, form: str) -> None:
    run(court, CHEAT, form)
