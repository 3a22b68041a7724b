"""One look at a job is at one block, though the chain goes on while it is read."""

from __future__ import annotations

from typing import Any

from lockstep.ledger import JobLedger, Ledger, RoundLedger
from lockstep.protocol.jobs import NO_SEED, ZERO_ADDRESS, Job, JobStatus, Phase, Round
from lockstep.protocol.types import Address, Digest, JobId, Seconds, Seed, StateRoot
from tests import toyjob
from tests.unit.worker.test_decide import PARAMS
from worker.reading import look

HONEST = Address("0x" + "11" * 20)
HEAD = 10
SEED = Seed(b"\5" * 32)
BASE = Digest(b"\1" * 32)


class Sealing:
    """A market whose round is sealed in the block after HEAD: whoever reads the latest block reads another one each
    time."""

    def __init__(self) -> None:
        self._latest = HEAD - 1

    def _at(self, block: int | str) -> int:
        if block == "latest":
            self._latest += 1
            return self._latest
        return int(block)

    def job(self, job: JobId, block: int | str = "latest") -> Job:
        return Job(ZERO_ADDRESS, JobStatus.ACTIVE, started=1)

    def round(self, job: JobId, r: int, block: int | str = "latest") -> Round:
        seed = SEED if self._at(block) > HEAD else NO_SEED
        return Round(Phase.JOINING, seed=seed, base=StateRoot(BASE), seed_block=HEAD - 1)

    def phase(self, job: JobId, r: int, block: int | str = "latest") -> Phase:
        return Phase.TRAINING if self._at(block) > HEAD else Phase.SEALING


def _look(block: int) -> Any:
    ledger = JobLedger(toyjob.ID, ZERO_ADDRESS, 1, rounds={0: RoundLedger(0, 0, BASE, BASE)})
    known = Ledger()
    market: Any = Sealing()
    return look(market, known, ledger, PARAMS, HONEST, Seconds(0), block)


def test_nobody_is_told_to_train_before_it_knows_the_seed() -> None:
    (before,) = _look(HEAD).rounds
    assert (before.phase, before.state.seed) == (Phase.SEALING, NO_SEED)
    (after,) = _look(HEAD + 1).rounds
    assert (after.phase, after.state.seed) == (Phase.TRAINING, SEED)
