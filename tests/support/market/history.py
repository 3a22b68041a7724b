"""Random histories of the market: calls of all accounts (wander.py), each with the twin's result.

history = History.of(seed).play(60)
history.lines()     # acts of tests/support/recordings.py, which forge repeats on the contracts
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

from eth_abi import encode

from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import word
from lockstep.protocol.market.calls import Block, Emitted, MarketCall
from lockstep.protocol.reverts import Reverted
from lockstep.protocol.types import Address
from tests.support import recordings
from tests.support.market.twin import AT, CONTRACTS, DEPLOYER, KEYS, START, UNBOND, Said, World, blocks
from tests.support.market.wander import Wanderer
from tests.support.memory import abi

STORED = {
    "balances": ("token", "balanceOf"), "free": ("vault", "free"), "credits": ("vault", "credits"),
    "unbonding": ("vault", "unbonding"), "locks": ("vault", "lockOf"), "delegate_of": ("vault", "delegateOf"),
    "owner_of": ("vault", "ownerOf"), "proposed_owner_of": ("vault", "proposedOwnerOf"), "jobs": ("market", "job"),
    "rounds": ("market", "round"), "claims": ("market", "claim"), "barred": ("market", "barred"),
    "rewound": ("market", "rewound"), "enrolled": ("witnesses", "witness"), "lists": ("witnesses", "accounts"),
    "audits": ("witnesses", "audit"), "duties": ("witnesses", "duty"), "demands": ("demands", "demand"),
    "asked": ("demands", "asked"), "defending": ("game", "defending"), "games": ("game", "game"),
}  # fmt: skip
"""Tables of the twin's state, with the views that show their entries."""
SHOWN = {"rounds": ("phase", "mergerOf"), "claims": ("live", "windowOpen", "convictedAt")}
"""Further views of the entries of a table."""
METERED = "games"
"""The table whose entries include gas metered by the chain; shown if there is none."""


@dataclass(frozen=True)
class Act:
    """A call in its block, with the twin's result."""

    block: Block
    call: MarketCall
    said: Said | Reverted


@dataclass
class History(World):
    """A market with all accounts acting at random."""

    dice: random.Random = field(default_factory=lambda: random.Random(0))
    wanderer: Wanderer = field(init=False)
    acts: list[Act] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.wanderer = Wanderer(self.dice, {Address(key.address): key for key in KEYS.values()})

    @classmethod
    def of(cls, seed: int) -> Self:
        """Creates a history in which all accounts have tokens and stakes, and there is a job."""
        history = cls(dice=random.Random(seed))
        for calls in history.wanderer.first_calls(history.state):
            history.mine(calls)
        while not history.state.jobs:
            history.mine(history.wanderer.first_calls(history.state)[3])
        history.job = next(iter(history.state.jobs))
        return history

    def play(self, count: int, look: Callable[[], object] = lambda: None) -> Self:
        """Plays `count` blocks, and calls `look` after each."""
        for _ in range(count):
            self.mine(self.wanderer.calls(self.state, self.block), self._patience())
            look()
        return self

    def _patience(self) -> int:
        """Returns the seconds to the next block: one, or until some window ends."""
        if self.dice.random() < 0.95:
            return 1
        ends = [
            end - self.block.time
            for (job, _), ro in self.state.rounds.items()
            if (p := self.state.params[job])
            for end in (
                ro.join_ends, ro.commit_ends, ro.reveal_ends, ro.attest_ends, ro.merge_opens + p.merge.turn_seconds,
                ro.merged_at + p.windows.challenge_seconds,
            )
            if end > self.block.time
        ]  # fmt: skip
        return max(1, min(ends, default=1) + self.dice.choice((-1, 0, 0, 1)))

    def mine(self, calls: Iterable[MarketCall], seconds: int = 1) -> None:
        """Plays these calls in the next block."""
        self.later(seconds)
        for call in calls:
            self.sends(call)

    def sends(self, call: MarketCall) -> Said | Reverted:
        """Adds one call to the block; returns its result, a refusal included."""
        call = replace(call, data=abi.data_of(call))
        try:
            self.state, said = self.ask(call)
        except Reverted as refusal:
            self.acts.append(Act(self.block, call, refusal))
            return refusal
        self.wanderer.learn(said.events)
        self.acts.append(Act(self.block, call, said))
        return said

    @property
    def refused(self) -> Counter[str]:
        """Counts refusals by broken rule."""
        return Counter(act.said.rule for act in self.acts if isinstance(act.said, Reverted))

    def lines(self) -> Iterator[bytes]:
        """Yields the history and everything stored at its end, in forge's form."""
        yield from deployment()
        now = START
        for act in self.acts:
            yield from mined(now, act.block)
            now = act.block
            failed = isinstance(act.said, Reverted)
            output = abi.reverted(act.said) if isinstance(act.said, Reverted) else abi.returned(
                act.call.contract, act.call.function, act.said.returned)  # fmt: skip
            yield recordings.act(
                recordings.CALL, *when(act.block), sender=act.call.sender, to=AT[act.call.contract], data=act.call.data,
                name=f"{act.call.contract}.{act.call.function}", success=not failed, output=output,
                logs=bytes(32) if isinstance(act.said, Reverted) else logged(act.said.events),
            )  # fmt: skip
        for call in self.questions():
            _, said = self.ask(call)
            yield recordings.act(
                recordings.ASK, *when(now), sender=call.sender, to=AT[call.contract], data=call.data, success=True,
                output=abi.returned(call.contract, call.function, said.returned),
            )  # fmt: skip

    def questions(self) -> Iterator[MarketCall]:
        """Yields a question about everything that is stored or follows from it."""
        for name, (short, function) in STORED.items():
            for key, value in getattr(self.state, name).items():
                if name == METERED and value.spent:
                    continue
                for view in (function, *SHOWN.get(name, ())):
                    yield self.call("poor", f"{short}.{view}", *(key if isinstance(key, tuple) else (key,)))
        yield self.call("poor", "vault.totalEscrow")


def write(folder: Path, seeds: Iterable[int], count: int) -> list[History]:
    """Writes recordings of random histories."""
    made = [History.of(seed).play(count) for seed in seeds]
    for history in made:
        recordings.write(folder, "history", list(history.lines()))
    return made


# -- recordings --------------------------------------------------------------------------------------------------------


@cache
def _creations() -> tuple[bytes, ...]:
    at = AT
    others = [at[name] for name in ("DisputeGame", "Validator", "Witnesses", "Availability")]
    pair = [at["JobMarket"], at["StakeVault"]]
    arguments: dict[str, list[Any]] = {
        "StakeVault": [at["TestToken"], at["JobMarket"], others[0], *others[2:], UNBOND],
        "JobMarket": [at["TestToken"], at["StakeVault"], *others, 1, 0],
        "DisputeGame": [*pair, at["Arbiter"]], "Validator": pair[:1], "Witnesses": pair, "Availability": pair,
    }  # fmt: skip
    made = []
    for nonce, contract in enumerate(CONTRACTS.values()):
        given = arguments.get(contract, [])
        kinds = ["address" if isinstance(value, str) else "uint256" for value in given]
        made.append(
            recordings.creation(f"{contract}.sol:{contract}", encode(kinds, given), at[contract], DEPLOYER, nonce)
        )
    return tuple(made)


def deployment() -> Iterator[bytes]:
    """Yields the creation of all contracts, at the twin's addresses."""
    return iter(_creations())


def mined(before: Block, after: Block) -> Iterator[bytes]:
    """Yields the blocks between two, as far back as a call may look."""
    for block in blocks(before, after):
        yield recordings.act(recordings.BLOCK, *when(block))


def when(block: Block) -> recordings.When:
    """Returns the block's environment."""
    return block.number, block.time, block.base_fee, bytes(keccak(word(block.number - 1)))


def logged(events: Iterable[Emitted]) -> bytes:
    """Returns keccak of the logged events."""
    logs = [(AT[event.contract], *abi.log_of(event)) for event in events]
    return recordings.digest(
        [
            {"address": at, "topics": ["0x" + topic.hex() for topic in topics], "data": "0x" + data.hex()}
            for at, topics, data in logs
        ]
    )
