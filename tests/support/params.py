"""Builds a job's parameters from flat field names, of which tests change one or two.

A field name that two groups share is prefixed with its group: merge_price, genesis_shared, spec_digest.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import (
    NEVER,
    NOTHING,
    ZERO_ADDRESS,
    Genesis,
    JobParams,
    Merging,
    Pricing,
    Role,
    RoundSchedule,
    SpecRef,
    Windows,
)

GROUPS: dict[str, type] = {
    "spec": SpecRef, "genesis": Genesis, "schedule": RoundSchedule, "windows": Windows, "merge": Merging,
    "prices": Pricing, "roles": Role,
}  # fmt: skip
QUIET: dict[str, Any] = {
    "answer_seconds": NEVER, "audit_seconds": NEVER, "witness_stake": NOTHING, "gas_price": NOTHING, "fee_cap": 100 *
    10**9,
    "carry_period": 0, "merged": True,
}  # fmt: skip
"""Parameters of a job without witnesses, carry and gas price."""


def job_params(**values: Any) -> JobParams:
    """Returns a job with one role."""
    named = QUIET | {"carry_depth": values["shared_depth"]} | values
    groups = {group: kind(**_taken(group, kind, named)) for group, kind in GROUPS.items()}
    if named:
        raise TypeError(f"no parameters {sorted(named)}")
    return JobParams(**(groups | {"roles": (groups["roles"],)}))


def amended(params: JobParams, **values: Any) -> JobParams:
    """Returns the job with some fields changed."""
    if "shared_depth" in values:
        values.setdefault("carry_depth", values["shared_depth"])
    changed: dict[str, Any] = {}
    for group, kind in GROUPS.items():
        stored = params.role if group == "roles" else getattr(params, group)
        value = replace(stored, **_taken(group, kind, values))
        changed[group] = (value,) if group == "roles" else value
    if values:
        raise TypeError(f"no parameters {sorted(values)}")
    return JobParams(**changed)


def value_of(params: JobParams, name: str) -> Any:
    """Returns the field that `amended` would change under that name."""
    for group, kind in GROUPS.items():
        for of in fields(kind):
            if name in _names(group, of.name):
                return getattr(params.role if group == "roles" else getattr(params, group), of.name)
    raise TypeError(f"no parameter {name}")


def _names(group: str, field: str) -> tuple[str, ...]:
    # The name of a merge turn in presets.
    return (field, f"{group}_{field}", *(("merge_seconds",) if field == "turn_seconds" else ()))


def _taken(group: str, kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Removes from `values` the fields of a group and returns them."""
    found = {}
    for of in fields(kind):
        for name in _names(group, of.name):
            if name in values:
                found[of.name] = values.pop(name)
    return found


def measured() -> JobParams:
    """Returns the job whose gas is measured: every byte of calldata counts."""
    root = keccak(b"root")
    return job_params(
        spec_digest=root, step_program=root, encode_program=root, merge_program=root, dataset_root=root,
        dataset_rows=5, row_length=5, genesis_shared=root, genesis_outer=root, zero_carry=root, zero_payload=root,
        shared_depth=1, payload_depth=3, inner_steps=2, rounds=3, slots=2, min_slots=2, max_lead=3, max_fail=1,
        join_seconds=40, train_seconds=50, reveal_seconds=30, attest_seconds=20, turn_seconds=25, challenge_seconds=60,
        clock_seconds=60, step_seconds=5, slot_price=10, merge_price=7, slot_stake=100, merge_stake=119, bond=34,
        aggregator=ZERO_ADDRESS, audit_seconds=3, witness_fee=2, witness_stake=43, answer_seconds=24, fee_cap=100,
    )  # fmt: skip
