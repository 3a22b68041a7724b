"""The SDK's entry point: connect to a market, quote a job, submit it, watch it, fetch the model.

net = lockstep.connect("local")              # or rpc=..., storage=..., deployment=..., account=...
quote = net.quote(job)                       # its price, and what it commits to
handle = net.submit(quote, budget=quote.debit)
for event in handle.watch(): ...             # Ctrl-C detaches; the job continues
handle.download("out/")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from lockstep.base import markup
from lockstep.base.amounts import amount_of, tokens
from lockstep.base.naming import short
from lockstep.base.settings import resolve
from lockstep.chain.addresses import Addresses
from lockstep.execution.jobs import TrainingJob
from lockstep.numerics.validate import check_programs
from lockstep.presets import DECIMALS
from lockstep.protocol.errors import BudgetExceeded, FundsError, NotFoundError, UsageError
from lockstep.protocol.jobs import JobStatus
from lockstep.protocol.market.ids import job_id
from lockstep.protocol.market.job_rules import check_params
from lockstep.protocol.programs.defects import job_of
from lockstep.protocol.types import Address, JobId, Seconds, Wei
from lockstep.requester.access import MarketAccess
from lockstep.requester.handle import JobHandle
from lockstep.requester.quotes import Quote, params_of, spec_of, store_parts
from lockstep.storage.containers import MAX_TITLE

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from torch import nn

    from lockstep.training.losses import Loss, RandomLoss

__all__ = ["JobHandle", "Network", "Quote", "TrainingJob", "connect", "train"]

PERMIT_SECONDS = 3600
DEAR = 10**6
"""Price of a slot, in tokens, above which the terms are suspected to be in another token's decimals."""
SHOWN = 8
"""Jobs that a notebook shows."""


class Network(MarketAccess):
    """One deployment of the market, as used by one account."""

    def _repr_html_(self) -> str:
        jobs = [(short(handle.id), f"{handle.status()['status']}, of {who}") for handle, who in self.jobs()[:SHOWN]]
        places = [("chain", self.contracts.addresses.chain_id), ("market", self.contracts.addresses.market)]
        return markup.table("market", [*places, ("storage", self.store.name), *jobs])

    def quote(self, job: TrainingJob) -> Quote:
        """Validate a job's Programs and terms, and compute its price and every hash that it will commit to.

        Raises ProgramInvalid, or ChainError for terms that the market refuses. Nothing is stored or sent.
        """
        spec = None if job.genesis is None else spec_of(job, job.genesis)
        chain = self.contracts.market.chain_times()
        params = params_of(job, spec, chain)
        check_params(params, self.contracts.vault.unbond_seconds(), chain)
        check_programs(job.programs.step, job.programs.encode, job.programs.merge, job_of(params))
        return Quote(job, spec, params, chain, self.currency)

    def submit(self, quote: Quote, budget: Wei, nonce: int | None = None) -> JobHandle:
        """Store the job's parts, escrow its price, and open it; returns as soon as the job is on chain.

        `budget` is a hard cap on escrow plus deposit: raises BudgetExceeded if they exceed it, FundsError if the
        account holds less; nothing is stored or sent in either case. Submitting with the same `nonce` again does not
        open a second job.
        """
        if quote.spec is None:
            raise UsageError(
                "this job was made without weights, so it can be quoted but not submitted",
                hint="make it with training_job(..., weights=True)",
            )
        debit, escrow, deposit, budgeted = (
            tokens(amount, currency=self.currency) for amount in (quote.debit, quote.escrow, quote.deposit, budget)
        )
        # INVARIANT: no more leaves a requester's account than its budget.
        if quote.debit > budget:
            decimals = self.currency.decimals
            if decimals != DECIMALS and quote.params.role.slot_price >= DEAR * self.currency.unit:
                raise BudgetExceeded(
                    f"the job needs {debit}, the budget is {budgeted}: its terms count {DECIMALS} decimals, and the "
                    f"market's token has {decimals}",
                    hint=f"scale them: terms=LOCAL.in_decimals({decimals})",
                )
            raise BudgetExceeded(
                f"the job needs {debit} (escrow {escrow}, deposit {deposit}), the budget is {budgeted}",
                hint="raise the budget, or lower rounds or slots; the deposit is returned when the job is done",
            )
        with self._alone():
            return self._open(quote, nonce)

    def _open(self, quote: Quote, nonce: int | None) -> JobHandle:
        escrow = quote.escrow
        owner = Address(self.account.address)
        market, vault, token = self.contracts.market, self.contracts.vault, self.contracts.token
        nonce = self.w3.eth.get_transaction_count(self.account.address) if nonce is None else nonce
        addresses = self.contracts.addresses
        job = job_id(addresses.chain_id, addresses.market, owner, nonce, quote.params)
        if market.job(job).status != JobStatus.NONE:
            return JobHandle(self, job)
        held = token.balance_of(owner)
        if held < quote.debit:
            has, pays, lends = (tokens(amount, currency=self.currency) for amount in (held, escrow, quote.deposit))
            raise FundsError(
                f"{owner} holds {has}, but needs escrow {pays} and deposit {lends}",
                hint="fund the account; the deposit is returned when the job is done",
            )
        store_parts(self.store, quote)
        deadline = Seconds(self.w3.eth.get_block("latest")["timestamp"] + PERMIT_SECONDS)
        permit = token.permit_or_none(self.account, vault.address, quote.debit, deadline)
        if permit is None:
            before = token.approvals(owner, vault.address, quote.debit)
            call = replace(market.create(quote.params, nonce, escrow), before=before)
        else:
            call = market.create_with_permit(quote.params, nonce, escrow, permit)
        self._send(call, f"create/{job.hex()}")
        return JobHandle(self, job)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Allows one submission of this home at a time: a permit is valid only for the token's next nonce."""
        self._make_home()
        # The system's own lock: it ends with its holder, however that ends.
        with FileLock(self.home / "submit.lock", fallback_to_soft=False):
            yield

    def jobs(self) -> list[tuple[JobHandle, Address]]:
        """Returns every job of the market with its requester, latest first."""
        return [(JobHandle(self, known.id), known.requester) for known in reversed(self.opened().jobs.values())]

    def find(self, text: str) -> JobHandle:
        """Returns the job whose id begins with these hex digits, at least six; raises UsageError, NotFoundError."""
        return JobHandle(self, self.opened().job_named(text))

    def job(self, job: JobId) -> JobHandle:
        """Returns a job on chain; raises NotFoundError."""
        if self.contracts.market.job(job).status == JobStatus.NONE:
            raise NotFoundError(f"no job {job.hex()}", hint="check the id and the deployment")
        return JobHandle(self, job)


def connect(
    network: str | None = None,
    *,
    rpc: str | None = None,
    storage: str | None = None,
    deployment: str | Path | Addresses | None = None,
    account: LocalAccount | None = None,
    home: str | Path | None = None,
    password_file: str | Path | None = None,
) -> Network:
    """Connects to a market, given its name, or its RPC URL, storage and deployment.

    "local" is the market of `lockstep local up`; other names are defined in networks.toml. Missing arguments are
    looked up as by every command: LOCKSTEP_*, ./lockstep.toml, the network. Without `account` the home's key is used,
    and opened with the password file when something must be signed. Raises UsageError, Unreachable or ChainError.
    """
    addresses = deployment if isinstance(deployment, Addresses) else None
    settings = resolve(
        network=network, rpc=rpc, storage=storage, home=None if home is None else str(home),
        deployment=None if deployment is None or addresses else str(deployment),
        password_file=None if password_file is None else str(password_file),
    )  # fmt: skip
    net = Network.at(settings, addresses, account=account)
    net.store.check()
    return net


def train(
    model: nn.Module | Callable[[], nn.Module],
    data: Any,
    *,
    budget: str | float | Decimal,
    loss: Loss | RandomLoss | None = None,
    network: Network | str | None = None,
    **described: Any,
) -> JobHandle:
    """Opens a job that trains a model on data, and returns its handle at once.

    handle = lockstep.train(Net(), "texts", budget="60 LST", rounds=2).wait()

    `model`: a module, or a function that makes one. `data`: a folder or file, a list of texts, integers [N, L], arrays,
    a torch Dataset, or one of Hugging Face's `datasets`. `budget`: hard cap on escrow plus deposit, in the market's
    token: 60 or "60 LST". `loss(model, rows)` defaults to the model's own, or next-token prediction. `network`: a
    market, or its name; default: as every command finds it. `described`: batch, inner_steps, and keys of a
    description, e.g. rounds, slots, strategy, terms, price, seed (docs/training.md); `title`, the job's human-readable
    name, defaults to the name of the model's class.

    Raises BudgetExceeded, FundsError, UsageError, LoweringError.
    """
    from lockstep.training.given import job_given, made_of
    from lockstep.training.models import describe, is_own
    from lockstep.training.wrappers import unwrapped

    net = network if isinstance(network, Network) else connect(network)
    cap = amount_of(budget, "budget", currency=net.currency)
    if net.terms is not None:
        described.setdefault("terms", net.terms)
    made = made_of(model, described.get("seed", 0))
    described.setdefault("title", type(unwrapped(made)).__name__[:MAX_TITLE])
    job = job_given(made, data, loss=loss, **described)
    handle = net.submit(net.quote(job), budget=cap)
    return replace(handle, own=made) if is_own(describe(made)) else handle
