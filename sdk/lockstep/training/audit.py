"""Checks a downloaded model against all public data: files, provenance, chain, blobs, every claim behind it.

    report = audit(folder, contracts, store, ledger)
    report.ok           # nothing differs
    report.findings     # one per check, in order

Nothing is trusted: the files are regenerated from the checkpoint, the checkpoint is hashed against the merge's claim,
and merges and slots are replayed from public data. The folder's own provenance only says where to begin.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.base.decoding import MAX_FILE_BYTES, file_bytes, from_json
from lockstep.execution.jobs import Job, load
from lockstep.execution.merging import load_checkpoint
from lockstep.market import replay
from lockstep.market.ledger import ClaimRecord, JobLedger, Ledger, RoundLedger
from lockstep.protocol.errors import LockstepError, Malformed, NotFoundError, UsageError
from lockstep.protocol.jobs import JobStatus, Phase
from lockstep.protocol.types import Cid, ClaimId, JobId
from lockstep.storage.dataset import load_manifest
from lockstep.training.averages import AVERAGE, AverageSpec
from lockstep.training.export import CONFIG_FILE, MODEL_FILE, save_model, save_tokenizer

if TYPE_CHECKING:
    from lockstep.chain.contracts import Contracts
    from lockstep.storage import ContentStore
    from lockstep.storage.payload import Checkpoint

PROVENANCE_FILE = "provenance.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_TEXTS = ("job", "market", "spec", "dataset_root", "claim", "checkpoint", "shared_root", "outer_root")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Check:
    """The result of one check of an audit."""

    check: str
    verdict: str
    """ "ok", "differs", "unavailable" (the evidence is missing), or "note" (worth knowing, not a fault)."""
    detail: str


@dataclass
class AuditReport:
    """The findings of an audit."""

    job: str
    findings: list[Check] = field(default_factory=list)

    @property
    def differs(self) -> bool:
        """True if anything checked differs from what the chain commits to."""
        return any(f.verdict == "differs" for f in self.findings)

    @property
    def ok(self) -> bool:
        """True if everything was checked and nothing differs."""
        return all(f.verdict in ("ok", "note") for f in self.findings)


@dataclass(frozen=True)
class Provenance:
    """The provenance that a download states."""

    fields: dict[str, Any]

    @staticmethod
    def read(folder: Path) -> Provenance:
        """Reads a folder's provenance file; raises NotFoundError, UsageError."""
        path = folder / PROVENANCE_FILE
        try:
            found = from_json(file_bytes(path), MAX_FILE_BYTES)
        except FileNotFoundError as error:
            raise NotFoundError(
                f"no {PROVENANCE_FILE} in {folder}", hint="name a folder written by `lockstep train pull`"
            ) from error
        except (OSError, Malformed) as error:
            raise UsageError(f"{path} cannot be read: {error}", hint="download the model again") from error
        if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in _TEXTS):
            raise UsageError(f"{path} is from another release", hint="download the model again")
        return Provenance(found)

    @property
    def job(self) -> JobId:
        """The job's id; raises UsageError if the file has an invalid one."""
        return JobId(_digest(self.fields["job"], "job"))

    @property
    def claim(self) -> ClaimId:
        """The merge's claim; raises UsageError if the file has an invalid one."""
        return ClaimId(_digest(self.fields["claim"], "claim"))


def audit(
    folder: Path,
    contracts: Contracts,
    store: ContentStore,
    ledger: Ledger,
    *,
    claims: int | None = None,
    threads: int = 1,
    say: Say = lambda text: None,
) -> AuditReport:
    """Check a folder that `JobHandle.download` wrote.

    `claims`: number of slots' claims to replay, latest rounds first; None: all, which takes as long as the training
    did. Raises NotFoundError or UsageError if there is nothing to check; the report lists differences.
    """
    said = Provenance.read(folder)
    report = AuditReport(said.fields["job"])
    auditing = _Auditing(folder, said, contracts, store, ledger, threads, say)
    for check in (auditing.origin, auditing.merge, auditing.files, lambda: auditing.claims(claims)):
        try:
            report.findings += check()
        except LockstepError as error:
            undecided = isinstance(error, replay.UNAVAILABLE)
            report.findings.append(Check("evidence", "unavailable" if undecided else "differs", error.message))
            break
        if report.differs:
            break
    return report


class _Auditing:
    """Runs the checks in order; each builds on the results of those before it."""

    def __init__(
        self, folder: Path, said: Provenance, contracts: Contracts, store: ContentStore, ledger: Ledger, threads: int,
        say: Say,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._said = said
        self._contracts = contracts
        self._store = store
        self._ledger = ledger
        self._threads = threads
        self._say = say
        self._job: Job | None = None
        self._checkpoint: Checkpoint | None = None

    @property
    def _known(self) -> JobLedger:
        return self._ledger.jobs[self._said.job]

    def origin(self) -> list[Check]:
        """Checks the job's parts, fetched by CID, against the roots on chain."""
        fields, addresses = self._said.fields, self._contracts.addresses
        if (fields.get("chain_id"), fields["market"]) != (addresses.chain_id, addresses.market):
            where = f"chain {fields.get('chain_id')}, market {fields['market']}"
            return [Check("origin", "differs", f"it names {where}, which is not this market")]
        if self._said.job not in self._ledger.jobs:
            return [Check("origin", "differs", f"no job {fields['job']} is on this chain")]
        self._say("fetching the job's parts")
        params = self._contracts.market.params(self._said.job)
        self._job = load(self._said.job, params, self._store, self._threads)
        programs = {name: getattr(self._job.programs, name).root.hex() for name in ("step", "encode", "merge")}
        on_chain = {
            "programs": programs,
            "dataset_root": params.role.dataset_root.hex(),
            "spec": params.spec.digest.hex(),
        }
        wrong = [name for name, value in on_chain.items() if fields.get(name) != value]
        if wrong:
            return [Check("origin", "differs", f"{', '.join(wrong)} differ from the job on chain")]
        return [Check("origin", "ok", "spec, Programs, dataset and initial weights match the job on chain")]

    def merge(self) -> list[Check]:
        """Checks the model's merge: that it was claimed and is valid, and its checkpoint's content."""
        fields = self._said.fields
        found = self._ledger.find(self._said.claim)
        if found is None or not found[2].is_merge or found[2].job != self._said.job:
            return [Check("merge", "differs", f"no merge of this job has the id {fields['claim']}")]
        _, round_, record = found
        said = (fields.get("round"), fields["checkpoint"], fields["shared_root"], fields["outer_root"])
        if said != (record.round, record.payload_cid, record.out.hex(), record.out2.hex()):
            return [Check("merge", "differs", "round, checkpoint or roots differ from the merge on chain")]
        standing = round_.merge is not None and round_.merge.body == record.body and round_.phase is not Phase.VOID
        if record.convicted or not standing:
            return [Check("merge", "differs", "the merge was convicted, or builds on one that was: download again")]
        job = self._loaded
        self._checkpoint = load_checkpoint(job, self._store, Cid(record.payload_cid), record.out, record.out2)
        over = self._contracts.market.job(job.id).status in (JobStatus.DONE,) or round_.phase is Phase.FINAL
        findings = [Check("merge", "ok", f"the checkpoint's hash matches the merge of round {record.round}")]
        if not over:
            findings.append(Check("finality", "note", "the round can still be challenged"))
        return findings

    def files(self) -> list[Check]:
        """Checks every file of the folder against one regenerated from the data that the chain commits to."""
        job = self._loaded
        assert self._checkpoint is not None, "the merge was checked"
        with tempfile.TemporaryDirectory(prefix="lockstep-audit-") as name:
            again = Path(name)
            weights = self._checkpoint.shared
            if self._said.fields.get(AVERAGE) is True:
                weights = AverageSpec.of(job.spec.strategy).weights(self._checkpoint)
            save_model(again, weights, job.spec.parameters, job.spec.model, job.programs.step.consts)
            link = load_manifest(self._store, job.spec.dataset).tokenizer
            if link is not None:
                save_tokenizer(again, link.recipe(self._store))
            due = [MODEL_FILE, CONFIG_FILE, *(TOKENIZER_FILES if link is not None else ())]
            wrong = [file for file in due if _hash(self._folder / file) != _hash(again / file)]
        return [
            Check(
                "files", "differs" if wrong else "ok",
                f"{', '.join(wrong or due)} {'differ from' if wrong else 'match'} the checkpoint",
            )
        ]  # fmt: skip

    def claims(self, most: int | None) -> list[Check]:
        """Replays the merges and slots behind the model."""
        job, known, findings = self._loaded, self._known, []
        last = int(self._said.fields["round"])
        behind = [r for n, r in sorted(known.rounds.items()) if n <= last and r.merge is not None]
        convicted = sum(len(r.merged_and_convicted) for r in behind)
        if convicted:
            detail = f"the model contains {convicted} payloads whose claims were convicted after they were merged"
            findings.append(Check("convictions", "note", detail))
        public = replay.PublicData(job, self._store)
        merges = [(r, r.merge) for r in behind if r.merge is not None]
        slots = [(r, r.claims[s]) for r in reversed(behind) for s in sorted(r.claims) if r.mask >> s & 1]
        slots = [(r, claim) for r, claim in slots if not claim.convicted][:most]
        findings += list(self._replayed(public, merges, "merges"))
        if not any(f.verdict == "differs" for f in findings):
            findings += list(self._replayed(public, slots, "claims"))
        return findings

    def _replayed(
        self, public: replay.PublicData, claims: list[tuple[RoundLedger, ClaimRecord]], what: str
    ) -> Iterator[Check]:
        right = 0
        for round_, record in claims:
            self._say(f"replaying round {record.round}, " + ("merge" if record.is_merge else f"slot {record.slot}"))
            try:
                run = public.run_of(self._known, round_, record)
                done = replay.audit(run, record, self._store)
            except replay.UNAVAILABLE as error:
                yield Check(what, "unavailable", f"claim {record.id.hex()}: {error.message}")
                continue
            if done.matches:
                right += 1
            else:
                place = f"first differs at step {done.t}" if done.t else "has a trace that no run gives"
                yield Check(what, "differs", f"claim {record.id.hex()} of round {record.round} {place}")
        whole = right == len(claims)
        yield Check(what, "ok" if whole else "note", f"{right} of {len(claims)} replayed with identical bits")

    @property
    def _loaded(self) -> Job:
        assert self._job is not None, "the origin was checked"
        return self._job


def _digest(text: str, name: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != 32:
        raise UsageError(f"{PROVENANCE_FILE}: {name} is {text!r}", hint="download the model again")
    return value


def _hash(path: Path) -> bytes:
    """Returns a digest of a file's content, empty if there is no such file; JSON is compared by its values."""
    if not path.is_file():
        return b""
    if path.suffix == ".json":
        try:
            return sha256(json.dumps(from_json(file_bytes(path), 1 << 28), sort_keys=True).encode()).digest()
        except (OSError, Malformed):
            return b""
    digest = sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.digest()
