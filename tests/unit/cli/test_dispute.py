"""`lockstep dispute` on a chain in memory: lists, cards, trees and watches, and the errors of each command."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lockstep.chain import games
from lockstep.chain.addresses import CONTRACTS, Addresses
from lockstep.chain.keys import create_account
from lockstep.cli.dispute import replay_command
from lockstep.cli.dispute_text import countdown
from lockstep.protocol.dispute.moves import GamePhase
from lockstep.protocol.types import Address, GameId
from tests.support.court import LIE, Court, in_memory

from .conftest import Lockstep

NOBODY = "http://127.0.0.1:9"
"""The discard port: nobody listens."""
READING = [("list",), ("show", "ab" * 32), ("tree", "ab" * 32), ("check", "ab" * 32), ("watch", "ab" * 32)]
PLAYING = [("open", "ab" * 32), ("respond", "ab" * 32), ("prove", "ab" * 32), ("resolve", "ab" * 32)]


@dataclass
class Played:
    """A court in which three games were begun: one convicts, one cannot, one has not come far."""

    court: Court
    convicted: GameId
    honest: GameId
    early: GameId

    def places(self, folder: Path) -> list[str]:
        """Options that lead to its chain."""
        path = folder / "court.json"
        self.court.arena.contracts.addresses.save(path)
        return ["--rpc", self.court.arena.devnet.url, "--deployment", str(path)]


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    court = in_memory()
    convicted = court.open(0, court.held(0, LIE))
    court.play(convicted, 0, LIE)
    honest = court.open(1, court.held(1))
    court.play(honest, 1, None)
    early = court.open(2, court.held(2, LIE))
    court.play(early, 2, LIE, 2)
    yield Played(court, convicted, honest, early)
    court.arena.stop()


def test_list_has_running_games_and_with_all_the_others(lockstep: Lockstep, played: Played, tmp_path: Path) -> None:
    places = played.places(tmp_path)
    running = lockstep("dispute", "list", *places, "--json").data["games"]
    assert [g["game"] for g in running] == [played.honest.hex(), played.early.hex()]
    every = lockstep("dispute", "list", "--all", *places, "--json").data["games"]
    assert [g["verdict"] for g in every] == ["fraud", "open", "open"]
    of_job = lockstep("dispute", "list", "--all", "--job", every[0]["job"], *places, "--json").data["games"]
    assert of_job == every
    stored = games.read(played.court.arena.contracts.game, played.honest)
    assert (running[0]["mover"], running[0]["phase"]) == ("challenger", "graph_pick")
    assert running[0]["deadline"] == stored.deadline
    assert running[0]["seconds_left"]["defender"] == stored.left_defender
    text = lockstep("dispute", "list", *places).out
    assert played.honest.hex()[:8] in text
    assert played.convicted.hex()[:8] not in text
    other = lockstep("dispute", "list", "--job", "cd" * 32, *places, "--json")
    assert (other.code, other.error["code"]) == (7, "not_found")


def value_of(bits: str) -> float:
    """The float of 32 bits in hexadecimal."""
    (value,) = struct.unpack(">f", bytes.fromhex(bits.removeprefix("0x")))
    return float(value)


def words(lockstep: Lockstep, played: Played, folder: Path) -> list[str]:
    """What was claimed and what the contract computed, as people read it: the seed, and so the number, follows from
    the contracts' code."""
    shown = lockstep("dispute", "show", played.convicted.hex(), *played.places(folder), "--json").data
    return [f"{shown[key]} = {value_of(shown[key]):.9g}" for key in ("claimed_bits", "contract_bits")]


def test_show_has_every_move_the_numbers_and_the_money(lockstep: Lockstep, played: Played, tmp_path: Path) -> None:
    shown = lockstep("dispute", "show", played.convicted.hex(), *played.places(tmp_path), "--json").data
    made = [m["move"] for m in shown["moves"]]
    assert made == ["open", "defend", "pick", "revealTensor", "pick", "postLeaf", "proveOp"]
    assert {m["by"] for m in shown["moves"]} == {"challenger", "defender"}
    assert (shown["op"]["index"], shown["op"]["kind"], shown["element"]) == (LIE.op, "map", LIE.element)
    assert int(shown["claimed_bits"], 16) ^ int(shown["contract_bits"], 16) == LIE.bits
    values = [value_of(shown[key]) for key in ("claimed_bits", "contract_bits")]
    assert (shown["claimed_value"], shown["contract_value"]) == pytest.approx(values)
    assert all(isinstance(p["amount"], str) and p["amount"].isdecimal() for p in shown["money"])
    money = {p["what"]: int(p["amount"]) for p in shown["money"]}
    assert money["stake slashed"] == sum(
        money[k] for k in ("slash to challengers", "slash to the requester", "slash burned")
    )
    text = lockstep("dispute", "show", played.convicted.hex()[:6], *played.places(tmp_path)).out
    claimed, contract = words(lockstep, played, tmp_path)
    assert f"claimed     {claimed}\ncontract    {contract}\n" in text
    assert f"lockstep replay {shown['claim']} --rpc" in text


def test_a_running_game_has_a_deadline_and_no_verdict(lockstep: Lockstep, played: Played, tmp_path: Path) -> None:
    shown = lockstep("dispute", "show", played.early.hex(), *played.places(tmp_path), "--json").data
    assert (shown["verdict"], shown["winner"], shown["contract_bits"]) == ("open", None, None)
    assert shown["deadline"] - shown["chain_time"] == shown["seconds_left"][shown["mover"]] > 0
    assert int(shown["stake"]) > 0
    text = lockstep("dispute", "show", played.early.hex(), *played.places(tmp_path)).out
    assert f"({shown['deadline']})" in text
    assert countdown(shown["seconds_left"][shown["mover"]]) in text
    assert "UTC" in text


def test_tree_leads_from_the_trace_to_the_number(lockstep: Lockstep, played: Played, tmp_path: Path) -> None:
    drawn = lockstep("dispute", "tree", played.convicted.hex(), *played.places(tmp_path)).out
    claimed, contract = words(lockstep, played, tmp_path)
    for label in (
        "S_1 to S_2", "op 2 ", "ops 0 to 1", "output of op 2 (map, f32 520)", "elements 256 to 511",
        f"element 300: claimed {claimed}", f"the contract computes {contract}",
    ):  # fmt: skip
        assert label in drawn, drawn
    agreed = next(line for line in drawn.splitlines() if "ops 0 to 1 " in line)
    assert agreed.endswith("agrees")


def test_a_watch_of_a_game_that_is_over_tells_every_move_and_ends(
    lockstep: Lockstep, played: Played, tmp_path: Path
) -> None:
    ended = lockstep("dispute", "watch", played.convicted.hex(), *played.places(tmp_path), "--json")
    told: list[dict[str, Any]] = [json.loads(line) for line in ended.out.splitlines()]
    assert (ended.code, [e["event"] for e in told]) == (0, ["moved"] * 7 + ["resolved"])
    claimed, contract = words(lockstep, played, tmp_path)
    assert (told[-1]["verdict"], told[-1]["contract_bits"]) == ("fraud", contract.partition(" ")[0])
    lines = lockstep("dispute", "watch", played.convicted.hex(), *played.places(tmp_path)).out.splitlines()
    assert len(lines) == 9
    assert lines[-2].endswith(f"fraud: claimed {claimed}, the contract computed {contract}")
    assert lines[-1].startswith(f"check it yourself: lockstep replay {told[-1]['claim']} --rpc http://")


def test_a_game_is_named_by_a_prefix_of_its_own(
    lockstep: Lockstep, played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, name = played.places(tmp_path), played.convicted.hex()
    for text in (name[:6], name[:20].upper(), f"0x{name[:9]}", name):
        assert lockstep("dispute", "show", text, *places, "--json").data["game"] == name, text
    for text in (name[:5], "game 7", f"{name}00"):
        ended = lockstep("dispute", "show", text, *places, "--json")
        assert (ended.code, ended.error["code"]) == (2, "usage"), text
    other = f"{(int(name[:6], 16) + 1) % (1 << 24):06x}"
    for text in (other, other.ljust(64, "0")):
        ended = lockstep("dispute", "show", text, *places, "--json")
        assert (ended.code, ended.error["code"]) == (7, "not_found"), text
    monkeypatch.setattr("lockstep.base.naming.LEAST_DIGITS", 0)
    ended = lockstep("dispute", "show", "", *places, "--json")
    assert (ended.code, ended.error["code"]) == (2, "usage")
    assert "3 of them begin with" in ended.error["message"]


def test_a_clock_that_ran_out_is_said(lockstep: Lockstep, tmp_path: Path) -> None:
    court = in_memory()
    try:
        game = court.open(1, court.held(1))
        court.arena.devnet.advance(
            court.arena.contracts.market.params(court.arena.last_job()).windows.clock_seconds + 1
        )
        places = Played(court, game, game, game).places(tmp_path)
        (row,) = lockstep("dispute", "list", *places, "--json").data["games"]
        assert row["clock_run_out"]
        assert row["seconds_left"]["defender"] == 0
        assert games.read(court.arena.contracts.game, game).phase == GamePhase.DEFEND
        assert (
            "defender's clock has run out: anybody may resolve" in lockstep("dispute", "show", game.hex(), *places).out
        )
    finally:
        court.arena.stop()


@pytest.mark.parametrize("command", READING, ids=lambda c: c[0])
def test_reading_asks_for_no_key_and_writes_nothing(lockstep: Lockstep, command: tuple[str, ...]) -> None:
    Addresses(31337, *(Address(f"0x{n:040x}") for n in range(1, 1 + len(CONTRACTS)))).save(Path("deployment.json"))
    ended = lockstep("dispute", *command, "--rpc", NOBODY, "--json")
    assert (ended.code, ended.error["code"]) == (9, "unreachable")
    assert sorted(p.name for p in Path.cwd().iterdir()) == ["deployment.json"]


@pytest.mark.parametrize("command", PLAYING, ids=lambda c: c[0])
def test_playing_needs_a_key_and_makes_no_home(lockstep: Lockstep, command: tuple[str, ...]) -> None:
    Path("password").write_text("correct horse")
    ended = lockstep("dispute", *command, "--home", "home", "--password-file", "password", "--json")
    assert (ended.code, ended.error["code"]) == (4, "key")
    assert not Path("home").exists()


@pytest.mark.parametrize("command", PLAYING, ids=lambda c: c[0])
def test_a_chain_that_does_not_answer_is_9_and_leaves_no_outbox(lockstep: Lockstep, command: tuple[str, ...]) -> None:
    create_account(Path("home/keystore.json"), "correct horse", work=2)
    Path("password").write_text("correct horse")
    Addresses(31337, *(Address(f"0x{n:040x}") for n in range(1, 1 + len(CONTRACTS)))).save(Path("deployment.json"))
    ended = lockstep(
        "dispute", *command, "--home", "home", "--password-file", "password", "--rpc", NOBODY, "--json"
    )  # fmt: skip
    assert (ended.code, ended.error["code"]) == (9, "unreachable")
    assert not list(Path("home").glob("outbox*"))


@pytest.mark.parametrize(
    "arguments", [("watch",), ("watch", "ab" * 32, "--job", "cd" * 32), ("watch", "abcdef", "--webhook", "ftp://x/s3cret"),
                  ("watch", "--job", "job 7"), ("list", "--job", "job 7"), ("open", "claim 7")],
    ids=" ".join,
)  # fmt: skip
def test_what_is_no_request_is_2(lockstep: Lockstep, arguments: tuple[str, ...]) -> None:
    ended = lockstep("dispute", *arguments, "--json")
    assert (ended.code, ended.error["code"]) == (2, "usage")
    assert "s3cret" not in ended.out + ended.err


def test_a_game_in_which_no_number_was_computed_has_none_to_check(
    lockstep: Lockstep, played: Played, tmp_path: Path
) -> None:
    for game in (played.honest, played.early):
        places = [*played.places(tmp_path), "--storage", f"dir://{tmp_path / 'store'}"]
        ended = lockstep("dispute", "check", game.hex(), *places, "--json")
        assert (ended.code, ended.error["code"]) == (2, "usage")
        assert "not computed a number" in ended.error["message"]
        assert ended.error["hint"].startswith("give `lockstep replay ")


def test_the_command_that_reproduces_a_claim_has_the_places_that_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert replay_command("ab", rpc=None, storage=None) == "lockstep replay ab"
    assert (
        replay_command("ab", rpc="http://x", storage="dir:///a b")
        == "lockstep replay ab --rpc http://x --storage 'dir:///a b'"
    )
    monkeypatch.setenv("LOCKSTEP_NETWORK", "sepolia")
    assert replay_command("ab") == "lockstep replay ab --network sepolia"


@pytest.mark.parametrize(("seconds", "text"), [(-3, "0:00"), (9, "0:09"), (545, "9:05"), (3723, "1:02:03")])
def test_a_countdown_is_read_as_a_clock(seconds: int, text: str) -> None:
    assert countdown(seconds) == text
