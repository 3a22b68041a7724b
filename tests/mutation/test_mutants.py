"""Mutants are single lines that a slip could write; a sample of them does not survive."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.campaign import REASONS, ROOT, TARGETS, WORK, Campaign, Chains, Sandbox, is_explained, reasons
from tests.mutation.mutants import Mutant, of_source, shuffled
from tests.support import questions, recordings

SOURCE = """
    // a < b is only said here
    function f(uint256 a, uint256 b) external onlyMarket returns (uint256 r) {
        if (a >= b && !done) revert Wrong("a < b");
        total += a;
        uint256 c = a + 7;
        assembly {
            r := shl(0x20, sub(c, b))
        }
        emit Done(a, b);
    }
"""


def after(operator: str, line: int) -> set[str]:
    """What the operator makes of a line of SOURCE."""
    return {m.after.strip() for m in of_source("f.sol", SOURCE) if (m.operator, m.number) == (operator, line)}


def test_each_operator_makes_its_slips() -> None:
    guard = 'revert Wrong("a < b");'
    assert after("modifier", 3) == {"function f(uint256 a, uint256 b) external returns (uint256 r) {"}
    assert after("relational", 4) == {f"if (a > b && !done) {guard}"}
    assert after("logical", 4) == {f"if (a >= b || !done) {guard}", f"if (a >= b && done) {guard}"}
    assert after("negation", 4) == {f"if (!(a >= b && !done)) {guard}"}
    assert after("deletion", 4) == {""}
    assert after("arithmetic", 5) == {"total -= a;"}
    assert after("arithmetic", 6) == {"uint256 c = a - 7;"}
    assert after("constant", 6) == {"uint256 c = a + 8;", "uint256 c = a + 6;"}
    assert after("yul", 8) == {"r := shr(0x20, sub(c, b))", "r := shl(0x20, add(c, b))"}
    assert after("constant", 8) == {"r := shl(0x21, sub(c, b))", "r := shl(0x1f, sub(c, b))"}
    assert after("arguments", 8) == {"r := shl(0x20, sub(b, c))"}
    assert after("arguments", 10) == {"emit Done(b, a);"}
    assert after("deletion", 10) == {""}


def test_comments_and_words_in_quotes_stay() -> None:
    assert not [m for m in of_source("f.sol", SOURCE) if m.number == 2]
    assert all('"a < b"' in m.after for m in of_source("f.sol", SOURCE) if m.number == 4 and m.after.strip())


def test_a_mutant_differs_in_its_line_alone() -> None:
    for mutant in of_source("f.sol", SOURCE):
        pairs = zip(SOURCE.split("\n"), mutant.apply(SOURCE).split("\n"), strict=True)
        assert [i for i, (old, new) in enumerate(pairs, 1) if old != new] == [mutant.number]
    with pytest.raises(ValueError, match="has changed"):
        Mutant("f.sol", 3, "deletion", "        another line;", "").apply(SOURCE)


def test_the_seed_alone_decides_the_order() -> None:
    first = shuffled("f.sol", SOURCE, 1)
    assert first == shuffled("f.sol", SOURCE, 1)
    assert first != shuffled("f.sol", SOURCE, 2)
    assert sorted(map(str, first)) == sorted(map(str, of_source("f.sol", SOURCE)))
    assert len({m.operator for m in first[:8]}) == 8, "the operators by turns"


def test_every_survivor_with_a_reason_is_still_a_mutant() -> None:
    known = {
        (m.path, m.before.strip(), m.after.strip())
        for path in TARGETS
        for m in of_source(path, (ROOT / path).read_text())
    }
    assert set(reasons()) <= known, f"{REASONS.name} speaks of lines that are gone"
    assert all(len(reason) > 20 for reason in reasons().values())


@pytest.mark.slow
@pytest.mark.chain
@pytest.mark.timeout(1800)
def test_a_small_sample_of_the_arbiter_is_killed(tmp_path: Path) -> None:
    questions.write(tmp_path / "recordings")
    recordings.write_list(tmp_path / "recordings")
    chains = Chains(Chains.project(WORK / "chains"), tmp_path / "recordings", "sample")
    sandbox = Sandbox(WORK / "sample", chains)
    sandbox.check(["contracts/Arbiter.sol"])
    results = Campaign(tmp_path / "results.jsonl", [sandbox], "now").run("contracts/Arbiter.sol", 6, seed=1)
    assert len(results) == 6
    assert [str(r.mutant) for r in results if not is_explained(r)] == []
    assert sum(r.outcome == "killed" for r in results) >= 5
    again = Campaign(tmp_path / "results.jsonl", [sandbox], "later").run("contracts/Arbiter.sol", 6, seed=1)
    killed = [r for r in results if r.outcome == "killed"]
    assert [r for r in again if r in killed] == killed, "nothing that was killed runs twice"
    assert [str(r.mutant) for r in again] == [str(r.mutant) for r in results]
