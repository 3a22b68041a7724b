"""A market for testing pages: games with every verdict on a chain in memory, and a run of many rounds written as rows.

python -m tests.support.pages FOLDER [PORT] [ROUNDS SLOTS]      serves it, or what FOLDER has
"""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from coordinator.api import create_app
from coordinator.context import ApiContext
from coordinator.db import Database
from coordinator.descriptions import Descriptions
from coordinator.folds import apply
from coordinator.indexer import Indexer
from coordinator.models import ClaimRow, CursorRow, EventRow, JobRow, LossRow, RoleRow, RoundRow
from coordinator.nonces import Nonces
from coordinator.projections import claim_id_hex
from coordinator.published import PublishedMarket
from lockstep.chain import games as chain_games
from lockstep.chain.addresses import Addresses
from lockstep.protocol.dispute.moves import Resolve
from lockstep.protocol.hashing import keccak
from lockstep.protocol.types import MERGE_SLOT, Address, Digest, GameId, Seconds
from lockstep.storage import ContentStore, cid_of_digest, open_store
from lockstep.storage.containers import JobSpec, encode_program
from tests.support import arena, court
from tests.support.court import LIE, Court

TOKEN = 10**18
WORDS = "<script>alert(1)</script>"
"""A hostile model name."""
TITLE = "<i>Night owls</i>"
"""A hostile title."""
LONG = "0x" + keccak(b"a long run").hex()
ADDRESSES = Addresses(31337, *(Address(f"0x{i:02x}" + "11" * 19) for i in range(8)))
"""Addresses without contracts: a served folder has no chain."""
BEGUN = 1_800_000_000
ROUND_SECONDS = 240


@dataclass
class Seeded:
    """An index with its store and contents."""

    database: Database
    store: ContentStore
    folder: Path
    job: str = ""
    """The job of one round that all games are about."""
    games: dict[str, str] = field(default_factory=dict)
    """Ids of games by verdict; "open" for running ones."""
    workers: list[str] = field(default_factory=list)
    court: Court | None = None

    def context(self, **more: Any) -> ApiContext:
        """Returns the context of an API over this index."""
        published = PublishedMarket(ADDRESSES)
        if self.court is not None:
            arena = self.court.arena
            published = PublishedMarket(arena.contracts.addresses, (arena.devnet.url,))
        options = {"descriptions": Descriptions(self.store, wait_seconds=20), "published": published} | more
        return ApiContext(
            self.database, Nonces(self.folder / "nonces.sqlite"), self.store, Address("0x" + "44" * 20),
            max_blob_bytes=1 << 20, signed_for=lambda *_: False, notify=lambda _: None, **options,
        )  # fmt: skip


def seeded(folder: Path, *, rounds: int = 48, slots: int = 8, url: str | None = None) -> Seeded:
    """Creates a migrated index with the court's games and a run of `rounds` x `slots`, in `folder` or at a database's
    `url`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "store").mkdir(exist_ok=True)
    store = open_store(f"dir://{folder / 'store'}")
    database = Database(url or f"sqlite:///{folder / 'index.sqlite'}")
    database.migrate()
    made = Seeded(database, store, folder)
    _play(made)
    _long_run(made, rounds, slots)
    return made


# -- games ----------------------------------------------------------------------------------------------


def _play(made: Seeded) -> None:
    """Plays games to every verdict: a computed number, two silences, a game that comes too late, one that runs."""
    step, encode = _named(court.STEP, "model.layers.0.mlp"), _named(court.ENCODE, "payload")
    cids = {name: made.store.put(encode_program(program, made.store.put)) for name, program in
            (("step", step), ("encode", encode), ("merge", encode))}  # fmt: skip
    somewhere = made.store.put(b"nothing of it is read")
    spec = JobSpec(cids, somewhere, somewhere, {"kind": "gpt", "name": WORDS, "width": 64}, (), {"name": "diloco"})
    made.store.put(spec.encode(), codec="dag-cbor")
    assert cid_of_digest(spec.digest, "dag-cbor"), "the job names it by its digest"
    plain = arena.params_of
    with _patched(arena, "params_of", lambda terms, slots: _with_spec(plain(terms, slots), spec)):
        table = court.in_memory()
    chain = table.arena
    fraud = table.open(0, table.held(0, LIE))
    late = table.open(0, table.held(0, LIE))
    table.play(fraud, 0, LIE)
    _resolve(table, late)
    silent = table.open(2, table.held(2, LIE))
    honest = table.open(1, table.held(1))
    table.play(honest, 1, None)
    chain.devnet.advance(Seconds(arena.CLOCK + 60))
    _resolve(table, silent)
    _resolve(table, honest)
    running = table.open(1, table.held(1))
    table.play(running, 1, None, 2)
    Indexer(made.database, chain.devnet.w3, chain.contracts.addresses).catch_up()
    with made.database.session() as session:  # a chain of long ago, which has not halted
        cursor = session.get_one(CursorRow, 1)
        cursor.checked = cursor.time
    made.games = {verdict: "0x" + game.hex() for verdict, game in (
        ("fraud", fraud), ("void", late), ("timeout", silent), ("rejected", honest), ("open", running))}  # fmt: skip
    made.job = "0x" + chain.last_job().hex()
    made.court = table


def _named(program: Any, prefix: str) -> Any:
    return replace(program, names=tuple(f"{prefix}.{op.kind.name.lower()}_{i}" for i, op in enumerate(program.ops)))


def _with_spec(params: Any, spec: JobSpec) -> Any:
    return replace(params, spec=replace(params.spec, digest=spec.digest))


def _resolve(table: Court, game: GameId) -> None:
    contract = table.arena.contracts.game
    resolve = Resolve(chain_games.read(contract, game).standing)
    table.arena.send(chain_games.call(contract, resolve, game), table.arena.challenger)


@contextmanager
def _patched(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


# -- many rounds ----------------------------------------------------------------------------------------


def _long_run(made: Seeded, rounds: int, slots: int) -> None:
    """Writes a run with claims of every status; its losses belong to no model."""
    dice = random.Random(7)
    with made.database.session() as session:
        first = session.get_one(JobRow, made.job)
        named = JobSpec.decode(made.store.fetch_block(cid_of_digest(_digest(first), "dag-cbor")))
        spec = replace(named, model={"kind": "gpt", "layers": 4, "width": 128, "heads": 4}, title=TITLE)
        made.store.put(spec.encode(), codec="dag-cbor")
        params = {
            **first.params,
            "spec": {**first.params["spec"], "digest": "0x" + spec.digest.hex()},
            "schedule": {**first.params["schedule"], "rounds": rounds + 12},
            "roles": [{**first.params["roles"][0], "slots": slots, "inner_steps": 20}],
        }
        made.workers = ["0x" + keccak(b"worker %d" % i).hex()[:40] for i in range(slots)]
        from eth_utils.address import to_checksum_address

        made.workers = [to_checksum_address(name) for name in made.workers]
        created = {
            "job": LONG, "requester": first.requester, "spec_digest": first.spec_digest, "params": params,
            "escrow": str(rounds * slots * TOKEN), "deposit": str(8 * TOKEN),
        }  # fmt: skip
        _told(session, 900, BEGUN, "JobMarket", "JobCreated", created)
        for i, a in enumerate(made.workers, 901):
            key = "0x" + keccak(a.encode()).hex()
            _told(session, i, BEGUN, "StakeVault", "NodeRegistered", {"account": a, "key": key})
            session.add(RoleRow(account=a, role="worker", acts=rounds, block=3))
        claims, paid, losses = [], 0, [LossRow(job=LONG, claim="", round=None, merges=0, loss=repr(5.545177444479562))]
        session.execute(insert(RoundRow), [_round(number, rounds, slots) for number in range(rounds)])
        for number in range(rounds):
            final, merged = number < rounds - 3, number < rounds - 1
            for slot in range(slots):
                state = _state(dice, number, slot, rounds, final=final, merged=merged)
                earned = TOKEN // 2 if state == "final" else 0
                paid += earned
                claims.append(_claim(number, slot, made.workers[slot], state, earned))
            if merged:
                merge = _claim(number, MERGE_SLOT, first.aggregator, "final" if final else "merged", 0)
                claims.append(merge)
                loss = 2.1 + 3.4 / (1 + number / 9) + dice.uniform(-0.03, 0.03)
                losses.append(LossRow(job=LONG, claim=merge["id"], round=number, merges=number + 1, loss=repr(loss)))
        session.execute(insert(ClaimRow), claims)
        session.add_all(losses)
        session.flush()
        _money(session, made, first.requester, claims, rounds * slots)
        assert int(session.get_one(JobRow, LONG).paid) == paid


def _told(session: Session, index: int, at: int, contract: str, name: str, args: dict[str, Any]) -> None:
    """An event of block 4, with all that follows from it."""
    row = EventRow(
        block=4, log_index=index, block_hash="0x" + "00" * 32, tx=f"0x{index:064x}", time=at, contract=contract,
        name=name, job=args.get("job"), args=args,
    )  # fmt: skip
    session.add(row)
    session.flush()
    assert apply(session, row), name


def _money(session: Session, made: Seeded, requester: str, claims: list[dict[str, Any]], escrow: int) -> None:
    """Writes the vault's events of a run: stakes, hourly pay, slashes, locks."""
    told: list[tuple[int, str, str, dict[str, Any]]] = [
        (BEGUN, "StakeVault", "Escrowed", {"from": requester, "amount": str((escrow + 8) * TOKEN)})
    ]
    told += [(BEGUN, "StakeVault", "Deposited", {"account": a, "amount": str(60 * TOKEN)}) for a in made.workers]
    for claim in claims:
        amount = str(10 * TOKEN)
        if claim["state"] in ("convicted", "accepted", "revealed"):
            lock = {"key": claim["id"], "account": claim["worker"], "amount": amount}
            told.append((claim["time"], "StakeVault", "Locked", lock))
            if claim["state"] == "convicted":
                shares = {"burned": str(5 * TOKEN), "to_challenger": str(3 * TOKEN), "to_requester": str(2 * TOKEN)}
                told.append((claim["time"] + 90, "StakeVault", "Slashed", {**lock, **shares, "owed": "0"}))
    hours: dict[tuple[int, str], int] = defaultdict(int)
    for claim in claims:
        hours[claim["time"] // 3600 * 3600 + 3599, claim["worker"]] += int(claim["paid"])
    for (hour, worker), amount_paid in sorted(hours.items()):
        if amount_paid:
            paid = {"job": LONG, "round": 1 << 30, "slot": 0, "account": worker, "amount": str(amount_paid)}
            told.append((hour, "JobMarket", "Paid", paid))
            told.append((hour, "StakeVault", "Credited", {"account": worker, "amount": str(amount_paid)}))
    for i, (at, contract, name, args) in enumerate(sorted(told, key=lambda t: t[0])):
        _told(session, 1000 + i, at, contract, name, args)


def _digest(job: JobRow) -> Digest:
    return Digest(bytes.fromhex(job.params["spec"]["digest"][2:]))


def _round(number: int, rounds: int, slots: int) -> dict[str, Any]:
    state = "final" if number < rounds - 3 else "lead" if number < rounds - 1 else "training"
    begun = BEGUN + ROUND_SECONDS * number
    return {"job": LONG, "number": number, "attempt": 0, "state": state, "base": "0x" + "aa" * 32, "outer": None,
            "seed": "0x" + "bb" * 32, "attested": None, "mask": str((1 << slots) - 1), "merge_in": None,
            "started": begun, "updated": begun + 170 + number * 37 % 50}  # fmt: skip


def _state(dice: random.Random, number: int, slot: int, rounds: int, *, final: bool, merged: bool) -> str:
    if not merged:
        return ("joined", "committed", "revealed")[slot % 3]
    drawn = dice.random()
    if drawn < 0.012:
        return "convicted"
    if drawn < 0.03:
        return "absent"
    if drawn < 0.045:
        return "excluded"
    return "final" if final else "accepted"


def _claim(number: int, slot: int, worker: str, state: str, paid: int) -> dict[str, Any]:
    return {
        "id": claim_id_hex(LONG, number, 0, slot), "job": LONG, "round": number, "attempt": 0, "slot": slot,
        "worker": worker, "state": state, "commitment": None, "trace_root": None, "out": "0x" + "cc" * 32, "out2": None,
        "trace_cid": None, "payload_cid": "bafkrei" + "a" * 52, "paid": str(paid),
        "slashed": str(10 * TOKEN) if state == "convicted" else "0", "block": 4 + number,
        "time": BEGUN + ROUND_SECONDS * number + 60,
    }  # fmt: skip


def main(folder: str, port: str = "8765", rounds: str = "48", slots: str = "8") -> None:
    """Serves a seeded market until it is interrupted."""
    import uvicorn

    from lockstep.storage import connections

    begun, where = time.perf_counter(), Path(folder)
    if (where / "index.sqlite").exists():
        made = Seeded(Database(f"sqlite:///{where / 'index.sqlite'}"), open_store(f"dir://{where / 'store'}"), where)
    else:
        made = seeded(where, rounds=int(rounds), slots=int(slots))
    print(f"seeded in {time.perf_counter() - begun:.1f} s: http://127.0.0.1:{port}/  {made.games}", flush=True)
    config = connections.config(create_app(made.context()), drain_seconds=1)
    config.host, config.port = "127.0.0.1", int(port)
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
