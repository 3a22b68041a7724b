"""Random histories of a market: each act with what the twin says becomes of it, as calldata that a chain can replay.

`write(path, seeds)` makes one JSON line a history; tests/forge/RoundsReplay.t.sol runs the lines against the contracts
and compares, act by act, acceptance, the error's name and a digest of everything stored.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from eth_abi.abi import encode
from eth_account import Account
from web3 import Web3

from lockstep.chain import artifacts
from lockstep.chain.deployment import create_address
from lockstep.protocol import merkle
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import (
    NO_CLAIM,
    NO_JOB,
    ZERO_ADDRESS,
    Body,
    Claim,
    ClaimStatus,
    Facts,
    JobParams,
    JobStatus,
    Phase,
    Receipt,
    Reveal,
    Round,
    word,
)
from lockstep.protocol.market import ids, state_roots
from lockstep.protocol.market.calls import MAX_UINT, Block, Emitted
from lockstep.protocol.market.job_rules import MAX_WITNESSES
from lockstep.protocol.market.receipts import WITNESS
from lockstep.protocol.market.state import Deployment
from lockstep.protocol.market.types import BURN
from lockstep.protocol.market.views import JUDGED
from lockstep.protocol.reverts import Reverted
from lockstep.protocol.types import MERGE_SLOT, Address, ClaimId, JobId, Seconds, Wei
from tests.support.ledger import Market
from tests.support.params import job_params

CHAIN_ID = 31_337
UNBOND_SECONDS = Seconds(3_600)
START = Block(1_000, Seconds(1_700_000_000))


def actor(number: int) -> Address:
    """The account of a small number, as Solidity's address(uint160(number))."""
    return Web3.to_checksum_address(f"0x{number:040x}")


FORGE = Web3.to_checksum_address("0x7FA9385bE102ac3EAc297483Dd6233D62b3e1496")
"""Where forge puts the test contract: it deploys token, vault and market as its transactions 1, 2 and 3."""
TOKEN, VAULT, MARKET = (create_address(FORGE, nonce) for nonce in (1, 2, 3))
GAME = actor(0x6A3E)
VALIDATOR, WITNESSES, AVAILABILITY = (actor(0x6A40 + i) for i in range(3))
KEYS = {a.address: a for a in (Account.from_key((0x1000 + i).to_bytes(32, "big")) for i in range(8))}
"""Small numbers are keys, there as here."""
ACCOUNTS = tuple(Address(address) for address in KEYS)
REQUESTER, AGGREGATOR, CHALLENGER, STRANGER, *WORKERS = ACCOUNTS


@cache
def _contract(name: str) -> Any:
    return Web3().eth.contract(abi=artifacts.load(name).abi)


@cache
def _selectors() -> dict[str, str]:
    """Error name -> selector."""
    found = {}
    for name in ("JobMarket", "Jobs", "Rounds", "StakeVault"):
        for entry in artifacts.load(name).entries("error").values():
            found[entry["name"]] = "0x" + keccak(artifacts.signature(entry).encode())[:4].hex()
    return found


def recover(digest: bytes, signature: bytes) -> Address:
    """Whose key made the signature."""
    try:
        return Address(Account._recover_hash(digest, signature=signature))
    except ValueError:
        return ZERO_ADDRESS


def witness_of(r: int, i: int) -> Address:
    """What tests/forge/RoundsReplay.t.sol's Beyond answers."""
    return WORKERS[(r + i) % len(WORKERS)]


def missing(claim: ClaimId) -> bool:
    """Likewise: of a claim in four."""
    return claim[31] % 4 == 0


AT = Deployment(
    CHAIN_ID, TOKEN, VAULT, MARKET, GAME, VALIDATOR, WITNESSES, AVAILABILITY, UNBOND_SECONDS, recover=recover
)
FUNDS = 10**12
"""Of each account, in tokens that the vault may pull."""


def market() -> Market:
    """As RoundsReplay sets it up."""
    fresh = Market(at=AT)
    for account in ACCOUNTS:
        fresh.ledger.do("TestToken", "mint", FORGE, account, FUNDS)
        fresh.ledger.do("TestToken", "approve", account, VAULT, MAX_UINT)
    return fresh


@dataclass(frozen=True)
class Act:
    """One call and what became of it."""

    block: Block
    sender: Address
    to: Address
    data: str
    error: str
    """The Solidity error's name; "" when accepted."""
    digest: bytes
    """Of everything stored, after the act; of a view's answer."""
    logs: bytes
    """A running keccak over the events: emitter, topics and data of each."""


@dataclass
class Player:
    """A twin, the acts so far, and the will to act at random but mostly to the point."""

    dice: random.Random
    params: JobParams
    market: Market = field(default_factory=market)
    block: Block = START
    acts: list[Act] = field(default_factory=list)
    games: list[tuple[ClaimId, Address, bytes]] = field(default_factory=list)
    asked: list[ClaimId] = field(default_factory=list)
    """Claims whose carry is demanded, once a demand."""
    job: JobId = NO_JOB
    carries: int = 0
    """Looks at a slot that starts from a carry."""

    # -- acting

    def act(self, sender: Address, function: str, *args: Any) -> str:
        """Does it in the twin, writes it down, returns the error's name."""
        contract, to = ("StakeVault", VAULT) if function in _VAULT else ("JobMarket", MARKET)
        if function == "merge":
            *roots, rounds = (*args, 0)[:5]
            args = (*roots, "checkpoint", rounds)
        error, found, events = "", None, ()
        try:
            if function == "factsOf":
                found = self._facts(*args)
            else:
                self.market.ledger.do(contract, function, sender, *args, block=self.block)
                events = self.market.ledger.events
        except Reverted as broken:
            error = broken.rule
        self._know(function, args, error)
        plain = [_plain(a) for a in args]
        data = _contract(contract).encode_abi(function, args=plain)
        # Of what a view says instead of what is stored: nothing has changed.
        seen = function == "factsOf" and not error
        after = keccak(_words(found)) if seen else digest(self.market, self.job, self.params, self.block)
        self.acts.append(Act(self.block, sender, to, data, error, after, logs_digest(events)))
        return error

    def pass_time(self, seconds: int, blocks: int = 1) -> None:
        """The next act is in a later block."""
        self.block = Block(self.block.number + blocks, Seconds(self.block.time + seconds), BlockHashes())

    def _facts(self, claim: ClaimId, t: int, carried: list[bytes]) -> Facts:
        facts = self.market.facts_of(claim, t, carried)
        steps, depth = facts.round * self.params.role.inner_steps, self.params.genesis.shared_depth
        base = self.market.rounds[self.job, facts.round].base
        self.carries += facts.state_zero != state_roots.slot_zero(base, self.params.role.zero_carry, steps, depth)
        return facts

    def _know(self, function: str, args: tuple[Any, ...], error: str) -> None:
        """The witnesses and the demands are others': what they would answer of a new round or claim."""
        if error:
            return
        if function == "startRound":
            self.market.draw(args[0], args[1], [witness_of(args[1], i) for i in range(MAX_WITNESSES)])
        elif function == "join" and missing(claim := self._claim(args[1], args[2])):
            self.market.miss(claim)

    # -- choosing

    def play(self, length: int) -> None:
        """A whole history: stakes, a job, then `length` acts."""
        for account in (AGGREGATOR, CHALLENGER, *WORKERS):
            self.act(account, "deposit", Wei(self.dice.choice((150, 1_000, 10_000, 10_000))))
        self.job = ids.job_id(CHAIN_ID, MARKET, REQUESTER, 1, self.params)
        self.act(REQUESTER, "create", self.params, 1, Wei(self.params.escrow + self.dice.choice((0, 0, 7, -1))))
        if self.job not in self.market.jobs:
            self.act(REQUESTER, "create", self.params, 1, self.params.escrow)
        for _ in range(length):
            self._step()
            if self.market.jobs[self.job].status == JobStatus.DONE and self.dice.random() < 0.2:
                break

    def _step(self) -> None:
        self._wait()
        luck = self.dice.random()
        choices = list(self._owners() if luck < 0.03 else self._sensible() if luck < 0.93 else self._anything())
        if choices:
            self.act(*self.dice.choice(choices))

    def _wait(self) -> None:
        if self.dice.random() < 0.004:
            return self.pass_time(10, 300)
        if self.dice.random() < 0.05 or self._idle():
            ends = [
                end
                for r in range(self._started)
                for ro in (self.market.rounds[self.job, r],)
                for end in (
                    ro.join_ends,
                    ro.commit_ends,
                    ro.reveal_ends,
                    ro.attest_ends,
                    ro.merge_opens + self.params.merge.turn_seconds,
                    ro.merged_at + self.params.windows.challenge_seconds,
                )
                if end > self.block.time
            ]
            if ends:
                return self.pass_time(min(ends) - self.block.time + self.dice.choice((-1, 0, 0, 1)))
        return self.pass_time(self.dice.choice((0, 0, 0, 1)))

    def _idle(self) -> bool:
        """Whether only time can help: everybody acted, or nothing but a challenge window stands before pay."""
        j = self.market.jobs[self.job]
        phases = {self.market.phase(self.block, self.job, r) for r in range(j.settled, j.started)}
        full = j.started == self.params.schedule.rounds or j.started - j.settled == self.params.schedule.max_lead
        return full and phases == {Phase.LEAD} and not self.games and not self.asked and self.dice.random() < 0.3

    @property
    def _started(self) -> int:
        return self.market.jobs[self.job].started

    def _sensible(self) -> Iterator[tuple[Any, ...]]:
        """What somebody could want to do now."""
        job, j, p = self.job, self.market.jobs[self.job], self.params
        anyone = self.dice.choice(ACCOUNTS)
        before = self.market.rounds.get((job, j.started - 1), Round(Phase.FINAL)).phase
        ahead = (
            j.started < p.schedule.rounds
            and j.started - j.settled < p.schedule.max_lead
            and j.failed <= p.schedule.max_fail
        )
        if j.status == JobStatus.ACTIVE and ahead and before in (Phase.LEAD, Phase.FINAL, Phase.FAILED):
            yield anyone, "startRound", job, j.started
        if j.settled == j.started and self.dice.random() < (0.1 if j.started < p.schedule.rounds else 1):
            yield anyone, "finish", job
        if self.dice.random() < 0.004:
            yield REQUESTER, "cancel", job
        if j.started and self.dice.random() < 0.004:
            yield VALIDATOR, "onInvalid", job, CHALLENGER
        if j.fees_due and self.dice.random() < 0.1:
            yield WITNESSES, "onWitnessed", job, self.dice.choice((WORKERS[0], ZERO_ADDRESS))
        for r in range(p.schedule.rounds):
            yield from self._round_acts(r, anyone)
        for claim, challenger, key in self.games:
            yield from self._verdicts(claim, challenger, key)
        for claim in self.asked:
            shown = self.dice.random() < 0.8
            yield AVAILABILITY, *(("onRejected", claim) if shown else ("onConvicted", claim, 0, [CHALLENGER], []))
        for account in ACCOUNTS:
            if self.market.books.credits[account] and self.dice.random() < 0.1:
                yield account, "withdraw"

    def _round_acts(self, r: int, anyone: Address) -> Iterator[tuple[Any, ...]]:
        job, p, m, d = self.job, self.params, self.market, self.dice
        ro = m.rounds.get((job, r), Round())
        owned = [(s, m.claims[c].worker) for s in range(p.role.slots) if (c := self._claim(r, s)) in m.claims]
        match m.phase(self.block, job, r):
            case Phase.JOINING:
                for s in range(p.role.slots):
                    if self._claim(r, s) not in m.claims:
                        yield self._joiner(r, s), "join", job, r, s
                if owned and d.random() < 0.03:
                    s, worker = self.dice.choice(owned)
                    yield worker, "leave", job, r, s
            case Phase.SEALING:
                if self.block.number <= ro.seed_block and d.random() < 0.9:
                    self.pass_time(1)
                yield anyone, "seal", job, r
            case Phase.TRAINING:
                for s, worker in owned:
                    claim = self._claim(r, s)
                    if m.claims[claim].status != ClaimStatus.JOINED and d.random() < 0.9:
                        continue
                    yield worker, "commit", job, r, s, ids.commitment(claim, worker, self._opened(claim))
            case Phase.REVEALING:
                for s, worker in owned:
                    if m.claims[self._claim(r, s)].status != ClaimStatus.COMMITTED and d.random() < 0.9:
                        continue
                    yield worker, "reveal", job, r, s, self._opened(self._claim(r, s), wrong=d.random() < 0.05)
            case Phase.ATTESTING:
                if p.role.witnesses and not ro.drawn and d.random() < 0.5:
                    yield WITNESSES, "onDrawn", job, r, d.randint(0, p.role.witnesses)
                if d.random() < 0.1:
                    yield AVAILABILITY, "onDemanded", job, r, d.randrange(p.role.slots), d.random() < 0.5
                convicted = {s for s, _ in owned if m.claims[self._claim(r, s)].status == ClaimStatus.CONVICTED}
                speakers = [s for s, _ in owned if s not in convicted or d.random() < 0.1]
                speakers += [WITNESS + i for i in range(ro.witnesses)]
                silent = [who for who in speakers if not ro.spoke >> who & 1 or d.random() < 0.02]
                if silent:
                    some = d.sample(silent, d.randint(1, len(silent)))
                    yield anyone, "attest", job, r, [self._receipt(r, who) for who in some]
            case Phase.FREEZING:
                yield anyone, "freeze", job, r, self._bodies(r)
            case Phase.MERGING:
                merger = m.merger_of(self.block, job, r)
                roots = (keccak(b"out %d %d" % (r, len(self.acts))), keccak(b"out2"))
                if merger != ZERO_ADDRESS:
                    yield (
                        merger,
                        "merge",
                        job,
                        r,
                        *roots,
                        d.choice((0, 1, p.schedule.max_lead - 1, p.schedule.max_lead - 1)),
                    )
                if merger == ZERO_ADDRESS or d.random() < 0.05:
                    yield anyone, "finalize", job, r
            case Phase.LEAD:
                if r + ro.backed < self._started and d.random() < 0.5:
                    yield m.claims[ro.merge_claim].worker, "back", job, r, 1
                if self.block.time >= ro.merged_at + p.windows.challenge_seconds or d.random() < 0.05:
                    yield anyone, "finalize", job, r
            case Phase.VOID:
                yield anyone, "release", job, r
        for claim in [*(self._claim(r, s) for s in range(p.role.slots)), ro.merge_claim]:
            if m.live(claim) and d.random() < 0.12:
                yield GAME, "onOpen", claim, self._body(claim)
        if p.role.carries and r:
            for s, _ in owned:
                yield anyone, "factsOf", self._claim(r, s), 1, self._carried(r, s)

    def _verdicts(self, claim: ClaimId, challenger: Address, key: bytes) -> Iterator[tuple[Any, ...]]:
        if self.market.live(claim):
            verdict = self.dice.choice(("onConvicted", *["onRejected"] * 4))
            yield GAME, verdict, claim, *(self._award(challenger) if verdict == "onConvicted" else ())
        else:
            yield GAME, "unlock", key

    def _award(self, challenger: Address) -> tuple[int, list[Address], list[tuple[Address, int]]]:
        """The step, one to three winners, and refunds within the share that they are paid from or beyond it."""
        d = self.dice
        winners = [challenger, *d.choices(ACCOUNTS, k=d.randrange(3))]
        return d.randrange(3), winners, [(d.choice(ACCOUNTS), d.randrange(30)) for _ in range(d.randrange(3))]

    def _anything(self) -> Iterator[tuple[Any, ...]]:
        """Mostly refused: wrong accounts, wrong phases, wrong numbers."""
        d, job, p = self.dice, self.job, self.params
        who, r, s = d.choice(ACCOUNTS), d.randrange(p.schedule.rounds + 1), d.randrange(p.role.slots + 1)
        claim = self._claim(d.randrange(p.schedule.rounds), d.choice((*range(p.role.slots), MERGE_SLOT)))
        for function in ("startRound", "seal", "finalize", "release"):
            yield who, function, job, r
        yield who, "freeze", job, r, self._bodies(d.randrange(p.schedule.rounds))
        yield who, "freeze", job, r, []
        yield STRANGER, "cancel", job
        yield who, "finish", job
        yield who, "join", job, r, s
        yield who, "leave", job, r, s
        yield who, "commit", job, r, s, keccak(b"any")
        yield who, "reveal", job, r, s, self._opened(claim)
        yield who, "attest", job, r, [self._receipt(r, d.choice((s, WITNESS, 200)))]
        yield d.choice((who, WITNESSES)), "onDrawn", job, r, d.randint(0, 5)
        yield d.choice((who, AVAILABILITY)), "onDemanded", job, r, s, d.random() < 0.3
        yield d.choice((who, VALIDATOR, AVAILABILITY)) if d.random() < 0.05 else who, "onInvalid", job, who
        yield who, "onWitnessed", job, who
        yield who, "merge", job, r, keccak(b"a"), keccak(b"b"), d.randrange(3)
        yield who, "back", job, r, d.randrange(3)
        yield d.choice((who, GAME)), "onOpen", claim, self._body(self._claim(0, 0))
        yield d.choice((who, GAME)), "onConvicted", claim, *self._award(CHALLENGER)
        yield who, "onRejected", claim
        yield who, "takeBond", claim, CHALLENGER, MAX_UINT
        yield who, "withdraw"
        yield who, "requestUnbond", Wei(d.choice((1, 50, 20_000)))
        yield who, "withdrawUnbonded"
        yield who, "deposit", Wei(d.choice((1, 500)))

    def _owners(self) -> Iterator[tuple[Any, ...]]:
        """What an account does about its owner, an owner for its account, and strangers for either."""
        d = self.dice
        who, other = d.choice(ACCOUNTS), d.choice(ACCOUNTS)
        owned = list(self.market.ledger.state.owner_of.items())
        account, owner = d.choice(owned) if owned and d.random() < 0.8 else (who, other)
        offered = self.market.ledger.state.proposed_owner_of[account]
        yield who, "setOwner", d.choice((other, other, ZERO_ADDRESS, VAULT))
        yield owner, "proposeOwner", account, d.choice((other, who, ZERO_ADDRESS))
        yield offered if offered != ZERO_ADDRESS else other, "acceptOwner", account
        yield owner, "requestUnbondFor", account, Wei(d.choice((1, 50, 20_000)))
        yield owner, "withdrawUnbondedFor", account
        yield owner, "withdrawFor", account

    def _claim(self, r: int, slot: int) -> ClaimId:
        ro = self.market.rounds.get((self.job, r), Round())
        return ro.merge_claim if slot == MERGE_SLOT else ids.claim_id(self.job, r, ro.attempt, slot)

    def _opened(self, claim: ClaimId, wrong: bool = False) -> Reveal:
        """A trace that anybody can make up; the commitment and the last state are right unless `wrong`."""
        steps = self.params.role.transitions
        out, out2 = keccak(claim + b"out"), keccak(claim + b"out2")
        leaves = [merkle.leaf(keccak(claim + bytes([t]))) for t in range(steps - 1)]
        levels = merkle.levels([*leaves, merkle.leaf(merkle.node(out, out2))])
        nonce = keccak(claim + b"nonce") if not wrong else bytes(32)
        proof = tuple(merkle.proof(levels, steps - 1))
        return Reveal(Body(levels[-1][0], out, out2), nonce, proof, "trace", "payload", self._carries(claim))

    def _carries(self, claim: ClaimId) -> bool:
        """Mostly True where its owner's claim before it was accepted; now and then where it may not be."""
        c, period = self.market.claims.get(claim, Claim()), self.params.role.carry_period
        if period == 0 or c.round % period == 0:
            return claim[0] < 4
        before = self.market.rounds[self.job, c.round - 1]
        earlier = self.market.claims.get(ids.claim_id(self.job, c.round - 1, before.attempt, c.slot), Claim())
        stood = before.phase == Phase.LEAD and before.mask >> c.slot & 1 and earlier.status != ClaimStatus.VOID
        return claim[0] < (240 if earlier.worker == c.worker and stood else 4)

    def _body(self, claim: ClaimId) -> Body:
        """What a claim said; of a merge what its round keeps."""
        for ro in self.market.rounds.values():
            if ro.merge_claim == claim and claim != NO_CLAIM:
                trace = merkle.leaf(merkle.node(ro.next_shared, ro.next_outer))
                return Body(trace, ro.next_shared, ro.next_outer)
        return self._opened(claim).body

    def bodies(self, r: int) -> list[Body]:
        """Of the revealed slots."""
        held = [self._claim(r, s) for s in range(self.params.role.slots)]
        stored = [c for c in held if c in self.market.claims]
        return [self._body(c) for c in stored if self.market.claims[c].status == ClaimStatus.REVEALED]

    def _bodies(self, r: int) -> list[Body]:
        """The same; now and then one too few."""
        bodies = self.bodies(r)
        return bodies[:-1] if self.dice.random() < 0.03 else bodies

    def _joiner(self, r: int, slot: int) -> Address:
        """Anybody; mostly who had the slot in the round before."""
        before = self.market.claims.get(self._claim(r - 1, slot)) if r else None
        return before.worker if before is not None and self.dice.random() < 0.6 else self.dice.choice(WORKERS)

    def _carried(self, r: int, slot: int) -> list[bytes]:
        """The words of the slot's claim in the round before; now and then those of another."""
        if self.dice.random() < 0.1:
            slot = self.dice.randrange(self.params.role.slots)
        return list(self._body(self._claim(r - 1, slot)).words)

    def _receipt(self, r: int, who: int) -> Receipt:
        """Mostly for everybody, mostly signed by who gives it."""
        d, full = self.dice, (1 << self.params.role.slots) - 1
        mask = d.choice((full, full, full, full, d.randrange(full + 1)))
        ro = self.market.rounds.get((self.job, r), Round())
        claim = self.market.claims.get(self._claim(r, who), Claim()) if who < WITNESS else Claim()
        account = claim.worker if who < WITNESS else witness_of(r, who - WITNESS)
        if account not in KEYS or d.random() < 0.03:
            account = STRANGER
        digest = ids.receipt_hash(CHAIN_ID, MARKET, self.job, r, ro.attempt, who, mask)
        return Receipt(who, mask, bytes(KEYS[account].unsafe_sign_hash(digest).signature))


class BlockHashes(dict[int, bytes]):
    """The hash of block n is keccak(uint256 n), there as here."""

    def __missing__(self, number: int) -> bytes:
        return keccak(word(number))


_VAULT = {
    "deposit", "requestUnbond", "withdrawUnbonded", "withdraw", "lock", "unlock", "takeBond", "setOwner",
    "proposeOwner", "acceptOwner", "requestUnbondFor", "withdrawUnbondedFor", "withdrawFor",
}  # fmt: skip


def _plain(value: Any) -> Any:
    """As the ABI encoder takes it."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, Reveal):
        *said, trace_cid, payload_cid, carries = astuple(value)
        return *said, trace_cid.encode(), payload_cid.encode(), carries
    if isinstance(value, str) and not value.startswith("0x"):
        return value.encode()
    return astuple(value) if isinstance(value, JobParams | Body | Receipt) else value


def digest(market: Market, job: JobId, p: JobParams, block: Block) -> bytes:
    """A running keccak over the ABI words of the job, its rounds and claims, and every balance."""
    parts = [_words(market.jobs[job])]
    for r in range(p.schedule.rounds):
        ro = market.rounds[job, r]
        parts.append(_words(ro) + word(int(market.phase(block, job, r))))
        for slot in (*range(p.role.slots), MERGE_SLOT):
            claim = ro.merge_claim if slot == MERGE_SLOT else ids.claim_id(job, r, ro.attempt, slot)
            stored = market.claims[claim]
            parts.append(_words(stored, status=int(market.status(claim))) + word(int(market.live(claim))))
    books = market.books
    for account in ACCOUNTS:
        held = (books.free[account], books.credits[account], books.unbonding[account].amount)
        parts.append(b"".join(word(amount) for amount in held))
    parts.append(word(books.credits[BURN]) + word(books.total_escrow) + word(books.tokens))
    running = bytes(32)
    for part in parts:
        running = keccak(running + part)
    return running


def logs_digest(events: Iterable[Emitted]) -> bytes:
    """A running keccak over the ABI encoding of every event."""
    running = bytes(32)
    for event in events:
        emitter, topics, data = log_of(event)
        running = keccak(running + word(emitter) + b"".join(topics) + data)
    return running


def log_of(event: Emitted) -> tuple[Address, list[bytes], bytes]:
    """(emitter, topics, data) as the EVM logs them."""
    entry = artifacts.load(event.contract).entries("event")[event.name]
    kinds = [artifacts.abi_type(part) for part in entry["inputs"]]
    assert len(kinds) == len(event.values), f"{event.name}: {event.values}"
    topics, plain = [bytes(keccak(artifacts.signature(entry).encode()))], []
    for part, kind, value in zip(entry["inputs"], kinds, event.values, strict=True):
        if part["indexed"]:
            topics.append(encode([kind], [value]))
        else:
            plain.append((kind, value))
    return _EMITTERS[event.contract], topics, encode([k for k, _ in plain], [v for _, v in plain])


_EMITTERS = {"JobMarket": MARKET, "StakeVault": VAULT, "TestToken": TOKEN}


def _words(value: Any, **instead: int) -> bytes:
    found = (instead.get(f.name, getattr(value, f.name)) for f in fields(value))
    return b"".join(word(w) for v in found for w in (v if isinstance(v, tuple) else (v,)))


def random_params(dice: random.Random) -> JobParams:
    """Small jobs with every shape: one to three slots, odd sums, rounds ahead, with and without aggregator."""
    slots = dice.choice((1, 2, 2, 3, 3))
    root = keccak(b"root")
    price = dice.choice((10, 33))
    shared_depth, carry = dice.choice((0, 1, 3)), dice.choice((0, 1))
    return job_params(
        spec_digest=root, step_program=root, encode_program=root, merge_program=root, dataset_root=root,
        dataset_rows=5, row_length=5, genesis_shared=root, genesis_outer=root, zero_carry=root, zero_payload=root,
        shared_depth=shared_depth,
        payload_depth=shared_depth if carry else 3,
        inner_steps=dice.choice((1, 2, 4)),
        rounds=dice.choice((2, 3, 4)),
        slots=slots,
        min_slots=dice.randint(1, slots),
        max_lead=(lead := dice.choice((1, 2, 3))) + 2 * carry,
        max_fail=dice.choice((0, 1, 2)),
        join_seconds=Seconds(40), train_seconds=Seconds(50), reveal_seconds=Seconds(30), attest_seconds=Seconds(20),
        turn_seconds=Seconds(25), challenge_seconds=Seconds(60), clock_seconds=Seconds(60), step_seconds=Seconds(5),
        slot_price=Wei(price), merge_price=Wei(7),
        slot_stake=Wei(dice.choice((10 * price, 401))), merge_stake=Wei(119), bond=Wei(34),
        aggregator=AGGREGATOR if dice.random() < 0.8 else ZERO_ADDRESS, witnesses=dice.choice((0, 0, 1, 3)),
        audit_seconds=Seconds(3), witness_fee=Wei(2), witness_stake=Wei(43), answer_seconds=Seconds(24), fee_cap=100,
        carry_period=(lead + 1) * carry,
)  # fmt: skip


def history(seed: int, length: int = 100) -> Player:
    """The history of a seed; games are opened, bonds locked and verdicts followed through as the game contract does."""
    dice = random.Random(seed)
    player = GamingPlayer(dice, random_params(dice))
    player.play(length)
    return player


class GamingPlayer(Player):
    """Keeps the game's side in order: a bond behind each open game, gone with the verdict."""

    def act(self, sender: Address, function: str, *args: Any) -> str:
        """As Player's, and what the game does in the same transaction."""
        plain = args[:1] if function == "onRejected" else args
        error = super().act(sender, function, *plain)
        if sender == AVAILABILITY and function in ("onRejected", "onConvicted"):
            # Whatever became of it, what is void needs no answer.
            self.asked.remove(args[0])
            return error
        if function == "onDemanded" and not error and args[3]:
            self.asked.append(self._claim(*args[1:3]))
        if error or function not in ("onOpen", "onConvicted", "onRejected", "unlock"):
            return error
        claim = args[0]
        if function == "onOpen":
            key = keccak(claim + len(self.acts).to_bytes(4, "big"))
            if super().act(GAME, "lock", CHALLENGER, key, self.market.bond_of(self.job)):
                # The game's own transaction would have been undone: here the game is over at once.
                super().act(GAME, "onRejected", claim)
            else:
                self.games.append((claim, CHALLENGER, key))
            return error
        if function == "unlock":
            self.games = [g for g in self.games if g[2] != claim]
            return error
        mine = next((g for g in self.games if g[0] == claim), None)
        if mine is not None:
            self.games.remove(mine)
            if function == "onConvicted":
                super().act(GAME, "unlock", mine[2])
            else:
                super().act(GAME, "takeBond", mine[2], self.market.claims[claim].worker, MAX_UINT)
        return error


def line(player: Player) -> dict[str, Any]:
    """One history as JSON: parallel lists, one entry an act."""
    return {
        "job": "0x" + player.job.hex(),
        "rounds": player.params.schedule.rounds,
        "slots": player.params.role.slots,
        "time": [act.block.time for act in player.acts],
        "number": [act.block.number for act in player.acts],
        "sender": [act.sender for act in player.acts],
        "to": [act.to for act in player.acts],
        "data": [act.data for act in player.acts],
        "error": [_selectors()[act.error] if act.error else "0x00000000" for act in player.acts],
        "logs": ["0x" + act.logs.hex() for act in player.acts],
        "digest": ["0x" + act.digest.hex() for act in player.acts],
    }


def write(path: Path, seeds: Iterable[int], length: int = 100) -> list[Player]:
    """Writes the histories of `seeds`, one JSON line each."""
    players = [history(seed, length) for seed in seeds]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line(player), separators=(",", ":")) + "\n" for player in players))
    return players


def judged(player: Player) -> list[ClaimId]:
    """The claims of a history that can still be convicted."""
    return [claim for claim in player.market.claims if player.market.status(claim) in JUDGED]
