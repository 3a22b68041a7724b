"""A forward that is tried leaves the model as it was, and tells what predicts the next token from what does not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from lockstep.protocol.errors import UsageError
from lockstep.training.export import write_text
from lockstep.training.models import CNN, GPT, CNNConfig, Encoder, EncoderConfig, GPTConfig
from lockstep.training.probing import context_of, not_next_token

ROW = [3, 1, 4, 1, 5, 9, 2, 6]


class Counting(nn.Module):
    """Writes a buffer and an attribute, draws, and drops."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop, self.head = nn.Embedding(16, 8), nn.Dropout(0.5), nn.Linear(8, 16)
        self.register_buffer("seen", torch.zeros(()))
        self.calls: list[int] = []

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen += 1
        self.calls.append(len(tokens))
        return self.head(self.drop(self.embed(tokens)) + torch.rand(8))


def test_a_tried_model_and_torchs_generator_are_left_as_they_were() -> None:
    model = Counting()
    before, drawn = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    assert not_next_token(model, ROW, 16) == "", "dropout draws the same at both calls"
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.calls == []
    assert torch.equal(torch.get_rng_state(), drawn)


def test_models_are_told_apart_by_what_they_do() -> None:
    gpt = GPT(GPTConfig(vocabulary=16, layers=1, heads=2, width=8, context=8))
    assert not_next_token(gpt, ROW, 16) == ""
    assert "logits for 16 tokens, but the data have 17" in not_next_token(gpt, ROW, 17)
    encoder = Encoder(EncoderConfig(vocabulary=17, layers=1, heads=2, width=8, context=8))
    assert "change with a later token" in not_next_token(encoder, ROW, 16)
    assert "it fails on tokens of shape [1, 7]" in not_next_token(CNN(CNNConfig()), ROW, 16)
    assert "not logits [1, T, V]" in not_next_token(nn.Sequential(nn.Embedding(16, 8), nn.Flatten()), ROW, 16)
    assert "it returns tuple" in not_next_token(nn.GRU(8, 8), ROW, 16) or "it fails" in not_next_token(
        nn.GRU(8, 8), ROW, 16
    )


class Mixing(nn.Module):
    """Tokens are mixed by a matrix of their places, and then by a layer; both begin as zeros."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.embed, self.out, self.head = nn.Embedding(16, 8), nn.Linear(8, 8), nn.Linear(8, 16)
        self.mixed_TT = nn.Parameter(torch.zeros(8, 8))
        self.mask_TT = nn.Parameter(torch.tril(torch.ones(8, 8)), requires_grad=False)
        self.causal = causal
        for p in self.out.parameters():
            nn.init.zeros_(p)

    def forward(self, tokens: Tensor) -> Tensor:
        x, n = self.embed(tokens), tokens.shape[1]
        mixed_TT = self.mixed_TT * self.mask_TT if self.causal else self.mixed_TT
        return self.head(x + self.out(mixed_TT[:n, :n] @ x))


def test_a_mixing_of_tokens_that_begins_as_zeros_is_seen() -> None:
    model = Mixing(causal=False)
    before = copy.deepcopy(model.state_dict())
    assert "change with a later token" in not_next_token(model, ROW, 16)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not_next_token(Mixing(causal=True), ROW, 16) == "", "a mask that is not trained stays as it is"


def test_a_context_is_found_by_its_usual_names() -> None:
    model = nn.Linear(1, 1)
    assert context_of(model) is None
    model.block_size = 32  # type: ignore[assignment]
    assert context_of(model) == 32
    model.config = GPTConfig(context=8)  # type: ignore[assignment]
    assert context_of(model) == 8, "the configuration's first"


class Short(nn.Module):
    """Sees four tokens, and says so nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places, self.head = nn.Embedding(256, 8), nn.Embedding(4, 8), nn.Linear(8, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens) + self.places(torch.arange(tokens.shape[1])))


def test_a_class_of_one_s_own_writes_text_within_the_rows_that_it_was_trained_on() -> None:
    model = Short()
    model.source = {"row_length": 5}  # type: ignore[assignment]
    text = write_text(model, None, "a prompt longer than it sees", 9)
    assert text == write_text(model, None, "a prompt longer than it sees", 9)
    model.source = {"row_length": 9}  # type: ignore[assignment]
    with pytest.raises(UsageError, match="a Short does not generate text"):
        write_text(model, None, "it", 9)
