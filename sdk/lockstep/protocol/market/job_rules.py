"""Bounds on a job's parameters: a job within them can be trained, judged and paid within block gas.

Twin of contracts/libraries/JobRules.sol.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.protocol.jobs import NEVER, ZERO, JobParams, Role
from lockstep.protocol.market import prices
from lockstep.protocol.merkle import LEAF_ELEMENTS
from lockstep.protocol.reverts import revert
from lockstep.protocol.types import Seconds, Wei

MAX_SLOTS = 64
MAX_WITNESSES = 64
"""Most witnesses of a round: a word has bits for all slots and then for all witnesses."""
MAX_LEAD = 16
MAX_DEPTH = 24
MAX_STEPS = 1 << 24
MAX_ROW = 1 << 18
"""Most words in a dataset's row, so that its leaves fit seventeen parts, and the gas of all blocks of a few minutes."""
PART = 64
"""Most leaves of a row in one transaction, so that it stays below 128 KiB for the deepest dataset."""
PART_TRANSACTIONS = 2
"""Consecutive transactions that post a part: its commitment, then the part."""
MIN_CLOCK = Seconds(60)
"""The shortest clock on any chain."""
ONE_SECOND = Seconds(1)
GAME_MOVES = 16
"""Most moves of one side in a game: 5 reveals of a trace, 3 of a graph, 4 of a tensor, one leaf, 2 of partials, and the
first.
"""
CLOCK_STEPS = 4
"""Least number of materialised steps in a clock, so that games on one's own claim cannot lock others' stake for
long.
"""
MERGE_SLOTS = 2
"""Most slot stakes in a merge's stake, so that an account that can work can also merge."""
SLOT_WITNESSES = 2
"""A slot's stake exceeds this multiple of its witnesses' stakes: a worker that convicts itself to slash its witnesses
loses more than half of its own stake.
"""
AUDIT_WINDOWS = 3
"""Number of windows in an audit: witnesses commit, owners publish their traces, witnesses reveal."""
AUDIT_REVEAL_WINDOWS = 2
"""Number of these windows after the commitments."""
LEAVE_PARTS = 2
"""A slot may be given back during the first of this many parts of the join window."""
MAX_WINDOW = Seconds(30 * 86_400)
MAX_LOCK = Wei((1 << 88) - 1)
"""Largest amount that a lock's field holds."""


@dataclass(frozen=True)
class ChainTimes:
    """Times that a deployment promises for its chain; jobs with clocks too short for them are refused."""

    inclusion: Seconds = ONE_SECOND
    """Time in which the chain includes a transaction that is not censored."""
    censor: Seconds = NEVER
    """Longest time for which a transaction can be censored."""

    @property
    def clock_floor(self) -> Seconds:
        """Returns the shortest clock: time to include each move of a game, one of them censored."""
        return Seconds(max(MIN_CLOCK, GAME_MOVES * self.inclusion + self.censor))


def check_params(p: JobParams, unbond_seconds: Seconds, chain: ChainTimes) -> None:
    """Raises the contract's JobInvalid, but names the parameter and its bounds. Twin of JobRules.check."""
    role, windows, pricing = p.roles[0], p.windows, p.prices
    least = max(1, chain.inclusion)
    slot_floor = prices.stake_floor(role.slot_price, pricing.gas_price)
    merge_floor = prices.stake_floor(p.merge.price, pricing.gas_price)
    bond_floor = prices.bond_floor(role.slot_price, max(1, role.inner_steps))
    dearest = prices.dearest_row_bond(pricing.bond, pricing.gas_price, row_leaves(role.row_length))
    answer_seconds = max(least, answer_floor(role.row_length, chain.inclusion))
    bounds: list[tuple[str, bool, str]] = [
        # Jobs of today have one role whose payloads are merged, and start from the previous merge.
        ("roles", len(p.roles) == 1 and role.merged, "one role, and it is merged"),
        ("baseLag", p.schedule.base_lag == 1, "base_lag is 1"),
        ("inbox", role.inbox_role == 0 and role.inbox_lag == 0, "inbox_role and inbox_lag are 0"),
        ("profile", p.spec.profile == 1 and 1 <= p.spec.opset <= 2, "profile must be 1, opset 1 or 2"),
        ("programs", ZERO not in (role.step_program, role.encode_program, p.merge.program), "no program root is zero"),
        (
            "dataset",
            role.dataset_rows > 0 and 0 < role.row_length <= MAX_ROW,
            f"dataset_rows positive, 1 <= row_length <= {MAX_ROW}",
        ),
        ("slots", 0 < role.min_slots <= role.slots <= MAX_SLOTS, f"1 <= min_slots <= slots <= {MAX_SLOTS}"),
        (
            "rounds",
            p.schedule.rounds > 0 and role.inner_steps > 0 and role.inner_steps * p.schedule.rounds <= MAX_STEPS,
            f"rounds and inner_steps positive, their product at most {MAX_STEPS}",
        ),
        ("maxLead", 0 < p.schedule.max_lead <= MAX_LEAD, f"1 <= max_lead <= {MAX_LEAD}"),
        # INVARIANT: a merge's payload half is at least as deep as its base half, or it could not hold it.
        (
            "depths",
            max(p.genesis.shared_depth, role.payload_depth) <= MAX_DEPTH
            and role.carry_depth == p.genesis.shared_depth
            and role.payload_depth + role.slot_depth >= p.genesis.shared_depth,
            f"depths at most {MAX_DEPTH}, carry_depth = shared_depth, payload_depth + ceil(log2 slots) >= shared_depth",
        ),
        *(
            ("windows", least <= seconds <= MAX_WINDOW, f"{least} <= {name}_seconds <= {MAX_WINDOW}")
            for name, seconds in {
                "join": windows.join_seconds,
                "train": role.train_seconds,
                "reveal": role.reveal_seconds,
                "attest": role.attest_seconds,
                "turn": p.merge.turn_seconds,
                "challenge": windows.challenge_seconds,
            }.items()
        ),
        # INVARIANT: who is silent when a reveal, a receipt or a merge is due holds the others' stakes no longer than a
        # challenger may.
        (
            "windows",
            max(role.reveal_seconds, role.attest_seconds, p.merge.turn_seconds) <= windows.challenge_seconds,
            "reveal_seconds, attest_seconds and turn_seconds at most challenge_seconds",
        ),
        # INVARIANT: every game that is open lengthens the defender's clock in the next: many games starve nobody. A
        # clock covers every move of a game on this chain, and its steps are small against it.
        (
            "clocks",
            chain.clock_floor <= windows.clock_seconds <= MAX_WINDOW
            and windows.step_seconds > 0
            and CLOCK_STEPS * windows.step_seconds <= windows.clock_seconds,
            (
                f"{chain.clock_floor} <= clock_seconds <= {MAX_WINDOW} on this chain, "
                f"1 <= step_seconds <= clock_seconds / {CLOCK_STEPS}"
            ),
        ),
        # INVARIANT: unbonding takes longer than a challenge window and both clocks.
        (
            "unbonding",
            windows.challenge_seconds + 2 * windows.clock_seconds <= unbond_seconds,
            f"challenge_seconds + 2 x clock_seconds <= {unbond_seconds}, the vault's unbonding delay",
        ),
        ("gas", 0 < pricing.fee_cap <= prices.MAX_FEE_CAP, f"1 <= fee_cap <= {prices.MAX_FEE_CAP}"),
        # INVARIANT: a lie costs at least ten times what it earns, and more than the gas of its games; a stake covers
        # every fine; who can stake on a slot can stake on a merge.
        (
            "stakes",
            role.slot_stake >= max(1, slot_floor)
            and max(1, merge_floor) <= p.merge.stake <= MERGE_SLOTS * role.slot_stake,
            (
                f"slot_stake >= {max(1, slot_floor)} and merge_stake >= {max(1, merge_floor)}: ten prices, four games' "
                f"gas; merge_stake <= {MERGE_SLOTS} x slot_stake"
            ),
        ),
        # INVARIANT: a false challenge costs at least the step that answers it.
        ("bond", pricing.bond >= max(1, bond_floor), f"bond >= {max(1, bond_floor)}, the price of one inner step"),
        # INVARIANT: stakes and bonds fit the vault's locks: no job can be without challengers.
        (
            "locks",
            max(role.slot_stake, p.merge.stake, pricing.witness_stake, dearest) <= MAX_LOCK,
            "stakes, and the bond with its gas at the cap, below 2^88",
        ),
        # INVARIANT: a witness's stake is at least twenty fees, and two for each round in flight; all stakes on one
        # claim are less than half of what a worker loses that convicts itself to take them along; who was drawn has
        # spoken before the claim can no longer be challenged.
        (
            "witnesses",
            role.witnesses == 0
            or (
                role.witnesses <= MAX_WITNESSES
                and role.witness_fee > 0
                and pricing.witness_stake >= prices.witness_floor(role.witness_fee, p.schedule.max_lead)
                and SLOT_WITNESSES * claim_witnesses(role) * pricing.witness_stake < role.slot_stake
                and least <= windows.audit_seconds <= MAX_WINDOW
                and windows.challenge_seconds
                >= role.reveal_seconds + role.attest_seconds + AUDIT_WINDOWS * windows.audit_seconds
            ),
            (
                f"witnesses <= {MAX_WITNESSES}, fee > 0, {prices.WITNESS_FEES} fees <= stake, {prices.LEAD_FEES} x "
                f"max_lead fees <= stake, {SLOT_WITNESSES} x stake x witnesses / min_slots, rounded up, < slot_stake, "
                "audit_seconds a window, challenge_seconds >= reveal_seconds + attest_seconds + "
                f"{AUDIT_WINDOWS} x audit_seconds"
            ),
        ),
        # INVARIANT: a row that somebody holds can be posted in time, however long it is.
        (
            "answers",
            answer_seconds <= windows.answer_seconds <= MAX_WINDOW,
            f"{answer_seconds} <= answer_seconds <= {MAX_WINDOW}: two transactions for each {PART} leaves of a row",
        ),
        # INVARIANT: a carry that survives a round is public, and as deep as its payload: out2 is a carry quarter. It is
        # zero again before the rounds that may run ahead have passed; 0 alone says that it always is.
        (
            "carry",
            role.carry_period == 0
            or (1 < role.carry_period < p.schedule.max_lead and role.payload_depth == p.genesis.shared_depth),
            "carry_period is 0, or 1 < carry_period < max_lead and payload_depth = shared_depth",
        ),
    ]
    for group, holds, rule in bounds:
        if not holds:
            raise revert("JobInvalid", group, hint=f"required: {rule}")


def claim_witnesses(role: Role) -> int:
    """Returns the most witnesses of one claim."""
    return -(-role.witnesses // max(1, role.min_slots))


def row_leaves(row_length: int) -> int:
    """Returns the most leaves that hold words of one row."""
    return (row_length + LEAF_ELEMENTS - 2) // LEAF_ELEMENTS + 1


def answer_floor(row_length: int, inclusion: Seconds) -> Seconds:
    """Returns the time to post the longest answer: parts one after the other, each with its commitment."""
    return Seconds(PART_TRANSACTIONS * inclusion * (-(-row_leaves(row_length) // PART)))
