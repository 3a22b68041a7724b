"""`lockstep demo`: a whole market on this machine, and one liar in it."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.base import networks
from lockstep.base.naming import short
from lockstep.cli.options import Json
from lockstep.cli.output import emit
from lockstep.market.narrator import STEP, Line
from lockstep.protocol.errors import UsageError

if TYPE_CHECKING:
    from lockstep.cli.screen import Screen
    from lockstep.demo.run import DemoOptions

CHEAT_HELP = (
    "The lie: skipped-step, one-ulp, other-data, wrong-lr, scaled-payload, wrong-code, nearest-instead-of-stochastic, "
    "tampered-residual, wrong-index, stale-carry, lying-aggregator, silent, two-signatures, false-challenge; none for "
    "an honest market."
)


def demo(
    seed: Annotated[int, typer.Option(min=0, help="Fixes keys, the first weights and the place of the lie.")] = 0,
    workers: Annotated[int, typer.Option(help="Workers, one slot each.")] = 3,
    cheat: Annotated[str, typer.Option(help=CHEAT_HELP)] = "one-ulp",
    out: Annotated[Path | None, typer.Option(help="A new folder for everything that the demo writes.")] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the market running, as `lockstep local up` does; needs no --out.")
    ] = False,
    strategy: Annotated[
        str, typer.Option(metavar="NAME", help="The job's strategy, as in `lockstep train init --strategy`.")
    ] = "diloco",
    carry: Annotated[bool, typer.Option("--carry", help="Carry DiLoCo's moments into the next round.")] = False,
    products: Annotated[
        str | None,
        typer.Option(
            help="The model's matrix products: float32, or int8, exact sums of small integers. "
            "Default: int8 for a lie about codes, else float32."
        ),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the model's folder.")] = False,
    as_json: Json = False,
) -> None:
    """Train a small GPT with three workers on a local chain, catch the one that lies, settle."""
    # One thread a process, ours included: the parties share the machine. Before anything imports torch.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from lockstep.cli.screen import Screen
    from lockstep.demo.run import DemoOptions, run

    if keep and out is not None:
        raise UsageError(
            "--keep and --out name two folders",
            hint="--keep writes to ~/.lockstep/local, or to LOCKSTEP_LOCAL",
        )
    options = DemoOptions(
        seed=seed, workers=workers, cheat=cheat, folder=out, products=products, strategy=strategy, carry=carry
    )
    # It trains after everything is started: what it needs is asked for before.
    for name in ("torch", "safetensors", "fastapi"):
        if find_spec(name) is None:
            raise ModuleNotFoundError(name, name=name)
    options.spec()
    with Screen(stream=sys.stderr) as screen:
        data = _kept(options, screen) if keep else run(options, screen)
    if browser:
        typer.launch(Path(data["model_path"]).parent.as_uri())
    emit(data, as_json, text=_summary(data))


def _kept(options: DemoOptions, screen: Screen) -> dict[str, Any]:
    """Runs the demo in the local market's folder, and leaves the market running with its honest members."""
    from lockstep.demo import local
    from lockstep.demo.run import run

    folder = networks.local_folder()
    market = local.LocalOptions(workers=options.workers, seed=options.seed)
    with local.to_keep(folder, market):
        data = run(replace(options, folder=folder, keep=True), screen)
    screen.tell(Line("the demo is over; its market keeps running", STEP))
    state = local.up(folder, {})
    return data | {"pages": f"{state.coordinator}/"}


def _summary(data: dict[str, Any]) -> str:
    from lockstep.base.amounts import tokens

    lines = [f"job {data['job']}: {data['rounds']} rounds in {data['seconds']} s"]
    lines.append(f"{data['strategy']}: payloads of {data['bits_per_parameter']} bits a parameter")
    lines.append(
        f"held-out loss, nats per token: {data['loss_first']:.3f} at first, {data['loss_last']:.3f} at last, "
        f"{data['baseline_loss']:.3f} for one machine in plain PyTorch"
    )
    for game in data["games"]:
        op = game["op"] or {"index": "-", "kind": "-", "name": "-"}
        lines.append(
            f"game: {game['verdict']}, {game['program']} program, step {game['step']}, op {op['index']} "
            f"({op['name']}), element {game['element']}, chunk {game['chunk']}: claimed {game['claimed_bits']}, "
            f"the contract computed {game['contract_bits']}; {game['transactions']} transactions, "
            f"{game['gas_total']:,} gas"
        )
    lines.append(
        f"escrow {tokens(data['escrow_in'], 6)} + from slashes {tokens(data['to_work'], 6)} = "
        f"paid {tokens(data['paid_out'], 6)} (witness's fees {tokens(data['witness_fees'], 6)} of it) + "
        f"refunded {tokens(data['refunded'], 6)}"
    )
    lines.append(
        f"slashed {tokens(data['slashed'], 6)} = burned {tokens(data['burned'], 6)} + "
        f"challenger {tokens(data['to_challenger'], 6)} + requester {tokens(data['to_requester'], 6)} + "
        f"work that fell with it {tokens(data['to_work'], 6)}"
    )
    lines.append(f"model: {data['model_path']}")
    lines.append(f"sample: {data['sample']!r}")
    if data["kept"] is not None:
        lines += _next(data)
    return "\n".join(lines)


def _next(data: dict[str, Any]) -> list[str]:
    """Returns the commands that look at a market that was kept."""
    job = short(data["job"])
    games = [
        f"  lockstep dispute {verb} {short(game['game'])}" for game in data["games"][:1] for verb in ("show", "tree")
    ]
    return [
        f"the market is up, its keys are in {data['kept']}; its pages: {data['pages']}",
        "next, in any folder:",
        *games,
        f"  lockstep train metrics {job}",
        f"  lockstep train pull {job} --out model && lockstep train audit model --claims 3",
        "  lockstep train init --example && lockstep train run job.toml --budget 60",
        "  lockstep local down          (stops the market; `lockstep local up` resumes it)",
    ]
