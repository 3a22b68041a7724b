"""Recurrent layers unrolled step by step: `nn.LSTM`, `nn.GRU`, `nn.RNN`.

One product over all steps multiplies the inputs; each step adds the product of its state. A sequence of more than
`MAX_STEPS` is refused, because every step adds ops to the Program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import LoweringError

MAX_STEPS = 512
"""Longest sequence of a layer, both directions counted: a step costs about twenty ops, of 2^14 in a Program."""

Step = Callable[[Tensor, tuple[Tensor, ...], Tensor, Tensor | None], tuple[Tensor, ...]]
"""Maps (product of the input [B, G H], state, weight [G H, H], bias) to the next state; its first part is the
output.
"""


def _lstm_step(x: Tensor, state: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    """One LSTM step with gates i, f, g, o (Hochreiter and Schmidhuber 1997; forget gates: Gers 2000); the state is (h,
    c).
    """
    i, f, g, o = (x + F.linear(state[0], weight, bias)).chunk(4, 1)
    c = torch.sigmoid(f) * state[-1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru_step(x: Tensor, state: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    """One GRU step with gates r, z, n (Cho 2014, equations 5 to 8; the reset gate as placed in torch)."""
    (h,) = state
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, 1), F.linear(h, weight, bias).chunk(3, 1)
    z = torch.sigmoid(xz + hz)
    n = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
    return ((1 - z) * n + z * h,)


def _rnn_step(activation: Callable[[Tensor], Tensor]) -> Step:
    def step(x: Tensor, state: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        return (activation(x + F.linear(state[0], weight, bias)),)

    return step


def _direction(
    x: Tensor, state: tuple[Tensor, ...], weights: Sequence[Tensor], step: Step, backwards: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Runs one layer in one direction: x [T, B, I] -> (outputs [T, B, H], last state)."""
    if len(weights) not in (2, 4):
        raise LoweringError("an LSTM with a projection is not supported", hint="leave proj_size off")
    of_input, of_state, *biases = weights
    of_x, of_h = biases or (None, None)
    inputs = F.linear(x, of_input, of_x)
    outputs: list[Tensor] = []
    for t in range(x.shape[0]):
        at = x.shape[0] - 1 - t if backwards else t
        state = step(inputs[at], state, of_state, of_h)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs), state


def recurrent(
    step: Step,
    x: Tensor,
    states: Sequence[Tensor],
    params: Sequence[Tensor],
    num_layers: int,
    dropout: Callable[[Tensor], Tensor],
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Runs a recurrent network with the arguments of torch's own functions; returns (outputs, last states of all
    layers).
    """
    x = x.transpose(0, 1) if batch_first else x
    directions = 2 if bidirectional else 1
    # INVARIANT: the ops of a recurrence are bounded.
    if x.shape[0] * directions > MAX_STEPS:
        raise LoweringError(
            f"a recurrence of {x.shape[0]} steps in {directions} directions is not supported",
            hint=f"cut sequences to {MAX_STEPS // directions} steps, or use a model that attends",
        )
    each = len(params) // (num_layers * directions)
    finals: list[tuple[Tensor, ...]] = []
    for layer in range(num_layers):
        outputs = []
        for way in range(directions):
            k = layer * directions + way
            state = tuple(s[k] for s in states)
            y, last = _direction(x, state, params[k * each : (k + 1) * each], step, way == 1)
            outputs.append(y)
            finals.append(last)
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        x = dropout(x) if layer < num_layers - 1 else x
    last_states = tuple(torch.stack(part) for part in zip(*finals, strict=True))
    return (x.transpose(0, 1) if batch_first else x), *last_states


def formulas(dropout: Callable[..., Tensor]) -> dict[Any, Callable[..., Any]]:
    """Returns formulas for torch.lstm, gru, rnn_tanh and rnn_relu; `dropout(x, p, training)` is applied between
    layers.
    """

    def formula(step: Step) -> Callable[..., Any]:
        def run(x: Tensor, states: Any, params: Any, *rest: Any) -> Any:
            if not isinstance(rest[0], bool):
                raise LoweringError("a packed sequence is not supported", hint="pad the sequences to one length")
            _biases, layers, p, training, bidirectional, batch_first = rest
            given = states if isinstance(states, (tuple, list)) else (states,)
            return recurrent(
                step, x, given, params, layers, lambda y: dropout(y, p, training), bidirectional,
                batch_first,
            )  # fmt: skip

        return run

    return {
        torch.lstm: formula(_lstm_step),
        torch.gru: formula(_gru_step),
        torch.rnn_tanh: formula(_rnn_step(torch.tanh)),
        torch.rnn_relu: formula(_rnn_step(torch.relu)),
    }
