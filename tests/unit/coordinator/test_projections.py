"""Events that an index of rows must not stumble over."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordinator.folds import PROJECTIONS, apply, rebuild
from coordinator.models import ClaimRow, CursorRow, EventRow, GameRow, IndexTable, JobRow, RoundRow
from coordinator.projections import LARGEST_INTEGER, claim_id_hex
from lockstep.chain import artifacts
from lockstep.protocol.jobs import ClaimStatus, JobStatus, Phase
from lockstep.protocol.market.effects import EFFECTS
from lockstep.protocol.market.events import Logged
from lockstep.protocol.types import MERGE_SLOT

from .conftest import JOB, NOW, WORKER, Api, claim_row

STORED: dict[type, type[IndexTable]] = {JobStatus: JobRow, Phase: RoundRow, ClaimStatus: ClaimRow}


def root(n: int) -> str:
    return f"0x{n:064x}"


def event(contract: str, name: str, args: dict[str, Any], number: int = 0) -> EventRow:
    return EventRow(
        block=21, log_index=number, block_hash=root(1), tx=root(2), time=NOW, contract=contract, name=name,
        job=args.get("job"), args=args,
    )  # fmt: skip


@pytest.mark.parametrize("kind", EFFECTS, ids=lambda kind: kind.__name__)
def test_what_an_event_keeps_is_a_column_of_its_row(kind: type[Logged]) -> None:
    effect = EFFECTS[kind]
    row = next(row for state, row in STORED.items() if isinstance(effect.state, state))
    assert set(effect.kept) <= {field.name for field in fields(kind)}  # type: ignore[arg-type]
    assert set(effect.kept) <= set(row.__table__.columns.keys())


def test_a_conviction_without_a_game_passes_the_index(api: Api) -> None:
    finding = {"wrong": 3, "program": root(0), "t": 0, "position": 0, "element": 0, "chunk": 0, "claimed_bits": root(1),
               "contract_bits": root(2)}  # fmt: skip
    args = {"game": root(0), "claim": claim_row().id, "finding": finding}
    with api.context.database.session() as session:
        apply(session, event("DisputeGame", "Convicted", args))
        assert session.get(GameRow, root(0)) is None


def test_a_witness_that_speaks_is_a_bit_beyond_the_integers_of_sql(api: Api) -> None:
    with api.context.database.session() as session:
        for number, who in enumerate((1, 64, 127)):
            args = {"job": JOB, "round": 0, "who": who, "account": WORKER.address, "mask": "3"}
            apply(session, event("JobMarket", "Attested", args, number))
    attested = api.client.get(f"/api/v1/jobs/{JOB}/rounds").json()["items"][0]["attested"]
    assert int(attested) == 1 << 1 | 1 << 64 | 1 << 127


def test_a_merge_that_is_made_again_is_void_and_the_next_attempt_is_a_higher_one(api: Api) -> None:
    merged = {"job": JOB, "round": 0, "worker": WORKER.address, "out": root(1), "out2": root(2), "checkpoint_cid": ""}
    claims = [claim_id_hex(JOB, 0, attempt, MERGE_SLOT) for attempt in (0, 1)]
    with api.context.database.session() as session:
        for number, claim in enumerate(claims):
            apply(session, event("JobMarket", "Merged", {**merged, "claim": claim}, number))
    with api.context.database.reading() as session:
        rows = [session.get_one(ClaimRow, claim) for claim in claims]
        assert [(row.state, row.attempt) for row in rows] == [("void", 0), ("merged", 1)]
        assert session.get_one(JobRow, JOB).attempt == 1


def test_a_merge_that_is_convicted_in_a_void_round_raises_no_attempt(api: Api) -> None:
    claim = claim_id_hex(JOB, 0, 0, MERGE_SLOT)
    merged = {"worker": WORKER.address, "claim": claim, "out": root(1), "out2": root(2), "checkpoint_cid": ""}
    convicted = {"claim": claim, "slot": MERGE_SLOT, "worker": WORKER.address, "challenger": WORKER.address}
    said = [("Merged", merged), ("RoundVoid", {"attempt": 0}), ("Convicted", convicted)]
    with api.context.database.session() as session:
        for number, (name, args) in enumerate(said):
            assert apply(session, event("JobMarket", name, {"job": JOB, "round": 0, **args}, number))
    with api.context.database.reading() as session:
        assert session.get_one(ClaimRow, claim).state == "convicted"
        assert session.get_one(RoundRow, (JOB, 0)).state == "void"
        assert session.get_one(JobRow, JOB).attempt == 0


WIDEST = {"bytes32": "0x" + "ff" * 32, "address": "0x" + "ff" * 20, "bool": True, "bytes": "0x", "bytes32[]": []}


def widest(part: dict[str, Any]) -> Any:
    """The largest value of an argument, as the index spells it."""
    kind: str = part["type"]
    if kind == "tuple":
        return {artifacts.snake(p["name"]): widest(p) for p in part["components"]}
    if part["name"].endswith("Cid"):
        return ""
    if kind.startswith("uint"):
        bits = int(kind[4:])
        return str((1 << bits) - 1) if bits > 64 else (1 << bits) - 1
    return WIDEST[kind]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("contract", "name"), sorted(PROJECTIONS))
def test_the_largest_value_of_every_argument_passes_the_index(api: Api, contract: str, name: str) -> None:
    inputs = artifacts.load(contract).entries("event")[name]["inputs"]
    args = {artifacts.snake(part["name"]): widest(part) for part in inputs}
    own = {"job": JOB, "round": 0, "slot": 1, "claim": claim_row().id, "game": "0x" + "66" * 32, "key": claim_row().id}
    with api.context.database.session() as session:
        apply(session, event(contract, name, args))
        apply(session, event(contract, name, args | {k: v for k, v in own.items() if k in args}, 1))
    with api.context.database.reading() as session:
        assert session.get(ClaimRow, claim_row().id) is not None or name == "Left"


@pytest.mark.sampled(1)
def test_numbers_beyond_sql_are_shown_as_its_largest(api: Api) -> None:
    most = (1 << 64) - 1
    finding = {"wrong": 0, "program": root(0), "t": 0, "position": most, "element": most, "chunk": most,
               "claimed_bits": root(1), "contract_bits": root(2)}  # fmt: skip
    with api.context.database.session() as session:
        args = {"game": "0x" + "66" * 32, "claim": claim_row().id, "finding": finding}
        assert apply(session, event("DisputeGame", "Convicted", args))
    with api.context.database.reading() as session:
        assert session.get_one(GameRow, "0x" + "66" * 32).element == LARGEST_INTEGER


def test_an_event_that_fits_no_row_is_skipped_with_all_that_it_did(api: Api) -> None:
    stray = event("JobMarket", "Revealed", {"job": JOB, "round": 0, "claim": root(9)})
    half = event(
        "JobMarket", "Revealed",
        {"job": JOB, "round": 99, "claim": claim_row().id, "trace_root": root(1), "out": root(2), "out2": root(3),
         "trace_cid": "", "payload_cid": ""}, 1,
    )  # fmt: skip
    good = event("JobMarket", "Committed", {"job": JOB, "round": 0, "slot": 1, "commitment": root(4)}, 2)
    with capture_logs() as said, api.context.database.session() as session:
        assert [apply(session, e) for e in (stray, half, good)] == [False, False, True]
    assert [line["event_name"] for line in said] == ["Revealed", "Revealed"]
    with api.context.database.reading() as session:
        claim = session.get_one(ClaimRow, claim_row().id)
        assert (claim.state, claim.commitment, claim.out) == ("committed", root(4), None), "no half of an event stays"


def test_a_rebuild_says_how_many_events_fit_no_row(api: Api) -> None:
    with api.context.database.session() as session:
        session.add(event("JobMarket", "Sealed", {"job": JOB, "round": 0, "seed": root(1)}))
        session.add(event("JobMarket", "Unheard", {}, 1))
        assert rebuild(session) == 1


def test_what_the_index_skipped_is_a_metric(api: Api) -> None:
    with api.context.database.session() as session:
        cursor = session.get_one(CursorRow, 1)
        cursor.unreadable, cursor.unprojected, cursor.held = 3, 2, "JobMarket.freeze waits: the base fee is 9 gwei"
    text = api.client.get("/metrics").text
    assert "lockstep_coordinator_unreadable_logs 3.0" in text
    assert "lockstep_coordinator_unprojected_events 2.0" in text
    assert "lockstep_coordinator_held_by_fee 1.0" in text
    assert api.client.get("/api/v1/status").json()["held"] == "JobMarket.freeze waits: the base fee is 9 gwei"
    with api.context.database.session() as session:
        session.get_one(CursorRow, 1).held = ""
    assert "lockstep_coordinator_held_by_fee 0.0" in api.client.get("/metrics").text
    assert api.client.get("/api/v1/status").json()["held"] is None


@pytest.mark.parametrize(("t", "moves"), [(0, 2), (7, 1)], ids=["over the trace", "about a step"])
def test_the_step_that_is_argued_is_in_the_games_words(api: Api, t: int, moves: int) -> None:
    def standing(t: int) -> dict[str, Any]:
        parties = (int(WORKER.address, 16) << 96) + (512 << 64) + (t << 32) + 9
        return {
            "claim": root(1),
            "parties": str(parties),
            "node": root(2),
            "statement": root(3),
            "turn": "1",
            "staged": "0",
        }

    said = {"claim": claim_row().id, "challenger": WORKER.address, "defender": WORKER.address, "nonce": 0, "t": t}
    with api.context.database.session() as session:
        opened = event("DisputeGame", "Opened", {"game": root(5), "standing": standing(t), **said})
        argued = event("DisputeGame", "Argued", {"game": root(5), "standing": standing(7), "statement": "0x"}, 1)
        argued.tx = root(3) if t == 0 else opened.tx
        for one in (opened, argued):
            one.game = root(5)
            session.add(one)
            session.flush()
            apply(session, one)
        game = session.get_one(GameRow, root(5))
        assert (game.step, game.moves) == (7, moves)
