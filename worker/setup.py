"""Assembles a worker from its settings: guard, keys, chain, storage; each failure has its own exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from lockstep.base.settings import Settings
from lockstep.chain.events import EventReader
from lockstep.chain.keys import NODE_KEY
from lockstep.market.ledger import Watcher
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.types import Seconds
from lockstep.runtime.guard import lock
from lockstep.runtime.guard.doppelganger import Watch
from lockstep.runtime.guard.memory import GuardMemory, Scope
from lockstep.runtime.identity import NodeKey
from lockstep.runtime.party import Party
from worker.announcing import Announcer
from worker.notes import Notes
from worker.parts import WorkerParts
from worker.policy import Policy


@contextmanager
def assemble(settings: Settings, machine: str = "") -> Iterator[WorkerParts]:
    """Opens all resources of a worker and closes them at the end; `machine` is the name that its claims are announced
    with. Raises UsageError, KeyStoreError, GuardRefused, Unreachable, ChainError, DoctorError."""
    Policy.require(settings)
    home = settings.home_dir
    with ExitStack() as stack:
        # The lock comes first: nothing of the home is read while another worker writes it.
        stack.enter_context(lock.held(home, "worker"))
        try:
            party = stack.enter_context(Party.open(settings))
        except LockstepError as error:
            # Whoever asks later is told why no worker runs here.
            Notes(home).ended(error)
            raise
        policy = Policy.of(settings)
        guard = stack.enter_context(GuardMemory(home, Scope.of(party.w3, party.addresses, party.address)))
        node = NodeKey.open(home / NODE_KEY)
        watch = Watch(
            guard, party.address, node.public, party.outbox.sent, party.contracts.market.phase,
            Seconds(settings.listen_seconds),
        )  # fmt: skip
        announcer = Announcer(
            settings.coordinator, party.account, node, party.addresses.chain_id, party.addresses.market, machine
        )
        cache = stack.enter_context(closing(party.log_cache()))
        watcher = Watcher(EventReader(party.w3, party.addresses, cache=cache, check=party.check))
        yield WorkerParts(party, node, guard, watch, watcher, announcer, policy, Notes(home))
