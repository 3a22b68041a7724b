"""Checks the table of rules against the twin: every error, call and guard is covered (forge: `make test-forge`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from lockstep.protocol.transition import VERBS
from tests.rules import vectors
from tests.rules.vectors import PATH

LONG_FOLDS = "folds of more than 256 terms: tests/vectors/games.jsonl, tests/unit/protocol/dispute/test_game.py"
UNCALLED = {
    **{("DisputeGame", name): LONG_FOLDS for name in ("pickElement", "postPartials", "pickPartial")},
}
"""Calls that succeed in no row, and where they are tested."""
PURE = "asked before by the court, or by the market: tests/unit/protocol/dispute/test_game.py"
HONEST_OPS = "an op that was computed right is convicted in no game: tests/differential/test_game.py"
HEADERS = "Programs of a wrong form: tests/differential/test_game.py"
ELSEWHERE = {
    "vault._pull TokenMismatch": "a token with a fee: tests/forge/StakeVault.t.sol",
    "game.facts CommitmentMismatch": PURE,
    "game.play PhaseWrong": PURE,
    "game._open GameExists": PURE,
    "game._open CommitmentMismatch": PURE,
    "game._prove_op EqualBits": HONEST_OPS,
    "game._prove_alias EqualBits": HONEST_OPS,
    "game._prove_padding EqualBits": HONEST_OPS,
    "game._argue DescriptorInvalid": HEADERS,
    "game._prove_alias DescriptorInvalid": HEADERS,
    "game._counted DescriptorInvalid": HEADERS,
    "game._claimed OpeningsWrong": LONG_FOLDS,
    "game._claimed ProofInvalid": LONG_FOLDS,
    "game._posted ProofInvalid": LONG_FOLDS,
    "game._word_at LengthWrong": LONG_FOLDS,
}
"""Guards that no row reaches, and where they are tested."""
REFUSAL = re.compile(r'raise (?:revert|MoveRefused)\("(\w+)"')


def guards(repository: Path) -> Iterator[tuple[str, str]]:
    """Yields (file:line, "file.function Error") of every refusal of the twin."""
    protocol = repository / "sdk/lockstep/protocol"
    for path in (*sorted((protocol / "market").glob("*.py")), protocol / "dispute/game.py"):
        function = ""
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if begun := re.match(r" *def (\w+)", line):
                function = begun[1]
            if said := REFUSAL.search(line):
                yield f"{path.stem}:{number}", f"{path.stem}.{function} {said[1]}"


def test_the_file_is_the_tables() -> None:
    assert PATH.read_text() == vectors.vectors(), "python -m tests.rules"


def test_every_error_of_the_contracts_is_met(repository: Path) -> None:
    declared = re.compile(r"^ *error (\w+)\(", re.MULTILINE)
    errors = {name for path in (repository / "contracts").rglob("*.sol") for name in declared.findall(path.read_text())}
    met = {row["error"] for row in vectors.rows() if "error" in row}
    assert errors - met == {"TokenMismatch"}


def test_a_job_that_nobody_takes_is_told_what_is_required() -> None:
    said = {o.refusal.hint for _, o in vectors.outcomes() if o.refusal and o.refusal.rule == "JobInvalid"}
    assert all(hint.startswith("required: ") for hint in said)
    assert len(said) > 15, "one of each group"


def test_every_call_succeeds_in_some_row() -> None:
    done = {(o.call.contract, o.call.function) for _, o in vectors.outcomes() if o.said}
    assert set(VERBS) - done == set(UNCALLED)


def test_every_guard_of_the_twin_refuses_some_row(repository: Path) -> None:
    met = {o.guard for _, o in vectors.outcomes() if o.refusal}
    missed = {name for place, name in guards(repository) if place not in met}
    assert missed == set(ELSEWHERE)
