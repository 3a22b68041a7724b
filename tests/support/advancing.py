"""Advances a local chain's clock past waits that no account can shorten: attesting after all have spoken, unwatched
windows.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from lockstep.chain.contracts import Contracts
from lockstep.chain.devnet import Local
from lockstep.chain.events import EventReader
from lockstep.market.ledger import Watcher
from lockstep.protocol.jobs import NEVER, JobParams, Phase
from lockstep.protocol.market.receipts import demands_end
from lockstep.protocol.market.views import all_spoken
from lockstep.protocol.types import JobId, Seconds

ACTING = frozenset(Phase) - {Phase.NONE, Phase.ATTESTING, Phase.LEAD, Phase.FINAL, Phase.FAILED, Phase.VOID}
"""Phases that end when all accounts have acted."""


@dataclass
class Passing:
    """Advances the clock, in a thread of its own, whenever every round only waits for time.

    A job's challenge window is skipped only if it is as short as the job's other windows allow, because no test watches
    such a job. No step exceeds half of a window in which an account acts, so that an account that begins meanwhile is
    in time.
    """

    devnet: Local
    contracts: Contracts
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, name="passing", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread; must be called before the chain ends."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        watcher = Watcher(EventReader(self.devnet.w3, self.contracts.addresses))
        while not self._over.wait(0.5):
            watcher.poll()
            ends = [end for job in watcher.ledger.jobs for end in self._ends(job, bool(watcher.ledger.games))]
            now = Seconds(self.devnet.w3.eth.get_block("latest")["timestamp"])
            if None not in ends and (ahead := [end for end in ends if end is not None and end > now]):
                self.devnet.advance(Seconds(min(ahead) - now))

    def _ends(self, job: JobId, played: bool) -> list[Seconds | None]:
        """Returns the times at which each of a job's rounds stops waiting; None for a round in which an account must
        act.
        """
        market = self.contracts.market
        state, params = market.job(job), market.params(job)
        ends: list[Seconds | None] = []
        for r in range(state.settled, state.started):
            stored, phase = market.round(job, r), market.phase(job, r)
            spoken = all_spoken(stored, params.role.witnesses)
            if phase in ACTING or (phase == Phase.ATTESTING and not spoken):
                ends.append(None)
            elif phase == Phase.ATTESTING:
                inclusion = market.chain_times().inclusion
                ends.append(Seconds(demands_end(stored.reveal_ends, stored.attest_ends, inclusion)))
            elif stored.merged_at != NEVER and not played and _unwatched(params):
                ends.append(Seconds(stored.merged_at + params.windows.challenge_seconds))
        return ends


def _unwatched(params: JobParams) -> bool:
    return params.windows.challenge_seconds == max(params.role.attest_seconds, params.merge.turn_seconds)
