"""200 clients of one `lockstep coordinator up`, on two cores and a real chain: what a request takes, and what is kept.

    python benchmarks/coordinator.py [--json] [--clients 200] [--seconds 30] [--think 1.0]
                                     [--database URL] [--broker URL]

Every client is an account that has registered its node key and holds a slot of a job on Anvil; it signs as
worker/announcing.py does, has a connection and an address of its own, and pauses `--think` seconds (exponentially
distributed) between two requests; 0 finds the most that the process serves. The clients run beside the coordinator on
the same two cores. Afterwards the coordinator is stopped, started again, and everything that it accepted is looked for:
each signed claim once, each receipt once, each blob by its bytes, and each request that was sent twice refused once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

# Run from a checkout: the market by hand is part of the tests.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx2
import psutil
from eth_account.signers.local import LocalAccount
from sqlalchemy import func, select

from coordinator.db import Database
from coordinator.models import EventRow, ReceiptRow
from lockstep.chain.contracts import Call
from lockstep.chain.devnet import key_of
from lockstep.chain.events import EventReader
from lockstep.chain.outbox import Outbox
from lockstep.protocol.jobs import Body, Claim, JobParams
from lockstep.protocol.market.ids import claim_id, job_id, receipt_hash, typed_data
from lockstep.protocol.types import Address, JobId, Seconds, Seed, StateRoot, TraceRoot, Wei
from lockstep.runtime.identity import NodeKey
from lockstep.storage import cid_of
from tests.e2e.byhand import Market, Process
from tests.support import toyjob

TOKEN = 10**18
STAKE = Wei(200 * TOKEN)
CLAIMS = 8
"""Different claims that a client signs for its slot; half of what a coordinator keeps."""
BLOB_BYTES = 16 << 10
RETRY_SECONDS = 1.0
"""After 503, as worker/announcing.py's caller does."""
SAMPLE_SECONDS = 0.25


@dataclass
class Endpoint:
    """Times and statuses of one endpoint's answers."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    def row(self, name: str, lasted: float) -> dict[str, Any]:
        """Its line of the table."""
        times = sorted(self.seconds)
        return {
            "endpoint": name, "requests": len(times), "per_second": round(len(times) / lasted, 1),
            "p50_ms": round(1000 * statistics.median(times), 1),
            "p95_ms": round(1000 * times[int(0.95 * (len(times) - 1))], 1),
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
        }  # fmt: skip


@dataclass
class Kept:
    """The data that the coordinator has accepted."""

    claims: set[str] = field(default_factory=set)
    """Signatures of claims."""
    receipts: set[tuple[str, int]] = field(default_factory=set)
    blobs: dict[str, bytes] = field(default_factory=dict)
    """By CID: the digest of the bytes."""
    twice: Counter[int] = field(default_factory=Counter)
    """Statuses of requests that were sent a second time as they were."""


@dataclass
class Client:
    """One protocol client: an account with a registered node and a slot of a job."""

    number: int
    account: LocalAccount
    node: NodeKey
    job: JobId
    slot: int
    claims: list[bytes]
    receipt: bytes

    @property
    def claim(self) -> str:
        """Its slot's claim."""
        return "0x" + claim_id(self.job, 0, 0, self.slot).hex()

    @property
    def address(self) -> str:
        """The loopback address that it connects from: a server takes 128 connections of one."""
        return f"127.0.{1 + self.number // 100}.{1 + self.number % 100}"


def build_market(folder: Path, clients: int) -> tuple[Market, list[Client]]:
    """A chain with toy jobs whose slots `clients` accounts have joined."""
    market = Market.build(folder, workers=0)
    contracts, devnet = market.contracts, market.devnet
    aggregator = Address(devnet.account("coordinator").address)
    params = toyjob.publish(market.store, aggregator=aggregator, join_seconds=Seconds(7200))
    count = -(-clients // params.role.slots)
    jobs = create_jobs(market, params, count)
    deployer = Outbox(folder / "bench.sqlite", devnet.w3, devnet.account("deployer"))
    accounts = [devnet.account(f"client{i}") for i in range(clients)]
    mint = contracts.token.mint
    deployer.send_all([(f"mint/{a.address}", mint(Address(a.address), Wei(2 * STAKE))) for a in accounts])
    deployer.close()

    def enter(i: int) -> Client:
        account, node = accounts[i], NodeKey(key_of(1, f"client{i}"))
        job, slot = jobs[i // params.role.slots], i % params.role.slots
        permit = contracts.token.sign_permit(account, contracts.vault.address, STAKE, Seconds(market.now() + 3600))
        calls: list[tuple[str, Call]] = [
            ("deposit", contracts.vault.deposit_with_permit(STAKE, permit)),
            ("node", contracts.vault.register_node(node.public)),
            ("join", contracts.market.join(job, 0, slot)),
        ]
        outbox = Outbox(folder / f"client{i}.sqlite", devnet.w3, account)
        outbox.send_all(calls)
        outbox.close()
        signed = [signed_claim(market, account, job, slot, k) for k in range(CLAIMS)]
        return Client(i, account, node, job, slot, signed, signed_receipt(market, account, job, slot))

    with ThreadPoolExecutor(4) as pool:
        return market, list(pool.map(enter, range(clients)))


def create_jobs(market: Market, params: JobParams, count: int) -> list[JobId]:
    """So many jobs of the same parameters, the first round of each started."""
    contracts, requester = market.contracts, market.devnet.account("requester")
    owner, each = Address(requester.address), Wei(params.escrow + params.deposit)
    outbox = Outbox(market.folder / "requester.sqlite", market.devnet.w3, requester)
    outbox.send(contracts.token.mint(owner, Wei(count * each)), "mint")
    outbox.send(contracts.token.approve(contracts.vault.address, Wei(count * each)), "approve")
    made = []
    for nonce in range(1, count + 1):
        outbox.send(contracts.market.create(params, nonce, params.escrow), f"create/{nonce}")
        job = job_id(contracts.addresses.chain_id, contracts.market.address, owner, nonce, params)
        outbox.send(contracts.market.start_round(job, 0), f"start/{nonce}")
        made.append(job)
    outbox.close()
    return made


def signed_claim(market: Market, account: LocalAccount, job: JobId, slot: int, k: int) -> bytes:
    """The k-th claim that an account signs for its slot, as worker/announcing.py makes it."""
    addresses, seed, base = market.contracts.addresses, Seed(bytes(32)), StateRoot(bytes(32))
    claim = Claim(job=job, worker=Address(account.address), round=0, attempt=0, slot=slot, transitions=toyjob.STEPS)
    said = Body(TraceRoot(bytes([k + 1]) * 32), StateRoot(bytes([2]) * 32), StateRoot(bytes([3]) * 32))
    message = typed_data(addresses.chain_id, addresses.market, claim, said, seed, base)
    signature = account.sign_typed_data(full_message=message).signature
    fields = {n: "0x" + v.hex() if isinstance(v, bytes) else v for n, v in message["message"].items()}
    return json.dumps(
        {
            "claim": fields, "worker": account.address, "signature": "0x" + bytes(signature).hex(),
            "trace_cid": cid_of(b"trace"), "payload_cid": cid_of(b"payload"),
        }
    ).encode()  # fmt: skip


def signed_receipt(market: Market, account: LocalAccount, job: JobId, slot: int) -> bytes:
    """An owner's receipt."""
    addresses = market.contracts.addresses
    digest = receipt_hash(addresses.chain_id, addresses.market, job, 0, 0, slot, 1)
    signature = account.unsafe_sign_hash(digest).signature
    fields = {"job": "0x" + job.hex(), "round": 0, "attempt": 0, "who": slot, "mask": "1"}
    return json.dumps({**fields, "signature": "0x" + bytes(signature).hex()}).encode()


class Load:
    """All clients at once, against one coordinator."""

    def __init__(self, url: str, clients: list[Client], now: Callable[[], Seconds], think: float) -> None:
        self.url, self.clients, self.now, self.think = url, clients, now, think
        self.endpoints: dict[str, Endpoint] = defaultdict(Endpoint)
        self.kept = Kept()
        self.lasted = 0.0

    async def run(self, seconds: float) -> None:
        """For so long; what is under way then is finished."""
        began = time.monotonic()
        await asyncio.gather(*(self._client(c, began + seconds) for c in self.clients))
        self.lasted = time.monotonic() - began

    async def _client(self, client: Client, end: float) -> None:
        chance = random.Random(client.number)
        transport = httpx2.AsyncHTTPTransport(local_address=client.address, retries=0)
        async with httpx2.AsyncClient(transport=transport, base_url=self.url, timeout=30.0) as http:
            acts = self._acts(client, http, chance)
            turn = chance.randrange(len(acts))
            await asyncio.sleep(chance.random() * max(self.think, 0.2))
            while time.monotonic() < end:
                status = await acts[turn % len(acts)]()
                turn += 1
                if status == 503:
                    await asyncio.sleep(RETRY_SECONDS)
                elif self.think:
                    await asyncio.sleep(chance.expovariate(1 / self.think))

    def _acts(
        self, client: Client, http: httpx2.AsyncClient, chance: random.Random
    ) -> list[Callable[[], Awaitable[int]]]:
        job = "0x" + client.job.hex()
        reads = {
            "GET /api/v1/jobs": "/api/v1/jobs", "GET /api/v1/jobs/{job}": f"/api/v1/jobs/{job}",
            "GET /api/v1/jobs/{job}/rounds": f"/api/v1/jobs/{job}/rounds",
            "GET /api/v1/claims/{claim}": f"/api/v1/claims/{client.claim}", "GET /api/v1/signed": "/api/v1/signed",
            "GET /api/v1/games": "/api/v1/games", "GET /api/v1/nodes": "/api/v1/nodes",
            "GET /api/v1/status": "/api/v1/status", "GET /readyz": "/readyz", "GET /metrics": "/metrics",
        }  # fmt: skip
        acts: list[Callable[[], Awaitable[int]]] = []
        for name, path in reads.items():
            acts.append(lambda name=name, path=path: self._read(http, name, path))  # type: ignore[misc]
        posts = [
            lambda: self._announce(client, http, chance), lambda: self._give(client, http),
            lambda: self._upload(client, http, chance), lambda: self._download(http, chance),
        ]  # fmt: skip
        # Between the reads, so that every client does all of it.
        for place, act in zip((2, 5, 8, 11), posts, strict=True):
            acts.insert(place, act)
        return acts

    async def _read(self, http: httpx2.AsyncClient, name: str, path: str) -> int:
        return (await self._timed(name, http.get(path))).status_code

    async def _announce(self, client: Client, http: httpx2.AsyncClient, chance: random.Random) -> int:
        body = chance.choice(client.claims)
        status = await self._post(client, http, "/api/v1/claims", body)
        if status == 202:
            self.kept.claims.add(json.loads(body)["signature"])
        return status

    async def _give(self, client: Client, http: httpx2.AsyncClient) -> int:
        status = await self._post(client, http, "/api/v1/receipts", client.receipt)
        if status == 202:
            self.kept.receipts.add(("0x" + client.job.hex(), client.slot))
        return status

    async def _upload(self, client: Client, http: httpx2.AsyncClient, chance: random.Random) -> int:
        body = chance.randbytes(BLOB_BYTES)
        status = await self._post(client, http, "/api/v1/blobs", body)
        if status == 201:
            self.kept.blobs[cid_of(body)] = sha256(body).digest()
        return status

    async def _download(self, http: httpx2.AsyncClient, chance: random.Random) -> int:
        if not self.kept.blobs:
            return 0
        cid = chance.choice(list(self.kept.blobs))
        answer = await self._timed("GET /api/v1/blobs/{cid}", http.get(f"/api/v1/blobs/{cid}"))
        if answer.status_code == 200 and sha256(answer.content).digest() != self.kept.blobs[cid]:
            raise SystemExit(f"{cid} has other bytes than were stored")
        return answer.status_code

    async def _post(self, client: Client, http: httpx2.AsyncClient, path: str, body: bytes) -> int:
        headers = client.node.sign_request(client.account.address, "POST", path, body, now=self.now())
        answer = await self._timed(f"POST {path}", http.post(path, content=body, headers=headers))
        if answer.is_success and client.number % 10 == 0:
            again = await http.post(path, content=body, headers=headers)
            if again.status_code != 503:
                self.kept.twice[again.status_code] += 1
        return answer.status_code

    async def _timed(self, name: str, call: Awaitable[httpx2.Response]) -> httpx2.Response:
        began = time.perf_counter()
        answer = await call
        found = self.endpoints[name]
        found.statuses[answer.status_code] += 1
        if answer.status_code != 503:
            found.seconds.append(time.perf_counter() - began)
        return answer


class Memory:
    """The largest resident memory of the coordinator's processes."""

    def __init__(self, pid: int) -> None:
        self.most: dict[str, int] = {}
        self._parent = psutil.Process(pid)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, float]:
        """MiB by process."""
        self._done.set()
        self._thread.join()
        return {name: round(size / 2**20, 1) for name, size in self.most.items()}

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            for process in (self._parent, *self._parent.children()):
                name = "api" if process == self._parent else process.cmdline()[-1]
                self.most[name] = max(self.most.get(name, 0), process.memory_info().rss)


def lost(url: str, market: Market, database: Database, kept: Kept) -> dict[str, Any]:
    """Returns the accepted data that are missing or stored twice; every list should be empty."""
    found: Counter[str] = Counter()
    after = 0
    while True:
        page = httpx2.get(f"{url}/api/v1/signed", params={"after": after}, timeout=30).json()
        found.update(item["signature"] for item in page["items"])
        if page["last"] == after or not page["items"]:
            break
        after = page["last"]
    wrong_blobs = []
    for cid, digest in kept.blobs.items():
        answer = httpx2.get(f"{url}/api/v1/blobs/{cid}", timeout=30)
        if answer.status_code != 200 or sha256(answer.content).digest() != digest:
            wrong_blobs.append(cid)
    reader = EventReader(market.devnet.w3, market.contracts.addresses)
    events = {(e.block, e.index) for e in reader.poll(reader.start()).events}
    with database.reading() as session:
        receipts = Counter((row.job, row.who) for row in session.scalars(select(ReceiptRow)))
        indexed = session.scalar(select(func.count()).select_from(EventRow))
    return {
        "claims_missing": sorted(kept.claims - set(found)),
        "claims_twice": [signature for signature, times in found.items() if times != 1],
        "claims_of_nobody": sorted(set(found) - kept.claims),
        "receipts_missing": sorted(kept.receipts - set(receipts)),
        "receipts_twice": [key for key, times in receipts.items() if times != 1],
        "blobs_wrong": wrong_blobs,
        "repeated_requests_accepted": sorted(status for status in kept.twice if status != 409),
        "events_missing": max(0, len(events) - (indexed or 0)),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The whole benchmark."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)
    extra = [part for name in ("database", "broker") if (url := getattr(options, name)) for part in (f"--{name}", url)]
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name:
        print(f"registering {options.clients} accounts on Anvil ...", file=sys.stderr)
        market, clients = build_market(Path(name), options.clients)
        try:
            process, url = serve(market, extra)
            memory = Memory(process.popen.pid)
            offset = market.now() - time.time()
            load = Load(url, clients, lambda: Seconds(int(time.time() + offset)), options.think)
            print(f"{options.clients} clients for {options.seconds} s ...", file=sys.stderr)
            asyncio.run(load.run(options.seconds))
            peak = memory.stop()
            # What was accepted is there when another process looks.
            process.stop()
            process, url = serve(market, extra)
            database = Database(options.database or f"sqlite:///{market.folder / 'coordinator' / 'index.sqlite'}")
            missing = lost(url, market, database, load.kept)
            database.close()
            process.stop()
        finally:
            market.close()
    rows = [e.row(name, load.lasted) for name, e in sorted(load.endpoints.items()) if e.seconds]
    return {
        "clients": options.clients, "seconds": round(load.lasted, 1), "think_seconds": options.think,
        "cores": len(cores), "endpoints": rows, "per_second": round(sum(r["per_second"] for r in rows), 1),
        "refused_503": sum(e.statuses[503] for e in load.endpoints.values()),
        "failed_5xx": sum(n for e in load.endpoints.values() for s, n in e.statuses.items() if s >= 500 and s != 503),
        "peak_rss_mib": peak,
        "accepted": {
            "claims": len(load.kept.claims), "receipts": len(load.kept.receipts), "blobs": len(load.kept.blobs),
            "sent_twice": sum(load.kept.twice.values()),
        },
        "lost": missing,
    }  # fmt: skip


def serve(market: Market, extra: list[str]) -> tuple[Process, str]:
    """A coordinator whose index has caught up."""
    process = market.serve("coordinator", ["coordinator", "up", "--port", "0", *extra])
    url = process.wait_for("ready")["url"]
    head = int(market.devnet.w3.eth.block_number)
    end = time.monotonic() + 120
    while (httpx2.get(f"{url}/api/v1/status", timeout=30).json()["block"] or 0) < head:
        if time.monotonic() > end:
            raise SystemExit(f"the index does not catch up: {process.log.read_text()[-2000:]}")
        time.sleep(0.5)
    return process, url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON line instead of the table")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--think", type=float, default=1.0, help="mean pause between two requests of a client")
    parser.add_argument("--database", default="", help="SQLAlchemy URL; default: SQLite in the home")
    parser.add_argument("--broker", default="", help="Celery broker URL; default: a folder in the home")
    result = measure(parser.parse_args())
    bad = {name: what for name, what in result["lost"].items() if what}
    if parser.parse_args().json:
        print(json.dumps(result))
    else:
        table(result)
    if bad or result["failed_5xx"]:
        raise SystemExit(f"lost or twice: {bad}; answers of 5xx but 503: {result['failed_5xx']}")


def table(result: dict[str, Any]) -> None:
    """The result for people."""
    print(f"{'endpoint':34}{'requests':>9}{'per s':>8}{'p50 ms':>9}{'p95 ms':>9}  statuses")
    for row in result["endpoints"]:
        statuses = ", ".join(f"{status}: {count}" for status, count in row["statuses"].items())
        times = f"{row['per_second']:8.1f}{row['p50_ms']:9.1f}{row['p95_ms']:9.1f}"
        print(f"{row['endpoint']:34}{row['requests']:9}{times}  {statuses}")
    accepted = ", ".join(f"{count} {name}" for name, count in result["accepted"].items())
    memory = ", ".join(f"{name} {size} MiB" for name, size in result["peak_rss_mib"].items())
    print(f"together {result['per_second']} per s; 503: {result['refused_503']}; peak memory: {memory}")
    nothing = not any(result["lost"].values())
    print(f"accepted: {accepted}; {'each found once' if nothing else result['lost']}")


if __name__ == "__main__":
    main()
