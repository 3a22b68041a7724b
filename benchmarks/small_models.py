"""Small models of `transformers`: for every class a configuration that builds, inputs that it takes, a loss of it.

A configuration is shrunk by the names of its fields, at one of `LEVELS`; the first level whose model trains one step in
eager PyTorch is used. A row of the dataset is what the model reads: tokens, or the samples of an image or a sound.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from lockstep.training.models.encoder import masked_token_loss
from lockstep.training.models.gpt import next_token_loss

REGISTRIES = {
    "causal": "MODEL_FOR_CAUSAL_LM",
    "masked": "MODEL_FOR_MASKED_LM",
    "sequence-to-sequence": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM",
    "image classification": "MODEL_FOR_IMAGE_CLASSIFICATION",
    "audio classification": "MODEL_FOR_AUDIO_CLASSIFICATION",
    "audio ctc": "MODEL_FOR_CTC",
    "speech to text": "MODEL_FOR_SPEECH_SEQ_2_SEQ",
    "encoder": "MODEL_FOR_TEXT_ENCODING",
}
"""Family to the registry of its classes, in `transformers.models.auto.modeling_auto`."""

ROWS, TOKENS, VOCABULARY, SAMPLES, FRAMES = 2, 16, 128, 3_200, 64
MAX_PARAMETERS = 80_000_000

Loss = Callable[[Any, Tensor], Tensor]

_SIZES: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "emb_dim"), 64),
    "word_embed_proj_dim": 64,
    **dict.fromkeys(("embed_dim", "model_dim", "output_hidden_size", "lru_width", "attention_hidden_size"), 64),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_inner"), 128),
    **dict.fromkeys(("ffn_hidden_size", "hidden_dim", "dff", "dim_ff", "shared_intermediate_size"), 128),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads",), 4),
    **dict.fromkeys(("head_dim", "d_kv", "kv_channels", "d_head", "attention_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "global_head_dim", "swa_head_dim"), 16),
    "qk_rope_head_dim": 8,
    "qk_head_dim": 24,
    "rotary_dim": 8,
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank"), 32),
}  # fmt: skip
"""Widths by the field's name."""
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers",
           "num_decoder_layers", "num_encoder_layers", "speech_encoder_layers", "num_hidden_groups")  # fmt: skip
_EXPERTS = {
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group"), 1),
}
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "model_max_length",
              "max_target_positions")  # fmt: skip
_WINDOWS = {
    **dict.fromkeys(("sliding_window", "attention_window", "attention_chunk_size", "local_attention"), 8),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size", "index_topk", "block_size", "local_attention_window_len"), 8),
    **dict.fromkeys(("mamba_d_state", "state_size", "time_step_rank", "mamba_dt_rank", "index_head_dim"), 8),
}
_TOKEN = re.compile(r"(_token_id|_token_index|token_id|_index|_id)$")
_VOCABULARIES = re.compile(r"^(src_|tgt_|decoder_)?vocab_size(_per_layer_input)?$")
LEVELS = ("all", "depth", "vocabulary", "as it is")
"""Everything is shrunk; all but widths; vocabulary, images and sounds alone; nothing but the inputs."""


def shrunk(config: Any, level: str, *, layers: int = 2) -> dict[str, Any]:
    """The fields of a default configuration that a small one gets in their place."""
    fields: dict[str, Any] = {}
    given = config.__dict__
    for at, (key, value) in enumerate(sorted(given.items())):
        if hasattr(value, "to_dict"):
            fields[key] = type(value)(**shrunk(value, level, layers=layers))
            continue
        small = _shrunk(key, value, level, layers, at)
        if small is not None and small != value:
            fields[key] = small
    if level == "all" and (heads := _heads(given)):
        fields["num_key_value_heads"] = heads
    return fields


def _heads(given: dict[str, Any]) -> int | None:
    kv, heads = given.get("num_key_value_heads"), given.get("num_attention_heads")
    if not isinstance(kv, int) or not isinstance(heads, int):
        return None
    return 4 if kv == heads else 1 if kv == 1 else 2


def _shrunk(key: str, value: Any, level: str, layers: int, at: int) -> Any:
    if level == "as it is" or isinstance(value, bool) or not isinstance(value, int):
        return None
    if _VOCABULARIES.match(key):
        return VOCABULARY if value > VOCABULARY else None
    if key in ("pad_token_id", "bos_token_id", "eos_token_id"):
        return {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}[key]
    if _TOKEN.search(key) and value >= VOCABULARY:
        return VOCABULARY - 1 - at % 100
    if key in ("image_size", "max_source_positions", "num_mel_bins"):
        return {"image_size": 64, "max_source_positions": FRAMES // 2, "num_mel_bins": 16}[key]
    if level == "vocabulary":
        return None
    if key in _DEPTHS and value > layers:
        return layers
    small = (_EXPERTS | _WINDOWS | dict.fromkeys(_POSITIONS, 256) | (_SIZES if level == "all" else {})).get(key)
    return small if small is not None and value > small else None


def configurations(kind: type) -> Iterator[tuple[str, Any]]:
    """(level, configuration) from the smallest; those that cannot be built are left out."""
    try:
        default = kind()
    except Exception:
        return
    for level in LEVELS:
        for layers in (2, 4):
            fields = shrunk(default, level, layers=layers)
            try:
                yield f"{level}, {layers} layers", kind(**fields)
            except Exception:
                continue
            if level in ("vocabulary", "as it is"):
                break


# --- inputs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SmallModel:
    """A model that trains in eager PyTorch on rows of integers."""

    model: nn.Module
    loss: Loss
    row_length: int
    most: int
    """Elements of a row are 2 .. most - 1."""
    level: str

    def rows(self) -> Tensor:
        """i64 [ROWS, row_length]."""
        generator = torch.Generator().manual_seed(3)
        return torch.randint(2, self.most, (ROWS, self.row_length), generator=generator)


def parameters_of(architecture: type, config: Any) -> int:
    """Parameters of a model that is not built."""
    with torch.device("meta"):
        return sum(p.numel() for p in architecture(config).parameters())


def found(architecture: type, family: str) -> SmallModel:
    """The smallest case of a class that trains; RuntimeError with the last reason if none does."""
    why = "its configuration has no defaults"
    for level, config in configurations(architecture.config_class):
        try:
            if parameters_of(architecture, config) > MAX_PARAMETERS:
                why = f"{level}: more than {MAX_PARAMETERS:,} parameters"
                continue
            torch.manual_seed(7)
            model = architecture(config).float().train()
        except Exception as error:
            why = f"{level}: {type(error).__name__}: {_line(error)}"
            continue
        for loss, length, most in candidates(model, config, family):
            case = SmallModel(model, loss, length, most, level)
            try:
                _train(case)
            except Exception as error:
                why = f"{level}: {type(error).__name__}: {_line(error)}"
                continue
            return case
    raise RuntimeError(why)


def _train(case: SmallModel) -> None:
    value = case.loss(case.model, case.rows())
    value.backward()
    grads = [p.grad for p in case.model.parameters() if p.grad is not None]
    if not (value.dim() == 0 and value.isfinite() and any(g.any() for g in grads)):
        raise ValueError(f"the loss is {value} with {len(grads)} gradients")
    case.model.zero_grad()


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:160]


def candidates(model: nn.Module, config: Any, family: str) -> Iterator[tuple[Loss, int, int]]:
    """(loss, row length, bound of a row's elements) to try, the likeliest first."""
    names = inspect.signature(model.forward).parameters
    vocabulary = _vocabulary(model, config)
    if family == "causal":
        yield next_token_loss, TOKENS + 1, vocabulary
    if family == "masked":
        yield _masked(vocabulary), TOKENS, vocabulary
    text = "decoder_input_ids" in names
    for shape in _shapes(model, config, family):
        yield _loss(shape, str(getattr(model, "main_input_name", "input_ids")), text), prod(shape), vocabulary
    if family in ("sequence-to-sequence", "encoder", "masked", "causal"):
        yield _loss((TOKENS,), "input_ids", text), TOKENS, vocabulary
        yield _loss((TOKENS,), "input_ids", False), TOKENS, vocabulary


def _masked(vocabulary: int) -> Loss:
    drawn = masked_token_loss(vocabulary)

    def loss(model: Any, rows: Tensor) -> Tensor:
        words = (rows.unsqueeze(-1) + torch.arange(drawn.words)).mul(0x61C88647) & 0x7FFFFFFF
        return drawn.value(model, rows, (words * 2 - 0x7FFFFFFF).to(torch.int32))

    return loss


def _vocabulary(model: nn.Module, config: Any) -> int:
    for part in (config, getattr(config, "text_config", None), getattr(config, "decoder", None)):
        size = getattr(part, "vocab_size", None)
        if isinstance(size, int) and size > 2:
            return size
    return VOCABULARY


def _shapes(model: nn.Module, config: Any, family: str) -> Iterator[tuple[int, ...]]:
    main = getattr(model, "main_input_name", "")
    if main == "pixel_values":
        size = getattr(config, "image_size", None) or getattr(getattr(config, "vision_config", None), "image_size", 64)
        sides = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
        yield (getattr(config, "num_channels", 3), *sides)
        yield (3, 64, 64)
        yield (3, 224, 224)
    elif family.startswith("audio") or family == "speech to text":
        mel = next((n for key in ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim", "input_dim")
                    for part in (config, getattr(config, "audio_config", None), getattr(config, "encoder_config", None))
                    if isinstance(n := getattr(part, key, None), int)), 80)  # fmt: skip
        if main == "input_values":
            yield (SAMPLES,)
            yield (1, SAMPLES)
            yield (getattr(config, "max_length", 1024), mel)
        frames = getattr(config, "max_source_positions", FRAMES // 2)
        for length in (FRAMES, 2 * frames if isinstance(frames, int) else 2 * FRAMES, 1024):
            yield (mel, length)
            yield (length, mel)
        yield (1, SAMPLES)
        yield (SAMPLES,)


def _loss(shape: tuple[int, ...], name: str, decoder: bool) -> Loss:
    """Cross-entropy of logits, or a squared error of hidden states, with targets that follow from the positions."""
    text = len(shape) == 1 and name == "input_ids"

    def loss(model: Any, rows: Tensor) -> Tensor:
        given = rows if text else (rows.reshape(rows.shape[0], *shape).float() - 64) / 64
        extra = {"decoder_input_ids": rows[:, :TOKENS]} if decoder else {}
        output = model(**{name: given}, **extra)
        scores = getattr(output, "logits", None)
        if scores is None or scores.dim() < 2 or scores.shape[-1] < 2:
            hidden = next(value for value in output.to_tuple() if isinstance(value, Tensor) and value.dim() > 1)
            target = torch.arange(hidden.shape[-1]).remainder(7).sub(3).to(hidden.dtype)
            return F.mse_loss(hidden, target.expand(hidden.shape))
        flat = scores.reshape(-1, scores.shape[-1])
        return F.cross_entropy(flat, torch.arange(flat.shape[0]).remainder(scores.shape[-1]))

    return loss
