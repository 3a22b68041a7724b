"""Equivocation: a worker signs two claims for one slot, as two machines with one key would. No game is needed."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from hexbytes import HexBytes

from lockstep.chain.contracts import Call
from lockstep.node.identity import NodeKey
from lockstep.node.ledger import ClaimRecord
from lockstep.protocol.jobs import Body
from lockstep.protocol.market.ids import typed_hash
from lockstep.protocol.types import ClaimId, Seed, StateRoot, TraceRoot
from tests.adversarial.cheat import Cheat, Ended, run
from tests.adversarial.court import Court, Where
from verifier.equivocation import Equivocations
from verifier.journal import Journal
from worker.announcing import Announcer
from worker.progress import Material

LIAR = 0


def body_of(court: Court, claim: ClaimId) -> Body:
    """What the worker has revealed."""
    return court.record(claim).body


def work(court: Court, claim: ClaimId, seed: Seed | None = None) -> tuple[object, ...]:
    """What the signatures are about."""
    held = court.contracts.market.claim(claim)
    stored = court.contracts.market.round(court.job_id, held.round)
    return (court.job_id, held.round, held.attempt, held.slot, seed or stored.seed, stored.base)


def signed(
    court: Court, claim: ClaimId, body: Body, signer: str = "worker-0", seed: Seed | None = None
) -> tuple[object, ...]:
    """A body with its signature, as the coordinator was told."""
    market = court.contracts.market
    held = market.claim(claim)
    stored = market.round(court.job_id, held.round)
    digest = typed_hash(
        court.contracts.addresses.chain_id,
        market.address,
        held,
        body,
        seed or Seed(stored.seed),
        StateRoot(stored.base),
    )
    signature = bytes(court.accounts[signer].unsafe_sign_hash(HexBytes(digest)).signature)
    return (body.trace_root, held.transitions, body.out, body.out2, signature)


def play(court: Court) -> Ended:
    """The revealed claim is right; the other one was signed for somebody else to see."""
    claim = court.claim()[LIAR]
    body = body_of(court, claim)
    other = Body(TraceRoot(b"\x33" * 32), body.out, body.out2)
    game = court.contracts.game
    about, a, b = work(court, claim), signed(court, claim, body), signed(court, claim, other)
    refusals = [
        court.refused(game.call("equivocate", about, a, a), "verifier"),
        court.refused(game.call("equivocate", about, a, signed(court, claim, other, "mallory")), "verifier"),
        # Another seed is another claim: a reorganisation drew it, and nobody is to blame.
        court.refused(
            game.call("equivocate", about, a, signed(court, claim, other, seed=Seed(b"\x44" * 32))), "verifier"
        ),
    ]
    assert refusals == ["EqualBits", "Unauthorized", "Unauthorized"]
    court.send(game.call("equivocate", about, a, b), "verifier")
    assert court.convicted(claim)
    finding = next(e.args["finding"] for e in court.events("Convicted") if e.contract == "DisputeGame")
    court.settle()
    gained = court.balance({"worker-0": court.params.role.slot_stake})
    assert gained["verifier"] > 0, "who showed it is rewarded"
    return Ended(
        "fraud", Where(rule="equivocation"), Where(rule=("op", "alias", "padding", "equivocation")[finding["wrong"]])
    )


def shown(court: Court) -> Ended:
    """A worker's own announcer tells a coordinator two claims, and another coordinator none of it; a verifier reads."""
    published: list[Material] = []
    claim = court.claim(change={LIAR: lambda material: published.append(material) or material})[LIAR]
    stored, (material,) = court.contracts.market.round(court.job_id, 0), published
    announcer = Announcer(
        "", court.accounts["worker-0"], NodeKey(bytes([1]) * 32), court.contracts.addresses.chain_id,
        court.contracts.market.address,
    )  # fmt: skip
    first, *others = material.roots
    materials = (material, replace(material, roots=(StateRoot(first[::-1]), *others)))
    said = [announcer.body(m, StateRoot(stored.base), court.params.role.transitions) for m in materials]
    # What a stranger signed, what is about another seed, and what is nothing: none of it fills the verifier's journal.
    stray = [
        {**said[0], "signature": said[1]["signature"]},
        {"claim": {**said[0]["claim"], "seed": "0x" + "44" * 32}},
        7,
    ]
    with (
        Coordinator([*stray, said[0]]) as one,
        Coordinator([said[1], said[0]]) as other,
        Coordinator(None) as mute,
        Journal(court.folder / f"verifier-{court.now()}") as journal,
    ):
        watch = Equivocations([one.url, mute.url], court.contracts, journal)
        assert found(watch, court) == [], "one claim, signed once"
        watch.close()
        # The verifier is killed, and started again with another coordinator: what it read is in its home.
        watch = Equivocations([other.url], court.contracts, journal)
        ((record, call),) = found(watch, court, wanted=1)
        assert record.id == claim
        court.send(call, "verifier")
        assert found(watch, court) == [], "once"
        watch.close()
    assert court.convicted(claim)
    finding = next(e.args["finding"] for e in court.events("Convicted") if e.contract == "DisputeGame")
    court.settle()
    assert court.balance({"worker-0": court.params.role.slot_stake})["verifier"] > 0, "who showed it is rewarded"
    return Ended(
        "fraud", Where(rule="equivocation"), Where(rule=("op", "alias", "padding", "equivocation")[finding["wrong"]])
    )


def found(watch: Equivocations, court: Court, wanted: int = 0) -> list[tuple[ClaimRecord, Call]]:
    """What a verifier has to show after it has read its coordinators."""
    pairs: list[tuple[ClaimRecord, Call]] = []
    for _ in range(60):
        watch.step(court.ledger())
        pairs = list(watch.due(court.ledger()))
        if wanted and len(pairs) == wanted:
            break
        if not wanted and watch.looks > 1:
            break
        time.sleep(0.1)
    return pairs


class Coordinator(HTTPServer):
    """Says what it was shown; None: answers nothing that can be read."""

    def __init__(self, items: list[Any] | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.items = items
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Coordinator:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    server: Coordinator

    def do_GET(self) -> None:
        items = self.server.items
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>" if items is None else json.dumps({"items": items, "last": len(items)}).encode())

    def log_message(self, *_: object) -> None:
        """Quiet."""


CHEAT = Cheat("equivocation", "fraud", {"two signatures": play, "shown to coordinators": shown})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_two_signatures_for_one_slot_convict_at_once(court: Court, form: str) -> None:
    run(court, CHEAT, form)
