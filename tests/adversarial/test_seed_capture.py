"""Seed capture: whoever seals, and whenever, the seed is of the block after the roster closed, or there is none."""

import pytest

from lockstep.protocol.jobs import Phase
from lockstep.protocol.market import ids
from tests.adversarial.cheat import Cheat, Ended, run
from tests.adversarial.court import Court, Where

REMEMBERED = 256
"""Blocks whose hash the EVM knows."""


def roster(court: Court) -> int:
    """Round 1 starts and fills up, nobody has sealed; its seed block."""
    court.claim()
    court.merge()
    market = court.contracts.market
    court.send(market.start_round(court.job_id, 1), "requester")
    for slot in range(court.params.role.slots):
        court.send(market.join(court.job_id, 1, slot), f"worker-{slot}")
    return market.round(court.job_id, 1).seed_block


def any_sealer(court: Court) -> Ended:
    """Mallory waits for blocks that it likes better; the seed stays."""
    block = roster(court)
    expected = None
    for waited, name in ((1, "mallory"), (40, "worker-0"), (REMEMBERED - 2, "requester")):
        mark = court.devnet.snapshot()
        court.devnet.mine(waited)
        court.send(court.contracts.market.seal(court.job_id, 1), name)
        stored = court.contracts.market.round(court.job_id, 1)
        hash_ = bytes(court.devnet.w3.eth.get_block(block)["hash"])
        expected = ids.seed(hash_, court.job_id, 1, stored.attempt)
        assert stored.seed == expected, f"sealed {waited} blocks later by {name}"
        court.devnet.revert(mark)
    assert expected is not None
    return Ended("refused", Where(rule="one seed"), Where(rule="one seed"))


def outwaited(court: Court) -> Ended:
    """Everybody waits until the EVM has forgotten the block: the round fails, and is not drawn again."""
    roster(court)
    court.devnet.mine(REMEMBERED + 2)
    court.send(court.contracts.market.seal(court.job_id, 1), "mallory")
    assert court.phase(1) == Phase.FAILED
    rule = court.refused(court.contracts.market.seal(court.job_id, 1), "mallory")
    court.settle()
    court.balance()
    return Ended("refused", Where(rule="WrongPhase"), Where(rule=rule))


def ground(court: Court) -> Ended:
    """A slot is joined, the seed is awaited, and given back if it displeases: a full roster is closed."""
    roster(court)
    rule = court.refused(court.contracts.market.leave(court.job_id, 1, 0), "worker-0")
    return Ended("refused", Where(rule="WrongPhase"), Where(rule=rule))


CHEAT = Cheat(
    "seed capture, slots ground for a better seed", "refused",
    {"whoever seals, whenever": any_sealer, "outwaited": outwaited, "left after the roster closed": ground},
    {"rounds": 2, "max_lead": 2, "max_fail": 1},
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_nobody_chooses_a_seed(court: Court, form: str) -> None:
    run(court, CHEAT, form)
