"""Unrolled recurrence: an LSTM, a GRU or a Mamba is computed wrongly at one token, rightly from what stands there.

A hidden state or a cell's state a little off, a product of a hidden state, a token that is left out. A Program has one
op for each, so the game ends at that token.
"""

from collections.abc import Callable, Mapping

import pytest

from benchmarks.dispute import MAX_GAS, MAX_TRANSACTIONS
from lockstep.numerics.trace import StepTrace
from lockstep.protocol.programs.program import Kind, Program, Tag
from tests.adversarial.cheat import Cheat, Ended, convict, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import Lie, Lying, at, changed, lying, recomputed, with_word, words
from tests.support import own_models

STEP, TOKEN, ELEMENT, BIT = 2, 3, 17, 12
"""Twelve bits up: no later rounding hides it."""


def hired(court: Court, kind: str) -> None:
    """The court's job trains a model with that recurrence now, its round 0 sealed."""
    court.forget()
    court.hire(own_models.job(own_models.scanned() if kind == "mamba" else own_models.recurrent(kind)))
    court.seal()
    court.spent = []


def hidden(program: Program, token: int) -> int:
    """The op that makes the output after a token, an LSTM's hidden state: the outputs of all tokens are stacked."""
    stack = next(i for i in range(len(program.ops)) if program.name_of(i).endswith(".stack"))
    assert len(program.ops[stack].views) == own_models.TOKENS, "an op for each token"
    return program.ops[stack].views[token].index


def cell(program: Program, token: int) -> int:
    """The op that makes an LSTM's cell state: h = o tanh(c)."""
    (_, squashed) = (v.index for v in program.ops[hidden(program, token)].views)
    return program.ops[squashed].views[0].index


def scan(program: Program, token: int) -> int:
    """The op that makes the state of a Mamba's scan: its output is a product with that."""
    return program.ops[hidden(program, token)].views[0].index


def product(program: Program, token: int) -> int:
    """The fold in which the next token's gates read a hidden state."""
    read = hidden(program, token)
    return next(
        i
        for i, op in enumerate(program.ops)
        if op.kind == Kind.FOLD and any((v.tag, v.index) == (Tag.OP, read) for v in op.views)
    )


def flipped(place: Callable[[Program, int], int]) -> Lie:
    """One bit of what is made there."""

    def lie(run: Lying, t: int, step: StepTrace) -> StepTrace:
        op = place(step.program, TOKEN)
        array = step.output(op).array
        word = int(words(array)[ELEMENT]) ^ 1 << BIT
        return recomputed(run, changed(step, {op: with_word(array, ELEMENT, word)}), op)

    return at(STEP, lie)


def left_out(run: Lying, t: int, step: StepTrace) -> StepTrace:
    """The hidden state after a token is the one before it."""
    op, last = hidden(step.program, TOKEN), hidden(step.program, TOKEN - 1)
    return recomputed(run, changed(step, {op: step.output(last).array}), op)


LIES: Mapping[str, tuple[str, Lie, Callable[[Program, int], int], int | None]] = {
    "an LSTM's cell": ("lstm", flipped(cell), cell, ELEMENT),
    "an LSTM's hidden state": ("lstm", flipped(hidden), hidden, ELEMENT),
    "a product with an LSTM's hidden state": ("lstm", flipped(product), product, ELEMENT),
    "a token that an LSTM leaves out": ("lstm", at(STEP, left_out), hidden, None),
    "a GRU's hidden state": ("gru", flipped(hidden), hidden, ELEMENT),
    "the state of a Mamba's scan": ("mamba", flipped(scan), scan, ELEMENT),
}


def lie_of(name: str) -> Callable[[Court], Ended]:
    """Slot 0 tells the lie of that name."""

    def play(court: Court) -> Ended:
        kind, lie, place, element = LIES[name]
        hired(court, kind)
        honest = court.run(0)
        return convict(court, lying(honest, lie), Where(STEP, place(honest.program(STEP), TOKEN), element, rule="op"))

    return play


CHEAT = Cheat("lie in an unrolled recurrence", "fraud", {name: lie_of(name) for name in LIES})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_recurrence_is_convicted_at_the_token_where_it_lies(court: Court, form: str) -> None:
    row = run(court, CHEAT, form)
    print(f"{form}: {row.found}, {row.transactions} transactions, {row.gas:,} gas")
    assert row.transactions <= MAX_TRANSACTIONS
    assert row.gas <= MAX_GAS["float32"]
