"""Materialised steps: G_t, its state block, and what a game asks of them."""

from __future__ import annotations

import numpy as np
import pytest

from lockstep.numerics import paths, reference
from lockstep.numerics import trace as trace_module
from lockstep.numerics.arrays import Array, StepContext
from lockstep.numerics.builder import ProgramBuilder, Quantised
from lockstep.numerics.trace import StepTrace, layout_root, materialise, tensor_root
from lockstep.protocol import merkle
from lockstep.protocol.errors import Mismatch, NotFoundError
from lockstep.protocol.programs.program import F32, I32, Fold, Program
from tests.unit.numerics.comparison import CONTEXT, normal, words

K = 135_601
"""Two levels of partials."""


@pytest.fixture(scope="module")
def step() -> StepTrace:
    b = ProgramBuilder([(F32, K), (I32, None), None])
    x = b.input(0)
    halved = b.map((K,), [x], lambda e, v: e.fmul(v, e.f32(0.5)), name="halved")
    squares = b.dot(halved, x, name="squares")
    greatest = b.max(x, name="greatest")
    rows = b.draw(3, 5, name="rows")
    total = b.sum(rows, name="total")
    ones = b.dot(b.word((300,), 0x3F800000, F32), x.slice(0, 0, 300), name="ones")
    clock = b.map((), [b.input(1)], lambda e, c: e.iadd(c, e.i32(1)), name="clock")
    program = b.finish([halved, squares, None, clock, b.input(0), total, greatest, ones])
    rng = np.random.default_rng(1)
    state = [normal(rng, K), np.array(4, np.int32), None, None]
    dataset = rng.integers(0, 99, (20, 5)).astype(np.int32)
    return materialise(paths.compile(program), state, CONTEXT, dataset)


def computed(step: StepTrace) -> tuple[Array | None, ...]:
    """The tensors of S_t as an ordinary step gives them."""
    return paths.compile(step.program).run(step.before, step.context, step.rows)


def test_next_state_is_the_state_block_of_the_graph(step: StepTrace) -> None:
    program = step.program
    assert step.root == layout_root(program.output_layout, computed(step)), "S_t is one node of G_t"
    block = [merkle.node_at(step.graph, 0, program.state_block + k) for k in range(len(program.outputs))]
    assert step.root == merkle.tree(block), "over the block's leaves"
    assert block[2] == merkle.EMPTY[0], "an EMPTY entry is Z_0"
    assert block[4] == merkle.node_at(step.prev, 0, 0), "an untouched entry is the one before"


def test_graph_lists_the_outputs_in_order_then_padding(step: StepTrace) -> None:
    assert len(step.graph) == step.program.depth + 1, "levels"
    for i in range(len(step.program.ops)):
        array, header = step.output(i).array, step.program.ops[i].header
        due = merkle.tensor_root(header.dtype, header.shape, array.tobytes())
        assert step.graph[0][i] == due == step.roots[i], f"root of op {i}"
    assert step.graph[0][len(step.program.ops)] == merkle.EMPTY[0], "padding"


def test_previous_state_has_the_inputs_roots(step: StepTrace) -> None:
    assert merkle.node_at(step.prev, step.program.s_in, 0) == layout_root(step.program.inputs, step.before)


def test_tensors_open_leaf_by_leaf(step: StepTrace) -> None:
    for tensor in (step.output(0), step.state(0), step.dataset(), step.output(1)):
        assert tensor.levels == merkle.data_levels(tensor.array.tobytes()), "levels"
        leaves = [tensor.leaf(i) for i in range(tensor.header.leaves)]
        assert b"".join(leaves) == tensor.array.tobytes(), "leaves"
    last = step.output(0).header.leaves - 1
    assert len(step.output(0).leaf(last)) == 4 * (K % 256), "the last leaf is short"
    with pytest.raises(NotFoundError):
        step.output(0).leaf(last + 1)
    with pytest.raises(NotFoundError):
        step.state(2)


@pytest.mark.parametrize("name", ["squares", "greatest"])
def test_two_levels_of_partials_combine(step: StepTrace, name: str) -> None:
    op = step.program.names.index(name)
    mode = step.program.ops[op].mode
    top = step.partials(op, 0, None)
    assert len(top) == 3, "530 chunks in groups of 256"
    assert reference.combine(mode, top) == words(step.output(op).array)[0], "the element"
    groups = [step.partials(op, 0, j) for j in range(3)]
    assert [len(g) for g in groups] == [256, 256, 18]
    assert [reference.combine(mode, g) for g in groups] == top, "the top level"
    operands = step.operands()
    for group, chunk in ((0, 0), (0, 255), (2, 17)):
        due = reference.chunk(step.program.ops[op], 0, 256 * group + chunk, operands)
        assert groups[group][chunk] == due, f"chunk {chunk} of group {group}"


def test_one_level_of_partials_is_the_chunks(step: StepTrace) -> None:
    op = step.program.names.index("ones")
    assert step.program.ops[op].mode == Fold.DOT
    operands = step.operands()
    due = [reference.chunk(step.program.ops[op], 0, c, operands) for c in range(2)]
    assert step.partials(op, 0, None) == due
    assert step.partials(op, 0) == reference.partials(step.program.ops[op], 0, 1, 0, operands), (
        "as the reference names it"
    )


@pytest.mark.parametrize("groups", [3, 300])
def test_partials_of_a_qdot_are_its_groups(groups: int) -> None:
    rng = np.random.default_rng(groups)
    b = ProgramBuilder([(I32, 2 * groups * 2), (F32, 2 * groups)])
    held = Quantised(b.input(0).reshape(2, 2 * groups), b.input(1).reshape(2, groups), 2)
    program = b.finish([b.qdot(held, held)])
    state = [
        rng.integers(-(2**31), 2**31, 4 * groups).astype(np.int32),
        rng.standard_normal(2 * groups).astype(np.float32),
    ]
    made = materialise(paths.compile(program), state, StepContext(bytes(32), 0, 0, 1))
    op, operands = program.ops[0], made.operands()
    for element in range(2):
        due = [reference.chunk(op, element, c, operands) for c in range(groups)]
        assert list(made.chunk_results(0, element)) == due, "every group"
        assert made.partials(0, element) == due, "are shown at once"
        assert reference.joined(op.mode, due) == words(made.output(0).array)[element]


def test_only_folds_have_partials(step: StepTrace) -> None:
    with pytest.raises(NotFoundError, match="map"):
        step.partials(0, 0, None)


def test_operands_read_what_the_step_read(step: StepTrace) -> None:
    operands = step.operands()
    for i, op in enumerate(step.program.ops):
        if op.k_terms < 1000:
            last = op.header.elements - 1
            assert reference.element(op, last, operands) == words(step.output(i).array)[last], step.program.name_of(i)


# --- roots ------------------------------------------------------------------------------------------------


def doubled() -> Program:
    b = ProgramBuilder([(F32, 8)])
    return b.finish([b.map((8,), [b.input(0)], lambda e, x: e.fadd(x, x)), b.input(0)])


def test_roots_of_read_only_tensors_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    output = paths.compile(doubled()).run([np.ones(8, np.float32)], CONTEXT)[0]
    assert output is not None
    first = tensor_root(output)
    monkeypatch.setattr(merkle, "tensor_root", lambda *_: pytest.fail("hashed again"))
    assert tensor_root(output) == first


def test_a_tensor_that_can_be_written_is_hashed_each_time() -> None:
    array = np.ones(8, np.float32)
    before = tensor_root(array)
    array[0] = 2.0
    assert tensor_root(array) != before, "the root follows the contents"
    view = array[:]
    view.flags.writeable = False
    before = tensor_root(view)
    array[0] = 3.0
    assert tensor_root(view) != before, "also through a read-only view"


def test_remembered_roots_go_with_their_arrays() -> None:
    output = paths.compile(doubled()).run([np.ones(8, np.float32)], CONTEXT)[0]
    assert output is not None
    tensor_root(output)
    key = id(output)
    assert key in trace_module._ROOTS
    del output
    assert key not in trace_module._ROOTS


@pytest.mark.parametrize(
    "state", [[np.ones(8, np.float32)], [np.ones(7, np.float32), None], [None, None], [np.ones(8), None]]
)
def test_a_state_of_another_layout_has_no_root(state: list[Array | None]) -> None:
    b = ProgramBuilder([(F32, 8), None])
    b.map((8,), [b.input(0)])
    with pytest.raises(Mismatch):
        layout_root(b.finish([None]).inputs, state)
