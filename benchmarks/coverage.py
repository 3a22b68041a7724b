"""Classes of `transformers` that become Programs, of all that build small and train in eager PyTorch.

    python benchmarks/coverage.py                        a table
    python benchmarks/coverage.py --json                 one line of JSON on stdout
    python benchmarks/coverage.py --family causal --every 5      a sample
    python benchmarks/coverage.py --every 4 --first 1            one of four samples that together are everything
    python benchmarks/coverage.py --only LlamaForCausalLM

A class is *tried* if it builds with a small configuration (`small_models.py`) and its loss has a gradient in eager
PyTorch, in training mode. It is *traced* if `build_programs` makes all Programs of a job of it and the court's rules
hold for each; else it is *refused*, with the reason. What does not build or train in eager is *left out*, with the
reason. Each class is a process of its own, with a bound of time and memory and without network. Results are kept in a
file (`--state`): a run that is cut off goes on, and `--again refused` tries those once more.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Run from a checkout: tests import this module by its full name.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import transformers
from transformers.models.auto import modeling_auto

from benchmarks.small_models import REGISTRIES, ROWS, found
from lockstep.numerics.validate import validate
from lockstep.protocol.errors import LockstepError
from lockstep.training.job import Batch, build_programs
from lockstep.training.strategies import diloco

STATE = Path("out/coverage.jsonl")
SECONDS, GIB = 180, 6
TRACED, REFUSED, LEFT_OUT = "traced", "refused", "left out"
TARGET = 0.92


def classes() -> dict[str, str]:
    """Every class of the registries, in order, with the first family that has it."""
    named: dict[str, str] = {}
    for family, registry in REGISTRIES.items():
        for value in getattr(modeling_auto, f"{registry}_MAPPING_NAMES").values():
            for name in [value] if isinstance(value, str) else value:
                named.setdefault(name, family)
    return named


def attempt(name: str, family: str) -> dict[str, Any]:
    """Try one class in this process; returns its outcome."""
    try:
        case = found(getattr(transformers, name), family)
    except Exception as error:
        return {"outcome": LEFT_OUT, "reason": str(error) or type(error).__name__}
    start = time.perf_counter()
    try:
        built = build_programs(
            case.model,
            case.loss,
            diloco.DiLoCo(inner_steps=2),
            batch=Batch(rows=ROWS, row_length=case.row_length),
            rounds=1,
            slots=2,
        )
        for program in (built.step, built.encode, built.merge):
            validate(program)
    except LockstepError as error:
        return {"outcome": REFUSED, "reason": error.message, "level": case.level}
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return {
            "outcome": REFUSED,
            "reason": f"DEFECT {type(error).__name__}: {str(error).splitlines()[0]} "
            f"at {Path(where.filename).name}:{where.lineno}",
            "level": case.level,
        }
    return {
        "outcome": TRACED,
        "ops": len(built.step.ops),
        "level": case.level,
        "seconds": round(time.perf_counter() - start, 1),
    }


def _no_network(*_args: Any, **_kwargs: Any) -> None:
    raise OSError("coverage runs without network")


def apart(name: str, family: str, seconds: int, gib: int) -> dict[str, Any]:
    """`attempt` in a child with bounds; what it is killed by is the reason."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_DATA, (gib << 30, gib << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        signal.alarm(6 * seconds)
        socket.socket.connect = _no_network  # type: ignore[method-assign, assignment]
        try:
            result = attempt(name, family)
        except BaseException as error:
            result = {"outcome": LEFT_OUT, "reason": f"{type(error).__name__}: {error}"}
        with os.fdopen(write, "w") as out:
            json.dump(result, out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as source:
        text = source.read()
    _, status = os.waitpid(child, 0)
    if text:
        found_: dict[str, Any] = json.loads(text)
        return found_
    return {"outcome": REFUSED, "reason": f"BOUND of {seconds} s or {gib} GiB: ended by signal {os.WTERMSIG(status)}"}


def known(state: Path) -> dict[str, dict[str, Any]]:
    """Returns the results in a state file, the last line of each class."""
    if not state.exists():
        return {}
    lines = (json.loads(line) for line in state.read_text().splitlines())
    return {line["name"]: line for line in lines}


def report(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """`tried`, `traced`, `share`, `refused` and `left_out` of what was tried, and the same counts by family."""
    outcome = {name: r["outcome"] for name, r in results.items()}
    counts = Counter(outcome.values())
    tried = counts[TRACED] + counts[REFUSED]
    families: dict[str, dict[str, int]] = {}
    for r in results.values():
        row = families.setdefault(r["family"], {TRACED: 0, REFUSED: 0, LEFT_OUT: 0})
        row[r["outcome"]] += 1
    return {
        "transformers": transformers.__version__,
        "classes": len(results),
        "tried": tried,
        "traced": counts[TRACED],
        "share": round(counts[TRACED] / tried, 4) if tried else None,
        "families": families,
        "refused": {name: r["reason"] for name, r in results.items() if r["outcome"] == REFUSED},
        "left_out": {name: r["reason"] for name, r in results.items() if r["outcome"] == LEFT_OUT},
    }


def main() -> int:
    """Tries the classes and prints what became of them; 1 if less than `TARGET` of a whole run became Programs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--family", choices=REGISTRIES, action="append", help="classes of this registry alone")
    parser.add_argument("--only", metavar="CLASS", action="append", help="this class alone")
    parser.add_argument("--every", type=int, default=1, help="every n-th class")
    parser.add_argument("--first", type=int, default=0, help="the sample begins with this class, counted from 0")
    parser.add_argument("--state", type=Path, default=STATE, help="file of results")
    parser.add_argument("--again", choices=(REFUSED, LEFT_OUT, "all"), action="append", help="try these once more")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="processor seconds of a class")
    parser.add_argument("--gib", type=int, default=GIB, help="memory of a class")
    given = parser.parse_args()

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    wanted = [(n, f) for n, f in classes().items() if not given.family or f in given.family]
    wanted = wanted[given.first :: given.every]
    if given.only:
        wanted = [(n, f) for n, f in classes().items() if n in given.only]
    results = known(given.state)
    given.state.parent.mkdir(parents=True, exist_ok=True)
    again = set(given.again or ())
    for name, family in wanted:
        if name in results and not again & {"all", results[name]["outcome"]}:
            continue
        results[name] = {"name": name, "family": family, **apart(name, family, given.seconds, given.gib)}
        with given.state.open("a") as out:
            out.write(json.dumps(results[name]) + "\n")
        print(f"{name}: {results[name]['outcome']} {results[name].get('reason', '')}", file=sys.stderr, flush=True)
    found_ = report({name: results[name] for name, _ in wanted})
    if given.json:
        print(json.dumps(found_))
    else:
        for family, row in found_["families"].items():
            print(f"{family:<22} {row[TRACED]:>4} traced {row[REFUSED]:>4} refused {row[LEFT_OUT]:>4} left out")
        print(f"{found_['traced']} of {found_['tried']} became Programs")
        for reason, count in Counter(found_["refused"].values()).most_common():
            print(f"{count:>4}  {reason}")
    whole = not (given.family or given.only or given.every > 1 or given.first)
    return 1 if whole and (found_["share"] or 0) < TARGET else 0


if __name__ == "__main__":
    sys.exit(main())
