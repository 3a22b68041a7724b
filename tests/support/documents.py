"""Extracts code blocks from documents, each with the preceding comment that controls its test.

    <!-- run: NAME -->                   the commands, or the snippet of Python, are a part of the journey NAME and are
                                         run for real, in order
    <!-- run: NAME, until `TEXT` -->     so is this command; it goes on beside the next ones once it has printed TEXT
    <!-- prints -->                      the block shows what the command before it prints
    <!-- not run: REASON -->             its commands are parsed, and nothing more

A reader sees none of them.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

COMMENT = re.compile(
    r"<!-- (run: (?P<journey>[a-z-]+)(, until `(?P<until>[^`]+)`)?|prints|not run: (?P<reason>.+)) -->"
)
SHELL = re.compile(
    r"(\$ |[A-Z_]+=\S+ )*(\.venv/bin/\w+|lockstep|make|pip|npm|curl|docker|systemctl|pytest|python3?|for \w+ in) ?"
)
"""Beginning of a line that a user types into a terminal."""


@dataclass(frozen=True)
class Block:
    """A fenced or indented block."""

    file: Path
    line: int
    language: str
    """Language after the fence."""
    lines: tuple[str, ...]
    comment: str
    """The comment before the block, or ""."""

    @property
    def where(self) -> str:
        """Returns file and line for messages."""
        return f"{self.file.name}:{self.line}"

    @property
    def text(self) -> str:
        """Returns the contents."""
        return "\n".join(self.lines)

    @property
    def commands(self) -> list[str]:
        """Returns the typed commands: continued lines joined, comments and prompts removed."""
        found, kept = [], ""
        for line in self.lines:
            line = kept + line.strip()
            kept = ""
            if line.endswith("\\"):
                kept = line[:-1].rstrip() + " "
            elif said := re.split(r"(?:^|\s+)#(?:\s|$)", line)[0].strip():
                found.append(said.removeprefix("$ "))
        return found

    @property
    def typed(self) -> bool:
        """Returns True if the block has shell commands."""
        if self.comment == "prints" or self.language in ("python", "toml", "json"):
            return False
        return self.language in ("sh", "bash", "shell", "console") or any(SHELL.match(line) for line in self.commands)

    @property
    def mark(self) -> re.Match[str] | None:
        """Parses the comment."""
        return COMMENT.fullmatch(f"<!-- {self.comment} -->")


def documents(root: Path) -> list[Path]:
    """Returns the documents for readers, tutorials first."""
    return [*sorted((root / "docs/tutorials").glob("*.md")), root / "README.md", *sorted((root / "docs").glob("*.md"))]


def blocks(file: Path) -> Iterator[Block]:
    """Yields every block of a document, in order."""
    comment, before = "", ""
    lines = file.read_text().splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        start = at + 1
        if fence := re.match(r"(```|~~~)(\w*)$", line):
            end = next(i for i in range(at + 1, len(lines)) if lines[i] == fence[1])
            yield Block(file, start, fence[2], tuple(lines[at + 1 : end]), comment)
            at, comment = end + 1, ""
        elif line.startswith("    ") and not before.strip():
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            body = [each[4:] for each in lines[at:end]]
            while not body[-1]:
                body.pop()
            yield Block(file, start, "", tuple(body), comment)
            at, comment = end, ""
        else:
            if found := COMMENT.fullmatch(line.strip()):
                comment = found[1]
            elif line.strip():
                comment = ""
            at += 1
        before = lines[at - 1]


def all_blocks(root: Path) -> list[Block]:
    """Returns every block of every document."""
    return [block for file in documents(root) for block in blocks(file)]


def cells(notebook: Path) -> Iterator[Block]:
    """Every code cell of a notebook, under its number."""
    for number, cell in enumerate(json.loads(notebook.read_text())["cells"], 1):
        if cell["cell_type"] == "code":
            yield Block(notebook, number, "python", tuple("".join(cell["source"]).splitlines()), "")


@dataclass(frozen=True)
class Stage:
    """One block of a journey, with the output that the document shows."""

    block: Block
    until: str | None
    prints: tuple[str, ...] = ()


def journeys(root: Path) -> dict[str, list[Stage]]:
    """Returns the stages of every journey by name."""
    found: dict[str, list[Stage]] = {}
    for file in documents(root):
        last: list[Stage] | None = None
        for block in blocks(file):
            mark = block.mark
            if mark is not None and mark["journey"]:
                last = found.setdefault(mark["journey"], [])
                last.append(Stage(block, mark["until"]))
            elif block.comment == "prints":
                if last is None:
                    raise ValueError(f"{block.where}: nothing was run before")
                last[-1] = Stage(last[-1].block, last[-1].until, block.lines)
    return found


def _shape(line: str) -> str:
    """Removes from a line what differs between runs and machines: ids, amounts, times, kernels, bars and spaces."""
    line = re.sub(r"\bprocessor, \w+ kernels\b", "processor, # kernels", line)
    line = re.sub(r"0x[0-9a-fA-F]+|\b[0-9a-f]{6,64}\b", "#", line)
    line = re.sub(r"\b[\d.,:]*\d\b", "#", line)
    return re.sub(r"\s+", " ", re.sub(r"[▁▂▃▄▅▆▇█]+", "~", line)).strip()


def missing(shown: Sequence[str], printed: str) -> list[str]:
    """Returns the lines of a document that a command did not print in this order.

    `...` matches any lines, and at the end of a line any words. Numbers, ids and times may differ.
    """
    got = [_shape(line) for line in printed.splitlines()]
    at, lost = 0, []
    for line in shown:
        wanted = _shape(line)
        if wanted in ("", "...") or wanted.startswith("$ "):
            continue
        cut = wanted.removesuffix("...").rstrip() if wanted.endswith("...") else None
        for i in range(at, len(got)):
            if got[i] == wanted or (cut is not None and got[i].startswith(cut)):
                at = i + 1
                break
        else:
            lost.append(line)
    return lost


def imports(block: Block) -> Iterator[tuple[str, str | None]]:
    """Yields (module, name) of everything that a snippet imports. Raises SyntaxError."""
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)


def is_python(block: Block) -> bool:
    """Returns True if the fence marks the snippet as Python."""
    return block.language == "python"
