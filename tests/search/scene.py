"""The setting of one history: parties, a job, blocks of uneven spacing, and a record of all calls.

The contracts are the twin's. Signatures are names, made only by the account's player, so that a history takes
milliseconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from lockstep.numerics.arbiter import ReferenceArbiter
from lockstep.protocol import merkle
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import NOTHING, ZERO_ADDRESS, JobParams
from lockstep.protocol.market import job_rules, prices
from lockstep.protocol.market.calls import MAX_UINT, Block, Emitted, MarketCall
from lockstep.protocol.market.job_rules import ChainTimes
from lockstep.protocol.market.state import Deployment, State
from lockstep.protocol.programs.program import I32
from lockstep.protocol.reverts import Reverted
from lockstep.protocol.transition import execute
from lockstep.protocol.types import Address, ClaimId, Digest, JobId, Seconds, Wei
from tests.search import carrying
from tests.support import constant
from tests.support.params import amended, job_params

REQUESTER, AGGREGATOR, *WORKERS, VERIFIER, WITNESS, STRANGER = (
    Address(f"0x{number:040x}") for number in range(0xA0, 0xA9)
)
ACCOUNTS = (REQUESTER, AGGREGATOR, *WORKERS, VERIFIER, WITNESS, STRANGER)
TOKEN, VAULT, MARKET, GAME, VALIDATOR, WITNESSES, AVAILABILITY = (
    Address(f"0x{number:040x}") for number in range(0xC0, 0xC7)
)
COLD, HEIRS = (
    dict(zip(ACCOUNTS, (Address(f"0x{number:040x}") for number in range(first, first + 9)), strict=True))
    for first in (0xB0, 0xD0)
)
"""Owner keys, stored elsewhere, and the keys to which they hand accounts on. No one else has either."""
FUNDS, STAKE = 10**9, 10**8
UNBOND = Seconds(400 * 86_400)
"""A vault's delay in which no history ends. The other possible delay is the least that a job's windows allow."""
START = Seconds(1_700_000_000)
AT_ONCE = Seconds(0)
CARRYING = 0.25
"""Share of histories whose job has a carry."""
DRAINING = 24
"""Number of blocks for which a worker drains."""


def sign(account: Address, digest: bytes) -> bytes:
    """Returns a stand-in for a signature."""
    return bytes.fromhex(account[2:]) + bytes(12) + keccak(digest + account.encode()) + b"\x1b"


def recover(digest: bytes, signature: bytes) -> Address:
    """Returns the signer."""
    account = Address("0x" + signature[:20].hex())
    return account if account in ACCOUNTS and sign(account, digest) == signature else ZERO_ADDRESS


class Hashes(Mapping[int, bytes]):
    """Hashes of all blocks, derived from the seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __getitem__(self, number: int) -> bytes:
        return keccak(f"block {self._seed} {number}".encode())

    def __iter__(self) -> Iterator[int]:
        raise TypeError("without end")

    def __len__(self) -> int:
        raise TypeError("without end")


@cache
def row_of(length: int) -> tuple[bytes, Digest]:
    """Returns the dataset's only row, and its root."""
    data = np.full(length, constant.ROW, np.uint32).tobytes()
    return data, Digest(merkle.tensor_root(I32, (1, length), data))


@dataclass(frozen=True)
class Setting:
    """Parameters of a history."""

    seed: int
    chain: ChainTimes
    params: JobParams
    honest: frozenset[Address]
    """Accounts played by programs; all others are one coalition."""
    row_known: bool
    """True if an honest account has the dataset."""
    mood: str
    """The coalition's main attack."""
    steady: bool
    """True if every block takes as long as the deployment promises; False: less."""
    owned: frozenset[Address] = frozenset()
    """Honest accounts with an owner; the coalition has a copy of their own key."""
    unbond: Seconds = UNBOND
    """The vault's delay."""
    looks: float = 1.0
    """Share of claims that the verifier replays unasked."""
    delay: Seconds = AT_ONCE
    """Time after a claim's reveal at which it does so."""
    restless: bool = False
    """True if honest programs are restarted, and workers drain and return."""

    @property
    def coalition(self) -> tuple[Address, ...]:
        """Returns all other accounts."""
        return tuple(account for account in ACCOUNTS if account not in self.honest)

    def looks_at(self, claim: ClaimId) -> bool:
        """Returns True if the verifier replays a claim unasked."""
        return _share(f"look {self.seed} {claim.hex()}") < self.looks

    def drains(self, account: Address, block: int) -> bool:
        """Returns True if a worker joins nothing for a while."""
        return self.restless and _share(f"drain {self.seed} {account} {block // DRAINING}") < 0.15

    def restarts(self, account: Address, block: int) -> bool:
        """Returns True if a program restarts, with its data on disk."""
        return self.restless and _share(f"restart {self.seed} {account} {block}") < 0.02


def _share(text: str) -> float:
    return int.from_bytes(keccak(text.encode())[:4], "big") / (1 << 32)


# If slots carry, there is one more mood: "carries".
MOODS = ("anything", "lies", "false challenges", "own games", "squatting", "own merge", "voiding", "silence")


def setting_of(seed: int, *, carries: bool | None = None) -> Setting:
    """Draws a setting from the seed: values from the middle and the corners of what JobRules allow.

    `carries` overrides whether the job has a carry.
    """
    d = random.Random(seed)
    chain = ChainTimes(Seconds(d.choice((1, 12))), Seconds(0))
    honest = {a for a in (AGGREGATOR, *WORKERS, WITNESS) if d.random() < 0.5} | {VERIFIER}
    honest |= {REQUESTER} if d.random() < 0.4 else set()
    mood = d.choice(MOODS)
    # An honest requester has its dataset.
    row_known = REQUESTER in honest or d.random() < 0.5
    params, steady = params_of(d, chain), d.random() < 0.5
    # Drawn separately, so that saved histories stay the same.
    apart = random.Random(f"owners {seed}")
    owned = frozenset(account for account in sorted(honest) if apart.random() < 0.4)
    least = Seconds(params.windows.challenge_seconds + 2 * params.windows.clock_seconds)
    unbond = least if apart.random() < 0.75 else UNBOND
    setting = Setting(seed, chain, params, frozenset(honest), row_known, mood, steady, owned, unbond)
    apart = random.Random(f"carries {seed}")
    drawn = apart.random() < CARRYING
    return _carrying(setting, apart) if (drawn if carries is None else carries) else setting


def _carrying(setting: Setting, d: random.Random) -> Setting:
    """Returns the same history with a job whose slots carry."""
    period, witnesses = d.choice((2, 2, 3, 4)), d.choice((0, 1, 1, 2))
    params = amended(
        setting.params, carry_period=period, max_lead=period + d.choice((1, 1, 2)), rounds=d.choice((3, 4, 5, 6)),
        max_fail=d.choice((1, 2, 3)), step_program=carrying.step_program().root, **witnessed(witnesses),
    )  # fmt: skip
    # As late as leaves it a quarter of the window for its games.
    late = Seconds(params.windows.challenge_seconds * 3 // 4)
    looks, delay = d.choice(((1.0, AT_ONCE), (0.5, AT_ONCE), (1.0, late), (0.5, late), (0.5, late), (0.25, late)))
    mood = "carries" if d.random() < 0.6 else setting.mood
    honest = setting.honest | ({WITNESS} if d.random() < 0.6 else set())
    return replace(
        setting, params=params, mood=mood, honest=honest, looks=looks, delay=delay, restless=d.random() < 0.5
    )


def params_of(d: random.Random, chain: ChainTimes) -> JobParams:
    """Returns a job of the constant Programs."""
    slots = d.choice((1, 2, 3))
    row_length = d.choice((1, 1, 1, 40_000))
    witnesses = d.choice((0, 0, 1, 2))
    least = max(1, int(chain.inclusion))
    # As short as the rules allow, or longer.
    clock = d.choice((int(chain.clock_floor), int(chain.clock_floor), 600))
    most = clock // job_rules.CLOCK_STEPS if job_rules.CLOCK_STEPS else int(job_rules.MAX_WINDOW)
    step = d.choice((most, most, max(1, most // 3)))
    answer = max(least, int(job_rules.answer_floor(row_length, chain.inclusion)))
    windows = dict.fromkeys(("reveal_seconds", "attest_seconds", "audit_seconds", "turn_seconds"), 20 * least)
    slot_stake = 1_013
    merge_stake = d.choice((1_019, min(job_rules.MERGE_SLOTS * slot_stake, 10**15)))
    return job_params(
        profile=1, opset=1, spec_digest=keccak(b"spec"), step_program=constant.step_program().root,
        encode_program=constant.encode_program().root, merge_program=constant.merge_program().root,
        genesis_shared=constant.root_of(1), genesis_outer=constant.root_of(2), shared_depth=0, payload_depth=0,
        zero_carry=constant.root_of(constant.CARRY), zero_payload=keccak(b"zero payload"),
        dataset_root=row_of(row_length)[1], dataset_rows=1, row_length=row_length, inner_steps=1,
        rounds=d.choice((1, 2, 3, 4)), slots=slots, min_slots=d.randint(1, slots), max_lead=d.choice((1, 2, 3)),
        max_fail=d.choice((0, 1, 2)), join_seconds=20 * least, train_seconds=20 * least,
        challenge_seconds=200 * least, clock_seconds=clock, step_seconds=step, slot_price=101, merge_price=57,
        slot_stake=slot_stake, merge_stake=merge_stake, bond=153, gas_price=NOTHING, **witnessed(witnesses),
        answer_seconds=answer, fee_cap=10**9, aggregator=d.choice((AGGREGATOR, AGGREGATOR, ZERO_ADDRESS)), **windows,
    )  # fmt: skip


def witnessed(count: int) -> dict[str, int]:
    """Returns a job's parameters for so many witnesses."""
    fee = Wei(11 if count else 0)
    return {"witnesses": count, "witness_fee": fee, "witness_stake": prices.witness_floor(fee, 3) if count else 0}


class JobRefused(Exception):
    """Raised if JobRules refuse the job."""


@dataclass
class Scene:
    """The chain of one history, and public knowledge."""

    setting: Setting
    state: State = field(init=False)
    block: Block = field(init=False)
    job: JobId = field(init=False)
    calls: int = 0
    listeners: list[Callable[[MarketCall, Sequence[Emitted]], None]] = field(default_factory=list)
    trail: list[tuple[Block, MarketCall, str]] = field(default_factory=list)
    """Every call, with the rule that it broke."""

    def __post_init__(self) -> None:
        s = self.setting
        at = Deployment(
            31_337, TOKEN, VAULT, MARKET, GAME, VALIDATOR, WITNESSES, AVAILABILITY, s.unbond, chain=s.chain,
            recover=recover, arbiter=ReferenceArbiter(),
        )  # fmt: skip
        self.state = State.empty(at)
        self.block = Block(1_000, START, Hashes(s.seed), 10**9)
        for account in ACCOUNTS:
            self.do(MarketCall("TestToken", "mint", account, (account, FUNDS)))
            self.do(MarketCall("TestToken", "approve", account, (VAULT, MAX_UINT)))
            self.do(MarketCall("StakeVault", "deposit", account, (STAKE,)))
            if account in s.owned:
                self.do(MarketCall("StakeVault", "setOwner", account, (COLD[account],)))
        error, job = self.do(MarketCall("JobMarket", "create", REQUESTER, (s.params, 1, s.params.escrow)))
        if error:
            raise JobRefused(error)
        self.job = job
        self.trail.clear()

    def do(self, call: MarketCall) -> tuple[str, Any]:
        """Makes one transaction in the present block; returns (broken rule, result)."""
        self.calls += 1
        try:
            self.state, events, returned = execute(self.state, self.block, call)
        except Reverted as broken:
            self.trail.append((self.block, call, broken.rule))
            return broken.rule, None
        self.trail.append((self.block, call, ""))
        for listener in self.listeners:
            listener(call, events)
        return "", returned

    def pass_time(self, seconds: int) -> None:
        """Begins the next block."""
        now = Seconds(self.block.time + seconds)
        self.block = replace(self.block, number=self.block.number + 1, time=now)

    def wealth(self, account: Address) -> int:
        """Returns everything that belongs to the account, its owner and its heir, stakes and bonds included."""
        s = self.state
        locked = sum(lock.amount for lock in s.locks.values() if lock.account == account)
        held = sum(s.balances[key] for key in (account, COLD[account], HEIRS[account]))
        return held + s.free[account] + s.credits[account] + s.unbonding[account].amount + locked
