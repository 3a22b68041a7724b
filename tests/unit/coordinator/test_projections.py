"""Events that an index of rows must not stumble over."""

from __future__ import annotations

from typing import Any

from coordinator.models import Event, Game
from coordinator.projections import apply

from .conftest import JOB, NOW, WORKER, Api, claim_row


def root(n: int) -> str:
    return f"0x{n:064x}"


def event(contract: str, name: str, args: dict[str, Any], number: int = 0) -> Event:
    return Event(
        block=21, log_index=number, block_hash=root(1), tx=root(2), time=NOW, contract=contract, name=name,
        job=args.get("job"), args=args,
    )  # fmt: skip


def test_a_conviction_without_a_game_passes_the_index(api: Api) -> None:
    finding = {"wrong": 3, "program": root(0), "t": 0, "position": 0, "element": 0, "chunk": 0, "claimed_bits": root(1),
               "contract_bits": root(2)}  # fmt: skip
    args = {"game": root(0), "claim": claim_row().id, "finding": finding}
    with api.context.database.session() as session:
        apply(session, event("DisputeGame", "Convicted", args))
        assert session.get(Game, root(0)) is None


def test_a_witness_that_speaks_is_a_bit_beyond_the_integers_of_sql(api: Api) -> None:
    with api.context.database.session() as session:
        for number, who in enumerate((1, 64, 127)):
            args = {"job": JOB, "round": 0, "who": who, "account": WORKER.address, "mask": "3"}
            apply(session, event("JobMarket", "Attested", args, number))
    attested = api.client.get(f"/api/v1/jobs/{JOB}/rounds").json()[0]["attested"]
    assert int(attested) == 1 << 1 | 1 << 64 | 1 << 127
