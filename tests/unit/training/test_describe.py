"""Jobs described in a file."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from torch import Tensor

from lockstep.base.amounts import Currency
from lockstep.execution.rates import PRICED_OPERATIONS, slot_operations
from lockstep.numerics.validate import validate
from lockstep.presets import DEVNET, PRESETS, TOKEN, Terms
from lockstep.protocol.errors import LockstepError, UsageError
from lockstep.protocol.market.prices import stake_floor
from lockstep.protocol.types import Wei
from lockstep.tracing.arithmetic import Arithmetic
from lockstep.training.checking import check
from lockstep.training.describe import KEYS, TEXT_MODELS, Evaluation, Tokens, job_of
from lockstep.training.export import save_model
from lockstep.training.job import Batch
from lockstep.training.metrics import rows_of
from lockstep.training.models import GPT, MODELS, GPTConfig, LoRAConfig, describe
from lockstep.training.parameters import Layout, initial_parameters, layout_of
from lockstep.training.rehearsal import Rehearsal
from lockstep.training.strategies.base import Shards, Transformation
from lockstep.training.strategies.registry import OPTIMIZERS, STRATEGIES

pytestmark = pytest.mark.usefixtures("traced_once")
MODEL = {"layers": 1, "heads": 2, "width": 32, "context": 16}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = tmp_path / "texts"
    texts.mkdir()
    for i in range(30):
        (texts / f"{i}.txt").write_text(f"document {i}: " + "words upon words, " * (10 + i))
    return tmp_path


def described(**changes: Any) -> dict[str, Any]:
    return {"texts": "texts", "rounds": 2, "slots": 2, "min_slots": 1, "model": MODEL, "batch": {"rows": 2}, **changes}


def test_description_becomes_a_job(folder: Path) -> None:
    strategy = {"inner_steps": 4, "payload": "int8-block", "inner": {"learning_rate": 0.01}}
    job = job_of(described(strategy=strategy, seed=3), folder)
    for program in (job.programs.step, job.programs.encode, job.programs.merge):
        validate(program)
    assert (job.rounds, job.slots, job.min_slots, job.inner_steps) == (2, 2, 1, 4)
    assert job.dataset.row_tokens == MODEL["context"] + 1
    assert job.model == {"model": "gpt", "vocabulary": 256, "tied": True, "gelu": "tanh", "bias": False, **MODEL}
    assert job.strategy["inner"]["learning_rate"] == 0.01


@pytest.mark.slow
def test_a_carry_is_a_word_of_the_strategy_and_makes_both_trees_deep_enough(folder: Path) -> None:
    job = job_of(described(strategy={"inner_steps": 4, "carry": True}), folder)
    assert (job.carry, job.shared_depth, job.payload_depth) == (True, 2, 2)
    assert job.strategy["carry"] is True
    plain = job_of(described(strategy={"inner_steps": 4}), folder)
    assert (plain.carry, plain.shared_depth, plain.payload_depth) == (False, 1, 0)
    with pytest.raises(UsageError, match="carry"):
        job_of(described(strategy={"carry": "published"}), folder)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "row"), [("llama", 17), ("encoder", 16)])
def test_other_models_of_text_are_described_by_their_kind(folder: Path, kind: str, row: int) -> None:
    job = job_of(described(model={**MODEL, "kind": kind}), folder)
    assert job.model["model"] == kind
    assert job.dataset.row_tokens == row


def test_adapters_are_described_by_the_folder_of_their_base(folder: Path) -> None:
    base = GPT(GPTConfig(**MODEL))
    flat = initial_parameters(base, 0)
    save_model(folder / "base", flat, layout_of(base).describe(), describe(base))
    given = described(adapters={"base": "base", "rank": 2, "targets": ["up"]})
    del given["model"]
    job = job_of(given, folder)
    assert job.model == {"model": "lora", "base": describe(base), "rank": 2, "alpha": 16.0, "targets": ["up"]}
    assert job.genesis.shared[0].size == 512, "2 x 32 and 128 x 2, in whole leaves"
    quoted = job_of(given, folder, weights=False)
    assert quoted.programs.step.root == job.programs.step.root, "the base's weights are constants of a quote, too"


def evaluated(folder: Path, **changes: Any) -> dict[str, Any]:
    """The description of an evaluation of a model in `folder`."""
    model = GPT(GPTConfig(**MODEL))
    save_model(folder / "pulled", initial_parameters(model, 3), layout_of(model).describe(), describe(model))
    return {"texts": "texts", "evaluation": {"model": "pulled", "batches": 5, **changes}}


def test_an_evaluation_is_described_by_the_folder_of_its_model(folder: Path) -> None:
    job = job_of(evaluated(folder) | {"batch": {"rows": 2}}, folder)
    assert (job.rounds, job.slots, job.min_slots, job.inner_steps) == (1, 3, 1, 5)
    assert job.strategy == {"name": "evaluation", "next_token": True}
    assert rows_of(job.programs.step) == 2
    flat = initial_parameters(GPT(GPTConfig(**MODEL)), 3)
    assert job.genesis.shared[0].tobytes() == flat.tobytes(), "what was exported, bit for bit"
    assert job.model["width"] == MODEL["width"]


def test_an_evaluation_reads_what_training_on_the_same_texts_does_not(folder: Path) -> None:
    trained = job_of(described(), folder).dataset.rows
    held_out = job_of(evaluated(folder), folder).dataset.rows
    both = job_of(evaluated(folder, documents="all"), folder).dataset.rows
    words = [{bytes(row.astype("u1")) for row in side} for side in (trained, held_out)]
    assert 0 < len(held_out) < len(trained) < len(both)
    names = [{int(n) for n in re.findall(rb"document (\d+):", b"".join(sorted(side)))} for side in words]
    assert not names[0] & names[1]


@pytest.mark.parametrize(
    ("evaluation", "beside", "named"),
    [
        ({"model": ""}, {}, "names no model"),
        ({"model": "nowhere"}, {}, "nowhere"),
        ({"model": 7}, {}, "model"),
        ({"batches": 0}, {}, "batches is 0"),
        ({"batches": "many"}, {}, "batches"),
        ({"documents": "mine"}, {}, "documents"),
        ({"model": "a\0b"}, {}, "evaluation.model"),
        ({"colour": "red"}, {}, "colour"),
        ({}, {"model": MODEL}, "combined with model"),
        ({}, {"seed": 1, "strategy": {}}, "combined with seed, strategy"),
        ({}, {"min_slots": 4}, "slots"),
        ({}, {"terms": "moonnet"}, "moonnet"),
    ],
)
def test_a_wrong_evaluation_names_what_is_wrong(
    folder: Path, evaluation: dict[str, Any], beside: dict[str, Any], named: str
) -> None:
    with pytest.raises(LockstepError, match=named) as caught:
        job_of(evaluated(folder, **evaluation) | beside, folder)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("adapters", "named"),
    [
        ({}, "base"),
        ({"base": 7}, "base"),
        ({"base": "nowhere"}, "nowhere"),
        ({"base": "a\0b"}, "adapters.base"),
        ({"base": "nowhere", "rank": "two"}, "rank"),
        ({"base": "nowhere", "rank": 0}, "rank"),
        ({"base": "nowhere", "depth": 2}, "depth"),
    ],
)
def test_wrong_adapters_are_named(folder: Path, adapters: dict[str, Any], named: str) -> None:
    given = described(adapters=adapters)
    del given["model"]
    with pytest.raises(LockstepError, match=named) as caught:
        job_of(given, folder)
    assert caught.value.hint


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"colour": "red"}, "colour"),
        ({"texts": "nowhere"}, "nowhere"),
        ({"texts": "a\0b"}, "texts is"),
        ({"texts": "texts/" + 256 * "a"}, "texts is"),
        ({"texts": 3_000 * "a/"}, "texts is"),
        ({"start": "a\0b"}, "start is"),
        ({"tokens": {"tokenizer": "a\0b"}}, "tokens.tokenizer is"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": "six"}, "rounds"),
        ({"slots": 0, "min_slots": 0}, "slots"),
        ({"min_slots": 3}, "slots"),
        ({"slots": 65}, "65"),
        ({"rounds": 10**9}, "rounds"),
        ({"terms": "moonnet"}, "moonnet"),
        ({"terms": ["devnet"]}, "terms"),
        ({"aggregator": "nobody"}, "nobody"),
        ({"aggregator": 7}, "aggregator"),
        ({"aggregator": "0x12"}, "0x12"),
        ({"batch": 7}, "batch"),
        ({"strategy": 7}, "strategy"),
        ({"model": {"depth": 3}}, "depth"),
        ({"model": {"width": 33, "heads": 2}}, "33"),
        ({"model": {"width": "wide"}}, "width"),
        ({"model": {"kind": "rnn"}}, "rnn"),
        ({"model": {**MODEL, "kind": "encoder", "vocabulary": 256}}, "vocabulary"),
        ({"adapters": {"base": "base"}}, "beside"),
        ({"model": {**MODEL, "heads": 0}}, "heads"),
        ({"model": {**MODEL, "layers": 0}}, "layers"),
        ({"model": {**MODEL, "vocabulary": 255}}, "vocabulary"),
        ({"batch": {"rows": 0}}, "batch"),
        ({"strategy": {"payload": "zip"}}, "zip"),
        ({"strategy": {"inner_steps": 0}}, "inner"),
        ({"strategy": {"inner": {"learning_rate": -1.0}}}, "learning"),
        ({"arithmetic": 7}, "arithmetic"),
        ({"arithmetic": {"products": "int4"}}, "int4"),
        ({"arithmetic": {"products": "int8", "modules": {"layers.9": "int8x2"}}}, "layers.9"),
    ],
)
def test_wrong_description_names_what_is_wrong(folder: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named) as caught:
        job_of(described(**changes), folder)
    assert caught.value.hint, "an error says what to do"


@dataclass(frozen=True)
class Plain:
    """An optimizer that somebody has added to the registry."""

    learning_rate: float = 0.1

    def over(self, steps: int, restart: int | None, layout: Layout) -> Transformation:
        def update(
            state: Shards, counter: Tensor, parameters: Shards, gradient: Shards
        ) -> tuple[list[Tensor], list[Tensor]]:
            return [], [p - self.learning_rate * g for p, g in zip(parameters, gradient, strict=True)]

        return Transformation(lambda parameters, counter: [], update)

    def to_dict(self) -> dict[str, Any]:
        return {"name": "plain", **asdict(self)}


def test_an_optimizer_of_the_registry_is_described_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "plain", Plain)
    job = job_of(described(strategy={"inner_steps": 2, "inner": {"name": "plain", "learning_rate": 0.5}}), folder)
    validate(job.programs.step)
    assert job.strategy["inner"] == {"name": "plain", "learning_rate": 0.5}
    with pytest.raises(UsageError, match="learning_rate"):
        job_of(described(strategy={"inner": {"name": "plain", "learning_rate": "fast"}}), folder)
    with pytest.raises(UsageError, match="beta1"):
        job_of(described(strategy={"inner": {"name": "plain", "beta1": 0.9}}), folder)


def test_a_job_warns_of_a_warm_up_that_is_longer_than_it(folder: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"inner.warmup is 1000, and there are \d+ steps: the largest learning rate is"
    ):
        job_of(described(strategy={"inner_steps": 2, "inner": {"warmup": 1000}}), folder, weights=False)


def test_a_price_is_for_computed_work_and_meets_a_worker_s_least(folder: Path) -> None:
    plain, bid = job_of(described(), folder, weights=False), job_of(described(price="0.5"), folder, weights=False)
    operations = slot_operations(bid.programs, bid.inner_steps)
    assert bid.terms.slot_price == -(-(TOKEN // 2) * operations // PRICED_OPERATIONS), "rounded up"
    assert bid.terms.slot_price * PRICED_OPERATIONS >= TOKEN // 2 * operations, "--min-price 0.5 takes it"
    assert bid.terms.slot_price < plain.terms.slot_price == DEVNET.slot_price, "without a bid it is the terms'"
    assert bid.programs.step.root == plain.programs.step.root, "the same work"


def test_prices_and_terms_are_of_the_market_s_token(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.base.amounts._of_market", Currency("USDC", 6))
    given = {"preset": "devnet", "bond": "6 USDC", "slot_price": "0.5 USDC"}
    job = job_of(described(terms=given), folder, weights=False)
    assert (job.terms.bond, job.terms.slot_price, job.terms.slot_stake) == (6_000_000, 500_000, 20_000_000)
    bid = job_of(described(price="0.5"), folder, weights=False)
    operations = slot_operations(bid.programs, bid.inner_steps)
    assert bid.terms.slot_price == -(-500_000 * operations // PRICED_OPERATIONS)
    with pytest.raises(UsageError, match="not an amount of USDC"):
        job_of(described(terms={"bond": "6 LST"}), folder, weights=False)


@pytest.mark.parametrize("price", ["much", "0", "-1", True, ["1"], 1e-30])
def test_a_price_that_is_none_is_refused_with_its_name(folder: Path, price: Any) -> None:
    with pytest.raises(UsageError, match="price") as refused:
        job_of(described(price=price), folder, weights=False)
    assert refused.value.hint


@pytest.mark.slow
def test_a_gas_price_raises_what_must_follow_it(folder: Path) -> None:
    plain = job_of(described(), folder, weights=False)
    dear = job_of(described(gas_price="10000000000000 wei"), folder, weights=False)
    assert (plain.terms.gas_price, dear.terms.gas_price) == (DEVNET.gas_price, 10**13)
    floor = stake_floor(dear.terms.slot_price, dear.terms.gas_price)
    assert plain.terms.slot_stake < floor <= dear.terms.slot_stake, "a lie costs more than the gas of its games"
    bid = job_of(described(gas_price="0.00001 LST", price="0.5"), folder, weights=False)
    assert bid.terms.gas_price == 10**13, "a bid for work keeps it"
    assert dear.programs.step.root == plain.programs.step.root, "the same work"


@pytest.mark.parametrize("given", [5, 0.5, "600000000000", "much wei", "-1 wei", "2 LST", True, ["1 wei"], "0.5 wei"])
def test_a_gas_price_that_is_none_is_refused_with_its_name(folder: Path, given: Any) -> None:
    with pytest.raises(UsageError, match="gas_price") as refused:
        job_of(described(gas_price=given), folder, weights=False)
    assert refused.value.hint
    with pytest.raises(UsageError) as typo:
        job_of(described(gasprice="1 wei"), folder, weights=False)
    assert "gas_price" in typo.value.hint, "the nearest name"


TABLES: dict[str, list[type]] = {
    "": [],
    "tokens": [Tokens],
    "evaluation": [Evaluation],
    "batch": [Batch],
    "arithmetic": [Arithmetic],
    "adapters": [LoRAConfig],
    "model": [MODELS[kind].config for kind in TEXT_MODELS],
    "strategy": [*STRATEGIES.values()],
    "strategy.inner": [*OPTIMIZERS.values()],
    "terms": [Terms],
}
"""What each table of a description is made of; fields come from there."""
FIELDS = sorted(
    {(table, f.name) for table, kinds in TABLES.items() for kind in kinds for f in fields(kind)}
    | {("", key) for key in KEYS if key not in TABLES}
)
NONSENSE = [["nonsense"], 7.5]
"""A value that no field takes."""


def said(table: str, name: str, value: Any, folder: Path, key: str = "") -> dict[str, Any]:
    """A description in which one field has this value, under its name or another `key`."""
    whole = evaluated(folder) if table == "evaluation" else described()
    place = whole
    for part in filter(None, table.split(".")):
        place[part] = dict(place.get(part, {}))
        place = place[part]
    if table == "tokens":
        place["tokenizer"] = "nowhere.json"
    if table == "adapters":
        place["base"] = "pulled"
        del whole["model"]
    if table == "model" and name not in {f.name for f in fields(GPTConfig)}:
        place["kind"] = next(k for k in TEXT_MODELS if name in {f.name for f in fields(MODELS[k].config)})
    for at, registry in (("strategy", STRATEGIES), ("strategy.inner", OPTIMIZERS)):
        kinds: dict[str, Any] = dict(registry)
        if table == at and name not in {f.name for f in fields(next(iter(kinds.values())))}:
            place["name"] = next(k for k, kind in kinds.items() if name in {f.name for f in fields(kind)})
    place[key or name] = value
    return whole


@pytest.mark.parametrize("key", sorted(KEYS))
def test_every_table_of_a_description_is_among_those_that_are_tested(folder: Path, key: str) -> None:
    if key not in TABLES:
        with pytest.raises(LockstepError, match=key):
            job_of(said("", key, {}, folder), folder, weights=False)


@pytest.mark.sampled(64)
@pytest.mark.parametrize(("table", "name"), FIELDS)
def test_every_field_of_a_job_is_read_from_its_file_and_refused_where_it_is_mistyped(
    folder: Path, table: str, name: str
) -> None:
    evaluated(folder)
    with pytest.raises(LockstepError) as wrong:
        job_of(said(table, name, NONSENSE, folder), folder, weights=False)
    assert name in wrong.value.message + wrong.value.hint, "it is read: its value is told to be wrong"
    with pytest.raises(UsageError) as typo:
        job_of(said(table, name, NONSENSE, folder, key=name + name[-1]), folder, weights=False)
    assert typo.value.message.endswith(f"nothing is called {name + name[-1]!r}")
    assert typo.value.hint == f"did you mean {name!r}?"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [f.name for f in fields(Terms)])
def test_every_term_of_a_job_can_be_set_and_stands(folder: Path, name: str) -> None:
    before = getattr(PRESETS["mainnet"].audited(2, 2), name)
    amount = isinstance(before, int) and get_type_hints(Terms)[name] is Wei
    value = before + before // 8 + 1
    terms = {"preset": "mainnet", name: f"{value} wei" if amount else value}
    # Prices and wages stay below the stakes that answer for them.
    beside = {"witness_fee": {"witness_stake": 2, "slot_stake": 8}, "witness_stake": {"slot_stake": 8}}
    for other, times in beside.get(name, {}).items():
        terms[other] = f"{times * getattr(PRESETS['mainnet'].audited(2, 2), other)} wei"
    strategy = {"inner_steps": 2}
    job = job_of(described(terms=terms, strategy=strategy), folder, weights=False)
    assert getattr(job.terms, name) == value
    if name not in ("slot_price", "gas_price"):
        bid = job_of(described(terms=terms, strategy=strategy, price="0.000001"), folder, weights=False)
        assert getattr(bid.terms, name) == value, "whatever a bid computes"


def test_terms_that_say_a_thing_twice_or_break_a_floor_are_refused(folder: Path) -> None:
    for changes, named in (
        ({"terms": {"gas_price": "1 wei"}, "gas_price": "1 wei"}, "and terms.gas_price are both set"),
        ({"terms": {"slot_price": "1 LST"}, "price": "0.5"}, "both price and terms.slot_price"),
        ({"terms": {"slot_stake": "1 LST"}}, "slot_stake"),
        ({"terms": {"slot_price": 5}}, "without a unit"),
        ({"terms": {"max_fail": True}}, "max_fail"),
        ({"terms": {"preset": "moonnet"}}, "moonnet"),
        ({"batch": {"row_length": 65}}, "row_length"),
        ({"model": {**MODEL, "layers": True}}, "layers"),
    ):
        with pytest.raises(UsageError, match=named) as refused:
            job_of(described(**changes), folder, weights=False)
        assert refused.value.hint


LINE = """
from torch import nn

from lockstep.training.job import Batch

def loss(model, x, y):
    return ((model(x).squeeze(-1) - y) ** 2).mean()

def make():
    return nn.Linear(2, 1), loss, Batch(rows=4, row_length=3)
"""


def brought(folder: Path, **changes: Any) -> dict[str, Any]:
    """The description of a line through a table of numbers."""
    (folder / "net.py").write_text(LINE)
    rows = "".join(f"{k / 8},{-k},{k * 0.5}\n" for k in range(40))
    (folder / "t.csv").write_text("a,b,y\n" + rows)
    data = {"path": "t.csv", "columns": {"x": ["a", "b"], "y": "y"}, "held_out": 4}
    return {"model": "net.py:make", "data": data, "rounds": 1, "slots": 2, "min_slots": 1, **changes}


def test_a_file_of_numbers_is_described_by_its_columns(folder: Path) -> None:
    job = job_of(brought(folder), folder)
    assert str(job.dataset.form) == "x float32[2], y float32[]"
    assert (job.dataset.row_count, job.dataset.row_tokens) == (30, 3)


@pytest.mark.slow
def test_windows_of_a_text_overlap_by_a_stride(folder: Path) -> None:
    plain, strided = (job_of(described(**more), folder) for more in ({}, {"stride": 1}))
    assert plain.dataset.form is None
    windows = strided.dataset.form.windows
    assert (windows.length, windows.stride) == (17, 1)
    assert strided.dataset.rows.size <= 3 * plain.dataset.rows.size
    assert (strided.dataset.rows[0, :17] == plain.dataset.rows[0]).all()
    assert job_of(described(stride=17), folder).dataset.root == plain.dataset.root, "the rows that there were"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"texts": "texts"}, r"texts and \[data\] are both set"), ({"model": MODEL}, r"\[data\] needs a custom model"),
        ({"data": {"path": "none.csv"}}, "does not exist"), ({"data": {}}, "names no path"),
        ({"data": {"path": "t.csv", "colums": {}}}, "colums"), ({"data": {"path": 3}}, "data.path is 3"),
        ({"data": {"path": "t.csv", "columns": {"x": "z"}}}, "no column 'z'"), ({"data": "t.csv"}, "data is 't.csv'"),
        ({"data": {"path": "t.csv"}}, "the rows have a, b, y"),
        ({"data": {"path": "t.csv", "held_out": 1}}, "held_out"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_wrong_with_a_file_of_numbers_is_told(folder: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        job_of(brought(folder, **changes), folder)


@pytest.mark.slow
def test_a_model_is_checked_and_evaluated_on_a_file_of_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = brought(folder)
    monkeypatch.chdir(folder)
    found = check("net.py:make", described=given)
    assert (found.rows, found.differs, found.trial.precision) == (30, False, "float64")
    rehearsal = Rehearsal(job_of(given, folder))
    state = rehearsal.next(rehearsal.first())
    parts = (state.checkpoint.shared, rehearsal.job.parameters, rehearsal.job.model, rehearsal.job.programs.step.consts)
    save_model(folder / "pulled", *parts)
    evaluation = {"model": "pulled", "code": "net.py:make", "batches": 50}
    job = job_of({"data": given["data"], "evaluation": evaluation}, folder)
    assert job.dataset.row_count == 10, "the rows that training has not seen"
    assert str(job.dataset.form) == "x float32[2], y float32[]"
    with pytest.raises(UsageError, match="no rows are held out"):
        job_of({"data": {**given["data"], "held_out": 0}, "evaluation": evaluation}, folder)
