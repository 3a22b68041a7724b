"""The public pages: the API's answers as HTML that needs no script.

Every number comes from the functions behind the API (coordinator.queries, coordinator.views). Whatever strangers wrote
is escaped by the templates, and the Content-Security-Policy lets nothing run but our own files.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from coordinator import assets, chain_views, claim_views, drawing, problems, queries, views
from coordinator import economy as money_views
from coordinator.context import ApiContext, Ctx
from coordinator.drawing import Cell, Series
from coordinator.money import COMES, GOES, KINDS
from coordinator.published import command
from coordinator.roles import ACCOUNT, ANY, ROLES
from coordinator.schema import (
    Account,
    AccountOut,
    AccountRole,
    Bytes32,
    EconomyOut,
    GridOut,
    RunOut,
)
from coordinator.views import LossAt, RoundAt
from lockstep.base.amounts import market_currency, tokens
from lockstep.base.naming import short
from lockstep.chain.events import event_names
from lockstep.protocol.errors import LockstepError, UsageError
from lockstep.protocol.market.events import AMOUNTS
from lockstep.protocol.types import MERGE_SLOT

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""Nothing runs and nothing is styled but by our own files; strangers' blobs have another type, and are not sniffed."""
HEADERS = {
    "Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer", "Cross-Origin-Opener-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache", "Vary": "Accept-Encoding",
}  # fmt: skip
HTML = "text/html; charset=utf-8"
COMPRESSED_BYTES = 1024
ROUNDS_SHOWN = 30
STATES = views.FINAL_FIRST
AXES = {"step": "steps", "tokens": "tokens", "time": "hours since the first weights", "cost": "paid for claims"}
HASHES = {
    "commitment": "fixes the claim before others show theirs: the hash of what was revealed later",
    "trace_root": "the root over the hashes of the state after each step: a dispute goes down this tree",
    "out": "the root of the payload; of a merge, of the shared weights",
    "out2": "the root of the moments that its worker carries on; of a merge, of the outer optimizer's state",
}
"""By field of a claim: what the hash is."""
FILES = {
    "trace_cid": "the hashes of the states, as a file",
    "payload_cid": "what the slot gives to the merge; of a merge, the checkpoint",
}
FEW_RUNS = 5
"""The most other runs that a run's page offers to compare."""
LOSS_IS = (
    "Training loss: the mean loss of the merged weights over the rows of the dataset that the seed of the round draws, "
    "before anyone trains on them in that order. No row is held out."
)
"""The one definition of the loss on every page (lockstep.execution.losses)."""
Axis = Literal["step", "tokens", "time", "cost"]
Before = Annotated[str | None, Query(max_length=64)]
Runs = Annotated[list[Bytes32], Query(min_length=1, max_length=6)]
Cursor = Annotated[str | None, Query(max_length=queries.CURSOR_CHARACTERS)]
Number = Annotated[int | None, Query(ge=0, le=1 << 32)]


ACTED = {"requester": "job", "worker": "slot", "aggregator": "merge", "verifier": "dispute", "witness": "draw"}
"""By role: what is counted of it."""


class PageRoute(APIRoute):
    """A route whose failures are pages, too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        plain = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await plain(request)
            except LockstepError as error:
                return _failed(request, problems.status_of(error), error.message, error.hint)
            except RequestValidationError:
                hint = "an id is 0x followed by hex digits, as in links"
                return _failed(request, HTTPStatus.NOT_FOUND, "this page does not exist", hint)

        return handler


router = APIRouter(route_class=PageRoute, include_in_schema=False)


# -- pages ----------------------------------------------------------------------------------------------


@router.get("/")
def runs(request: Request, context: Ctx, cursor: Cursor = None) -> Response:
    """Every run, newest first."""
    found = views.runs(context, 20, cursor)
    return _page(request, context, "runs.html", runs=found.items, following=found.next, first=cursor is None)


@router.get("/runs/{job}")
def run(request: Request, context: Ctx, job: Bytes32, x: Axis = "step", before: Number = None) -> Response:
    """One run: its loss, its rounds by slots, its money."""
    version = views.version_of(context, job)
    # The page has a command with the URL that was asked.
    key = (job, x, before, context.published.url_of(request), version)
    body = context.kept.get(key)
    if body is None:
        body = gzip.compress(_run(request, context, job, x, before), 1, mtime=0)
        # INVARIANT: a page is kept only under the state that it shows: the index did not move meanwhile.
        if views.version_of(context, job) == version:
            context.kept.keep(key, body)
    if assets.takes_gzip(request):
        return Response(body, 200, {**HEADERS, "Content-Encoding": "gzip"}, HTML)
    return Response(gzip.decompress(body), 200, HEADERS, HTML)


def _run(request: Request, context: ApiContext, job: str, x: Axis, before: int | None) -> bytes:
    found, losses, rounds = views.whole(context, job)
    shown = views.grid(context, job, before, ROUNDS_SHOWN)
    return _drawn(
        "run.html", status=queries.status(context), path=request.url.path, run=found,
        losses=losses, rounds=rounds, grid=shown, axis=x, axes=_axes(), unit=market_currency().unit,
        loss=_loss(losses, x),
        throughput=_throughput(rounds), heat=_heat(shown), states=_present(found), glyphs=drawing.GLYPHS,
        strip=drawing.strip("all rounds by what became of their claims", [p.claims for p in rounds], STATES),
        games=queries.games(context.database, 50, None, job=job).items,
        others=[other for other in views.runs(context, FEW_RUNS + 1, None).items if other.id != job][:FEW_RUNS],
        loss_is=LOSS_IS, **_published(request, context),
    )  # fmt: skip


@router.get("/compare")
def compare(request: Request, context: Ctx, run: Runs, x: Axis = "step") -> Response:
    """Runs side by side: their losses on one plot, their figures in one table."""
    found = [views.whole(context, job)[:2] for job in dict.fromkeys(run)]
    series = [
        Series(short(one.id), _points(losses, x), style) for (one, losses), style in zip(found, "abcdef", strict=False)
    ]
    drawn = drawing.chart("losses", series, _axes()[x], "loss", drawing.number)
    asked = "&".join(f"run={one.id}" for one, _ in found)
    return _page(
        request, context, "compare.html", runs=[one for one, _ in found], drawn=drawn, axis=x, axes=_axes(),
        asked=asked, loss_is=LOSS_IS,
    )  # fmt: skip


@router.get("/claims/{claim}")
def claim(request: Request, context: Ctx, claim: Bytes32) -> Response:
    """One claim: what was claimed, by whom, what became of it."""
    found = claim_views.claim(context, claim, context.published.url_of(request))
    games = queries.games(context.database, 50, None, claim=claim).items
    return _page(request, context, "claim.html", claim=found, games=games, hashes=HASHES, files=FILES)


@router.get("/accounts")
def accounts(request: Request, context: Ctx, cursor: Cursor = None, role: AccountRole = ANY) -> Response:
    """Accounts by role, the latest to begin first."""
    found = views.accounts(context, 50, cursor, role)
    return _page(
        request, context, "accounts.html", accounts=found.items, following=found.next, role=role, roles=ROLES,
        counted=views.roles_counted(context),
    )  # fmt: skip


@router.get("/accounts/{account}")
def account(request: Request, context: Ctx, account: Account) -> Response:
    """One account: its roles, stake, earnings, reasons, what is at stake until when."""
    found = views.account(context, account)
    return _page(
        request,
        context,
        "account.html",
        account=found,
        fall=_fall(found),
        comes=COMES,
        goes=GOES,
        roles=ROLES,
        acts=ACTED,
    )


@router.get("/disputes")
def disputes(request: Request, context: Ctx, cursor: Cursor = None) -> Response:
    """Games, newest first."""
    found = queries.games(context.database, 50, cursor)
    return _page(request, context, "disputes.html", games=found.items, following=found.next)


@router.get("/disputes/{game}")
def dispute(request: Request, context: Ctx, game: Bytes32) -> Response:
    """One game: the bisection down to the number, who moved, clocks, bonds, the values and the contract's."""
    found = views.dispute(context, game, context.published.url_of(request))
    icicle = drawing.icicle("the bisection, from the claim down to the number", found.tree.model_dump())
    levels = drawing.levels_of(found.tree.model_dump())
    return _page(request, context, "dispute.html", game=found, icicle=icicle, levels=levels)


@router.get("/economy")
def economy(request: Request, context: Ctx) -> Response:
    """Escrowed, paid, slashed and burned over time."""
    found = money_views.economy(context)
    return _page(request, context, "economy.html", economy=found, drawn=_flows(found), kinds=KINDS)


@router.get("/chain")
def chain(
    request: Request, context: Ctx, before: Before = None, event: Before = None, account: Before = None
) -> Response:  # fmt: skip
    """The chain as far as it is indexed; an empty form field counts as not given."""
    if account and not ACCOUNT.fullmatch(account):
        raise UsageError(f"{account!r} is not an address", hint="an address is 0x followed by 40 hex digits")
    found = chain_views.chain(context, 50, before or None, event or None, account or None)
    return _page(
        request, context, "chain.html", chain=found, event=event or "", account=account or "", events=event_names()
    )


@router.get("/transactions/{tx}")
def transaction(request: Request, context: Ctx, tx: Bytes32) -> Response:
    """One transaction: its events with all that they say."""
    found = chain_views.transaction(context, tx)
    return _page(request, context, "transaction.html", found=found, amounts=AMOUNTS)


@router.get("/search")
def search(request: Request, context: Ctx, q: Annotated[str, Query(max_length=80)] = "") -> Response:
    """Leads to what an id or an address names; several are listed."""
    found = chain_views.search(context, q)
    if len(found) == 1:
        return Response(status_code=303, headers={**HEADERS, "Location": found[0].path})
    return _page(request, context, "search.html", found=found, q=q)


@router.get("/status")
def status(request: Request, context: Ctx) -> Response:
    """This coordinator: version, progress, contents."""
    return _page(request, context, "status.html")


# -- pictures -------------------------------------------------------------------------------------------


def _axes() -> dict[str, str]:
    """Returns the axes' labels, with the market's token in that of the cost."""
    return {**AXES, "cost": f"{market_currency().symbol} {AXES['cost']}"}


def _loss(losses: Sequence[LossAt], axis: Axis) -> Any:
    return drawing.chart("loss", [Series("loss", _points(losses, axis))], _axes()[axis], "loss", drawing.number)


def _points(losses: Sequence[LossAt], axis: Axis) -> list[tuple[float, float, str]]:
    known = [p for p in losses if isinstance(p.loss, int | float)]
    begun = known[0].time if known else 0
    at: dict[str, Callable[[LossAt], float]] = {
        "step": lambda p: p.step,
        "tokens": lambda p: math.nan if p.tokens is None else p.tokens,
        "time": lambda p: (p.time - begun) / 3600,
        "cost": lambda p: int(p.cost) / market_currency().unit,
    }
    return [(at[axis](p), float(p.loss), f"{_few(p.loss)} after {p.merges} merges") for p in known]


def _throughput(rounds: Sequence[RoundAt]) -> Any:
    done = [p for p in rounds if p.state in ("lead", "final") and p.tokens]
    points = [
        (float(p.round), (p.tokens or 0) / max(1, p.updated - p.started), f"round {p.round}: {p.tokens} tokens")
        for p in done
    ]
    series = [Series("tokens a second", points, "b")]
    return drawing.chart("tokens a second", series, "round", "tokens/s", drawing.number)


def _heat(grid: GridOut) -> Any:
    cells = [
        Cell(
            cell.round - grid.first, grid.slots if cell.slot == MERGE_SLOT else cell.slot, cell.state,
            f"/claims/{cell.id}",
            f"round {cell.round} {'merge' if cell.slot == MERGE_SLOT else f'slot {cell.slot}'}: {cell.state}"
            f"{', holds a convicted payload' if cell.holds_convicted else ''}",
            drawing.HOLDS_CONVICTED if cell.holds_convicted else "",
        )
        for cell in grid.cells
        if cell.slot == MERGE_SLOT or cell.slot < grid.slots
    ]  # fmt: skip
    columns = [str(r) for r in range(grid.first, grid.last + 1)]
    rows = [*(f"slot {s}" for s in range(grid.slots)), "merge"]
    return drawing.heatmap("rounds by slots: each cell is a claim", cells, columns, rows)


def _present(run: RunOut) -> list[tuple[str, int]]:
    return [(state, run.claims_by_state[state]) for state in STATES if run.claims_by_state.get(state)]


def _fall(account: AccountOut) -> Any:
    held = sum(int(x) for x in (account.free, account.locked, account.unbonding, account.credits))
    steps = [("stake deposited", int(account.deposited))]
    steps += [(words, int(account.money[kind])) for kind, words in COMES.items() if int(account.money[kind])]
    steps += [(GOES[kind], -int(account.money[kind])) for kind in ("slashed", "bonds") if int(account.money[kind])]
    steps += [("taken out", held - sum(amount for _, amount in steps)), ("in the vault", held)]
    return drawing.waterfall("stake and earnings", [(name, amount, _amount(amount)) for name, amount in steps])


def _flows(economy: EconomyOut) -> Any:
    begun = economy.hours[0].hour if economy.hours else 0
    series, currency = [], market_currency()
    unit = currency.unit
    for kind, style in zip(("escrowed", "paid", "refunded", "slashed", "burned"), "abcde", strict=True):
        total, points = 0, []
        for flow in economy.hours:
            if flow.kind == kind:
                total += int(flow.amount)
                # A sum stands at the end of its hour.
                points.append(((flow.hour - begun) / 3600 + 1, total / unit, f"{kind}: {_amount(total)}"))
        if points:
            # What was moved stays moved.
            points.append(((economy.hours[-1].hour - begun) / 3600 + 1, total / unit, f"{kind}: {_amount(total)}"))
            series.append(Series(kind, [(0.0, 0.0, kind), *points], style))
    return drawing.chart(
        "money that moved", series, "hours since the first", f"{currency.symbol}, in all", drawing.number
    )


# -- rendering ------------------------------------------------------------------------------------------


def _moment(seconds: int | None) -> str:
    if seconds is None:
        return "–"
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return str(seconds)


def _duration(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _amount(amount: int | str) -> str:
    return tokens(amount, 6)


def _price(amount: int | str) -> str:
    return tokens(amount, 3)


def _argument(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _value(value: float | str | None) -> str:
    """A number as Python and JSON write it: nothing is rounded."""
    return "–" if value is None else str(value)


def _few(value: float | str | None) -> str:
    """A loss with as many digits as a reader compares."""
    return f"{value:.4f}" if isinstance(value, float | int) else _value(value)


def _slot(slot: int) -> str:
    return "merge" if slot == MERGE_SLOT else f"slot {slot}"


def _digits(identity: str | None) -> str:
    return "–" if identity is None else identity.removeprefix("0x")


def _dotted(name: str) -> Markup:
    """Returns a module path as HTML in which a line may break after a dot, and nowhere inside a word."""
    return Markup(".<wbr>").join(escape(part) for part in name.split("."))


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=StrictUndefined,
    )  # fmt: skip
    made.filters |= {
        "short": short, "amount": _amount, "price": _price, "argument": _argument, "moment": _moment,
        "duration": _duration, "percent": _percent, "value": _value, "few": _few, "slot": _slot, "digits": _digits,
        "dotted": _dotted, "spark": drawing.sparkline, "word": drawing.word,
        "count": lambda n: "–" if n is None else f"{n:,}",
    }  # fmt: skip
    made.globals |= {"asset": assets.url, "command": command}
    return made


ENVIRONMENT = _environment()


def _page(request: Request, context: ApiContext, template: str, **values: Any) -> Response:
    status = queries.status(context)
    published = _published(request, context)
    return _html(request, 200, template, status=status, path=request.url.path, **published, **values)


def _published(request: Request, context: ApiContext) -> dict[str, Any]:
    """Returns what the commands of a page need."""
    return {"url": context.published.url_of(request), "market": context.published}


def _failed(request: Request, status: int, message: str, hint: str) -> Response:
    said = {"code": int(status), "message": message, "hint": hint}
    return _html(request, int(status), "error.html", status=None, path=request.url.path, said=said)


def _html(request: Request, code: int, template: str, **values: Any) -> Response:
    body, headers = _drawn(template, **values), dict(HEADERS)
    if len(body) >= COMPRESSED_BYTES and assets.takes_gzip(request):
        body = gzip.compress(body, 1, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(body, code, headers, HTML)


def _drawn(template: str, **values: Any) -> bytes:
    return ENVIRONMENT.get_template(template).render(values).encode()
