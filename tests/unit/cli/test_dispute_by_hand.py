"""`lockstep dispute` as a player by hand gives it, and `replay` as anybody does, on a market in memory."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lockstep.chain import games
from lockstep.chain.devnet import key_of
from lockstep.chain.events import EventReader
from lockstep.chain.keys import KEYSTORE, create_account
from lockstep.protocol.dispute.game import game_id
from lockstep.protocol.dispute.moves import GamePhase
from lockstep.protocol.jobs import JobStatus
from lockstep.protocol.types import Address, ClaimId, GameId, Wei
from lockstep.runtime.guard import lock
from tests.adversarial.claims import demo_lie
from tests.adversarial.court import NOWHERE, WALLET, Court, published
from tests.support import broken
from tests.support.games import open_at
from tests.unit.runtime.test_webhook import Hook, hook

from .conftest import Ended, Lockstep, killed_once_sent

__all__ = ["hook"]

PROOFS = (GamePhase.PROOF, GamePhase.ALIAS, GamePhase.PADDING)


@dataclass
class Hand:
    """A market in memory whose round is sealed, and the command."""

    court: Court
    lockstep: Lockstep

    @property
    def public(self) -> list[str]:
        """Options of somebody without a key and without storage."""
        return ["--rpc", self.court.devnet.url, "--deployment", str(self.court.folder / "deployment.json")]

    @property
    def places(self) -> list[str]:
        """With storage."""
        return [*self.public, "--storage", self.court.store.url]

    def key(self, name: str = "hand") -> list[str]:
        """Options of a party's home; who is none of the court's is given tokens."""
        home = self.home(name)
        if not home.exists():
            create_account(home / KEYSTORE, "correct horse", key_of(self.court.devnet.seed, name), work=2)
            (home / "password").write_text("correct horse")
        return [*self.places, "--home", str(home), "--password-file", str(home / "password")]

    def home(self, name: str) -> Path:
        """A party's home."""
        return self.court.folder / f"home-{name}"

    def address(self, name: str = "hand") -> Address:
        """A party's address."""
        return Address(self.court.devnet.account(name).address)

    def dispute(self, verb: str, *arguments: str, by: str = "hand") -> Ended:
        """A command of a player; as JSON."""
        return self.lockstep("dispute", verb, *arguments, "--json", *self.key(by))

    def read(self, verb: str, *arguments: str) -> Any:
        """Data of a command of a reader."""
        return self.lockstep("dispute", verb, *arguments, "--json", *self.public).data

    def opened_by(self, name: str, claim: ClaimId) -> list[GameId]:
        """Games that a party has opened on a claim."""
        found = games.opened(self.court.contracts.game, claim, 0)
        return [g for g in found if games.read(self.court.contracts.game, g).challenger == self.address(name)]


@pytest.fixture
def hand(tmp_path: Path, lockstep: Lockstep) -> Iterator[Hand]:
    court = Court.in_memory(tmp_path)
    court.contracts.addresses.save(tmp_path / "deployment.json")
    court.reset()
    made = Hand(court, lockstep)
    court.send(court.contracts.token.mint(made.address(), WALLET), "requester")
    yield made
    court.stop()


@pytest.mark.slow
def test_a_convicted_cheat_is_shown_to_the_float(hand: Hand, hook: Hook) -> None:
    court = hand.court
    assert hand.read("list", "--all")["games"] == []
    cheat, lying = demo_lie("one-ulp", court.run(1))
    claims = court.claim({1: lying})
    (game,) = court.audit_and_play()
    expected, name = cheat.expectation, game.hex()

    assert hand.read("list")["games"] == []
    (row,) = hand.read("list", "--all", "--job", court.job_id.hex())["games"]
    assert (row["game"], row["claim"], row["verdict"]) == (name, claims[1].hex(), "fraud")
    assert (row["round"], row["slot"], row["job"]) == (0, 1, court.job_id.hex())

    shown = hand.read("show", name[:8])
    place = (expected.step, expected.op_index, expected.element)
    assert (shown["step"], shown["op"]["index"], shown["element"]) == place
    assert (shown["chunk"], shown["op"]["kind"], shown["dtype"]) == (expected.chunk or 0, expected.op_kind, "f32")
    claimed, computed = (int(shown[k], 16) for k in ("claimed_bits", "contract_bits"))
    assert claimed != computed
    assert isinstance(shown["claimed_value"], float)
    assert shown["claimed_value"] != shown["contract_value"]
    reader = EventReader(court.devnet.w3, court.contracts.addresses)
    said = reader.poll(reader.start()).events
    hashes = dict.fromkeys(e.transaction for e in said if e.args.get("game") == game)
    gas = [int(court.devnet.w3.eth.get_transaction_receipt("0x" + h.hex())["gasUsed"]) for h in hashes]  # type: ignore[arg-type]
    assert [m["gas"] for m in shown["moves"]] == gas, "a transaction a move"
    assert shown["gas_total"] == sum(gas)
    stake = court.params.role.slot_stake
    money = {p["what"]: int(p["amount"]) for p in shown["money"]}
    assert (money["stake slashed"], money["slash burned"]) == (stake, stake // 2)
    assert money["bond returned"] == money["bond locked"] == int(shown["bond"])
    named = hand.lockstep("dispute", "show", name, "--json", *hand.places).data
    assert named["op"]["name"] == expected.op_name

    # What it prints to check it oneself is a command that finds the same number.
    replayed = hand.lockstep(*shlex.split(named["replay"])[1:], "--json")
    assert replayed.code == 10, replayed.err
    found = json.loads(replayed.out)["data"]
    assert (found["claimed_bits"], found["computed_bits"]) == (shown["claimed_bits"], shown["contract_bits"])

    # So is the one with which a watch ends, as it is printed.
    last = hand.lockstep("dispute", "watch", name, *hand.places).out.splitlines()[-1]
    head, _, printed = last.partition(": ")
    assert head == "check it yourself"
    again = hand.lockstep(*shlex.split(printed)[1:])
    assert again.code == 10, again.err
    assert f"claimed {shown['claimed_bits']}, computed {shown['contract_bits']}" in again.out

    text = hand.lockstep("dispute", "show", name, *hand.public).out
    assert f"{shown['contract_value']:.9g}" in text
    assert "fraud, won by" in text
    path, part = [], hand.read("tree", name)["tree"]
    while part is not None:
        path.append(part["label"])
        part = next((p for p in part["parts"] if p["challenger"] == "differs"), None)
    assert path[1] == f"S_{expected.step}"
    assert f"op {expected.op_index}" in path
    assert any(label.startswith(f"element {expected.element}: claimed 0x") for label in path)
    assert any(f"claimed {shown['claimed_bits']}" in label for label in path), "of the element, or of its chunk"
    assert path[-1].startswith(f"the contract computes {shown['contract_bits']}")
    drawn = hand.lockstep("dispute", "tree", name, *hand.public).out
    assert [label for label in path if label not in drawn] == []
    hook.answers = [503]
    watched = hand.lockstep("dispute", "watch", name, "--webhook", hook.url, "--json", *hand.public)
    told = [json.loads(line) for line in watched.out.splitlines()]
    assert hook.got == told, "each once, in order, though the first answer was 503"
    assert [e["event"] for e in told] == ["moved"] * len(shown["moves"]) + ["resolved"]
    assert [e["move"] for e in told[:-1]] == [m["move"] for m in shown["moves"]]
    assert (told[-1]["verdict"], told[-1]["contract_bits"]) == ("fraud", shown["contract_bits"])


@pytest.mark.slow
def test_a_challenger_s_game_is_played_by_hand(hand: Hand) -> None:
    court = hand.court
    cheat, lying = demo_lie("one-ulp", court.run(1))
    claims = court.claim({1: lying}, change={1: published(NOWHERE)})
    before = court.contracts.token.balance_of(hand.address())
    assert hand.dispute("open", claims[0].hex()).data["verdict"] == "match"
    assert hand.opened_by("hand", claims[0]) == []
    assert hand.dispute("open", claims[1].hex()).code == 2, "nobody can be asked"
    assert court.contracts.token.balance_of(hand.address()) == before, "and nothing was staked"

    name = hand.dispute("open", claims[1].hex(), "--yes").data["game"]
    (game,) = hand.opened_by("hand", claims[1])
    assert game.hex() == name
    again = hand.dispute("open", claims[1].hex(), "--yes").data
    assert (again["game"], again["already_open"]) == (name, True)
    assert hand.opened_by("hand", claims[1]) == [game]

    assert hand.dispute("respond", name).code == 75, "the defender's turn"
    assert hand.dispute("resolve", name).code == 75, "its clock runs"
    assert hand.dispute("prove", name).code == 75
    (row,) = hand.read("list")["games"]
    assert (row["mover"], row["seconds_left"]["challenger"]) == ("defender", court.params.windows.clock_seconds)
    defender = court.defender(game)
    while True:
        while games.read(court.contracts.game, game).defender_moves:
            assert defender(court.now()) is not None, "the defender answers"
        if games.read(court.contracts.game, game).phase in PROOFS:
            break
        assert hand.dispute("respond", name).data["side"] == "challenger"
    assert hand.dispute("prove", name[:10]).data["verdict"] == "fraud"
    shown, expected = hand.read("show", name), cheat.expectation
    place = (expected.step, expected.op_index, expected.element)
    assert (shown["step"], shown["op"]["index"], shown["element"]) == place
    assert hand.dispute("respond", name).code == 5, "it is over"
    assert not list((hand.home("hand") / "disputes").iterdir()), "nothing is kept of it"


def test_a_silent_defender_loses_by_its_clock_and_a_verifier_s_home_is_not_played_in(hand: Hand) -> None:
    court = hand.court
    claims = court.claim({2: demo_lie("other-data", court.run(2))[1]})
    name = hand.dispute("open", claims[2].hex(), "--yes").data["game"]
    with lock.held(hand.home("hand"), "verifier"):
        refused = hand.dispute("resolve", name)
    assert refused.code == 8
    assert "verifier" in refused.error["message"]
    court.advance(court.params.windows.clock_seconds + court.params.windows.step_seconds + 1)
    (row,) = hand.read("list")["games"]
    assert row["clock_run_out"]
    ended = hand.dispute("resolve", name[:6], "--storage", "http://127.0.0.1:9")
    assert ended.data["verdict"] == "timeout"
    watched = hand.lockstep("dispute", "watch", name, "--json", *hand.public).out.splitlines()
    told = [json.loads(line) for line in watched]
    assert told[0]["event"] == "moved"
    assert [e["verdict"] for e in told if e["event"] == "resolved"] == ["timeout"]
    shown = hand.read("show", name)
    assert (shown["verdict"], shown["contract_bits"]) == ("timeout", None)


@pytest.mark.slow
def test_a_defender_answers_by_hand_and_a_false_challenger_has_nothing_to_point_at(hand: Hand) -> None:
    court = hand.court
    claims = court.claim()
    disputed = court.known(claims[0])
    opening = open_at(disputed, court.held[claims[0]], 2)
    game = game_id(claims[0], court.address("worker-2"), 0)
    court.send(games.call(court.contracts.game, opening, game), "worker-2")

    assert hand.dispute("respond", game.hex(), by="worker-1").code == 2, "plays no side"
    assert hand.dispute("respond", game.hex(), by="worker-2").code == 75, "not its turn"
    answered = hand.dispute("respond", game.hex(), by="worker-0").data
    assert (answered["side"], answered["moves"]) == ("defender", ["defend"])
    nothing = hand.dispute("respond", game.hex(), by="worker-2")
    assert (nothing.code, nothing.error["code"]) == (5, "chain.EqualBits")
    court.advance(court.params.windows.clock_seconds + 1)
    late = hand.dispute("respond", game.hex(), by="worker-2")
    assert (late.code, late.error["code"]) == (5, "chain.ClockExpired")
    ended = hand.dispute("respond", game.hex(), by="worker-0").data
    assert (ended["moves"], ended["verdict"]) == (["resolve"], "rejected")
    money = {p["what"]: p for p in hand.read("show", game.hex())["money"]}
    assert int(money["bond taken"]["amount"]) == disputed.bond
    assert money["bond to the defender"]["account"] == court.address("worker-0")


@pytest.mark.slow
def test_a_killed_command_is_given_again_and_nothing_is_sent_twice(hand: Hand) -> None:
    court = hand.court
    claims = court.claim({1: demo_lie("other-data", court.run(1))[1]})

    for _ in range(2):
        # Killed with the deposit under way, then with the game under way.
        with killed_once_sent():
            hand.dispute("open", claims[1].hex(), "--yes")
    told = hand.dispute("open", claims[1].hex(), "--yes").data
    (game,) = hand.opened_by("hand", claims[1])
    assert (told["game"], told["already_open"]) == (game.hex(), True)
    sent = [e.name for e in court.events("Deposited", "Locked") if e.args.get("account") == hand.address()]
    assert sent == ["Deposited", "Locked"]


@pytest.mark.slow
def test_replay_decides_neither_way_without_data_and_names_bad_arguments(hand: Hand) -> None:
    (claim, *_) = hand.court.claim()
    empty = hand.court.folder / "empty"
    empty.mkdir()
    without = hand.lockstep("replay", claim.hex(), "--json", *hand.public, "--storage", f"dir://{empty}")
    assert (without.code, without.error["code"]) == (11, "inconclusive")
    assert hand.lockstep("replay", bytes(32).hex(), "--json", *hand.places).code == 7
    bad = hand.lockstep("replay", "nonsense", "--json")
    assert (bad.code, bad.error["code"]) == (2, "usage")
    assert hand.lockstep("replay", claim.hex(), *hand.public[2:], "--rpc", "http://127.0.0.1:9").code == 9
    told = hand.lockstep("replay", claim.hex(), *hand.places)
    assert told.out.startswith("MATCH"), told.out + told.err


def test_a_job_that_could_not_be_defended_is_voided_by_command_and_no_other(hand: Hand) -> None:
    court = hand.court
    params = broken.publish(court.store)
    court.send(court.contracts.token.mint(court.address("requester"), Wei(2 * params.escrow)), "requester")
    court.send(court.contracts.token.approve(court.contracts.vault.address, WALLET), "requester")
    court.send(court.contracts.market.create(params, 1, params.escrow), "requester")
    (job,) = [found for found in court.ledger().jobs if found != court.job_id]
    sound = hand.lockstep("verifier", "void", court.job_id.hex(), *hand.key(), "--json")
    assert sound.code == 10, sound.out
    assert court.contracts.market.job(court.job_id).status == JobStatus.ACTIVE
    ended = hand.lockstep("verifier", "void", job.hex(), *hand.key(), "--json")
    assert ended.data == {"job": job.hex(), "rule": "instruction_count", "subject": "op", "index": 1}
    stored = court.contracts.market.job(job)
    assert (stored.status, stored.prover) == (JobStatus.VOID, hand.address())
