"""Events as sentences: every one that a watcher may see has its own, an unknown one is shown as it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from lockstep.base.naming import SHOWN_DIGITS, short
from lockstep.base.networks import PROGRAMS
from lockstep.cli import watching
from lockstep.cli.schema import bundled
from lockstep.demo.run import PROGRAM_OR_LIAR
from lockstep.execution.losses import MergedLoss
from lockstep.market.narrator import CHAIN, countdown, of_chain, of_loss, of_program
from lockstep.protocol.types import MERGE_SLOT, Cid

WORKER = "0x90F79bf6EB2c4f870365E785982E1f101E93b906"
CLAIM = bytes(range(32))
COMMANDS = tuple(f"{program}.up" for program in PROGRAMS)


def events_of(command: str) -> dict[str, dict[str, object]]:
    """Every event of a stream's schema, with an example of each of its fields."""
    examples: dict[str, object] = {
        "round": 3, "slot": 1, "worker": WORKER, "account": WORKER, "claim": CLAIM.hex(), "game": CLAIM.hex(),
        "amount": "20500000000000000000", "escrow": "5", "mask": 7, "seconds": 1.5, "t": 4, "verdict": "match",
        "until": 1_800_000_000, "message": "nobody answers", "move": "defend",
    }  # fmt: skip
    found = {}
    for part in bundled(command)["oneOf"]:
        fields = part.get("properties", {})
        if "event" in fields:
            found[fields["event"]["const"]] = {k: examples.get(k, "7") for k in fields if k != "expectation"}
    return found


def test_every_event_of_a_job_has_a_sentence() -> None:
    seen = events_of("train.watch")
    assert seen.pop("loss")
    assert len(seen) > 20
    for name, fields in seen.items():
        assert name in CHAIN, f"train watch may show {name}"
        line = of_chain(name, fields)
        assert line.text, name
        assert "None" not in line.text, f"{name}: {line.text}"
        assert CLAIM.hex() not in line.text, "ids are short"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_event_of_a_program_has_a_sentence(command: str) -> None:
    for name, fields in events_of(command).items():
        assert name in PROGRAM_OR_LIAR, f"{command} prints {name}"
        line = of_program("worker-0", {**fields, "event": name}, PROGRAM_OR_LIAR)
        assert line.text.startswith("worker-0 ")
        assert "None" not in line.text, f"{name}: {line.text}"


def test_a_loss_that_is_no_number_is_told_with_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.chain.plain.plain", lambda *_: {})
    curve = [MergedLoss(i, i, loss, 2, "", Cid("x")) for i, loss in enumerate((2.5, math.nan, math.nan, 2.0, math.inf))]

    class Handle:
        """A job whose every merge adds a loss."""

        id = bytes(range(32))
        asked = 0

        def watch(self) -> Iterator[SimpleNamespace]:
            for _ in (*curve, "one more look"):
                yield SimpleNamespace(name="Merged", block=1, time=1, contract="JobMarket", args={})

        def losses(self, known: list[MergedLoss]) -> list[MergedLoss]:
            self.asked += 1
            return curve[: self.asked]

    watching._stream(Handle(), losses=True)  # type: ignore[arg-type]
    told = [line for line in capsys.readouterr().err.splitlines() if "diverged" in line]
    assert [line.split(":")[0] for line in told] == ["the loss is nan", "the loss is nan", "the loss is inf"]
    assert all("`lockstep train cancel 00010203`" in line for line in told)
    assert "diverged" in watching.loss_lines(curve, Handle.id.hex())[-1]
    assert "diverged" not in "".join(watching.loss_lines(curve[:1], Handle.id.hex()))


def test_no_sentence_is_of_an_event_that_nobody_prints() -> None:
    printed = {name for command in COMMANDS for name in events_of(command)}
    assert set(PROGRAM_OR_LIAR) == printed


def test_a_sentence_has_round_slot_short_ids_and_tokens() -> None:
    paid = {"round": 2, "slot": 0, "account": WORKER, "amount": 20_500_000_000_000_000_000}
    assert of_chain("Paid", paid).text == "round 2: 20.5 LST to 0x90F79bf6 for slot 0"
    assert of_chain("Paid", {**paid, "slot": MERGE_SLOT}).text.endswith("for the merge")
    merged = of_chain("Merged", {"round": 0, "worker": WORKER, "claim": CLAIM})
    assert merged.text == f"round 0: merged by 0x90F79bf6, claim {CLAIM.hex()[:SHOWN_DIGITS]}"
    wrong = {"event": "audited", "verdict": "mismatch", "t": 5, "claim": CLAIM.hex(), "round": 1, "slot": 2}
    assert of_program("verifier", wrong).text == "verifier replayed claim 00010203 (round 1, slot 2): step 5 differs"


def test_an_event_without_a_sentence_is_shown_plainly() -> None:
    line = of_chain("Renamed", {"round": 3, "claim": CLAIM, "note": "hello"})
    assert line.text == f"Renamed: round 3, claim {CLAIM.hex()[:SHOWN_DIGITS]}, note hello"
    assert of_program("worker-1", {"event": "novel", "time": 5}).text == "worker-1 novel"


def test_a_loss_names_the_claim_that_it_is_bound_to() -> None:
    found = MergedLoss(2, 1, 2.5, 3, CLAIM.hex(), Cid("bafy"))
    assert of_loss(found, "▇▁").text == "loss 2.500000 after 2 merges, claim 00010203  ▇▁"
    first = MergedLoss(0, None, 5.5, 3, "", Cid("bafy"))
    assert of_loss(first).text == "loss 5.500000 after 0 merges, the first weights"


@pytest.mark.parametrize(
    ("value", "text"),
    [(CLAIM, "00010203"), (CLAIM.hex(), "00010203"), ("0x" + CLAIM.hex(), "00010203"), (WORKER, WORKER[:10]),
     ("slot 1", "slot 1"), (7, "7"), ("z" * 64, "z" * 64)],
)  # fmt: skip
def test_ids_are_short_and_nothing_else_is(value: object, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(-3, "0:00"), (9, "0:09"), (545, "9:05"), (3723, "1:02:03")])
def test_a_countdown_is_read_as_a_clock(seconds: int, text: str) -> None:
    assert countdown(seconds) == text


def test_a_claim_that_was_not_replayed_now_says_why() -> None:
    audited = {"event": "audited", "claim": CLAIM.hex(), "round": 1, "slot": 2}
    place = f"claim {short(CLAIM)} (round 1, slot 2)"
    for fields, said in (
        ({"verdict": "match", "seconds": 1.5}, f"v replayed {place} in 1.5 s: every state is the same"),
        ({"verdict": "match"}, f"v replayed {place} before: every state is the same"),
        ({"verdict": "closed"}, f"v does not replay {place}: it can no longer be challenged"),
    ):
        assert of_program("v", {**audited, **fields}).text == said
