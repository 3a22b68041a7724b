"""Options that several commands share: one by one, and in groups.

A command takes a group as one parameter; `Commands` shows each field of it as an option:

    @app.command("tree")
    def tree(game: GameArgument, flags: ChainFlags, as_json: Json = False) -> None:
        settings = flags.settings()
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from lockstep.base.naming import JOBS_SHOWN, digits_of
from lockstep.base.networks import ROLES
from lockstep.base.settings import Settings, resolve


def role_of(context: typer.Context) -> str:
    """Returns the role of a command: "worker" for `lockstep worker stake`; "requester" if it belongs to no program."""
    names = context.command_path.split()
    return next((name for name in names if name in ROLES), "requester")


def an_id(what: str, hint: str) -> Callable[[str | None], str | None]:
    """Returns a callback that checks an id argument, so that UsageError is raised before a key or a chain is needed."""

    def check(text: str | None) -> str | None:
        if text is not None:
            digits_of(text, what, hint)
        return text

    return check


a_job = an_id("job", JOBS_SHOWN)
PLUMBING = "Market, home and keys"
"""The help panel of options that locate things; `lockstep.toml` and the environment can set them, too."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON envelope on stdout; never prompt.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
Rpc = Annotated[
    str | None,
    typer.Option(
        help="JSON-RPC URL of the chain; or several, comma-separated, of which the others are fallbacks.",
        rich_help_panel=PLUMBING,
    ),
]
RpcCheck = Annotated[
    str | None,
    typer.Option(
        help="Second JSON-RPC URL; nothing is done while it and --rpc disagree on blocks or logs.",
        rich_help_panel=PLUMBING,
    ),
]
Storage = Annotated[
    str | None,
    typer.Option(
        help="dir:///path or a Kubo RPC address; optionally followed by comma-separated gateways: gateway+https://host.",
        rich_help_panel=PLUMBING,
    ),
]
DeploymentFile = Annotated[
    str | None, typer.Option("--deployment", help="File of contract addresses.", rich_help_panel=PLUMBING)
]
Home = Annotated[
    str | None,
    typer.Option(help="This process's directory: keys, transactions, work in progress.", rich_help_panel=PLUMBING),
]
PasswordFile = Annotated[
    str | None, typer.Option(help="File that holds the keystore's password.", rich_help_panel=PLUMBING)
]
CoordinatorUrl = Annotated[
    str | None,
    typer.Option("--coordinator", help="URL of a coordinator (optional).", rich_help_panel=PLUMBING),
]
Threads = Annotated[int | None, typer.Option(help="Number of compute threads; the bits do not depend on it.")]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="auto|cpu|cuda:N|emulated",
        help="Compute device; the bits do not depend on it. auto: the first CUDA device that passes the self-test, "
        "else the processor. emulated: the CUDA kernels on the processor, for tests; about a hundred times slower.",
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Serve /metrics, /healthz and /readyz at this address.",
        rich_help_panel=PLUMBING,
    ),
]
GasPrice = Annotated[
    str | None,
    typer.Option("--gas-price", metavar="GWEI", help="Fee per unit of gas, in gwei; default: the chain's current fee."),
]
Listen = Annotated[
    int | None,
    typer.Option(
        "--listen-seconds",
        help="Doppelganger protection: seconds that a new home watches the chain for its key; 0: none, at your risk.",
    ),
]

MaxStake = Annotated[
    str | None,
    typer.Option(
        "--max-stake", metavar="AMOUNT|all",
        help="Limit on this account's total stake, including lost stake. Asked for on a terminal if it is not set.",
    ),
]  # fmt: skip
JobsFrom = Annotated[
    str | None, typer.Option("--jobs-from", metavar="ADDRESS,...", help="Take only jobs of these requesters.")
]
MinPrice = Annotated[
    str | None,
    typer.Option("--min-price", metavar="AMOUNT", help="Lowest pay of a slot for 10^15 operations of training."),
]
Hours = Annotated[
    str | None, typer.Option("--hours", metavar="FROM-TO", help="Join rounds only in these local hours, e.g. 22-6.")
]
Download = Annotated[
    int | None,
    typer.Option(
        "--download", metavar="MBIT",
        help="Download speed in Mbit/s: jobs whose payloads would arrive too late are not taken; 0: no limit.",
    ),
]  # fmt: skip
MaxUnpaid = Annotated[
    int | None,
    typer.Option(
        "--max-unpaid", metavar="ROUNDS",
        help="Take no more jobs of a requester once this many of its rounds left this account unpaid; 0: no limit.",
    ),
]  # fmt: skip
MaxMemory = Annotated[
    int | None, typer.Option("--max-memory", metavar="MIB", help="Take no job that needs more memory than this.")
]


# -- groups


@dataclass(frozen=True)
class Flags:
    """A group of options. Each field is the setting of that name; None: not given."""

    def given(self) -> dict[str, Any]:
        """Returns the fields by the settings' names."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def settings(self, role: str = "requester", *more: Flags, **others: Any) -> Settings:
        """Resolves the settings with these flags, other groups' and single ones, which take precedence. Raises
        UsageError."""
        given = {name: value for group in (self, *more) for name, value in group.given().items()}
        return resolve(role, **(given | others))


@dataclass(frozen=True)
class ChainFlags(Flags):
    """The options that locate a market's chain."""

    rpc: Rpc = None
    deployment: DeploymentFile = None


@dataclass(frozen=True)
class AccountFlags(ChainFlags):
    """The options that locate a market's chain and a key."""

    home: Home = None
    password_file: PasswordFile = None


@dataclass(frozen=True)
class PublicFlags(Flags):
    """The options that locate a market's chain and its storage."""

    rpc: Rpc = None
    storage: Storage = None
    deployment: DeploymentFile = None


@dataclass(frozen=True)
class PartyFlags(PublicFlags):
    """The options that locate a market's chain and storage, and a key."""

    home: Home = None
    password_file: PasswordFile = None


@dataclass(frozen=True)
class ProgramFlags(Flags):
    """The options of a long-running program."""

    rpc: Rpc = None
    rpc_check: RpcCheck = None
    storage: Storage = None
    deployment: DeploymentFile = None
    home: Home = None
    password_file: PasswordFile = None


@dataclass(frozen=True)
class ComputingFlags(Flags):
    """The device that computes, and its threads."""

    threads: Threads = None
    device: Device = None


@dataclass(frozen=True)
class LimitFlags(Flags):
    """The limits that a worker's owner sets."""

    max_stake: MaxStake = None
    jobs_from: JobsFrom = None
    min_price: MinPrice = None
    hours: Hours = None
    max_memory_mib: MaxMemory = None
    download_mbit: Download = None
    max_unpaid: MaxUnpaid = None


class Commands(typer.Typer):
    """A typer app whose commands may take groups of options."""

    def command(self, *names: Any, **options: Any) -> Callable[[Any], Any]:
        """Registers a command as typer does, but leaves the function itself unchanged."""
        register = super().command(*names, **options)

        def take(function: Any) -> Any:
            register(_expanded(function))
            return function

        return take


def _expanded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with each group of options replaced by its fields."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, type[Flags]] = {n: h for n, h in hints.items() if isinstance(h, type) and issubclass(h, Flags)}
    if not groups:
        return function
    parameters = []
    for own in inspect.signature(function).parameters.values():
        if own.name not in groups:
            parameters.append(own.replace(annotation=hints[own.name], kind=own.KEYWORD_ONLY))
            continue
        kinds = get_type_hints(groups[own.name], include_extras=True)
        for field in fields(groups[own.name]):
            annotation, default = kinds[field.name], field.default
            parameters.append(inspect.Parameter(field.name, own.KEYWORD_ONLY, default=default, annotation=annotation))

    @wraps(function)
    def call(**given: Any) -> Any:
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)}) for name, kind in groups.items()
        }
        return function(**given, **made)

    del call.__wrapped__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    return call
