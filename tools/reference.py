"""docs/reference/, written from the code: commands, settings, errors.

python tools/reference.py            write the pages
python tools/reference.py --check    exit code 1, and name the pages, if they are not what the code says
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from coordinator import settings as coordinator_settings
from lockstep.base import networks, settings
from lockstep.cli.main import whole
from lockstep.protocol import errors

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs/reference"
PACKAGES = ("sdk/lockstep", "coordinator", "worker", "verifier")
GENERATED = "<!-- Written by `make reference` from the code: change that. -->"
KINDS: dict[Any, str] = {str: "TEXT", Path: "PATH", int: "N", float: "X"}
"""What stands for a value of a type."""
VALUE = "…"
"""Stands for what an f-string computes."""
WITHOUT_OPTION = {
    "LOCKSTEP_CONFIG": "The folder of `config.toml` and `networks.toml`; default `~/.config/lockstep`.",
    "LOCKSTEP_LOCAL": "The folder of the local market; default `~/.lockstep/local`.",
    "LOCKSTEP_CACHE": "The folder of compiled code and fetched blobs; it must be the user's alone.",
    "LOCKSTEP_FUSED": "`auto`, `off` or `require`: compiled loops in place of interpreted ones; the bits are the same.",
    "LOCKSTEP_ANVIL": "Anvil's native binary, for a chain of this machine.",
}
"""Variables that no option and no settings file has."""
FROM_ELSEWHERE = {
    "CXX": "The C++ compiler of compiled loops; default: the first of `g++`, `clang++`, `c++`.",
    "OMP_NUM_THREADS": "Threads of a Program that is run without `--threads`.",
}


def cell(text: str) -> str:
    """A text as a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Its lines; a column in which nothing stands is left out."""
    kept = [i for i in range(len(head)) if any(row[i] for row in rows)]
    lines = [[head[i] for i in kept], ["---"] * len(kept), *([row[i] for i in kept] for row in rows)]
    return [f"| {' | '.join(line)} |".replace("| --- ", "|---").replace("--- |", "---|") for line in lines]


# -- commands


def leaves(tree: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command by its words."""
    verbs = getattr(tree, "commands", None)
    if verbs is None:
        yield words, tree
    else:
        for name in sorted(verbs):
            yield from leaves(verbs[name], (*words, name))


def variable(option: Any, words: tuple[str, ...]) -> str:
    """The environment variable that an option's value may come from."""
    if option.envvar:
        return str(option.envvar)
    if words[0] == "coordinator" and option.name in coordinator_settings.DEFAULTS:
        return f"{coordinator_settings.PREFIX}{option.name.upper()}"
    known = {*settings.DEFAULTS, settings.NETWORK}
    return f"LOCKSTEP_{option.name.upper()}" if option.name in known else ""


def default(option: Any, words: tuple[str, ...]) -> str:
    """What holds if nobody says anything."""
    if option.default is not None and not callable(option.default) and option.default not in (False, "", ()):
        value = option.default
        if value is True and option.secondary_opts:
            value = option.opts[0]
        return f"`{getattr(value, 'value', value)}`"
    own = coordinator_settings.DEFAULTS if words[0] == "coordinator" else {}
    value = own.get(option.name, settings.DEFAULTS.get(option.name) if variable(option, words) else None)
    return f"`{value}`" if value not in (None, "") else ""


def form(option: Any) -> str:
    """An option as it is typed."""
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if option.is_flag:
        return names
    return names[:-1] + f" {option.metavar or kind_of(option.type_descriptor.annotation)}`"


def kind_of(type_: Any) -> str:
    """A type as it is written in a command's form."""
    if isinstance(type_, type) and issubclass(type_, Enum):
        return "|".join(str(member.value) for member in type_)
    return KINDS[type_]


def commands_page() -> list[str]:
    """docs/reference/cli.md."""
    tree = whole()
    lines = [
        "# Commands and options", "", GENERATED, "",
        *wrapped(
            "Every command takes `--help`. A default in these tables is the last of the places that a setting is "
            "looked for in ([settings.md](settings.md)). [commands.md](../commands.md) explains the commands."
        ), "",
    ]  # fmt: skip
    for words, leaf in leaves(tree):
        takes = [p for p in leaf.params if p.param_type_name == "argument"]
        names = [p.metavar or p.name.upper() for p in takes]
        shown = "".join(f" {n}" if p.required else f" [{n}]" for p, n in zip(takes, names, strict=True))
        lines += [f"## lockstep {' '.join(words)}", "", f"`lockstep {' '.join(words)}{shown}`", ""]
        lines += [*wrapped(inspect.cleandoc(leaf.help or "")), ""]
        if takes:
            rows = [(f"`{n}`", cell(p.help or ""), default(p, words)) for p, n in zip(takes, names, strict=True)]
            lines += [*table(("argument", "what it is", "default"), rows), ""]
        rows = [
            (
                form(option) + (" (required)" if option.required else ""),
                cell(option.help or ""),
                default(option, words),
                f"`{variable(option, words)}`" if variable(option, words) else "",
            )
            for option in leaf.params
            if option.param_type_name == "option" and option.name != "help"
        ]
        lines += [*table(("option", "what it is", "default", "variable"), rows), ""]
    return lines


def wrapped(text: str) -> list[str]:
    """Paragraphs of 100 columns."""
    found: list[str] = []
    for paragraph in text.split("\n\n"):
        found += [*textwrap.wrap(" ".join(paragraph.split()), 100, break_on_hyphens=False), ""]
    return found[:-1]


# -- settings


def fields_of(module: Any, name: str) -> dict[str, str]:
    """The docstrings under the fields of a class."""
    tree = ast.parse(inspect.getsource(module))
    found = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    said = {}
    for field, after in zip(found.body, [*found.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            said[field.target.id] = " ".join(str(after.value.value).split()) if told else ""  # type: ignore[union-attr]
    return said


def options_of() -> dict[str, str]:
    """The help of an option by the variable that it may come from."""
    found: dict[str, str] = {}
    for words, leaf in leaves(whole()):
        for option in leaf.params:
            if option.param_type_name == "option" and (name := variable(option, words)):
                found.setdefault(name, option.help or "")
    return found


def settings_page() -> list[str]:
    """docs/reference/settings.md."""
    helps, told = options_of(), fields_of(settings, "Settings")
    rows = [
        (
            f"`{name}`", f"`LOCKSTEP_{name.upper()}`", f"`{value}`" if value != "" else "",
            cell(helps.get(f"LOCKSTEP_{name.upper()}") or told[name]),
        )
        for name, value in settings.DEFAULTS.items()
    ]  # fmt: skip
    rows.append((f"`{settings.NETWORK}`", "`LOCKSTEP_NETWORK`", "", cell(helps["LOCKSTEP_NETWORK"])))
    own = fields_of(coordinator_settings, "CoordinatorSettings")
    prefix = coordinator_settings.PREFIX
    coordinators = [
        (
            f"`coordinator_{name}`", f"`{prefix}{name.upper()}`", f"`{value}`" if value != "" else "",
            cell(own[name] or helps.get(f"{prefix}{name.upper()}", "")),
        )
        for name, value in coordinator_settings.DEFAULTS.items()
    ]  # fmt: skip
    others = {**WITHOUT_OPTION, **{n: h for n, h in helps.items() if n not in _tabled()}, **FROM_ELSEWHERE}
    head = ("setting", "variable", "default", "what it is")
    return [
        "# Settings", "", GENERATED, "",
        *wrapped(
            "A setting is looked for in this order: the option, the variable, `./lockstep.toml`, the network, "
            "`~/.config/lockstep/config.toml`, the default. A name that no setting has is refused, with the "
            "nearest one."
        ), "", "## Of every command", "", *table(head, rows), "",
        "## Of the coordinator", "",
        "They stand in `./lockstep.toml` alone, not in `config.toml`.", "", *table(head, coordinators), "",
        "## Of a network", "",
        *wrapped(
            "In `~/.config/lockstep/networks.toml`, a table for each market; `{role}` becomes requester, worker, "
            "verifier or coordinator."
        ), "",
        *table(
            ("key", "what it is"),
            [(f"`{n}`", cell(helps.get(f"LOCKSTEP_{n.upper()}") or told[n])) for n in networks.FIELDS],
        ),
        "", "## Variables without a setting", "",
        *table(("variable", "what it is"), [(f"`{n}`", cell(h)) for n, h in sorted(others.items())]), "",
    ]  # fmt: skip


def _tabled() -> set[str]:
    of_all = {f"LOCKSTEP_{name.upper()}" for name in (*settings.DEFAULTS, settings.NETWORK)}
    return of_all | {f"{coordinator_settings.PREFIX}{name.upper()}" for name in coordinator_settings.DEFAULTS}


# -- errors


def classes() -> Iterator[tuple[int, type[errors.LockstepError]]]:
    """(depth, class) of the error tree, parents first."""
    for file in sources():
        if "LockstepError" in (text := file.read_text()) or "Error)" in text:
            module = str(file.relative_to(ROOT / "sdk" if file.is_relative_to(ROOT / "sdk") else ROOT))
            importlib.import_module(module.removesuffix(".py").removesuffix("/__init__").replace("/", "."))

    def below(kind: type[errors.LockstepError], depth: int) -> Iterator[tuple[int, type[errors.LockstepError]]]:
        yield depth, kind
        for child in sorted(kind.__subclasses__(), key=lambda c: (c.exit_code, c.__name__)):
            # A rule of the contracts stands where its exit code says.
            if child.__name__ != "Reverted":
                yield from below(child, depth + 1)

    return below(errors.LockstepError, 0)


def sources() -> list[Path]:
    """Every module of the product but the demo's liars."""
    return [p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py")) if "cheats" not in p.parts]


def worded(node: ast.AST) -> str | None:
    """A text as a user reads it, with a sign for what is computed; None if it is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(v.value if isinstance(v, ast.Constant) else VALUE for v in node.values)  # type: ignore[misc]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = worded(node.left), worded(node.right)
        return None if left is None and right is None else f"{left or VALUE}{right or VALUE}"
    return None


def raised() -> dict[str, set[tuple[str, str]]]:
    """(message, hint) of every error that the code makes, by its class."""
    found: dict[str, set[tuple[str, str]]] = {}
    known = {kind.__name__ for _, kind in classes()}
    for file in sources():
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            hints = [k.value for k in node.keywords if k.arg == "hint"] or node.args[1:2]
            message, hint = worded(node.args[0]), worded(hints[0]) if hints else None
            if name in known and message and hint and set(message) - set(f"{VALUE}: "):
                found.setdefault(name, set()).add((message, hint))
    return found


def errors_page() -> list[str]:
    """docs/reference/errors.md."""
    tree, made = list(classes()), raised()
    lines = [
        "# Errors", "", GENERATED, "",
        *wrapped(
            "A command that fails prints a message and a hint, and exits with the code of the error's class. `--json` "
            'prints `{"code", "message", "hint"}`; `code` may be finer than its class (`auth.replayed`). In the lists '
            f"below {VALUE} stands for a value."
        ), "",
        *table(
            ("class", "exit code", "`code`", "meaning"),
            [
                (
                    "\u2003" * depth + f"[{kind.__name__}](#{kind.__name__.lower()})" if kind.__name__ in made
                    else "\u2003" * depth + kind.__name__,
                    str(kind.exit_code), f"`{kind.code}`", cell((kind.__doc__ or "").split("\n\n")[0]),
                )
                for depth, kind in tree
            ],
        ), "",
    ]  # fmt: skip
    for _, kind in tree:
        if kind.__name__ in made:
            rows = [(cell(message), cell(hint)) for message, hint in sorted(made[kind.__name__])]
            lines += [f"## {kind.__name__}", "", *table(("message", "hint"), rows), ""]
    return lines


PAGES = {"cli.md": commands_page, "settings.md": settings_page, "errors.md": errors_page}


def main() -> int:
    """Write the pages, or compare them."""
    stale = []
    for name, made in PAGES.items():
        text = "\n".join(made()).rstrip() + "\n"
        place = FOLDER / name
        if "--check" in sys.argv[1:]:
            if not place.exists() or place.read_text() != text:
                stale.append(str(place.relative_to(ROOT)))
        else:
            FOLDER.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
    if stale:
        print(f"{', '.join(stale)}: not what the code says; run `make reference`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
