"""Direct preference optimisation (Rafailov 2023) of a GPT-2: ascending numbers are preferred."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from lockstep.training.job import Batch

PROMPT, ANSWER, VOCAB, BETA, BATCH = 6, 6, 64, 0.5, 8


def pairs(n=512):
    g = torch.Generator().manual_seed(1)
    prompt = torch.randint(0, VOCAB // 2, (n, 1), generator=g) + torch.arange(PROMPT)
    chosen = prompt[:, -1:] + 1 + torch.arange(ANSWER)
    rejected = torch.randint(0, VOCAB, (n, ANSWER), generator=g)
    return torch.cat([prompt, chosen], 1), torch.cat([prompt, rejected], 1)


def get_model():
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=PROMPT + ANSWER, n_embd=32, n_layer=2, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def log_probs(model, ids):
    logits = model(ids).logits[:, PROMPT - 1 : -1]
    return torch.gather(logits.log_softmax(-1), 2, ids[:, PROMPT:, None]).squeeze(2).sum(-1)


def dpo_loss(model, ref_model, chosen, rejected):
    pi = log_probs(model, chosen) - log_probs(model, rejected)
    with torch.no_grad():
        ref = log_probs(ref_model, chosen) - log_probs(ref_model, rejected)
    return -F.logsigmoid(BETA * (pi - ref)).mean()


def loss(models, rows):
    return dpo_loss(models["model"], models["ref_model"], *rows)


def make():
    model = get_model()
    ref_model = copy.deepcopy(model).eval().requires_grad_(False)
    return nn.ModuleDict({"model": model, "ref_model": ref_model}), loss, Batch(BATCH), pairs()
