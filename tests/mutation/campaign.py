"""A seeded sample of single-line mutants of the contracts, each against the tests; what nothing notices is listed.

    python -m tests.mutation.campaign                        60 mutants of each contract (recordings: `make recordings`)
    python -m tests.mutation.campaign --each 5 --only StakeVault
    python -m tests.mutation.campaign --again                the survivors once more

A mutant that does not compile, or compiles to the same bytecode, is passed over and the next one taken. Results are
kept in out/mutation/results.jsonl under the source's hash: an interrupted run goes on where it was. Survivors that no
test could kill have their reason in tests/mutation/survivors.json. The suites, quickest first: the recorded chains, for
Float32 also small formats in full and 20,000 vectors of each operation, then forge's tests of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from tests import recordings
from tests.mutation.mutants import Mutant, shuffled
from tests.primitives import battery, on_chain
from tools.build_contracts import compiler_settings

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "out/recordings"
RESULTS = ROOT / "out/mutation/results.jsonl"
REASONS = Path(__file__).with_name("survivors.json")
FLOAT32 = "contracts/libraries/Float32.sol"
ROUNDS = "contracts/libraries/Rounds.sol"
TARGETS = (
    FLOAT32,
    "contracts/Arbiter.sol",
    "contracts/DisputeGame.sol",
    "contracts/JobMarket.sol",
    ROUNDS,
    "contracts/StakeVault.sol",
)
MADE_OF = {
    FLOAT32: ("tests/forge/Float32Harness.sol",),
    ROUNDS: ("contracts/JobMarket.sol", ROUNDS),
    "contracts/JobMarket.sol": ("contracts/JobMarket.sol", ROUNDS),
}
"""Source -> the contracts to compile where that is not the source alone."""

TESTS = {
    "contracts/DisputeGame.sol": "DisputeGameTest|GamesTest|GamesReplay",
    "contracts/JobMarket.sol": "RoundsReplay|MarketInvariants",
    ROUNDS: "RoundsReplay|MarketInvariants",
    "contracts/StakeVault.sol": "VaultTest|DisputeGameTest|RoundsReplay",
}
"""Source -> forge's tests of it that are no recording."""

LIBRARY_AT = keccak(b"\xd6\x94" + (0x11B).to_bytes(20, "big") + b"\x80")[12:].hex()
"""The first creation of ChainReplay's LIBRARIAN."""

EACH = 60
SEED = 4
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


def key_of(mutant: Mutant, source: str) -> str:
    """Names a mutant of exactly this source."""
    return sha256(f"{mutant}{mutant.after}\0{source}".encode()).hexdigest()[:16]


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

        A library that is called lies under "library", and what is linked to it expects it at LIBRARY_AT. None: an
        error.
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
            linked = recordings.LIBRARY.sub(LIBRARY_AT, bytecode["object"])
            found["library" if "/libraries/" in each else f"{name}.sol:{name}"] = "0x" + linked
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


class Sandbox:
    """A copy of what forge reads, in which a mutant takes its source's place."""

    def __init__(self, folder: Path, recordings: Path) -> None:
        """Checks that the unchanged sources pass."""
        self.folder = folder
        self.compiler = Compiler()
        self.codes = folder / "out/codes"
        # What forge compiled for an earlier campaign stays.
        for name in ("contracts", "tests", "out/recordings", "out/codes"):
            shutil.rmtree(folder / name, ignore_errors=True)
        self.codes.mkdir(parents=True)
        for name in ("contracts", "tests/forge", "tests/vectors"):
            shutil.copytree(ROOT / name, folder / name)
        for name in ("node_modules", "tools", "package.json"):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(ROOT / name)
        # Not a link to the folder: forge reads nothing outside its root.
        shutil.copytree(recordings, folder / "out/recordings", copy_function=os.link)
        shutil.copy(ROOT / "foundry.toml", folder)
        for suite in SUITES.values():
            if not suite(self, None):
                raise RuntimeError("the unchanged contracts fail")

    def judge(self, mutant: Mutant) -> tuple[str, str]:
        """(outcome, the suite that killed it)."""
        text = mutant.apply((ROOT / mutant.path).read_text())
        codes = self.compiler.codes(mutant.path, text, optimized=False)
        if codes is None:
            return "invalid", ""
        for name, code in codes.items():
            (self.codes / name).write_text(code)
        try:
            by = next((name for name, suite in SUITES.items() if not suite(self, mutant)), "")
        finally:
            for name in codes:
                (self.codes / name).unlink()
        if not by and self.compiler.is_same(mutant.path, text, optimized=True):
            return "same", ""
        return ("killed" if by else "survived"), by

    def forge(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One command of forge."""
        (forge,) = (ROOT / "node_modules/@foundry-rs").glob("forge-*/bin/forge")
        home = self.folder / "out/home"
        home.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            "HOME": str(home), "LOCKSTEP_RECORDINGS": "out/recordings", "LOCKSTEP_CODE": "out/codes",
            "FOUNDRY_GAS_LIMIT": str(2**64 - 1), "FOUNDRY_CODE_SIZE_LIMIT": str(2**20),
        }  # fmt: skip
        try:
            return subprocess.run(
                [forge, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=240
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(arguments, 124, "", "a loop without an end")


# -- suites: whether the sandbox's contracts pass ----------------------------------------------------------------------


def replays(sandbox: Sandbox, _: Mutant | None) -> bool:
    """The recorded chains."""
    return sandbox.forge("test", "--match-contract", "^ChainReplay$").returncode == 0


def vectors(sandbox: Sandbox, mutant: Mutant | None) -> bool:
    """Float32 against the integer reference."""
    if mutant is None or mutant.path != FLOAT32:
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


def tests(sandbox: Sandbox, mutant: Mutant | None) -> bool:
    """The tests of forge that know the source: for these alone all is compiled anew."""
    if mutant is None:
        return sandbox.forge("test", "--match-contract", f"^({'|'.join(TESTS.values())})$").returncode == 0
    if mutant.path not in TESTS:
        return True
    path, source = sandbox.folder / mutant.path, (ROOT / mutant.path).read_text()
    path.write_text(mutant.apply(source))
    try:
        return sandbox.forge("test", "--match-contract", f"^({TESTS[mutant.path]})$", "--fail-fast").returncode == 0
    finally:
        path.write_text(source)


SUITES: dict[str, Callable[[Sandbox, Mutant | None], bool]] = {
    "recorded chains": replays, "vectors": vectors, "forge": tests,
}  # fmt: skip


# -- the campaign ------------------------------------------------------------------------------------------------------


class Campaign:
    """Results so far, and the sandboxes that make more."""

    def __init__(self, results: Path, sandboxes: Sequence[Sandbox]) -> None:
        self.results, self._jobs = results, max(1, len(sandboxes))
        self._idle: Queue[Sandbox] = Queue()
        for sandbox in sandboxes:
            self._idle.put(sandbox)
        self._lock = Lock()
        self._known: dict[str, Result] = {}
        if results.exists():
            for line in results.read_text().splitlines():
                row = json.loads(line)
                self._known[row["key"]] = Result(**(row | {"mutant": Mutant(**row["mutant"])}))

    def run(self, path: str, count: int, seed: int, *, again: bool = False) -> list[Result]:
        """The first `count` mutants of the source that count; what is known already is not run again."""
        source = (ROOT / path).read_text()
        rest = iter(shuffled(path, source, seed))
        found: list[Result] = []
        with ThreadPoolExecutor(self._jobs) as pool:
            while batch := list(islice(rest, count - len(found))):
                results = pool.map(partial(self._result, source=source, again=again), batch)
                found += [result for result in results if result.outcome in COUNTED]
        return found

    def _result(self, mutant: Mutant, source: str, again: bool) -> Result:
        key = key_of(mutant, source)
        known = self._known.get(key)
        if known is not None and not (again and known.outcome == "survived"):
            return known
        sandbox, begin = self._idle.get(), time.monotonic()
        try:
            outcome, by = sandbox.judge(mutant)
        finally:
            self._idle.put(sandbox)
        result = Result(key, mutant, outcome, by, round(time.monotonic() - begin, 1))
        with self._lock:
            self.results.parent.mkdir(parents=True, exist_ok=True)
            with self.results.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
            print(f"{outcome:9}{result.seconds:6} s  {mutant}", file=sys.stderr, flush=True)
        return result


def reasons() -> dict[tuple[str, str, str], str]:
    """(path, line, mutated line) -> why no test can tell them apart, or that one is missing."""
    return {(r["path"], r["before"], r["after"]): r["reason"] for r in json.loads(REASONS.read_text())}


def table(results: Sequence[Result]) -> Iterator[str]:
    """A row for each source, then the survivors."""
    known = reasons()
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
            m = result.mutant
            yield f"survived: {m}\n    {known.get((m.path, m.before.strip(), m.after.strip()), 'NO REASON GIVEN')}"


def main() -> int:
    """Runs the sample; 1 if less than FLOOR percent are killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=EACH, help="mutants of each source")
    parser.add_argument("--only", default="", help="some sources, by name, with commas between")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="run the known survivors once more")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else [Path(path).stem for path in TARGETS]
    if not (RECORDINGS / "list").exists():
        sys.exit("no recordings: run `make recordings`")

    with ThreadPoolExecutor(arguments.jobs) as pool:
        folders = [ROOT / f"out/mutation/{i}" for i in range(arguments.jobs)]
        sandboxes = list(pool.map(partial(Sandbox, recordings=RECORDINGS), folders))
    campaign, results = Campaign(RESULTS, sandboxes), []
    for path in TARGETS:
        if Path(path).stem in wanted:
            results += campaign.run(path, arguments.each, arguments.seed, again=arguments.again)
    for sandbox in sandboxes:
        sandbox.compiler.close()
    print("\n".join(table(results)))
    return int(100 * sum(r.outcome == "killed" for r in results) < FLOOR * len(results))


if __name__ == "__main__":
    sys.exit(main())
