"""The pages over a seeded market: every number is the API's, the API's are the chain's, and no stranger's word runs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import combinations
from typing import Any

import pytest
from alembic import command
from fastapi.routing import APIRoute
from sqlalchemy import delete, event, select
from starlette.testclient import TestClient

from coordinator import drawing, pages
from coordinator.api import create_app
from coordinator.db import alembic_config
from coordinator.descriptions import Descriptions
from coordinator.exports import table
from coordinator.folds import rebuild
from coordinator.models import (
    AccountRow,
    ClaimRow,
    CursorRow,
    EventRow,
    FlowRow,
    IndexTable,
    LockRow,
    LossRow,
    RoundRow,
)
from coordinator.projections import claim_id_hex
from coordinator.rates import RequestRates
from coordinator.schema import ChainOut
from lockstep.base.amounts import Currency
from lockstep.disputes.progress import DisputeReader
from lockstep.protocol.types import Address, GameId
from tests.support import servers
from tests.support.court import LIE
from tests.support.pages import LONG, TITLE, WORDS, Seeded, seeded


@dataclass
class Market:
    """A seeded market and a client of its coordinator."""

    made: Seeded
    client: TestClient

    def json(self, path: str) -> Any:
        """The API's answer."""
        answer = self.client.get(f"/api/v1{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def text(self, path: str) -> str:
        """A page."""
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    @property
    def transaction(self) -> str:
        """The page of a game's last transaction."""
        game = self.json(f"/games/{self.made.games['fraud']}")
        return f"/transactions/{game['moves'][-1]['transaction']}"

    @property
    def paths(self) -> list[str]:
        """Every kind of page."""
        claim = self.json(f"/jobs/{LONG}/grid")["cells"][0]["id"]
        games = [f"/disputes/{game}" for game in self.made.games.values()]
        worker = self.made.court.arena.worker.address  # type: ignore[union-attr]
        return ["/", f"/compare?run={LONG}&run={self.made.job}", f"/runs/{LONG}",
                f"/runs/{self.made.job}", f"/runs/{LONG}?x=tokens&before=20", f"/claims/{claim}",
                "/accounts", "/accounts?role=verifier", f"/accounts/{worker}", f"/accounts/{self.made.workers[0]}",
                "/disputes", *games, "/economy", "/chain", "/chain?event=Paid", self.transaction, "/search?q=0x0000",
                "/status"]  # fmt: skip


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    made = seeded(tmp_path_factory.mktemp("pages"), rounds=24, slots=4)
    with TestClient(create_app(made.context()), raise_server_exceptions=False) as client:
        yield Market(made, client)
    made.court.arena.stop()  # type: ignore[union-attr]
    made.database.close()


class Checked(HTMLParser):
    """The faults of a page: parts that its policy forbids, and parts that it lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.headings: list[str] = []
        self.commands = 0
        self.images_without_names = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.faults += [f"{tag} {name}" for name in given if name == "style" or name.startswith("on")]
        self.faults += [f"{tag} {v}" for v in given.values() if (v or "").strip().lower().startswith("javascript:")]
        if tag == "script" and not (given.get("src") or "").startswith("/static/"):
            self.faults.append("an inline script")
        if tag in ("iframe", "object", "embed", "base", "style"):
            self.faults.append(tag)
        if tag == "form" and (given.get("method"), (given.get("action") or "x")[0]) != ("get", "/"):
            self.faults.append("a form that sends")
        if tag == "svg" and "aria-label" not in given and "aria-hidden" not in given:
            self.faults.append("a picture without a name")
        if tag in ("h1", "h2", "h3"):
            self.headings.append(tag)
        self.commands += given.get("id") == "command"


def test_every_page_is_html_that_its_own_policy_lets_through(market: Market) -> None:
    for path in market.paths:
        answer = market.client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8"), path
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        seen = Checked()
        seen.feed(answer.text)
        assert seen.faults == [], path
        assert seen.headings.count("h1") == 1, path
        assert seen.commands == 1, f"{path} has one command to check it by"


def test_a_strangers_words_are_words(market: Market) -> None:
    shown = market.text(f"/runs/{market.made.job}")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert WORDS not in shown
    assert market.json(f"/jobs/{market.made.job}/run")["description"]["model"].count(WORDS) == 1, "as it was written"


def test_a_run_is_called_by_its_title_where_it_has_one(market: Market) -> None:
    called, words = "<bdi>&lt;i&gt;Night owls&lt;/i&gt;</bdi>", "gpt, heads 4, width 128, layers 4"
    run = market.text(f"/runs/{LONG}")
    assert f"<h1>{called}</h1>" in run
    assert "<title>&lt;i&gt;Night owls&lt;/i&gt;, run " in run
    assert f"{words}; diloco; float32" in run, "its model stands below"
    listed = market.text("/")
    assert f'<a href="/runs/{LONG}">{called}</a>' in listed
    assert listed.count(words) == 1
    other, compared = market.text(f"/runs/{market.made.job}"), market.text(f"/compare?run={LONG}&run={market.made.job}")
    assert f'run={LONG}">{called} ' in other, "among those to compare with"
    assert [TITLE in shown for shown in (run, listed, other, compared)] == [False] * 4
    assert f'<li class="a">{called} ' in compared
    assert "<h1><bdi>gpt, &lt;script&gt;" in other, "the model, without a title"
    assert "<title>Run " in other
    found = [market.json(f"/jobs/{job}/run")["description"]["title"] for job in (LONG, market.made.job)]
    assert found == [TITLE, ""]


def test_a_claims_cid_that_is_markup_is_text(market: Market) -> None:
    claim = market.json(f"/jobs/{LONG}/grid")["cells"][0]["id"]
    evil = '"><img src=x onerror=alert(1)>'
    with market.made.database.session() as session:
        row = session.get_one(ClaimRow, claim)
        kept, row.payload_cid = row.payload_cid, evil
    shown = market.text(f"/claims/{claim}")
    with market.made.database.session() as session:
        session.get_one(ClaimRow, claim).payload_cid = kept
    assert "<img" not in shown
    assert "&lt;img src=x" in shown


# -- disputes -------------------------------------------------------------------------------------------

SAME = (
    "claim", "job", "round", "challenger", "defender", "phase", "mover", "deadline", "attempt", "transitions",
    "winner", "program", "step", "element", "chunk", "claimed_bits", "contract_bits", "claimed_value", "contract_value",
)  # fmt: skip


def test_a_dispute_is_what_the_chain_says_of_it(market: Market) -> None:
    arena = market.made.court.arena  # type: ignore[union-attr]
    reader = DisputeReader(arena.contracts, market.made.store)
    for verdict, game in market.made.games.items():
        told = reader.read(GameId(bytes.fromhex(game[2:]))).to_dict(arena.now())
        ours = market.json(f"/games/{game}")
        for name in SAME:
            mine = ours[name].removeprefix("0x") if name in ("claim", "job") else ours[name]
            assert mine == told[name], f"{verdict}: {name}"
        assert (ours["verdict"] or "open") == told["verdict"] == verdict
        if ours["mover"] is not None:
            assert ours["seconds_left"] == told["seconds_left"], verdict
        for mine, theirs in zip(ours["moves"], told["moves"], strict=True):
            same = ("move", "by", "shows", "block", "time", "transaction", "gas")
            assert {k: mine[k] for k in same} == {k: theirs[k] for k in same}
        assert {k: ours[k] for k in ("transactions", "gas_total")} == {
            k: told[k] for k in ("transactions", "gas_total")
        }
        [listed] = [g for g in market.json("/games")["items"] if g["id"] == game]
        assert listed["moves"] == len(told["moves"]), "a list counts moves as the dispute does"
        assert ours["money"] == told["money"], verdict
        if told["op"] is not None:
            assert {k: ours["op"][k] for k in ("index", "kind", "name")} == told["op"], "its module path, too"


def test_the_contracts_value_on_the_page_is_the_events(market: Market) -> None:
    game = market.made.games["fraud"]
    with market.made.database.reading() as session:
        of_game = select(EventRow).where(EventRow.game == game, EventRow.contract == "DisputeGame")
        event = session.scalars(of_game.where(EventRow.name == "Convicted")).one()
    finding = event.args["finding"]
    shown = market.text(f"/disputes/{game}")
    found = {name: re.search(rf'<code id="{name}">(0x[0-9a-f]+)</code>', shown) for name in ("claimed", "contract")}
    assert {name: m and m[1] for name, m in found.items()} == {
        "claimed": "0x" + finding["claimed_bits"][-8:], "contract": "0x" + finding["contract_bits"][-8:],
    }  # fmt: skip
    claimed, contract = (int(finding[f"{name}_bits"][-8:], 16) for name in ("claimed", "contract"))
    assert claimed ^ contract == LIE.bits
    ours = market.json(f"/games/{game}")
    assert ours["op"]["name"].startswith("model.layers.0.mlp.")
    assert (ours["op"]["index"], ours["element"]) == (LIE.op, LIE.element)
    values = str(ours["claimed_value"]), str(ours["contract_value"])
    for value in (pages._dotted(ours["op"]["name"]), *values, ours["check"]):
        assert value in shown
    assert ours["check"] == f"lockstep dispute check {game[2:]} --network http://testserver"


def test_a_module_path_breaks_behind_its_dots_and_stays_text() -> None:
    assert pages._dotted("model.layers.0.mlp") == "model.<wbr>layers.<wbr>0.<wbr>mlp"
    assert pages._dotted(f"{WORDS}.x") == "&lt;script&gt;alert(1)&lt;/script&gt;.<wbr>x"
    assert pages._dotted("payload") == "payload"


def test_every_move_is_on_the_page(market: Market) -> None:
    for game in market.made.games.values():
        shown = market.text(f"/disputes/{game}")
        for move in market.json(f"/games/{game}")["moves"]:
            assert f"<code>{move['move']}</code>" in shown
            assert move["transaction"] in shown


# -- money ----------------------------------------------------------------------------------------------


def test_an_accounts_money_is_the_vaults(market: Market) -> None:
    contracts = market.made.court.arena.contracts  # type: ignore[union-attr]
    for account in (market.made.court.arena.worker, market.made.court.arena.challenger):  # type: ignore[union-attr]
        ours, me = market.json(f"/accounts/{account.address}"), Address(account.address)
        assert int(ours["free"]) == contracts.vault.free(me)
        assert int(ours["credits"]) == contracts.vault.credits(me)
        assert int(ours["locked"]) == sum(int(lock["amount"]) for lock in ours["locks"])
        for lock in ours["locks"]:
            held = contracts.vault.lock_of(bytes.fromhex(lock["key"][2:]))  # type: ignore[arg-type]
            assert held is not None
            assert int(lock["amount"]) == held.amount
        assert ours["account"] == account.address
    lower = market.json(f"/accounts/{market.made.court.arena.worker.address.lower()}")  # type: ignore[union-attr]
    assert lower["account"] == market.made.court.arena.worker.address  # type: ignore[union-attr]


def test_everybody_is_called_what_they_are(market: Market) -> None:
    arena = market.made.court.arena  # type: ignore[union-attr]
    requester = market.json(f"/jobs/{LONG}/run")["requester"]
    for name, role in (
        (arena.challenger.address, "verifier"),
        (market.made.workers[0], "worker"),
        (requester, "requester"),
    ):
        listed = [a["account"] for a in market.json(f"/accounts?role={role}&limit=50")["items"]]
        assert name in listed, role
        assert f"/accounts/{name}" in market.text(f"/accounts?role={role}")
        assert role in [r["role"] for r in market.json(f"/accounts/{name}")["roles"]]
    assert arena.challenger.address not in [
        a["account"] for a in market.json("/accounts?role=worker&limit=50")["items"]
    ]
    assert "<h1>Verifier " in market.text(f"/accounts/{arena.challenger.address}")


def test_a_requester_s_own_money_is_no_earning(market: Market) -> None:
    requester = market.json(f"/jobs/{LONG}/run")["requester"]
    found = market.json(f"/accounts/{requester}")
    run = market.json(f"/jobs/{LONG}/run")
    assert int(found["money"]["escrowed"]) >= int(run["escrow"]) + int(run["deposit"]), "it is what it paid in"
    assert int(found["gained"]) == sum(int(found["money"][kind]) for kind in ("slots", "merges", "witnessed", "won"))
    assert int(found["earned"]) == int(found["gained"]) + int(found["money"]["returned"])


def test_the_economy_adds_up(market: Market) -> None:
    found = market.json("/economy")
    for kind, total in found["totals"].items():
        assert int(total) == sum(int(f["amount"]) for f in found["hours"] if f["kind"] == kind)
    events: dict[str, int] = {}
    with market.made.database.reading() as session:
        for row in session.scalars(select(EventRow).where(EventRow.contract == "StakeVault")):
            if row.name in ("Slashed", "BondTaken"):
                events["slashed"] = events.get("slashed", 0) + int(row.args["amount"])
                events["burned"] = events.get("burned", 0) + int(row.args["burned"])
    assert {kind: int(found["totals"][kind]) for kind in events} == events
    assert int(found["totals"]["burned"]) > 0


def test_an_index_of_an_older_schema_is_folded_anew(market: Market) -> None:
    database = market.made.database
    tables = (AccountRow, LockRow, FlowRow)

    def rows() -> list[Any]:
        with database.reading() as session:
            made = [
                tuple(getattr(row, column.key) for column in kind.__table__.columns)
                for kind in tables
                for row in session.scalars(select(kind))
            ]
        return sorted(made, key=repr)

    before, games = rows(), market.json(f"/games/{market.made.games['fraud']}")
    with database.session() as session:
        claims = session.scalars(select(ClaimRow).where(ClaimRow.job == LONG)).all()
        assert claims, "rows of no event, which a fold does not bring back"
        gas = {(e.block, e.log_index): e.gas for e in session.scalars(select(EventRow)) if e.gas is not None}
    assert before
    command.downgrade(alembic_config(database.url), "0005")
    with database.engine.connect() as connection:
        names = {name for (name,) in connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert not names & {kind.__tablename__ for kind in tables}
    database.migrate()
    assert rows() == before
    unknown = market.json(f"/games/{market.made.games['fraud']}")
    assert [move["gas"] for move in unknown["moves"]] == [None] * len(games["moves"]), "gas is read from the chain"
    assert unknown["gas_total"] is None
    with database.session() as session:
        for place, used in gas.items():
            session.get_one(EventRow, place).gas = used
    assert market.json(f"/games/{market.made.games['fraud']}") == games, "events know their games again"
    # What was no event's is put back for the other tests.
    from tests.support.pages import _long_run

    _again(market, lambda: _long_run(market.made, 24, 4))


def _again(market: Market, seed: Any) -> None:
    with market.made.database.session() as session:
        session.execute(delete(EventRow).where(EventRow.log_index >= 900))
        session.execute(delete(LossRow))
        assert rebuild(session) == 0
    seed()


def test_one_sum_is_one_number_on_every_page(market: Market) -> None:
    run = market.json(f"/jobs/{LONG}/run")
    paid, escrow = pages._amount(run["paid"]), pages._amount(run["escrow"])
    assert run["paid"] == market.json(f"/jobs/{LONG}")["paid"]
    assert run["paid"] == str(sum(int(p["paid"]) for p in market.json(f"/jobs/{LONG}/timeline")["rounds"]))
    everything = market.json("/runs")["items"]
    totals = market.json("/economy")["totals"]
    assert int(totals["paid"]) == sum(int(r["paid"]) for r in everything)
    assert int(totals["escrowed"]) == sum(int(r["escrow"]) for r in everything)
    assert int(totals.get("refunded", 0)) == sum(int(r["refunded"]) for r in everything)
    accounts = market.json("/accounts?limit=50")["items"]
    assert sum(int(a["paid"]) for a in accounts) == int(totals["paid"]), "what runs paid is what accounts were paid"
    assert sum(int(a["money"]["escrowed"]) for a in accounts) == int(totals["escrowed"]) + int(totals["lent"])
    for path in (f"/runs/{LONG}", f"/compare?run={LONG}", "/"):
        assert paid in market.text(path), path
    assert escrow in market.text(f"/runs/{LONG}")
    shown = market.text("/economy")
    for kind in ("paid", "escrowed"):
        assert pages._amount(totals[kind]) in shown


def test_an_hour_s_pay_is_shared_by_its_workers(market: Market) -> None:
    found = market.json("/economy")
    assert found["workers"] == len(market.made.workers)
    assert int(found["earned_hour"]) == int(found["paid_hour"]) // found["workers"]
    assert {p["job"]: p["price"] for p in found["prices"]}[LONG] == market.json(f"/jobs/{LONG}/run")["operations_price"]


# -- what a page costs ----------------------------------------------------------------------------------

ONE_ROW = ("cursor", "alembic_version")
WIDE = ("/status", "/accounts", "/economy", "/metrics")
"""Pages with figures over all rows, which are counted once a block."""
NO_ROWS = ("/api/v1/stream", "/api/v1/blobs/{cid}", "/ipfs/{cid}", "/static/{name}", "/openapi.json")
"""Routes that read no table of the index, or have a test of their own."""


def reads_of(market: Market, paths: list[str]) -> list[tuple[str, str, list[str]]]:
    """Each query of these answers with its path and the steps of its plan."""
    engine, asked = market.made.database.engine, list[tuple[str, Any]]()

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))

    found = []
    for path in paths:
        asked.clear()
        event.listen(engine, "before_cursor_execute", note)
        status = market.client.get(path, follow_redirects=False).status_code
        event.remove(engine, "before_cursor_execute", note)
        assert status in (200, 303), path
        with engine.connect() as connection:
            for statement, parameters in asked:
                if statement.startswith("SELECT"):
                    plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
                    found.append((path, statement, [step for *_, step in plan]))
    return found


def scanned(statement: str, plan: list[str]) -> list[str]:
    """The tables that a query reads to their ends, however long they are.

    The newest rows of all, in the order of an index, are read as far as the limit.
    """
    if " LIMIT " in statement.replace("\n", " ") and "WHERE" not in statement and "USE TEMP" not in "".join(plan):
        return []
    names = [re.sub(r"_\d+$", "", step.split()[1]) for step in plan if step.startswith("SCAN ")]
    return [name for name in names if name in IndexTable.metadata.tables and name not in ONE_ROW]


def test_no_page_reads_a_table_to_its_end(market: Market) -> None:
    grid = market.json(f"/jobs/{LONG}/grid")["cells"]
    claims = {cell["state"]: cell["id"] for cell in grid}
    worker, game = market.made.workers[0], market.made.games["fraud"]
    of_job = [f"/jobs/{LONG}{part}" for part in ("", "/rounds", "/run", "/grid", "/timeline", "/losses")]
    filters = [
        f"/chain?{'&'.join(given)}"
        for n in range(4)
        for given in combinations((f"account={worker}", "event=Argued", "before=9-9"), n)
    ]
    api = [
        *of_job, *filters, "/jobs", f"/claims/{claims['final']}", f"/claims/{claims['convicted']}", "/signed", "/games",
        "/games?open_only=true", f"/games/{game}", "/nodes", "/status", "/network", "/runs", "/accounts",
        "/accounts?role=worker", f"/accounts/{worker}", "/economy", market.transaction, f"/search?q={LONG}",
    ]  # fmt: skip
    paths = [*market.paths, *filters, *(f"/claims/{claim}" for claim in claims.values())]
    paths += [*(f"/api/v1{path}" for path in api), "/healthz", "/readyz", "/metrics"]
    bare = [path.partition("?")[0] for path in paths]
    app = create_app(market.made.context())
    routes = [route for route in app.routes if isinstance(route, APIRoute) and "GET" in route.methods]
    unread = {route.path for route in routes if not any(route.path_regex.match(path) for path in bare)}
    assert unread <= {*NO_ROWS}, "every route is asked"
    # No page is kept from another test.
    with TestClient(app) as client:
        for path in WIDE:
            assert client.get(path).status_code == 200
        reads = reads_of(Market(market.made, client), paths)
    assert len({path for path, *_ in reads}) > len(paths) // 2, "pages read the index"
    assert {(name, statement) for _, statement, plan in reads for name in scanned(statement, plan)} == set()


def test_a_scan_is_told_from_a_search() -> None:
    rows, newest = (
        "SELECT events.tx \nFROM events",
        "SELECT games.id \nFROM games ORDER BY games.block DESC \n LIMIT ? OFFSET ?",
    )
    by_index = ["SCAN games USING INDEX ix_games_block_id"]
    assert scanned(rows, ["SCAN events"]) == ["events"]
    assert scanned(f"{rows} WHERE events.gas > ?\n LIMIT ?", ["SCAN events USING INDEX x"]) == ["events"]
    assert scanned(newest, by_index) == []
    assert scanned(newest, [*by_index, "USE TEMP B-TREE FOR ORDER BY"]) == ["games"]
    assert scanned(rows, ["SEARCH events USING INDEX x (tx=?)"]) == scanned(rows, ["SCAN cursor"]) == []


# -- the chain ------------------------------------------------------------------------------------------


def test_events_are_filtered_and_come_in_pages(market: Market) -> None:
    worker = market.made.workers[0]
    every = market.json("/chain?limit=200")["events"]
    assert {e["name"] for e in market.json("/chain?event=Deposited")["events"]} == {"Deposited"}
    of_worker = market.json(f"/chain?limit=200&account={worker.lower()}")["events"]
    assert of_worker
    assert all(worker in e["accounts"] for e in of_worker)
    paged, before = [], ""
    while len(paged) < len(every):
        found = market.json(f"/chain?limit=30{before}")
        paged += found["events"]
        if found["next"] is None:
            break
        before = f"&before={found['next']}"
    assert paged[: len(every)] == every
    shown = market.text(f"/chain?event=Deposited&account={worker}")
    assert f"/accounts/{worker}" in shown
    assert pages._amount(60 * 10**18) in shown
    of_both = market.json(f"/chain?limit=200&account={worker}&event=Deposited")["events"]
    assert of_both == [e for e in of_worker if e["name"] == "Deposited"] != []
    assert market.json(f"/chain?account={worker}&event=Deposited&before={of_both[-1]['block']}-0")["events"] == []
    for path in ("/chain?event=Depositd", "/api/v1/chain?event=Depositd"):
        refused = market.client.get(path)
        assert refused.status_code == 400
        assert "Deposited" in refused.text, "the nearest name"
    assert market.json("/chain?event=Argued")["events"], "a move of a game is an event, too"
    assert market.client.get("/chain?account=0x12").status_code == 400
    assert market.client.get("/api/v1/chain?before=1").status_code == 400


def test_a_transaction_has_all_its_events(market: Market) -> None:
    path = market.transaction
    found = market.json(path)
    names = [e["name"] for e in found["events"]]
    assert {"Slashed", "Convicted", "Resolved"} <= set(names)
    moves = market.json(f"/games/{market.made.games['fraud']}")["moves"]
    assert found["gas"] == moves[-1]["gas"] > 0
    shown = market.text(path)
    assert all(f">{name} <" in shown for name in names)
    assert market.client.get("/api/v1/transactions/0x" + "12" * 32).status_code == 404


def test_an_id_or_its_beginning_leads_to_its_page(market: Market) -> None:
    claim = market.json(f"/jobs/{LONG}/grid")["cells"][0]["id"]
    named = {
        "run": LONG, "claim": claim, "dispute": market.made.games["fraud"], "account": market.made.workers[0],
        "transaction": market.transaction.rpartition("/")[2],
    }  # fmt: skip
    for kind, name in named.items():
        for text in (name, name[:14].lower(), name[2:14].upper()):
            assert [(f["kind"], f["id"]) for f in market.json(f"/search?q={text}")] == [(kind, name)], text
            answer = market.client.get(f"/search?q={text}", follow_redirects=False)
            assert answer.status_code == 303
            assert market.client.get(answer.headers["location"]).status_code == 200
    for text in ("", "0x1", "zzzz", "%25%25%25%25"):
        assert market.client.get(f"/api/v1/search?q={text}").status_code == 400, text
    assert market.json("/search?q=" + "9" * 64) == []
    assert "Nothing begins with" in market.text("/search?q=" + "9" * 64)


def test_who_is_online_is_of_the_last_half_hour(market: Market) -> None:
    assert market.json("/status")["online"]["verifier"] == 1
    with market.made.database.session() as session:
        cursor = session.get_one(CursorRow, 1)
        before, cursor.time = cursor.time, cursor.time + 10 * 86_400
    try:
        assert market.json("/status")["online"] == {}
        assert "nobody" in market.text("/status")
    finally:
        with market.made.database.session() as session:
            session.get_one(CursorRow, 1).time = before


# -- claims ---------------------------------------------------------------------------------------------


def test_a_claim_says_why_it_was_convicted(market: Market) -> None:
    game = market.json(f"/games/{market.made.games['fraud']}")
    told = market.json(f"/claims/{game['claim']}")
    assert told["why"].startswith(
        f"step {game['step']}, op {game['op']['index']} ({game['op']['name']}), element 300: "
    )
    assert f"claimed {game['claimed_value']:.9g}, the contract computed {game['contract_value']:.9g}" in told["why"]
    shown = market.text(f"/claims/{game['claim']}")
    assert told["why"][1:].split(" (")[0] in shown
    assert pages.HASHES["trace_root"] in shown
    silent = market.json(f"/claims/{market.json('/games/' + market.made.games['timeout'])['claim']}")
    assert "did not answer" in silent["why"]
    job = market.json(f"/jobs/{market.made.job}/run")
    assert (told["steps"], told["rows"]) == (
        job["inner_steps"], job["inner_steps"] * job["description"]["tokens_per_step"],
    )  # fmt: skip
    assert told["seconds"] > 0


# -- runs -----------------------------------------------------------------------------------------------


def test_a_runs_numbers_are_those_of_its_claims(market: Market) -> None:
    run = market.json(f"/jobs/{LONG}/run")
    claims, cursor = [], ""
    while True:
        page = market.json(f"/jobs/{LONG}/rounds?limit=100{cursor}")
        claims += [c for r in page["items"] for c in r["claims"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    slots = [c for c in claims if c["slot"] < 4]
    assert run["claims"] == len(slots) == sum(run["claims_by_state"].values())
    for state, n in run["claims_by_state"].items():
        assert n == sum(c["state"] == state for c in slots)
    assert run["steps"] == 20 * sum(c["state"] in ("final", "accepted") for c in slots)
    assert run["tokens"] == run["steps"] * run["description"]["tokens_per_step"]
    grid = market.json(f"/jobs/{LONG}/grid?count=100")
    assert {c["id"] for c in grid["cells"]} == {c["id"] for c in claims}
    line = market.json(f"/jobs/{LONG}/timeline")["rounds"]
    assert sum(int(p["paid"]) for p in line) == sum(int(c["paid"]) for c in claims)
    shown = market.text(f"/runs/{LONG}")
    for cell in grid["cells"]:
        assert f"/claims/{cell['id']}" in shown, "each cell is a claim"


def test_a_buyer_finds_what_a_run_costs_and_how_to_have_it(market: Market) -> None:
    run, shown = market.json(f"/jobs/{LONG}/run"), market.text(f"/runs/{LONG}")
    assert int(run["held"]) == int(run["escrow"]) - int(run["paid"]) - int(run["refunded"])
    assert run["seconds_to_go"] == (run["rounds"] - run["rounds_done"]) * 240, "at the pace of the latest rounds"
    assert f"lockstep train pull {LONG[2:]} --out model --network http://testserver" in shown
    assert pages.LOSS_IS in shown
    for claim in run["training"]:
        assert f"/accounts/{claim['worker']}" in shown
        assert claim["state"] in ("joined", "committed")
    assert run["training"], "somebody trains now"
    done = market.json(f"/jobs/{market.made.job}/run")
    assert done["seconds_to_go"] is None, "one round has no pace"


def test_a_merge_that_holds_a_convicted_payload_is_marked(market: Market) -> None:
    run, cells = market.json(f"/jobs/{LONG}/run"), market.json(f"/jobs/{LONG}/grid?count=100")["cells"]
    convicted = {c["id"] for c in cells if c["state"] == "convicted"}
    assert {found["claim"] for found in run["inside"]} == convicted != set()
    assert {c["id"] for c in cells if c["holds_convicted"]} == {found["merge"] for found in run["inside"]}
    shown = market.text(f"/runs/{LONG}")
    assert 'id="inside"' in shown
    first = run["inside"][0]
    with market.made.database.session() as session:
        row = session.get_one(RoundRow, (LONG, first["round"]))
        before, row.mask = row.mask, str(int(row.mask or 0) & ~(1 << first["slot"]))
    try:
        inside = market.json(f"/jobs/{LONG}/run")["inside"]
        assert inside == run["inside"][1:], "what the merge left out is in no weights"
    finally:
        with market.made.database.session() as session:
            session.get_one(RoundRow, (LONG, first["round"])).mask = before


def test_runs_are_compared_on_one_plot(market: Market) -> None:
    shown = market.text(f"/compare?run={LONG}&run={market.made.job}&x=cost")
    for job in (LONG, market.made.job):
        assert f"/runs/{job}" in shown
    assert 'class="line a"' in shown
    assert market.client.get("/compare").status_code == 404
    assert market.client.get("/compare?run=0x" + "12" * 32).status_code == 404


def test_a_loss_is_shown_to_the_last_bit(market: Market) -> None:
    points = market.json(f"/jobs/{LONG}/losses")["losses"]
    with market.made.database.reading() as session:
        kept = {row.claim: row.loss for row in session.scalars(select(LossRow).where(LossRow.job == LONG))}
    assert {p["claim"]: repr(p["loss"]) for p in points} == kept
    shown = market.text(f"/runs/{LONG}")
    for point in points:
        assert repr(point["loss"]) in shown
    assert [p["step"] for p in points] == [20 * i for i in range(len(points))]
    assert [int(p["cost"]) for p in points] == sorted(int(p["cost"]) for p in points)


def test_amounts_and_the_axis_of_cost_are_of_the_market_s_token(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.base.amounts._of_market", Currency("USDC", 6))
    shown = market.text(f"/runs/{LONG}?x=cost&before=19")
    assert 'data-name="USDC paid for claims" data-unit="1000000"' in shown
    assert " USDC" in shown
    assert "LST" not in shown


def test_a_loss_of_a_merge_that_fell_is_not_shown(market: Market) -> None:
    points = market.json(f"/jobs/{LONG}/losses")["losses"]
    last = points[-1]["claim"]
    with market.made.database.session() as session:
        row = session.get_one(ClaimRow, last)
        before, row.state = row.state, "convicted"
    try:
        assert market.json(f"/jobs/{LONG}/losses")["losses"] == points[:-1]
    finally:
        with market.made.database.session() as session:
            session.get_one(ClaimRow, last).state = before


@pytest.mark.parametrize(("loss", "shown"), [("nan", "nan"), ("inf", "inf")])
def test_a_loss_that_is_no_number_is_a_word(market: Market, loss: str, shown: str) -> None:
    with market.made.database.session() as session:
        row = session.get_one(LossRow, (LONG, ""))
        before, row.loss = row.loss, loss
    try:
        assert market.json(f"/jobs/{LONG}/losses")["losses"][0]["loss"] == shown
        assert "Loss" in market.text(f"/runs/{LONG}")
    finally:
        with market.made.database.session() as session:
            session.get_one(LossRow, (LONG, "")).loss = before


def test_marks_of_the_heat_map_are_in_its_legend(market: Market) -> None:
    shown = market.text(f"/runs/{LONG}")
    states = market.json(f"/jobs/{LONG}/run")["claims_by_state"]
    marked = {state for state in states if state in drawing.GLYPHS}
    assert marked, "states of one colour differ by their marks"
    for state in states:
        named = rf'<li><span class="state s-{state}">{state}</span> '
        found = re.search(named + '(?:<b aria-hidden="true">(.)</b> )?', shown)
        assert found is not None, state
        assert found[1] == drawing.GLYPHS.get(state), state


def test_a_run_whose_tokens_nobody_knows_tells_its_steps(market: Market) -> None:
    context = market.made.context(descriptions=Descriptions(None))
    with TestClient(create_app(context), raise_server_exceptions=False) as client:
        shown = client.get("/").text
    steps = market.json(f"/jobs/{LONG}/run")["steps"]
    assert f"<dt>steps</dt><dd>{steps:,}</dd>" in shown
    assert "<dt>tokens</dt>" not in shown


# -- kept pages -----------------------------------------------------------------------------------------


@pytest.fixture
def drawn(market: Market, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs whose page was drawn anew."""
    drawn: list[str] = []
    plain = pages._run

    def counting(*args: Any) -> bytes:
        drawn.append(args[2])
        return plain(*args)

    monkeypatch.setattr(pages, "_run", counting)
    return drawn


def test_a_runs_page_is_drawn_once_while_nothing_moves(market: Market, drawn: list[str]) -> None:
    path = f"/runs/{LONG}?before=17"
    first = market.text(path)
    assert [market.text(path) for _ in range(3)] == [first] * 3
    plain = market.client.get(path, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.text == first, "one that is read without compression is the same"
    assert drawn == [LONG]
    market.text(f"/runs/{LONG}?before=16")
    market.text(f"/runs/{market.made.job}?before=17")
    assert drawn == [LONG, LONG, market.made.job], "another page is another"


def test_a_new_block_is_on_a_runs_page_at_once(market: Market, drawn: list[str]) -> None:
    path = f"/runs/{LONG}?before=15"
    before = market.text(path)
    with market.made.database.session() as session:
        cursor, claim = session.get_one(CursorRow, 1), session.get_one(ClaimRow, claim_id_hex(LONG, 14, 0, 0))
        kept = cursor.block, claim.state
        cursor.block, claim.state = cursor.block + 1, "convicted" if claim.state == "final" else "final"
    try:
        assert market.text(path) != before
    finally:
        with market.made.database.session() as session:
            session.get_one(CursorRow, 1).block = kept[0]
            session.get_one(ClaimRow, claim_id_hex(LONG, 14, 0, 0)).state = kept[1]
    assert market.text(path) == before
    assert len(drawn) == 2


def test_a_new_loss_is_on_a_runs_page_at_once(market: Market) -> None:
    path = f"/runs/{LONG}?before=14"
    market.text(path)
    with market.made.database.session() as session:
        row = session.get_one(LossRow, (LONG, ""))
        before, row.loss = row.loss, repr(5.4321)
    try:
        assert "5.4321" in market.text(path), "losses come when they are computed, not with a block"
    finally:
        with market.made.database.session() as session:
            session.get_one(LossRow, (LONG, "")).loss = before


def test_a_page_that_the_index_moved_under_is_not_kept(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, path = pages._run, f"/runs/{LONG}?before=13"

    def moved(*args: Any) -> bytes:
        with market.made.database.session() as session:
            session.get_one(CursorRow, 1).block += 1
        return b"a page of two states"

    with market.made.database.reading() as session:
        block = session.get_one(CursorRow, 1).block
    monkeypatch.setattr(pages, "_run", moved)
    assert market.text(path) == "a page of two states"
    monkeypatch.setattr(pages, "_run", plain)
    with market.made.database.session() as session:
        session.get_one(CursorRow, 1).block = block
    assert "a page of two states" not in market.text(path), "a reorganisation back to the first state"


# -- PostgreSQL -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_postgresql_has_the_same_pages(market: Market, postgres: str, tmp_path: Any) -> None:
    url = servers.create_database(postgres, "pages")
    made = seeded(tmp_path, rounds=24, slots=4, url=url)
    with TestClient(create_app(made.context()), raise_server_exceptions=False) as client:
        other = Market(made, client)
        for path in other.paths:
            other.text(path)
            assert other.text(path) == other.text(path), path
        for path in ("run", "timeline", "grid", "losses"):
            assert other.json(f"/jobs/{LONG}/{path}") == market.json(f"/jobs/{LONG}/{path}"), path
        games = {verdict: other.json(f"/games/{game}") for verdict, game in made.games.items()}
        command.downgrade(alembic_config(made.database.url), "0005")
        made.database.migrate()
        for verdict, game in made.games.items():
            again = other.json(f"/games/{game}")
            assert again["tree"] == games[verdict]["tree"], "events know their games again"
    made.court.arena.stop()  # type: ignore[union-attr]
    made.database.close()


# -- exports, failures, limits --------------------------------------------------------------------------


@pytest.mark.parametrize("path", [f"/jobs/{LONG}/grid", f"/jobs/{LONG}/timeline", f"/jobs/{LONG}/losses", "/economy",
                                  "/chain", "GAME", "ACCOUNT"])  # fmt: skip
def test_every_plot_comes_as_csv_and_json(market: Market, path: str) -> None:
    worker = market.made.court.arena.worker.address  # type: ignore[union-attr]
    names = {"grid": "cells", "timeline": "rounds", "losses": "losses", "economy": "hours", "chain": "events",
             "GAME": "moves", "ACCOUNT": "reasons"}  # fmt: skip
    rows = names[path.rpartition("/")[2]]
    path = {"GAME": f"/games/{market.made.games['fraud']}", "ACCOUNT": f"/accounts/{worker}"}.get(path, path)
    answer = market.client.get(f"/api/v1{path}?format=csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert "attachment" in answer.headers["content-disposition"]
    found = list(csv.DictReader(io.StringIO(answer.text)))
    whole = market.json(path)[rows]
    assert len(found) == len(whole) > 0
    for mine, theirs in zip(found, whole, strict=True):
        assert list(mine) == list(theirs)
        for name, value in theirs.items():
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                assert mine[name] == str(value), name


def test_no_cell_of_a_csv_is_a_formula() -> None:
    made = table([{"a": "=1+1", "b": "@x", "c": -1, "d": {"e": 1}}])
    assert list(csv.DictReader(io.StringIO(made))) == [{"a": "'=1+1", "b": "'@x", "c": "-1", "d": '{"e": 1}'}]
    assert table([]) == "\r\n"


ABSENT = ("/runs/0x12", "/runs/0x" + "12" * 32, "/disputes/nonsense", "/accounts/0x12", "/claims/0x" + "00" * 32,
          f"/runs/{LONG}?x=nonsense", "/?cursor=nonsense")  # fmt: skip


@pytest.mark.parametrize("path", ABSENT)
def test_a_page_that_is_not_there_is_a_page(market: Market, path: str) -> None:
    answer = market.client.get(path)
    assert answer.status_code in (400, 404)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "content-security-policy" in answer.headers
    assert "All runs" in answer.text


def test_the_api_answers_json_whoever_asks(market: Market) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml"}
    for path in ("/jobs", "/games", "/nodes", "/status", f"/jobs/{LONG}", f"/jobs/{LONG}/rounds"):
        answer = market.client.get(f"/api/v1{path}", headers=browser)
        assert answer.headers["content-type"] == "application/json"
    missing = market.client.get("/api/v1/jobs/0x" + "12" * 32, headers=browser)
    assert missing.headers["content-type"] == "application/problem+json"


def test_a_page_counts_for_its_address_as_any_request(market: Market) -> None:
    context = market.made.context(rates=RequestRates(1.0, lambda: 0.0))
    with TestClient(create_app(context), raise_server_exceptions=False) as client:
        answers = [client.get(path).status_code for path in ("/", "/status", "/static/page.css", "/chain", "/", "/")]
    assert answers[:4] == [200] * 4
    assert 429 in answers[4:]


def test_an_index_that_holds_nothing_has_pages(tmp_path: Any) -> None:
    from coordinator.db import Database
    from lockstep.storage import open_store

    (tmp_path / "store").mkdir()
    empty = Seeded(Database(f"sqlite:///{tmp_path / 'i.sqlite'}"), open_store(f"dir://{tmp_path / 'store'}"), tmp_path)
    empty.database.migrate()
    with TestClient(create_app(empty.context()), raise_server_exceptions=False) as client:
        for path in ("/", "/accounts", "/disputes", "/economy", "/chain", "/status"):
            assert client.get(path).status_code == 200, path
    empty.database.close()


def test_a_long_argument_of_an_event_is_cut(market: Market) -> None:
    found = ChainOut.model_validate(market.json("/chain?limit=200"))
    assert max(len(str(value)) for event in found.events for value in event.args.values()) <= 5000


def test_moments_beyond_the_calendar_are_numbers() -> None:
    assert pages._moment(10**18) == str(10**18)
    assert pages._moment(None) == "–"
