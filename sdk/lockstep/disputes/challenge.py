"""Builds the opening move of a game on a claim that was found wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.chain import games
from lockstep.market.ledger import ClaimRecord
from lockstep.market.replay import Replay
from lockstep.protocol.dispute import honest, moves
from lockstep.protocol.dispute.game import DisputedClaim
from lockstep.protocol.errors import Mismatch

if TYPE_CHECKING:
    from lockstep.chain.contracts import Market


def opening_of(
    market: Market, record: ClaimRecord, found: Replay, nonce: int
) -> tuple[DisputedClaim, moves.Open | None]:
    """Returns the claim as the market has it, and the move that opens a game on it; None instead of a move if it is
    right.

    Raises Mismatch if the claim on chain has changed meanwhile, or if its S_0 differs from this machine's.
    """
    claim = games.claim(market, record.id, record.body, found.held.carried)
    # INVARIANT: both sides argue from the S_0 that the contract computes.
    if claim.live and claim.state_zero != found.held.state_zero:
        raise Mismatch(
            "the claim's first state has another hash here than in the contract",
            hint="try again if the chain was reorganised; otherwise report this bug",
        )
    return claim, honest.opening(claim, found.held, found.published, nonce)
