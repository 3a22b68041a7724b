"""Job descriptions: the file that `lockstep train` reads.

title = "a GPT"      the job's human-readable name, for pages and lists
texts = "texts"      rounds = 6   slots = 3   min_slots = 2   seed = 0   terms = "devnet"   aggregator = ""
[model]              kind = "gpt" ("llama", "encoder"), and fields of its configuration
model = "net.py:make"  in place of the table and of [batch]: a function that makes a custom model (`brought.py`);
                     texts are not needed if it returns rows
[adapters]           base = "model", rank, alpha, targets: LoRA on an exported model, or on a folder of transformers,
                     in place of [model]
field = "text"       the field of each *.jsonl line that holds the document
stride = 1           tokens between the starts of consecutive rows; default: a row's length, so that rows are disjoint
bytes = false        true: files of any bytes, which need not be UTF-8
[data]               path = "houses.csv", columns, type, stride, length, held_out: rows of numbers, in place of texts,
                     for a model = "net.py:make"
[tokens]             tokenizer = "tokenizer.json", separator, unknown, control: tokens of a Hugging Face tokenizer, not
                     bytes
[batch]              rows, accumulation; row_length, where the base is of transformers
[strategy]           name = "diloco" and its fields;  [strategy.inner] name = "adamw" and its fields: so are [.outer],
                     [.codec], [.codec.then], [.aggregate] of the strategies that have them, and an optimizer's
                     [.schedule];  [strategy.inner.groups."*.bias"] weight_decay = 0.0, by patterns of names
[arithmetic]         products = "int8" ("float32");  [arithmetic.modules] "layers.*.mlp.down_proj" = "int8x2"
start = "model"      a folder written by `lockstep train pull`, whose weights replace the seed's initial ones
[evaluation]         model, code, batches, documents: an exported model's loss, in place of all but [batch]
ema = 0.99           the decay, at each merge, of the average of the weights that `train pull --ema` fetches
price = "0.5"        tokens for 10^15 operations of training, instead of the terms' price of a slot
gas_price = "5 wei"  tokens per unit of a defender's gas; stakes increase with it
[terms]              preset = "devnet", and fields of `Terms` that override it: max_fail = 3, bond = "6 LST"

Amounts are in the token of the market that this process connected to (`base.amounts`); presets are scaled to it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import numpy as np
from torch import nn

from lockstep.base.amounts import amount_of, market_currency
from lockstep.base.naming import address_of, nearest, refuse_unknown
from lockstep.execution.jobs import TrainingJob, checked_title
from lockstep.execution.rates import slot_operations, slot_price_at
from lockstep.presets import PRESETS, Terms
from lockstep.protocol.errors import UsageError
from lockstep.protocol.jobs import ZERO_ADDRESS
from lockstep.protocol.programs.rules import MAX_OPS
from lockstep.protocol.types import Wei
from lockstep.storage.dataset import Dataset, Recipe
from lockstep.tracing.arithmetic import Arithmetic
from lockstep.training import hf
from lockstep.training.aggregates.registry import AGGREGATES
from lockstep.training.averages import checked_decay
from lockstep.training.baseline import flat_parameters
from lockstep.training.brought import Brought, bring
from lockstep.training.codecs.registry import CODECS
from lockstep.training.data import (
    BYTE_VOCABULARY,
    EXCERPT_BYTES,
    HELD_OUT_FRACTION,
    SEPARATOR,
    Document,
    Texts,
    byte_dataset,
    read_documents,
    split_documents,
    tokens_of_bytes,
    windows_of_tokens,
)
from lockstep.training.evaluation import evaluation_job
from lockstep.training.export import TOKENIZER_FILE, load_model
from lockstep.training.job import Batch, training_job
from lockstep.training.losses import Loss, RandomLoss
from lockstep.training.models import MODELS, EncoderConfig, LoRA, LoRAConfig, describe, is_own
from lockstep.training.models.lora import adapt
from lockstep.training.optimizers.groups import Groups, tables_of
from lockstep.training.optimizers.schedules import SCHEDULES, RateShape
from lockstep.training.optimizers.several import Members, PacedPart
from lockstep.training.parameters import without_weights
from lockstep.training.sides import Data
from lockstep.training.strategies.base import Strategy
from lockstep.training.strategies.registry import OPTIMIZERS, STRATEGIES
from lockstep.training.templates import literal
from lockstep.training.texts import FIELD
from lockstep.training.tokens import ALL, HELD_OUT, TRAIN, Tokenizer, checked_control, documents_of, token_dataset

T = TypeVar("T")

KEYS = {
    "texts", "seed", "rounds", "slots", "min_slots", "terms", "aggregator", "model", "adapters", "batch", "strategy",
    "evaluation", "tokens", "start", "price", "gas_price", "arithmetic", "field", "bytes",
    "stride", "data", "ema", "title",
}  # fmt: skip
OF_PARTS = {"texts", "data", "model", "adapters", "evaluation"}
"""Keys of the model and of the rows that it is trained on."""
REGISTRIES: tuple[Mapping[str, type[Any]], ...] = (OPTIMIZERS, CODECS, AGGREGATES, SCHEDULES)
"""The kinds of a strategy's pieces, by name."""
OF_THE_OPTIMIZER = {"warmup", "final_fraction", "learning_rate"}
"""Fields that are written next to a schedule, not in it."""
MAX_CONTEXT = 1 << 20
"""The context limit of a model of `transformers` that declares none."""
MAX_REPEATS = 1024
"""The most layers of a model and passes of a step: each has at least ten ops."""
LARGEST = float(np.finfo(np.float32).max)
"""The largest number of binary32."""
TERMS = "devnet"
"""The default preset."""
MIN_PARTS = 4
"""By default a job requires 1/MIN_PARTS of its slots: the fewer it requires, the more seats fail a round."""
TEXT_MODELS = ("gpt", "llama", "encoder")
"""Models of the registry that learn from text."""


@dataclass(frozen=True)
class Tokens:
    """`[tokens]`: the tokenizer of the texts; without one their tokens are bytes."""

    tokenizer: str = ""
    """A Hugging Face tokenizer.json; "": bytes."""
    separator: str = ""
    """The token after each document; "": an empty line."""
    unknown: bool = False
    """True: accept characters that the tokenizer does not know."""
    control: str = ""
    """"token": a control token spelled in a text becomes that token, e.g. for chat turns; "text": its characters; "":
    it is refused."""


@dataclass(frozen=True)
class Evaluation:
    """`[evaluation]`: the model to evaluate, and the side of the texts."""

    model: str = ""
    """A folder that `save_model` wrote."""
    code: str = ""
    """FILE.py:FUNCTION that makes the model, for a custom class; its batch and loss apply, and its rows if it returns
    any."""
    batches: int = 32
    """Batches of each slot in a round."""
    documents: str = HELD_OUT
    """"held out": the documents that a training job on the same texts does not see; or "all"."""

    def __post_init__(self) -> None:
        if self.documents not in (HELD_OUT, ALL):
            raise UsageError(f"documents is {self.documents!r}", f'"{HELD_OUT}" or "{ALL}"')


@dataclass(frozen=True)
class ModelAndRows:
    """The model of a job, its loss, and the rows that it is trained on."""

    model: nn.Module
    loss: Loss | RandomLoss | None
    """None: the model's own."""
    batch: Batch
    rows: Dataset


def job_of(described: Mapping[str, Any], folder: Path, *, weights: bool = True) -> TrainingJob:
    """Returns the job of a description; paths are relative to `folder`. Raises UsageError with the invalid key.

    Without `weights` a model's initial weights are not made: the job can be quoted, whatever its size.
    """
    refuse_wrong(described)
    if "evaluation" in described:
        return _at_terms(described, lambda: _evaluation(described, folder))
    return _at_terms(described, lambda: _training(described, folder, weights))


def job_with(described: Mapping[str, Any], parts: Callable[[], ModelAndRows], *, weights: bool = True) -> TrainingJob:
    """Returns the job of a program's own model and rows, with the other keys of a description; `parts` is called after
    these are checked."""
    refuse_unknown(described, KEYS - OF_PARTS, "the job")
    _refuse_values(described)
    return _at_terms(described, lambda: _trained(described, Path(), parts(), weights))


def _at_terms(described: Mapping[str, Any], made: Callable[[], TrainingJob]) -> TrainingJob:
    price, (_, changes) = _price(described), _terms(described)
    if price is not None and "slot_price" in changes:
        raise UsageError("both price and terms.slot_price are set", "a slot has one price: write one of them")
    job = made()
    job = job if price is None else at_price(job, price)
    # INVARIANT: what a description says stands, whatever is computed for the rest.
    return replace(job, terms=replace(job.terms, **changes), title=described.get("title", ""))


def refuse_wrong(described: Mapping[str, Any]) -> None:
    """Raises UsageError for errors in the description itself: reads no file, and traces nothing."""
    refuse_unknown(described, KEYS, "the description")
    if "data" in described and ("texts" in described or not _may_bring_rows(described)):
        raise UsageError(
            "texts and [data] are both set" if "texts" in described else "[data] needs a custom model",
            'rows of numbers need model = "FILE.py:FUNCTION", whose loss takes them, and no texts',
        )
    if not isinstance(described.get("texts", "" if _may_bring_rows(described) else None), str):
        raise UsageError("the description names no texts", 'write texts = "a folder of *.txt, *.md or *.jsonl"')
    if _is_brought(described) and ".py:" not in described["model"]:
        raise UsageError(f"model is {described['model']!r}", 'write a table [model], or model = "FILE.py:FUNCTION"')
    if not isinstance(described.get("start", ""), str):
        raise UsageError(
            f"start is {described['start']!r}", 'write start = "a folder written by `lockstep train pull`"'
        )
    _refuse_values(described)


def _refuse_values(described: Mapping[str, Any]) -> None:
    _refuse_wide(described, "")
    _ema(described)
    checked_title(described.get("title", ""))
    strategy_of(_table(described, "strategy"))


def _ema(described: Mapping[str, Any]) -> float:
    ema = described.get("ema", 0.0)
    _require_kind(0.0, ema, "ema")
    return checked_decay(float(ema))


def _refuse_wide(value: Any, where: str) -> None:
    """Raises UsageError for an integer beyond TOML's 64 bits, at any depth."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            _refuse_wide(each, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        for each in value:
            _refuse_wide(each, where)
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise UsageError(f"{where} is an integer of {value.bit_length()} bits", "an integer of TOML has at most 64")


def at_price(job: TrainingJob, price: Wei) -> TrainingJob:
    """Returns the job with slots paid per computed work: `price` for `PRICED_OPERATIONS`, a worker's `--min-price`."""
    paid = slot_price_at(price, slot_operations(job.programs, job.inner_steps))
    return replace(job, terms=job.terms.priced(paid, job.slots, job.inner_steps, job.min_slots))


def _price(described: Mapping[str, Any]) -> Wei | None:
    """Returns the price of a description in wei; None: the terms' own price."""
    if "price" not in described:
        return None
    if not isinstance(described["price"], (str, int, float)) or isinstance(described["price"], bool):
        raise UsageError(f"price is {described['price']!r}", 'give tokens for 10^15 operations, e.g. "0.5"')
    return amount_of(described["price"], "price")


def _terms(described: Mapping[str, Any]) -> tuple[Terms, dict[str, Any]]:
    """Returns the terms of a description: a preset at the description's gas price, and the fields that override it."""
    given = described.get("terms", TERMS)
    table = {"preset": given} if isinstance(given, str) else dict(_table(described, "terms"))
    name = table.pop("preset", TERMS)
    if not isinstance(name, str) or name not in PRESETS:
        raise UsageError(f"terms preset {name!r} is unknown", f"use one of {', '.join(PRESETS)}")
    kinds = get_type_hints(Terms)
    refuse_unknown(table, ["preset", *kinds], "[terms]")
    changes = {key: _term(kinds[key], value, f"terms.{key}") for key, value in table.items()}
    gas_price = changes.pop("gas_price", None)
    if "gas_price" in described:
        if gas_price is not None:
            raise UsageError("gas_price and terms.gas_price are both set", "remove one of them")
        gas_price = _term(kinds["gas_price"], described["gas_price"], "gas_price")
    currency = market_currency()
    if gas_price is not None and gas_price > currency.unit:
        raise UsageError(f"gas_price is {gas_price} wei, more than a token per unit of gas", "see `train quote`")
    preset = PRESETS[name].in_decimals(currency.decimals)
    return preset if gas_price is None else preset.at_gas_price(gas_price), changes


def _term(kind: Any, value: Any, name: str) -> Any:
    """Returns a field of `Terms` as its type: an amount of tokens, seconds, or a number."""
    if kind is not Wei:
        return _whole(value, name)
    # A bare number is refused: tokens and wei of them differ by far.
    if not isinstance(value, str) or not value.strip(" .0123456789"):
        symbol = market_currency().symbol
        raise UsageError(f"{name} is {value!r}, without a unit", f'{name} = "600000000000 wei", or "1.5 {symbol}"')
    return amount_of(value, name, least=0)


def _is_brought(described: Mapping[str, Any]) -> bool:
    """Returns True if a function of a file makes the model."""
    return isinstance(described.get("model"), str)


def _may_bring_rows(described: Mapping[str, Any]) -> bool:
    """Returns True if a function of a file may also return the rows."""
    return _is_brought(described) or "code" in _table(described, "evaluation")


def _training(described: Mapping[str, Any], folder: Path, weights: bool) -> TrainingJob:
    seed = _integer(described, "seed", 0)
    brought = bring(described["model"], folder, seed=seed) if _is_brought(described) else None
    if brought is not None:
        rows = rows_of_brought(described, folder, brought)
        job = _trained(described, folder, ModelAndRows(brought.model, brought.loss, brought.batch, rows), weights)
        return replace(job, model=brought.describe())
    model = _model(described, folder, weights)
    texts = text_of(described, folder)
    batch = batch_of(described, model, texts.vocabulary)
    return _trained(described, folder, ModelAndRows(model, None, batch, texts.rows(TRAIN, batch.row_length)), weights)


def _trained(described: Mapping[str, Any], folder: Path, parts: ModelAndRows, weights: bool) -> TrainingJob:
    model = parts.model
    spec = strategy_of(_table(described, "strategy"))
    offered = _offer(described, rounds=6, steps=spec.inner_steps, carries=spec.carry)
    earlier = _start(described, folder, model) if weights else None
    first = None if earlier is None else flat_parameters(earlier)
    arithmetic = Arithmetic.of(_table(described, "arithmetic"))
    return training_job(
        model, spec, parts.rows, batch=parts.batch, loss=parts.loss, seed=_integer(described, "seed", 0), first=first,
        earlier=earlier, weights=weights, arithmetic=arithmetic, ema=_ema(described), **offered,
    )  # fmt: skip


def rows_of_brought(described: Mapping[str, Any], folder: Path, brought: Brought, side: str = TRAIN) -> Dataset:
    """Returns the rows that a custom model's function returned, or those of one side of the description's texts."""
    beside = sorted({"batch", "adapters"} & set(described))
    if beside:
        raise UsageError(
            f"[{beside[0]}] and {brought.target} are both set", "remove the table: the function returns the batch"
        )
    named = sorted({"texts", "data"} & set(described))
    if brought.dataset is not None and named:
        raise UsageError(f"{named[0]} and the rows of {brought.target} are both set", "remove one of them")
    if brought.dataset is not None:
        return brought.dataset
    if not named:
        raise UsageError(
            f"{brought.target} returns no rows and the description names no texts",
            'return rows as a fourth value, give texts = "a folder of *.txt", or data.path = "a *.csv"',
        )
    if "data" in described:
        given = _value(Data, _table(described, "data"), "data")
        _path(folder, given.path, "data.path")
        return given.dataset(folder, brought.batch, side)
    return text_of(described, folder).rows(side, brought.batch.row_length)


def strategy_of(given: Mapping[str, Any]) -> Strategy:
    """Returns the strategy of a table `[strategy]`: `name`, and fields that override its defaults.

    A field that is an optimizer, a codec or an aggregate is a table, too, with a `name` from its registry.
    """
    table = dict(given)
    return _value(_named(STRATEGIES, table, "strategy"), table, "strategy", "name")


def _start(described: Mapping[str, Any], folder: Path, model: nn.Module) -> nn.Module | None:
    """Returns the model from which training continues; None if the seed makes the initial weights."""
    if "start" not in described:
        return None
    path = _path(folder, described["start"], "start")
    earlier = load_model(path, copy.deepcopy(model) if is_own(describe(model)) else None)
    names = [{n: tuple(p.shape) for n, p in m.named_parameters()} for m in (model, earlier)]
    # INVARIANT: training goes on from a model of the same parameters, by name and shape.
    if names[0] != names[1]:
        raise UsageError(
            f"the parameters of the model in {path} differ from the description's",
            "see its config.json",
        )
    return earlier


def _evaluation(described: Mapping[str, Any], folder: Path) -> TrainingJob:
    beside = sorted({"model", "adapters", "strategy", "seed", "start", "arithmetic", "ema"} & set(described))
    given = _value(Evaluation, _table(described, "evaluation"), "evaluation")
    if beside or not given.model:
        raise UsageError(
            f"[evaluation] cannot be combined with {', '.join(beside)}" if beside else "[evaluation] names no model",
            'under [evaluation] write model = "the folder of an exported model"; remove the keys of training',
        )
    path, brought = _path(folder, given.model, "evaluation.model"), None
    if given.code:
        brought = bring(given.code, folder)
        model, batch, rows = (
            brought.of(path),
            brought.batch,
            rows_of_brought(described, folder, brought, given.documents),
        )
    else:
        model, texts = load_model(path), text_of(described, folder)
        batch = batch_of(described, model, texts.vocabulary)
        rows = texts.rows(given.documents, batch.row_length)
    offered = _offer(described, rounds=1, steps=given.batches)
    job = evaluation_job(
        model, rows, parameters=flat_parameters(model), batch=batch, batches=given.batches,
        loss=None if brought is None else brought.loss, **offered,
    )  # fmt: skip
    return job if brought is None else replace(job, model=brought.describe())


def _offer(described: Mapping[str, Any], *, rounds: int, steps: int, carries: bool = False) -> dict[str, Any]:
    """Returns rounds, slots and terms of a job with `steps` steps per round; `rounds` is the default."""
    slots, (preset, _) = _integer(described, "slots", 3), _terms(described)
    aggregator = described.get("aggregator", "")
    if aggregator == "":
        aggregator = ZERO_ADDRESS
    min_slots = _integer(described, "min_slots", max(1, -(-slots // MIN_PARTS)))
    return {
        "rounds": _integer(described, "rounds", rounds),
        "slots": slots,
        "min_slots": min_slots,
        "aggregator": address_of(str(aggregator), "aggregator", hint='"" is none'),
        "terms": preset.audited(slots, steps, carries, min_slots),
    }


def batch_of(described: Mapping[str, Any], model: nn.Module, vocabulary: int) -> Batch:
    """Returns `[batch]` with the model's row length; raises UsageError if its vocabulary lacks a token of the texts."""
    text, table = _text_model(model), dict(_table(described, "batch"))
    if "row_length" in table and text.longest is None:
        raise UsageError("batch.row_length is determined by the model", "set context in [model] instead")
    batch = _value(Batch, {"row_length": text.row_length, **table}, "batch")
    if text.longest is not None and batch.row_length > text.longest:
        raise UsageError(f"batch.row_length is {batch.row_length}", f"the model reads at most {text.longest}")
    _refuse_many(batch.accumulation, "batch.accumulation")
    # INVARIANT: every token of the data names a row of the embedding, and none is an encoder's mask.
    due = vocabulary + text.masked
    if text.vocabulary < due:
        raise UsageError(
            f"model.vocabulary is {text.vocabulary}, but the texts need {vocabulary}",
            f"use at least {due}",
        )
    return batch


def own_batch_of(described: Mapping[str, Any], row_length: int) -> Batch:
    """Returns `[batch]` for a custom module; its rows have `row_length` tokens unless the table sets it."""
    return _changed(Batch(row_length=row_length), _table(described, "batch"), "batch")


def _model(described: Mapping[str, Any], folder: Path, weights: bool) -> nn.Module:
    unallocated = nullcontext() if weights else without_weights()
    if "adapters" in described:
        given = dict(_table(described, "adapters"))
        refuse_unknown(given, ["base", *(f.name for f in fields(LoRAConfig))], "[adapters]")
        if "model" in described or not isinstance(given.get("base"), str):
            raise UsageError(
                "[adapters] needs a base and excludes [model]", 'write base = "the folder of an exported model"'
            )
        path = _path(folder, given.pop("base"), "adapters.base")
        checked = _value(LoRAConfig, given, "adapters")
        # A frozen weight is a constant of the Programs, whose price depends on it: it is read for a quote, too.
        base = load_model(path)
        if (path / TOKENIZER_FILE).is_file() and "tokens" not in described:
            warnings.warn(
                f"{path} has a tokenizer, but the texts are read as bytes: to use it, write under [tokens] "
                f'tokenizer = "{path / TOKENIZER_FILE}"',
                stacklevel=2,
            )
        with unallocated:
            return adapt(base, rank=checked.rank, alpha=checked.alpha, targets=checked.targets)
    given = dict(_table(described, "model"))
    kind = given.pop("kind", TEXT_MODELS[0])
    if kind not in TEXT_MODELS:
        raise UsageError(f"model.kind is {kind!r}", f"one of {', '.join(TEXT_MODELS)}")
    row = MODELS[kind]
    config = _value(row.config, given, "model", "kind")
    _refuse_many(config.layers, "model.layers")
    try:
        with unallocated:
            model: nn.Module = row.model(config)
    except RuntimeError as error:
        # torch cannot count the elements of such a parameter.
        raise UsageError(f"[model]: the parameters of {config} cannot be made", "make it smaller") from error
    return model


def _refuse_many(count: int, name: str) -> None:
    """Raises UsageError for more repetitions than fit into a Program, before they are traced one by one."""
    if count > MAX_REPEATS:
        raise UsageError(f"{name} is {count}", f"use at most {MAX_REPEATS}: a Program has at most {MAX_OPS} ops")


@dataclass(frozen=True)
class _TextModel:
    """The bounds on the rows of a model that reads text."""

    row_length: int
    vocabulary: int
    masked: bool
    """True: the last token of the vocabulary is the mask."""
    longest: int | None = None
    """The longest row that a description may request; None: the row length is fixed."""


def _text_model(model: nn.Module) -> _TextModel:
    """Returns the bounds of a text model, or of an adapted one's base; raises UsageError for other models."""
    base = model.base if isinstance(model, LoRA) else model
    config: Any = base.config
    if hf.is_transformers(base) and isinstance(getattr(config, "vocab_size", None), int):
        longest = hf.row_length_of(base, MAX_CONTEXT)
        return _TextModel(hf.row_length_of(base), config.vocab_size, hf.is_masked(base), longest)
    if not hasattr(config, "row_length") or not hasattr(config, "vocabulary"):
        raise UsageError(
            f"{type(config).__name__} is not the configuration of a text model",
            f"use one of {', '.join(TEXT_MODELS)}, or a language model of transformers",
        )
    return _TextModel(config.row_length, config.vocabulary, isinstance(config, EncoderConfig))


@dataclass(frozen=True)
class JobText:
    """The job's texts, as bytes or as tokens."""

    path: Path
    recipe: Recipe | None
    vocabulary: int
    field: str = FIELD
    checked: bool = True
    """Bytes must be UTF-8 without NULs."""
    stride: int = 0
    """Tokens between the starts of consecutive rows; 0: a row's length."""

    def rows(self, side: str, row_tokens: int) -> Dataset:
        """The dataset of one side of the split."""
        if self.recipe is not None:
            sources = documents_of(self.path, side, self.field)
            recipe = replace(self.recipe, side=side)
            return token_dataset(sources, recipe, row_tokens=row_tokens, stride=self.stride)
        documents = read_documents(self.path, self.field, checked=self.checked)
        if side == ALL:
            text = b"".join(d.text + SEPARATOR for d in documents)
        else:
            split = _texts(documents, self.path)
            text = split.train if side == TRAIN else split.held_out
        if self.stride in (0, row_tokens):
            return byte_dataset(text, row_tokens=row_tokens)
        return windows_of_tokens(tokens_of_bytes(text), BYTE_VOCABULARY, row_tokens, self.stride)


def text_of(described: Mapping[str, Any], folder: Path) -> JobText:
    """Returns the texts of a description; raises UsageError for invalid keys."""
    path = _path(folder, described["texts"], "texts")
    given = _value(Tokens, _table(described, "tokens"), "tokens")
    named, any_bytes = described.get("field", FIELD), described.get("bytes", False)
    stride = _integer(described, "stride", 0)
    if not isinstance(named, str) or not named:
        raise UsageError(
            f"field is {named!r}", f'it names the field of each *.jsonl line that holds the document, e.g. "{FIELD}"'
        )
    if not isinstance(any_bytes, bool) or (any_bytes and "tokens" in described):
        raise UsageError(
            "bytes = true and [tokens] are both set" if any_bytes is True else f"bytes is {any_bytes!r}",
            "true reads files of any bytes, without a tokenizer",
        )
    if not given.tokenizer:
        if "tokens" in described:
            raise UsageError(
                "[tokens] names no tokenizer",
                'write tokenizer = "a tokenizer.json", or omit [tokens] to train on bytes',
            )
        return JobText(path, None, BYTE_VOCABULARY, named, not any_bytes, stride)
    tokenizer = Tokenizer.read(_path(folder, given.tokenizer, "tokens.tokenizer"))
    tokenizer.separator(given.separator)
    checked_control(given.control, "tokens.control")
    recipe = Recipe(tokenizer.data, given.separator, unknown=given.unknown, control=given.control)
    return JobText(path, recipe, tokenizer.vocabulary, named, stride=stride)


def _path(folder: Path, written: str, where: str) -> Path:
    """Returns the path that a key names, which need not exist; raises UsageError if the system rejects it."""
    path = folder / written
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{where} is {written[:40]!r}: {why}", "write the path of a file or folder") from error
    return path


def _texts(documents: Sequence[Document], folder: Path) -> Texts:
    if len(documents) < 2:
        raise UsageError(f"{len(documents)} document in {folder}", "give at least two: one is held out")
    # The order in which `split_documents` deals them, so that both sides come out whole.
    dealt = sorted(documents, key=lambda document: sha256(document.name.encode()).digest())
    held = max(1, len(dealt) // HELD_OUT_FRACTION)
    sizes = [len(d.text + SEPARATOR) for d in dealt]
    held_out = sum(min(n, EXCERPT_BYTES) for n in sizes[:held])
    return split_documents(documents, train_bytes=sum(sizes[held:]), held_out_bytes=held_out)


def _named(kinds: Mapping[str, type[T]], table: dict[str, Any], where: str) -> type[T]:
    """Removes `name` from the table and returns the kind that it names; the first kind if there is no `name`."""
    name = table.pop("name", next(iter(kinds)))
    if not isinstance(name, str) or name not in kinds:
        raise UsageError(f"{where}.name is {name!r}", nearest(str(name), kinds))
    return kinds[name]


def _value(kind: type[T], given: Any, where: str, *beside: str) -> T:
    """Builds a value of `kind` from its table; `beside` has keys that were taken out of the table before."""
    return _changed(kind(), given, where, *beside)


def _changed(default: T, given: Any, where: str, *beside: str) -> T:
    """Returns the value with its fields replaced by a table's."""
    if not isinstance(given, Mapping):
        raise _no_table(where, given)
    if isinstance(default, RateShape) and (beside_it := sorted(OF_THE_OPTIMIZER & set(given))):
        raise UsageError(
            f"[{where}]: {beside_it[0]} belongs to the optimizer",
            f"write it in [{where.rpartition('.')[0]}], next to its name",
        )
    refuse_unknown(given, [*beside, *(f.name for f in fields(default))], f"[{where}]")  # type: ignore[arg-type]
    found: dict[str, Any] = {}
    for name, value in given.items():
        own = getattr(default, name)
        if isinstance(own, Groups):
            found[name] = Groups.of(value, f"{where}.{name}")
            continue
        if isinstance(own, Members):
            found[name] = _members(value, f"{where}.{name}")
            continue
        registry = next((r for r in REGISTRIES if type(own) in r.values()), None)
        if registry is not None:
            found[name] = _piece(registry, own, value, f"{where}.{name}")
            continue
        _require_kind(own, value, f"{where}.{name}")
        found[name] = value
    try:
        return replace(default, **found)  # type: ignore[type-var]
    except UsageError as error:
        raise UsageError(f"[{where}]: {error.message}", error.hint) from error


def _require_kind(own: Any, value: Any, name: str) -> None:
    """Raises UsageError unless the value is valid for a field."""
    due = type(own)
    # To Python a bool is an int.
    fits = type(value) is bool if due is bool else isinstance(value, due) and not isinstance(value, bool)
    if not fits and not (due is float and type(value) is int):
        raise UsageError(f"{name} is {value!r}", f"it must be of type {due.__name__}, e.g. {literal(own)}")
    if due is list and not all(isinstance(each, str) for each in value):
        raise UsageError(f"{name} is {value!r}", "it must be a list of strings")
    # INVARIANT: a number is one of binary32, in which every Program computes.
    if due is float and not abs(value) <= LARGEST:
        raise UsageError(f"{name} is {value!r}", f"it must be a binary32 number of magnitude at most {LARGEST:.3g}")


def _piece(registry: Mapping[str, type[Any]], default: Any, given: Any, where: str) -> Any:
    """Returns a registry's value from its table: the default with changed fields, or the kind that the table names."""
    if not isinstance(given, Mapping):
        raise _no_table(where, given)
    table = dict(given)
    kind = _named(registry, table, where) if "name" in table else type(default)
    return _changed(default if kind is type(default) else kind(), table, where, "name")


def _members(given: Any, where: str) -> Members:
    """Returns optimizers by name patterns, each from a table with a name, `every` and the optimizer's own fields."""
    rows = []
    for pattern, table, place in tables_of(given, where):
        kind, every = _named(OPTIMIZERS, table, place), table.pop("every", 1)
        _require_kind(1, every, f"{place}.every")
        try:
            rows.append((pattern, PacedPart(_changed(kind(), table, place, "name", "every"), every)))
        except UsageError as error:
            if error.message.startswith("every is"):
                raise UsageError(f"[{place}]: {error.message}", error.hint) from error
            raise
    return Members(tuple(rows))


def _table(described: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = described.get(key, {})
    if not isinstance(value, Mapping):
        raise _no_table(key, value)
    return value


def _no_table(where: str, given: Any) -> UsageError:
    """Returns the error for a value that is not a table; a string may have been meant as the table's name."""
    named = f' and below it name = "{given}"' if isinstance(given, str) and where.startswith("strategy") else ""
    return UsageError(f"{where} is {given!r}", f"write a table: [{where}]{named}")


def _integer(described: Mapping[str, Any], key: str, default: int) -> int:
    return _whole(described.get(key, default), key)


def _whole(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{name} is {value!r}", "it must be an integer of at least 0")
    return value
