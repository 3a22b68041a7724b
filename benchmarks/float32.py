"""Float32.sol against the native kernels, bit by bit, with the gas of each operation.

    python benchmarks/float32.py --vectors 1000000            a table
    python benchmarks/float32.py --vectors 1000000 --json     one line of JSON on stdout

Every operation runs on the vectors of tests.support.scalar_vectors (random and structured: NaN, infinities, -0,
subnormals, near halfway, cancellation, exponent boundaries) in eth_calls to a local Anvil and in the native extension.
A mismatch makes the exit status 1. Gas is that of the library call alone.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from threading import Thread

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from lockstep.numerics.scalar import Opcode  # noqa: E402
from tests.support.scalar_vectors import Words, vectors  # noqa: E402
from tools.build_contracts import compiler_settings  # noqa: E402

HARDFORK = "prague"
REQUIRED = (Opcode.FFMA, Opcode.FADD, Opcode.FMUL, Opcode.FDIV, Opcode.FSQRT, Opcode.FEXP, Opcode.FLOG, Opcode.FTANH)
"""The operations of the project's promise; `--all` adds the others."""

WITHOUT_LIBRARY = frozenset({Opcode.MOV, Opcode.IMM, Opcode.SELECT, Opcode.IAND, Opcode.IOR, Opcode.IXOR})
"""One instruction of the EVM or none: Solidity needs no function for them."""

FLOAT32 = ROOT / "contracts/libraries/Float32.sol"

_ADDRESS = "0x00000000000000000000000000000000f10a7032"
_BATCH = 20_000


@dataclass(frozen=True)
class Comparison:
    """One operation's outcome: how many vectors, how many of them differ, and what a call costs."""

    op: str
    vectors: int
    mismatches: int
    gas_normal: float
    """The mean over 1,000 triples of normal deviates, positive ones where the operation wants them."""
    gas_max: int
    """The most over 5,000 of the vectors."""
    seconds: float


class Evm:
    """Float32Harness behind eth_call: the bytecode is given with each call, so nothing is deployed."""

    def __init__(self, url: str, harness: str = "Float32Harness", changed: Mapping[str, str] | None = None) -> None:
        """`changed` has other texts for contracts by their paths."""
        self._url = url
        self._harness, self._changed = harness, changed or {}

    def with_float32(self, source: str) -> Evm:
        """The same chain with another text in the place of Float32.sol."""
        return Evm(self._url, changed={FLOAT32.relative_to(ROOT).as_posix(): source})

    def with_harness(self, harness: str, changed: Mapping[str, str] | None = None) -> Evm:
        """The same chain with another harness of tests/forge."""
        return Evm(self._url, harness, changed)

    def read(self, function: str, *arguments: int | bytes) -> Words:
        """The words that a function of numbers, and packed operands at the end, returns."""
        *numbers, packed = arguments
        assert isinstance(packed, bytes), "the last argument"
        head = [*(int(number) for number in numbers), 32 * len(arguments), len(packed)]  # type: ignore[arg-type]
        data = "".join(f"{word:064x}" for word in head) + (packed + bytes(-len(packed) % 32)).hex()
        code, selectors = self._compiled
        raw = self._answer(code, selectors[function] + data)
        size = int.from_bytes(raw[32:64], "big")
        return np.frombuffer(raw, ">u4", count=size // 4, offset=64).astype(np.uint32)

    def results(self, op: Opcode, a: Words, b: Words, c: Words) -> Words:
        """Returns Solidity's results for each (a, b, c): uint32[n]."""
        return self._batches("results(uint256,bytes)", op, a, b, c)

    def gas(self, op: Opcode, a: Words, b: Words, c: Words) -> Words:
        """The gas of each call, less that of an empty function: uint32[n]."""
        return self._batches("gasUsed(uint256,bytes)", op, a, b, c)

    def _batches(self, function: str, op: Opcode, a: Words, b: Words, c: Words) -> Words:
        parts = [
            self._call(function, op, np.stack([w[i : i + _BATCH] for w in (a, b, c)], axis=1))
            for i in range(0, len(a), _BATCH)
        ]
        return np.concatenate(parts)

    def _call(self, function: str, op: Opcode, operands: Words) -> Words:
        return self.read(function, int(op), operands.astype(">u4").tobytes())

    @cached_property
    def _compiled(self) -> tuple[str, dict[str, str]]:
        return _compile_harness(self._harness, self._changed)

    def _answer(self, code: str, data: str) -> bytes:
        call = {"to": _ADDRESS, "data": "0x" + data, "gas": hex(10**12)}
        answer = self._rpc("eth_call", [call, "latest", {_ADDRESS: {"code": code}}])
        return bytes.fromhex(answer[2:])

    def _rpc(self, method: str, params: list[object]) -> str:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        request = urllib.request.Request(self._url, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as response:
            answer = json.load(response)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return str(answer["result"])


@contextmanager
def evm() -> Iterator[Evm]:
    """An Anvil of its own on a free port, without gas limits, gone at the end of the block."""
    anvil = ROOT / "node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil"
    command = [
        str(anvil), "--port", "0", "--accounts", "1", "--hardfork", HARDFORK, "--no-request-size-limit",
        "--disable-block-gas-limit", "--disable-code-size-limit", "--threads", "1",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"Listening on (\S+)", line):
                # Anvil writes a line a call: unread, they would fill the pipe and stop it.
                Thread(target=deque, args=(process.stdout, 0), daemon=True).start()
                yield Evm(f"http://{found[1]}")
                return
        raise RuntimeError("Anvil ended before it listened; does `make setup` pass?")
    finally:
        process.terminate()
        process.wait()


def compare(evm: Evm, op: Opcode, count: int, seed: int) -> Comparison:
    """Solidity against the native kernels on `count` vectors of `op`; gas over 1,000 of them."""
    from lockstep.numerics._native import apply_op

    started = time.monotonic()
    a, b, c = vectors(op, count, seed)
    different = evm.results(op, a, b, c) != apply_op(int(op), a, b, c)
    for i in np.flatnonzero(different)[:3]:
        print(f"{op.name} differs at a={a[i]:08x} b={b[i]:08x} c={c[i]:08x}", file=sys.stderr)
    sample = np.random.default_rng(seed).integers(0, count, 5000)
    return Comparison(
        op=op.name.lower(),
        vectors=count,
        mismatches=int(different.sum()),
        gas_normal=round(float(evm.gas(op, *normal_operands(op, 1000, seed)).mean()), 1),
        gas_max=int(evm.gas(op, a[sample], b[sample], c[sample]).max()),
        seconds=round(time.monotonic() - started, 1),
    )


def normal_operands(op: Opcode, n: int, seed: int) -> tuple[Words, Words, Words]:
    """Operands as training makes them: standard normal deviates, their magnitudes for sqrt and log."""
    deviates = np.random.default_rng(seed).standard_normal((3, n)).astype(np.float32)
    if op in (Opcode.FSQRT, Opcode.FLOG):
        deviates = np.abs(deviates)
    a, b, c = deviates.view(np.uint32)
    return a, b, c


def _compile_harness(name: str, changed: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    harness = f"tests/forge/{name}.sol"
    libraries = [f"contracts/libraries/{library}.sol" for library in ("Codes", "Float32", "Int32")]
    wanted = ["evm.deployedBytecode.object", "evm.methodIdentifiers"]
    sources = {path: changed.get(path, (ROOT / path).read_text()) for path in (harness, *libraries)}
    request = {
        "language": "Solidity",
        "sources": {path: {"content": text} for path, text in sources.items()},
        "settings": {**compiler_settings(), "outputSelection": {harness: {name: wanted}}},
    }
    command = [str(ROOT / "tools/solc"), "--standard-json"]
    output = json.loads(subprocess.run(command, input=json.dumps(request), capture_output=True, text=True).stdout)
    if errors := [e["formattedMessage"] for e in output.get("errors", []) if e["severity"] == "error"]:
        raise RuntimeError("\n".join(errors))
    contract = output["contracts"][harness][name]["evm"]
    return "0x" + contract["deployedBytecode"]["object"], contract["methodIdentifiers"]


def main() -> int:
    """The command: prints each operation's comparison; 1 if any bit differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--vectors", type=int, default=100_000, help="vectors per operation (default 100000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true", help="every operation with a function in Float32 or Int32")
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout, progress on stderr")
    arguments = parser.parse_args()
    ops = [op for op in Opcode if op not in WITHOUT_LIBRARY] if arguments.all else list(REQUIRED)
    rows: list[Comparison] = []
    with evm() as chain:
        for op in ops:
            row = compare(chain, op, arguments.vectors, arguments.seed)
            rows.append(row)
            print(
                f"{row.op:7} {row.vectors:>9} vectors {row.mismatches:>3} mismatches   gas {row.gas_normal:>8} normal"
                f" {row.gas_max:>6} most   {row.seconds:>6} s",
                file=sys.stderr if arguments.json else sys.stdout,
                flush=True,
            )
    mismatches = sum(row.mismatches for row in rows)
    if arguments.json:
        data = {"hardfork": HARDFORK, "mismatches": mismatches, "ops": [asdict(row) for row in rows]}
        print(json.dumps({"ok": mismatches == 0, "data": data}))
    return 1 if mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
