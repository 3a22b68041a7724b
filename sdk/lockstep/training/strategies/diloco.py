"""DiLoCo: workers take H inner steps each; their mean difference is one outer step (Douillard 2023, algorithm 1).

With `payload = "int8-block"` a difference is sent as one byte per element, as in INTELLECT-1 (2412.01152, section 2.2),
here with one scale per block of 256.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lockstep.protocol.errors import UsageError
from lockstep.storage.formats.base import WireFormat
from lockstep.storage.formats.int8 import Int8Blocks
from lockstep.storage.formats.words import PlainWords
from lockstep.storage.payload import BLOCK, F32_FORMAT, FORMATS, INT8_FORMAT, INT8_MAX
from lockstep.training.aggregates.mean import Average
from lockstep.training.codecs.base import Codec, Elementwise
from lockstep.training.codecs.int8 import SHORT, TINY
from lockstep.training.optimizers import AdamW, Nesterov
from lockstep.training.strategies.base import Optimizer
from lockstep.training.strategies.loop import Loop, Parts


@dataclass(frozen=True)
class DiLoCo(Loop):
    """All that defines the strategy; hashed into the job."""

    name: ClassVar[str] = "diloco"
    inner: Optimizer = field(default_factory=AdamW)
    """The optimizer within a round."""
    inner_steps: int = 20
    """H: steps of a slot per round."""
    payload: str = F32_FORMAT
    """"f32" or "int8-block"."""
    outer_learning_rate: float = 0.7
    """The step of Nesterov's momentum at the merge."""
    outer_momentum: float = 0.9
    """The momentum: the share of earlier differences that each outer step keeps."""
    carry: bool = False
    """True: a slot's moments are carried into its owner's next round, which triples the payload. False: they restart at
    zero in every round."""

    def __post_init__(self) -> None:
        if self.payload not in FORMATS:
            raise UsageError(f"payload format {self.payload!r} is unknown", f"use one of {', '.join(FORMATS)}")
        super().__post_init__()

    @property
    def wire(self) -> str:
        """The name of the payload's wire format."""
        return self.payload

    def parts(self) -> Parts:
        """Returns the loop's parts: the mean difference is applied with Nesterov's momentum."""
        codec: Codec = Blocks256() if self.payload == INT8_FORMAT else AsItIs()
        outer = Nesterov(self.outer_learning_rate, self.outer_momentum)
        return Parts(self.inner, codec, Average(), outer, keeps=self.carry, whole=True)


@dataclass(frozen=True)
class AsItIs(Elementwise):
    """Sends the difference itself, whatever its values: an audit then sees exactly what a slot computed."""

    name: ClassVar[str] = F32_FORMAT

    @property
    def format(self) -> WireFormat:
        """Plain words, 32 bits each."""
        return PlainWords()

    def encode(self, x: Tensor, round: Tensor) -> Tensor:  # noqa: A002
        """Returns x unchanged."""
        return x


@dataclass(frozen=True)
class Blocks256(Elementwise):
    """Each block of 256 rounded to -127 .. 127 times a scale whose products with codes are exact."""

    name: ClassVar[str] = INT8_FORMAT

    @property
    def format(self) -> WireFormat:
        """The `int8-block` format, with blocks of 256."""
        return Int8Blocks(BLOCK)

    def encode(self, x: Tensor, round: Tensor) -> Tensor:  # noqa: A002
        """Encodes f32 [P], with P a multiple of 256."""
        blocks = x.reshape(-1, BLOCK)
        largest = blocks.abs().amax(1, keepdim=True)
        scale = ((largest / INT8_MAX).view(torch.int32) & SHORT).view(torch.float32)
        codes = (blocks / scale).round().to(torch.int32).to(torch.float32)
        return torch.where(largest > TINY, codes * scale, 0.0).reshape(-1)
