"""A coordinator's API over a real index, nonces and store, without a chain: rows as the indexer would write them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from eth_account import Account
from eth_account.signers.local import LocalAccount
from starlette.testclient import TestClient

from coordinator import reading
from coordinator.api import create_app
from coordinator.context import ApiContext
from coordinator.db import Database
from coordinator.models import ClaimRow, CursorRow, GameRow, JobRow, NodeRow, RoundRow
from coordinator.nonces import Nonces
from coordinator.projections import claim_id_hex
from coordinator.published import PublishedMarket
from lockstep.chain.addresses import Addresses
from lockstep.chain.signatures import recovered
from lockstep.protocol.jobs import Round
from lockstep.protocol.types import Address, Seconds
from lockstep.runtime.identity import NodeKey
from lockstep.storage import open_store
from lockstep.storage.directory import DirectoryStore
from tests.support import servers
from tests.support.coordinating import ME, claim

NOW = Seconds(1_700_000_000)
MARKET = Address("0x" + "11" * 20)
CHAIN_ID = 31337
JOB = "0x" + "ab" * 32
WORKER: LocalAccount = Account.from_key(bytes([3]) * 32)
DELEGATE: LocalAccount = Account.from_key(bytes([4]) * 32)
"""Signs for everybody, as the chain would say of an account's delegate."""
NODE = NodeKey(bytes([7]) * 32)


@dataclass
class Api:
    """The application under test and what it stands on."""

    client: TestClient
    context: ApiContext
    notified: list[str] = field(default_factory=list)

    def signed(
        self, method: str, path: str, body: bytes = b"", node: NodeKey = NODE, account: str = WORKER.address, **kw: Any
    ) -> Any:
        """A request signed as a node signs it."""
        headers = node.sign_request(account, method, path, body, now=kw.pop("now", NOW), nonce=kw.pop("nonce", None))
        return self.client.request(method, path, content=body, headers=headers | kw.pop("headers", {}))


def job_row(number: int = 0) -> JobRow:
    """A job in block 10 + number."""
    return JobRow(
        id=JOB if number == 0 else f"0x{number:064x}", requester="0x" + "22" * 20, spec_digest="0x" + "33" * 32,
        params={"roles": [{"slot_price": "1" + "0" * 30, "slots": 3}], "merge": {"aggregator": "0x" + "44" * 20}},
        aggregator="0x" + "44" * 20,
        state="active", attempt=0, block=10 + number, time=NOW - 100, paid="1" + "0" * 30, refunded="0",
    )  # fmt: skip


def claim_row(slot: int = 1) -> ClaimRow:
    """A claim of WORKER, joined."""
    return ClaimRow(
        id=claim_id_hex(JOB, 0, 0, slot), job=JOB, round=0, attempt=0, slot=slot, worker=WORKER.address, state="joined",
        paid="0", slashed="0", block=12, time=NOW - 80,
    )  # fmt: skip


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def dialect(request: pytest.FixtureRequest) -> str:
    """Which database it is."""
    return str(request.param)


@pytest.fixture
def database_url(request: pytest.FixtureRequest, dialect: str, tmp_path: Path) -> str:
    """An empty database."""
    if dialect == "sqlite":
        return f"sqlite:///{tmp_path / 'index.sqlite'}"
    return servers.create_database(request.getfixturevalue("postgres"), f"test-{uuid4().hex}")


def migrated(url: str) -> str:
    database = Database(url)
    database.migrate()
    database.close()
    return url


@pytest.fixture(scope="session")
def sqlite_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the schema and no row."""
    path = tmp_path_factory.mktemp("index") / "index.sqlite"
    migrated(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def postgres_index(postgres: str) -> str:
    """The name of a database with the schema and no row."""
    migrated(servers.create_database(postgres, "index"))
    return "index"


@pytest.fixture
def database(request: pytest.FixtureRequest, dialect: str, tmp_path: Path) -> Iterator[Database]:
    """An index that holds nothing: a copy of one that was migrated."""
    if dialect == "sqlite":
        url = f"sqlite:///{shutil.copy(request.getfixturevalue('sqlite_index'), tmp_path / 'index.sqlite')}"
    else:
        template = request.getfixturevalue("postgres_index")
        url = servers.create_database(request.getfixturevalue("postgres"), f"test-{uuid4().hex}", template)
    database = Database(url)
    yield database
    database.close()


@pytest.fixture
def api(tmp_path: Path, database: Database) -> Iterator[Api]:
    """An API whose index stands at NOW, with one job, one round, one claim, one game, one node."""
    (tmp_path / "blocks").mkdir()
    store = open_store(f"dir://{tmp_path / 'blocks'}")
    notified: list[str] = []
    nonces = Nonces(tmp_path / "nonces.sqlite")
    context = ApiContext(
        database, nonces, store, Address("0x" + "44" * 20), max_blob_bytes=1 << 20,
        published=PublishedMarket(Addresses(CHAIN_ID, *[MARKET] * 8)),
        signed_for=lambda account, digest, signature: recovered(digest, signature) in (account, DELEGATE.address),
        notify=notified.append,
    )  # fmt: skip
    with database.session() as session:
        session.add_all(
            [
                CursorRow(
                    id=1, chain_id=CHAIN_ID, market=MARKET, block=20, hash="0x" + "00" * 32, time=NOW, head=21,
                    reader="", checked=int(time.time()),
                ),
                NodeRow(account=WORKER.address, key="0x" + NODE.public.hex(), block=5),
                job_row(),
                RoundRow(job=JOB, number=0, attempt=0, state="joining", started=NOW - 90, updated=NOW - 80),
                claim_row(),
                GameRow(
                    id="0x" + "66" * 32, claim=claim_row().id, challenger="0x" + "77" * 20, step=3, moves=2, block=15,
                    time=NOW - 10,
                ),
            ]
        )  # fmt: skip
    with TestClient(create_app(context), raise_server_exceptions=False) as client:
        yield Api(client, context, notified)
    nonces.close()


@pytest.fixture
def games(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The open games about our merges."""
    found: list[Any] = []
    monkeypatch.setattr(reading, "my_open_games", lambda session, job, me: found)
    monkeypatch.setattr(reading, "merges_by", lambda session, job, me: [claim(1)])
    monkeypatch.setattr(reading, "merge_inputs", lambda *_: ())
    monkeypatch.setattr(reading, "own_demands", lambda session, job, me: [])
    return found


@pytest.fixture
def parts(tmp_path: Path) -> Any:
    """What a coordinator stands on, without a chain and with an index that holds nothing."""
    contracts = SimpleNamespace(market=SimpleNamespace(round=lambda job, r: Round()), game=None, demands=None)
    party = SimpleNamespace(
        contracts=contracts, w3=None, addresses=SimpleNamespace(block=0), outbox=None, check=None,
        store=DirectoryStore(tmp_path / "store"),
    )  # fmt: skip
    shared = SimpleNamespace(memory_bytes=1 << 30, threads=1, path="auto")
    settings = SimpleNamespace(home=tmp_path, home_name="here", shared=shared, demands=8)
    database = SimpleNamespace(reading=nullcontext)
    return SimpleNamespace(database=database, me=ME, party=party, settings=settings, guard=None)
