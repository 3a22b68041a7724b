"""Parameters in several flat tensors: the same training, the same claims, the same files as in one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lockstep.execution.jobs import carry_of, check_checkpoint, checkpoint_of, load, merge_run, payload_of, slot_run
from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.numerics.validate import check_programs
from lockstep.protocol import merkle
from lockstep.protocol.errors import LoweringError, PayloadInvalid, UsageError
from lockstep.protocol.market.job_rules import ChainTimes
from lockstep.protocol.programs import defects
from lockstep.protocol.programs.defects import Held, ProgramParts
from lockstep.protocol.types import JobId, Seed
from lockstep.requester.quotes import params_of
from lockstep.storage.containers import JobSpec, encode_program
from lockstep.storage.dataset import Dataset, store_dataset
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.payload import (
    load_carry,
    load_checkpoint,
    load_payload,
    store_carry,
    store_checkpoint,
    store_payload,
)
from lockstep.training.export import load_model, save_model
from lockstep.training.job import Batch, TracedPrograms, build_programs, training_job
from lockstep.training.models import GPT, GPTConfig, Llama, LlamaConfig, describe, next_token_loss
from lockstep.training.parameters import Layout, initial_parameters, layout_of, without_weights
from lockstep.training.strategies import diloco
from tests.support import invalid, traced

CONFIG = GPTConfig(vocabulary=32, context=16, layers=1, heads=2, width=32)
ROW, H, SLOTS, SHARD = CONFIG.context + 1, 3, 3, 4096
BATCH = Batch(rows=3, row_length=ROW)
DATA = np.random.default_rng(3).integers(0, CONFIG.vocabulary, (40, ROW), dtype=np.int32)
SEED = bytes(range(32))


def spec(carry: bool) -> diloco.DiLoCo:
    return diloco.DiLoCo(inner_steps=H, payload="int8-block", carry=carry)


def built(carry: bool, shard: int = SHARD) -> TracedPrograms:
    return traced.build_programs(
        GPT(CONFIG), next_token_loss, spec(carry), batch=BATCH, rounds=2, slots=SLOTS, shard_elements=shard
    )


def start() -> np.ndarray:
    """The parameters of the one-shard layout, with life in every part."""
    flat, used = initial_parameters(GPT(CONFIG), 1), layout_of(GPT(CONFIG)).used
    flat[:used] += 0.03 * np.random.default_rng(0).standard_normal(used).astype(np.float32)
    return flat


def moved(flat: np.ndarray, layout: Layout) -> tuple[np.ndarray, ...]:
    """The same parameters in another layout."""
    named = layout_of(GPT(CONFIG)).split(torch.from_numpy(flat))
    return tuple(shard.numpy() for shard in layout.shards(named))


def joined(shards: list[np.ndarray], layout: Layout) -> np.ndarray:
    """The inverse of `moved`."""
    named = layout.split(*(torch.from_numpy(np.array(s)) for s in shards))
    return layout_of(GPT(CONFIG)).join(named).numpy()


def after_a_round(programs: TracedPrograms, flat: np.ndarray, carry: bool) -> tuple[list, list]:
    """(state after H steps of round 1, what encode puts out) from `flat`, moments zero."""
    shards = moved(flat, programs.layout)
    zeros = [np.zeros_like(s) for s in shards]
    own = [*zeros, *zeros, *([np.array(0, np.int32)] if carry else [])]
    state = programs.sections.slot_state(shards, shards, own, np.array(H, np.int32))
    step = compile(programs.step)
    for t in range(1, H + 1):
        state = list(step.run(state, StepContext(SEED, 1, 2, t), DATA))
    return state, list(compile(programs.encode).run(state, StepContext(SEED, 1, 2, H + 1), DATA))


def test_parameters_fill_shards_and_lie_in_one_each() -> None:
    layout = layout_of(GPT(CONFIG), SHARD)
    assert len(layout.sizes) > 2
    assert max(layout.sizes) <= SHARD
    assert all(size % 256 == 0 for size in layout.sizes)
    for k in range(len(layout.sizes)):
        at = 0
        for p in (p for p in layout.parameters if p.shard == k):
            assert p.offset == at, "without gaps"
            at += p.elements
        assert 0 <= layout.sizes[k] - at < 256
    assert [p["shard"] for p in layout.describe()] == [p.shard for p in layout.parameters]
    assert not any("shard" in p for p in layout_of(GPT(CONFIG)).describe()), "one tensor is no shard"


@pytest.mark.slow
@pytest.mark.parametrize("carry", [False, True])
def test_shards_train_as_one_tensor(carry: bool) -> None:
    flat, one, several = start(), built(carry, 1 << 30), built(carry)
    assert (len(one.layout.sizes), len(several.layout.sizes)) == (1, 4)
    (due, due_payload), (state, payload) = (after_a_round(p, flat, carry) for p in (one, several))
    got, wanted = joined(state[:4], several.layout), due[0]
    assert np.abs(wanted - flat).max() > 1e-3, "the steps move the weights"
    # The norm of the gradient is added up in another order.
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6)
    differences = joined(payload[:4], several.layout)
    np.testing.assert_allclose(differences, due_payload[0], rtol=0, atol=2e-2 * np.abs(due_payload[0]).max())
    if carry:
        carried, kept = payload[several.sections.carried][:9], state[several.sections.carry][:9]
        assert [x.tobytes() for x in carried] == [x.tobytes() for x in kept]
        assert int(carried[8]) == H, "the moments' age"


@pytest.mark.slow
@pytest.mark.parametrize("carry", [False, True])
def test_shards_are_merged_as_one_tensor(carry: bool) -> None:
    dice, size = np.random.default_rng(5), layout_of(GPT(CONFIG)).size
    base, momentum, *payloads = (dice.standard_normal(size).astype(np.float32) for _ in range(2 + SLOTS))
    results = []
    for programs in (built(carry, 1 << 30), built(carry)):
        shared, outer, *sent = (moved(x, programs.layout) for x in (base, momentum, *payloads))
        sections, count = programs.sections, len(programs.layout.sizes)
        state = sections.merge_state(shared, outer, sent, np.array([1, 0, 1], np.float32))
        out = compile(programs.merge).run(state, StepContext(SEED, 1, 0xFFFFFFFF, 1))
        parts = [out[section][:count] for section in (sections.shared, sections.outer)]
        results.append([joined(part, programs.layout).tobytes() for part in parts])
    assert results[0] == results[1], "to the bit: what is merged does not depend on where it lies"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("carry", [False, True])
def test_a_job_of_shards_could_be_defended_and_cannot_be_voided(carry: bool) -> None:
    programs = built(carry)
    shared, payload = programs.sections.shared_depth, programs.sections.payload_depth
    assert (shared, payload) == ((4, 4) if carry else (3, 2))
    parts = tuple(ProgramParts.of(p) for p in (programs.step, programs.encode, programs.merge))
    names = ("step_program", "encode_program", "merge_program")
    roots = {name: part.root for name, part in zip(names, parts, strict=True)}
    shape = {"shared_depth": shared, "payload_depth": payload, "carry": int(carry), "slots": SLOTS, "row_length": ROW}
    params = replace(invalid.sound().job, **roots, **shape)
    check_programs(programs.step, programs.encode, programs.merge, params)
    assert defects.find(Held(params, parts)) is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("slots", [2, 9])
def test_an_evaluation_of_shards_finds_the_same_loss(slots: int) -> None:
    model, sums = GPT(CONFIG), []
    for shard in (1 << 30, SHARD):
        programs = traced.build_evaluation(
            model, next_token_loss, batch=BATCH, batches=H, rounds=1, slots=slots, shard_elements=shard
        )
        sections, shards = programs.sections, moved(start(), programs.layout)
        state = sections.slot_state(shards, shards, [np.zeros(2, np.float32)], np.array(0, np.int32))
        out = compile(programs.step).run(state, StepContext(SEED, 0, 1, 1), DATA)
        sums.append(out[sections.carry.start].tobytes())
        params = replace(
            invalid.sound().job, shared_depth=sections.shared_depth, payload_depth=sections.payload_depth, carry=0,
            slots=slots, row_length=ROW,
        )  # fmt: skip
        check_programs(programs.step, programs.encode, programs.merge, params)
    assert sums[0] == sums[1]


def test_shards_are_exported_as_one_tensor(tmp_path: Path) -> None:
    flat, layout = start(), layout_of(GPT(CONFIG), SHARD)
    one = save_model(tmp_path / "one", flat, layout_of(GPT(CONFIG)).describe(), describe(GPT(CONFIG)))
    shards = moved(flat, layout)
    several = save_model(tmp_path / "several", shards, layout.describe(), describe(GPT(CONFIG)))
    assert one.read_bytes() == several.read_bytes()
    assert isinstance(load_model(tmp_path / "several"), GPT)
    with pytest.raises(PayloadInvalid, match="shard 1 of 1"):
        save_model(tmp_path / "half", shards[:1], layout.describe(), describe(GPT(CONFIG)))


def test_shards_cut_what_is_made_for_them() -> None:
    layout = layout_of(GPT(CONFIG), SHARD)
    flat = np.arange(layout.size, dtype=np.float32)
    shards = layout.cut(flat)
    assert [s.size for s in shards] == list(layout.sizes)
    assert all(np.shares_memory(s, flat) for s in shards)
    for p in layout.parameters:
        assert shards[p.shard][p.offset] == flat[layout.start(p)]


def test_a_parameter_that_no_shard_holds_is_named() -> None:
    with pytest.raises(UsageError, match=r"blocks\.0\.up\.weight of shape \(128, 32\)"):
        layout_of(GPT(CONFIG), 4000)


def test_more_slots_than_a_state_of_shards_has_room_for_are_refused() -> None:
    with pytest.raises(UsageError, match="64 slots of 7 shards") as caught:
        build_programs(
            GPT(replace(CONFIG, layers=2)), next_token_loss, spec(False),
            batch=BATCH, rounds=1, slots=64, shard_elements=SHARD,
        )  # fmt: skip
    assert "32 slots" in caught.value.hint


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("traced_once")
@pytest.mark.parametrize("carry", [False, True])
def test_a_round_of_shards_is_stored_fetched_and_merged(carry: bool, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    asked = training_job(
        GPT(CONFIG), spec(carry), Dataset(DATA, CONFIG.vocabulary), batch=BATCH, rounds=2, slots=SLOTS, min_slots=2,
        shard_elements=SHARD,
    )  # fmt: skip
    assert asked.genesis is not None
    named = {name: getattr(asked.programs, name) for name in ("step", "encode", "merge")}
    stored = JobSpec(
        {name: store.put(encode_program(program, store.put)) for name, program in named.items()},
        store_dataset(store, asked.dataset), store_checkpoint(store, asked.genesis),
        asked.model, asked.parameters, asked.strategy,
    )  # fmt: skip
    store.put(stored.encode(), codec="dag-cbor")
    job = load(JobId(bytes(32)), params_of(asked, stored, ChainTimes()), store)
    assert [s.size for s in job.genesis.shared] == list(layout_of(GPT(CONFIG), SHARD).sizes)
    payloads = []
    for slot in range(2):
        *_, (_, final, root) = slot_run(job, job.genesis, Seed(SEED), 0, slot).states()
        payload, carry = payload_of(job, final), carry_of(job, final)
        assert root == merkle.node(*job.payload_roots(payload, carry))
        cid = store_payload(store, payload, "int8-block", store_carry(store, carry))
        back = load_payload(store, cid, job.payload_layout, carries=True)
        assert [x.tobytes() for x in back] == [x.tobytes() for x in payload]
        beside = load_carry(store, cid, job.payload_layout, job.carry_layout)
        assert [x.tobytes() for x in beside] == [x.tobytes() for x in carry]
        payloads.append(back)
    *_, (_, final, root) = merge_run(job, job.genesis, [*payloads, None], Seed(SEED), 0).states()
    merged = checkpoint_of(job, final)
    roots = job.checkpoint_roots(merged)
    assert root == merkle.node(*roots)
    layout, sections = job.programs.merge.output_layout, job.params.sections
    fetched = load_checkpoint(store, store_checkpoint(store, merged), layout[sections.shared], layout[sections.outer])
    check_checkpoint(job, fetched, *roots)
    save_model(tmp_path / "model", fetched.shared, job.spec.parameters, job.spec.model)
    assert isinstance(load_model(tmp_path / "model"), GPT)


# -- models without weights


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        lambda: GPT(CONFIG),
        lambda: Llama(LlamaConfig(vocabulary=32, context=16, layers=1, heads=2, kv_heads=1, width=32, hidden=48)),
    ],
)
def test_programs_do_not_depend_on_weights(build) -> None:
    with without_weights():
        bare = build()
        assert build_programs(bare, next_token_loss, spec(False), batch=BATCH, rounds=1, slots=2), "inside, too"
    assert all(p.is_meta for p in bare.parameters())
    assert not any(b.is_meta for b in bare.buffers()), "buffers are constants"
    roots = [
        [p.root for p in (programs.step, programs.encode, programs.merge)]
        for programs in (
            build_programs(m, next_token_loss, spec(False), batch=BATCH, rounds=1, slots=2) for m in (build(), bare)
        )
    ]
    assert roots[0] == roots[1]
    assert (initial_parameters(bare, 3) == initial_parameters(build(), 3)).all(), "a start that the seed alone fixes"


def test_a_frozen_parameter_without_values_is_refused() -> None:
    with without_weights():
        model = GPT(CONFIG)
    model.norm.weight.requires_grad_(False)
    with pytest.raises(LoweringError, match=r"`norm` uses a constant that has no values .*gpt\.py"):
        build_programs(model, next_token_loss, spec(False), batch=BATCH, rounds=1, slots=2)
