"""Rows for the rules of the dispute game; `table.py` has all other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.game import game_id
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import NO_CLAIM
from lockstep.protocol.market import court, ids
from lockstep.protocol.market.types import BURN
from lockstep.protocol.types import Digest, StateRoot
from tests.rules.rows import Row, row
from tests.rules.scenes import at_step, game, next_move, whole
from tests.support.market.twin import ACCOUNTS, AT, CHAIN_ID, World, signature

OTHER = Digest(keccak(b"another"))
Part = Callable[[World], Any]


def given(i: int, slot: int = 0) -> Part:
    """Returns the i-th argument of the due move."""
    return lambda w: next_move(w, slot)[2 + i]


def due(slot: int = 0, *, of: str, **changed: Any) -> tuple[Any, ...]:
    """Returns all arguments of the due move, with some changed: `_2` is the third."""
    return tuple(changed.get(f"_{i}", given(i, slot)) for i in range(COUNT[of]))


COUNT = {
    "reveal": 3, "pick": 5, "adjacent": 3, "defend": 7, "revealTensor": 7, "postLeaf": 3, "proveOp": 3, "proveAlias": 6,
    "provePadding": 2,
}  # fmt: skip
"""Number of arguments of each move, with the game and its state among them."""


def standing(w: World) -> Any:
    """Returns the current state of the game on the first slot."""
    return w.state.games[game(w)].standing


def stale(w: World) -> Any:
    """Returns a state that the game never had."""
    return standing(w)._replace(node=OTHER)


def turn(mover: str, function: str, events: str, slot: int = 0) -> Iterator[Row]:
    """Yields rows for a side's turn: the due move by the side, by others, with a stale state, and a premature end."""
    parts = due(slot, of=function)
    other = "verifier" if mover.startswith("worker") else f"worker-{slot}"
    yield row(events, mover, f"game.{function}", *parts)
    yield row(f"Unauthorized({other})", other, f"game.{function}", *parts)
    yield row("Unauthorized(mallory)", "mallory", f"game.{function}", *parts)
    elsewhere = [parts[0], lambda w: parts[1](w)._replace(node=OTHER), *parts[2:]]
    yield row("StandingStale", mover, f"game.{function}", *elsewhere)
    yield row("ClockRunning", "poor", "game.resolve", *parts[:2])
    wrong = "provePadding" if function != "provePadding" else "pickElement"
    rest = () if wrong == "provePadding" else (0,)
    yield row("PhaseWrong", mover, f"game.{wrong}", *parts[:2], *rest)


def signed(w: World, root: bytes, by: str = "worker-0", r: int = 0) -> court.Signed:
    """Returns a signed claim for the first slot's work."""
    work = the_work(w, r)
    said = (Digest(keccak(root)), 2, StateRoot(OTHER), StateRoot(OTHER))
    parts = (work.job, work.round, work.attempt, work.slot, work.seed, work.base, *said)
    digest = ids.claim_digest(CHAIN_ID, AT["JobMarket"], parts)
    return court.Signed(*said, signature(by, digest))  # type: ignore[arg-type]


def the_work(w: World, r: int = 0) -> court.Work:
    """Returns the work of the first slot."""
    ro = w.round(r)
    return court.Work(w.job, r, ro.attempt, 0, ro.seed, ro.base)


def opening(at: int, /, slot: int = 0, **changed: Any) -> tuple[Part, ...]:
    """Returns the arguments of `open` on one transition."""
    return tuple(_part(i, lambda w: at_step(w, at, slot, **changed)) for i in range(7))


def the_whole(slot: int = 0, nonce: int = 0) -> tuple[Part, ...]:
    """Returns the arguments of `open` on a whole trace."""
    return tuple(_part(i, lambda w: whole(w, slot, nonce)) for i in range(7))


def _part(i: int, arguments: Part) -> Part:
    return lambda w: arguments(w)[i]


def transition(t: int, **changed: Any) -> Part:
    """Returns the start and Program of a transition, with one defect."""
    return lambda w: replace(at_step(w, t)[6], **changed)


def shown(**changed: Any) -> Part:
    """Returns the proof of the op, with one defect."""
    return lambda w: next_move(w, 0)[4]._replace(**changed)


WRONG: dict[str, list[tuple[str, int, Any]]] = {
    "defend": [("StatementWrong", 2, b"another"), ("ProofInvalid", 3, OTHER), ("ProofInvalid", 4, OTHER),
               ("ProofInvalid", 5, (OTHER,)), ("LengthWrong(8, 0)", 6, ())],
    "revealTensor": [("StatementWrong", 2, b"another"), ("ProofInvalid", 3, b"another"), ("ProofInvalid", 4, (OTHER,)),
                     ("ProofInvalid", 5, OTHER)],
    "proveAlias": [("StatementWrong", 2, b"another"), ("ProofInvalid", 3, b"another"), ("ProofInvalid", 4, OTHER)],
}  # fmt: skip
"""Wrong values of single arguments, with the resulting errors."""


def spoiled(mover: str, function: str, slot: int = 0) -> Iterator[Row]:
    """Yields rows for the due move with each argument wrong."""
    for error, i, wrong in WRONG[function]:
        parts = list(due(slot, of=function))
        parts[i] = wrong
        yield row(error, mover, f"game.{function}", *parts)


NO_GAME = NO_DIGEST = Digest(bytes(32))
NO_PROOF = court.OperandProof(b"", 0, b"", (), b"")
ANYWHERE = moves.GameState(NO_CLAIM, 0, NO_DIGEST, NO_DIGEST, 0, 0)

MOVES: dict[str, tuple[Any, ...]] = {
    "reveal": ([],), "pick": (0, NO_DIGEST, []), "adjacent": (moves.NO_TRANSITION,),
    "defend": (b"", NO_DIGEST, NO_DIGEST, [], []), "revealTensor": (b"", b"", [], NO_DIGEST, []), "postLeaf": (b"",),
    "pickElement": (0,), "postPartials": (b"",), "pickPartial": (0, b""), "stage": (NO_PROOF,), "proveOp": (NO_PROOF,),
    "proveAlias": (b"", b"", NO_DIGEST, []), "provePadding": (), "resolve": (),
}  # fmt: skip
"""Every move, with minimal arguments."""

# fmt: off
GAMES: dict[str, list[Row]] = {
    "begun": [
        *(row("PhaseWrong(NONE)", "poor", f"game.{move}", NO_GAME, ANYWHERE, *rest) for move, rest in MOVES.items()),
    ],
    "liars": [
        row("TracePublished", "worker-0", "witnesses.publish", lambda w: w.job, 0, 0, "list"),
        row("WrongPhase", "poor", "witnesses.draw", lambda w: w.job, 0),
        row("", "poor", "witnesses.auditIdOf", lambda w: w.job, 0, 3),
        row("", "poor", "demands.payloadDemandId", lambda w: w.claim(0), 5),
        row("Opened Locked", "verifier", "game.open", *the_whole()),
        row("StakeTooLow(poor, 153, 0)", "poor", "game.open", *the_whole()),
        row("CommitmentMismatch", "verifier", "game.open", lambda w: w.claim(1), *the_whole()[1:]),
        row("WindowClosed", "verifier", "game.open", OTHER, *the_whole()[1:]),
        row("Opened Argued Locked", "verifier", "game.open", *opening(1)),
        row("Opened Argued Locked", "verifier", "game.open", *opening(2)),
        row("StepOutOfRange(3)", "verifier", "game.open", *opening(1, t=3)),
        row("ProofInvalid", "verifier", "game.open", *opening(1, next=OTHER)),
        row("ProofInvalid", "verifier", "game.open", *opening(1, next_proof=())),
        row("ProofInvalid", "verifier", "game.open", *opening(1)[:6], transition(1, prev=OTHER)),
        row("ProofInvalid", "verifier", "game.open", *opening(2)[:6], transition(2, prev=OTHER)),
        row("ProofInvalid", "verifier", "game.open", *opening(2)[:6], transition(2, prev_proof=())),
        row("ProofInvalid", "verifier", "game.open", *opening(1)[:6], transition(1, ops_root=OTHER)),
        row("ProofInvalid", "verifier", "game.open", *opening(1)[:6], transition(1, header=b"short")),
        row(f"Convicted Convicted Credited({BURN}, 303) Credited(requester, 202) Slashed", "verifier",
            "game.equivocate", the_work, lambda w: signed(w, b"one"), lambda w: signed(w, b"other")),
        row("EqualBits", "verifier", "game.equivocate", the_work, lambda w: signed(w, b"one"), lambda w: signed(w,
            b"one")),
        row("Unauthorized(worker-0)", "verifier", "game.equivocate", the_work, lambda w: signed(w, b"one"), lambda w:
            signed(w, b"other", "verifier")),
        row("Unauthorized(worker-0)", "verifier", "game.equivocate", the_work, lambda w: signed(w, b"one", "verifier"),
            lambda w: signed(w, b"other")),
        row("Unauthorized", "verifier", "game.equivocate", lambda w: replace(the_work(w), slot=9), lambda w: signed(w,
            b"one"), lambda w: signed(w, b"other")),
    ],
    "trace to reveal": [
        *turn("worker-0", "reveal", "Revealed"),
        row("GameExists", "verifier", "game.open", *the_whole()),
        row("Opened Locked", "verifier", "game.open", *the_whole(nonce=1)),
        row("GamesOpen(1)", "worker-0", "game.equivocate", the_work, lambda w: signed(w, b"one"), lambda w: signed(w,
            b"other")),
        row("LengthWrong(2, 1)", "worker-0", "game.reveal", game, standing, [OTHER]),
        row("ProofInvalid", "worker-0", "game.reveal", game, standing, [OTHER, OTHER]),
        *(row("StandingStale", "worker-0", f"game.{move}", game, stale, *rest) for move, rest in MOVES.items()),
    ],
    "trace to pick": [
        *turn("verifier", "pick", "Picked"),
        row("LengthWrong(1, 0)", "verifier", "game.pick", *due(of="pick", _4=())),
        row("ProofInvalid", "verifier", "game.pick", *due(of="pick", _4=(OTHER,))),
        row("ProofInvalid", "verifier", "game.pick", *due(of="pick", _3=OTHER)),
    ],
    "step to argue": [
        *turn("verifier", "adjacent", "Argued"),
        row("ProofInvalid", "verifier", "game.adjacent", *due(of="adjacent", _2=transition(1, prev=OTHER))),
    ],
    "step to defend": [
        *turn("worker-0", "defend", "Defended"),
        *spoiled("worker-0", "defend"),
    ],
    "graph to pick": [*turn("verifier", "pick", "Picked")],
    "tensor to reveal": [
        *turn("worker-0", "revealTensor", "TensorRevealed"),
        *spoiled("worker-0", "revealTensor"),
    ],
    "leaf to post": [
        *turn("worker-0", "postLeaf", "LeafPosted"),
        row("LengthWrong(4, 3)", "worker-0", "game.postLeaf", game, standing, bytes(3)),
        row("ProofInvalid", "worker-0", "game.postLeaf", game, standing, bytes(4)),
    ],
    "op to prove": [
        *turn("verifier", "proveOp",
            "Convicted Resolved Convicted Credited(verifier, 303) Credited(requester, 202) Slashed Unlocked"),
        row("StatementWrong", "verifier", "game.proveOp", game, standing, shown(context=b"another")),
        row("StatementWrong", "verifier", "game.proveOp", game, standing, shown(descriptor=b"another")),
        row("LengthWrong(1, 1)", "verifier", "game.proveOp", game, standing, shown(chunk=1)),
        row("ProofInvalid", "verifier", "game.proveOp", game, standing, shown(posted=bytes(4))),
        row("PhaseWrong(ELEMENT)", "verifier", "game.pickElement", game, standing, 0),
        row("ElementPicked Staged", "verifier", "game.stage", game, standing, lambda w: next_move(w, 0)[4]),
    ],
    "padding to prove": [
        *turn("verifier", "provePadding", "Convicted Resolved Convicted Credited Credited Slashed Unlocked", 1),
    ],
    "alias to prove": [
        *turn("verifier", "proveAlias", "Convicted Resolved Convicted Credited Credited Slashed Unlocked", 2),
        *spoiled("verifier", "proveAlias", 2),
    ],
    "last second of the clock": [
        row("ClockRunning", "poor", "game.resolve", game, standing),
        row("Revealed", "worker-0", "game.reveal", *due(of="reveal")),
    ],
    "silent defender": [
        row("Resolved Convicted Credited(verifier, 303) Credited(requester, 202) Slashed Unlocked", "poor",
            "game.resolve", game, standing),
        row("StandingStale", "poor", "game.resolve", game, stale),
        row("ClockExpired", "worker-0", "game.reveal", *due(of="reveal")),
    ],
    "silent challenger": [
        row("Resolved BondTaken Credited(worker-0, 91)", "poor", "game.resolve", game, standing),
        row("ClockExpired", "verifier", "game.pick", *due(of="pick")),
    ],
    "convicted elsewhere": [row("Resolved Unlocked", "poor", "game.resolve", game, standing)],
    "four games": [
        row("Resolved Convicted Credited(witness, 151) Credited(verifier, 75) Credited(mallory, 75) "
            "Credited(requester, 202) Slashed Unlocked", "poor", "game.resolve",
            lambda w: game_id(w.claim(0), ACCOUNTS["witness"], 0),
            lambda w: w.state.games[game_id(w.claim(0), ACCOUNTS["witness"], 0)].standing),
    ],
    "carry demanded": [
        row("GamesOpen(1)", "worker-0", "game.equivocate", lambda w: the_work(w, 1), lambda w: signed(w, b"one", r=1),
            lambda w: signed(w, b"other", r=1)),
    ],
    "four games over": [row("Resolved Unlocked", "poor", "game.resolve", game, standing)],
    "game over": [
        *(row("PhaseWrong(CLOSED)", "worker-0", f"game.{move}", game, ANYWHERE, *rest) for move, rest in MOVES.items()),
        row("GameExists", "verifier", "game.open", *the_whole()),
    ],
    "delegated": [
        row("Revealed", "poor", "game.reveal", *due(of="reveal")),
        row("Revealed", "worker-0", "game.reveal", *due(of="reveal")),
        row("Unauthorized(mallory)", "mallory", "game.reveal", *due(of="reveal")),
    ],
}
