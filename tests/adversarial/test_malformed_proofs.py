"""Malformed, oversized and second-preimage proofs: every move of a game, spoiled in every way, is refused first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from lockstep.chain import games
from lockstep.chain.contracts import Call
from lockstep.node.player import HeldClaim, Side
from lockstep.protocol import merkle
from lockstep.protocol.dispute import honest, moves
from lockstep.protocol.dispute.game import game_id
from lockstep.protocol.market.ids import commitment
from lockstep.protocol.types import GameId, Seconds, StateRoot
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import Court, Turn, Where, reveal_of
from tests.adversarial.lies import lying, named
from tests.adversarial.test_moment_flip import ELEMENT, STEP, flips

PLACES = ("standing", "claim", "nonce", "t", "i", "chunk", "leaf_index")
"""Fields that name a move's place, and prove nothing."""
BLOBS = ("data", "posted", "words", "context", "descriptor", "header")
"""Fields of any length; all other bytes are words of 32."""
RULES = {
    "ProofInvalid", "LengthWrong", "StatementWrong", "OpeningsWrong", "OutOfRange", "DatasetInvalid",
    "DescriptorInvalid", "CommitmentMismatch",
}  # fmt: skip


def spoiled(value: Any) -> Iterator[Any]:
    """A move or an opening in which one field is wrong: too short, too long, or with one bit flipped."""
    for f in fields(value):
        if f.name in PLACES:
            continue
        for other in forms(f.name, getattr(value, f.name)):
            yield replace(value, **{f.name: other})


def forms(name: str, value: Any) -> Iterator[Any]:
    """The wrong forms of one field."""
    if is_dataclass(value):
        yield from spoiled(value)
    elif isinstance(value, tuple):
        yield from (value[:-1], (*value, value[-1])) if value else ()
        for i, item in list(enumerate(value))[-2:]:
            for other in spoiled(item) if is_dataclass(item) else [flipped(item)]:
                yield (*value[:i], other, *value[i + 1 :])
    elif isinstance(value, bytes) and value:
        yield flipped(value)
        if name in BLOBS:
            yield value[:-1]
            yield value + b"\0"


def flipped(item: bytes) -> bytes:
    """One bit of the first byte."""
    return bytes([item[0] ^ 1]) + item[1:]


def careless(court: Court, game: GameId, side: Side, held: HeldClaim, name: str, refusals: list[str]) -> Turn:
    """A player that first sends every spoiled form of its move."""
    seat = court.seat(game, side, held, name)

    def turn(now: Seconds) -> moves.Move | None:
        due = seat.due(now)
        if due is None:
            return None
        for bad in spoiled(due.move):
            refusals.extend([refused(court, games.call(court.contracts.game, bad, game), name, bad)])
        seat.send(due.call, due.key)
        return due.move

    return turn


def refused(court: Court, call: Call, name: str, bad: object) -> str:
    rule = court.refused(call, name)
    assert rule in RULES, f"{rule} of {bad}"
    return rule


def moves_of_a_game(court: Court) -> Ended:
    """Both sides of a liar's game are careless; it ends where it must."""
    first = court.run(0)
    court.claim({0: lying(first, flips("m", 7))})
    ((claim, found),) = court.audits().items()
    opening = honest.opening(court.known(claim), found.held, found.published, 0)
    assert opening is not None
    game = game_id(claim, court.address("verifier"), 0)
    contract = court.contracts.game
    refusals = [refused(court, games.call(contract, bad, game), "verifier", bad) for bad in spoiled(opening)]
    court.begin(opening, "verifier")
    defender = careless(court, game, Side.DEFENDER, court.held[claim], "worker-0", refusals)
    court.play(game, defender, careless(court, game, Side.CHALLENGER, found.held, "verifier", refusals))
    assert len(refusals) > 60, f"{len(refusals)} spoiled moves"
    court.settle()
    court.balance({"worker-0": court.params.role.slot_stake})
    return ended(court, game, Where(STEP, named(first.program(STEP), "m"), ELEMENT, rule="op"))


def second_preimage(court: Court) -> Ended:
    """An inner node of the trace's tree is passed off as a leaf, with the shorter proof that it has."""
    claims = court.claim()
    held = court.held[claims[0]]
    tree = honest.trace_levels(held.trace)
    claim = court.known(claims[0])
    program = held.step(1).program
    step = moves.Transition(held.state_zero, (), program.header, program.ops_root, program.consts_root)
    inner = StateRoot(tree[1][0])
    forged = moves.Open(claims[0], claim.body, 0, 1, inner, tuple(merkle.proof(tree, 0))[1:], step)
    assert claim.trace_root == tree[-1][0]
    rule = court.refused(
        games.call(court.contracts.game, forged, game_id(claims[0], court.address("mallory"), 0)), "mallory"
    )
    # With as many siblings as the depth, the inner node is a leaf's preimage to nobody: the domains differ.
    padded = replace(forged, next_proof=tuple(merkle.proof(tree, 0)))
    assert (
        court.refused(
            games.call(court.contracts.game, padded, game_id(claims[0], court.address("mallory"), 0)), "mallory"
        )
        == rule
    )
    court.settle()
    court.balance()
    return Ended("refused", Where(rule="ProofInvalid"), Where(rule=rule))


def reveals(court: Court) -> Ended:
    """A claim whose outputs are not its trace's last state: by a flipped, a missing and an extra sibling."""
    material = court.compute(court.run(0))
    opened = reveal_of(material)
    digest = commitment(material.claim, court.address("worker-0"), opened)
    court.send(court.contracts.market.commit(court.job_id, 0, 0, digest), "worker-0")
    for slot in (1, 2):
        m = court.compute(court.run(slot))
        court.send(
            court.contracts.market.commit(
                court.job_id, 0, slot, commitment(m.claim, court.address(f"worker-{slot}"), reveal_of(m))
            ),
            f"worker-{slot}",
        )
    rules = set()
    for proof in forms("proof_t", opened.proof_t):
        call = court.contracts.market.reveal(court.job_id, 0, 0, replace(opened, proof_t=proof))
        rules.add(court.refused(call, "worker-0"))
    swapped = replace(opened, body=replace(opened.body, out=opened.body.out2, out2=opened.body.out))
    assert court.refused(court.contracts.market.reveal(court.job_id, 0, 0, swapped), "worker-0") == "CommitmentMismatch"
    assert rules == {"ProofInvalid"}, rules
    court.send(court.contracts.market.reveal(court.job_id, 0, 0, opened), "worker-0")
    return Ended("refused", Where(rule="ProofInvalid"), Where(rule=rules.pop()))


CHEATS = (
    Cheat("malformed and oversized proofs", "fraud", {"every move of a game": moves_of_a_game}),
    Cheat(
        "malformed proofs, second preimages",
        "refused",
        {"an inner node as a leaf": second_preimage, "at reveal": reveals},
    ),
)


@pytest.mark.parametrize(("cheat", "form"), [(c, f) for c in CHEATS for f in c.forms])
def test_no_spoiled_proof_is_taken(court: Court, cheat: Cheat, form: str) -> None:
    run(court, cheat, form)
