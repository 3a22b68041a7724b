"""Payloads of the toy job, and the round that freezes them."""

from __future__ import annotations

from lockstep.execution.jobs import Job, Tensors, payload_of, slot_run
from lockstep.execution.merging import Payload, store_payload
from lockstep.node.guard.memory import Scope
from lockstep.protocol import merkle
from lockstep.protocol.jobs import Round
from lockstep.protocol.market import state_roots
from lockstep.protocol.types import Address, ClaimId, StateRoot
from lockstep.storage import ContentStore
from tests.support import toyjob

CLAIM = ClaimId(b"m" * 32)
SCOPE = Scope(31337, b"g" * 32, Address("0x" + "11" * 20), Address("0x" + "22" * 20))


def trained(job: Job, slot: int) -> Tensors:
    *_, (_, final, _) = slot_run(job, job.genesis, toyjob.SEED, 0, slot).states()
    return payload_of(job, final)


def put(job: Job, store: ContentStore, payload: Tensors) -> Payload:
    return Payload(store_payload(job, store, payload), *job.payload_roots(payload))


def frozen(job: Job, refs: list[Payload | None]) -> Round:
    """The round as the contract freezes it."""
    params = job.params
    mask = sum(1 << s for s, ref in enumerate(refs) if ref is not None)
    lanes = 1 << params.role.slot_depth
    roots = [bytes(ref.out) if ref else bytes(params.role.zero_payload) for ref in refs]
    roots += [merkle.EMPTY[params.role.payload_depth]] * (lanes - len(roots))
    merge_in = state_roots.merge_in(
        params.genesis.shared, params.genesis.outer, roots, state_roots.mask_tensor(mask, params.role.slots),
        params.genesis.shared_depth, params.role.payload_depth,
    )  # fmt: skip
    return Round(seed=toyjob.SEED, mask=mask, merge_in=StateRoot(merge_in))
