"""A seeded sample of single-line mutants of the contracts, each against the tests; what nothing notices is listed.

    python -m tests.mutation.campaign                        52 mutants of each source (recordings: `make recordings`)
    python -m tests.mutation.campaign --each 5 --only StakeVault
    python -m tests.mutation.campaign --afresh               those that other tests have judged once more

A mutant that does not compile, or compiles to the same bytecode, is passed over and the next one taken. Results are
kept in out/mutation/results.jsonl under the source's hash: an interrupted run goes on where it was. What survived is
judged anew when the other contracts, the tests or the recordings change; what was killed before they did is counted in
the last line, and judged anew with --afresh. Survivors that no test could kill have their reason in
tests/mutation/survivors.json. The suites, quickest first: the recorded chains, for Float32 also small formats in full
and vectors of each operation, then forge's tests of it, and for the market a quarter of tests/differential's histories.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from queue import Queue
from threading import Lock
from typing import Any

from eth_utils import keccak

from benchmarks.float32 import evm
from lockstep.numerics import scalar
from tests.differential.test_rounds import BLOCKS, FIRST_HISTORY, HISTORIES
from tests.mutation.mutants import Mutant, shuffled
from tests.primitives import battery, on_chain
from tests.support import recordings
from tests.support.market import history
from tools.build_contracts import compiler_settings

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "out/recordings"
WORK = ROOT / "out/mutation"
RESULTS = WORK / "results.jsonl"
REASONS = Path(__file__).with_name("survivors.json")
FLOAT32 = "contracts/libraries/Float32.sol"
MARKET = "contracts/JobMarket.sol"
SETTLING, ROUNDS, JOBS = (f"contracts/libraries/{name}.sol" for name in ("Settling", "Rounds", "Jobs"))
LIBRARIES = (SETTLING, ROUNDS, JOBS)
"""Called, not inlined; in the order in which ChainReplay deploys them."""
TARGETS = (
    FLOAT32,
    "contracts/Arbiter.sol",
    "contracts/DisputeGame.sol",
    MARKET,
    JOBS,
    ROUNDS,
    SETTLING,
    "contracts/StakeVault.sol",
)
MADE_OF = {
    FLOAT32: ("tests/forge/Float32Harness.sol", "contracts/Arbiter.sol"),
    **dict.fromkeys((MARKET, *LIBRARIES), (MARKET, *LIBRARIES)),
}
"""Source -> the contracts to compile where that is not the source alone."""

TESTS = {
    FLOAT32: "Float32Test",
    "contracts/DisputeGame.sol": "DisputeGameTest|GamesTest|GamesReplay|GameStatesTest",
    **dict.fromkeys((MARKET, *LIBRARIES), "MarketTest|SystemInvariants"),
    "contracts/StakeVault.sol": "VaultTest|MarketTest|DisputeGameTest",
}
"""Source -> forge's tests of it that are no recording."""

PLAYED = (MARKET, *LIBRARIES, "contracts/StakeVault.sol")
"""What the twin's histories are about."""

LIBRARY_AT = {
    path: keccak(b"\xd6\x94" + (0x11B).to_bytes(20, "big") + (bytes([nonce]) if nonce else b"\x80"))[12:].hex()
    for nonce, path in enumerate(LIBRARIES)
}
"""The first creations of ChainReplay's LIBRARIAN."""

EACH = 52
SEED = 4
PATIENCE = 600
"""Seconds for one command: many times what any takes, unless a loop has lost its end."""

FLOOR = 95.0
"""Percent of the sample, what is equivalent counted as a survivor."""

COUNTED = ("killed", "survived")


@dataclass(frozen=True)
class Result:
    """What became of a mutant."""

    key: str
    mutant: Mutant
    outcome: str
    """killed, survived, same (bytecode) or invalid."""
    by: str
    seconds: float
    inputs: str = ""
    """What it was judged by: see `inputs_now`."""


def key_of(mutant: Mutant, source: str) -> str:
    """Names a mutant of exactly this source."""
    return sha256(f"{mutant}{mutant.after}\0{source}".encode()).hexdigest()[:16]


def inputs_now() -> str:
    """Names the contracts, the tests, the vectors and the recordings, as they lie there."""
    digest = sha256()
    for name in (
        "contracts",
        "tests/forge",
        "tests/vectors",
        "tests/support/market",
        "tests/mutation/campaign.py",
    ):
        for path in sorted(p for p in (ROOT / name, *(ROOT / name).rglob("*")) if p.is_file()):
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + sha256(path.read_bytes()).digest())
    # A recording's name has its hash.
    digest.update((RECORDINGS / "list").read_bytes())
    return digest.hexdigest()[:16]


# -- what is compiled of a mutant --------------------------------------------------------------------------------------


class Compiler:
    """tools/solc, kept running."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [ROOT / "tools/solc", "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self._clean: dict[tuple[str, bool], dict[str, str] | None] = {}

    def close(self) -> None:
        """Ends the process."""
        self._process.terminate()
        self._process.wait()

    def codes(self, path: str, text: str, *, optimized: bool) -> dict[str, str] | None:
        """Creation bytecode of the contracts that are made of this source, by their names in a recording.

        A library that is called lies under "library-" and its name, and what is linked to it expects it at LIBRARY_AT.
        None: an error.
        """
        made = MADE_OF.get(path, (path,))
        settings = compiler_settings()
        settings["outputSelection"] = {each: {"*": ["evm.bytecode"]} for each in made}
        # Three times as quick without; the meaning is the same.
        settings["optimizer"]["enabled"] = optimized
        sources = {each: {"content": text if each == path else (ROOT / each).read_text()} for each in {path, *made}}
        output = self._answer({"language": "Solidity", "sources": sources, "settings": settings})
        if any(error["severity"] == "error" for error in output.get("errors", [])):
            return None
        found = {}
        for each in made:
            name = Path(each).stem
            bytecode = output["contracts"][each][name]["evm"]["bytecode"]
            code = bytecode["object"]
            for library, at in LIBRARY_AT.items():
                code = code.replace(f"__${keccak(f'{library}:{Path(library).stem}'.encode()).hex()[:34]}$__", at)
            found[f"library-{name}" if each in LIBRARIES else f"{name}.sol:{name}"] = "0x" + code
        return found

    def is_same(self, path: str, text: str, *, optimized: bool) -> bool:
        """Whether the compiler makes the same of both."""
        key = path, optimized
        if key not in self._clean:
            self._clean[key] = self.codes(path, (ROOT / path).read_text(), optimized=optimized)
        return self.codes(path, text, optimized=optimized) == self._clean[key]

    def _answer(self, request: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class Project:
    """A folder that forge takes for a project: the contracts, and some of the tests."""

    def __init__(self, folder: Path, tests: Sequence[str], **environment: str) -> None:
        self.folder, self._environment = folder, environment
        # What forge compiled for an earlier campaign stays.
        for name in ("contracts", "tests"):
            shutil.rmtree(folder / name, ignore_errors=True)
        shutil.copytree(ROOT / "contracts", folder / "contracts")
        for name in tests:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copy(ROOT / name, folder / name)
        for name in ("node_modules", "package.json"):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(ROOT / name)
        shutil.copy(ROOT / "foundry.toml", folder)
        # Every command of forge asks for the version: a second of loading the compiler.
        solc = folder / "tools/solc"
        solc.parent.mkdir(exist_ok=True)
        version = subprocess.run([ROOT / "tools/solc", "--version"], capture_output=True, text=True, check=True).stdout
        script = f"""[ "$1" = --version ] && exec printf '%s' '{version}'\nexec '{ROOT}/tools/solc' "$@"\n"""
        solc.write_text(f"#!/bin/sh\n{script}")
        solc.chmod(0o755)
        (folder / "out/home").mkdir(parents=True, exist_ok=True)

    def test(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`forge test`."""
        (forge,) = (ROOT / "node_modules/@foundry-rs").glob("forge-*/bin/forge")
        return subprocess.run(
            [forge, "test", *arguments], cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE,
            env=os.environ | self._environment | environment | {
                "HOME": str(self.folder / "out/home"), "FOUNDRY_CODE_SIZE_LIMIT": str(2**20),
            },
        )  # fmt: skip


class Chains:
    """The recorded chains, with any contract in its place: nothing is compiled, so all sandboxes share a project."""

    def __init__(self, project: Project, recordings: Path, name: str) -> None:
        self._project = project
        self._recordings, self._codes = (Path(f"out/{kind}-{name}") for kind in ("recordings", "codes"))
        for part in (self._recordings, self._codes):
            shutil.rmtree(project.folder / part, ignore_errors=True)
        # Not a link to the folder: forge reads nothing outside its root.
        shutil.copytree(recordings, project.folder / self._recordings)
        (project.folder / self._codes).mkdir()

    @classmethod
    def project(cls, folder: Path) -> Project:
        """What `Chains` take for their project."""
        project = Project(folder, [f"tests/forge/{n}.sol" for n in ("ChainReplay.t", "Cheats", "Float32Harness")])
        if (built := project.test("--match-contract", "^None$")).returncode != 0:
            raise RuntimeError(built.stdout + built.stderr)
        return project

    def accept(self, codes: Mapping[str, str]) -> bool:
        """Whether all that happened happens again with these creation codes. Who tells is asked first the next time."""
        folder = self._project.folder / self._codes
        for name, code in codes.items():
            (folder / name).write_text(code)
        try:
            run = self._project.test(
                "--match-contract", "^ChainReplay$",
                LOCKSTEP_RECORDINGS=str(self._recordings), LOCKSTEP_CODE=str(self._codes),
                FOUNDRY_GAS_LIMIT=str(2**64 - 1),
            )  # fmt: skip
        finally:
            for name in codes:
                (folder / name).unlink()
        names = self._project.folder / self._recordings / "list"
        if told := re.search(rf"{self._recordings}/([^\"\s]+)", run.stdout):
            names.write_text("\n".join(dict.fromkeys([told[1], *names.read_text().split()])) + "\n")
        return run.returncode == 0


class Sandbox:
    """Where mutants take their source's place."""

    def __init__(self, folder: Path, chains: Chains) -> None:
        # Tests create contracts by name: a mutant is compiled without them.
        self.project = Project(
            folder, ("tests/forge", "tests/vectors"),
            FOUNDRY_DYNAMIC_TEST_LINKING="true", FOUNDRY_FUZZ_RUNS="64", FOUNDRY_INVARIANT_RUNS="8",
        )  # fmt: skip
        self.compiler, self._chains = Compiler(), chains
        self._clean: set[str] = set()

    def check(self, paths: Iterable[str]) -> None:
        """Raises RuntimeError unless these sources, unchanged, pass in this folder."""
        shutil.rmtree(self.project.folder / "out/histories", ignore_errors=True)
        for path in paths:
            first = (ROOT / path).read_text().split("\n")[0]
            unchanged = Mutant(path, 1, "nothing", first, first)
            for suite in (tests, random_histories):
                if not suite(self, unchanged):
                    raise RuntimeError(f"{path} fails unchanged: {suite.__name__}")

    def copy(self, folder: Path, chains: Chains) -> Sandbox:
        """Another, in which what is compiled here is compiled."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.project.folder / "out", folder / "out")
        return Sandbox(folder, chains)

    def judge(self, mutant: Mutant) -> tuple[str, str]:
        """(outcome, the suite that killed it)."""
        source = (ROOT / mutant.path).read_text()
        text = mutant.apply(source)
        codes = self.compiler.codes(mutant.path, text, optimized=False)
        if codes is None:
            return "invalid", ""
        if mutant.path not in self._clean:
            clean = self.compiler.codes(mutant.path, source, optimized=False)
            if clean is None or not self._chains.accept(clean):
                raise RuntimeError(f"{mutant.path}: the unchanged source, compiled as mutants are, fails")
            self._clean.add(mutant.path)
        by = self._on_chains(codes) or next(filter(None, (self._verdict(name, mutant) for name in SUITES)), "")
        if not by and self.compiler.is_same(mutant.path, text, optimized=True):
            return "same", ""
        return ("killed" if by else "survived"), by

    def _on_chains(self, codes: Mapping[str, str]) -> str:
        try:
            return "" if self._chains.accept(codes) else "recorded chains"
        except subprocess.TimeoutExpired:
            return "recorded chains, without an end"

    def _verdict(self, name: str, mutant: Mutant) -> str:
        """What to say of the suite that killed the mutant; empty: it passes."""
        try:
            return "" if SUITES[name](self, mutant) else name
        except subprocess.TimeoutExpired:
            return f"{name}, without an end"

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """The sandbox's own source is the mutant's."""
        path, source = self.project.folder / mutant.path, (ROOT / mutant.path).read_text()
        path.write_text(mutant.apply(source))
        try:
            yield
        finally:
            path.write_text(source)


# -- suites beside the chains: whether the sandbox's contracts pass ----------------------------------------------------


def vectors(sandbox: Sandbox, mutant: Mutant) -> bool:
    """Float32 against the integer reference."""
    if mutant.path != FLOAT32:
        return True
    source = mutant.apply((ROOT / FLOAT32).read_text())
    tasks = [t for op in on_chain.OPS for t in on_chain.format_tasks(op, on_chain.SAMPLE)]
    tasks += [t for op in on_chain.OPS for t in on_chain.vector_tasks(op, 20_000)]
    # A coefficient's last bit shows in one result of thousands.
    tasks += [t for op in scalar.FUNCTIONS for t in on_chain.vector_tasks(op, 400_000)]
    with evm() as chain:
        try:
            outcomes = on_chain.run([chain.with_float32(source)], _reference(), tasks)
            return not any(outcome.mismatches for outcome in outcomes)
        except (RuntimeError, OSError):
            # The harness lets no result above 32 bits pass; nor does a loop end that has no end.
            return False


@cache
def _reference() -> battery.Reference:
    return battery.Reference(battery.build(Path(tempfile.mkdtemp(dir=ROOT / "out"))))


def tests(sandbox: Sandbox, mutant: Mutant) -> bool:
    """The tests of forge that know the source: for these alone all is compiled anew."""
    if mutant.path not in TESTS:
        return True
    with sandbox.mutated(mutant):
        ran = sandbox.project.test("--match-contract", f"^({TESTS[mutant.path]})$", "--fail-fast")
    return ran.returncode == 0


def random_histories(sandbox: Sandbox, mutant: Mutant) -> bool:
    """The market's twin, act by act."""
    if mutant.path not in PLAYED:
        return True
    folder = sandbox.project.folder / "out/histories"
    if not folder.exists():
        history.write(folder, range(FIRST_HISTORY, FIRST_HISTORY + HISTORIES // 4), BLOCKS)
        recordings.write_list(folder)
    with sandbox.mutated(mutant):
        replayed = sandbox.project.test(
            "--match-contract", "^ChainReplay$",
            LOCKSTEP_RECORDINGS="out/histories", FOUNDRY_GAS_LIMIT=str(2**64 - 1),
        )  # fmt: skip
    return replayed.returncode == 0


SUITES: dict[str, Callable[[Sandbox, Mutant], bool]] = {
    "vectors": vectors, "forge": tests, "histories": random_histories,
}  # fmt: skip


# -- the campaign ------------------------------------------------------------------------------------------------------


class Campaign:
    """Results so far, and the sandboxes that make more."""

    def __init__(self, results: Path, sandboxes: Sequence[Sandbox], inputs: str) -> None:
        self.results, self.inputs, self._jobs = results, inputs, max(1, len(sandboxes))
        self._idle: Queue[Sandbox] = Queue()
        for sandbox in sandboxes:
            self._idle.put(sandbox)
        self._lock = Lock()
        self._known: dict[str, Result] = {}
        if results.exists():
            for line in results.read_text().splitlines():
                row = json.loads(line)
                self._known[row["key"]] = Result(**(row | {"mutant": Mutant(**row["mutant"])}))

    def run(self, path: str, count: int, seed: int, *, afresh: bool = False) -> list[Result]:
        """The first `count` mutants of the source that count; what is known already is not run again."""
        source = (ROOT / path).read_text()
        rest = iter(shuffled(path, source, seed))
        found: list[Result] = []
        with ThreadPoolExecutor(self._jobs) as pool:
            while batch := list(islice(rest, count - len(found))):
                results = pool.map(partial(self._result, source=source, afresh=afresh), batch)
                found += [result for result in results if result.outcome in COUNTED]
        return found

    def _result(self, mutant: Mutant, source: str, afresh: bool) -> Result:
        key = key_of(mutant, source)
        known = self._known.get(key)
        # More tests kill more, so what they have killed already needs no other judgement before the end.
        if known is not None and (known.inputs == self.inputs or (known.outcome != "survived" and not afresh)):
            return known
        sandbox, begin = self._idle.get(), time.monotonic()
        try:
            outcome, by = sandbox.judge(mutant)
        finally:
            self._idle.put(sandbox)
        result = Result(key, mutant, outcome, by, round(time.monotonic() - begin, 1), self.inputs)
        with self._lock:
            self.results.parent.mkdir(parents=True, exist_ok=True)
            with self.results.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
            print(f"{outcome:9}{result.seconds:6} s  {mutant}", file=sys.stderr, flush=True)
        return result


def is_explained(result: Result) -> bool:
    """Whether it is known why no test can kill this one."""
    return result.outcome == "killed" or _line_of(result.mutant) in reasons()


def _line_of(mutant: Mutant) -> tuple[str, str, str]:
    return mutant.path, mutant.before.strip(), mutant.after.strip()


@cache
def reasons() -> dict[tuple[str, str, str], str]:
    """(path, line, mutated line) -> why no test can tell them apart, or that one is missing."""
    return {(r["path"], r["before"], r["after"]): r["reason"] for r in json.loads(REASONS.read_text())}


def table(results: Sequence[Result], inputs: str) -> Iterator[str]:
    """A row for each source, then the survivors."""
    yield f"{'':40}{'mutants':>9}{'killed':>9}{'survived':>10}   by suite"
    paths = [*dict.fromkeys(r.mutant.path for r in results)]
    for path in [*paths, "all"]:
        own = [r for r in results if path in (r.mutant.path, "all")]
        killed = [r for r in own if r.outcome == "killed"]
        suites = ", ".join(f"{name} {n}" for name, n in Counter(r.by for r in killed).most_common())
        share = 100 * len(killed) / len(own)
        yield f"{path:40}{len(own):>9}{len(killed):>9}{len(own) - len(killed):>10}   {share:.1f} %  ({suites})"
    for result in results:
        if result.outcome == "survived":
            yield f"survived: {result.mutant}\n    {reasons().get(_line_of(result.mutant), 'NO REASON GIVEN')}"
    earlier = sum(result.inputs != inputs for result in results)
    yield f"{len(results) - earlier} judged by these contracts, tests and recordings, {earlier} by earlier ones"


def main() -> int:
    """Runs the sample; 1 if less than FLOOR percent are killed, or a survivor has no reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=EACH, help="mutants of each source")
    parser.add_argument("--only", default="", help="some sources, by name, with commas between")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--afresh", action="store_true", help="judge anew what earlier tests have killed, too")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else [Path(path).stem for path in TARGETS]
    if not (RECORDINGS / "list").exists():
        sys.exit("no recordings: run `make recordings`")

    inputs = inputs_now()
    project = Chains.project(WORK / "chains")
    first, *others = (Chains(project, RECORDINGS, str(i)) for i in range(arguments.jobs))
    sandbox = Sandbox(WORK / "0", first)
    sandbox.check(path for path in TARGETS if Path(path).stem in wanted)
    sandboxes = [sandbox, *(sandbox.copy(WORK / str(i), chains) for i, chains in enumerate(others, 1))]
    campaign, results = Campaign(RESULTS, sandboxes, inputs), []
    for path in TARGETS:
        if Path(path).stem in wanted:
            results += campaign.run(path, arguments.each, arguments.seed, afresh=arguments.afresh)
    for sandbox in sandboxes:
        sandbox.compiler.close()
    print("\n".join(table(results, inputs)))
    killed = sum(r.outcome == "killed" for r in results)
    return int(100 * killed < FLOOR * len(results) or not all(map(is_explained, results)))


if __name__ == "__main__":
    sys.exit(main())
