"""The files that `lockstep train init` writes."""

from __future__ import annotations

TEMPLATE = """# A training job: a small GPT on a folder of text, DiLoCo over a few rounds.
texts = "texts"            # folder of *.txt, *.md, *.jsonl, UTF-8; one file is a document
seed = 0                   # seed of the initial weights
rounds = 6
slots = 3
min_slots = 1              # fewer fail a round; so does a roster of fewer than 2 x min_slots - 1
terms = "devnet"           # windows and prices: "local", "devnet" or "mainnet"
aggregator = ""            # address that merges first; empty: only slot owners

# title = "A small GPT"    # human-readable name of the job, for pages and lists
# price = "0.5"            # tokens for 10^15 operations, instead of the terms' price of a slot
# gas_price = "600000000000 wei"  # refund per unit of gas, instead of the terms' (see warnings of `train quote`)

# [tokens]                 # without it a token is a byte
# tokenizer = "tokenizer.json"    # of Hugging Face; model.vocabulary must hold its tokens
# separator = "</s>"       # token appended to each document; default: an empty line

[model]                    # the fields of lockstep.training.models.GPTConfig, LlamaConfig or EncoderConfig
kind = "gpt"               # or "llama", "encoder"; docs/training.md: adapters on your own model
layers = 4
heads = 4
width = 128
context = 64

[batch]
rows = 8

[strategy]                 # lockstep.training.strategies.diloco.DiLoCo
inner_steps = 20
payload = "int8-block"     # or "f32"
carry = false              # true: moments persist across rounds; payloads grow by two words per parameter

# [arithmetic]             # of the model's matrix products; default: float32 sums
# products = "int8"        # exact sums of small integers: the same bits on every tensor core
# [arithmetic.modules]     # exceptions by module: "float32", "int8", "int8x2" (two limbs)
# "blocks.*.down" = "int8x2"

# [evaluation]             # instead of [model] and [strategy]: computes the loss of an existing model
# model = "pulled"         # folder written by `lockstep train pull`
# batches = 32             # per slot and round
# documents = "held out"   # those not seen by training on these texts; or "all"
"""

ROUNDS, DILOCO_STEPS = 6, 20
"""Rounds and steps of TEMPLATE; a template of another strategy has the same total of steps."""

SCRIPT = '''"""A model in plain PyTorch; `lockstep train check net.py:make` tries it, `train run` trains it."""

import torch
from torch import nn
from torch.nn import functional as F

from lockstep.training.job import Batch

CONTEXT, WIDTH, HEADS, BLOCKS, VOCABULARY = 64, 96, 4, 2, 256  # a token is a byte


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def loss(model, rows):
    """rows: integers [B, CONTEXT + 1], drawn from the data by the round's seed."""
    logits = model(rows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def make():
    """(model, loss, batch); a fourth value, integers [N, CONTEXT + 1], would be the data."""
    return Net(), loss, Batch(rows=8, row_length=CONTEXT + 1)
'''
"""A custom model, and the function that makes it."""


def template_of(strategy: str | None) -> str:
    """Returns the template; for another strategy, with the same total of steps."""
    if strategy is None:
        return TEMPLATE
    from lockstep.training.strategies.registry import strategy_named
    from lockstep.training.templates import strategy_table

    table, steps = strategy_table(strategy), strategy_named(strategy)().inner_steps
    before, rest = TEMPLATE.split("[strategy] ")
    after = rest[rest.index("# [arithmetic]") :]
    rounds = f"rounds = {max(ROUNDS, ROUNDS * DILOCO_STEPS // steps)}"
    before = before.replace("DiLoCo over a few rounds", f"{strategy} over rounds of {steps} steps")
    return before.replace(f"rounds = {ROUNDS}", rounds) + table + "\n\n" + after
