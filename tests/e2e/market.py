"""A market on a real chain with a real store: the toy job, workers played by the test, verifiers as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eth_account.signers.local import LocalAccount

from lockstep.chain import games
from lockstep.chain.contracts import Contracts
from lockstep.chain.deployment import deploy
from lockstep.chain.devnet import Devnet, key_of
from lockstep.chain.events import Event, EventReader
from lockstep.chain.game_table import GameTable
from lockstep.chain.keys import KEYSTORE, create_account
from lockstep.chain.outbox import Outbox
from lockstep.demo.processes import Group, Lie, Process
from lockstep.disputes.player import GamePlayer, Side
from lockstep.execution import jobs
from lockstep.execution.jobs import ClaimRun, Job
from lockstep.execution.merging import base_checkpoint, store_payload
from lockstep.execution.rounds import RoundRecord
from lockstep.market.held import HeldClaim
from lockstep.market.ledger import Watcher
from lockstep.numerics.trace import layout_root
from lockstep.protocol import merkle
from lockstep.protocol.dispute import honest, moves
from lockstep.protocol.dispute.game import Game
from lockstep.protocol.jobs import Body, JobParams, Phase, Reveal
from lockstep.protocol.market import backing
from lockstep.protocol.market.ids import commitment
from lockstep.protocol.types import Address, Cid, ClaimId, Digest, GameId, JobId, Seconds, StateRoot, Wei
from lockstep.storage import ContentStore
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.payload import Checkpoint, store_checkpoint
from tests.support import toyjob
from tests.support.waiting import PATIENCE

WALLET = Wei(1_000 * 10**18)
NOWHERE = Cid("bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku")
"""A CID that no store of a test holds."""


@dataclass
class Worker:
    """A worker that the test plays: it claims what it is told to, and defends it."""

    name: str
    account: LocalAccount
    outbox: Outbox
    held: dict[ClaimId, HeldClaim] = field(default_factory=dict)
    silent: bool = False
    """Whether it answers no challenge."""


@dataclass
class Market:
    """Everything of one test."""

    folder: Path
    devnet: Devnet
    contracts: Contracts
    store: ContentStore
    group: Group
    requester: Outbox
    params: JobParams
    job_id: JobId
    job: Job
    workers: list[Worker]
    records: list[RoundRecord] = field(default_factory=list)
    _defending: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    @staticmethod
    def start(folder: Path, **changes: object) -> Market:
        """Chain, contracts, the toy job on it, three staked workers."""
        devnet = Devnet(folder / "chain")
        group = Group(folder / "logs")
        addresses = deploy(devnet.w3, devnet.account("deployer"))
        addresses.save(folder / "deployment.json")
        contracts = Contracts.at(devnet.w3, addresses)
        store = DirectoryStore(folder / "blocks")
        params = toyjob.publish(store, **{**toyjob.UNHURRIED, **changes})
        requester = Outbox(folder / "requester.sqlite", devnet.w3, devnet.account("requester"))
        workers = []
        for i in range(params.role.slots):
            account = devnet.account(f"worker-{i}")
            workers.append(Worker(f"worker-{i}", account, Outbox(folder / f"worker-{i}.sqlite", devnet.w3, account)))
        market = Market(
            folder, devnet, contracts, store, group, requester, params, JobId(b""), toyjob.load(store), workers
        )
        market._fund([requester, *(w.outbox for w in workers)])
        requester.send(contracts.market.create(params, 0, params.escrow), "create")
        market.job_id = next(iter(market.ledger().jobs))
        market.job = jobs.load(market.job_id, params, store)
        return market

    def stop(self) -> None:
        """End every process and thread of it."""
        self._defending.set()
        for thread in self._threads:
            thread.join()
        self.group.__exit__()
        self.requester.close()
        for worker in self.workers:
            worker.outbox.close()
        self.devnet.stop()

    # -- reading

    def ledger(self) -> Any:
        """What the events say by now."""
        watcher = Watcher(EventReader(self.devnet.w3, self.contracts.addresses))
        watcher.poll()
        return watcher.ledger

    def events(self) -> tuple[Event, ...]:
        """All of them."""
        reader = EventReader(self.devnet.w3, self.contracts.addresses)
        return reader.poll(reader.start()).events

    def now(self) -> Seconds:
        """Chain time."""
        return Seconds(self.devnet.w3.eth.get_block("latest")["timestamp"])

    def games_on(self, claim: ClaimId) -> list[GameId]:
        """Games opened on a claim."""
        return games.opened(self.contracts.game, claim, self.contracts.addresses.block)

    def game(self, game: GameId) -> Game:
        """A game as stored."""
        return games.read(self.contracts.game, game)

    def log(self, game: GameId) -> list[moves.GameEvent]:
        """A game's events."""
        return games.log(self.contracts.game, game, self.contracts.addresses.block)

    def receipts(self, game: GameId) -> list[int]:
        """Gas of every transaction of a game, in order."""
        hashes = dict.fromkeys(e.transaction for e in self.events() if e.args.get("game") == game)
        w3 = self.devnet.w3
        return [int(w3.eth.get_transaction_receipt("0x" + h.hex())["gasUsed"]) for h in hashes]  # type: ignore[arg-type]

    # -- processes

    def home(self, name: str) -> Path:
        """A process's directory with its keystore; funded."""
        home = self.folder / name
        if not home.exists():
            home.mkdir(mode=0o700)
            (home / "password").write_text("correct horse")
            create_account(home / KEYSTORE, "correct horse", key_of(self.devnet.seed, name), work=2)
            self.requester.send(self.contracts.token.mint(self.address(name), WALLET), f"mint/{name}")
        return home

    def address(self, name: str) -> Address:
        """Of a process's account."""
        return Address(self.devnet.account(name).address)

    def arguments(self) -> list[str]:
        """Where the world is."""
        deployment = str(self.folder / "deployment.json")
        return ["--rpc", self.devnet.url, "--storage", self.store.url, "--deployment", deployment]

    def verifier(
        self, name: str = "verifier", lie: Lie | None = None, *options: str, env: dict[str, str] | None = None
    ) -> Process:
        """`lockstep verifier up` in a process of its own; returns when it is ready."""
        home = self.home(name)
        key = ["--home", str(home), "--password-file", str(home / "password")]
        process = self.group.start(name, ["verifier", "up", *options, *self.arguments(), *key], env, lie)
        process.wait_for("ready", PATIENCE)
        return process

    def replay(self, claim: ClaimId, *options: str) -> subprocess.CompletedProcess[str]:
        """`lockstep replay CLAIM`."""
        return self.lockstep("replay", claim.hex(), *self.arguments(), *options)

    def lockstep(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command, run to its end."""
        command = [sys.executable, "-m", "lockstep.cli.main", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)

    # -- a round

    def base(self) -> Checkpoint:
        """What the next round starts from."""
        return base_checkpoint(self.job, self.store, self.records)

    def seal(self, r: int = 0) -> None:
        """Start a round, have every worker join its slot, draw the seed."""
        market = self.contracts.market
        self.requester.send(market.start_round(self.job_id, r), f"start/{r}")
        for slot, worker in enumerate(self.workers):
            worker.outbox.send(market.join(self.job_id, r, slot), f"join/{r}")
        self.devnet.mine(2)
        self.requester.send(market.seal(self.job_id, r), f"seal/{r}")

    def run(self, slot: int, r: int = 0) -> ClaimRun:
        """The honest run of a slot."""
        seed = self.contracts.market.round(self.job_id, r).seed
        return jobs.slot_run(self.job, self.base(), seed, r, slot)

    def claim(
        self,
        runs: list[ClaimRun],
        r: int = 0,
        trace_cids: dict[int, Cid] | None = None,
        payload_cids: dict[int, Cid] | None = None,
    ) -> list[ClaimId]:
        """Every worker commits to its run and reveals it; by slot, where some traces and payloads are said to lie."""
        market, opened, made = self.contracts.market, [], []
        for slot, (worker, run) in enumerate(zip(self.workers, runs, strict=True)):
            claim = market.claim_id_of(self.job_id, r, slot)
            held, reveal = self._reveal(run, (trace_cids or {}).get(slot), (payload_cids or {}).get(slot))
            worker.held[claim] = held
            made.append(claim)
            opened.append(reveal)
            digest = commitment(claim, Address(worker.account.address), reveal)
            worker.outbox.submit(market.commit(self.job_id, r, slot, digest), f"commit/{r}")
        for worker in self.workers:
            worker.outbox.wait(f"commit/{r}")
        for slot, (worker, reveal) in enumerate(zip(self.workers, opened, strict=True)):
            worker.outbox.submit(market.reveal(self.job_id, r, slot, reveal), f"reveal/{r}")
        for worker in self.workers:
            worker.outbox.wait(f"reveal/{r}")
        return made

    def _reveal(self, run: ClaimRun, trace_cid: Cid | None, payload_cid: Cid | None) -> tuple[HeldClaim, Reveal]:
        states = list(run.states())
        roots, final = [root for _, _, root in states], states[-1][1]
        layout, sections = run.program(run.transitions).output_layout, self.params.sections
        out, out2 = (layout_root(layout[s], final[s]) for s in (sections.payload, sections.carried))
        levels = honest.trace_levels(roots)
        proof = tuple(merkle.proof(levels, len(roots) - 1))
        parts = jobs.payload_of(self.job, final), jobs.carry_of(self.job, final)
        payload = payload_cid or store_payload(self.job, self.store, *parts)
        stored = self.store.put(b"".join(roots))
        cid = stored if trace_cid is None else trace_cid
        nonce = Digest(os.urandom(32))
        return HeldClaim(run, roots), Reveal(Body(levels[-1][0], out, out2), nonce, proof, cid, payload)  # type: ignore[arg-type]

    def merge(self, lie: Callable[[ClaimRun], ClaimRun] | None = None, r: int = 0) -> tuple[ClaimId, Worker]:
        """Freeze, and have whoever's turn it is merge; `lie` makes another run of it."""
        market = self.contracts.market
        if market.phase(self.job_id, r) != Phase.MERGING:
            # Nobody speaks: what was revealed is accepted when the window is over.
            self.devnet.advance(self.params.role.attest_seconds)
            bodies = self.ledger().jobs[self.job_id].rounds[r].bodies
            self.requester.send(market.freeze(self.job_id, r, bodies), f"freeze/{r}")
        stored = market.round(self.job_id, r)
        while int(merger := market.merger_of(self.job_id, r), 16) == 0:
            self.devnet.advance(self.params.merge.turn_seconds)
        worker = next(w for w in self.workers if w.account.address == merger)
        ledger = self.ledger().jobs[self.job_id].rounds[r]
        run = self._merge_run(ledger.accepted(self.params.role.slots), stored.seed, r)
        run = lie(run) if lie else run
        final = run.advance(1, run.start)
        checkpoint = jobs.checkpoint_of(self.job, final)
        out, out2 = self.job.checkpoint_roots(checkpoint)
        cid = store_checkpoint(self.store, checkpoint)
        attempt = market.job(self.job_id).attempt
        call = market.merge(self.job_id, r, StateRoot(out), StateRoot(out2), cid, backing.wanted(self.params, r))
        worker.outbox.send(call, f"merge/{r}/{attempt}")
        claim = market.claim_id_of(self.job_id, r)
        worker.held[claim] = HeldClaim(run, [run.root(1, final)])
        return claim, worker

    def _merge_run(self, refs: Any, seed: Any, r: int) -> ClaimRun:
        from lockstep.execution.merging import fetch_payload

        payloads = [None if ref is None else fetch_payload(self.job, self.store, ref) for ref in refs]
        return jobs.merge_run(self.job, self.base(), payloads, seed, r)

    # -- defending

    def defend(self) -> None:
        """From now on every worker answers every game about its claims."""
        thread = threading.Thread(target=self._defend, name="defend", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _defend(self) -> None:
        table = GameTable(self.contracts.game, self.contracts.addresses.block)
        seen = -1
        while not self._defending.wait(0.1):
            head = self.devnet.w3.eth.get_block("latest")
            if head["number"] == seen:
                continue
            seen = head["number"]
            for game in self.ledger().games.values():
                for worker in self.workers:
                    if game.claim in worker.held and not worker.silent:
                        seat = GamePlayer(game.id, Side.DEFENDER, worker.held[game.claim], table, worker.outbox.send)
                        seat.turn(Seconds(head["timestamp"]))

    # -- inside

    def _fund(self, outboxes: list[Outbox]) -> None:
        token, vault = self.contracts.token, self.contracts.vault
        for outbox in outboxes:
            outbox.submit(token.mint(Address(outbox.address), WALLET), "mint", check=False)
            outbox.submit(token.approve(vault.address, WALLET), "approve", check=False)
            outbox.submit(vault.deposit(Wei(WALLET // 2)), "deposit", check=False)
        for outbox in outboxes:
            outbox.wait("deposit")


def wait_for(told: Process, name: str, **fields: Any) -> dict[str, Any]:
    """The first event of that name whose fields are these."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for event in told.named(name):
            if all(event.get(k) == v for k, v in fields.items()):
                return event
        assert told.running, f"{told.name} ended: {told.last_words()}"
        time.sleep(0.1)
    raise AssertionError(f"{told.name} did not tell {name} {fields}; it told {told.events}; {told.last_words()}")


def kill(process: Process) -> None:
    """kill -9."""
    os.kill(process.popen.pid, signal.SIGKILL)
    process.popen.wait()
