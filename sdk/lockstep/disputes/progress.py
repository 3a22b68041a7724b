"""Reads disputes from the chain: every move with its gas, the position reached, the next mover, the payments.

It reads logs, receipts and views of the contracts, without a key; a content store only adds the names of ops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lockstep.base.naming import GAMES_SHOWN, identified
from lockstep.chain import games
from lockstep.chain.events import EventReader, decode_log
from lockstep.disputes.bisection import value_of
from lockstep.disputes.gamelog import VERDICTS, GamePlace, MoveMade, moves_of, place_of
from lockstep.disputes.payments import BOND, Payment, payments_of
from lockstep.disputes.player import Side
from lockstep.execution.jobs import Job
from lockstep.market.ledger import ledger_of
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.game import Game
from lockstep.protocol.dispute.moves import DEFENDERS, GameEvent, GamePhase, Wrong
from lockstep.protocol.errors import LockstepError, NotFoundError, TryLater
from lockstep.protocol.jobs import Claim, JobParams, JobStatus
from lockstep.protocol.programs.program import F32, Op, Program
from lockstep.protocol.types import MERGE_SLOT, Address, ClaimId, GameId, JobId, Seconds, Wei
from lockstep.runtime.party import Head
from lockstep.storage import cid_of_digest
from lockstep.storage.containers import JobSpec, load_program

if TYPE_CHECKING:
    from lockstep.chain.contracts import Contracts
    from lockstep.chain.events import Event
    from lockstep.storage import ContentStore


@dataclass(frozen=True)
class ListedGame:
    """One row in a list of games."""

    id: GameId
    opened: moves.Opened
    claim: Claim
    stored: Game

    @property
    def verdict(self) -> str:
        """The verdict's name, or "open" while the game runs."""
        return VERDICTS.get(self.stored.verdict, "open")

    @property
    def running(self) -> bool:
        """True until the game is closed."""
        return self.stored.phase != GamePhase.CLOSED

    @property
    def mover(self) -> Side | None:
        """The side whose move is due; None once the game is over."""
        if not self.running:
            return None
        return Side.DEFENDER if self.stored.phase in DEFENDERS else Side.CHALLENGER

    def left(self, side: Side, now: Seconds) -> int | None:
        """Returns the seconds on a side's clock; None once the game is over."""
        if not self.running:
            return None
        if side is self.mover:
            return max(0, self.stored.deadline - now)
        return self.stored.left_defender if side is Side.DEFENDER else self.stored.left_challenger

    def late(self, now: Seconds) -> bool:
        """Returns True if the mover's clock has run out: any account may then end the game."""
        return self.running and now > self.stored.deadline

    def to_dict(self, now: Seconds) -> dict[str, Any]:
        """Returns the row as JSON; times are chain time."""
        return {
            "game": self.id.hex(),
            "claim": self.opened.claim.hex(),
            "job": self.claim.job.hex(),
            "round": self.claim.round,
            "slot": "merge" if self.claim.slot == MERGE_SLOT else self.claim.slot,
            "challenger": self.opened.challenger,
            "defender": self.opened.defender,
            "phase": self.stored.phase.name.lower(),
            "mover": None if self.mover is None else self.mover.value,
            "deadline": self.stored.deadline if self.running else None,
            "clock_run_out": self.late(now),
            "seconds_left": {side.value: self.left(side, now) for side in (Side.CHALLENGER, Side.DEFENDER)},
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Dispute(ListedGame):
    """A game with everything that the chain records of it."""

    params: JobParams
    made: tuple[MoveMade, ...]
    place: GamePlace
    op: Op | None
    """Descriptor of the picked op, once a move of the defender has shown it."""
    program: Program | None
    """Program of the disputed step, if a store has it; it has the names of ops."""
    bond: Wei
    stake: Wei | None
    """The claim's current stake; None once it was slashed or unlocked."""
    money: tuple[Payment, ...]

    @property
    def events(self) -> list[GameEvent]:
        """The events of the game's log."""
        return [event for move in self.made for event in move.events]

    @property
    def program_name(self) -> str | None:
        """The name of the disputed Program: "step", "encode" or "merge"."""
        return None if self.place.t is None else program_name(self.claim.slot, self.place.t, self.params)

    @property
    def winner(self) -> Address | None:
        """The account in whose favour the verdict is; None if there is none."""
        resolved = next((e for e in self.events if isinstance(e, moves.Resolved)), None)
        return None if resolved is None or not int(resolved.winner, 16) else resolved.winner

    def to_dict(self, now: Seconds) -> dict[str, Any]:
        """Returns the game as JSON."""
        place, gas = self.place, [move.gas for move in self.made]
        of_op = place.wrong is Wrong.OP
        return super().to_dict(now) | {
            "attempt": self.claim.attempt,
            "transitions": self.claim.transitions,
            "winner": self.winner,
            "bond": str(self.bond),
            "stake": None if self.stake is None else str(self.stake),
            "program": self.program_name,
            "step": place.t,
            "op": self._op_dict(),
            "element": place.element if of_op else None,
            "chunk": place.chunk if of_op else None,
            "dtype": None if self.op is None else "f32" if self.op.dtype == F32 else "i32",
            "claimed_bits": _shown_bits(place.claimed, place.wrong),
            "contract_bits": _shown_bits(place.computed, place.wrong),
            "claimed_value": self.number(place.claimed),
            "contract_value": self.number(place.computed),
            "moves": [move.to_dict() for move in self.made],
            "transactions": len(gas),
            "gas_total": sum(gas),
            "gas_max": max(gas, default=0),
            "money": [payment.to_dict() for payment in self.money],
        }

    def number(self, bits: bytes | None) -> float | int | str | None:
        """Returns a word of the picked op as a number, or as a string if it is not finite, which JSON cannot
        represent.
        """
        if bits is None or self.place.wrong is not Wrong.OP:
            return None
        value = value_of(int.from_bytes(bits[-4:], "big"), self.op)
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    def _op_dict(self) -> dict[str, Any] | None:
        place = self.place
        if place.wrong is None or place.position is None:
            return None
        if place.wrong is not Wrong.OP:
            kind = place.wrong.name.lower()
            return {"index": place.position, "kind": kind, "name": f"{kind} {place.position}"}
        name = None if self.program is None else self.program.name_of(place.position)
        kind_known = self.op if self.program is None else self.program.ops[place.position]
        return {
            "index": place.position,
            "kind": None if kind_known is None else kind_known.kind.name.lower(),
            "name": name,
        }


def program_name(slot: int, t: int, params: JobParams) -> str:
    """Returns the name of the Program of a claim's transition t: "step", "encode" or "merge"."""
    if slot == MERGE_SLOT:
        return "merge"
    return "step" if t <= params.role.inner_steps else "encode"


def _shown_bits(digest: bytes | None, wrong: Wrong | None) -> str | None:
    return None if digest is None or wrong is None else _bits(digest, wrong)


# -- the chain ---------------------------------------------------------------------------------------------------------


@dataclass
class DisputeReader:
    """Reads games from the chain, and caches immutable results."""

    contracts: Contracts
    store: ContentStore | None = None
    """The store from which names of ops are read."""
    _receipts: dict[bytes, Any] = field(default_factory=dict, repr=False)
    _times: dict[int, Seconds] = field(default_factory=dict, repr=False)
    _ops: dict[bytes, Op | None] = field(default_factory=dict, repr=False)
    _params: dict[JobId, JobParams] = field(default_factory=dict, repr=False)
    _programs: dict[bytes, Program | None] = field(default_factory=dict, repr=False)

    @property
    def first_block(self) -> int:
        """The block in which the contracts were deployed."""
        return self.contracts.addresses.block

    def head(self) -> Head:
        """The latest block."""
        block = self.contracts.game.w3.eth.get_block("latest")
        return Head(int(block["number"]), Seconds(block["timestamp"]))

    def now(self) -> Seconds:
        """Current chain time."""
        return self.head().time

    def find(self, text: str) -> GameId:
        """Returns the game whose id begins with these hex digits. Raises UsageError, NotFoundError."""
        opened = {entry.game for entry in games.all_opened(self.contracts.game, self.first_block)}
        return GameId(identified(text, opened, "game", GAMES_SHOWN))

    def find_job(self, text: str) -> JobId:
        """Returns the job whose id begins with these hex digits. Raises UsageError, NotFoundError."""
        return ledger_of(EventReader(self.contracts.game.w3, self.contracts.addresses)).job_named(text)

    def require_job(self, job: JobId) -> None:
        """Raises NotFoundError if there is no such job."""
        if self.contracts.market.job(job).status == JobStatus.NONE:
            raise NotFoundError(f"no job {job.hex()}", hint="check the id and the deployment")

    def rows(self, job: JobId | None = None, *, ended: bool = False) -> list[ListedGame]:
        """Returns games in the order of their opening: running ones or all, of one job or of all. Raises
        NotFoundError."""
        market, rows = self.contracts.market, []
        if job is not None:
            self.require_job(job)
        for entry in games.all_opened(self.contracts.game, self.first_block):
            opened = entry.event
            assert isinstance(opened, moves.Opened), "asked for by its topic"
            if not ended and games.verdict(self.contracts.game, entry.game) is not moves.Verdict.NONE:
                continue
            stored = games.read(self.contracts.game, entry.game, entry.block)
            claim = market.claim(opened.claim)
            if job is None or claim.job == job:
                rows.append(ListedGame(entry.game, opened, claim, stored))
        return rows

    def read(self, game: GameId) -> Dispute:
        """Returns a game with all recorded data. Raises NotFoundError, or TryLater if the chain changed meanwhile."""
        stored = games.read(self.contracts.game, game, self.first_block)
        entries = games.entries(self.contracts.game, game, self.first_block)
        opened = next((e.event for e in entries if isinstance(e.event, moves.Opened)), None)
        if opened is None:
            raise _changed()
        claim = self.contracts.market.claim(opened.claim)
        op = self._picked_op(entries)
        made = tuple(self._metered(move) for move in moves_of(entries, claim.transitions, op))
        place = place_of([entry.event for entry in entries])
        params = self.params(claim.job)
        money = self._money(game, opened, entries)
        lock = self.contracts.vault.lock_of(opened.claim)
        return Dispute(
            game, opened, claim, stored, params, made, place, op, self._program(claim, place, params),
            next((p.amount for p in money if p.what == BOND), Wei(0)), None if lock is None else lock.amount,
            tuple(money),
        )  # fmt: skip

    def params(self, job: JobId) -> JobParams:
        """Returns a job's parameters."""
        if job not in self._params:
            self._params[job] = self.contracts.market.params(job)
        return self._params[job]

    def _metered(self, move: MoveMade) -> MoveMade:
        receipt = self._receipt(move.transaction)
        return replace(
            move, time=self._time(move.block), gas=int(receipt["gasUsed"]), sender=Address(receipt["from"])
        )  # fmt: skip

    def _receipt(self, transaction: bytes) -> Any:
        from web3.exceptions import TransactionNotFound

        known = self._receipts.get(transaction)
        if known is None:
            try:
                known = self.contracts.game.w3.eth.get_transaction_receipt("0x" + transaction.hex())  # type: ignore[arg-type]
            except TransactionNotFound as error:
                raise _changed() from error
            self._receipts[transaction] = known
        return known

    def _time(self, block: int) -> Seconds:
        from web3.exceptions import BlockNotFound

        if block not in self._times:
            try:
                self._times[block] = Seconds(self.contracts.game.w3.eth.get_block(block)["timestamp"])
            except BlockNotFound as error:
                raise _changed() from error
        return self._times[block]

    def _picked_op(self, entries: Sequence[games.LoggedEvent]) -> Op | None:
        """Returns the picked op's descriptor, which the defender's transaction contains and the log does not."""
        shown = next((e.transaction for e in entries if isinstance(e.event, moves.TensorRevealed)), None)
        if shown is None:
            return None
        if shown not in self._ops:
            self._ops[shown] = self._descriptor(shown)
        return self._ops[shown]

    def _descriptor(self, transaction: bytes) -> Op | None:
        """Decodes the descriptor from a transaction's call data; None if the move went through another contract."""
        from eth_abi.exceptions import DecodingError
        from web3.exceptions import Web3Exception

        game = self.contracts.game
        try:
            sent = game.w3.eth.get_transaction("0x" + transaction.hex())  # type: ignore[arg-type]
            return Op.decode(game.arguments_of(bytes(sent["input"]))["descriptor"])
        except (Web3Exception, DecodingError, ValueError, KeyError, LockstepError):
            return None

    def _program(self, claim: Claim, place: GamePlace, params: JobParams) -> Program | None:
        if self.store is None or place.t is None or place.wrong is not Wrong.OP:
            return None
        name = program_name(claim.slot, place.t, params)
        roots = {"step": params.role.step_program, "encode": params.role.encode_program, "merge": params.merge.program}
        if roots[name] not in self._programs:
            try:
                block = self.store.fetch_block(cid_of_digest(params.spec.digest, "dag-cbor"))
                spec = JobSpec.decode(block, params.spec.digest)
                self._programs[roots[name]] = load_program(self.store, spec.programs[name], roots[name])
            except (LockstepError, KeyError):
                # Names are optional: everything else comes from the chain.
                self._programs[roots[name]] = None
        return self._programs[roots[name]]

    def _money(self, game: GameId, opened: moves.Opened, entries: Sequence[games.LoggedEvent]) -> list[Payment]:
        """Returns the vault payments of the game's first and last transactions."""
        ends = dict.fromkeys(e.transaction for e in entries if isinstance(e.event, moves.Opened | moves.Resolved))
        vault, found = self.contracts.addresses.vault.lower(), []
        for transaction in ends:
            for entry in self._receipt(transaction)["logs"]:
                if entry["address"].lower() == vault:
                    event = decode_log(entry, "StakeVault", Seconds(0))
                    if event is not None:
                        found += payments_of(event, game, opened)
        return found


def _changed() -> TryLater:
    return TryLater("the chain was reorganised while it was read", hint="no action is needed: ask again")


# -- what the demo reports ---------------------------------------------------------------------------------------------


def game_reports(contracts: Contracts, events: Sequence[Event], job: Job) -> list[dict[str, Any]]:
    """Returns a report on every game of the log: the position that it reached, and its gas."""
    opened = [e for e in events if e.name == "Opened" and e.contract == "DisputeGame"]
    return [_game_report(contracts, GameId(e.args["game"]), ClaimId(e.args["claim"]), events, job) for e in opened]


def _game_report(
    contracts: Contracts, game: GameId, claim_id: ClaimId, events: Sequence[Event], job: Job
) -> dict[str, Any]:
    claim = contracts.market.claim(claim_id)
    hashes = list(dict.fromkeys(e.transaction for e in events if e.args.get("game") == game))
    receipts = [contracts.game.w3.eth.get_transaction_receipt("0x" + h.hex()) for h in hashes]  # type: ignore[arg-type]
    gas = [int(r["gasUsed"]) for r in receipts]
    log = games.log(contracts.game, game, contracts.addresses.block)
    stored = games.read(contracts.game, game, contracts.addresses.block)
    report: dict[str, Any] = {
        "game": game.hex(),
        "claim": claim_id.hex(),
        "round": claim.round,
        "slot": claim.slot,
        "program": None,
        "step": None,
        "op": None,
        "element": None,
        "chunk": None,
        "claimed_bits": None,
        "contract_bits": None,
        "transactions": len(hashes),
        "gas_total": sum(gas),
        "gas_max": max(gas, default=0),
        "verdict": VERDICTS.get(stored.verdict, "open"),
    }
    return report | _place(log, claim, job)


def _place(log: Sequence[GameEvent], claim: Claim, job: Job) -> dict[str, Any]:
    """Returns the transition in dispute and, if a proof decided the game, its finding."""
    place = place_of(log)
    if place.t is None:
        return {}
    inner_steps = job.params.role.inner_steps
    out: dict[str, Any] = {"step": place.t, "program": job.programs.name_of(claim.slot, place.t, inner_steps)}
    convicted = next((e for e in log if isinstance(e, moves.Convicted)), None)
    if convicted is None:
        return out
    finding = convicted.finding
    return out | {
        "op": _op(job.programs.of(claim.slot, place.t, inner_steps), finding),
        "element": finding.element if finding.wrong is Wrong.OP else None,
        "chunk": finding.one_chunk if finding.wrong is Wrong.OP else None,
        "claimed_bits": _bits(finding.claimed_bits, finding.wrong),
        "contract_bits": _bits(finding.contract_bits, finding.wrong),
    }


def _op(program: Program, finding: moves.Finding) -> dict[str, Any]:
    if finding.wrong is not Wrong.OP:
        kind = finding.wrong.name.lower()
        return {"index": finding.position, "kind": kind, "name": f"{kind} {finding.position}"}
    kind = program.ops[finding.position].kind.name.lower()
    return {"index": finding.position, "kind": kind, "name": program.name_of(finding.position)}


def _bits(digest: bytes, wrong: Wrong) -> str:
    return "0x" + (digest[-4:] if wrong is Wrong.OP else digest).hex()
