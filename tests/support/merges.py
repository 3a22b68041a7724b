"""Payloads of the toy job, and a round that freezes them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lockstep.execution.jobs import Job, Tensors, payload_of, slot_run
from lockstep.execution.merging import store_payload
from lockstep.execution.rounds import Payload, RoundRecord
from lockstep.protocol import merkle
from lockstep.protocol.market import state_roots
from lockstep.protocol.types import Address, ClaimId, Digest, StateRoot
from lockstep.runtime.guard.memory import GuardMemory, RecordKey, Scope
from lockstep.storage import ContentStore
from tests.support import toyjob

CLAIM = ClaimId(b"m" * 32)
SCOPE = Scope(31337, b"g" * 32, Address("0x" + "11" * 20), Address("0x" + "22" * 20))


def merging_parts(store: ContentStore, guard: GuardMemory, home: Path) -> Any:
    """Returns the parts of an aggregator, without a chain."""
    party = SimpleNamespace(
        contracts=SimpleNamespace(game=None), addresses=SimpleNamespace(block=0), outbox=None, store=store
    )  # fmt: skip
    return SimpleNamespace(party=party, guard=guard, settings=SimpleNamespace(home=home))


def trained(job: Job, slot: int) -> Tensors:
    *_, (_, final, _) = slot_run(job, job.genesis, toyjob.SEED, 0, slot).states()
    return payload_of(job, final)


def put(job: Job, store: ContentStore, payload: Tensors) -> Payload:
    return Payload(store_payload(job, store, payload), *job.payload_roots(payload))


def merge_place(job: Job, refs: list[Payload | None]) -> RecordKey:
    """Returns the signing key for a merge of the first round, which the contract has frozen with these payloads."""
    params = job.params
    mask = sum(1 << s for s, ref in enumerate(refs) if ref is not None)
    lanes = 1 << params.role.slot_depth
    roots = [bytes(ref.out) if ref else bytes(params.role.zero_payload) for ref in refs]
    roots += [merkle.EMPTY[params.role.payload_depth]] * (lanes - len(roots))
    merge_in = state_roots.merge_in(
        params.genesis.shared, params.genesis.outer, roots, state_roots.mask_tensor(mask, params.role.slots),
        params.genesis.shared_depth, params.role.payload_depth,
    )  # fmt: skip
    return RecordKey(CLAIM, toyjob.SEED, StateRoot(merge_in))


def frozen(refs: list[Payload | None]) -> tuple[RoundRecord]:
    """Returns the first round with these payloads as recorded on chain."""
    return (RoundRecord(0, toyjob.SEED, tuple(refs), None, Digest(b""), Digest(b"")),)
