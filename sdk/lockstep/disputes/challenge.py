"""Opening a game on a claim that was found wrong: what the chain says of the claim, and the move."""

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
    """The claim as the market knows it, and the game to open on it; None if it is right.

    Raises Mismatch if the claim says something else by now, or starts elsewhere than this machine computes.
    """
    claim = games.claim(market, record.id, record.body, found.held.carried)
    # INVARIANT: both sides argue from the S_0 that the contract computes.
    if claim.live and claim.state_zero != found.held.state_zero:
        raise Mismatch(
            "the claim's first state hashes differently here than in the contract",
            hint="after a reorganisation this passes; otherwise report it: it is a bug",
        )
    return claim, honest.opening(claim, found.held, found.published, nonce)
