"""Low-rank adapters on a frozen base (Hu 2021, section 4.1): W x becomes W x + alpha / rank B A x.

    model = adapt(load_model(folder), rank=8)        # only A and B train
    ...
    plain = merged(model)                            # the base with W + alpha / rank B A

Frozen parameters are constants of the step's Program: neither state nor payload nor checkpoint holds them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.protocol.errors import UsageError
from lockstep.training.models.registry import build_model, describe
from lockstep.training.wrappers import unwrapped


@dataclass(frozen=True)
class LoRAConfig:
    """An adapted model; `config.json` of an exported one."""

    base: Mapping[str, Any] = field(default_factory=dict)
    """`config.json` of the frozen model."""
    rank: int = 8
    """r: the rank of each update."""
    alpha: float = 16.0
    """Updates are scaled by alpha / rank."""
    targets: Sequence[str] = field(default_factory=lambda: ["qkv"])
    """Linear layers whose path is or ends in one of these names."""

    def __post_init__(self) -> None:
        if self.rank < 1 or not self.targets:
            raise UsageError(
                f"rank is {self.rank}, targets is {list(self.targets)}",
                "use a rank of at least 1, and at least one target",
            )


class Adapted(nn.Module):
    """A linear layer with a low-rank update added to its output."""

    def __init__(self, layer: nn.Module, rank: int, scale: float) -> None:
        super().__init__()
        self.layer = layer
        self.scale = scale
        outputs, inputs = _weight(layer).shape
        self.lora_A = nn.Linear(inputs, rank, bias=False)
        self.lora_B = nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return self.layer(x) + self.lora_B(self.lora_A(x)) * self.scale

    def merged(self) -> nn.Module:
        """Adds the adapter to the wrapped layer's weight in place, and returns that layer, an equal function."""
        with torch.no_grad():
            _weight(self.layer).add_(self.scale * (self.lora_B.weight @ self.lora_A.weight))
        return self.layer


def is_linear(layer: nn.Module) -> bool:
    """Returns True if a layer is torch's Linear, or Conv1D, which GPT-2 of `transformers` has instead."""
    return isinstance(layer, nn.Linear) or type(layer).__name__ == "Conv1D"


def _weight(layer: nn.Module) -> Tensor:
    """Returns the weight as [out, in], a view: Conv1D stores it transposed."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight if isinstance(layer, nn.Linear) else weight.t()


class LoRA(nn.Module):
    """A frozen model whose target layers are adapted."""

    def __init__(self, config: LoRAConfig, base: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        self.base = build_model(config.base) if base is None else base
        self.base.requires_grad_(False)
        for path in _layers(self.base, config.targets):
            adapted = Adapted(self.base.get_submodule(path), config.rank, config.alpha / config.rank)
            self.base.set_submodule(path, adapted)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The output of the base with its updates."""
        return self.base(*inputs, **named)

    def initial_scale(self, name: str, shape: tuple[int, ...]) -> float:
        """Initial standard deviation of a weight: B is zero, so that nothing has changed yet."""
        return 0.0 if name.endswith("lora_B.weight") else shape[1] ** -0.5


def adapt(base: nn.Module, *, rank: int = 8, alpha: float = 16.0, targets: Sequence[str] = ("qkv",)) -> LoRA:
    """Returns the model, frozen, with adapters on the named layers; `base` is unchanged, and both share its weights."""
    base = unwrapped(base)
    # A base is as large as a machine's memory, and often mapped from a file: what is not trained needs no copy.
    shared: dict[int, Any] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in base.parameters()}
    shared |= {id(b): b for b in base.buffers()}
    return LoRA(LoRAConfig(describe(base), rank, alpha, list(targets)), copy.deepcopy(base, shared))


def merged(model: LoRA) -> nn.Module:
    """The base with its updates added to its weights: a model like any other, for export."""
    base = copy.deepcopy(model).base
    for path, layer in list(base.named_modules()):
        if isinstance(layer, Adapted):
            base.set_submodule(path, layer.merged())
    return base.requires_grad_(True)


def _all_parameters(base: nn.Module) -> list[nn.Parameter]:
    return [p for _, p in base.named_parameters(remove_duplicate=False)]


def _layers(base: nn.Module, targets: Sequence[str]) -> list[str]:
    linear = [path for path, layer in base.named_modules() if is_linear(layer)]
    found = [path for path in linear if any(f".{path}".endswith(f".{name}") for name in targets)]
    shared = {id(p) for p in base.parameters() if sum(p is q for q in _all_parameters(base)) > 1}
    tied = [path for path in found if id(base.get_submodule(path).weight) in shared]
    # INVARIANT: merging an update into one layer changes no other.
    if tied:
        raise UsageError(f"{', '.join(tied)} shares its weight with another layer", "adapt other layers, or untie it")
    missing = [name for name in targets if not any(f".{path}".endswith(f".{name}") for path in linear)]
    if missing:
        raise UsageError(f"no linear layer is called {', '.join(missing)}", f"layers: {', '.join(linear)}")
    return found
