"""`lockstep train`: describes a job, quotes it, runs it, and fetches its model."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.base.amounts import amount_of, require_amount, tokens
from lockstep.base.lines import say
from lockstep.base.naming import JOBS_SHOWN, address_of, digits_of, short
from lockstep.base.settings import resolve
from lockstep.chain.keys import KEYSTORE
from lockstep.cli.described import Sets, Target, read
from lockstep.cli.options import Commands, GasPrice, Json, PartyFlags, PublicFlags, Threads
from lockstep.cli.output import emit
from lockstep.cli.templates import SCRIPT, template_of
from lockstep.protocol.errors import Inconclusive, Mismatch, TryLater, UsageError

if TYPE_CHECKING:
    from lockstep.cli.described import DescribedJob
    from lockstep.client import JobHandle, Network
    from lockstep.requester.following import FollowedJob
    from lockstep.training.checking import Checked

app = Commands(name="train", help="Create, run and follow training jobs.", no_args_is_help=True)

NewFile = Annotated[Path, typer.Argument(metavar="JOB.toml|FILE.py", help="File to write.")]
Price = Annotated[
    str | None,
    typer.Option(
        "--price", metavar="AMOUNT",
        help="Pay of a slot for 10^15 operations, the unit of workers' --min-price; default: that of the terms.",
    ),
]  # fmt: skip
Budget = Annotated[
    str, typer.Option(metavar="AMOUNT", help="Hard cap on escrow plus deposit, in the market's token, e.g. 20.5.")
]
Title = Annotated[str | None, typer.Option("--title", help="Human-readable name of the job, for pages and lists.")]
Ema = Annotated[
    bool, typer.Option("--ema", help="Use the moving average of the weights over the merges, if the job has `ema`.")
]
SHOWN_BUFFERS = 6
"""Buffer names that `train check` prints per rule."""
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, or at least its first 6 hex digits.")]


@app.command("init")
def init(
    path: NewFile = Path("job.toml"),
    example: Annotated[
        bool, typer.Option("--example", help="Also write a folder of English texts, and use terms for a local market.")
    ] = False,
    strategy: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of a registered strategy, to write with all its fields.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a job description to start from; for FILE.py, a model in plain PyTorch and the function that makes it."""
    texts, script = path.parent / "texts", path.suffix == ".py"
    if script and strategy is not None:
        raise UsageError(
            f"--strategy {strategy} does not apply to {path}",
            hint=f"give --set strategy.name={strategy} to `train run`",
        )
    template = SCRIPT if script else template_of(strategy)
    if example and texts.exists():
        raise UsageError(f"{texts} exists", hint="move it away, or omit --example")
    try:
        with path.open("x") as file:
            file.write(template.replace('terms = "devnet"', 'terms = "local" ') if example else template)
        if example:
            from lockstep.training.data import speeches

            texts.mkdir()
            for document in speeches():
                (texts / document.name).write_bytes(document.text)
    except FileExistsError as error:
        raise UsageError(f"{path} exists", hint="choose another name, or edit that file") from error
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint="name a file in a writable folder"
        ) from error
    then = f"`lockstep train check {path}:make`" if script else f"`lockstep train quote {path}`"
    emit({"path": str(path)}, as_json, text=f"{path}: edit it, then {then}")


@app.command("check")
def check(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:FUNCTION",
            help="Function that returns (model, loss or None, Batch), optionally with rows.",
        ),
    ],
    sets: Sets = None,
    runs: Annotated[
        bool, typer.Option("--run/--no-run", help="Run some steps and compare them, or only trace the model.")
    ] = True,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Check that your own model can be trained: trace it, and name the line that cannot become a Program; then run
    some steps, and compare their bits with an independent implementation and their gradients with eager PyTorch's.
    The file is imported."""
    from lockstep.training.checking import check as tried

    described = read(target, sets).fields if sets else None
    found = tried(target, described=described, runs=runs, threads=resolve(threads=threads).threads)
    lines = [*_checked_lines(found), *_next_lines(target, found, sets or ())]
    emit({**asdict(found), "differs": found.differs}, as_json, text="\n".join(lines))
    if found.differs:
        raise typer.Exit(Mismatch.exit_code)


def _next_lines(target: str, found: Checked, sets: Sequence[str]) -> list[str]:
    """Returns the commands that turn a checked model into a job."""
    if found.differs:
        return []
    texts = "".join(f" --set {shlex.quote(each)}" for each in sets) if found.rows else " --set texts=FOLDER"
    return [
        f"`lockstep train rehearse {target}{texts} --set rounds=1` runs one round on this machine",
        f"`lockstep train run {target}{texts} --budget AMOUNT` opens the job; `train quote` shows its cost",
    ]


def _written_lines(found: Checked) -> list[str]:
    """Returns a line for each merge rule: the buffers and frozen parameters that it merges, or the first of them."""
    lines = []
    for rule in sorted({b.merge for b in found.written}):
        names = [b.name for b in found.written if b.merge == rule]
        rest = f" and {len(names) - SHOWN_BUFFERS} more" if len(names) > SHOWN_BUFFERS else ""
        lines.append(f"a step writes {', '.join(names[:SHOWN_BUFFERS])}{rest}; merged by {rule}")
    return lines


def _checked_lines(found: Checked) -> list[str]:
    """Returns the result of a model's check as lines of text."""
    from lockstep.training.trial import TOLERANCE

    held = f" and {found.statistics:,} running statistics" if found.statistics else ""
    size = f"{found.parameters:,} parameters{held}, {found.ops:,} operations a step"
    verdict = "a job of this model would train something else" if found.differs else "the model can be trained as a job"
    lines, run = [f"{found.model}: {verdict}; {size}", *_written_lines(found)], found.trial
    if run is None:
        return [*lines, f"no step was run: {found.not_run}"]
    words = "every word" if run.exact else "sampled words of every operation, and the state"
    steps = f"{run.steps} steps on {run.rows}"
    if run.wrong:
        lines.append(f"{steps}: this machine computed wrong bits: {run.wrong}; report it, and run `lockstep doctor`")
    else:
        lines.append(f"{steps}: {words} match an independent implementation")
    for g in run.differing:
        off = "not finite where eager PyTorch's is" if g.error is None else f"relative error {g.error:.2g}"
        lines.append(f"gradient of {g.name} differs from eager PyTorch's: {off}")
    if run.eager:
        lines.append(f"gradients were not compared with eager PyTorch's: {run.eager}")
    elif not run.differing:
        # The error of a gradient that is rounding alone says nothing.
        most = max((g.error for g in run.gradients if g.error is not None and g.error < TOLERANCE), default=0.0)
        lines.append(f"{len(run.gradients)} gradients match eager PyTorch's in {run.precision} within {most:.1g}")
    return lines


@app.command("quote")
def quote(
    target: Target,
    flags: PartyFlags,
    sets: Sets = None,
    threads: Threads = None,
    seconds: Annotated[float, typer.Option(min=0, help="Seconds to spend on timing a step; 0: estimate it.")] = 20.0,
    price: Price = None,
    gas_price: GasPrice = None,
    as_json: Json = False,
) -> None:
    """Trace the job and show its cost to every party: memory, traffic, time, money. Stores and sends nothing."""
    from lockstep.chain import gas
    from lockstep.cli.quoting import terms_of

    described = read(target, sets, price).at(flags.settings())
    stated = None if gas_price is None else gas.fees_stated(gas_price)
    net = _reading(flags)
    quoted = net.quote(described.job(weights=False))
    figures = quoted.figures(resolve(threads=threads).threads, seconds)
    params = quoted.params
    terms = terms_of(net, quoted, figures, stated or gas.fees_now(net.w3))
    data = {
        "escrow": str(quoted.escrow),
        "deposit": str(quoted.deposit),
        "debit": str(quoted.debit),
        "rounds": params.schedule.rounds,
        "slots": params.role.slots,
        "inner_steps": params.role.inner_steps,
        "program_ops": {k: len(getattr(quoted.job.programs, k).ops) for k in ("step", "encode", "merge")},
        **terms.to_dict(),
        **figures.to_dict(),
    }
    head = (
        f"{tokens(quoted.debit)} leave the account: escrow {tokens(quoted.escrow)} for {params.schedule.rounds} rounds "
        f"of {params.role.slots} slots, and a refundable deposit of {tokens(quoted.deposit)}"
    )
    emit(data, as_json, text="\n".join([head, *terms.lines(), *figures.lines()]))


@app.command("rehearse")
def rehearse(
    target: Target,
    sets: Sets = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write the last round's model to.")] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Run the job's rounds on this machine: same bits as the market's slots and merges, without chain or payments."""
    from lockstep.cli.rehearsing import rehearsed

    data, text = rehearsed(read(target, sets).job(), resolve(threads=threads).threads, out)
    emit(data, as_json, text=text)


@app.command("run")
def run(
    target: Target,
    budget: Budget,
    flags: PartyFlags,
    sets: Sets = None,
    title: Title = None,
    price: Price = None,
    as_json: Json = False,
) -> None:
    """Store the job's parts, escrow its price, and open it."""
    require_amount(budget, "--budget")
    _submit(read(target, sets, price, title).at(flags.settings()), budget, _network(flags), as_json)


@app.command("resume")
def resume(
    target: Target,
    model: Annotated[Path, typer.Argument(metavar="DIR", help="Folder written by `train pull`.")],
    budget: Budget,
    flags: PartyFlags,
    sets: Sets = None,
    title: Title = None,
    as_json: Json = False,
) -> None:
    """Continue training a model: open a new job of the same description that starts from its weights."""
    require_amount(budget, "--budget")
    described = read(target, sets, title=title).having(start=str(model.absolute()))
    _submit(described.at(flags.settings()), budget, _network(flags), as_json)


def _submit(described: DescribedJob, budget: str, net: Network, as_json: bool) -> None:
    cap = amount_of(budget, "--budget", currency=net.currency)
    handle = net.submit(net.quote(described.job()), budget=cap)
    emit({"job": handle.id.hex()}, as_json, text=handle.id.hex())


@app.command("list")
def list_(
    flags: PublicFlags,
    mine: Annotated[
        str | None, typer.Option("--of", metavar="ADDRESS", help="List only this requester's jobs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the market's jobs, latest first, with their progress, escrow and requester."""
    from lockstep.cli.why import titles_of
    from lockstep.requester.access import MarketAccess
    from lockstep.requester.following import FollowedJob, statuses_of

    of = None if mine is None else address_of(mine, "--of")
    net = MarketAccess.at(flags.settings())
    jobs = [job for job in reversed(net.opened().jobs.values()) if of is None or job.requester == of]
    handles = [FollowedJob(net, job.id) for job in jobs]
    rows = [
        {**status, "title": title, "requester": job.requester}
        for job, status, title in zip(jobs, statuses_of(handles), titles_of(handles), strict=True)
    ]
    text = [
        f"{short(r['job'])}  {r['status']:<9}  round {r['settled']:>3} of {r['rounds']:<3}  "
        f"escrow {tokens(r['escrow']):<10}  {r['requester']}  {r['title']}".rstrip()
        for r in rows
    ]
    emit(rows, as_json, text="\n".join(text) or "no jobs have been opened on this market")


@app.command("status")
def status(job: JobArgument, flags: PartyFlags, as_json: Json = False) -> None:
    """Show a job's progress, its money, and what it is waiting for."""
    from lockstep.cli.why import explained, titles_of

    handle = _followed(job, flags)
    found, why, (title,) = handle.status(), explained(handle), titles_of([handle])
    named = [f"title  {title}"] if title else []
    lines = [*named, *_status_lines(found), f"waits  {why.waiting.sentence()}"]
    emit({**found, "title": title, "waiting": why.waiting.to_dict()}, as_json, text="\n".join(lines))


@app.command("why")
def why(job: JobArgument, flags: PartyFlags, as_json: Json = False) -> None:
    """Explain in one sentence what a job is waiting for: since when, who can end it, until when, and what you can do.

    Reads only the chain. For what only a worker knows, run `lockstep worker why` on its machine.
    """
    from lockstep.cli.why import explained

    handle = _followed(job, flags)
    found = explained(handle)
    emit({"job": handle.id.hex(), **found.to_dict()}, as_json, text="\n".join(found.lines()))


@app.command("watch")
def watch(
    job: JobArgument,
    *,
    losses: Annotated[
        bool,
        typer.Option("--loss/--no-loss", help="Compute the loss after every merge; costs one forward pass per slot."),
    ] = True,
    flags: PartyFlags,
    as_json: Json = False,
) -> None:
    """Follow a job until it is done: its events, and its loss after every merge. Ctrl-C ends the command, not the job.

    The loss is computed here, from public data: all watchers of the job compute the same value. After a period of
    silence, the command says what the job is waiting for, as `train why` does.
    """
    from lockstep.cli.watching import follow
    from lockstep.client import Network

    digits_of(job, "job", JOBS_SHOWN)
    follow(Network.at(flags.settings()).find(job), losses, as_json)


@app.command("pull")
def pull(
    job: JobArgument,
    *,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the model; default: ./model-JOB.", show_default=False)
    ] = None,
    flags: PartyFlags,
    ema: Ema = False,
    as_json: Json = False,
) -> None:
    """Write the latest merged model: model.safetensors, config.json, its tokenizer if it has one, provenance.json."""
    from lockstep.training.export import not_finite

    handle = _handle(job, flags)
    folder = Path(f"model-{short(handle.id)}") if out is None else out
    path = handle.download(folder, ema=ema)
    if lost := not_finite(path):
        say(
            f"{len(lost)} of the model's tensors hold non-finite numbers, e.g. {lost[0]}: the job has diverged. "
            f"`lockstep train cancel {short(handle.id)}` stops it if it still runs"
        )
    then = (
        f"`lockstep train load {folder}` loads it, and generates text with --prompt TEXT; "
        f"`lockstep train audit {folder}` replays the claims behind it"
    )
    emit({"model_path": str(path)}, as_json, text=f"{path}\n{then}")


@app.command("load")
def load(
    source: Annotated[
        str,
        typer.Argument(
            metavar="DIR|JOB", help="Folder written by `train pull`, or at least the first 6 hex digits of a job's id."
        ),
    ],
    *,
    code: Annotated[
        str | None,
        typer.Option("--model", metavar="FILE.py:FUNCTION", help="For your own model: the function that made it."),
    ] = None,
    ema: Ema = False,
    prompt: Annotated[str | None, typer.Option(help="Text for the model to continue.")] = None,
    tokens_: Annotated[int, typer.Option("--tokens", min=1, max=65_536, help="Number of tokens to generate.")] = 200,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature; 0: the likeliest token.")] = 0.7,
    seed: Annotated[int, typer.Option(min=0, help="Sampling seed; the same seed gives the same text.")] = 0,
    flags: PublicFlags,
    as_json: Json = False,
) -> None:
    """Load a model, check its weights against the chain, and show its class, size and tokenizer, and generated text.

    Exit 10 if a file of DIR differs from the merge on chain. No claim is replayed: `train audit` does that.
    """
    from lockstep.cli.loading import loaded

    data, text = loaded(source, _reading(flags), code, prompt, tokens_, temperature, seed, ema=ema)
    emit(data, as_json, text=text)


@app.command("metrics")
def metrics(job: JobArgument, flags: PartyFlags, as_json: Json = False) -> None:
    """Show a run's loss after every merge, computed from public data; for an evaluation, its result."""
    from lockstep.cli.watching import loss_lines

    handle = _handle(job, flags)
    if handle.evaluates:
        found = handle.metrics()
        more = "" if found.perplexity is None else f", perplexity {found.perplexity:.6g}"
        without = f", without {found.left_out} convicted" if found.left_out else ""
        text = f"loss {found.loss:.8g}{more} ({found.batches} batches, {found.rows} rows{without})"
        # JSON has no word for what is no number: "nan", "inf".
        emit({k: v if v is None or math.isfinite(v) else str(v) for k, v in asdict(found).items()}, as_json, text=text)
        return
    curve = list(handle.losses())
    if not curve:
        raise TryLater(
            "no loss can be computed yet",
            hint="wait until the first round's seed is drawn; a job that names no loss has none",
        )
    emit(
        {"job": handle.id.hex(), "losses": [x.to_dict() for x in curve]},
        as_json,
        text="\n".join(loss_lines(curve, handle.id.hex())),
    )


@app.command("audit")
def audit(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Folder written by `train pull`.")],
    *,
    claims: Annotated[
        int | None, typer.Option(min=0, help="Number of slots' claims to replay, latest first; default: all.")
    ] = None,
    flags: PublicFlags,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Check a model against the chain: its files, its checkpoint, and every merge and claim behind it.

    Exit 10 if anything differs, 11 if the evidence is unavailable.
    """
    from lockstep.training.audit import audit as check

    net = _reading(flags)
    report = check(
        out, net.contracts, net.store, net.ledger(), claims=claims, threads=resolve(threads=threads).threads, say=say
    )
    data = {"job": report.job, "ok": report.ok, "findings": [asdict(f) for f in report.findings]}
    lines = [f"{f.check:<12} {f.verdict:<12} {f.detail}" for f in report.findings]
    emit(data, as_json, text="\n".join(lines))
    if not report.ok:
        raise typer.Exit(Mismatch.exit_code if report.differs else Inconclusive.exit_code)


@app.command("cancel")
def cancel(job: JobArgument, flags: PartyFlags, as_json: Json = False) -> None:
    """Cancel a job: start no new rounds, and refund what the rounds in progress do not need."""
    handle = _handle(job, flags)
    handle.cancel()
    found = handle.status()
    emit(found, as_json, text="\n".join(_status_lines(found)))


@app.command("withdraw")
def withdraw(flags: PartyFlags, as_json: Json = False) -> None:
    """Withdraw what the vault owes: refunds, and the requester's share of slashed stakes."""
    amount = _network(flags).withdraw()
    emit({"withdrawn": str(amount)}, as_json, text=tokens(amount))


def _status_lines(found: Mapping[str, Any]) -> list[str]:
    """Returns a job's progress and money as lines of text."""
    failed = f", {found['failed']} failed" if found["failed"] else ""
    money = ", ".join(f"{name} {tokens(found[name])}" for name in ("escrow", "paid", "refunded"))
    rounds = f"{found['settled']} of {found['rounds']} rounds settled, {found['started']} started{failed}"
    return [f"job    {short(found['job'])}, {found['status']}: {rounds}", f"money  {money}"]


def _network(flags: PartyFlags) -> Network:
    from lockstep.chain.addresses import Addresses
    from lockstep.chain.keys import load_account
    from lockstep.client import connect

    s = flags.settings()
    Addresses.load(s.deployment)
    # The key before the chain: a wrong password is told before anything is asked of that.
    account = load_account(s.home_path / KEYSTORE, s.password())
    return connect(rpc=s.rpc, storage=s.storage, deployment=s.deployment, account=account, home=s.home_path)


def _reading(flags: PublicFlags) -> Network:
    """Connects to a market without a key; the key is opened only if something must be signed."""
    from lockstep.client import connect

    s = flags.settings()
    return connect(
        rpc=s.rpc, storage=s.storage, deployment=s.deployment, home=s.home, password_file=s.password_file or None
    )


def _handle(job: str, flags: PartyFlags) -> JobHandle:
    digits_of(job, "job", JOBS_SHOWN)
    return _reading(flags).find(job)


def _followed(job: str, flags: PartyFlags) -> FollowedJob:
    """Returns a handle that reads only the chain, so that an unreachable store hides nothing of the job."""
    from lockstep.requester.access import MarketAccess
    from lockstep.requester.following import FollowedJob

    digits_of(job, "job", JOBS_SHOWN)
    net = MarketAccess.at(flags.settings())
    return FollowedJob(net, net.opened().job_named(job))
