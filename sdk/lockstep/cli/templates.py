"""The files that `lockstep train init` writes."""

from __future__ import annotations

TEMPLATE = """# A training job: a small GPT on a folder of text, DiLoCo over a few rounds.
texts = "texts"            # folder of *.txt, *.md, *.jsonl, UTF-8; one file is a document
seed = 0                   # of the first weights
rounds = 6
slots = 3
min_slots = 1              # fewer fail a round; so does a roster of fewer than 2 x min_slots - 1
terms = "devnet"           # windows and prices; or "local", "mainnet"
aggregator = ""            # address that merges first; empty: slot owners alone

# title = "A small GPT"    # the job's name for people, on pages and in lists
# price = "0.5"            # tokens for 10^15 operations, in place of the terms' price of a slot
# gas_price = "600000000000 wei"  # refunded for a unit of gas, in place of the terms' (`train quote` warns)

# [tokens]                 # without it a token is a byte
# tokenizer = "tokenizer.json"    # of Hugging Face; model.vocabulary holds its tokens
# separator = "</s>"       # its token after each document; default: an empty line

[model]                    # the fields of lockstep.training.models.GPTConfig, LlamaConfig or EncoderConfig
kind = "gpt"               # or "llama", "encoder"; docs/training.md: adapters on a model that you have
layers = 4
heads = 4
width = 128
context = 64

[batch]
rows = 8

[strategy]                 # lockstep.training.strategies.diloco.DiLoCo
inner_steps = 20
payload = "int8-block"     # or "f32"
carry = false              # true: moments go on from round to round; payloads grow by two words a parameter

# [arithmetic]             # of the model's products; without it they are sums of float32
# products = "int8"        # exact sums of small integers: the same bits on every tensor core
# [arithmetic.modules]     # exceptions by module: "float32", "int8", "int8x2" (two limbs)
# "blocks.*.down" = "int8x2"

# [evaluation]             # in place of [model] and [strategy]: the loss of a model that you have
# model = "pulled"         # a folder that `lockstep train pull` wrote
# batches = 32             # of each slot in a round
# documents = "held out"   # those that training on these texts has not seen; or "all"
"""

ROUNDS, DILOCO_STEPS = 6, 20
"""Rounds and steps of TEMPLATE; a template of another strategy has as many steps in all."""

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
"""A model of one's own, and the function that makes it."""


def template_of(strategy: str | None) -> str:
    """The description; of another strategy over as many steps."""
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
