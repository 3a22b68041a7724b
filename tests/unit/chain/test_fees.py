"""Fees of rollups, against figures computed by hand from the specifications."""

from __future__ import annotations

import pytest

from lockstep.chain.fees import GWEI, PROFILES, FeeProfile, Sent, cover, fastlz_size, fee_of, measured, sums
from lockstep.chain.known_chains import KNOWN, require_own_blocks
from lockstep.presets import CHAINS
from lockstep.protocol.errors import ChainError, UsageError
from lockstep.protocol.market.prices import GAME_GAS

ONE = Sent(calls=1, gas=100_000, zeros=100, others=400, compressed=300)
OP = FeeProfile("op", 10**6, 20 * GWEI, 3 * GWEI, base_fee_scalar=5227, blob_scalar=1_014_213)


def test_ecotone_by_hand() -> None:
    # (4 x 100 + 16 x 400) / 16 = 425 bytes; 16 x 5227 x 20 gwei + 1014213 x 3 gwei = 4,715,279 gwei; / 10^6
    profile = FeeProfile("op", 10**6, 20 * GWEI, 3 * GWEI, 5227, 1_014_213, fork="ecotone")
    assert fee_of(ONE, profile).data == 425 * 4_715_279 * GWEI // 10**6 == 2_003_993_575_000


def test_fjord_by_hand() -> None:
    # -42.5856 + 0.8365 x 300 = 208.3644 bytes
    assert fee_of(ONE, OP).data == 208_364_400 * 4_715_279 * GWEI // 10**12
    assert fee_of(ONE, OP).execution == 100_000 * 10**6


def test_fjord_has_a_least_size_for_each_transaction() -> None:
    small = Sent(3, 63_000, 0, 300, 3 * 110)
    assert fee_of(small, OP).data == 3 * 100 * 4_715_279 * GWEI // 10**6


def test_arbitrum_folds_its_data_fee_into_whole_gas() -> None:
    # 16 x 300 bytes at 10 gwei = 48,000 gwei; at 0.01 gwei of base fee 4,800,000 gas
    assert fee_of(ONE, PROFILES["arbitrum"]).data == 48_000 * GWEI
    odd = FeeProfile("arbitrum", 7, 1)
    assert fee_of(ONE, odd).data == 685 * 7, "4,800 / 7 rounded down"


def test_ethereum_charges_no_data_fee_and_needs_no_cover() -> None:
    assert (fee_of(ONE, PROFILES["mainnet"]).data, cover(ONE, PROFILES["mainnet"])) == (0, 1.0)


@pytest.mark.parametrize(
    ("data", "size"),
    [(b"", 0), (b"a", 2), (bytes(range(32)), 33), (bytes(range(33)), 35), (b"abcabc", 4 + 2), (bytes(265), 2 + 3)],
)
def test_fastlz_by_its_format(data: bytes, size: int) -> None:
    assert fastlz_size(data) == size


def test_a_profile_without_a_base_fee_is_refused() -> None:
    with pytest.raises(UsageError, match="base fee is 0"):
        FeeProfile("op", 0)


def test_the_measured_job_has_every_call_of_ten_rounds_by_eight() -> None:
    job = measured()["job"]
    per_slot = {"JobMarket.join", "JobMarket.commit", "JobMarket.reveal"}
    assert {name: job[name].calls for name in per_slot} == dict.fromkeys(per_slot, 80)
    per_round = {f"JobMarket.{name}" for name in ("startRound", "seal", "attest", "freeze", "merge", "finalize")}
    assert {name: job[name].calls for name in per_round} == dict.fromkeys(per_round, 10)


def test_a_game_is_measured_and_its_most_is_the_contracts_bound() -> None:
    rows, found = measured()["game"], sums()
    game, most = found["game"], found["game_most"]
    assert (game.calls, game.gas) == (sum(r.calls for r in rows.values()), sum(r.gas for r in rows.values()))
    assert most.gas == GAME_GAS > game.gas
    for of in ("calls", "zeros", "others", "compressed"):
        assert 0 <= getattr(most, of) * game.gas - getattr(game, of) * GAME_GAS < game.gas, f"{of}: in proportion"
    assert most.calls >= 22, "as many as the largest Program's game takes (benchmarks/dispute.py --largest)"


def test_every_known_chain_has_a_promise_or_a_refusal() -> None:
    for facts in KNOWN.values():
        assert facts.preset in CHAINS
        if facts.foreign_blocks:
            with pytest.raises(ChainError, match=r"block\.number is another chain's") as refused:
                require_own_blocks(facts.id)
            assert refused.value.code == "chain.foreign_blocks"
        else:
            require_own_blocks(facts.id)
