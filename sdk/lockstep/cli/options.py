"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON envelope on stdout; no prompts.")]
Rpc = Annotated[str | None, typer.Option(help="JSON-RPC URL of the chain.")]
Storage = Annotated[str | None, typer.Option(help="dir:///path or a Kubo RPC address.")]
DeploymentFile = Annotated[str | None, typer.Option("--deployment", help="File of contract addresses.")]
Home = Annotated[str | None, typer.Option(help="The process's own directory.")]
PasswordFile = Annotated[str | None, typer.Option(help="File that holds the keystore's password.")]
CoordinatorUrl = Annotated[str | None, typer.Option("--coordinator", help="URL of a coordinator (optional).")]
Threads = Annotated[int | None, typer.Option(help="Kernel threads.")]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="auto|cpu|cuda:N|emulated",
        help="What computes; the bits are the same. auto: the first CUDA device that passes the self-test, else the "
        "processor. emulated: CUDA's kernels on the processor, for tests; some hundred times slower.",
    ),
]
Listen = Annotated[
    int | None,
    typer.Option(
        "--listen-seconds",
        help="How long a home that does not know what its key signed elsewhere listens; 0 skips it, at your own risk.",
    ),
]
