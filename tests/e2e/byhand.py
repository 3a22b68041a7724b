"""A market in one folder whose workers the test drives by hand: Anvil, contracts, a store, real programs beside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from eth_account.signers.local import LocalAccount

from lockstep.chain.contracts import Contracts
from lockstep.chain.deployment import deploy
from lockstep.chain.devnet import Devnet, key_of
from lockstep.chain.keys import create_account
from lockstep.chain.outbox import Outbox
from lockstep.demo.processes import Lie, command
from lockstep.execution import jobs
from lockstep.execution.jobs import Job, payload_of, slot_run, trace_root
from lockstep.execution.merging import fetch_payload, load_checkpoint, merge_round, store_payload
from lockstep.execution.rounds import Payload
from lockstep.protocol import merkle
from lockstep.protocol.jobs import Body, Phase, Receipt, Reveal
from lockstep.protocol.market.ids import claim_id, commitment, job_id
from lockstep.protocol.types import Address, Cid, ClaimId, Digest, Seconds, Seed, StateRoot, Wei
from lockstep.runtime.identity import NodeKey
from lockstep.storage import ContentStore, open_store
from lockstep.storage.payload import store_checkpoint
from tests.support import toyjob
from tests.support.advancing import Passing
from tests.support.waiting import PATIENCE, wait

WALLET = Wei(1_000 * 10**18)
STAKE = Wei(200 * 10**18)
PASSWORD = "correct horse"


@dataclass
class Process:
    """A running `lockstep` program, its stdout read as events."""

    popen: subprocess.Popen[str]
    log: Path
    out: Path

    @property
    def events(self) -> list[dict[str, Any]]:
        """Everything that it printed so far."""
        lines = self.out.read_text().splitlines()
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    @property
    def envelope(self) -> dict[str, Any]:
        """What a command with --json printed."""
        found: dict[str, Any] = json.loads(self.out.read_text())
        return found

    def named(self, event: str) -> list[dict[str, Any]]:
        """The events of that name."""
        return [e for e in self.events if e.get("event") == event]

    def wait_for(self, event: str) -> dict[str, Any]:
        """The first event of that name."""
        wait(lambda: bool(self.named(event)) or self.popen.poll() is not None, f"event {event}")
        assert self.named(event), f"ended with {self.popen.poll()}: {self.log.read_text()[-2000:]}"
        return self.named(event)[0]

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.popen.terminate()
        return self.popen.wait(PATIENCE)

    def leave(self) -> int:
        """SIGTERM twice: whatever is at stake; returns the exit code."""
        self.popen.terminate()
        time.sleep(0.5)
        return self.stop()

    def kill(self) -> list[psutil.Process]:
        """SIGKILL to the parent alone; returns the children that it had."""
        children = psutil.Process(self.popen.pid).children(recursive=True)
        os.kill(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        return children


@dataclass
class Market:
    """Everything that stands before a coordinator starts."""

    folder: Path
    devnet: Devnet
    contracts: Contracts
    store: ContentStore
    passing: Passing
    workers: list[Worker] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)

    @staticmethod
    def build(folder: Path, workers: int = 3) -> Market:
        """Start the chain, deploy, fund a coordinator, a requester and workers (who stake)."""
        devnet = Devnet(folder / "chain")
        (folder / "blocks").mkdir()
        addresses = deploy(devnet.w3, devnet.account("deployer"), unbond_seconds=Seconds(3600))
        addresses.save(folder / "deployment.json")
        contracts = Contracts.at(devnet.w3, addresses)
        passing = Passing(devnet, contracts)
        passing.start()
        market = Market(folder, devnet, contracts, open_store(f"dir://{folder}/blocks"), passing)
        names = ["coordinator", "requester", "verifier", *(f"worker{i}" for i in range(workers))]
        market.fund(*names)
        market.workers = [Worker(market, name, slot) for slot, name in enumerate(names[3:])]
        return market

    def close(self) -> None:
        """End every process."""
        for process in self.processes:
            if process.popen.poll() is None:
                children = process.kill()
                psutil.wait_procs(children, timeout=PATIENCE)
        for worker in self.workers:
            worker.outbox.close()
        self.passing.stop()
        self.devnet.stop()

    def coordinator(self, lie: Lie | None = None) -> Process:
        """Start `lockstep coordinator up` in its home, and wait until it serves."""
        return self.serve("coordinator", ["coordinator", "up", "--port", "0"], lie)

    def serve(self, name: str, arguments: list[str], lie: Lie | None = None) -> Process:
        """Start a program of the market in its home, and wait until it serves."""
        home = self.folder / name
        if not home.exists():
            create_account(home / "keystore.json", PASSWORD, key_of(0, name), work=2)
            (home / "password").write_text(PASSWORD)
        deployment, password = str(self.folder / "deployment.json"), str(home / "password")
        where = ["--rpc", self.devnet.url, "--storage", self.store.url, "--home", str(home)]
        where += ["--deployment", deployment, "--password-file", password]
        process = self.start(name, [*arguments, *where], lie)
        process.wait_for("ready")
        return process

    def start(self, name: str, arguments: list[str], lie: Lie | None = None) -> Process:
        """Start a `lockstep` command."""
        number = len(self.processes)
        out, log = self.folder / f"{name}{number}.out", self.folder / f"{name}{number}.log"
        with out.open("w") as stdout, log.open("w") as stderr:
            popen = subprocess.Popen(
                command(arguments, lie),
                stdout=stdout,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        process = Process(popen, log, out)
        self.processes.append(process)
        return process

    def submit(self, **changes: Any) -> Job:
        """Publish the toy job and create it, the coordinator its aggregator."""
        aggregator = Address(self.devnet.account("coordinator").address)
        params = toyjob.publish(self.store, aggregator=aggregator, **{**toyjob.UNHURRIED, **changes})
        requester = self.devnet.account("requester")
        outbox = Outbox(self.folder / "requester.sqlite", self.devnet.w3, requester)
        token, vault, market = self.contracts.token, self.contracts.vault, self.contracts.market
        permit = token.sign_permit(
            requester, vault.address, Wei(params.escrow + params.deposit), Seconds(self.now() + 3600)
        )
        outbox.send(market.create_with_permit(params, 1, params.escrow, permit), "create")
        outbox.close()
        made = job_id(self.contracts.addresses.chain_id, market.address, Address(requester.address), 1, params)
        return jobs.load(made, params, self.store)

    def now(self) -> Seconds:
        """Chain time."""
        return Seconds(self.devnet.w3.eth.get_block("latest")["timestamp"])

    def phase(self, job: Job, r: int) -> Phase:
        """A round's phase now."""
        return self.contracts.market.phase(job.id, r)

    def wait_phase(self, job: Job, r: int, *phases: Phase) -> None:
        """Wait until the round stands in one of `phases`."""
        wait(lambda: self.phase(job, r) in phases, f"round {r} in {phases}, is {self.phase(job, r)!r}")

    def fund(self, *names: str) -> None:
        """Tokens for parties of the test's own."""
        outbox = Outbox(self.folder / "deployer.sqlite", self.devnet.w3, self.devnet.account("deployer"))
        token = self.contracts.token
        outbox.send_all([(f"mint/{n}", token.mint(Address(self.devnet.account(n).address), WALLET)) for n in names])
        outbox.close()

    def play_round(self, job: Job, r: int, base: jobs.Checkpoint) -> None:
        """All workers join, train, commit, reveal and say what they have; whoever is to seal seals."""
        self.claim_round(job, r, base)
        for worker in self.workers:
            worker.attest(job, r)

    def claim_round(self, job: Job, r: int, base: jobs.Checkpoint) -> None:
        """All workers join, train, commit and reveal; whoever is to seal seals."""
        if self.contracts.market.job(job.id).started <= r:
            with contextlib.suppress(Exception):
                self.workers[0].send(self.contracts.market.start_round(job.id, r), f"start/{r}")
        self.wait_phase(job, r, Phase.JOINING)
        for worker in self.workers:
            worker.join(job, r)
        self.wait_phase(job, r, Phase.TRAINING)
        for worker in self.workers:
            worker.commit(job, r, base)
        self.wait_phase(job, r, Phase.REVEALING)
        for worker in self.workers:
            worker.reveal(job, r)
        self.wait_phase(job, r, Phase.ATTESTING)

    def merge_by_turn(self, job: Job, r: int) -> None:
        """The slot owner whose turn it is merges the round, from the workers' own payloads."""
        stored = self.contracts.market.round(job.id, r)
        merger = self.contracts.market.merger_of(job.id, r)
        refs = [
            Payload(Cid(o.payload_cid), Digest(o.body.out), Digest(o.body.out2))
            for o in (w.claims[r][0] for w in self.workers)
        ]
        payloads = [fetch_payload(job, self.store, ref) if stored.mask >> s & 1 else None for s, ref in enumerate(refs)]
        merged = merge_round(job, job.genesis, payloads, stored.seed, r)
        cid = store_checkpoint(self.store, merged.checkpoint)
        worker = next(w for w in self.workers if w.account.address == merger)
        call = self.contracts.market.merge(job.id, r, StateRoot(merged.out), StateRoot(merged.out2), cid)
        worker.send(call, f"merge/{r}")


@dataclass
class Worker:
    """A worker that does what the test tells it."""

    market: Market
    name: str
    slot: int
    claims: dict[int, tuple[Reveal, ClaimId]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        devnet, contracts = self.market.devnet, self.market.contracts
        self.account: LocalAccount = devnet.account(self.name)
        self.node = NodeKey(key_of(1, self.name))
        self.outbox = Outbox(self.market.folder / f"{self.name}.sqlite", devnet.w3, self.account)
        permit = contracts.token.sign_permit(
            self.account, contracts.vault.address, STAKE, Seconds(self.market.now() + 3600)
        )
        self.outbox.submit(contracts.vault.deposit_with_permit(STAKE, permit), "deposit")
        self.outbox.submit(contracts.vault.register_node(self.node.public), "node", check=False)
        self.outbox.wait("node")

    def send(self, call: Any, key: str) -> None:
        """One transaction, mined."""
        self.outbox.send(call, key)

    def join(self, job: Job, r: int) -> None:
        """Take one's slot."""
        self.send(self.market.contracts.market.join(job.id, r, self.slot), f"join/{job.id.hex()}/{r}")

    def commit(self, job: Job, r: int, base: jobs.Checkpoint) -> None:
        """Train and commit."""
        stored = self.market.contracts.market.round(job.id, r)
        run = slot_run(job, base, Seed(stored.seed), r, self.slot)
        states = list(run.states())
        roots = [root for _, _, root in states]
        payload = payload_of(job, states[-1][1])
        out, out2 = (StateRoot(root) for root in job.payload_roots(payload))
        assert merkle.node(out, out2) == roots[-1], "S_T is node(payload, Z)"
        levels = merkle.levels([merkle.leaf(root) for root in roots])
        opened = Reveal(
            Body(trace_root(roots), out, out2), Digest(os.urandom(32)), tuple(merkle.proof(levels, len(roots) - 1)),
            self.market.store.put(b"".join(roots)), store_payload(job, self.market.store, payload),
        )  # type: ignore[arg-type] # fmt: skip
        claim = claim_id(job.id, r, stored.attempt, self.slot)
        self.claims[r] = opened, claim
        h = commitment(claim, Address(self.account.address), opened)
        self.send(self.market.contracts.market.commit(job.id, r, self.slot, h), f"commit/{claim.hex()}")

    def reveal(self, job: Job, r: int) -> None:
        """Open the commitment."""
        opened, claim = self.claims[r]
        self.send(self.market.contracts.market.reveal(job.id, r, self.slot, opened), f"reveal/{claim.hex()}")

    def receipt(
        self, job: Job, r: int, signer: LocalAccount | None = None, slots: Collection[int] | None = None
    ) -> Receipt:
        """That the payloads of these slots are there, of all by default; signed."""
        contracts = self.market.contracts
        mask = sum(1 << s for s in (range(job.params.role.slots) if slots is None else slots))
        attempt = contracts.market.round(job.id, r).attempt
        signed = contracts.sign_receipts(signer or self.account, job.id, r, attempt, mask, [self.slot])
        return signed[0]

    def attest(self, job: Job, r: int, slots: Collection[int] | None = None) -> None:
        """Say that the payloads of these slots are there, of all by default."""
        call = self.market.contracts.market.attest(job.id, r, [self.receipt(job, r, slots=slots)])
        attempt = self.market.contracts.market.round(job.id, r).attempt
        self.send(call, f"attest/{job.id.hex()}/{r}/{attempt}")


def merged_checkpoint(market: Market, job: Job, merged: Mapping[str, Any]) -> jobs.Checkpoint:
    """The checkpoint of a `merged` event, checked against the chain's roots."""
    out, out2 = (bytes.fromhex(merged[name][2:]) for name in ("out", "out2"))
    return load_checkpoint(job, market.store, merged["checkpoint_cid"], out, out2)
