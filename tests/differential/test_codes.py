"""Groups of codes, random and extreme: every path of the processor and the contract against exact integers.

python -m tests.differential.test_codes --groups 10000000 --on-chain 100000
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from math import isqrt
from pathlib import Path

import numpy as np
import pytest

from benchmarks.float32 import Evm, evm
from lockstep.numerics import codes, paths, scalar
from lockstep.numerics.arrays import Array
from lockstep.numerics.builder import ProgramBuilder, Quantised
from lockstep.protocol.programs.program import F32, I32
from tests.unit.numerics.comparison import CONTEXT, PATHS, STRANGE, strange, words

EXTREMES = np.array([-128, -127, -1, 0, 1, 127], np.int8)
GROUP_GAS = 12_000
"""The most gas of a group of 256 products, beside the proof of its leaves."""
NEAREST = 1 << 16
ROOT = Path(__file__).parents[2]
CODES = "contracts/libraries/Codes.sol"


def groups(rng: np.random.Generator, n: int, size: int = 256) -> Array:
    """int8 (n, size): a third random bytes, a third extremes, a third one extreme throughout."""
    found = rng.integers(-128, 128, (n, size)).astype(np.int8)
    found[1::3] = rng.choice(EXTREMES, found[1::3].shape)
    found[2::3] = rng.choice(EXTREMES, (len(found[2::3]), 1))
    return found


def scales(rng: np.random.Generator, n: int) -> Array:
    """float32: mostly normal, with every strange word among them."""
    found = strange(rng, n)
    found[: min(n, len(STRANGE))] = STRANGE[:n]
    return found


def exact(a: Array, b: Array, scale_a: Array, scale_b: Array) -> Array:
    """uint32 (M, N): folds of one group, the sums as integers in float64, which holds them exactly."""
    sums = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float32)
    with np.errstate(all="ignore"):
        found = np.float32(0) + sums * (scale_a[:, None] * scale_b[None, :])
    return np.where(np.isnan(found), np.uint32(0x7FC00000), found.view(np.uint32))


def check_off_chain(side: int, threads: tuple[int, ...]) -> None:
    """side^2 groups on every path; some of them in Python integers, too."""
    rng = np.random.default_rng(side)
    a, b, scale_a, scale_b = groups(rng, side), groups(rng, side), scales(rng, side), scales(rng, side)
    builder = ProgramBuilder([(I32, side * 64), (I32, side * 64), (F32, side), (F32, side)])
    left, right = (
        Quantised(builder.input(i).reshape(side, 64), builder.input(2 + i).reshape(side, 1), 64) for i in range(2)
    )
    program = builder.finish([builder.qdot(left.unsqueeze(1), right)])
    state = [a.reshape(-1).view(np.int32), b.reshape(-1).view(np.int32), scale_a, scale_b]
    due = exact(a, b, scale_a, scale_b)
    for i, j in rng.integers(0, side, (60, 2)):
        held = [x.view(np.uint32).tolist() for x in (a[i], b[j])]
        word = codes.group_product(*held, int(words(scale_a)[i]), int(words(scale_b)[j]))
        assert due[i, j] == scalar.fadd(0, word), f"group {i}, {j} in integers"
    for path in PATHS:
        for count in threads:
            found = words(paths.compile(program, path=path, threads=count).run(state, CONTEXT)[0]).reshape(side, side)
            different = np.argwhere(found != due)
            assert len(different) == 0, f"{len(different)} groups on {path}, {count} threads: {different[:3]}"


def test_a_hundred_thousand_groups_are_exact_on_every_path() -> None:
    check_off_chain(317, (1, 2))


@pytest.mark.slow
def test_ten_million_groups_are_exact_on_every_path() -> None:
    check_off_chain(3163, (1, 2))


@pytest.fixture(scope="module")
def chain() -> Iterator[Evm]:
    with evm() as started:
        yield started.with_harness("CodesHarness")


def check_on_chain(chain: Evm, n: int, size: int, batch: int = 400) -> None:
    rng = np.random.default_rng(n + size)
    a, b, scale_a, scale_b = groups(rng, n, size), groups(rng, n, size), scales(rng, n), rng.permutation(scales(rng, n))
    for first in range(0, n, batch):
        part = slice(first, first + batch)
        packed = np.concatenate(
            [a[part].view(np.uint8), b[part].view(np.uint8)]
            + [x[part].astype(">f4").view(np.uint8).reshape(-1, 4) for x in (scale_a, scale_b)],
            axis=1,
        )
        found = chain.read("products(uint256,bytes)", size, packed.tobytes())
        for i, word in enumerate(found.tolist(), first):
            held = [x.view(np.uint32).tolist() for x in (a[i], b[i])]
            due = codes.group_product(*held, int(words(scale_a)[i]), int(words(scale_b)[i]))
            assert word == due, f"group {i} of {size}: {word:#x}, not {due:#x}"


@pytest.mark.sampled(1)
@pytest.mark.chain
@pytest.mark.parametrize("size", [4, 8, 16, 32, 64, 128, 256])
def test_the_contract_multiplies_groups_exactly(chain: Evm, size: int) -> None:
    check_on_chain(chain, 400, size)


@pytest.mark.chain
@pytest.mark.slow
def test_the_contract_multiplies_a_hundred_thousand_groups_exactly(chain: Evm) -> None:
    check_on_chain(chain, 100_000, 256)


@pytest.mark.slow
@pytest.mark.chain
def test_a_group_costs_less_than_its_bound(chain: Evm) -> None:
    rng = np.random.default_rng(5)
    packed = np.concatenate([groups(rng, 300, 512).view(np.uint8), np.tile(np.float32(1.5), 600).astype(">f4")
                             .view(np.uint8).reshape(-1, 8)], axis=1)  # fmt: skip
    gas = chain.read("gasUsed(uint256,bytes)", 256, packed.tobytes())
    assert 1_000 < gas.max() < GROUP_GAS, f"{gas.max()} gas"


@pytest.mark.sampled(1)
@pytest.mark.chain
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("random", [NEAREST, 0, 0x8000, 0xFFFF])
def test_the_contract_quantises_as_the_reference(chain: Evm, power: bool, random: int) -> None:
    rng, count = np.random.default_rng([power, random]), 64
    with np.errstate(all="ignore"):
        values = rng.standard_normal((60, count)) * 10.0 ** rng.integers(-42, 39, (60, 1))
        values = values.astype(np.float32)
    values[::5, 7] = rng.choice(STRANGE, 12)
    values[3] = 0
    packed = values.view(np.uint32).astype(">u4").tobytes()
    found = chain.read("quants(uint256,bool,uint256,bytes)", count, int(power), random, packed).reshape(60, count + 1)
    for group, row in zip(values.view(np.uint32).tolist(), found.tolist(), strict=True):
        scale, inverse = codes.scale_of(codes.magnitude(group), power)
        half = random if random < NEAREST else None
        due = [codes.code_of(x, inverse, half) & 0xFF for x in group]
        assert row == [scale, *due]


@pytest.mark.slow
@pytest.mark.chain
def test_codes_that_are_not_raised_are_found(chain: Evm) -> None:
    """The comparison sees what it must: without the bias of one side, negative codes give other sums."""
    text = (ROOT / CODES).read_text()
    assert text.count("x := xor(x, BIAS)") == 1, "the line that is left out"
    wrong = chain.with_harness("CodesHarness", {CODES: text.replace("x := xor(x, BIAS)", "")})
    with pytest.raises(AssertionError, match="of 256"):
        check_on_chain(wrong, 9, 256)


def main() -> int:
    """Compares as many groups as are asked for; an AssertionError names the first that differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--groups", type=int, default=1_000_000, help="on every path, at one and two threads")
    parser.add_argument("--on-chain", type=int, default=10_000, help="of 256 codes, in calls of an EVM")
    given = parser.parse_args()
    begun = time.monotonic()
    side = max(isqrt(given.groups - 1) + 1, 1)
    check_off_chain(side, (1, 2))
    print(f"{side**2:,} groups on {', '.join(PATHS)}: no difference, {time.monotonic() - begun:.0f} s", flush=True)
    begun = time.monotonic()
    with evm() as started:
        check_on_chain(started.with_harness("CodesHarness"), given.on_chain, 256)
    print(f"{given.on_chain:,} groups on the EVM: no difference, {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
