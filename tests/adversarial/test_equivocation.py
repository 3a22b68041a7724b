"""Equivocation: a worker signs two claims for one slot, as two machines with one key would. No game is needed."""

import pytest
from hexbytes import HexBytes

from lockstep.protocol.claims import typed_hash
from lockstep.protocol.jobs import Body
from lockstep.protocol.types import ClaimId, Seed, StateRoot, TraceRoot
from tests.adversarial.cheat import Cheat, Ended, run
from tests.adversarial.court import Court, Where

LIAR = 0


def body_of(court: Court, claim: ClaimId) -> Body:
    """What the worker has revealed."""
    return court.record(claim).body


def work(court: Court, claim: ClaimId, seed: Seed | None = None) -> tuple[object, ...]:
    """What the signatures are about."""
    stored, held = court.contracts.market.round(court.job_id, 0), court.contracts.market.claim(claim)
    return (court.job_id, 0, held.attempt, LIAR, seed or stored.seed, stored.base)


def signed(
    court: Court, claim: ClaimId, body: Body, signer: str = "worker-0", seed: Seed | None = None
) -> tuple[object, ...]:
    """A body with its signature, as the coordinator was told."""
    market = court.contracts.market
    stored, held = market.round(court.job_id, 0), market.claim(claim)
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
    gained = court.balance({"worker-0": court.params.slot_stake})
    assert gained["verifier"] > 0, "who showed it is rewarded"
    return Ended(
        "fraud", Where(rule="equivocation"), Where(rule=("op", "alias", "padding", "equivocation")[finding["wrong"]])
    )


CHEAT = Cheat("equivocation", "fraud", {"two signatures": play})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_two_signatures_for_one_slot_convict_at_once(court: Court, form: str) -> None:
    run(court, CHEAT, form)
