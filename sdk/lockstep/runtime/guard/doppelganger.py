"""Doppelganger protection: a home that cannot know what its key signed elsewhere listens to the chain before it signs.

    listening -> (nobody else acted for `seconds`, no slot is held by somebody else's join) -> register -> signing

Registering the node's key on chain is the fencing token between two homes of one account: the chain orders the
registrations, the last one is valid, and a home that sees another's stops at once. A home signs only FENCE_BLOCKS after
its own registration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from lockstep.protocol.errors import GuardRefused
from lockstep.protocol.jobs import ClaimStatus, Phase
from lockstep.protocol.types import Address, JobId, Seconds
from lockstep.runtime.guard.memory import GuardMemory, RecordKey

if TYPE_CHECKING:
    from lockstep.chain.events import Event
    from lockstep.market.ledger import JobLedger, Ledger, RoundLedger

FENCE_BLOCKS = 2
"""Blocks between a home's registration and its first claim, in which another home can notice the registration."""

ACTS = frozenset({"Joined", "Revealed", "Merged"})
"""Events of the market whose `worker` sent the transaction."""

_UNREVEALED = (ClaimStatus.JOINED, ClaimStatus.COMMITTED)
_AT_WORK = (Phase.JOINING, Phase.TRAINING, Phase.REVEALING)
"""Phases that end by the clock and in which a slot's owner still has to send a transaction."""


class Watch:
    """Watches an account for one home: permits signing, and notices another home that signs."""

    def __init__(
        self,
        memory: GuardMemory,
        me: Address,
        node_key: bytes,
        sent: Callable[[bytes], bool],
        phase: Callable[[JobId, int], Phase],
        seconds: Seconds,
    ) -> None:
        """`sent` returns True if this home sent a transaction; `phase` returns a round's current phase; `seconds` is
        the chain time of listening (0: none).
        """
        self._memory = memory
        self._me = me
        self._node_key = node_key
        self._sent = sent
        self._phase = phase
        self._seconds = seconds
        self._until: Seconds | None = None
        self._fence: int | None = None

    def begin(self, ledger: Ledger, now: Seconds) -> list[str]:
        """Starts to listen if necessary; returns the reasons from the chain's history, or []."""
        reasons = [] if self._memory.trusted() else ["this home has not listened before"]
        if ledger.nodes.get(self._me, self._node_key) != self._node_key:
            reasons.append("another home was the last to register for this account")
        if any(self._unknown(job, r) for job in ledger.jobs.values() if not job.done for r in job.all_rounds()):
            reasons.append("this account has made claims that this home does not know")
        if reasons and self._seconds:
            self._until = Seconds(now + self._seconds)
        else:
            self._memory.trust()
        return reasons

    @property
    def until(self) -> Seconds | None:
        """The earliest chain time at which listening ends; None if the home need not listen."""
        return self._until

    def hear(self, events: Iterable[Event]) -> None:
        """Processes events since the start of this process; raises GuardRefused if another home uses the key."""
        for e in events:
            own = e.args.get("worker" if e.name in ACTS else "account") == self._me
            registered = e.name == "NodeRegistered" and e.args["key"] != self._node_key
            # INVARIANT: an account works in one home at a time.
            if own and (registered or e.name in ACTS) and not self._sent(e.transaction):
                raise GuardRefused(
                    f"another home uses the key of {self._me}: it sent {e.name} in block {e.block}",
                    hint="stop the other machine, then move its memory with `guard export` and `guard import`",
                    code="guard_refused.doppelganger",
                )

    def is_over(self, ledger: Ledger, now: Seconds) -> bool:
        """Returns True once the listening time is over; from then on the account may register and the home is
        trusted."""
        if self._until is None:
            return True
        if now < self._until or any(self._held_elsewhere(job) for job in ledger.jobs.values()):
            return False
        self._until = None
        self._fence = 0
        self._memory.trust()
        return True

    def may_sign(self, ledger: Ledger, now: Seconds, block: int) -> bool:
        """Returns True if this home may join, commit, reveal and merge."""
        if not self.is_over(ledger, now):
            return False
        if self._fence is None:
            return True
        if ledger.nodes.get(self._me) != self._node_key:
            return False
        self._fence = self._fence or block + FENCE_BLOCKS
        return block >= self._fence

    # -- inside

    def _unknown(self, job: JobLedger, r: RoundLedger) -> bool:
        """Returns True if a round has a claim by this account without a signing record in this home."""
        for claim in (*r.claims.values(), *r.merges):
            if claim.worker != self._me:
                continue
            base = r.merge_in if claim.is_merge else r.base
            record = self._memory.record(RecordKey(claim.id, r.seed, base or r.base))
            if record is None or record.values[1:] != (claim.out, claim.out2):
                return True
        return False

    def _held_elsewhere(self, job: JobLedger) -> bool:
        """Returns True if the account holds a slot whose claim is due but which this home did not join: another home
        may be working on it.
        """
        return any(
            holder == self._me and status in _UNREVEALED and self._phase(job.id, r.number) in _AT_WORK
            for r in job.rounds.values()
            for holder, status in r.holders.values()
        )
