"""`lockstep train`: describe a job, know its price, run it, fetch the model."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.base.amounts import amount_of, tokens
from lockstep.base.decoding import file_bytes, from_toml
from lockstep.base.settings import resolve
from lockstep.chain.keys import KEYSTORE
from lockstep.cli.options import DeploymentFile, Home, Json, PasswordFile, Rpc, Storage, Threads
from lockstep.cli.output import emit, event, say
from lockstep.protocol.errors import Malformed, UsageError

if TYPE_CHECKING:
    from lockstep.client import JobHandle, Network, TrainingJob
    from lockstep.protocol.types import JobId

app = typer.Typer(name="train", help="Training jobs of a requester.", no_args_is_help=True)

TEMPLATE = """# A training job: a small GPT on a folder of text, DiLoCo over a few rounds.
texts = "texts"            # folder of *.txt, UTF-8; one file is a document
seed = 0                   # of the first weights
rounds = 6
slots = 3
min_slots = 2
terms = "devnet"           # windows and prices; or "local", "mainnet"
aggregator = ""            # address that merges first; empty: slot owners alone

# [tokens]                 # without it a token is a byte
# tokenizer = "tokenizer.json"    # of Hugging Face; model.vocabulary holds its tokens
# separator = "</s>"       # its token after each document; default: an empty line

[model]                    # the fields of lockstep.training.models.GPTConfig, LlamaConfig or EncoderConfig
kind = "gpt"               # or "llama", "encoder"; docs/training.md: adapters on a model that you have
layers = 4
heads = 4
width = 128
context = 64

[batch]
rows = 8

[strategy]                 # lockstep.training.strategies.diloco.Spec
inner_steps = 20
payload = "int8-block"     # or "f32"
carry = false              # true: moments go on from round to round; payloads grow by two words a parameter

# [evaluation]             # in place of [model] and [strategy]: the loss of a model that you have
# model = "pulled"         # a folder that `lockstep train pull` wrote
# batches = 32             # of each slot in a round
# documents = "held out"   # those that training on these texts has not seen; or "all"
"""

JobFile = Annotated[Path, typer.Argument(metavar="JOB.toml", help="The job's description.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, 64 hex digits.")]


@app.command("init")
def init(
    path: JobFile = Path("job.toml"),
    example: Annotated[
        bool, typer.Option("--example", help="Also write a folder of English texts, and terms for a local market.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a job description to start from."""
    texts = path.parent / "texts"
    if example and texts.exists():
        raise UsageError(f"{texts} exists", hint="move it away, or leave --example out")
    try:
        with path.open("x") as file:
            file.write(TEMPLATE.replace('terms = "devnet"', 'terms = "local" ') if example else TEMPLATE)
        if example:
            from lockstep.training.data import speeches

            texts.mkdir()
            for document in speeches():
                (texts / document.name).write_bytes(document.text)
    except FileExistsError as error:
        raise UsageError(f"{path} exists", hint="choose another name, or edit it") from error
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint="name a file in a folder of yours"
        ) from error
    emit({"path": str(path)}, as_json, text=f"{path}: edit it, then `lockstep train quote {path}`")


@app.command("quote")
def quote(
    path: JobFile,
    rpc: Rpc = None,
    storage: Storage = None,
    deployment: DeploymentFile = None,
    home: Home = None,
    password_file: PasswordFile = None,
    threads: Threads = None,
    seconds: Annotated[
        float, typer.Option(min=0, help="Seconds to spend on timing a step; 0 estimates it instead.")
    ] = 20.0,
    as_json: Json = False,
) -> None:
    """Trace the job and say what it asks of everybody: memory, traffic, time, cost. Nothing is stored or sent."""
    described = _read(path)
    net = _network(rpc, storage, deployment, home, password_file)
    quoted = net.quote(_job(described, path, weights=False))
    figures = quoted.figures(resolve(threads=threads).threads, seconds)
    params = quoted.params
    data = {
        "escrow": str(quoted.escrow),
        "deposit": str(quoted.deposit),
        "debit": str(quoted.debit),
        "rounds": params.schedule.rounds,
        "slots": params.role.slots,
        "inner_steps": params.role.inner_steps,
        "program_ops": {k: len(getattr(quoted.job.programs, k).ops) for k in ("step", "encode", "merge")},
        **figures.to_dict(),
    }
    head = (
        f"{tokens(quoted.debit)} leave the account: escrow {tokens(quoted.escrow)} for {params.schedule.rounds} rounds "
        f"of {params.role.slots} slots, and a deposit of {tokens(quoted.deposit)} that comes back"
    )
    emit(data, as_json, text="\n".join([head, *figures.lines()]))


@app.command("run")
def run(
    path: JobFile,
    budget: Annotated[str, typer.Option(metavar="AMOUNT", help="Hard cap of escrow and deposit, as 20.5 LST.")],
    rpc: Rpc = None,
    storage: Storage = None,
    deployment: DeploymentFile = None,
    home: Home = None,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Store the job's parts, escrow its price, open it."""
    cap, described = amount_of(budget, "--budget"), _read(path)
    net = _network(rpc, storage, deployment, home, password_file)
    handle = net.submit(net.quote(_job(described, path)), budget=cap)
    emit({"job": handle.id.hex()}, as_json, text=handle.id.hex())


@app.command("status")
def status(
    job: JobArgument,
    rpc: Rpc = None,
    storage: Storage = None,
    deployment: DeploymentFile = None,
    home: Home = None,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """How far a job is."""
    emit(_handle(job, rpc, storage, deployment, home, password_file).status(), as_json)


@app.command("watch")
def watch(
    job: JobArgument,
    rpc: Rpc = None,
    storage: Storage = None,
    deployment: DeploymentFile = None,
    home: Home = None,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """A job's events until it is done; Ctrl-C detaches, the job goes on."""
    from lockstep.chain.plain import plain

    for seen in _handle(job, rpc, storage, deployment, home, password_file).watch():
        if as_json:
            fields = plain(seen.contract, seen.name, seen.args)
            event(seen.name, block=seen.block, chain_time=seen.time, **fields)
        else:
            say(f"{seen.time} {seen.name} round {seen.args.get('round', '-')}")


@app.command("pull")
def pull(
    job: JobArgument,
    out: Annotated[Path, typer.Option(help="Folder for the model.")],
    rpc: Rpc = None,
    storage: Storage = None,
    deployment: DeploymentFile = None,
    home: Home = None,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Write the latest merged model: model.safetensors, config.json, its tokenizer if it has one, provenance.json."""
    path = _handle(job, rpc, storage, deployment, home, password_file).download(out)
    emit({"model_path": str(path)}, as_json, text=str(path))


@app.command("metrics")
def metrics(
    job: JobArgument,
    rpc: Rpc = None,
    storage: Storage = None,
    deployment: DeploymentFile = None,
    home: Home = None,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """An evaluation's mean loss, and over how many rows."""
    found = _handle(job, rpc, storage, deployment, home, password_file).metrics()
    more = "" if found.perplexity is None else f", perplexity {found.perplexity:.6g}"
    without = f", without {found.left_out} convicted" if found.left_out else ""
    text = f"loss {found.loss:.8g}{more} ({found.batches} batches, {found.rows} rows{without})"
    # JSON has no word for what is no number: "nan", "inf".
    data = {k: v if v is None or math.isfinite(v) else str(v) for k, v in asdict(found).items()}
    emit(data, as_json, text=text)


@app.command("cancel")
def cancel(
    job: JobArgument,
    rpc: Rpc = None,
    storage: Storage = None,
    deployment: DeploymentFile = None,
    home: Home = None,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Start no new rounds; refund what the rounds under way do not need."""
    handle = _handle(job, rpc, storage, deployment, home, password_file)
    handle.cancel()
    emit(handle.status(), as_json)


@app.command("withdraw")
def withdraw(
    rpc: Rpc = None,
    storage: Storage = None,
    deployment: DeploymentFile = None,
    home: Home = None,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Take what the vault owes: refunds, and the requester's part of slashes."""
    amount = _network(rpc, storage, deployment, home, password_file).withdraw()
    emit({"withdrawn": str(amount)}, as_json, text=tokens(amount))


def _network(
    rpc: str | None, storage: str | None, deployment: str | None, home: str | None, password_file: str | None
) -> Network:
    from lockstep.chain.keys import load_account
    from lockstep.client import connect

    s = resolve(rpc=rpc, storage=storage, deployment=deployment, home=home, password_file=password_file)
    # The key first: a wrong password is told before anything is asked of the chain.
    account = load_account(s.home_path / KEYSTORE, s.password())
    return connect(rpc=s.rpc, storage=s.storage, deployment=s.deployment, account=account, home=s.home_path)


def _handle(
    job: str,
    rpc: str | None,
    storage: str | None,
    deployment: str | None,
    home: str | None,
    password_file: str | None,
) -> JobHandle:
    wanted = _job_id(job)
    return _network(rpc, storage, deployment, home, password_file).job(wanted)


def _job_id(text: str) -> JobId:
    from lockstep.protocol.types import JobId

    try:
        value = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        value = b""
    if len(value) != 32:
        raise UsageError(f"{text!r} is not a job id", hint="64 hex digits, as `train run` printed them")
    return JobId(value)


def _read(path: Path) -> dict[str, Any]:
    """What the file says: wrong syntax is told before anything is opened."""
    try:
        return from_toml(file_bytes(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="`lockstep train init` writes one") from error
    except Malformed as error:
        raise UsageError(f"{path} is not TOML: {error.message}", hint="mend the line that it names") from error


def _job(described: dict[str, Any], path: Path, *, weights: bool = True) -> TrainingJob:
    """Traced: takes seconds, and torch; without weights as little memory as time."""
    from lockstep.training.describe import job_of

    return job_of(described, path.parent, weights=weights)
