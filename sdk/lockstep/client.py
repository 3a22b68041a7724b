"""The SDK's entry point: connect to a market, quote a job, submit it, watch it, fetch the model.

net = lockstep.connect("local")              # or rpc=..., storage=..., deployment=..., account=...
quote = net.quote(job)                       # what it costs, what it binds
handle = net.submit(quote, budget=quote.debit)
for event in handle.watch(): ...             # Ctrl-C detaches; the job goes on
handle.download("out/")
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from lockstep.base import markup
from lockstep.base.amounts import TEST_TOKEN, Currency, tokens
from lockstep.base.files import write_atomically
from lockstep.base.naming import short
from lockstep.base.settings import resolve
from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Call, Contracts
from lockstep.chain.events import Event, EventReader
from lockstep.chain.finality import FinalityTracker, relied_block
from lockstep.chain.keys import KEYSTORE, load_account
from lockstep.chain.rpc import connect as connect_rpc
from lockstep.execution.jobs import Job, TrainingJob, load, subtree_root, zeros_of
from lockstep.execution.losses import NAME as LOSS
from lockstep.execution.losses import Curve, Losses, MergedLoss
from lockstep.execution.merging import load_checkpoint, merged_again
from lockstep.execution.quoting import SECONDS, Figures, figures_of
from lockstep.execution.rates import price_of, slot_operations
from lockstep.market.ledger import UNSEALED, Ledger, ledger_of
from lockstep.numerics.validate import check_programs
from lockstep.presets import DECIMALS
from lockstep.protocol.errors import BudgetExceeded, FundsError, NotFoundError, TryLater, UsageError
from lockstep.protocol.jobs import (
    NO_STATE,
    ZERO,
    Genesis,
    JobParams,
    JobStatus,
    Merging,
    Phase,
    Pricing,
    Role,
    RoundSchedule,
    SpecRef,
    Windows,
)
from lockstep.protocol.market.ids import job_id
from lockstep.protocol.market.job_rules import ChainTimes, answer_floor, check_params
from lockstep.protocol.programs.defects import job_of
from lockstep.protocol.programs.program import PROFILE, Program
from lockstep.protocol.types import Address, Cid, Digest, JobId, Seconds, StateRoot, Wei
from lockstep.storage import ContentStore, cid_of, cid_of_block, load_manifest, open_store, store_dataset
from lockstep.storage.containers import MAX_PROGRAM_BYTES, JobSpec, encode_program
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.payload import Checkpoint, encode_checkpoint, store_checkpoint
from lockstep.training.metrics import NAME as EVALUATION
from lockstep.training.metrics import EvaluationSpec, Metrics, read_metrics

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from torch import nn
    from web3 import Web3

    from lockstep.chain.outbox import Outbox
    from lockstep.training.audit import AuditReport
    from lockstep.training.brought import Brought

PERMIT_SECONDS = 3600
POLL_SECONDS = 0.5
DEAR = 10**6
"""Tokens from which a slot's price is a sign of terms in another token's decimals."""
SHOWN = 8
"""Digits of an id, and lines, in a notebook."""


@dataclass(frozen=True)
class Quote:
    """A job priced and bound: nothing is stored or sent yet."""

    job: TrainingJob
    spec: JobSpec | None
    """None without the first weights: a price, and nothing that could be opened."""
    params: JobParams
    chain: ChainTimes = field(default_factory=ChainTimes)
    """The deployment's promises about its chain."""
    currency: Currency = TEST_TOKEN
    """The market's token."""

    @property
    def escrow(self) -> Wei:
        """The most that the job costs."""
        return self.params.escrow

    @property
    def deposit(self) -> Wei:
        """The deposit beside the escrow, in wei; it is returned unless somebody proves the job invalid."""
        return self.params.deposit

    @property
    def debit(self) -> Wei:
        """The amount that leaves the requester's account: escrow and deposit. Gas is paid in the chain's own coin."""
        return Wei(self.escrow + self.deposit)

    @property
    def operations(self) -> int:
        """Operations that training one slot of one round takes; prices are compared by them."""
        return slot_operations(self.job.programs, self.job.inner_steps)

    @property
    def price(self) -> Wei:
        """The slot's pay for 10^15 operations, a worker's `--min-price`; rounded down."""
        return price_of(self.params.role.slot_price, self.operations)

    def _repr_html_(self) -> str:
        role = self.params.role
        rows = [
            *((name, tokens(getattr(self, name), currency=self.currency)) for name in ("debit", "escrow", "deposit")),
            ("rounds", self.params.schedule.rounds), ("slots", role.slots), ("steps of a slot", role.inner_steps),
            ("model", _name_of(self.job.model)),
        ]  # fmt: skip
        return markup.table("quote", rows)

    def figures(self, threads: int = 1, budget_seconds: float = SECONDS) -> Figures:
        """Returns memory, traffic, time and cost by role; timing a step takes at most `budget_seconds`."""
        return figures_of(self.job, self.params, self.chain, threads=threads, budget_seconds=budget_seconds)


class Network:
    """One deployment of the market, seen by one account."""

    def __init__(
        self,
        w3: Web3,
        contracts: Contracts,
        store: ContentStore,
        account: LocalAccount | Callable[[], LocalAccount],
        home: Path,
        max_fee_wei: int | None = None,
        max_tip_wei: int | None = None,
        finality: str = "latest",
    ) -> None:
        """`account`: the key, or what opens it once something is to be signed. Reading needs none.

        `max_fee_wei`, `max_tip_wei`: the bounds of `chain.outbox`. `finality`: as in the settings.
        """
        self.finality = finality
        self._bounds = (max_fee_wei, max_tip_wei)
        self.w3 = w3
        self.contracts = contracts
        self.store = store
        self._account = account
        self.home = home

    def _repr_html_(self) -> str:
        jobs = [(short(handle.id), f"{handle.status()['status']}, of {who}") for handle, who in self.jobs()[:SHOWN]]
        places = [("chain", self.contracts.addresses.chain_id), ("market", self.contracts.addresses.market)]
        return markup.table("market", [*places, ("storage", self.store.name), *jobs])

    @property
    def currency(self) -> Currency:
        """The market's token: its symbol and decimals. Terms are scaled to it: `presets.LOCAL.in_decimals(6)`."""
        return self.contracts.token.currency

    @cached_property
    def account(self) -> LocalAccount:
        """The account that signs; raises KeyStoreError if the key cannot be opened."""
        return self._account() if callable(self._account) else self._account

    def outbox(self) -> Outbox:
        """The account's transactions; they survive this process. Raises UsageError if the home cannot be made."""
        from lockstep.chain.outbox import Outbox

        self._make_home()
        return Outbox(self.home / "outbox.sqlite", self.w3, self.account, *self._bounds)

    def quote(self, job: TrainingJob) -> Quote:
        """Validate a job's Programs and terms, compute everything that it will bind.

        Raises ProgramInvalid, or ChainError for terms that the market refuses. Nothing is stored or sent.
        """
        spec = None if job.genesis is None else _spec(job, job.genesis)
        chain = self.contracts.market.chain_times()
        params = _params(job, spec, chain)
        check_params(params, self.contracts.vault.unbond_seconds(), chain)
        check_programs(job.programs.step, job.programs.encode, job.programs.merge, job_of(params))
        return Quote(job, spec, params, chain, self.currency)

    def submit(self, quote: Quote, budget: Wei, nonce: int | None = None) -> JobHandle:
        """Store the job's parts, escrow its price, open it; returns at once when it is on chain.

        `budget` is a hard cap of what leaves the account: raises BudgetExceeded if escrow and deposit are more,
        FundsError if the account holds less than them; nothing is stored or sent in either case. A `nonce` given again
        is the same job.
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
                    f"the job takes {debit}, the budget is {budgeted}: its terms count {DECIMALS} decimals, and the "
                    f"market's token has {decimals}",
                    hint=f"scale them: terms=LOCAL.in_decimals({decimals})",
                )
            raise BudgetExceeded(
                f"the job takes {debit} (escrow {escrow}, deposit {deposit}), the budget is {budgeted}",
                hint="raise the budget, or ask for fewer rounds or slots; the deposit comes back when the job is done",
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
                f"{owner} holds {has}; escrow {pays}, deposit {lends}",
                hint="send the account more; the deposit comes back when the job is done",
            )
        _store_parts(self.store, quote)
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
        """One submission of this home at a time: a permit is good for the token's next nonce alone."""
        self._make_home()
        # The system's own lock: it ends with its holder, however that ends.
        with FileLock(self.home / "submit.lock", fallback_to_soft=False):
            yield

    def _make_home(self) -> None:
        try:
            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise UsageError(
                f"{self.home} cannot be a home: {error.strerror}", hint="name a folder of yours"
            ) from error

    def withdraw(self) -> Wei:
        """Have the vault pay out what it owes the account: refunds, and its part of slashes. Returns the amount."""
        vault = self.contracts.vault
        owed = vault.credits(Address(self.account.address))
        if owed:
            self._send(vault.withdraw(), f"withdraw/{self.w3.eth.get_transaction_count(self.account.address)}")
        return owed

    def _send(self, call: Call, key: str) -> None:
        """One transaction, mined; a key is sent once."""
        outbox = self.outbox()
        try:
            outbox.send(call, key)
        finally:
            outbox.close()

    def ledger(self) -> Ledger:
        """Every job as the chain's events tell it by now."""
        return ledger_of(EventReader(self.w3, self.contracts.addresses))

    def jobs(self) -> list[tuple[JobHandle, Address]]:
        """Every job of the market with its requester, the latest first."""
        return [(JobHandle(self, known.id), known.requester) for known in reversed(self.ledger().jobs.values())]

    def find(self, text: str) -> JobHandle:
        """The job whose id begins with these hex digits, six at least; raises UsageError, NotFoundError."""
        return JobHandle(self, self.ledger().job_named(text))

    def job(self, job: JobId) -> JobHandle:
        """A job on chain; raises NotFoundError."""
        if self.contracts.market.job(job).status == JobStatus.NONE:
            raise NotFoundError(f"no job {job.hex()}", hint="check the id and the deployment")
        return JobHandle(self, job)


@dataclass(frozen=True)
class JobHandle:
    """Controls and follows one job on chain."""

    net: Network
    id: JobId

    def status(self) -> dict[str, Any]:
        """{status, rounds, started, settled, failed, escrow, paid, refunded}; amounts are decimal strings."""
        job, params = self.net.contracts.market.job(self.id), self.net.contracts.market.params(self.id)
        return {
            "job": self.id.hex(),
            "status": job.status.name.lower(),
            "rounds": params.schedule.rounds,
            "started": job.started,
            "settled": job.settled,
            "failed": job.failed,
            "escrow": str(job.escrow),
            "paid": str(job.paid),
            "refunded": str(job.refunded),
        }

    def _repr_html_(self) -> str:
        status = self.status()
        money = [(name, tokens(status[name], currency=self.net.currency)) for name in ("escrow", "paid", "refunded")]
        rows = [("status", status["status"]), ("rounds settled", f"{status['settled']} of {status['rounds']}"), *money]
        return markup.table(f"job {short(self.id)}", rows)

    def cancel(self) -> None:
        """Stop new rounds; what no round in flight has reserved is paid back at once. A second call does nothing."""
        self.net._send(self.net.contracts.market.cancel(self.id), f"cancel/{self.id.hex()}")
        self.net.withdraw()

    def watch(self, poll_seconds: float = POLL_SECONDS) -> Iterator[Event]:
        """The job's events from its beginning as they come, until the block that ends it is relied on (`finality`).

        In a notebook the cell shows how far the job is, each time in the place of the last.
        """
        seen: list[tuple[str, str]] = []
        show = markup.in_place()
        for event in self._events(poll_seconds):
            if show is not None:
                where = [f"{key} {event.args[key]}" for key in ("round", "slot") if key in event.args]
                seen = [*seen[1 - SHOWN :], (event.name, ", ".join(where))]
                show(self._repr_html_() + markup.table("lately", seen))
            yield event

    def _events(self, poll_seconds: float) -> Iterator[Event]:
        reader = EventReader(self.net.w3, self.net.contracts.addresses)
        cursor, done = reader.start(), None
        finality = FinalityTracker(partial(relied_block, self.net.w3, self.net.finality))
        while True:
            batch = reader.poll(cursor)
            cursor = batch.cursor
            if batch.rolled_back_to is not None and done is not None and done > batch.rolled_back_to:
                done = None
            for event in batch.events:
                if event.args.get("job") == self.id and done is None:
                    yield event
                    done = event.block if event.name == "JobDone" else None
            # INVARIANT: a job is over once the block that says so is relied on.
            if done is not None and done <= finality.poll(cursor.next_block - 1):
                return
            if not batch.events:
                time.sleep(poll_seconds)

    @cached_property
    def parts(self) -> Job:
        """The job's Programs, data and start, every root checked; fetched once."""
        return load(self.id, self.net.contracts.market.params(self.id), self.net.store)

    def checkpoint(self) -> tuple[Checkpoint, dict[str, Any]]:
        """The latest merged checkpoint that stands, and where it came from; raises TryLater before the first merge."""
        job = self.parts
        market = self.net.contracts.market
        reader = EventReader(self.net.w3, self.net.contracts.addresses)
        merged = {}
        cursor = reader.start()
        while (batch := reader.poll(cursor)).cursor != cursor:
            cursor = batch.cursor
            for event in batch.events:
                if event.name == "Merged" and event.args["job"] == self.id:
                    merged[event.args["round"], event.args["claim"]] = event
        # A merge that stands in a round that is void, on a convicted one, stands for nothing.
        standing = [
            e
            for (r, claim), e in merged.items()
            if market.claim_id_of(self.id, r) == claim and market.phase(self.id, r) in (Phase.LEAD, Phase.FINAL)
        ]
        if not standing:
            raise TryLater("no round of the job is merged yet", hint="wait for the first merge, then download")
        last = max(standing, key=lambda e: e.args["round"])
        checkpoint = load_checkpoint(
            job, self.net.store, Cid(last.args["checkpoint_cid"]), last.args["out"], last.args["out2"]
        )
        source = {
            "round": last.args["round"],
            "claim": last.args["claim"].hex(),
            "checkpoint": last.args["checkpoint_cid"],
            "shared_root": last.args["out"].hex(),
            "outer_root": last.args["out2"].hex(),
        }
        return checkpoint, source

    def losses(self, known: Sequence[MergedLoss] = ()) -> Iterator[MergedLoss]:
        """The loss of the first weights and after every merge that stands, in order; computed here from public data.

        What `known` has of the same merges is not computed again. Yields nothing if the job's author named no loss
        (an evaluation has `metrics`). Raises the store's errors.
        """
        job, before = self.parts, {found.claim: found for found in known}
        curve = self._losses
        rounds = self.net.ledger().jobs[self.id].rounds
        if curve is None or not rounds or rounds[0].seed == UNSEALED:
            return
        if "" in before:
            yield before[""]
        else:
            loss = curve.at(job.genesis, rounds[0].seed, 0)
            yield MergedLoss(0, None, loss, job.params.role.slots, "", job.spec.genesis)
        merges = 0
        for number in sorted(rounds):
            r = rounds[number]
            merge = None if r.phase is Phase.VOID else r.merge
            if merge is None:
                continue
            merges += 1
            found = before.get(merge.id.hex())
            if found is None:
                checkpoint = load_checkpoint(job, self.net.store, merge.payload_cid, merge.out, merge.out2)
                loss = curve.at(checkpoint, r.seed, merges)
                found = MergedLoss(merges, number, loss, job.params.role.slots, merge.id.hex(), merge.payload_cid)
            yield found

    def curve(self) -> Curve:
        """Returns the losses as one value, which a notebook draws."""
        return Curve(self.losses())

    @cached_property
    def _losses(self) -> Losses | None:
        return Losses.of(self.parts, self.net.store)

    @property
    def evaluates(self) -> bool:
        """Returns True if the job is an evaluation, which has `metrics` and trains nothing."""
        return self.parts.spec.strategy.get("name") == EVALUATION

    def metrics(self) -> Metrics:
        """Reads an evaluation's result after its latest standing merge, checked against the chain.

        A slot that was convicted after it was merged is left out: the rounds' payloads are then merged again without
        it. Raises TryLater before the first merge, UsageError if the job trains.
        """
        job = self.parts
        spec = EvaluationSpec.of(job.spec.strategy)
        checkpoint, source = self.checkpoint()
        rounds = self.net.ledger().jobs[self.id].rounds
        merged = [rounds[r] for r in sorted(rounds) if r <= source["round"] and rounds[r].merge is not None]
        convicted = sum(len(r.merged_and_convicted) for r in merged)
        # INVARIANT: a loss that a proof has shown to be false is in no mean.
        if convicted:
            checkpoint = merged_again(job, self.net.store, [r.record_of_honest(job.params.role.slots) for r in merged])
        return read_metrics(checkpoint.outer, job.programs.step, spec, left_out=convicted)

    def load(self, own: nn.Module | Brought | None = None, *, ema: bool = False) -> nn.Module:
        """The latest merged model as a torch module, its weights checked against the roots on chain.

        `own`: a module that takes the weights, or the function of a file that made it, for a class of its author's.
        Its `tokenizer` is the dataset's (`training.tokens.Tokenizer`), None if it reads bytes; its `source` says which
        round and claim it is of. `ema`: the average of the weights over the merges. Raises as `download` does.
        """
        from lockstep.training.brought import Brought
        from lockstep.training.export import load_model, load_tokenizer

        with TemporaryDirectory(prefix="lockstep-load-") as folder:
            self.download(folder, ema=ema)
            model = own.of(Path(folder)) if isinstance(own, Brought) else load_model(Path(folder), own)
            model.tokenizer = load_tokenizer(Path(folder))  # type: ignore[assignment]
            model.source = json.loads((Path(folder) / "provenance.json").read_text())
        return model

    def audit(self, out: str | Path, *, claims: int | None = None) -> AuditReport:
        """Audits a folder that `download` wrote: files, provenance, checkpoint, and `claims` replayed claims (None: all
        behind the model)."""
        from lockstep.training.audit import audit

        return audit(Path(out), self.net.contracts, self.net.store, self.net.ledger(), claims=claims)

    def download(self, out: str | Path, *, ema: bool = False) -> Path:
        """Write model.safetensors, config.json, provenance.json and a dataset's tokenizer into `out`; returns the
        model's path.

        Of an evaluation it is the model that was evaluated. `ema`: the average of the weights over the merges.
        Raises TryLater before the first merge, UsageError if `out` cannot be written or the job keeps no average.
        """
        from lockstep.training.averages import AVERAGE, AverageSpec
        from lockstep.training.export import save_model, save_tokenizer

        checkpoint, source = self.checkpoint()
        job = self.parts
        folder = Path(out)
        weights = AverageSpec.of(job.spec.strategy).weights(checkpoint) if ema else checkpoint.shared
        try:
            path: Path = save_model(folder, weights, job.spec.parameters, job.spec.model, job.programs.step.consts)
        except OSError as error:
            raise UsageError(f"{folder} cannot be written: {error.strerror}", hint="name another folder") from error
        manifest = load_manifest(self.net.store, job.spec.dataset)
        if manifest.tokenizer is not None:
            save_tokenizer(folder, manifest.tokenizer.recipe(self.net.store))
        addresses = self.net.contracts.addresses
        provenance = {
            "job": self.id.hex(),
            "chain_id": addresses.chain_id,
            "market": addresses.market,
            "programs": {name: getattr(job.programs, name).root.hex() for name in ("step", "encode", "merge")},
            "dataset_root": job.params.role.dataset_root.hex(),
            "spec": job.params.spec.digest.hex(),
            **({"rows": str(manifest.form)} if manifest.form is not None and manifest.form.fields else {}),
            **source,
            **({AVERAGE: True} if ema else {}),
        }
        write_atomically(folder / "provenance.json", [(json.dumps(provenance, indent=2) + "\n").encode()])
        return path


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
    """A market by name, or by its RPC URL, storage and deployment.

    "local" is the one of `lockstep local up`; other names stand in networks.toml. What is not given is looked for as
    every command does: LOCKSTEP_*, ./lockstep.toml, the network. Without `account` the key is the home's, opened with
    the password file once something is to be signed. Raises UsageError, Unreachable or ChainError.
    """
    addresses = deployment if isinstance(deployment, Addresses) else None
    settings = resolve(
        network=network, rpc=rpc, storage=storage, home=None if home is None else str(home),
        deployment=None if deployment is None or addresses else str(deployment),
        password_file=None if password_file is None else str(password_file),
    )  # fmt: skip
    addresses = addresses or Addresses.load(settings.deployment)
    w3 = connect_rpc(settings.rpc, addresses.chain_id)
    contracts, store = Contracts.at(w3, addresses), open_store(settings.storage)
    store.check()
    key = account or (lambda: load_account(settings.home_path / KEYSTORE, settings.password()))
    return Network(
        w3, contracts, store, key, settings.home_path, settings.max_fee_wei, settings.max_tip_wei,
        settings.finality,
    )  # fmt: skip


def _name_of(model: Any) -> str:
    """A model by what its configuration calls it."""
    if not isinstance(model, dict):
        return "-"
    return next((str(model[key]) for key in ("model_type", "class", "model", "kind") if model.get(key)), "-")


def _named(job: TrainingJob) -> list[tuple[str, Program]]:
    """Every Program of a job's spec."""
    three = [("step", job.programs.step), ("encode", job.programs.encode), ("merge", job.programs.merge)]
    return three if job.loss is None else [*three, (LOSS, job.loss)]


def _spec(job: TrainingJob, genesis: Checkpoint) -> JobSpec:
    """The spec as it will be stored: CIDs follow from contents, so a throw-away store names them."""
    with TemporaryDirectory(prefix="lockstep-quote-") as folder:
        dataset = store_dataset(DirectoryStore(Path(folder)), job.dataset)
    return JobSpec(
        programs={name: _cid_of_program(name, program) for name, program in _named(job)},
        dataset=dataset,
        genesis=cid_of_block(encode_checkpoint(genesis), "dag-cbor"),
        model=job.model,
        parameters=job.parameters,
        strategy=job.strategy,
        arithmetic=job.arithmetic,
    )


def _cid_of_program(name: str, program: Program) -> Cid:
    data = encode_program(program)
    # INVARIANT: no job is opened whose parts its parties would refuse to read.
    if len(data) > MAX_PROGRAM_BYTES:
        raise UsageError(
            f"the {name} Program has {len(data)} bytes, more than the {MAX_PROGRAM_BYTES} that parties read",
            hint="use a model with fewer operations",
        )
    return cid_of(data)


def _store_parts(store: ContentStore, quote: Quote) -> None:
    job, spec = quote.job, quote.spec
    assert job.genesis is not None, "it has a spec"
    assert spec is not None, "who asks has looked"
    stored = {name: store.put(encode_program(program, store.put)) for name, program in _named(job)}
    stored |= {"dataset": store_dataset(store, job.dataset), "genesis": store_checkpoint(store, job.genesis)}
    # INVARIANT: what was quoted is what is opened: a frozen model's weights are shared with the caller, not copied.
    changed = sorted(k for k, cid in stored.items() if cid != {**spec.programs, **vars(spec)}[k])
    if changed:
        raise UsageError(f"{', '.join(changed)} changed since the quote", hint="quote the job again")
    store.put(spec.encode(), codec="dag-cbor")


def _params(job: TrainingJob, spec: JobSpec | None, chain: ChainTimes) -> JobParams:
    step, encode, merge = job.programs.step, job.programs.encode, job.programs.merge
    sections, outputs = job.sections, merge.output_layout
    carry, payload = step.inputs[sections.carry], encode.output_layout[sections.payload]
    start = job.genesis
    terms = job.terms
    return JobParams(
        SpecRef(ZERO if spec is None else spec.digest, PROFILE, max(p.opset for p in (step, encode, merge))),
        Genesis(
            shared=NO_STATE if start is None else StateRoot(subtree_root(outputs[sections.shared], start.shared)),
            outer=NO_STATE if start is None else StateRoot(subtree_root(outputs[sections.outer], start.outer)),
            shared_depth=job.shared_depth,
        ),
        RoundSchedule(job.rounds, terms.max_lead, terms.max_fail),
        Windows(
            join_seconds=terms.join_seconds,
            challenge_seconds=terms.challenge_seconds,
            answer_seconds=max(terms.answer_seconds, answer_floor(job.dataset.row_tokens, chain.inclusion)),
            audit_seconds=terms.audit_seconds,
            clock_seconds=terms.clock_seconds,
            step_seconds=terms.step_seconds,
        ),
        Merging(
            Digest(merge.root),
            job.aggregator,
            turn_seconds=terms.merge_seconds,
            price=terms.merge_price,
            stake=terms.merge_stake,
        ),
        Pricing(terms.bond, terms.witness_stake, terms.gas_price, terms.fee_cap),
        (
            Role(
                step_program=Digest(step.root),
                encode_program=Digest(encode.root),
                dataset_root=Digest(job.dataset.root),
                dataset_rows=job.dataset.row_count,
                row_length=job.dataset.row_tokens,
                zero_carry=NO_STATE if start is None else StateRoot(subtree_root(carry, zeros_of(carry))),
                zero_payload=NO_STATE if start is None else StateRoot(subtree_root(payload, zeros_of(payload))),
                carry_depth=job.shared_depth,
                payload_depth=job.payload_depth,
                carry_period=terms.carry_period if job.carry else 0,
                merged=True,
                inner_steps=job.inner_steps,
                slots=job.slots,
                min_slots=job.min_slots,
                train_seconds=terms.train_seconds,
                reveal_seconds=terms.reveal_seconds,
                attest_seconds=terms.attest_seconds,
                slot_price=terms.slot_price,
                slot_stake=terms.slot_stake,
                witnesses=terms.witnesses,
                witness_fee=terms.witness_fee,
            ),
        ),
    )
