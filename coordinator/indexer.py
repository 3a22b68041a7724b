"""Indexes the chain's events in SQL: each once, in order, with the cursor in the same transaction.

A crash leaves both or neither. A block that the chain drops takes its events with it, and their changes are undone. The
index can be deleted at any time: `reindex` restores it from the chain.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from eth_typing import HexStr
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session
from web3.exceptions import TransactionNotFound

from coordinator.db import Database
from coordinator.folds import GAME, MARKET, apply, rebuild
from coordinator.models import CursorRow, EventRow, JobRow
from coordinator.undoing import forget, undone
from lockstep.base.log import Logger
from lockstep.chain import events as chain_events
from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Market
from lockstep.chain.crosscheck import CrossCheck
from lockstep.chain.events import EventBatch, EventReader
from lockstep.chain.plain import plain
from lockstep.protocol.errors import DoctorError
from lockstep.protocol.jobs import JobParams, Merging, Pricing, Role
from lockstep.protocol.types import JobId

if TYPE_CHECKING:
    from web3 import Web3

log = Logger(__name__)


@dataclass(frozen=True)
class Indexed:
    """The events and the new position of one step."""

    events: tuple[EventRow, ...]
    block: int
    """The last block in the index."""
    time: int
    """Its timestamp."""
    behind: int
    """Blocks that the chain is ahead."""


class Indexer:
    """Follows one deployment."""

    def __init__(
        self, database: Database, w3: Web3, addresses: Addresses, check: CrossCheck | None = None
    ) -> None:  # fmt: skip
        """`check`: the provider that must agree on every block and log."""
        self._database = database
        self._w3 = w3
        self._addresses = addresses
        self._market = Market(w3, addresses.market)
        self._reader = EventReader(w3, addresses, check=check)
        self._paid: tuple[bytes, int | None] = b"", None
        """The last transaction whose gas was asked for, and its gas."""

    def step(self) -> Indexed:
        """Indexes new events, of at most one chunk of blocks."""
        with self._database.reading() as session:
            cursor = session.get(CursorRow, 1)
        self._require_own(cursor)
        start = chain_events.Cursor.loads(cursor.reader) if cursor else self._reader.start()
        batch = self._reader.poll(start)
        head = self._w3.eth.get_block("latest")
        number = batch.cursor.next_block - 1
        last = head if head["number"] == number else self._w3.eth.get_block(max(number, 0))
        rows = [self._row(event) for event in batch.events]
        with self._database.session() as session:
            # Another indexer took this step in the meantime: its rows are these.
            if not _unmoved(session, cursor):
                return Indexed((), number, int(last["timestamp"]), int(head["number"]) - number)
            unprojected = _roll_back(session, batch, cursor.unprojected if cursor else 0)
            for row in rows:
                session.add(row)
                session.flush()
                unprojected += not apply(session, row, int(head["number"]))
            forget(session, int(head["number"]))
            session.merge(
                CursorRow(
                    id=1, chain_id=self._addresses.chain_id, market=self._addresses.market, block=number,
                    hash="0x" + last["hash"].hex(), time=int(last["timestamp"]), head=int(head["number"]),
                    reader=batch.cursor.dumps(), checked=int(time.time()), unprojected=unprojected,
                    unreadable=(cursor.unreadable if cursor else 0) + batch.unreadable,
                )
            )  # fmt: skip
        return Indexed(tuple(rows), number, int(last["timestamp"]), int(head["number"]) - number)

    def touch(self) -> None:
        """Records that the chain answered and has no new block."""
        with self._database.session() as session:
            if (cursor := session.get(CursorRow, 1)) is not None:
                cursor.checked = int(time.time())

    def note(self, held: str) -> None:
        """Records the transactions that wait for a lower fee, if they have changed."""
        with self._database.reading() as session:
            cursor = session.get(CursorRow, 1)
            if cursor is None or cursor.held == held:
                return
        with self._database.session() as session:
            session.get_one(CursorRow, 1).held = held

    def catch_up(self) -> int:
        """Indexes until the index is at the head; returns the number of events indexed."""
        taken = 0
        while True:
            done = self.step()
            taken += len(done.events)
            if done.behind <= 0:
                return taken

    def reindex(self) -> int:
        """Drop everything that came from the chain and read it again; returns the number of events."""
        with self._database.session() as session:
            session.execute(delete(EventRow))
            session.execute(delete(CursorRow))
            rebuild(session)
        return self.catch_up()

    def _require_own(self, cursor: CursorRow | None) -> None:
        own = (self._addresses.chain_id, self._addresses.market.lower())
        if cursor is not None and (cursor.chain_id, cursor.market.lower()) != own:
            raise DoctorError(
                f"the index is of market {cursor.market} on chain {cursor.chain_id}",
                hint="give this deployment another --database or --home, or run `lockstep coordinator reindex`",
            )

    def _row(self, event: chain_events.Event) -> EventRow:
        args = plain(event.contract, event.name, event.args, "0x")
        # The event names the job alone; its parameters never change, so that any time is right to read them.
        if (event.contract, event.name) == (MARKET, "JobCreated"):
            args["params"] = params_json(self._market.params(JobId(event.args["job"])))
        return EventRow(
            block=event.block, log_index=event.index, block_hash="0x" + event.block_hash.hex(),
            tx="0x" + event.transaction.hex(), time=event.time, contract=event.contract, name=event.name,
            job=args.get("job"), game=args.get("game"), args=args, gas=self._gas(event),
        )  # fmt: skip

    def _gas(self, event: chain_events.Event) -> int | None:
        """Returns the gas of a dispute's move, which its page shows; other transactions are not asked for."""
        if event.contract != GAME:
            return None
        if self._paid[0] != event.transaction:
            self._paid = event.transaction, self._gas_used(event.transaction)
        return self._paid[1]

    def _gas_used(self, transaction: bytes) -> int | None:
        """Returns the gas of a transaction; None if the endpoint does not know it, or no more."""
        try:
            return int(self._w3.eth.get_transaction_receipt(HexStr("0x" + transaction.hex()))["gasUsed"])
        except TransactionNotFound:
            return None


def params_json(params: JobParams) -> dict[str, Any]:
    """JobParams as JSON, in their groups and by their Python names: bytes as 0x-hex, amounts as decimal strings."""
    plain: dict[str, Any] = _plain(asdict(params))
    return plain


_AMOUNTS = frozenset(f.name for group in (Merging, Pricing, Role) for f in fields(group) if f.type == "Wei")
"""Fields of JobParams in wei."""


def _plain(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner, key) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return str(value) if name in _AMOUNTS else value


def jobs_to_look_at(session: Session, aggregator: str) -> list[str]:
    """Returns the jobs that this aggregator has not finished with, oldest first."""
    mine = func.lower(JobRow.aggregator) == aggregator.lower()
    return list(session.scalars(select(JobRow.id).where(mine).order_by(JobRow.block)))


def _unmoved(session: Session, before: CursorRow | None) -> bool:
    now = session.get(CursorRow, 1)
    return (now.reader if now else None) == (before.reader if before else None)


def _roll_back(session: Session, batch: EventBatch, unprojected: int) -> int:
    """Undoes the blocks that the chain has dropped; returns how many of the `unprojected` skipped events remain."""
    if batch.rolled_back_to is None:
        return unprojected
    dropped = EventRow.block > batch.rolled_back_to
    gone = session.scalar(select(func.count()).select_from(EventRow).where(dropped)) or 0
    if not gone:
        return unprojected
    # INVARIANT: a head that flaps costs what its dropped events had changed, and nothing where it dropped none: no
    # other event is folded anew.
    skipped = undone(session, batch.rolled_back_to, gone)
    session.execute(delete(EventRow).where(dropped))
    log.warning("the chain was reorganised", to_block=batch.rolled_back_to, events_gone=gone)
    return rebuild(session) if skipped is None else unprojected - skipped
