"""Trace withheld: the list of state roots lies nowhere, is damaged, or is another claim's. The trace root decides."""

import pytest

from lockstep.protocol.types import Cid
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import NOWHERE, Court, Where, published
from tests.adversarial.lies import lying, named
from tests.adversarial.test_moment_flip import ELEMENT, STEP, flips


def play(court: Court, cid: Cid) -> Ended:
    """A liar withholds its list, and an honest claim withholds its own: one game, and it begins at the trace root."""
    honest = court.run(0)
    claims = court.claim({0: lying(honest, flips("m", 4))}, change={0: published(cid), 1: published(cid)})
    assert set(court.audits()) == {claims[0]}, "a right claim is right without a list, too"
    (game,) = court.audit_and_play()
    opened = next(e for e in court.log(game) if type(e).__name__ == "Opened")
    assert opened.t == 0, "the game begins at the trace root"
    court.settle()
    court.balance({"worker-0": court.params.role.slot_stake})
    return ended(court, game, Where(STEP, named(honest.program(STEP), "m"), ELEMENT, rule="op"))


def damaged(court: Court) -> Cid:
    """A list of the right length that is nobody's trace."""
    return court.store.put(b"\x5a" * 32 * court.params.role.transitions)


CHEAT = Cheat(
    "trace withheld", "fraud",
    {
        "stored nowhere": lambda court: play(court, NOWHERE),
        "another list": lambda court: play(court, damaged(court)),
        "no CID at all": lambda court: play(court, Cid("not a CID")),
    },
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_withheld_trace_hides_nothing_and_proves_nothing(court: Court, form: str) -> None:
    run(court, CHEAT, form)
