"""Floors and ceilings of a job's parameters: a job that passes can be trained, judged and paid within block gas.

Twin of contracts/libraries/JobRules.sol.
"""

from __future__ import annotations

from lockstep.protocol.errors import ChainError
from lockstep.protocol.jobs import ZERO, JobParams
from lockstep.protocol.reverts import revert
from lockstep.protocol.types import Seconds, Wei

MAX_SLOTS = 64
MAX_LEAD = 16
MAX_DEPTH = 24
MAX_STEPS = 1 << 24
MIN_CLOCK = Seconds(60)
MAX_WINDOW = Seconds(30 * 86_400)
MAX_LOCK = Wei((1 << 88) - 1)

_WINDOWS = ("join", "train", "reveal", "attest", "merge", "challenge")


def check_params(p: JobParams, unbond_seconds: Seconds) -> None:
    """Raises the contract's JobInvalid, but names the parameter and its bounds. Twin of JobRules.check."""
    bounds: list[tuple[str, bool, str]] = [
        ("profile", p.profile == 1 and p.opset == 1, "profile and opset must be 1"),
        ("programs", ZERO not in (p.step_program, p.encode_program, p.merge_program), "no program root is zero"),
        ("dataset", p.dataset_rows > 0 and p.row_length > 0, "dataset_rows and row_length must be positive"),
        ("slots", 0 < p.min_slots <= p.slots <= MAX_SLOTS, f"1 <= min_slots <= slots <= {MAX_SLOTS}"),
        (
            "rounds",
            p.rounds > 0 and p.inner_steps > 0 and p.inner_steps * p.rounds <= MAX_STEPS,
            f"rounds and inner_steps positive, their product at most {MAX_STEPS}",
        ),
        ("maxLead", 0 < p.max_lead <= MAX_LEAD, f"1 <= max_lead <= {MAX_LEAD}"),
        # INVARIANT: a merge's payload half is at least as deep as its base half, or it could not hold it.
        (
            "depths",
            max(p.shared_depth, p.payload_depth) <= MAX_DEPTH and p.payload_depth + p.slot_depth >= p.shared_depth,
            f"depths at most {MAX_DEPTH}, payload_depth + ceil(log2 slots) >= shared_depth",
        ),
        *(
            ("windows", 0 < getattr(p, f"{name}_seconds") <= MAX_WINDOW, f"1 <= {name}_seconds <= {MAX_WINDOW}")
            for name in _WINDOWS
        ),
        # INVARIANT: every game that is open lengthens the defender's clock in the next: many games starve nobody.
        (
            "clocks",
            MIN_CLOCK <= p.clock_seconds <= MAX_WINDOW and 0 < p.step_seconds <= MAX_WINDOW,
            f"{MIN_CLOCK} <= clock_seconds <= {MAX_WINDOW}, 1 <= step_seconds <= {MAX_WINDOW}",
        ),
        # INVARIANT: unbonding takes longer than a challenge window and both clocks.
        (
            "unbonding",
            p.challenge_seconds + 2 * p.clock_seconds <= unbond_seconds,
            f"challenge_seconds + 2 x clock_seconds <= {unbond_seconds}, the vault's unbonding delay",
        ),
        # INVARIANT: a stake covers the fine for not revealing.
        (
            "stakes",
            p.slot_stake > 0 and p.slot_price <= p.slot_stake and p.merge_stake > 0 and p.bond > 0,
            "stakes and bond positive, slot_stake at least slot_price",
        ),
        # INVARIANT: stakes and bonds fit the vault's locks: no job can be without challengers.
        ("stakes", max(p.slot_stake, p.merge_stake, p.bond) <= MAX_LOCK, "stakes and bond below 2^88"),
    ]
    for group, holds, rule in bounds:
        if not holds:
            broken = revert("JobInvalid", group)
            raise ChainError(broken.message, f"required: {rule}", code=broken.code)
