"""Extracts commands named in hints, help, docstrings and documents, and checks them against the command tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.protocol import errors
from tests.support.published import commands

PACKAGES = ("sdk/lockstep", "coordinator", "worker", "verifier")
VALUE = "X"
"""Placeholder for a value computed by an f-string."""
GIVEN_TO_ALL = {"--help", "--version", "--json", "--network"}


@dataclass(frozen=True)
class Text:
    """A text of the code base, with its location."""

    where: str
    text: str


def strings(node: ast.AST) -> Iterator[str]:
    """Yields every string in an expression, with a placeholder for each value of an f-string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(v.value) if isinstance(v, ast.Constant) else VALUE for v in node.values)
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                yield from strings(value.value)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        lefts, rights = list(strings(node.left)), list(strings(node.right))
        yield "".join([*lefts[:1], *rights[:1]])
        yield from (*lefts[1:], *rights[1:])
    else:
        for child in ast.iter_child_nodes(node):
            yield from strings(child)


@cache
def error_names() -> frozenset[str]:
    """Returns the names of all classes in the error tree, wherever defined."""
    found, todo = set(), [errors.LockstepError]
    while todo:
        kind = todo.pop()
        found.add(kind.__name__)
        todo += kind.__subclasses__()
    return frozenset(found)


def sources(root: Path) -> Iterator[Path]:
    """Yields every module of the product."""
    for package in PACKAGES:
        yield from sorted((root / package).rglob("*.py"))


@cache
def parsed(file: Path) -> ast.Module:
    """Returns a module's syntax tree."""
    return ast.parse(file.read_text())


def hints(root: Path) -> Iterator[Text]:
    """Yields every text that a user may get as a hint: of errors, of reverts, of unpaid rounds."""
    for file in sources(root):
        for node in ast.walk(parsed(file)):
            if isinstance(node, (ast.Call, ast.Assign, ast.AnnAssign)):
                for text in _hints_of(node):
                    yield Text(f"{file.relative_to(root)}:{node.lineno}", text)


def _hints_of(node: ast.Call | ast.Assign | ast.AnnAssign) -> Iterator[str]:
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg == "hint":
                yield from strings(keyword.value)
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if called in error_names() and len(node.args) > 1:
            yield from strings(node.args[1])
        if called == "Note" and len(node.args) > 1:
            yield from strings(node.args[1])
    else:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if getattr(target, "id", "") in ("HINTS", "MEANINGS") and node.value is not None:
            yield from strings(node.value)


def code_texts(root: Path) -> Iterator[Text]:
    """Yields every string of the code, docstrings and help texts included."""
    for file in sources(root):
        tree = parsed(file)
        for node in tree.body:
            for text in strings(node):
                yield Text(f"{file.relative_to(root)}:{node.lineno}", text)


def documents(root: Path) -> Iterator[Path]:
    """Yields the documents for readers."""
    yield root / "README.md"
    yield from sorted(p for p in (root / "docs").rglob("*.md") if "reference" not in p.parts)


def quoted(text: str) -> Iterator[str]:
    """Yields text in backquotes, on one line or two."""
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    for span in re.findall(r"`([^`]+)`", text):
        if "\n\n" not in span:
            yield re.sub(r"\s+", " ", span).strip()


def blocks(text: str) -> Iterator[str]:
    """Yields the lines of fenced and indented blocks, continued lines joined, without comments."""
    inside, kept = False, ""
    for line in text.splitlines():
        if line.startswith(("```", "~~~")):
            inside = not inside
        elif (inside or line.startswith("    ")) and line.strip():
            line = kept + line.strip()
            kept = ""
            if line.endswith("\\"):
                kept = line[:-1].rstrip() + " "
            else:
                yield re.split(r"\s+#(?:\s|$)", line)[0].strip()


def named_commands(text: str) -> Iterator[str]:
    """Yields the commands in backquotes or blocks of a text, each from the word after `lockstep`."""
    for span in quoted(text):
        yield from _of_line(span)
        words = span.split()
        if len(words) > 1 and words[0] in _nouns() and re.fullmatch(r"[a-z]+", words[1]):
            yield span
    for line in blocks(text):
        yield from _of_line(line)


@cache
def _nouns() -> frozenset[str]:
    """Returns first words of commands with two words."""
    return frozenset({words[0] for words in commands() if len(words) > 1} | {"guard"})


def _of_line(line: str) -> Iterator[str]:
    for part in re.split(r"&&|;|\|\|", line):
        found = re.match(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?lockstep (.+)$", part.strip())
        if found and not found[1].startswith("/"):
            yield found[1]


def wrong(command: str) -> str | None:
    """Describes the defect of a command in a text; None if the tree has the command with all its options."""
    words = [w for w in re.sub(r"[\[\]()]", " ", command).split() if w not in ("...", "…")]
    path, rest = _path(words)
    if path is None:
        return f"there is no command `lockstep {command}`"
    leaf = commands().get(path)
    if leaf is None:
        return None if not rest else f"`lockstep {' '.join(path)}` has no {rest[0]!r}"
    known = {name for option in leaf.params for name in (*option.opts, *option.secondary_opts)} | GIVEN_TO_ALL
    for word in rest:
        for option in word.split("|"):
            if option.startswith("--") and option.partition("=")[0].rstrip(",.:") not in known:
                return f"`lockstep {' '.join(path)}` has no option {option}"
    takes = [p for p in leaf.params if p.param_type_name == "argument"]
    if not takes and rest and re.fullmatch(r"[A-Z]+|[a-z]+", rest[0]):
        return f"`lockstep {' '.join(path)}` takes no argument {rest[0]!r}"
    return None


def _path(words: Sequence[str]) -> tuple[tuple[str, ...] | None, Sequence[str]]:
    """Returns the longest prefix that is a command or a noun, and the remaining words; `guard` belongs to every
    program.
    """
    tree: set[tuple[str, ...]] = set(commands())
    nouns = {path[:n] for path in tree for n in range(1, len(path))}
    if words and words[0] == "guard":
        words = ["worker", *words]
    if words and words[0].startswith("--"):
        return (), words if set(words) - GIVEN_TO_ALL else ()
    for length in range(min(3, len(words)), 0, -1):
        path = tuple(words[:length])
        if path in tree:
            return path, words[length:]
        if path in nouns:
            rest = words[length:]
            # "`worker stake | drain`" names two verbs of a noun, "`lockstep worker`" the noun.
            return (path, rest) if not rest else (None, rest)
    return None, words


def options_of_all() -> frozenset[str]:
    """Returns every option of every command."""
    every: set[str] = set(GIVEN_TO_ALL)
    for leaf in commands().values():
        leaf_any: Any = leaf
        every |= {name for option in leaf_any.params for name in (*option.opts, *option.secondary_opts)}
    return frozenset(every)
