"""Exports a trained model in standard file formats, loads it, and generates text with it.

save_model(folder, flat, parameters, config)     model.safetensors, config.json
model = load_model(folder)
generate(model, b"The state of the Union is ", 200)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lockstep.base.decoding import MAX_FILE_BYTES, anything, file_bytes, from_json, mapping, refusing
from lockstep.base.files import write_atomically
from lockstep.numerics.tables import restored, width_of
from lockstep.protocol.errors import NotFoundError, PayloadInvalid, UsageError
from lockstep.protocol.programs.program import CODES, groups_of
from lockstep.storage.containers import MAX_RANK
from lockstep.training.formats import FORMATS, OWN, published, recovered

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lockstep.protocol.programs.program import Const
    from lockstep.storage.dataset import Recipe
    from lockstep.training.tokens import Tokenizer

MODEL_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
"""The list of a model's shards."""
TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "config.json"
_CONFIG = mapping(anything)
REPEATS, SLACK_ELEMENTS = 16, 1 << 24
"""Bound on a model's elements: this many times those of its job, plus this many, since equal norms and biases of many
layers are one constant."""
BYTES = 256
"""The vocabulary size of a model without a tokenizer."""
UNBOUNDED = 1024
"""Tokens of a prompt given to a model that has no largest position."""


def save_model(
    folder: Path,
    shared: NDArray[np.float32] | tuple[NDArray[np.float32], ...],
    parameters: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any],
    constants: Sequence[Const] = (),
) -> Path:
    """Writes model.safetensors and config.json, which `transformers` reads if it knows such a model; returns the first.

    `shared` is a checkpoint's flat tensor, or its shards. `parameters` lists {name, offset, shape} of each part of it
    and {name, root, shape} or {name, limbs, shape} of each frozen one, as a job's spec does; `constants` are those of
    its step. Needs no torch. Files are written atomically. Raises PayloadInvalid for a spec that does not fit.
    """
    tables = {const.root.hex(): np.frombuffer(const.data, "<f4") for const in constants}
    shards = shared if isinstance(shared, tuple) else (shared,)
    _require_bounded(parameters, sum(s.size for s in shards) + CODES * sum(t.size for t in tables.values()))
    named = {str(p["name"]): _numbers(p, _part(p, shards, tables)) for p in parameters}
    try:
        written, parts = published(config, named)
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise PayloadInvalid(
            f"the job's model lacks or misstates {error}", "its spec is from another release"
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / CONFIG_FILE, [(json.dumps(written, indent=2) + "\n").encode()])
    # transformers asks which framework's layout the tensors have.
    write_atomically(folder / MODEL_FILE, _safetensors(parts, {"format": "pt"}))
    return folder / MODEL_FILE


def save_tokenizer(folder: Path, recipe: Recipe) -> None:
    """Writes tokenizer.json and tokenizer_config.json, which `transformers` reads."""
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if recipe.separator:
        config["eos_token"] = recipe.separator
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / TOKENIZER_FILE, [recipe.tokenizer])
    write_atomically(folder / "tokenizer_config.json", [(json.dumps(config, indent=2) + "\n").encode()])


def not_finite(path: Path) -> list[str]:
    """Returns the names of a safetensors file's tensors that hold a NaN or an infinity."""
    import torch
    from safetensors import safe_open

    with safe_open(path, framework="pt") as stored:
        return [name for name in stored.keys() if not torch.isfinite(stored.get_tensor(name)).all()]  # noqa: SIM118


def load_config(folder: Path) -> Mapping[str, Any]:
    """Reads the `config.json` of `save_model`; raises NotFoundError if it is missing, PayloadInvalid if malformed."""
    if not (folder / CONFIG_FILE).is_file():
        raise NotFoundError(f"no {CONFIG_FILE} in {folder}", "name the folder written by `lockstep train`")
    with refusing(PayloadInvalid, f"the {CONFIG_FILE} in {folder}", "download it again"):
        config = _CONFIG(from_json(file_bytes(folder / CONFIG_FILE), MAX_FILE_BYTES), CONFIG_FILE)
        return config if config.get(OWN) is None else _CONFIG(config[OWN], OWN)


def load_model(folder: Path, own: nn.Module | None = None) -> nn.Module:
    """Loads a model of `save_model`; raises NotFoundError if a file is missing, PayloadInvalid if one does not fit.

    `own`: a module that receives the weights, for a class that config.json cannot build. Its buffers keep their values
    if the file has none.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from lockstep.training import hf
    from lockstep.training.models import build_model

    config = load_config(folder)
    foreign = own is None and hf.is_described(config)
    if not (folder / MODEL_FILE).is_file():
        if foreign and (folder / INDEX_FILE).is_file():
            return hf.load_model(folder, config).eval()
        raise NotFoundError(
            f"no {MODEL_FILE} in {folder}", "name the folder written by `lockstep train pull` or `save_pretrained`"
        )
    try:
        model = build_model(config) if own is None else own
        stored = load_file(folder / MODEL_FILE)
        if config.get("model") in FORMATS:
            stored = recovered(config, stored, list(model.state_dict()))
        missing, unexpected = model.load_state_dict(stored, strict=False)
        unexpected = [name for name in unexpected if not _filled(model, name, stored[name])]
    # torch and transformers raise these for a configuration that fits no model, and MemoryError for one too large.
    except (SafetensorError, RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError) as error:
        raise PayloadInvalid(
            f"the model in {folder} cannot be loaded: {(str(error).splitlines() or [type(error).__name__])[0]}",
            "download it again: its files are truncated or from different models",
        ) from error
    # A tied head is stored once, as the embedding.
    tied = {n for n, p in model.named_parameters(remove_duplicate=False)} - {n for n, _ in model.named_parameters()}
    held = set() if own is None else {n for n, _ in own.named_buffers()}
    if foreign and (set(missing) - tied or unexpected):
        # A hub's files may be of an earlier release, or without the name of the part that they are of.
        return hf.load_model(folder, config).eval()
    if set(missing) - tied - held or unexpected:
        raise PayloadInvalid(
            f"{MODEL_FILE} lacks {sorted(set(missing) - tied - held)} and has {sorted(unexpected)}",
            "its config.json is from another model",
        )
    return model.eval()


def _filled(model: nn.Module, name: str, values: Tensor) -> bool:
    """Fills a buffer that is in no state_dict (`persistent=False`) but which a step may write; returns False if the
    model has none of this name and shape."""
    import torch

    buffer = dict(model.named_buffers()).get(name)
    if buffer is None or buffer.shape != values.shape:
        return False
    with torch.no_grad():
        buffer.copy_(values)
    return True


def load_tokenizer(folder: Path) -> Tokenizer | None:
    """Loads the tokenizer that `save_tokenizer` wrote; None if the model reads bytes. Raises UsageError."""
    from lockstep.training.tokens import Tokenizer

    path = folder / TOKENIZER_FILE
    return Tokenizer.read(path) if path.is_file() else None


def writes(model: nn.Module, vocabulary: int) -> bool:
    """Returns True if a model predicts the next token in a vocabulary of this size; a custom model is probed."""
    from lockstep.training import hf
    from lockstep.training.models import GPT, Llama, describe, is_own
    from lockstep.training.probing import not_next_token

    if is_own(describe(model)):
        return not not_next_token(model, [0] * (_context(model) + 1), vocabulary)
    return isinstance(model, GPT | Llama) or type(model).__name__.endswith(hf.CAUSAL)


def write_text(
    model: nn.Module, tokenizer: Tokenizer | None, prompt: str, count: int, *, temperature: float = 0.7, seed: int = 0
) -> str:
    """Generates text after the prompt: `count` tokens, or bytes without a tokenizer. Raises UsageError."""
    if not writes(model, BYTES if tokenizer is None else tokenizer.vocabulary):
        raise UsageError(f"a {type(model).__name__} does not generate text", hint="omit the prompt")
    if tokenizer is None:
        start = list(prompt.encode())
        return bytes(t & 0xFF for t in continued(model, start, count, temperature, seed)).decode(errors="replace")
    (start,) = tokenizer.encode([prompt])
    if not start:
        raise UsageError("the prompt has no tokens", hint="give at least one word")
    said: str = tokenizer.encoder.decode(continued(model, start, count, temperature, seed))
    return said


def generate(model: nn.Module, prompt: bytes, count: int, *, temperature: float = 0.7, seed: int = 0) -> bytes:
    """Returns `count` bytes that a byte-level GPT generates after the prompt; `temperature` 0 takes the likeliest."""
    return bytes(continued(model, list(prompt), count, temperature, seed))


def continued(model: nn.Module, start: Sequence[int], count: int, temperature: float, seed: int) -> list[int]:
    """Returns `count` tokens that a model generates after the given ones, of which there must be at least one."""
    import torch

    from lockstep.training.losses import logits

    draws = np.random.Generator(np.random.Philox(key=seed))
    context = _context(model)
    tokens = list(start)
    with torch.no_grad():
        for _ in range(count):
            scores = logits(model(torch.tensor([tokens[-context:]])))[0, -1].double().numpy()
            if temperature <= 0:
                tokens.append(int(scores.argmax()))
                continue
            weights = np.exp((scores - scores.max()) / temperature)
            steps = np.cumsum(weights)
            tokens.append(int(np.searchsorted(steps, draws.random() * steps[-1], side="right")))
    return tokens[len(start) :]


def _context(model: nn.Module) -> int:
    """Returns a model's context length: for a trained one, the inputs of its rows; without a bound, UNBOUNDED."""
    from lockstep.training.probing import context_of

    source: Any = getattr(model, "source", None)
    trained = source.get("row_length", 1) - 1 if isinstance(source, Mapping) else 0
    return context_of(model) or trained or UNBOUNDED


def _require_bounded(parameters: Sequence[Mapping[str, Any]], held: int) -> None:
    """Raises PayloadInvalid for a spec whose parameters have far more elements than its job."""
    for p in parameters:
        if len(p["shape"]) > MAX_RANK or any(n < 0 for n in p["shape"]):
            raise PayloadInvalid(
                f"parameter {p['name']} has an invalid shape", "the spec was not written by this library"
            )
    named = sum(prod(p["shape"]) for p in parameters)
    # INVARIANT: no spec makes a file, or takes memory, out of proportion to what was fetched for it.
    if named > REPEATS * held + SLACK_ELEMENTS:
        raise PayloadInvalid(
            f"the spec has {named} elements, but the job only {held}", "its author repeats tensors: do not export it"
        )


def _numbers(parameter: Mapping[str, Any], values: NDArray[np.float32]) -> NDArray[Any]:
    """Returns the values, or complex numbers whose parts are along the last axis."""
    if not parameter.get("complex"):
        return values
    if not values.ndim or values.shape[-1] != 2:
        raise PayloadInvalid(
            f"parameter {parameter['name']} has an invalid shape", "the spec was not written by this library"
        )
    return np.ascontiguousarray(values).view(np.complex64)[..., 0]


def _part(
    parameter: Mapping[str, Any], shards: Sequence[NDArray[np.float32]], tables: Mapping[str, NDArray[np.float32]]
) -> NDArray[np.float32]:
    name, shape = parameter["name"], parameter["shape"]
    if "root" in parameter:
        # INVARIANT: a frozen parameter is a constant of the step.
        if parameter["root"] not in tables:
            raise PayloadInvalid(
                f"no constant of the step matches the frozen {name}", "its Programs are from another job"
            )
        table = tables[parameter["root"]]
        if table.size != prod(shape):
            raise PayloadInvalid(f"the frozen {name} has {table.size} elements", "its Programs are from another job")
        return table.reshape(shape)
    if "limbs" in parameter:
        return _of_codes(name, shape, parameter["limbs"], tables)
    shard, end = parameter.get("shard", 0), parameter["offset"] + prod(shape)
    # INVARIANT: every parameter lies inside the flat tensor.
    if not 0 <= shard < len(shards):
        raise PayloadInvalid(f"parameter {name} lies in shard {shard} of {len(shards)}", "its spec is from another job")
    flat = shards[shard]
    if not 0 <= parameter["offset"] <= end <= flat.size:
        raise PayloadInvalid(
            f"parameter {name} ends at element {end}, but the checkpoint has {flat.size}",
            "the checkpoint is from another model",
        )
    return np.ascontiguousarray(flat[parameter["offset"] : end].reshape(shape))


def _of_codes(
    name: str, shape: Sequence[int], limbs: Sequence[Sequence[str]], tables: Mapping[str, NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Returns the values of a frozen weight that the step stores only as codes."""
    found = [[tables.get(root) for root in pair] for pair in limbs]
    rows, terms = (prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (0, 0)
    width = width_of(terms)
    groups = groups_of(terms, width)
    due = [rows * groups * width, rows * groups]
    # INVARIANT: a frozen parameter is a constant of the step; what it takes is known before it is taken.
    if not rows * terms or any([t is not None and t.size for t in pair] != due for pair in found) or not found:
        raise PayloadInvalid(f"no constants of the step match the frozen {name}", "its Programs are from another job")
    total = np.zeros((rows, terms), np.float32)
    for pair in found:
        words, factors = (np.asarray(t).reshape(rows, -1) for t in pair)
        total += restored(words.view(np.int32), factors, terms)
    return total.reshape(shape)


def _safetensors(parts: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """Yields a .safetensors file in pieces: the library would need two more copies of every tensor.

    These are the header's length, a JSON header of {dtype, shape, data_offsets}, and the tensors in order of names
    (huggingface.co/docs/safetensors, "Format").
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name in sorted(parts):
        end = at + parts[name].nbytes
        header[name] = {
            "dtype": "C64" if np.iscomplexobj(parts[name]) else "F32",
            "shape": list(parts[name].shape),
            "data_offsets": [at, end],
        }
        at = end
    line = json.dumps(header, separators=(",", ":")).encode()
    line += b" " * (-len(line) % 8)
    yield len(line).to_bytes(8, "little") + line
    for name in sorted(parts):
        form = "<c8" if np.iscomplexobj(parts[name]) else "<f4"
        yield np.ascontiguousarray(parts[name], form).reshape(-1).view(np.uint8).data
