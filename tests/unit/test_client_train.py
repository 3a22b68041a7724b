"""`lockstep.train`: one call from a module and data to a job on chain."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.base import networks
from lockstep.chain.deployment import deploy
from lockstep.chain.outbox import Outbox
from lockstep.client import Network, connect
from lockstep.presets import DEVNET, LOCAL
from lockstep.protocol.errors import BudgetExceeded, TryLater, UsageError
from lockstep.protocol.types import Address, Seconds, Wei
from lockstep.training.models import GPT, GPTConfig
from tests.support.memory.devnet import MemoryDevnet

pytestmark = pytest.mark.usefixtures("traced_once")
TEXTS = ["words upon words, " * 20] * 3


class Pairs(nn.Module):
    """Tokens to the logits of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(256, 4), nn.Linear(4, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens))


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    folder = tmp_path_factory.mktemp("ordering")
    with MemoryDevnet() as devnet:
        deployer, requester = devnet.account("deployer"), devnet.account("requester")
        addresses = deploy(devnet.w3, deployer, unbond_seconds=Seconds(3600))
        net = connect(
            rpc=devnet.url, storage=f"dir://{folder}/blocks", deployment=addresses, account=requester,
            home=folder / "home",
        )  # fmt: skip
        outbox = Outbox(folder / "deployer.sqlite", devnet.w3, deployer)
        outbox.send(net.contracts.token.mint(Address(requester.address), Wei(10**24)), "mint")
        outbox.close()
        yield net


def test_a_call_opens_a_job_on_the_terms_of_its_market(net: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    def train_seconds(**keys: object) -> int:
        handle = lockstep.train(Pairs(), TEXTS, budget="600 LST", network=net, rounds=1, slots=2, **keys)
        role = net.contracts.market.params(handle.id).role
        assert (role.slots, handle.status()["status"]) == (2, "active")
        return int(role.train_seconds)

    assert net.terms is None, "addresses that were given are no known market's"
    assert train_seconds() == DEVNET.train_seconds
    monkeypatch.setattr(net, "terms", networks.LOCAL)
    assert train_seconds() == LOCAL.train_seconds
    assert train_seconds(terms="devnet") == DEVNET.train_seconds, "what is said stands"


@pytest.mark.parametrize("budget", ["1 LST", 1, 1.5, Decimal("1.5"), 1e-7])
def test_no_more_leaves_the_account_than_the_budget(net: Network, budget: str | float | Decimal) -> None:
    owner = Address(net.account.address)
    before = net.contracts.token.balance_of(owner)
    with pytest.raises(BudgetExceeded, match=r"the budget is (1|0\.0000001)"):
        lockstep.train(Pairs(), TEXTS, budget=budget, network=net)
    assert net.contracts.token.balance_of(owner) == before


def test_a_budget_in_another_unit_is_refused(net: Network) -> None:
    with pytest.raises(UsageError, match="not an amount of LST"):
        lockstep.train(Pairs(), TEXTS, budget="60 USDC", network=net)


def test_a_handle_knows_the_module_of_a_class_of_one_s_own(net: Network) -> None:
    model = Pairs()
    handle = lockstep.train(model, TEXTS, budget=600, network=net, rounds=1)
    assert handle.own is model
    assert handle == net.job(handle.id), "it is the same job"
    with pytest.raises(TryLater):
        handle.sample("it is not merged yet")
    made = lockstep.train(Pairs, TEXTS, budget=600, network=net, rounds=1, seed=7).own
    torch.manual_seed(7)
    assert torch.equal(made.head.weight, Pairs().head.weight)  # type: ignore[union-attr]
    gpt = GPT(GPTConfig(layers=1, heads=2, width=16, context=16))
    assert lockstep.train(gpt, TEXTS, budget=600, network=net, rounds=1).own is None, "its class is known"


def test_a_job_has_the_name_that_it_is_given_or_the_model_s(net: Network) -> None:
    def title(**keys: object) -> str:
        handle = lockstep.train(Pairs(), TEXTS, budget=600, network=net, rounds=1, **keys)
        return str(net.find(handle.name).title)

    assert title() == "Pairs"
    assert title(title="Night owls") == "Night owls"
    assert title(title="") == ""
    before = net.contracts.token.balance_of(Address(net.account.address))
    for wrong in ("two\nlines", "x" * 81, 7):
        with pytest.raises(UsageError, match="title") as refused:
            title(title=wrong)
        assert "one line of at most 80 characters" in refused.value.hint
    assert net.contracts.token.balance_of(Address(net.account.address)) == before


def test_a_quote_is_printed_as_a_table(net: Network) -> None:
    from lockstep.training.given import job_given

    quote = net.quote(job_given(Pairs(), TEXTS, rounds=2, weights=False))
    assert str(quote).splitlines() == [
        "quote", "  debit            38.5 LST", "  escrow           7 LST", "  deposit          31.5 LST",
        "  rounds           2", "  slots            3", "  steps of a slot  20", "  model            Pairs",
    ]  # fmt: skip
    named = net.quote(job_given(Pairs(), TEXTS, rounds=2, weights=False, title="Night owls"))
    assert str(named).splitlines()[1:] == [*str(quote).splitlines()[1:], "  title            Night owls"]
    assert repr(quote) == f"<Quote: 38.5 LST for {quote.job!r}>"
    assert repr(quote.job) == "<TrainingJob: Pairs, 2 rounds of 3 slots, 20 steps each>"


def test_the_terms_of_a_market_are_found_by_its_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_LOCAL", str(tmp_path))
    assert networks.terms_of("deployment.json") is None
    (tmp_path / "network.toml").write_text('[local]\ndeployment = "deployment.json"\n')
    assert networks.terms_of(str(tmp_path / "deployment.json")) == networks.LOCAL
    assert networks.terms_of("deployment.json") is None, "another folder's"
