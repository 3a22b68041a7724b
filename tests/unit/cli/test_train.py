"""`lockstep train`: what is wrong with a description is told before a key, a chain or torch is needed."""

from __future__ import annotations

import json
import math
import sys
import tomllib
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from lockstep.chain.addresses import CONTRACTS, Addresses
from lockstep.chain.keys import create_account
from lockstep.cli.described import read
from lockstep.cli.templates import SCRIPT, TEMPLATE
from lockstep.protocol.errors import PayloadInvalid, UsageError
from lockstep.protocol.types import Address
from lockstep.training.brought import bring
from lockstep.training.describe import job_of
from lockstep.training.export import load_model
from lockstep.training.metrics import Metrics

from .conftest import Lockstep

DEPLOYED = Addresses(31337, *(Address(f"0x{n:040x}") for n in range(1, 1 + len(CONTRACTS))))
VERBS = [("status",), ("watch",), ("metrics",), ("cancel",), ("pull", "--out", "out")]
NOBODY = "http://127.0.0.1:9"
"""The discard port: nobody listens."""


@pytest.fixture
def party(lockstep: Lockstep) -> list[str]:
    """Options of a requester with a key, whose chain does not answer."""
    create_account(Path("home/keystore.json"), "correct horse", work=2)
    Path("password").write_text("correct horse")
    DEPLOYED.save(Path("deployment.json"))
    return ["--home", "home", "--password-file", "password", "--rpc", NOBODY, "--storage", f"dir://{Path.cwd()}/blocks"]


def test_init_writes_a_description_that_train_reads(lockstep: Lockstep) -> None:
    from lockstep.training.describe import KEYS

    assert lockstep("train", "init", "job.toml", "--json").data == {"path": "job.toml"}
    assert Path("job.toml").read_text() == TEMPLATE
    assert set(tomllib.loads(TEMPLATE)) <= KEYS


def test_the_job_that_init_writes_goes_on_with_two_workers() -> None:
    """docs/tutorials/worker.md leaves its third slot to a reader who takes some time."""
    written = tomllib.loads(TEMPLATE)
    assert min(written["slots"], 2 * written["min_slots"] - 1) <= 2


def test_init_writes_a_script_whose_model_makes_a_job(lockstep: Lockstep) -> None:
    assert lockstep("train", "init", "net.py", "--example", "--json").data == {"path": "net.py"}
    assert Path("net.py").read_text() == SCRIPT
    brought = bring("net.py:make")
    rows = torch.zeros(brought.batch.rows, brought.batch.row_length, dtype=torch.int64)
    assert brought.loss(brought.model, rows).shape == ()  # type: ignore[operator, call-arg]
    assert lockstep("train", "init", "other.py", "--strategy", "sparseloco", "--json").code == 2


def test_init_writes_over_nothing(lockstep: Lockstep) -> None:
    Path("job.toml").write_text("mine")
    for path in ("job.toml", ".", "no/such/folder/job.toml"):
        ended = lockstep("train", "init", path, "--json")
        assert (ended.code, ended.error["code"]) == (2, "usage"), path
    assert Path("job.toml").read_text() == "mine"


@pytest.mark.parametrize("content", [None, b"rounds = ", b"\xff\xfe"])
def test_a_description_that_cannot_be_read_is_2(lockstep: Lockstep, content: bytes | None) -> None:
    if content is not None:
        Path("job.toml").write_bytes(content)
    for command in (("quote",), ("run", "--budget", "1")):
        ended = lockstep("train", *command, "job.toml", "--json")
        assert (ended.code, ended.error["code"]) == (2, "usage"), "before a key is asked for"
        assert "job.toml" in ended.error["message"]


OWN = """
import torch
from torch import nn
from lockstep.training.job import Batch

def loss(model, rows):
    return model(rows.float() / 8).pow(2).mean()

def make():
    return nn.Linear(5, 3), loss, Batch(rows=2, row_length=5), torch.arange(40).view(8, 5)

def without_rows():
    return make()[:3]

def without_loss():
    return nn.Linear(5, 3), None, Batch(rows=2, row_length=5)
"""
"""Models of their author's."""


@pytest.fixture
def own(lockstep: Lockstep) -> str:
    Path("net.py").write_text(OWN)
    return "net.py:make"


def test_a_function_of_a_file_is_rehearsed_and_its_model_loads_with_the_same_file_alone(
    lockstep: Lockstep, own: str
) -> None:
    few = ("--set", "rounds=2", "--set", "slots=2", "--set", "strategy.inner_steps=3", "--threads", "1")
    ended = lockstep("train", "rehearse", own, *few, "--out", "out", "--json")
    assert ended.code == 0, ended.err
    assert (ended.data["rounds"], len(ended.data["losses"]), len(ended.data["seconds"])) == (2, 3, 2)
    assert ended.data["losses"][2] < ended.data["losses"][0]
    again = lockstep("train", "rehearse", own, *few, "--json")
    assert again.data["losses"] == ended.data["losses"], "torch draws the first weights from the job's seed"

    config = json.loads(Path("out/config.json").read_text())
    assert config == {"model": "own", "class": "Linear", "function": own, "sha256": sha256(OWN.encode()).hexdigest()}
    weight = bring(own).of(Path("out")).weight
    assert not torch.equal(weight, bring(own).model.weight)
    with pytest.raises(UsageError, match="class of its author's"):
        load_model(Path("out"))
    assert torch.equal(load_model(Path("out"), torch.nn.Linear(5, 3)).weight, weight)
    with pytest.raises(PayloadInvalid):
        load_model(Path("out"), torch.nn.Linear(5, 4))
    Path("net.py").write_text(OWN + "# edited")
    with pytest.raises(UsageError, match="SHA-256"):
        bring(own).of(Path("out"))


def test_a_model_of_a_file_is_trained_further_and_evaluated(lockstep: Lockstep, own: str) -> None:
    few = {"rounds": 1, "slots": 1, "strategy": {"inner_steps": 2}}
    assert lockstep("train", "rehearse", own, "--set", "rounds=1", "--out", "out").code == 0
    first = job_of({"model": own, **few, "start": "out"}, Path()).genesis
    assert first is not None
    stored = bring(own).of(Path("out"))
    values = torch.cat([p.detach().flatten() for p in stored.parameters()]).tolist()
    assert set(first.shared[0].tolist()) == {*values, 0.0}, "the flat tensor is padded"
    evaluated = job_of({"evaluation": {"model": "out", "code": own, "batches": 2}, "slots": 1}, Path())
    assert (evaluated.model["class"], evaluated.inner_steps) == ("Linear", 2)


@pytest.mark.parametrize(
    ("target", "sets", "named"),
    [
        ("net.py:without_rows", [], "no rows"),
        ("net.py:without_loss", [], "loss of a Linear"),
        ("net.py:none", [], "no function none"),
        ("none.py:make", [], "names no file"),
        ("net.py:make", ["texts=texts"], "remove one of them"),
        ("net.py:make", ["batch.rows=3"], "[batch]"),
        ("net.py:make", ["rouds=3"], "rouds"),
        ("net.py:make", ["rounds"], "--set rounds"),
        ("net.py:make", ["=3"], "--set =3"),
        ("net.py:make", ["rounds=many"], "rounds is 'many'"),
        ("net.py:make", ["terms=local", "terms.max_fail=3"], "not a table"),
    ],
)
def test_a_function_that_makes_no_job_is_2_and_says_what_is_wrong(
    lockstep: Lockstep, own: str, target: str, sets: list[str], named: str
) -> None:
    flags = [word for given in sets for word in ("--set", given)]
    ended = lockstep("train", "rehearse", target, *flags, "--json")
    assert (ended.code, ended.error["code"]) == (2, "usage"), ended.out
    assert named in ended.error["message"] + ended.error["hint"]


def test_set_changes_a_description_of_a_file(lockstep: Lockstep) -> None:
    Path("job.toml").write_text(TEMPLATE)
    found = read("job.toml", ["rounds=3", "strategy.inner_steps=5", "texts=other", "strategy.inner.name=muon"]).fields
    assert (found["rounds"], found["texts"]) == (3, "other")
    assert found["strategy"] == {**tomllib.loads(TEMPLATE)["strategy"], "inner_steps": 5, "inner": {"name": "muon"}}
    assert found["slots"] == tomllib.loads(TEMPLATE)["slots"]


@pytest.mark.parametrize("budget", ["0", "-5"])
def test_a_budget_that_is_none_is_2(lockstep: Lockstep, budget: str) -> None:
    Path("job.toml").write_text(TEMPLATE)
    ended = lockstep("train", "run", "job.toml", "--budget", budget, "--json")
    assert (ended.code, ended.error["code"]) == (2, "usage")
    assert budget in ended.error["message"]


@pytest.mark.parametrize("verb", VERBS, ids=lambda v: v[0])
def test_a_job_id_that_is_none_is_2(lockstep: Lockstep, verb: tuple[str, ...]) -> None:
    ended = lockstep("train", *verb, "job 7", "--json")
    assert (ended.code, ended.error["code"]) == (2, "usage")
    assert "job 7" in ended.error["message"]


@pytest.mark.parametrize("verb", VERBS, ids=lambda v: v[0])
def test_a_chain_that_does_not_answer_is_9(lockstep: Lockstep, party: list[str], verb: tuple[str, ...]) -> None:
    ended = lockstep("train", *verb, "ab" * 32, *party, "--json")
    assert (ended.code, ended.error["code"]) == (9, "unreachable")
    assert NOBODY in ended.error["message"]
    assert sorted(p.name for p in Path("home").iterdir()) == ["keystore.json"], "no outbox was begun"
    assert not Path("blocks").exists()
    assert not Path("out").exists()


def test_quote_and_run_ask_the_chain_before_they_trace(lockstep: Lockstep, party: list[str]) -> None:
    Path("job.toml").write_text(TEMPLATE)
    for command in (("quote",), ("run", "--budget", "1")):
        ended = lockstep("train", *command, "job.toml", *party, "--json")
        assert (ended.code, ended.error["code"]) == (9, "unreachable"), "not: there is no folder of texts"


def test_a_job_is_named_by_its_file_or_by_the_command(lockstep: Lockstep, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("job.toml").write_text('title = "From the file"\n' + TEMPLATE)
    opened: list[str] = []
    monkeypatch.setattr("lockstep.cli.train._network", lambda flags: None)
    monkeypatch.setattr(
        "lockstep.cli.train._submit", lambda described, *rest: opened.append(described.fields.get("title"))
    )
    for command in (("run", "job.toml"), ("resume", "job.toml", "model")):
        for given in ((), ("--title", "Night owls"), ("--set", "title=Set by a key")):
            assert lockstep("train", *command, "--budget", "1", *given).code == 0
    assert opened == ["From the file", "Night owls", "Set by a key"] * 2


@pytest.mark.parametrize("title", ["two\nlines", " ", "x" * 81, "a\u202eb"])
def test_a_title_that_is_no_line_of_text_is_2_before_a_key_is_asked_for(lockstep: Lockstep, title: str) -> None:
    Path("job.toml").write_text(TEMPLATE)
    for given in (("--title", title), ("--set", f"title={json.dumps(title)}")):
        ended = lockstep("train", "run", "job.toml", "--budget", "1", *given, "--json")
        assert (ended.code, ended.error["code"]) == (2, "usage")
        assert ended.error["message"].startswith("title ")
        assert ended.error["hint"] == "a title is one line of at most 80 characters"


@dataclass(frozen=True)
class Found:
    """A job whose last merge holds a loss."""

    loss: float
    perplexity: float | None
    left_out: int = 0
    evaluates: bool = True

    def metrics(self) -> Metrics:
        """Of four batches of eight rows."""
        return Metrics(self.loss, 4, 32, self.perplexity, self.left_out)


@pytest.mark.parametrize(
    ("found", "data", "text"),
    [
        (Found(2.5, 12.182494), {"loss": 2.5, "perplexity": 12.182494}, "loss 2.5, perplexity 12.1825"),
        (Found(2.5, None, 1), {"loss": 2.5, "perplexity": None}, "loss 2.5"),
        (Found(math.inf, math.inf), {"loss": "inf", "perplexity": "inf"}, "loss inf, perplexity inf"),
        (Found(math.nan, math.nan), {"loss": "nan", "perplexity": "nan"}, "loss nan, perplexity nan"),
    ],
)
def test_metrics_are_printed_as_json_even_where_they_are_no_numbers(
    lockstep: Lockstep, monkeypatch: pytest.MonkeyPatch, found: Found, data: dict[str, object], text: str
) -> None:
    monkeypatch.setattr("lockstep.cli.train._handle", lambda *named: found)
    told = {**data, "batches": 4, "rows": 32, "left_out": found.left_out}
    assert lockstep("train", "metrics", "ab" * 32, "--json").data == told
    without = ", without 1 convicted" if found.left_out else ""
    assert lockstep("train", "metrics", "ab" * 32).out == f"{text} (4 batches, 32 rows{without})\n"


def test_a_deployment_that_is_missing_is_7_and_garbage_2(lockstep: Lockstep, party: list[str]) -> None:
    missing = lockstep("train", "status", "ab" * 32, *party, "--deployment", "none.json", "--json")
    assert (missing.code, missing.error["code"]) == (7, "not_found")
    Path("deployment.json").write_text('{"chain_id": "anvil"}')
    garbage = lockstep("train", "status", "ab" * 32, *party, "--json")
    assert (garbage.code, garbage.error["code"]) == (2, "usage")
    assert "deployment.json" in garbage.error["message"]


# --- a model of one's own ----------------------------------------------------------------------------------

NET = """
import torch
from torch import nn
from lockstep.training.job import Batch

class Net(nn.Module):
    def __init__(self, odd):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.odd = nn.Linear(4, 3), nn.BatchNorm1d(3), odd

    def forward(self, rows):
        x = self.norm(self.first(rows.float()))
        return torch.igamma(x.detach(), x) if self.odd else x

def loss(model, rows):
    return (model(rows) ** 2).mean()

def good():
    return Net(False), loss, Batch(2, 4)

def bad():
    return Net(True), loss, Batch(2, 4)

def hooked():
    model = Net(False)
    model.norm.weight.register_hook(lambda grad: 3 * grad)
    return model, loss, Batch(2, 4)

def nothing():
    return 3
"""


@pytest.mark.slow
def test_check_tells_what_a_model_of_one_s_own_holds(lockstep: Lockstep) -> None:
    Path("net.py").write_text(NET)
    ended = lockstep("train", "check", "net.py:good", "--json")
    assert ended.code == 0, ended.err
    assert (ended.data["model"], ended.data["parameters"], ended.data["statistics"]) == ("Net", 21, 7)
    trial = ended.data["trial"]
    assert (ended.data["differs"], trial["wrong"], trial["eager"], trial["exact"]) == (False, "", "", True)
    assert {g["name"] for g in trial["gradients"]} >= {"first.weight", "norm.bias", "norm.running_var"}
    text = lockstep("train", "check", "net.py:good").out
    assert "the model can be trained as a job; 21 parameters and 7 running statistics" in text
    assert "every word match an independent implementation" in text
    assert "7 gradients match eager PyTorch's" in text
    traced = lockstep("train", "check", "net.py:good", "--no-run")
    assert (traced.code, "no step was run" in traced.out) == (0, True)


@pytest.mark.slow
def test_check_ends_with_10_and_names_the_parameter_where_a_job_would_train_something_else(
    lockstep: Lockstep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.training.gradients.hooked", lambda *_: None)  # a trace that leaves hooks out
    Path("net.py").write_text(NET)
    ended = lockstep("train", "check", "net.py:hooked", "--json")
    assert (ended.code, ended.data["differs"]) == (10, True)
    assert [g["name"] for g in ended.data["trial"]["gradients"] if g["differs"]] == ["norm.weight"]
    text = lockstep("train", "check", "net.py:hooked").out
    assert "a job of this model would train something else" in text
    assert "gradient of norm.weight differs from eager PyTorch's: relative error 0.67" in text


def test_check_names_module_line_rule_and_hint_before_anything_is_paid(lockstep: Lockstep) -> None:
    Path("net.py").write_text(NET)
    error = lockstep("train", "check", "net.py:bad", "--json").error
    assert "aten.igamma" in error["message"]
    assert "no rule lowers it" in error["message"]
    assert "net.py:14" in error["message"]
    assert "torch.igamma(x.detach(), x)" in error["message"]
    assert error["hint"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def make(:\n", "own.py:1: SyntaxError"),
        ("\nimport nothing_like_this\n", "own.py:2: ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("def make():\n    raise ValueError('of mine')\n", "own.py:2: ValueError: of mine"),
    ],
)
def test_check_says_where_a_file_fails(lockstep: Lockstep, text: str, said: str) -> None:
    Path("own.py").write_text(text)
    error = lockstep("train", "check", "own.py:make", "--json").error
    assert said in error["message"]
    assert error["code"] == "usage"


def test_check_of_a_file_with_a_library_s_name_leaves_the_library(lockstep: Lockstep) -> None:
    before = sys.modules["random"]
    Path("random.py").write_text("def make():\n    return None\n")
    assert "returns NoneType" in lockstep("train", "check", "random.py:make", "--json").error["message"]
    assert sys.modules["random"] is before


@pytest.mark.parametrize("target", ["none.py:good", "net.py", "net.py:absent", "net.py:nothing"])
def test_check_of_no_model_says_what_to_give(lockstep: Lockstep, target: str) -> None:
    Path("net.py").write_text(NET)
    ended = lockstep("train", "check", target, "--json")
    assert (ended.code, ended.error["code"]) == (2, "usage")
    assert "FILE.py:FUNCTION" in ended.error["hint"]
