"""Models in plain torch, one file each."""

from lockstep.training.models.gpt import GPT, GPTConfig
from lockstep.training.models.mlp import MLP, MLPConfig

__all__ = ["GPT", "MLP", "GPTConfig", "MLPConfig"]
