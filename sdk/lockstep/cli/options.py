"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from lockstep.base.naming import JOBS_SHOWN, digits_of
from lockstep.base.networks import ROLES


def role_of(context: typer.Context) -> str:
    """Returns the role that a command belongs to: "worker" for `lockstep worker stake`; "requester" if no program's."""
    names = context.command_path.split()
    return next((name for name in names if name in ROLES), "requester")


def an_id(what: str, hint: str) -> Callable[[str | None], str | None]:
    """Returns a callback of an argument that names an id: raises UsageError before a key or a chain is asked for."""

    def check(text: str | None) -> str | None:
        if text is not None:
            digits_of(text, what, hint)
        return text

    return check


a_job = an_id("job", JOBS_SHOWN)

Json = Annotated[bool, typer.Option("--json", help="One JSON envelope on stdout; no prompts.")]
Yes = Annotated[bool, typer.Option("--yes", help="Ask nothing.")]
Rpc = Annotated[str | None, typer.Option(help="JSON-RPC URL of the chain; several, by commas: the others stand in.")]
RpcCheck = Annotated[
    str | None,
    typer.Option(help="A second JSON-RPC URL; nothing is done while it and --rpc differ on blocks or logs."),
]
Storage = Annotated[
    str | None,
    typer.Option(help="dir:///path or a Kubo RPC address; behind it, by commas, gateways: gateway+https://host."),
]
DeploymentFile = Annotated[str | None, typer.Option("--deployment", help="File of contract addresses.")]
Home = Annotated[str | None, typer.Option(help="This process's directory: keys, transactions, work in progress.")]
PasswordFile = Annotated[str | None, typer.Option(help="File that holds the keystore's password.")]
CoordinatorUrl = Annotated[str | None, typer.Option("--coordinator", help="URL of a coordinator (optional).")]
Threads = Annotated[int | None, typer.Option(help="Threads that compute; the bits do not depend on them.")]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="auto|cpu|cuda:N|emulated",
        help="What computes; the bits are the same. auto: the first CUDA device that passes the self-test, else the "
        "processor. emulated: CUDA's kernels on the processor, for tests; some hundred times slower.",
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option("--metrics", metavar="HOST:PORT", help="Serve /metrics, /healthz and /readyz there."),
]
GasPrice = Annotated[
    str | None,
    typer.Option("--gas-price", metavar="GWEI", help="Fee of a unit of gas, in gwei; default: the chain's now."),
]
Listen = Annotated[
    int | None,
    typer.Option(
        "--listen-seconds",
        help="Doppelganger protection: seconds that a new home watches the chain for its own key; 0: at your own risk.",
    ),
]

# How a worker is held back: `worker up`, `worker quote` and `worker service install` take the same.
MaxStake = Annotated[
    str | None,
    typer.Option(
        "--max-stake", metavar="AMOUNT|all",
        help="What this account may have staked in all, lost stake included. On a terminal it is asked for.",
    ),
]  # fmt: skip
JobsFrom = Annotated[
    str | None, typer.Option("--jobs-from", metavar="ADDRESS,...", help="Take the jobs of these requesters alone.")
]
MinPrice = Annotated[
    str | None,
    typer.Option("--min-price", metavar="AMOUNT", help="The least that a slot pays for 10^15 operations of training."),
]
Hours = Annotated[
    str | None, typer.Option("--hours", metavar="FROM-TO", help="Join rounds in these local hours alone, as 22-6.")
]
Download = Annotated[
    int | None,
    typer.Option(
        "--download", metavar="MBIT",
        help="Mbit a second that this machine's line brings: no job is taken whose payloads come too late; 0: any.",
    ),
]  # fmt: skip
MaxUnpaid = Annotated[
    int | None,
    typer.Option(
        "--max-unpaid", metavar="ROUNDS",
        help="Take no job of a requester once so many rounds of it took this account's work unpaid; 0: any number.",
    ),
]  # fmt: skip
MaxMemory = Annotated[
    int | None, typer.Option("--max-memory", metavar="MIB", help="Take no job that needs more memory than this.")
]
