"""A market in one process: a real chain, real contracts and numerics, and the programs' own code for every decision.

    court = Court.start(folder)         # deployed and funded, once
    court.reset()                       # as it was then: a job whose round 0 waits for claims
    made = court.claim({0: lying_run})  # the other slots claim honestly
    court.audit_and_play()              # an honest verifier, told nothing, against whoever defends
    court.settle()                      # merge, windows, pay
    court.balance()                     # who ends with what

Workers compute claims with `worker.computing` and choose acts with `worker.decide`'s own order of phases; the verifier
chooses claims with `verifier.decide` and replays them with `lockstep.market.replay`; both sides play from
`lockstep.disputes.player`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from eth_account.signers.local import LocalAccount

from benchmarks.limits import MAX_GAS, MAX_TRANSACTIONS
from lockstep.chain import games
from lockstep.chain.contracts import Call, Contracts
from lockstep.chain.deployment import deploy
from lockstep.chain.devnet import Devnet, Local
from lockstep.chain.events import Event, EventReader
from lockstep.chain.game_table import GameTable
from lockstep.client import JobHandle, Network, connect
from lockstep.disputes.player import GamePlayer, Side
from lockstep.execution import jobs
from lockstep.execution.jobs import ClaimRun, Job, TrainingJob
from lockstep.execution.merging import fetch_payloads, finish
from lockstep.market.held import HeldClaim
from lockstep.market.ledger import ClaimRecord, Ledger, Watcher
from lockstep.market.replay import PublicData, Replay, audit
from lockstep.numerics.arbiter import ReferenceArbiter
from lockstep.protocol.dispute import game, honest, moves
from lockstep.protocol.dispute.game import game_id
from lockstep.protocol.dispute.moves import Finding, Verdict
from lockstep.protocol.jobs import Body, ClaimStatus, JobParams, JobStatus, Phase, Reveal
from lockstep.protocol.market import backing
from lockstep.protocol.market.ids import claim_id, commitment
from lockstep.protocol.market.types import Outcome
from lockstep.protocol.programs.program import Kind, Program
from lockstep.protocol.types import MERGE_SLOT, Address, Cid, ClaimId, Digest, GameId, JobId, Seconds, StateRoot, Wei
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.payload import store_checkpoint
from tests.support import games as games_of_tests
from tests.support import toyjob
from tests.support.memory.devnet import MemoryDevnet
from tests.support.sending import transact
from verifier import decide
from worker.computing import compute
from worker.progress import Material, WorkFolder

WALLET = Wei(1_000 * 10**18)
DEPOSIT = Wei(500 * 10**18)
UNBOND_SECONDS = Seconds(14 * 86_400)
NAMES = ("requester", "worker-0", "worker-1", "worker-2", "aggregator", "verifier", "mallory", "accomplice")
NOWHERE = Cid("bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku")
"""A CID that no store of a test holds."""

LONG: Mapping[str, Any] = {
    "join_seconds": Seconds(600), "train_seconds": Seconds(600), "reveal_seconds": Seconds(600),
    "challenge_seconds": Seconds(86_400), "clock_seconds": Seconds(600), "rounds": 1, "max_lead": 1, "max_fail": 0,
}  # fmt: skip
"""Windows that no test outlasts by accident: every block takes one second of chain time."""

Turn = Callable[[Seconds], moves.Move | None]
"""Makes the move that is due, if it is this player's; disputes.Seat.turn is the honest one."""


@dataclass(frozen=True)
class Where:
    """Where a game ends, or must end; None: not said."""

    t: int | None = None
    op: int | None = None
    """Position in G_t; of an alias: the state's entry."""
    element: int | None = None
    chunk: int | None = None
    rule: str = ""
    """The rule that a refused transaction breaks, or what the finding is about: op, alias, padding."""

    def matches(self, found: Where) -> bool:
        """Whether `found` is here, as far as this says."""
        said = {k: v for k, v in self.__dict__.items() if v not in (None, "")}
        return all(getattr(found, k) == v for k, v in said.items())

    def __str__(self) -> str:
        names = (("t", self.t), ("op", self.op), ("element", self.element), ("chunk", self.chunk))
        told = [f"{name} {value}" for name, value in names if value is not None]
        return ", ".join([*([self.rule] if self.rule else []), *told]) or "-"


@dataclass(frozen=True)
class Spent:
    """One transaction."""

    label: str
    gas: int


@dataclass
class Court:
    """The market of one cheat at a time."""

    folder: Path
    devnet: Local
    contracts: Contracts
    store: DirectoryStore
    accounts: dict[str, LocalAccount]
    _funded: str = ""
    """The snapshot that `reset` returns to."""
    params: JobParams = field(init=False)
    job_id: JobId = field(init=False)
    job: Job = field(init=False)
    spent: list[Spent] = field(default_factory=list)
    held: dict[ClaimId, HeldClaim] = field(default_factory=dict)
    """Every claim as its maker computed it."""
    silent: set[ClaimId] = field(default_factory=set)
    """Claims about which no challenge is answered."""
    owners: dict[int, str] = field(default_factory=dict)
    """Who holds a slot that is not its own worker's."""
    runs: int = 0

    # -- the world

    @staticmethod
    def start(folder: Path) -> Court:
        """Start the chain, deploy, fund everybody, let them stake."""
        return Court.on(Devnet(folder / "chain", block_seconds=0), folder)

    @staticmethod
    def in_memory(folder: Path) -> Court:
        """The same without a process of its own for the chain."""
        return Court.on(MemoryDevnet(arbiter=ReferenceArbiter()), folder)

    @staticmethod
    def on(devnet: Local, folder: Path) -> Court:
        """The market of a chain that has just begun."""
        for method, arguments in (("anvil_autoImpersonateAccount", [True]), ("anvil_setBlockTimestampInterval", [1])):
            devnet.w3.provider.make_request(method, arguments)  # type: ignore[arg-type]
        contracts = Contracts.at(
            devnet.w3, deploy(devnet.w3, devnet.account("deployer"), unbond_seconds=UNBOND_SECONDS)
        )
        accounts = {name: devnet.account(name) for name in NAMES}
        court = Court(folder, devnet, contracts, DirectoryStore(folder / "blocks"), accounts)
        for name in NAMES:
            court.fund(name)
        court._funded = devnet.snapshot()
        return court

    def __post_init__(self) -> None:
        self._first = self.contracts
        self._watcher: Watcher | None = None
        self._table: GameTable | None = None

    def reset(self, **changes: Any) -> None:
        """Forget everything since `start`; then a job (LONG but for `changes`) whose round 0 has drawn its seed."""
        self.forget()
        self.create(**changes)
        self.seal()
        self.spent = []

    def forget(self) -> None:
        """Forget everything since `start`."""
        self.devnet.revert(self._funded)
        self._funded = self.devnet.snapshot()
        self.contracts, self._watcher, self._table = self._first, None, None
        self.spent, self.held, self.silent, self.owners = [], {}, set(), {}
        self.accounts = {name: self.accounts[name] for name in NAMES}

    def create(self, **changes: Any) -> None:
        """The requester's job, loaded and checked as its parties do."""
        self.submit(**changes)
        self.job = jobs.load(self.job_id, self.params, self.store)

    def submit(self, **changes: Any) -> None:
        """The requester's job, whatever its parties would say of it."""
        self.params = toyjob.publish(self.store, **{**LONG, **changes})
        self.send(self.contracts.market.create(self.params, 0, self.params.escrow), "requester")
        self.job_id = list(self.ledger().jobs)[-1]

    def network(self) -> Network:
        """The SDK as the requester uses it, from a home that has sent nothing yet."""
        return connect(
            rpc=self.devnet.url, storage=self.store.url, deployment=self.contracts.addresses,
            account=self.accounts["requester"], home=tempfile.mkdtemp(dir=self.folder),
        )  # fmt: skip

    def hire(self, job: TrainingJob) -> JobHandle:
        """Any job instead, by way of the SDK: quoted, stored, escrowed, loaded and checked as its parties do."""
        net = self.network()
        quote = net.quote(job)
        handle = net.submit(quote, budget=quote.debit)
        self.params, self.job_id, self.job = quote.params, handle.id, handle.parts
        return handle

    def stop(self) -> None:
        """End the chain."""
        self.devnet.stop()

    def fund(self, name: str) -> None:
        """Give an account tokens and let it stake half of them."""
        self.accounts.setdefault(name, self.devnet.account(name))
        token, vault = self.contracts.token, self.contracts.vault
        self.send(token.mint(self.address(name), WALLET), name)
        self.send(token.approve(vault.address, WALLET), name)
        self.send(vault.deposit(DEPOSIT), name)

    def address(self, name: str) -> Address:
        """Of a party."""
        return Address(self.accounts[name].address)

    def name_of(self, address: str) -> str:
        """Whose address it is."""
        return next(n for n, a in self.accounts.items() if a.address == address)

    def owner(self, slot: int) -> str:
        """Who holds a slot."""
        return self.owners.get(slot, f"worker-{slot}")

    # -- sending

    def send(self, call: Call, name: str) -> Any:
        """One transaction, mined; raises the rule that it breaks. Returns the receipt."""
        receipt = transact(self.devnet, call, self.address(name))
        self.spent.append(Spent(call.label, int(receipt["gasUsed"], 16)))
        return receipt

    def refused(self, call: Call, name: str) -> str:
        """The rule by which a transaction is refused; fails if it is not."""
        from lockstep.protocol.errors import LockstepError

        try:
            self.send(call, name)
        except LockstepError as error:
            return error.code.rpartition(".")[2]
        raise AssertionError(f"{call.label} of {name} was not refused")

    # -- reading

    def now(self) -> Seconds:
        """Chain time."""
        block: Any = self.devnet._request("eth_getBlockByNumber", ["latest", False])
        return Seconds(int(block["timestamp"], 16))

    def ledger(self) -> Ledger:
        """What the events say by now."""
        if self._watcher is None:
            self._watcher = Watcher(EventReader(self.devnet.w3, self.contracts.addresses))
        self._watcher.poll()
        return self._watcher.ledger

    def events(self, *names: str) -> list[Event]:
        """Those of these names, in order."""
        reader = EventReader(self.devnet.w3, self.contracts.addresses)
        return [e for e in reader.poll(reader.start()).events if e.name in names]

    def record(self, claim: ClaimId) -> ClaimRecord:
        """A claim that was made public."""
        found = self.ledger().find(claim)
        assert found is not None, "the claim was revealed"
        return found[2]

    def advance(self, seconds: int) -> None:
        """Let chain time pass: one block, `seconds` later."""
        self.devnet._request("evm_setNextBlockTimestamp", [self.now() + max(1, seconds)])
        self.devnet._request("evm_mine", [])

    def phase(self, r: int = 0) -> Phase:
        """A round's, now."""
        return self.contracts.market.phase(self.job_id, r)

    def wait(self, *phases: Phase, r: int = 0) -> None:
        """Let chain time pass until the round is in one of `phases`."""
        for _ in range(64):
            if self.phase(r) in phases:
                return
            self.advance(60)
        raise AssertionError(f"round {r} stays in {self.phase(r)!r}")

    # -- a round

    def seal(self, r: int = 0) -> None:
        """Start a round, have every slot joined by its worker, draw the seed."""
        market = self.contracts.market
        self.send(market.start_round(self.job_id, r), "requester")
        for slot in range(self.params.role.slots):
            self.send(market.join(self.job_id, r, slot), self.owner(slot))
        self.devnet.mine(2)
        self.send(market.seal(self.job_id, r), "requester")

    def run(self, slot: int, r: int = 0) -> ClaimRun:
        """The honest computation of a slot."""
        ledger, public = self.ledger().jobs[self.job_id], PublicData(self.job, self.store)
        base, carried = public.base(ledger, ledger.rounds[r]), public.carried(ledger, ledger.rounds[r], slot)
        return jobs.slot_run(self.job, base, ledger.rounds[r].seed, r, slot, carried)

    def compute(self, run: ClaimRun, lies: bool = False) -> Material:
        """A slot's claim as `worker` computes it: trained, self-checked unless it lies, stored."""
        self.runs += 1
        attempt = self.contracts.market.round(self.job_id, run.round).attempt
        claim = claim_id(self.job_id, run.round, attempt, run.slot)
        folder = WorkFolder(self.folder / "work" / str(self.runs), claim)
        check = None if lies else Random(self.runs)
        return compute(run, attempt, folder, self.store, lambda: None, check).material

    def claim(
        self,
        lies: Mapping[int, ClaimRun] | None = None,
        r: int = 0,
        change: Mapping[int, Callable[[Material], Material]] | None = None,
        absent: Sequence[int] = (),
    ) -> list[ClaimId]:
        """Every slot commits and reveals: the runs in `lies` as they are, all others honestly; `change` edits what a
        slot publishes. Returns the claims' ids by slot."""
        lies, change = lies or {}, change or {}
        made = {}
        for slot in range(self.params.role.slots):
            if slot in absent:
                continue
            run = lies.get(slot) or self.run(slot, r)
            material = change.get(slot, lambda m: m)(self.compute(run, slot in lies))
            self.held[material.claim] = HeldClaim(run, material.roots)
            made[slot] = material
        opened = {slot: reveal_of(m) for slot, m in made.items()}
        for slot, m in made.items():
            digest = commitment(m.claim, self.address(self.owner(slot)), opened[slot])
            self.send(self.contracts.market.commit(self.job_id, r, slot, digest), self.owner(slot))
        if self.phase(r) == Phase.TRAINING:
            # A silent slot has not committed: the others wait until the window is over.
            self.wait(Phase.REVEALING, r=r)
        for slot in made:
            self.send(self.contracts.market.reveal(self.job_id, r, slot, opened[slot]), self.owner(slot))
        return [self.contracts.market.claim_id_of(self.job_id, r, slot) for slot in range(self.params.role.slots)]

    def freeze(self, r: int = 0) -> None:
        """What was revealed is accepted when the window is over."""
        self.wait(Phase.FREEZING, r=r)
        bodies = self.ledger().jobs[self.job_id].rounds[r].bodies
        self.send(self.contracts.market.freeze(self.job_id, r, bodies), "requester")

    def rounds(self, *numbers: int) -> None:
        """Honest rounds, each sealed unless it is, claimed and merged."""
        for r in numbers:
            if self.phase(r) not in (Phase.TRAINING, Phase.REVEALING):
                self.seal(r)
            self.claim(r=r)
            self.merge(r=r)

    def merge(
        self, lie: Callable[[ClaimRun], ClaimRun] | None = None, r: int = 0, backed: int | None = None
    ) -> ClaimId:
        """Freeze, and have whoever's turn it is merge; `lie` makes another run of it. The merger's stake answers for
        `backed` later rounds, or for all that can start on its merge."""
        market = self.contracts.market
        if self.phase(r) not in (Phase.MERGING, Phase.LEAD):
            # Nobody speaks.
            self.freeze(r)
        phase = self.phase(r)
        assert phase in (Phase.MERGING, Phase.LEAD), f"round {r} is {phase.name}: nobody ever merges it"
        while int(market.merger_of(self.job_id, r), 16) == 0:
            self.advance(self.params.merge.turn_seconds)
        merger = self.name_of(market.merger_of(self.job_id, r))
        ledger = self.ledger().jobs[self.job_id]
        public = PublicData(self.job, self.store)
        payloads = fetch_payloads(self.job, self.store, ledger.rounds[r].accepted(self.params.role.slots))
        run = jobs.merge_run(self.job, public.base(ledger, ledger.rounds[r]), payloads, ledger.rounds[r].seed, r)
        merged = finish(lie(run) if lie else run)
        cid = store_checkpoint(self.store, merged.checkpoint)
        rounds = backing.wanted(self.params, r) if backed is None else backed
        self.send(market.merge(self.job_id, r, StateRoot(merged.out), StateRoot(merged.out2), cid, rounds), merger)
        claim = market.claim_id_of(self.job_id, r, MERGE_SLOT)
        self.held[claim] = HeldClaim(merged.run, [merged.root])
        return claim

    def settle(self) -> None:
        """Play the job honestly to its end: rounds merged, windows over, everybody paid."""
        market = self.contracts.market
        while True:
            books = market.job(self.job_id)
            r = books.settled
            if r >= books.started:
                break
            # No claim is final before the windows of its whole carry period are over.
            for k in range(r, books.started if self.params.role.carries else r + 1):
                if self.phase(k) not in (Phase.LEAD, Phase.FINAL, Phase.FAILED):
                    self.merge(r=k)
            if self.phase(r) in (Phase.LEAD, Phase.FAILED):
                self.advance(self.params.windows.challenge_seconds + 1)
                self.send(market.finalize(self.job_id, r), "requester")
        if market.job(self.job_id).status != JobStatus.DONE:
            self.send(market.finish(self.job_id), "requester")

    # -- the verifier

    def audits(self, wrong_only: bool = True) -> dict[ClaimId, Replay]:
        """What an honest verifier finds, from public data alone: the claims that `verifier.decide` names, replayed."""
        ledger, now = self.ledger(), self.now()
        terms = {self.job_id: self.params}
        public, settled, found = PublicData(self.job, self.store), {}, {}
        while candidate := decide.next_claim(list(decide.candidates(ledger, terms)), settled, {}, now):
            record = candidate.record
            settled[record.id] = record.trace_root
            job, round_, _ = ledger.find(record.id) or (None, None, None)
            assert job is not None
            assert round_ is not None
            found[record.id] = audit(public.run_of(job, round_, record), record, self.store)
        return {c: a for c, a in found.items() if not (wrong_only and a.matches)}

    def known(self, claim: ClaimId) -> game.DisputedClaim:
        """What anybody knows of a claim."""
        ledger = self.ledger().jobs[self.job_id]
        ((r, held),) = [(r, c) for r in ledger.all_rounds() for c in (*r.claims.values(), *r.merges) if c.id == claim]
        behind = None if held.is_merge else ledger.carry_behind(r, held.slot, self.params.role.carry_period)
        return games.claim(self.contracts.market, claim, held.body, behind[1].body.words if behind else ())

    def open(self, claim: ClaimId, found: Replay, name: str = "verifier", nonce: int = 0) -> GameId:
        """Open the game that an audit calls for."""
        opening = honest.opening(self.known(claim), found.held, found.published, nonce)
        assert opening is not None, "the claim is wrong"
        return self.begin(opening, name)

    def begin(self, opening: moves.Open, name: str) -> GameId:
        """Open a game as a party says."""
        game = game_id(opening.claim, self.address(name), opening.nonce)
        self.send(games.call(self.contracts.game, opening, game), name)
        return game

    def table(self) -> GameTable:
        """The games as the chain shows them."""
        return GameTable(self.contracts.game, self.contracts.addresses.block, self.contracts.market)

    def seat(self, game: GameId, side: Side, held: Any, name: str) -> GamePlayer:
        """A party at a game, playing as its program does; a court's players read it once."""
        self._table = self._table or self.table()
        return GamePlayer(game, side, held, self._table, lambda call, key: self.send(call, name))

    def challenger(self, game: GameId, held: Any, name: str = "verifier") -> Turn:
        """Who opened a game, playing from what it computed."""
        return self.seat(game, Side.CHALLENGER, held, name).turn

    def accused(self) -> tuple[ClaimId, Replay]:
        """The one claim that an honest verifier finds wrong."""
        ((claim, found),) = self.audits().items()
        return claim, found

    def defender(self, game: GameId) -> Turn:
        """The claimant's seat, with what it computed; a silent one never moves."""
        claim = games.read(self.contracts.game, game).claim
        if claim in self.silent:
            return lambda now: None
        name = self.name_of(games.read(self.contracts.game, game).defender)
        return self.seat(game, Side.DEFENDER, self.held[claim], name).turn

    def play(self, game: GameId, *turns: Turn) -> Verdict:
        """Let the players move in turn until the game is over; where nobody does, a clock runs out and the market's
        own `resolve` ends it."""
        table = self._table or self.table()
        while (state := table.game(game)).phase != moves.GamePhase.CLOSED:
            now = self.now()
            if any(turn(now) is not None for turn in turns):
                continue
            self.advance(state.deadline - now + 1)
            self.send(games.call(self.contracts.game, moves.Resolve(state.standing), game), "requester")
        return state.verdict

    def audit_and_play(self) -> list[GameId]:
        """The honest verifier: audit everything, open a game about each wrong claim, play it to its end, within what a
        game may take."""
        played = []
        for claim, found in self.audits().items():
            before, game = len(self.spent), self.open(claim, found)
            self.play(game, self.defender(game), self.challenger(game, found.held))
            moves_of_game = self.spent[before:]
            assert len(moves_of_game) <= MAX_TRANSACTIONS
            assert sum(move.gas for move in moves_of_game) <= MAX_GAS["float32"]
            played.append(game)
        return played

    def open_at(self, claim: ClaimId, t: int, name: str, nonce: int = 0) -> GameId:
        """A game about a transition, whether it is wrong or not."""
        opening = games_of_tests.open_at(self.known(claim), self.held[claim], t, nonce)
        return self.begin(opening, name)

    # -- the verdict

    def log(self, game: GameId) -> list[moves.GameEvent]:
        """A game's events."""
        return games.log(self.contracts.game, game, self.contracts.addresses.block)

    def verdict(self, game: GameId) -> Verdict:
        """How a game ended."""
        return games.read(self.contracts.game, game).verdict

    def found(self, game: GameId) -> Where:
        """Where a game ended."""
        finding: Finding | None = next((e.finding for e in self.log(game) if isinstance(e, moves.Convicted)), None)
        argued = next((e.t for e in self.log(game) if isinstance(e, moves.Argued)), None)
        if finding is None:
            return Where(t=argued)
        rule = finding.wrong.name.lower()
        if finding.wrong != moves.Wrong.OP:
            return Where(argued, finding.position, rule=rule)
        op = self.program_at(game, finding.t).ops[finding.position]
        chunk = finding.chunk if op.kind == Kind.FOLD and op.chunks > 1 else None
        return Where(finding.t, finding.position, finding.element, chunk, rule)

    def run_behind(self, game: GameId) -> ClaimRun:
        """The computation that a game is about, as its maker has it."""
        return self.held[games.read(self.contracts.game, game).claim].run

    def program_at(self, game: GameId, t: int) -> Program:
        """The Program that a game is about."""
        return self.run_behind(game).program(t)

    @property
    def played(self) -> list[Spent]:
        """The transactions of games."""
        return [s for s in self.spent if s.label.startswith("DisputeGame.")]

    def merger(self) -> str:
        """Who merged round 0, the first time if it was merged again."""
        return self.name_of(self.ledger().jobs[self.job_id].rounds[0].merges[0].worker)

    def handle(self) -> JobHandle:
        """The job as its requester reads it."""
        return self.network().job(self.job_id)

    def convicted(self, claim: ClaimId) -> bool:
        """Whether the market holds the claim for convicted."""
        return self.contracts.market.claim(claim).status == ClaimStatus.CONVICTED

    # -- money

    def wealth(self, name: str) -> int:
        """What an account could take home, but for what is locked."""
        token, vault, who = self.contracts.token, self.contracts.vault, self.address(name)
        return token.balance_of(who) + vault.free(who) + vault.unbonding(who)[0] + vault.credits(who)

    def balance(self, losers: Mapping[str, int] | None = None) -> dict[str, int]:
        """What everybody has gained since `reset`, checked to the last unit.

        `losers`: what stakes and bonds the guilty have lost. Everybody else has what it was paid, and what it won from
        those who challenged it in vain; the requester paid for revealed work and for nothing else; whoever challenged
        lost nothing; of every slashed stake at least half was burned; and the sum of all, with what was burned, is 0.
        """
        losers = losers or {}
        gained = {name: self.wealth(name) - WALLET for name in self.accounts}
        earned = dict.fromkeys(self.accounts, 0)
        events: dict[str, list[Event]] = {name: [] for name in ("Paid", "Opened", "BondTaken", "DutyClosed", "Slashed")}
        for e in self.events(*events):
            events[e.name].append(e)
        paid = [*events["Paid"], *(e for e in events["DutyClosed"] if e.outcome == Outcome.PAID)]
        for e in paid:
            earned[self.name_of(e.account)] += e.amount
        defenders = {e.game: self.name_of(e.defender) for e in events["Opened"]}
        for e in events["BondTaken"]:
            earned[defenders[e.args["key"]]] += e.to_defender
        vault = self.contracts.vault
        burned = vault.credits(vault.read("BURN"))
        assert vault.total_escrow() == 0, "the job is over"
        assert sum(gained.values()) + burned == 0, f"money was made or lost: {gained}, burned {burned}"
        for name, amount in losers.items():
            assert gained[name] == earned[name] - amount, f"{name} lost {earned[name] - gained[name]}, not {amount}"
        for name in self.accounts:
            if name in losers or name == "requester":
                continue
            assert gained[name] >= earned[name], f"{name} is honest and lost {earned[name] - gained[name]}"
            if name.startswith(("worker", "aggregator")):
                assert gained[name] == earned[name], f"{name} gained {gained[name] - earned[name]} beside its pay"
        saved = self._left_out() * self.params.role.slot_price
        assert gained["requester"] >= -sum(e.amount for e in paid) - saved, "the requester pays for revealed work alone"
        for e in events["Slashed"]:
            shared = e.amount - e.owed
            assert 2 * e.burned >= shared, f"of {shared} only {e.burned} were burned"
        return gained

    def _left_out(self) -> int:
        """Claims that nobody convicted, and that the receipts kept from the merge: their price is burned."""
        rounds = self.ledger().jobs[self.job_id].rounds.values()
        claims = [(r, s) for r in rounds if r.phase == Phase.FINAL for s, c in r.claims.items() if not c.convicted]
        return sum(not r.mask >> s & 1 and s not in r.missing for r, s in claims)

    def settle_void(self, prover: str, over: Callable[[], None] = lambda: None) -> None:
        """End a job that was proven invalid, and check who has what: the requester's deposit pays each committed claim
        of an unsettled round and, of what is left, 30 % to the prover; the rest is burned; nobody else gains or
        loses. `over` runs when the job is done, before the money is counted."""
        market = self.contracts.market
        books = market.job(self.job_id)
        assert books.status == JobStatus.VOID
        deposit = books.deposit
        rounds = self.ledger().jobs[self.job_id].rounds
        held = [h for r in range(books.settled, books.started) for h in rounds[r].holders.values()]
        workers = [self.name_of(account) for account, status in held if status >= ClaimStatus.COMMITTED]
        for r in range(books.settled, books.started):
            self.send(market.release(self.job_id, r), "requester")
        self.send(market.finish(self.job_id), "requester")
        over()
        left = deposit - len(workers) * self.params.role.slot_price
        expected = dict.fromkeys(self.accounts, 0)
        for name in workers:
            expected[name] += self.params.role.slot_price
        expected[prover] += left * 30 // 100
        expected["requester"] -= deposit
        assert {name: self.wealth(name) - WALLET for name in self.accounts} == expected
        vault = self.contracts.vault
        assert vault.credits(vault.read("BURN")) == left - left * 30 // 100
        assert vault.total_escrow() == 0


def reveal_of(m: Material, nonce: bytes = bytes(32)) -> Reveal:
    """A claim's opened commitment."""
    body = Body(m.trace_root, StateRoot(m.out), StateRoot(m.out2))
    return Reveal(body, Digest(nonce), m.proof_t, m.trace_cid, m.payload_cid, m.carries)


def published(trace_cid: Cid | None = None, payload_cid: Cid | None = None) -> Callable[[Material], Material]:
    """A claim whose data lies elsewhere than it was put."""
    changes = {k: v for k, v in (("trace_cid", trace_cid), ("payload_cid", payload_cid)) if v is not None}
    return lambda m: replace(m, **changes)


def with_trace(court: Court, m: Material, roots: Sequence[StateRoot]) -> Material:
    """A claim that names other roots of its states, published as it claims."""
    return replace(m, roots=tuple(roots), trace_cid=court.store.put(b"".join(roots)))
