"""Reveals the verdict on a duty: compares the witness's own states with the claim's published list.

If the owner withholds its list, the claim is replayed to its end, which decides as well.
"""

from __future__ import annotations

from dataclasses import replace

from lockstep.base.log import Logger
from lockstep.market.ledger import AuditLedger, ClaimRecord
from lockstep.market.replay import Replay
from lockstep.protocol import merkle
from lockstep.protocol.errors import TryLater, Unreachable
from lockstep.protocol.jobs import Body
from lockstep.protocol.market.types import Word
from lockstep.protocol.types import AuditId, ClaimId, Digest, StateRoot, TraceRoot
from lockstep.runtime.backoff import Backoff
from lockstep.runtime.party import Party
from lockstep.runtime.sender import Sender
from verifier.choosing import Backlog
from verifier.journal import Journal, Observation
from verifier.reading import MarketView
from verifier.root_lists import Lists, OnItsWay
from verifier.telling import EventPrinter
from verifier.witness.decide import agrees, round_of
from verifier.witness.enrolling import Enrolment
from verifier.witness.replaying import RETRY_SECONDS

log = Logger(__name__)


class VerdictRevealer:
    """Reveals the verdicts of own duties."""

    def __init__(
        self, party: Party, journal: Journal, enrolment: Enrolment, backlog: Backlog, lists: Lists,
        sender: Sender[None], printer: EventPrinter,
    ) -> None:  # fmt: skip
        """`backlog` replays suspects to their end."""
        self._party = party
        self._journal = journal
        self._enrolment = enrolment
        self._backlog = backlog
        self._lists = lists
        self._sender = sender
        self._printer = printer
        self._replayed: dict[tuple[ClaimId, TraceRoot], Replay] = {}
        """Full replays of suspects, by claim and trace: a claim that reappears with another trace is replayed again."""
        self._backoff: Backoff[tuple[AuditId, int]] = Backoff(RETRY_SECONDS)
        self._told: set[str] = set()

    def audited(self, record: ClaimRecord, found: Replay) -> None:
        """Keeps the result of a claim's full replay."""
        self._replayed[record.id, record.trace_root] = replace(found, final=None)

    def speak(self, view: MarketView, audit: AuditLedger, i: int) -> None:
        """Reveals the verdict, once the list is available or the claim has been replayed to its end without it."""
        if self._backoff.in_backoff((audit.id, i), view.now):
            return
        try:
            self._speak(view, audit, i)
        except (Unreachable, TryLater) as error:
            log.info("a witness's verdict cannot be revealed yet: trying again", why=error.message)
            self._backoff.failed((audit.id, i), view.now)

    def _speak(self, view: MarketView, audit: AuditLedger, i: int) -> None:
        _, round_ = round_of(view.ledger, audit)
        record = round_.claims[audit.duties[i].slot]
        seen = self._journal.observation(audit.id, i, audit.state.beacon)
        if seen is None:
            log.error(
                "the verdict that this account committed is missing from this home: its fee is lost",
                audit=audit.id.hex(),
            )
            return
        if not seen.roots:
            self._reveal(view, audit, i, record, seen, None)
            return
        transitions = view.params[audit.state.job].role.transitions
        try:
            listed = self._lists.find(record, transitions) if record.trace_cid else None
        except OnItsWay as fetched:
            if fetched.begun:
                return
            listed = None
        except Unreachable as error:
            # INVARIANT: a list that nobody sends keeps no witness silent: its own replay decides as well.
            log.info(
                "the store does not answer for the state roots of a claim that this account witnesses",
                why=error.message,
            )
            self._backoff.failed((audit.id, i), view.now)
            listed = None
        if listed is None:
            listed = self._without_list(view, audit, record)
            if listed is None and (record.id, record.trace_root) not in self._replayed:
                return
        same = listed is not None and agrees(seen.roots, listed)
        self._reveal(view, audit, i, record, seen, listed if same else None)
        if not same:
            self._backlog.suspect(record)

    def _without_list(self, view: MarketView, audit: AuditLedger, record: ClaimRecord) -> tuple[StateRoot, ...] | None:
        """Returns the claim's list from this verifier's own full replay; None while that is not done, or if the claim
        is wrong."""
        if found := self._replayed.get((record.id, record.trace_root)):
            return tuple(found.held.trace) if found.matches else None
        if view.now >= audit.state.commit_ends + view.params[audit.state.job].windows.audit_seconds // 2:
            self._backlog.suspect(record)
        return None

    def _reveal(
        self, view: MarketView, audit: AuditLedger, i: int, record: ClaimRecord, seen: Observation,
        listed: tuple[StateRoot, ...] | None,
    ) -> None:  # fmt: skip
        """Reveals that the witness agrees, with the Merkle proof of its state in the claim's list, or that it
        differs."""
        proof: tuple[Digest, ...] = ()
        if listed is not None:
            proof = tuple(merkle.proof(merkle.levels([merkle.leaf(root) for root in listed]), seen.u - 1))
        body = Body(TraceRoot(record.trace_root), StateRoot(record.out), StateRoot(record.out2))
        preimage = self._enrolment.preimage(view.ledger, audit, i)
        word = Word(preimage, seen.state, seen.leaf, seen.salt, listed is not None, body, proof)
        key = f"witness/reveal/{audit.id.hex()}/{i}/{seen.salt.hex()}/{word.agrees}"
        self._sender.try_again(key, self._party.contracts.witnesses.reveal(audit.id, i, word))
        if key not in self._told:
            self._told.add(key)
            self._printer.print_event(
                "witnessed", claim=record.id.hex(), round=record.round, slot=record.slot, t=len(seen.roots),
                verdict="agrees" if word.agrees else "differs",
            )  # fmt: skip
