"""Quotes: a job with its price and all its commitments, before anything is stored or sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from lockstep.base import markup
from lockstep.base.amounts import TEST_TOKEN, Currency, tokens
from lockstep.execution.jobs import TrainingJob, subtree_root, zeros_of
from lockstep.execution.losses import NAME as LOSS
from lockstep.execution.quoting import SECONDS, Figures, figures_of
from lockstep.execution.rates import price_of, slot_operations
from lockstep.protocol.errors import UsageError
from lockstep.protocol.jobs import (
    NO_STATE,
    ZERO,
    Genesis,
    JobParams,
    Merging,
    Pricing,
    Role,
    RoundSchedule,
    SpecRef,
    Windows,
)
from lockstep.protocol.market.job_rules import ChainTimes, answer_floor
from lockstep.protocol.programs.program import PROFILE, Program
from lockstep.protocol.types import Cid, Digest, StateRoot, Wei
from lockstep.storage import ContentStore, cid_of, cid_of_block
from lockstep.storage.containers import MAX_PROGRAM_BYTES, JobSpec, encode_program
from lockstep.storage.dataset import store_dataset
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.payload import Checkpoint, encode_checkpoint, store_checkpoint

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Quote:
    """A job with its price and commitments: nothing is stored or sent yet."""

    job: TrainingJob
    spec: JobSpec | None
    """None without the initial weights: such a quote has a price but cannot be submitted."""
    params: JobParams
    chain: ChainTimes = field(default_factory=ChainTimes)
    """The deployment's promises about its chain."""
    currency: Currency = TEST_TOKEN
    """The market's token."""

    @property
    def escrow(self) -> Wei:
        """The maximum cost of the job."""
        return self.params.escrow

    @property
    def deposit(self) -> Wei:
        """The deposit in addition to the escrow, in wei; it is returned unless somebody proves the job invalid."""
        return self.params.deposit

    @property
    def debit(self) -> Wei:
        """The amount that leaves the requester's account: escrow and deposit. Gas is paid in the chain's own coin."""
        return Wei(self.escrow + self.deposit)

    @property
    def operations(self) -> int:
        """Operations to train one slot of one round; prices are compared per operation."""
        return slot_operations(self.job.programs, self.job.inner_steps)

    @property
    def price(self) -> Wei:
        """The slot's pay for 10^15 operations, a worker's `--min-price`; rounded down."""
        return price_of(self.params.role.slot_price, self.operations)

    def _rows(self) -> list[tuple[str, object]]:
        role = self.params.role
        return [
            *((name, tokens(getattr(self, name), currency=self.currency)) for name in ("debit", "escrow", "deposit")),
            ("rounds", self.params.schedule.rounds), ("slots", role.slots), ("steps of a slot", role.inner_steps),
            ("model", self.job.model_name), *([("title", self.job.title)] if self.job.title else []),
        ]  # fmt: skip

    def _repr_html_(self) -> str:
        return markup.table("quote", self._rows())

    def __str__(self) -> str:
        return markup.aligned("quote", self._rows())

    def __repr__(self) -> str:
        return f"<Quote: {tokens(self.debit, currency=self.currency)} for {self.job!r}>"

    def figures(self, threads: int = 1, budget_seconds: float = SECONDS) -> Figures:
        """Returns memory, traffic, time and cost by role; timing a step takes at most `budget_seconds`."""
        return figures_of(self.job, self.params, self.chain, threads=threads, budget_seconds=budget_seconds)


def _named(job: TrainingJob) -> list[tuple[str, Program]]:
    """Yields every Program of a job's spec."""
    three = [("step", job.programs.step), ("encode", job.programs.encode), ("merge", job.programs.merge)]
    return three if job.loss is None else [*three, (LOSS, job.loss)]


def spec_of(job: TrainingJob, genesis: Checkpoint) -> JobSpec:
    """Returns the spec as it will be stored: CIDs depend only on contents, so a temporary store gives them."""
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
        title=job.title,
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


def store_parts(store: ContentStore, quote: Quote) -> None:
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


def params_of(job: TrainingJob, spec: JobSpec | None, chain: ChainTimes) -> JobParams:
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
