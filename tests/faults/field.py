"""A market of real processes in which things go wrong on schedule."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.chain import games
from lockstep.chain.devnet import Devnet
from lockstep.chain.events import Event, EventReader
from lockstep.chain.outbox import Outbox
from lockstep.demo.processes import Group, Lie, Process
from lockstep.demo.world import READY_SECONDS, World, build
from lockstep.execution import jobs
from lockstep.execution.jobs import Job
from lockstep.protocol.dispute import moves
from lockstep.protocol.errors import ChainError, NotFoundError, TryLater
from lockstep.protocol.jobs import Phase
from lockstep.protocol.types import Address, GameId, Seconds, Wei
from tests.e2e.test_lasting import Attacker
from tests.e2e.test_worker import Challenger, Market, ledger_of
from tests.faults.schedule import (
    DEAD_SECONDS,
    DOWN_SECONDS,
    FULL_SECONDS,
    LOG_BLOCKS,
    ON_CHAIN,
    PARTIES,
    REORG_BLOCKS,
    SPAN_SECONDS,
    WORKERS,
    Fault,
    Kind,
    Schedule,
)
from tests.support import toyjob
from tests.support.rpc_proxy import RpcProxy

ROUNDS, STEPS = 2, 40
LIAR = "worker-0"
LIMIT_SECONDS = 540.0
POLL_SECONDS = 0.5
CLOCK = 300
"""Of a game, in blocks: a party whose RPC is gone for a minute has most of it left."""
MOST_BLOCKS_APART = 8
"""From a transaction until whoever sent it counts on it here: a reorganisation is shorter."""


def shim(folder: Path) -> Path:
    """The library that is preloaded, compiled."""
    source, target = Path(__file__).with_name("shim.c"), folder / "shim.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(target), str(source), "-ldl"], check=True)
    return target


@dataclass
class Party:
    """One program, started as often as it takes."""

    name: str
    role: str
    command: list[str]
    env: dict[str, str]
    lie: Lie | None = None
    runs: list[Process] = field(default_factory=list)
    dead_until: float | None = None

    @property
    def process(self) -> Process:
        """The latest."""
        return self.runs[-1]

    def named(self, event: str) -> list[dict[str, Any]]:
        """The events of that name, of all runs."""
        return [e for run in self.runs for e in run.named(event)]


class Field:
    """Chain, parties and what is done to them."""

    def __init__(self, folder: Path, schedule: Schedule) -> None:
        self.folder, self.schedule = folder, schedule
        self.library = shim(folder)
        self.devnet = Devnet(folder / "chain")
        self.group = Group(folder / "logs", self._write_down)
        self.parties: dict[str, Party] = {}
        self.proxies: dict[str, RpcProxy] = {}
        self.up_at: dict[str, float] = {}
        self.empty_at: dict[str, float] = {}
        self.told: list[str] = []
        self.opened: list[GameId] = []
        self.attacker: Attacker | None = None

    def __enter__(self) -> Field:
        return self

    def __exit__(self, *_: object) -> None:
        self.group.__exit__()
        for proxy in self.proxies.values():
            proxy.close()
        self.devnet.stop()

    def _write_down(self, name: str, event: dict[str, Any]) -> None:
        """What a party told, beside its log: for whoever looks at a run that went wrong."""
        with (self.folder / "logs" / f"{name}.out").open("a") as told:
            told.write(json.dumps(event) + "\n")

    # -- before

    def prepare(self) -> None:
        """Deploy, start everybody, submit the job."""
        self.world = self._world()
        if self.schedule.log_limit:
            self.devnet.mine(LOG_BLOCKS + 200)
        limit = LOG_BLOCKS if self.schedule.log_limit else None
        for name in ON_CHAIN:
            self.proxies[name] = RpcProxy(self.devnet.url, limit)
            self.world.rpc[name] = self.proxies[name].url
        self._adopt_storage()
        self._start("coordinator", "coordinator", ["coordinator", "up", "--port", "0"])
        url = self.parties["coordinator"].process.wait_for("ready", READY_SECONDS)["url"]
        # It comes back where the others know it.
        port = url.rpartition(":")[2]
        self.parties["coordinator"].command = ["coordinator", "up", "--port", port]
        self._start("verifier", "verifier", ["verifier", "up", "--coordinator", url])
        for i in range(WORKERS):
            self._start(f"worker-{i}", "worker", ["worker", "up", "--max-stake", "all", "--coordinator", url])
        for name in ("verifier", *(f"worker-{i}" for i in range(WORKERS))):
            self.parties[name].process.wait_for("ready", READY_SECONDS)
        self.market = Market(self.folder, self.devnet, self.world.contracts, self.world.store)
        self.job = self._submit()
        if self.schedule.games:
            self.attacker = Attacker(self.market, self.job, Challenger(self.market, "mallory"))
        self.devnet.mine(MOST_BLOCKS_APART)

    def _world(self) -> World:
        names = ["requester", *(name for name in PARTIES if name != "storage")]
        b = self.schedule.block_seconds
        if b > 1:
            self.devnet._request("anvil_setBlockTimestampInterval", [b])
        return build(self.folder, self.group, 0, self.devnet, names, unbond=Seconds(20 * CLOCK * b))

    def _adopt_storage(self) -> None:
        # It was started by `build`, on a port of its own choice: it comes back on the same one.
        process = next(p for p in self.group.processes if p.name == "storage")
        port = self.world.storage_url.split("/")[4]
        command = ["storage", "serve", "--home", str(self.folder / "storage"), "--port", port]
        self.parties["storage"] = Party("storage", "storage", command, {}, runs=[process])

    def _start(self, name: str, role: str, command: list[str]) -> None:
        env = {
            "LD_PRELOAD": str(self.library),
            "LOCKSTEP_SHIM_FULL": str(self._flag(name)),
            "LOCKSTEP_CACHE": str(self.folder / "cache" / name),
        }
        if name == self.schedule.skewed:
            env["LOCKSTEP_SHIM_SKEW"] = str(self.schedule.skew)
        lie: Lie | None = None
        if self.schedule.liar and name == LIAR:
            lie = ("one-ulp", self.schedule.seed)
        party = Party(name, role, command, env, lie)
        party.runs.append(self.world.join(name, role, command, env, lie))
        self.parties[name] = party

    def _submit(self) -> Job:
        b = self.schedule.block_seconds

        def window(blocks: int) -> Seconds:
            return Seconds(blocks * b)

        coordinator = Address(self.world.account("coordinator").address)
        params = toyjob.publish(
            self.world.store, STEPS, rounds=ROUNDS, max_lead=ROUNDS, aggregator=coordinator, min_slots=1,
            join_seconds=window(120), train_seconds=window(240), reveal_seconds=window(240),
            attest_seconds=window(60), merge_seconds=window(120), challenge_seconds=window(400),
            answer_seconds=window(120), clock_seconds=window(CLOCK), step_seconds=window(10),
        )  # fmt: skip
        requester = self.world.account("requester")
        contracts = self.world.contracts
        pays = Wei(params.escrow + params.deposit)
        until = Seconds(self.market.now() + 3600)
        permit = contracts.token.sign_permit(requester, contracts.vault.address, pays, until)
        outbox = Outbox(self.folder / "requester.sqlite", self.devnet.w3, requester)
        try:
            outbox.send(contracts.market.create_with_permit(params, 0, params.escrow, permit), "create")
        finally:
            outbox.close()
        return jobs.load(next(iter(ledger_of(self.market).jobs)), params, self.world.store)

    # -- while it runs

    def run(self) -> None:
        """Until the job is done; raises AssertionError if it does not come to that."""
        began = time.monotonic()
        due = list(self.schedule.faults)
        while (now := time.monotonic() - began) < LIMIT_SECONDS:
            while due and due[0].at <= now:
                self._strike(due.pop(0), now)
            self._mend(now)
            self._watch()
            self._attack()
            if any(e.name == "JobDone" for e in self.events()):
                return
            if not due and now > SPAN_SECONDS and not self._struck() and self._waits_for_time():
                self._advance()
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"seed {self.schedule.seed}: not done after {LIMIT_SECONDS:.0f} s; {self.state()}")

    def events(self) -> list[Event]:
        """All of the chain as it is now: a reorganisation takes some of them back."""
        reader = EventReader(self.devnet.w3, self.world.contracts.addresses)
        return [e for e in reader.poll(reader.start()).events if e.contract != "TestToken"]

    def state(self) -> str:
        """What one wants to know of a run that did not end."""
        books = self.world.contracts.market.job(self.job.id)
        phases = [self.world.contracts.market.phase(self.job.id, r).name for r in range(books.started)]
        return (
            f"{books.status.name}, rounds {phases}, games {len(self.opened)}, told {self.told}, logs {self.group.logs}"
        )

    def _strike(self, fault: Fault, now: float) -> None:
        self.told.append(f"{now:.0f} s {fault.kind.name} {fault.whom}".strip())
        if fault.kind is Kind.KILL:
            party = self.parties[fault.whom]
            # Whoever is dead already stays so.
            if party.dead_until is None:
                os.killpg(party.process.popen.pid, signal.SIGKILL)
                party.process.popen.wait()
                party.dead_until = now + DEAD_SECONDS
        elif fault.kind is Kind.REORG:
            self.devnet._request("anvil_reorg", [REORG_BLOCKS, []])
        elif fault.kind is Kind.DOWN:
            self.proxies[fault.whom].down = True
            self.up_at[fault.whom] = now + DOWN_SECONDS
        else:
            self._flag(fault.whom).touch()
            self.empty_at[fault.whom] = now + FULL_SECONDS

    def _mend(self, now: float) -> None:
        for party in self.parties.values():
            if party.dead_until is not None and party.dead_until <= now:
                party.dead_until = None
                self._again(party)
        for name in [n for n, at in self.up_at.items() if at <= now]:
            self.proxies[name].down = False
            del self.up_at[name]
        for name in [n for n, at in self.empty_at.items() if at <= now]:
            self._flag(name).unlink()
            del self.empty_at[name]

    def _again(self, party: Party) -> None:
        if party.role == "storage":
            party.runs.append(self.group.start(party.name, party.command))
        else:
            party.runs.append(self.world.join(party.name, party.role, party.command, party.env, party.lie))

    def _watch(self) -> None:
        """An operator's service manager starts what has ended; why it did is looked at in the end."""
        for party in self.parties.values():
            if party.dead_until is None and not party.process.running:
                self.told.append(f"{party.name} ended with {party.process.popen.returncode}")
                self._again(party)

    def _struck(self) -> bool:
        return bool(self.up_at or self.empty_at) or any(p.dead_until is not None for p in self.parties.values())

    def _waits_for_time(self) -> bool:
        """Every round stands at its end, nobody but the attacker has a move to make, and every claim was replayed."""
        market, job = self.world.contracts.market, self.job.id
        books = market.job(job)
        if books.started < ROUNDS or self._owed():
            return False
        phases = [market.phase(job, r) for r in range(books.settled, books.started)]
        if not all(p in (Phase.LEAD, Phase.FINAL, Phase.FAILED) for p in phases):
            return False
        audited = {str(e["claim"]).removeprefix("0x") for e in self.parties["verifier"].named("audited")}
        made = {
            e.args["claim"].hex()
            for e in self.events()
            if e.contract == "JobMarket" and e.name in ("Revealed", "Merged")
        }
        return made <= audited

    def _owed(self) -> bool:
        """Whether an honest party has a move to make."""
        resolved = {e.args["game"] for e in self.events() if e.name == "Resolved"}
        opened = {e.args["game"] for e in self.events() if e.name == "Opened"}
        open_games = [games.read(self.world.contracts.game, GameId(g)) for g in opened - resolved]
        mallory = self.attacker.challenger.address if self.attacker is not None else None
        return any(g.phase in moves.DEFENDERS or g.challenger != mallory for g in open_games)

    def _advance(self) -> None:
        params, now = self.job.params, self.market.now()
        books = self.world.contracts.market.job(self.job.id)
        rounds = [self.world.contracts.market.round(self.job.id, r) for r in range(books.settled, books.started)]
        decided = [r for r in rounds if r.phase in (Phase.LEAD, Phase.FAILED)]
        ends = [r.merged_at + params.windows.challenge_seconds + 1 for r in decided]
        clocks = [g.deadline + 1 for g in self._open()]
        if ahead := max([0, *(at - now for at in (*ends, *clocks))]):
            self.told.append(f"time moves on by {ahead} s")
            self.devnet.advance(Seconds(ahead))

    def _open(self) -> list[Any]:
        resolved = {e.args["game"] for e in self.events() if e.name == "Resolved"}
        return [
            games.read(self.world.contracts.game, GameId(e.args["game"]))
            for e in self.events()
            if e.name == "Opened" and e.args["game"] not in resolved
        ]

    # -- the attacker

    def _attack(self) -> None:
        """Opens its games once there are claims, all at once; then points somewhere as long as it may."""
        if self.attacker is None:
            return
        # A reorganisation may take an opening or a pointing back: it tries again, as anybody would.
        try:
            with suppress(ChainError, TryLater, AssertionError, KeyError):
                if not self.opened:
                    self._open_all()
                elif self.attacker.answered(self.opened):
                    self.attacker.point_all(self.opened)
        except NotFoundError:
            self.opened = []

    def _open_all(self) -> None:
        assert self.attacker is not None
        liar = self.world.account(LIAR).address if self.schedule.liar else None
        own = [
            e for e in self.events() if e.contract == "JobMarket" and e.name == "Revealed" and e.args["worker"] != liar
        ]  # fmt: skip
        last = max((e.block for e in own), default=0)
        if len(own) < 2 or self.devnet.w3.eth.block_number < last + MOST_BLOCKS_APART:
            return
        places = [(e.args["round"], e.args["slot"], t) for t in range(STEPS, 0, -1) for e in own]
        self.opened = self.attacker.open(*places[: self.schedule.games])

    def _flag(self, name: str) -> Path:
        return self.folder / f"{name}.full"
