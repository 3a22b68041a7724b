"""`lockstep contracts`: deploys a market's contracts, verifies a deployment, and shows its addresses."""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.base.amounts import COIN, TEST_TOKEN, tokens
from lockstep.base.durations import seconds_of
from lockstep.base.lines import say
from lockstep.base.networks import config_folder
from lockstep.base.settings import NETWORK
from lockstep.cli.options import AccountFlags, ChainFlags, Commands, Json, Yes
from lockstep.cli.output import confirm, emit
from lockstep.protocol.errors import UsageError

if TYPE_CHECKING:
    from lockstep.chain.deploying import Wanted
    from lockstep.chain.deployment import Creation
    from lockstep.chain.fees import FeeProfile, Sent

app = Commands(name="contracts", help="Deploy, verify and show a market's contracts.", no_args_is_help=True)

ROLES = {
    "token": "the currency of stakes and pay", "vault": "holds all tokens", "market": "jobs, rounds and claims",
    "game": "disputes", "arbiter": "recomputes one operation", "validator": "judges a Program",
    "availability": "demands for data", "witnesses": "draws and pays auditors",
}  # fmt: skip
Gwei = Annotated[float | None, typer.Option(min=0, help="Gwei per gas, with --fees.")]


@app.command("deploy")
def deploy(
    flags: AccountFlags,
    token: Annotated[str | None, typer.Option(metavar="ADDRESS", help="ERC-20 token of stakes and pay.")] = None,
    test_token: Annotated[
        bool, typer.Option("--test-token", help="Deploy a test token that anybody may mint.")
    ] = False,
    unbond: Annotated[str, typer.Option(metavar="DURATION", help="Unbonding delay of stakes.")] = "14d",
    chain: Annotated[
        str | None, typer.Option(help="Chain profile whose inclusion and censorship times the market promises.")
    ] = None,
    max_fee: Annotated[
        str | None, typer.Option(metavar="FEE", help="Highest fee per unit of gas, e.g. '40 gwei'.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Send nothing; print the cost.")] = False,
    fees: Annotated[
        str | None,
        typer.Option(
            metavar="optimism|arbitrum|mainnet", help="With --dry-run: the fee profile to use instead of an RPC."
        ),
    ] = None,
    base_fee: Gwei = None,
    l1_base_fee: Gwei = None,
    blob_base_fee: Gwei = None,
    coin_price: Annotated[
        float | None, typer.Option(min=0, help="With --dry-run: price of one coin; adds a column.")
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Deploy every contract; running an interrupted command again continues it. --dry-run estimates the cost."""
    given = {"base_fee": base_fee, "l1_base_fee": l1_base_fee, "blob_base_fee": blob_base_fee}
    if not dry_run and (fees is not None or coin_price is not None or any(v is not None for v in given.values())):
        raise UsageError("a fee profile applies to a dry run only", hint="add --dry-run")
    if fees is None and any(value is not None for value in given.values()):
        raise UsageError("fee options need a fee profile", hint="add --fees optimism, arbitrum or mainnet")
    for name, value in {**given, "coin_price": coin_price}.items():
        if value is not None and not math.isfinite(value):
            raise UsageError(f"{name} is {value}", hint="give a finite number")
    if token is not None and test_token:
        raise UsageError("--token and --test-token are both given", hint="give one of them")
    if fees is not None:
        from lockstep.chain.fees import GWEI, measured, profile_named

        wei = {name: None if value is None else round(value * GWEI) for name, value in given.items()}
        _show_costs(fees, profile_named(fees, **wei), dict(measured()["deployment"]), coin_price, as_json)
        return
    from lockstep.chain import deploying
    from lockstep.chain.contracts import Token
    from lockstep.chain.keys import KEYSTORE, load_account
    from lockstep.chain.rpc import connect
    from lockstep.runtime.guard import lock

    settings = flags.settings(max_fee=max_fee)
    w3 = connect(settings.rpc)
    wanted = _wanted(w3.eth.chain_id, token, unbond, chain)
    if dry_run:
        deploying.check_chain(w3, wanted, test_token=True)
        _simulate(w3, wanted, coin_price, as_json)
        return
    deploying.check_chain(w3, wanted, test_token=test_token)
    file = Path(settings.deployment).expanduser()
    with lock.held(settings.home_dir, "deployment"):
        account = load_account(settings.home_dir / KEYSTORE, settings.password())
        currency = TEST_TOKEN if wanted.token is None else Token(w3, wanted.token).currency
        coin = f"stakes and pay in {currency.symbol}, a token of {currency.decimals} decimals"
        confirm(f"Deploy to chain {w3.eth.chain_id} as {account.address}, {coin}?", yes or as_json)

        def told(each: Creation, mined: bool) -> None:
            if not as_json:
                say(f"{'mined' if mined else 'sent '}  {each.artifact:12} {each.address}")

        addresses, before = deploying.deploy(
            w3, account, file, wanted, max_fee_wei=settings.max_fee_wei, max_tip_wei=settings.max_tip_wei, told=told
        )
    data = {**asdict(addresses), "deployment": str(file), "resumed": before > 0}
    named = os.environ.get(f"LOCKSTEP_{NETWORK.upper()}")
    lines = [f"chain {addresses.chain_id}, block {addresses.block}: {file}", coin]
    if not named:
        lines.append(
            f"to name it, write into {config_folder() / 'networks.toml'}:\n"
            f'[NAME]\nrpc = "..."\nstorage = "..."\ndeployment = "{file.resolve()}"'
        )
    emit(data, as_json, text="\n".join(lines))


@app.command("verify")
def verify(
    flags: ChainFlags,
    inputs: Annotated[
        Path | None,
        typer.Option("--input", metavar="FOLDER", help="Write the input files of block explorers to this folder."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the code on chain with this package: every byte, and the contracts' addresses of one
    another."""
    from lockstep.chain import verifying
    from lockstep.chain.addresses import Addresses
    from lockstep.chain.rpc import connect

    settings = flags.settings()
    addresses = Addresses.load(settings.deployment)
    report = verifying.verify(connect(settings.rpc, addresses.chain_id), addresses)
    report.require()
    written = []
    if inputs is not None:
        for name, text in verifying.inputs(report).items():
            try:
                inputs.mkdir(parents=True, exist_ok=True)
                (inputs / name).write_text(text)
            except OSError as error:
                raise UsageError(
                    f"{inputs / name} cannot be written: {error.strerror}", hint="name a writable folder"
                ) from error
            written.append(str(inputs / name))
    data = {
        "chain_id": addresses.chain_id, "contracts": [_row(asdict(each)) for each in report.contracts],
        "unbond_seconds": report.unbond_seconds, "inclusion_seconds": report.inclusion_seconds,
        "censor_seconds": report.censor_seconds, "test_token": not report.foreign_token, "written": written,
    }  # fmt: skip
    lines = [f"{each.artifact:14} {each.address}  {each.size:,} bytes" for each in report.contracts]
    lines.append(
        f"identical to this package: stakes unbond in {report.unbond_seconds:,} s, "
        f"inclusion {report.inclusion_seconds} s, censorship {report.censor_seconds:,} s"
    )
    if report.foreign_token:
        lines.append("the token is not this package's: it was not checked")
    emit(data, as_json, text="\n".join([*lines, *written]))


@app.command("addresses")
def addresses(flags: ChainFlags, as_json: Json = False) -> None:
    """Show the contracts' addresses and the facts about their chain; sends no request."""
    from lockstep.chain.addresses import Addresses
    from lockstep.chain.known_chains import facts_of

    at = Addresses.load(flags.settings().deployment)
    facts = facts_of(at.chain_id)
    lines = [f"{name:13} {getattr(at, name)}  {what}" for name, what in ROLES.items()]
    head = f"chain {at.chain_id}{f' ({facts.name})' if facts else ''}, block {at.block}"
    emit(asdict(at), as_json, text="\n".join([head, *lines]))


def _row(each: dict[str, Any]) -> dict[str, Any]:
    del each["fault"]
    return each


def _wanted(chain_id: int, token: str | None, unbond: str, chain: str | None) -> Wanted:
    from lockstep.base.naming import address_of, nearest
    from lockstep.chain.deploying import Wanted
    from lockstep.chain.known_chains import facts_of
    from lockstep.presets import CHAINS

    facts = facts_of(chain_id)
    if chain is None and facts is None:
        raise UsageError(f"chain {chain_id} is unknown", hint=f"give --chain, one of {', '.join(CHAINS)}")
    name = chain or (facts.preset if facts else "")
    if name not in CHAINS:
        raise UsageError(f"there is no chain profile {name!r}", hint=nearest(name, CHAINS))
    # INVARIANT: no clock is shorter than the censorship that the chain itself admits.
    if facts is not None and CHAINS[name].censor < CHAINS[facts.preset].censor:
        raise UsageError(
            f"{facts.name} can censor a transaction for {CHAINS[facts.preset].censor:,} s, "
            f"longer than --chain {name} assumes",
            hint=f"give --chain {facts.preset}, or omit it",
        )
    at = None if token is None else address_of(token, "--token")
    return Wanted(at, seconds_of(unbond, "--unbond"), CHAINS[name])


def _simulate(w3: Any, wanted: Wanted, coin_price: float | None, as_json: bool) -> None:
    """Prints the cost: gas as estimated by the node, at its base fee; bytes and the rest as measured."""
    from dataclasses import replace

    from lockstep.chain import deploying
    from lockstep.chain.fees import PROFILES, measured
    from lockstep.chain.known_chains import facts_of
    from lockstep.protocol.types import Address

    nobody = Address("0x" + "00" * 19 + "01")
    gas = deploying.simulated(w3, deploying.planned_on(w3, nobody, wanted))
    known = measured()["deployment"]
    rows = {name: replace(known[name], gas=used) for name, used in gas.items()}
    facts = facts_of(w3.eth.chain_id)
    name = "optimism" if facts is not None and facts.stack == "op" else "mainnet"
    base = max(1, int(w3.eth.get_block("latest").get("baseFeePerGas", 0)))
    _show_costs(f"chain {w3.eth.chain_id}", replace(PROFILES[name], base_fee=base), rows, coin_price, as_json)


def _show_costs(
    name: str, profile: FeeProfile, creations: dict[str, Sent], coin_price: float | None, as_json: bool
) -> None:
    from lockstep.chain.fees import cover, fee_of, sums, total

    sent = {**sums(), "deployment": total(creations)}

    def row(what: str, one: Sent) -> dict[str, Any]:
        fee = fee_of(one, profile)
        return {
            "what": what, "transactions": one.calls, "gas": one.gas, "bytes": one.size,
            "execution_fee": str(fee.execution),
            "data_fee": str(fee.data), "fee": str(fee.total),
        }  # fmt: skip

    def line(each: dict[str, Any]) -> str:
        money = "" if coin_price is None else f"  {int(each['fee']) / COIN.unit * coin_price:>12,.2f}"
        return (
            f"{each['what']:14} {each['transactions']:>4} {each['gas']:>11,} {each['bytes']:>8,} "
            f"{tokens(each['fee'], 4, COIN):>16}{money}"
        )

    contracts = [row(artifact, one) for artifact, one in creations.items()]
    totals = [row(what, one) for what, one in sent.items()]
    factor = cover(sent["game_most"], profile)
    data = {
        "fees": name, "profile": {key: str(value) for key, value in asdict(profile).items()},
        "contracts": contracts, "totals": totals, "cover": round(factor, 3),
    }  # fmt: skip
    gwei = {key: getattr(profile, key) / 10**9 for key in ("base_fee", "l1_base_fee", "blob_base_fee")}
    lines = [
        f"{name}: gwei per gas {gwei['base_fee']:g}, L1 {gwei['l1_base_fee']:g}, blobs {gwei['blob_base_fee']:g}",
        f"{'':14} {'txs':>4} {'gas':>11} {'bytes':>8} {'fee':>16}",
        *map(line, contracts),
        *map(line, totals),
        "measured on Anvil: job of 10 rounds x 8 slots, all parties; game of a small model, both sides",
        f"game_most: the bound of {sent['game_most'].gas / 10**6:g} M gas on a game, in calls of the measured size",
    ]
    if factor > 1:
        lines.append(
            f"refunds and bonds count only gas: to cover the data fee a job needs {factor:.1f} times its gas_price"
        )
    if profile.stack == "arbitrum":
        lines.append(
            "for comparison only: no market can run on Arbitrum's stack, whose contracts see another chain's blocks"
        )
    emit(data, as_json, text="\n".join(lines))
