"""Loads a merged model into memory, with its provenance, and generates text with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.base.naming import short
from lockstep.protocol.errors import Inconclusive, Mismatch, NotFoundError, UsageError

if TYPE_CHECKING:
    from torch import nn

    from lockstep.client import Network
    from lockstep.training.brought import Brought


def loaded(
    source: str,
    net: Network,
    code: str | None,
    prompt: str | None,
    count: int,
    temperature: float,
    seed: int,
    *,
    ema: bool = False,
) -> tuple[dict[str, Any], str]:
    """Returns the command's `data` and text for a folder or job; `code`: FILE.py:FUNCTION that makes its model.

    Raises Mismatch, Inconclusive, NotFoundError.
    """
    from lockstep.training.brought import bring
    from lockstep.training.export import write_text

    brought = None if code is None else bring(code)
    if Path(source).is_dir():
        if ema:
            raise UsageError(
                f"--ema does not apply to the folder {source}",
                hint="`lockstep train pull --ema` writes a folder of the average",
            )
        model = _of_folder(Path(source), net, brought)
    else:
        model = _of_job(source, net, brought, ema)
    tokenizer: Any = model.tokenizer
    said = None
    if prompt is not None:
        said = write_text(model, tokenizer, prompt, count, temperature=temperature, seed=seed)
    data = {**_described(model), "prompt": prompt, "text": said}
    lines = [
        f"{data['class']} of {data['parameters']:,} parameters, {', '.join(data['dtypes'])}, {data['tensors']} tensors",
        f"rows: {data['rows']}" if data["rows"] else f"tokens: {_tokens_of(data['vocabulary'])}",
        f"job {short(data['job'])}, round {data['round']}: the weights hash to claim {short(data['claim'])}",
    ]
    return data, "\n".join(lines if said is None else [*lines, "", f"{prompt}{said}"])


def _tokens_of(vocabulary: int | None) -> str:
    return "bytes" if vocabulary is None else f"{vocabulary} of the job's tokenizer"


def _of_job(text: str, net: Network, brought: Brought | None, ema: bool) -> nn.Module:
    try:
        handle = net.find(text)
    except UsageError as error:
        raise UsageError(
            f"{text!r} is neither a folder nor a job",
            hint="name a folder written by `lockstep train pull`, or at least 6 hex digits of a job's id",
        ) from error
    return handle.load(brought, ema=ema)


def _of_folder(folder: Path, net: Network, brought: Brought | None) -> nn.Module:
    from lockstep.training.audit import Provenance, audit
    from lockstep.training.export import load_model, load_tokenizer

    said = Provenance.read(folder)
    report = audit(folder, net.contracts, net.store, net.ledger(), claims=0)
    wrong = next((f for f in report.findings if f.verdict == "differs"), None)
    if wrong is not None:
        raise Mismatch(f"{folder}: {wrong.detail}", hint="run `lockstep train pull` to fetch it again")
    if not report.ok:
        lacking = next(f for f in report.findings if f.verdict not in ("ok", "note"))
        raise Inconclusive(f"{folder} cannot be checked: {lacking.detail}", hint="try another --storage")
    model = load_model(folder) if brought is None else brought.of(folder)
    model.tokenizer = load_tokenizer(folder)  # type: ignore[assignment]
    model.source = said.fields  # type: ignore[assignment]
    return model


def _described(model: nn.Module) -> dict[str, Any]:
    parameters: Any = list(model.parameters())
    source: Any = model.source
    tokenizer: Any = model.tokenizer
    if not parameters:
        raise NotFoundError("the model has no parameters", hint="see `lockstep train status` about the job")
    return {
        "job": source["job"],
        "round": source["round"],
        "claim": source["claim"],
        "checkpoint": source["checkpoint"],
        "shared_root": source["shared_root"],
        "class": type(model).__name__,
        "parameters": sum(p.numel() for p in parameters),
        "tensors": len(parameters),
        "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in parameters}),
        "vocabulary": None if tokenizer is None else tokenizer.vocabulary,
        "rows": source.get("rows"),
    }
