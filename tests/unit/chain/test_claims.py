"""A claim as the market knows it, before a game is opened on it."""

from __future__ import annotations

import pytest

from lockstep.chain import games
from lockstep.protocol.errors import Mismatch, NotFoundError
from lockstep.protocol.jobs import NO_STATE, Body, Phase
from lockstep.protocol.types import ClaimId, TraceRoot
from tests.support.world import World

OTHER = Body(TraceRoot(bytes(32)), NO_STATE, NO_STATE)


@pytest.mark.parametrize("phase", [Phase.TRAINING, Phase.REVEALING], ids=["joined", "committed"])
def test_a_claim_that_is_not_revealed_says_nothing(phase: Phase) -> None:
    world = World.start()
    world.to(phase)
    with pytest.raises(NotFoundError, match="not revealed"):
        games.claim(world.contracts.market, world.claim_id(0), OTHER)


def test_a_revealed_claim_says_its_own_body_alone() -> None:
    world = World.start()
    world.to(Phase.ATTESTING)
    market, claim = world.contracts.market, world.claim_id(0)
    assert games.claim(market, claim, world.held[claim].body).trace_root == world.held[claim].body.trace_root
    with pytest.raises(Mismatch, match="other roots"):
        games.claim(market, claim, OTHER)
    with pytest.raises(NotFoundError, match="no claim"):
        games.claim(market, ClaimId(bytes(32)), OTHER)
