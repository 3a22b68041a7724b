"""The results of a job on chain: its checkpoint, losses and model, checked against the chain."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lockstep.base.files import write_atomically
from lockstep.execution.jobs import Job, load
from lockstep.execution.losses import Curve, Losses, MergedLoss
from lockstep.execution.merging import load_checkpoint, merged_again
from lockstep.market.ledger import UNSEALED
from lockstep.protocol.errors import TryLater, UsageError
from lockstep.protocol.jobs import Phase
from lockstep.protocol.types import Cid
from lockstep.requester.following import FollowedJob
from lockstep.storage.dataset import load_manifest
from lockstep.storage.payload import Checkpoint
from lockstep.training.metrics import NAME as EVALUATION
from lockstep.training.metrics import EvaluationSpec, Metrics, read_metrics

if TYPE_CHECKING:
    from torch import nn

    from lockstep.training.audit import AuditReport
    from lockstep.training.brought import Brought


@dataclass(frozen=True, repr=False)
class JobHandle(FollowedJob):
    """Controls and follows one job on chain, and fetches its model."""

    own: nn.Module | None = field(default=None, compare=False)
    """The trained module, if it is of a custom class: `load` fills a copy of it."""

    @cached_property
    def parts(self) -> Job:
        """The job's Programs, data and first checkpoint, every root checked; fetched once."""
        return load(self.id, self.params, self.net.store)

    def checkpoint(self) -> tuple[Checkpoint, dict[str, Any]]:
        """Returns the latest valid merged checkpoint and its provenance; raises TryLater before the first merge."""
        job = self.parts
        market = self.net.contracts.market
        merged = {(e.args["round"], e.args["claim"]): e for e in self._so_far() if e.name == "Merged"}
        # A merge that stands in a round that is void, on a convicted one, stands for nothing.
        standing = [
            e
            for (r, claim), e in merged.items()
            if market.claim_id_of(self.id, r) == claim and market.phase(self.id, r) in (Phase.LEAD, Phase.FINAL)
        ]
        if not standing:
            raise TryLater("no round of the job is merged yet", hint="wait for the first merge, then retry")
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
        """Yields the loss of the initial weights and after every valid merge, in order; computed here from public data.

        Losses that `known` has for the same merges are not recomputed. Yields nothing if the job's author named no loss
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

        A slot that was convicted after its round's merge is excluded: the rounds' payloads are then merged again
        without it. Raises TryLater before the first merge, UsageError if the job trains.
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
        """Returns the latest merged model as a torch module, its weights checked against the roots on chain.

        `own`: for a custom class, a module that receives the weights, or the function of a file that makes it; a
        handle of `lockstep.train` has the module. The result's `tokenizer` is the dataset's
        (`training.tokens.Tokenizer`), None if it reads bytes; its `source` names its round and claim.
        `ema`: the moving average of the weights over the merges. Raises the errors of `download`.
        """
        from lockstep.training.brought import Brought
        from lockstep.training.export import load_model, load_tokenizer

        if own is None and self.own is not None:
            own = copy.deepcopy(self.own)
        with TemporaryDirectory(prefix="lockstep-load-") as folder:
            self.download(folder, ema=ema)
            model = own.of(Path(folder)) if isinstance(own, Brought) else load_model(Path(folder), own)
            model.tokenizer = load_tokenizer(Path(folder))  # type: ignore[assignment]
            model.source = json.loads((Path(folder) / "provenance.json").read_text())
        return model

    def sample(
        self,
        prompt: str,
        tokens: int = 200,
        *,
        temperature: float = 0.7,
        seed: int = 0,
        own: nn.Module | Brought | None = None,
    ) -> str:
        """Generates `tokens` tokens (or bytes, for a model of bytes) with the latest merged model after a prompt.

        `temperature` 0 takes the likeliest token; the same seed gives the same text; `own` as in `load`. Raises
        TryLater before the first merge, UsageError for a model that does not generate text.
        """
        from lockstep.training.export import write_text

        model: Any = self.load(own)
        return write_text(model, model.tokenizer, prompt, tokens, temperature=temperature, seed=seed)

    def audit(self, out: str | Path, *, claims: int | None = None) -> AuditReport:
        """Audits a folder that `download` wrote: files, provenance, checkpoint, and `claims` replayed claims (None: all
        behind the model)."""
        from lockstep.training.audit import audit

        return audit(Path(out), self.net.contracts, self.net.store, self.net.ledger(), claims=claims)

    def download(self, out: str | Path, *, ema: bool = False) -> Path:
        """Write model.safetensors, config.json, provenance.json and a dataset's tokenizer into `out`; returns the
        model's path.

        For an evaluation, the model is the evaluated one. `ema`: the moving average of the weights over the merges.
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
            "job": self.name,
            "chain_id": addresses.chain_id,
            "market": addresses.market,
            "programs": {name: getattr(job.programs, name).root.hex() for name in ("step", "encode", "merge")},
            "dataset_root": job.params.role.dataset_root.hex(),
            "spec": job.params.spec.digest.hex(),
            **({"rows": str(manifest.form)} if manifest.fielded else {"row_length": manifest.row_length}),
            **source,
            **({AVERAGE: True} if ema else {}),
        }
        write_atomically(folder / "provenance.json", [(json.dumps(provenance, indent=2) + "\n").encode()])
        return path
