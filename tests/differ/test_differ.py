"""Random Programs give the slow executor's bits on every path; a defect would be found, and a failing case is
shrunk.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from lockstep.numerics import portable
from lockstep.numerics.built import COMPILED
from lockstep.protocol.programs.opcodes import Opcode
from lockstep.protocol.programs.program import Alias, Kind
from tests.differ import builds, shrink
from tests.differ.case import Case
from tests.differ.counts import Counts, counts_of
from tests.differ.explained import EXPLAINED, Reached, reached
from tests.differ.hunt import Failure, hunt
from tests.differ.instrumented import CUDA, first_failure, first_on_device, small
from tests.differ.kinds import KINDS, made, names
from tests.differ.planted import DEFECTS, HEADERS, changes
from tests.differ.shrink import is_valid
from tests.differ.small import LIMITS
from tests.differ.trial import EQUAL, NOTHING, refused, tried
from tests.differ.ways import Difference, due_words

pytestmark = [pytest.mark.uncounted, pytest.mark.skipif(not COMPILED, reason="compares compiled kernels with numpy")]
SHARDS = 4


def told(failures: list[Failure]) -> str:
    return "\n".join(f"python -m tests.differ replay {f.name}    # {f.said}" for f in failures)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_programs_give_the_bits_on_every_way(shard: int) -> None:
    kinds = [kind for kind in KINDS if kind not in ("nets", "changed")]
    for name in names(kinds, 30 * shard, 30):
        assert tried(name, quick=True) in (EQUAL, "none"), f"python -m tests.differ replay {name}"


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_thousand_cases_of_all_kinds() -> None:
    cases = int(os.environ.get("LOCKSTEP_DIFFER_CASES", "1000"))
    found = hunt(list(KINDS), cases=cases, jobs=2)
    assert not found.failures, told(found.failures)
    assert found.cases.keys() == set(KINDS), "every kind gave cases"


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_few_cases_on_the_emulated_device() -> None:
    found = hunt(["layers", "anything", "nets"], cases=24, jobs=2, options=("--device", "emulated"))
    assert not found.failures, told(found.failures)


def test_a_name_gives_the_same_case_in_every_run() -> None:
    for kind in ("layers", "anything", "strips"):
        first, second = made(f"{kind}:7"), made(f"{kind}:7")
        assert first is not None
        assert second is not None
        assert first.program.root == second.program.root, "the Program"
        assert all(
            (a is None and b is None) or (a is not None and b is not None and a.tobytes() == b.tobytes())
            for a, b in zip(first.state, second.state, strict=True)
        ), "its state"


def test_kinds_take_turns_and_no_seed_comes_twice() -> None:
    found = names(list(KINDS), 0, 400)
    assert len(set(found)) == 400
    assert names(list(KINDS), 100, 50) == found[100:150], "a run may begin anywhere"


def test_a_case_comes_back_from_its_file(tmp_path: Path) -> None:
    case = next(c for seed in range(20) if (c := made(f"anything:{seed}")) is not None and c.dataset is None)
    case.save(tmp_path / "case.npz")
    again = Case.load(tmp_path / "case.npz")
    assert (again.name, again.program.root) == (case.name, case.program.root)
    for a, b in zip(case.state, again.state, strict=True):
        assert (a is None) == (b is None)
        assert a is None or b is None or (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def test_a_failing_case_becomes_as_small_as_it_fails() -> None:
    case = made("layers:7")
    assert case is not None

    def fails(c: Case) -> bool:
        """Returns the check for a fault of all exponentials."""
        return any(i.op == Opcode.FEXP for op in c.program.ops for i in op.instrs) or bool(due_words(c) and False)

    with_one = next(c for seed in range(50) if (c := made(f"layers:{seed}")) is not None and fails(c))
    small = shrink.shrunk(with_one, shrink.apart(fails))
    assert fails(small)
    assert len(small.program.ops) <= 2, shrink.described(small)
    assert sum(a.kind == Alias.OP_KIND for a in small.program.outputs) == 1


def test_programs_that_break_a_rule_run_all_the_same() -> None:
    broken = 0
    for seed in range(40):
        case = made(f"unruled:{seed}")
        if case is None or is_valid(case.program) or refused(case):
            continue
        broken += 1
        assert tried(case.name, quick=True, few=True) == EQUAL, f"python -m tests.differ replay {case.name}"
    assert broken >= 5


def test_a_program_that_one_decoder_alone_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [made(f"unruled:{seed}") for seed in range(60)]
    said = {case.name: refused(case) for case in found if case is not None}
    assert set(said.values()) == {"", NOTHING}, "both take some of them, both refuse others"

    def refuses(*_: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(portable, "Executor", refuses)
    taken = next(case for case in found if case is not None and not said[case.name])
    assert tried(taken.name) == "refused by one alone: no"


def test_a_crash_is_told_from_a_difference() -> None:
    case = made("layers:0")
    assert case is not None
    assert shrink.apart(lambda _: True)(case) == "fails"
    assert shrink.apart(lambda _: False)(case) == ""
    assert shrink.apart(lambda _: os.abort())(case) == "crashes"  # type: ignore[func-returns-value]


def test_a_changed_word_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.differ import ways

    case = made("layers:0")
    assert case is not None
    due = due_words(case)
    last = max(i for i, op in enumerate(case.program.ops) if op.kind == Kind.MAP)
    wrong = [w.copy() for w in due]
    wrong[last][-1] ^= np.uint32(1)
    monkeypatch.setattr(ways, "due_words", lambda _, native: wrong)
    found = [d for d in ways.differences(case, 0) if d.op == last]
    assert found
    assert all(isinstance(d, Difference) and d.element == len(due[last]) - 1 for d in found)


def test_planted_defects_are_in_the_sources_once() -> None:
    for change in changes():
        source = (builds.ROOT / builds.KERNELS / change.file).read_text()
        assert change.apply(source) != source, change
    for _, change in HEADERS:
        source = (builds.ROOT / CUDA / change.file).read_text()
        assert change.apply(source) != source, change
    assert len(DEFECTS) + len(HEADERS) >= 20


def test_small_limits_are_in_the_sources_once() -> None:
    for change in LIMITS:
        source = (builds.ROOT / builds.KERNELS / change.file).read_text()
        assert change.apply(source) != source, change


def test_explained_branches_stand_in_the_sources_once() -> None:
    for reason in EXPLAINED:
        source = (builds.ROOT / builds.KERNELS / reason.file).read_text()
        assert source.count(reason.text) == 1, reason


def test_an_explanation_that_a_case_disproves_is_told() -> None:
    reason = next(r for r in EXPLAINED if "\n" in r.text)
    source = (builds.ROOT / builds.KERNELS / reason.file).read_text()
    line = reason.line(source)
    assert source.splitlines()[line - 1].strip() == reason.text.splitlines()[-1].strip()

    def found(taken: int) -> tuple[Reached, list[str]]:
        ways = {(line, (1, 1), 0, 0): 7, (line, (1, 1), 0, 1): taken}
        return reached(Counts(branches=ways), reason.file)

    own, told = found(0)
    assert (own.taken, own.explained, own.all) == (1, 1, 2)
    assert not [one for one in told if one.startswith(f"{line}:")]
    own, told = found(1)
    assert (own.taken, own.explained, own.all) == (2, 0, 2)
    assert [one for one in told if one.startswith(f"{line}: explained, and taken")]


@pytest.mark.slow
def test_branches_are_those_of_the_text_and_no_exceptions(tmp_path: Path) -> None:
    text = """#include <string>
    #include <vector>
    int add(int n, bool never) {
        std::vector<std::string> names;
        for (int i = 0; i < n; ++i)
            if (i % 2 && !never) names.push_back("odd");
        try {
            names.at(static_cast<std::size_t>(n));
        } catch (...) {
            return n > 2 ? 1 : 0;
        }
        return static_cast<int>(names.size());
    }
    int main() { return add(3, false) + add(0, false) - 1; }
    """
    (tmp_path / "a.cpp").write_text(text)
    compiler = os.environ.get("CXX", "g++")
    subprocess.run([compiler, "--coverage", "-O0", "-c", "a.cpp", "-o", "a.o"], cwd=tmp_path, check=True)
    subprocess.run([compiler, "--coverage", "a.o", "-o", "a"], cwd=tmp_path, check=True)
    subprocess.run([str(tmp_path / "a")], cwd=tmp_path, check=True)
    counts = counts_of([tmp_path / "a.gcno"], "a.cpp")
    assert {line for line, *_ in counts.branches} == {5, 6}, "a loop and a condition; neither throws nor handlers"
    assert sorted(count for (line, *_), count in counts.branches.items() if line == 5) == [2, 3]
    assert {line: sorted(times) for line, times in counts.missing().items()} == {6: ["0", "1", "1", "2"]}
    assert counts.lines[12] == 0, "it never returned there"


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_some_cases_give_the_bits_on_kernels_with_small_limits() -> None:
    found = small(list(KINDS), 150, None, 2, 0)
    assert found.failures == [], told(found.failures)
    assert found.cases.keys() == set(KINDS), "every kind gave cases"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(0)
def test_every_planted_defect_is_found() -> None:
    kernels = builds.build("planted", changes())
    missed = [d.name for d in DEFECTS if first_failure(d, kernels) is None]
    missed += [name for name, change in HEADERS if first_on_device(change) is None]
    assert not missed
