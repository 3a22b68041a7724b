"""`lockstep dispute` on a real chain: a conviction as anybody reads it, and a challenger's game played by hand."""

from __future__ import annotations

import json
import shlex
import subprocess
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from lockstep.chain import games
from lockstep.demo.cheats import lies
from lockstep.execution.jobs import ClaimRun
from lockstep.protocol.dispute.game import game_id
from lockstep.protocol.dispute.moves import GamePhase
from lockstep.protocol.types import Address, Seconds
from tests.e2e.market import NOWHERE, Market, kill, wait_for
from tests.support.games import open_at
from tests.support.waiting import wait

pytestmark = [pytest.mark.slow, pytest.mark.chain]


def lie(market: Market, name: str, slot: int) -> tuple[lies.Cheat, ClaimRun]:
    """A lie and a slot's lying run; the chain's own seed decides which one-ulp lies are rounded away."""
    honest = [root for _, _, root in market.run(slot).states()]
    for seed in range(20):
        cheat = lies.cheat_of(name, market.job.programs, market.params, seed, market.contracts.addresses.chain_id)
        run = cheat.run(market.run(slot))
        if [root for _, _, root in run.states()] != honest:
            return cheat, run
    raise AssertionError(f"{name} is rounded away, whatever its place")


class Reader:
    """The commands as somebody without a key and without storage gives them."""

    def __init__(self, market: Market) -> None:
        self.market = market
        self.places = ["--rpc", market.devnet.url, "--deployment", str(market.folder / "deployment.json")]

    def text(self, *arguments: str) -> str:
        ended = self.market.lockstep("dispute", *arguments, *self.places)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def json(self, *arguments: str) -> Any:
        envelope = json.loads(self.text(*arguments, "--json"))
        assert (envelope["schema"], envelope["ok"]) == ("lockstep/1", True)
        return envelope["data"]

    def watch(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text("watch", *arguments, "--json").splitlines()]


class Hook:
    """A server that keeps what is POSTed to it; its first answer says later."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.asked = 0
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hook.asked += 1
                if hook.asked > 1:
                    hook.got.append(body)
                self.send_response(503 if hook.asked == 1 else 204)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hooks/s3cret"
        Thread(target=self.server.serve_forever, daemon=True).start()


def test_a_convicted_cheat_is_shown_to_the_float(market: Market) -> None:
    reader = Reader(market)
    assert reader.json("list", "--all")["games"] == []
    market.seal()
    market.defend()
    cheat, lying = lie(market, "one-ulp", 1)
    runs = [market.run(0), lying, market.run(2)]
    verifier = market.verifier()
    claims = market.claim(runs)
    won = wait_for(verifier, "won")
    (game,) = market.games_on(claims[1])
    expected, name = cheat.expectation, game.hex()

    assert reader.json("list")["games"] == []
    (row,) = reader.json("list", "--all", "--job", market.job_id.hex())["games"]
    assert (row["game"], row["claim"], row["verdict"]) == (name, claims[1].hex(), "fraud")
    assert (row["round"], row["slot"], row["job"]) == (0, 1, market.job_id.hex())
    assert won["game"] == name

    shown = reader.json("show", name[:8])
    assert (shown["step"], shown["op"]["index"], shown["element"]) == (
        expected.step, expected.op_index, expected.element,
    )  # fmt: skip
    assert (shown["chunk"], shown["op"]["kind"], shown["dtype"]) == (expected.chunk or 0, expected.op_kind, "f32")
    claimed, computed = (int(shown[k], 16) for k in ("claimed_bits", "contract_bits"))
    assert claimed != computed
    assert isinstance(shown["claimed_value"], float)
    assert shown["claimed_value"] != shown["contract_value"]
    assert [m["gas"] for m in shown["moves"]] == market.receipts(game), "a transaction a move"
    assert shown["gas_total"] == sum(market.receipts(game))
    stake = market.params.role.slot_stake
    money = {p["what"]: int(p["amount"]) for p in shown["money"]}
    assert (money["stake slashed"], money["slash burned"]) == (stake, stake // 2)
    assert money["bond returned"] == money["bond locked"] == int(shown["bond"])
    named = reader.json("show", name, "--storage", market.store.url)
    assert named["op"]["name"] == expected.op_name

    # What it prints to check it oneself is a command that finds the same number.
    arguments = named["replay"].split()[1:]
    replayed = market.lockstep(*arguments, "--json")
    assert replayed.returncode == 10, replayed.stderr
    found = json.loads(replayed.stdout)["data"]
    assert (found["claimed_bits"], found["computed_bits"]) == (shown["claimed_bits"], shown["contract_bits"])

    # So is the one with which a watch ends, as it is printed.
    last = reader.text("watch", name, "--storage", market.store.url).splitlines()[-1]
    head, _, printed = last.partition(": ")
    assert head == "check it yourself"
    again = market.lockstep(*shlex.split(printed)[1:])
    assert again.returncode == 10, again.stderr
    assert f"claimed {shown['claimed_bits']}, computed {shown['contract_bits']}" in again.stdout

    text = reader.text("show", name)
    assert f"{shown['contract_value']:.9g}" in text
    assert "fraud, won by" in text
    tree = reader.json("tree", name)["tree"]
    path, part = [], tree
    while part is not None:
        path.append(part["label"])
        part = next((p for p in part["parts"] if p["challenger"] == "differs"), None)
    assert path[1] == f"S_{expected.step}"
    assert f"op {expected.op_index}" in path
    assert any(label.startswith(f"element {expected.element}: claimed 0x") for label in path)
    assert any(f"claimed {shown['claimed_bits']}" in label for label in path), "of the element, or of its chunk"
    assert path[-1].startswith(f"the contract computes {shown['contract_bits']}")
    drawn = reader.text("tree", name)
    assert [label for label in path if label not in drawn] == []

    hook = Hook()
    told = reader.watch(name, "--webhook", hook.url)
    hook.server.shutdown()
    assert [e["event"] for e in told] == ["moved"] * len(shown["moves"]) + ["resolved"]
    assert [e["move"] for e in told[:-1]] == [m["move"] for m in shown["moves"]]
    assert (told[-1]["verdict"], told[-1]["contract_bits"]) == ("fraud", shown["contract_bits"])
    assert hook.got == told, "each once, in order, though the first answer was 503"


def test_a_challenger_s_game_is_played_by_hand(market: Market) -> None:
    reader, home = Reader(market), market.home("hand")
    key = ["--home", str(home), "--password-file", str(home / "password"), *market.arguments()]

    def dispute(*arguments: str) -> subprocess.CompletedProcess[str]:
        return market.lockstep("dispute", *arguments, *key)

    market.seal()
    cheat, lying = lie(market, "one-ulp", 1)
    claims = market.claim([market.run(0), lying, market.run(2)], trace_cids={1: NOWHERE})

    before = market.contracts.token.balance_of(market.address("hand"))
    right = dispute("open", claims[0].hex(), "--json")
    assert right.returncode == 0, right.stderr
    assert json.loads(right.stdout)["data"]["verdict"] == "match"
    assert market.games_on(claims[0]) == []
    unasked = dispute("open", claims[1].hex())
    assert unasked.returncode == 2, "nobody can be asked"
    assert market.contracts.token.balance_of(market.address("hand")) == before, "and nothing was staked"

    opened = dispute("open", claims[1].hex(), "--yes", "--json")
    assert opened.returncode == 0, opened.stderr
    name = json.loads(opened.stdout)["data"]["game"]
    (game,) = market.games_on(claims[1])
    assert game.hex() == name
    again = json.loads(dispute("open", claims[1].hex(), "--yes", "--json").stdout)["data"]
    assert (again["game"], again["already_open"]) == (name, True)
    assert market.games_on(claims[1]) == [game]

    assert dispute("respond", name).returncode == 75, "the defender's turn"
    assert dispute("resolve", name).returncode == 75, "its clock runs"
    assert dispute("prove", name).returncode == 75
    (row,) = reader.json("list")["games"]
    assert (row["mover"], row["seconds_left"]["challenger"]) == ("defender", market.params.windows.clock_seconds)
    market.defend()
    while True:
        wait(lambda: not market.game(game).defender_moves, "the defender answers")
        if market.game(game).phase in (GamePhase.PROOF, GamePhase.ALIAS, GamePhase.PADDING):
            break
        made = dispute("respond", name, "--json")
        assert made.returncode == 0, made.stderr
        assert json.loads(made.stdout)["data"]["side"] == "challenger"
    proved = dispute("prove", name[:10], "--json")
    assert proved.returncode == 0, proved.stderr
    assert json.loads(proved.stdout)["data"]["verdict"] == "fraud"
    shown = reader.json("show", name)
    expected = cheat.expectation
    assert (shown["step"], shown["op"]["index"], shown["element"]) == (
        expected.step, expected.op_index, expected.element,
    )  # fmt: skip
    assert dispute("respond", name).returncode == 5, "it is over"
    assert not list((home / "disputes").iterdir()), "nothing is kept of it"


def test_a_silent_defender_loses_by_its_clock_and_a_verifier_s_home_is_not_played_in(market: Market) -> None:
    market.seal()
    _, lying = lie(market, "other-data", 2)
    market.workers[2].silent = True
    claims = market.claim([market.run(0), market.run(1), lying])
    home = market.home("hand")
    key = ["--home", str(home), "--password-file", str(home / "password"), *market.arguments()]
    opened = market.lockstep("dispute", "open", claims[2].hex(), "--yes", "--json", *key)
    name = json.loads(opened.stdout)["data"]["game"]
    watching = market.group.start("watch", ["dispute", "watch", "--job", market.job_id.hex(), "--json",
                                            *Reader(market).places])  # fmt: skip
    wait_for(watching, "moved", game=name)
    verifier = market.verifier("hand")
    refused = market.lockstep("dispute", "resolve", name, "--json", *key)
    assert refused.returncode == 8
    error = json.loads(refused.stdout)["error"]
    assert "verifier" in error["message"]
    assert error["hint"]
    verifier.popen.kill()
    verifier.popen.wait()
    market.devnet.advance(Seconds(market.params.windows.clock_seconds + market.params.windows.step_seconds + 1))
    (row,) = Reader(market).json("list")["games"]
    assert row["clock_run_out"]
    ended = market.lockstep("dispute", "resolve", name[:6], "--json", *key, "--storage", "http://127.0.0.1:9")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["data"]["verdict"] == "timeout"
    assert wait_for(watching, "resolved", game=name)["verdict"] == "timeout"
    shown = Reader(market).json("show", name)
    assert (shown["verdict"], shown["contract_bits"]) == ("timeout", None)


def test_a_defender_answers_by_hand_and_a_false_challenger_has_nothing_to_point_at(market: Market) -> None:
    market.seal()
    claims = market.claim([market.run(slot) for slot in range(3)])
    defender, liar = market.workers[0], market.workers[2]
    disputed = games.claim(market.contracts.market, claims[0], market.ledger().find(claims[0])[2].body)
    opening = open_at(disputed, defender.held[claims[0]], 2)
    game = game_id(claims[0], Address(liar.account.address), 0)
    liar.outbox.send(games.call(market.contracts.game, opening, game), "false")

    def respond(name: str) -> dict[str, Any]:
        home = market.home(name)
        key = ["--home", str(home), "--password-file", str(home / "password"), *market.arguments()]
        ended = market.lockstep("dispute", "respond", game.hex(), "--json", *key)
        return {"code": ended.returncode, **json.loads(ended.stdout)}

    assert respond("worker-1")["code"] == 2, "plays no side"
    assert respond("worker-2")["code"] == 75, "not its turn"
    answered = respond("worker-0")
    assert answered["code"] == 0, answered
    assert (answered["data"]["side"], answered["data"]["moves"]) == ("defender", ["defend"])
    nothing = respond("worker-2")
    assert (nothing["code"], nothing["error"]["code"]) == (5, "chain.EqualBits")
    market.devnet.advance(Seconds(market.params.windows.clock_seconds + 1))
    late = respond("worker-2")
    assert (late["code"], late["error"]["code"]) == (5, "chain.ClockExpired")
    ended = respond("worker-0")
    assert (ended["data"]["moves"], ended["data"]["verdict"]) == (["resolve"], "rejected")
    money = {p["what"]: p for p in Reader(market).json("show", game.hex())["money"]}
    assert int(money["bond taken"]["amount"]) == disputed.bond
    assert money["bond to the defender"]["account"] == defender.account.address


def test_a_killed_command_is_given_again_and_nothing_is_sent_twice(market: Market) -> None:
    market.seal()
    _, lying = lie(market, "other-data", 1)
    claims = market.claim([market.run(0), lying, market.run(2)])
    home, me = market.home("hand"), market.address("hand")
    arguments = [claims[1].hex(), "--yes", "--json", "--home", str(home), "--password-file", str(home / "password"),
                 *market.arguments()]  # fmt: skip
    w3, eth = market.devnet.w3, market.devnet.w3.eth

    def pending() -> int:
        return int(eth.get_transaction_count(me, "pending")) - int(eth.get_transaction_count(me))

    for round_ in range(2):
        # No block comes: what is sent waits. Killed with the deposit under way, then with the game under way.
        for method, value in (("evm_setAutomine", False), ("evm_setIntervalMining", 0)):
            w3.provider.make_request(method, [value])  # type: ignore[arg-type]
        opening = market.group.start(f"open-{round_}", ["dispute", "open", *arguments])
        wait(lambda: pending() > 0, "something is under way")
        kill(opening)
        w3.provider.make_request("evm_setAutomine", [True])  # type: ignore[arg-type]
        w3.provider.make_request("evm_mine", [])  # type: ignore[arg-type]
        assert pending() == 0
    ended = market.lockstep("dispute", "open", *arguments)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)["data"]
    (game,) = market.games_on(claims[1])
    assert (told["game"], told["already_open"]) == (game.hex(), True)
    sent = [e.name for e in market.events() if e.args.get("account") == me and e.name in ("Deposited", "Locked")]
    assert sent == ["Deposited", "Locked"]
