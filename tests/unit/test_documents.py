"""The documents' commands, paths and snippets are those of this tree; tests/e2e/test_journeys.py runs them."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import documents
from tests.support.commandtext import GIVEN_TO_ALL, quoted
from tests.support.documents import Block
from tests.support.published import commands
from tests.unit.test_honest_programs import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
PEOPLE = {"worker", "ml-engineer", "verifier", "operator", "watcher"}
STANDS_FOR = {
    "JOB": "ab" * 32, "CLAIM": "ab" * 32, "GAME": "ab" * 32, "AMOUNT": "20.5", "N": "2", "JOB.toml": "job.toml",
    "FILE": "file", "DIR": "folder", "CID": "bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e",
    "ADDRESS": "0x" + "11" * 20, "NAME": "local", "TEXTS": "texts", "URL": "http://127.0.0.1:1",
}  # fmt: skip
"""What a document writes in capitals for the reader's own."""
FILE = re.compile(r"[\w.-]+(/[\w.-]+)*/[\w.-]+\.(py|sol|md|json|jsonl|toml|cpp|hpp|inl|cuh|cu|yaml|yml|css|js|svg|txt)")
BESIDE = (
    "",
    "docs",
    "contracts",
    "tests",
    "sdk/lockstep",
    *(f"sdk/lockstep/{p}" for p in ("numerics", "protocol", "training")),
)
"""Folders that a path in a document may start from."""


def every_block() -> list[Block]:
    """Of all documents."""
    return documents.all_blocks(ROOT)


def typed() -> list[Block]:
    """Those with commands of a shell."""
    return [b for b in every_block() if b.typed]


def parts(line: str) -> Iterator[list[str]]:
    """The words of each command of a line, from `lockstep` or another program on."""
    for part in re.split(r"&&|\|\||;|\|(?!\w)|&(?=\s|$)", line):
        try:
            words = shlex.split(part.strip(), comments=True)
        except ValueError:  # no shell's
            continue
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        if words:
            yield words


def of_program(name: str) -> list[tuple[str, list[str]]]:
    """(where, arguments) of every command of a program that a block has."""
    return [
        (block.where, words[1:])
        for block in typed()
        for line in block.commands
        for words in parts(line)
        if words[0].removeprefix(".venv/bin/") == name
    ]


@pytest.mark.parametrize("block", typed(), ids=lambda b: b.where)
def test_a_block_of_commands_is_run_or_says_why_not(block: Block) -> None:
    assert block.mark is not None, (
        f"{block.where}: put `<!-- run: JOURNEY -->` or `<!-- not run: REASON -->` before it "
        "(tests/support/documents.py)"
    )
    assert len(block.mark["reason"] or "a reason") > 6


def test_every_mark_stands_before_a_block() -> None:
    for file in documents.documents(ROOT):
        lines = [line.strip() for line in file.read_text().splitlines()]
        written = [m[1] for line in lines if (m := documents.COMMENT.fullmatch(line))]
        assert written == [b.comment for b in documents.blocks(file) if b.comment], file.name
        begun = [line for line in lines if re.match(r"<!-- *(not )?(run|prints)", line)]
        assert len(begun) == len(written), f"{file.name}: a mark that nothing reads"


def test_every_lockstep_command_of_a_block_parses() -> None:
    found = [(where, words) for where, words in of_program("lockstep") if "[" not in " ".join(words)]
    assert len(found) > 20
    for where, words in found:
        path, leaf = _leaf(words)
        arguments = [STANDS_FOR.get(word, word) for word in words[len(path) :]]
        arguments = [word for word in arguments if word not in GIVEN_TO_ALL - {"--json", "--network"}]
        if leaf is not None:
            try:
                leaf.make_context(" ".join(path), arguments)
            except Exception as error:
                pytest.fail(f"{where}: lockstep {' '.join(words)}: {error}")


def _leaf(words: list[str]) -> tuple[tuple[str, ...], Any]:
    for length in (3, 2, 1):
        if tuple(words[:length]) in commands():
            return tuple(words[:length]), commands()[tuple(words[:length])]
    assert words[0] in GIVEN_TO_ALL, f"there is no command {words}"
    return (), None


def targets() -> set[str]:
    """Of the Makefile."""
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_every_make_target_that_a_document_names_exists() -> None:
    named = [(where, words) for where, words in of_program("make")]
    for file in documents.documents(ROOT):
        for span in quoted(file.read_text()):
            named += [(file.name, words[1:]) for words in parts(span) if words[0] == "make"]
    assert len(named) > 30
    lost = [
        f"{where}: make {w}" for where, words in named for w in words if re.match(r"[a-z]", w) and w not in targets()
    ]
    assert lost == []
    makefile = (ROOT / "Makefile").read_text()
    given = {w.partition("=")[0] for _, words in named for w in words if re.match(r"[A-Z_]+=", w)}
    assert {name for name in given if f"$({name})" not in makefile and f"{name} ?=" not in makefile} == set()


def test_every_file_that_a_document_names_exists() -> None:
    lost, found = [], 0
    for file in documents.documents(ROOT):
        for span in quoted(file.read_text()):
            for word in span.split():
                path = word.partition("::")[0].strip(",.:;()")
                if FILE.fullmatch(path) and not path.startswith(("out/", "node_modules/")):
                    found += 1
                    if not any((ROOT / folder / path).exists() for folder in BESIDE):
                        lost.append(f"{file.name}: {path}")
    assert found > 200
    assert lost == []


def anchors(file: Path) -> set[str]:
    """The headings of a document as links name them."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", file.read_text(), flags=re.M | re.S), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", title).replace("`", "") for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain}


def test_every_name_of_the_glossary_stands_in_its_file() -> None:
    rows = re.findall(r"`([\w./]+\.(?:py|sol))`, `([\w.]+)`", (ROOT / "docs/glossary.md").read_text())
    assert rows
    found = []
    for file, name in rows:
        text = next(path for folder in BESIDE if (path := ROOT / folder / file).exists()).read_text()
        found += [f"{file} has no {part}" for part in name.split(".") if not re.search(rf"\b{part}\b", text)]
    assert found == []


def test_every_link_of_a_document_leads_somewhere() -> None:
    lost, found = [], 0
    for file in documents.documents(ROOT):
        for target in re.findall(r"\]\(([^)\s]+)\)", file.read_text()):
            if re.match(r"[a-z]+:", target):
                continue
            found += 1
            path, _, anchor = target.partition("#")
            place = file.parent / path if path else file
            if not place.exists() or (anchor and place.suffix == ".md" and anchor not in anchors(place)):
                lost.append(f"{file.name}: {target}")
    assert found > 100
    assert lost == []


def snippets() -> list[Block]:
    """Of Python."""
    return [
        *(b for b in every_block() if documents.is_python(b)),
        *(cell for notebook in NOTEBOOKS for cell in documents.cells(notebook)),
    ]


@pytest.mark.parametrize("block", snippets(), ids=lambda b: b.where)
def test_a_python_snippet_compiles_and_what_it_imports_exists(block: Block) -> None:
    compile(block.text, block.where, "exec")
    for module, name in documents.imports(block):
        found = importlib.import_module(module)
        assert name is None or hasattr(found, name) or _is_module(module, name), f"{module} has no {name}"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_without_what_its_cells_put_out(notebook: Path) -> None:
    kept = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in kept)


@pytest.mark.parametrize("block", snippets(), ids=lambda b: b.where)
def test_a_python_snippet_calls_what_it_imports_with_arguments_that_there_are(block: Block) -> None:
    known = {name: getattr(importlib.import_module(m), name, None) for m, name in documents.imports(block) if name}
    known |= {n: v for b in snippets() if b.file == block.file for n, v in _names(b).items() if n not in known}
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Call) and callable(called := _called(node.func, known)):
            try:
                takes = inspect.signature(called).parameters
            except ValueError:
                continue
            if not any(p.kind is p.VAR_KEYWORD for p in takes.values()):
                unknown = {k.arg for k in node.keywords if k.arg} - takes.keys()
                assert not unknown, f"{block.where}: {ast.unparse(node.func)} takes no {unknown}"


def _names(block: Block) -> dict[str, Any]:
    return {name: getattr(importlib.import_module(m), name, None) for m, name in documents.imports(block) if name}


def _called(node: ast.expr, known: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return getattr(known.get(node.value.id), node.attr, None)
    return None


def _is_module(package: str, name: str) -> bool:
    try:
        importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError:
        return False
    return True


def test_five_people_have_a_journey_of_three_commands_without_a_script() -> None:
    journeys = documents.journeys(ROOT)
    written = {file.stem for file in (ROOT / "docs/tutorials").glob("*.md")}
    assert journeys.keys() >= PEOPLE & written == PEOPLE
    for person in PEOPLE & written:
        lines = [line for stage in journeys[person] for line in stage.block.commands]
        assert lines[0].startswith("lockstep local up"), person
        assert len(lines) <= 4, f"{person}: {lines}"
        assert not any(word.endswith(".py") or word.startswith("python") for line in lines for word in line.split())
        assert any(stage.prints for stage in journeys[person]), f"{person}: its page shows what is printed"


def test_the_reference_has_every_variable_that_the_code_reads() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text()
    for name in ENVIRONMENT - {"LOCKSTEP_COORDINATOR_"}:
        assert f"`{name}`" in page, name


def test_the_readme_names_every_tutorial() -> None:
    readme = (ROOT / "README.md").read_text()
    for file in (ROOT / "docs/tutorials").glob("*.md"):
        assert f"docs/tutorials/{file.name}" in readme, file.name
        assert f"tutorials/{file.name}" in (ROOT / "docs/commands.md").read_text(), file.name


@pytest.mark.parametrize(
    ("shown", "printed", "lost"),
    [
        (["job 7c33c5 is done", "..."], "first\njob 99aa00ff is done\n", []),
        (["loss 2.5 ▁▂"], "loss 3.25 █▁▁▁", []),
        (["b", "a"], "a\nb", ["a"]),
        (["earned 5 LST"], "earned nothing", ["earned 5 LST"]),
        (["MATCH 7c33c5 ..."], "MATCH 7c33c5ff (round 0, slot 1)", []),
    ],
)
def test_what_a_document_shows_is_compared_but_for_numbers(shown: list[str], printed: str, lost: list[str]) -> None:
    assert documents.missing(shown, printed) == lost


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a\n\n    make demo\n", [("", "", ["make demo"])]),
        ("<!-- not run: too long -->\n```\nmake demo  # minutes\n```\n", [("", "not run: too long", ["make demo"])]),
        ("<!-- run: x, until `ready` -->\n\n    a \\\n      b\n\nc\n", [("", "run: x, until `ready`", ["a b"])]),
        ("<!-- prints -->\ntext between\n\n    $ make\n", [("", "", ["make"])]),
        ("- item\n    goes on\n", []),
        ("```python\nx = 1\n```\n", [("python", "", ["x = 1"])]),
    ],
)
def test_blocks_are_found_with_their_marks(text: str, found: list[tuple[str, str, list[str]]], tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(text)
    assert [(b.language, b.comment, b.commands) for b in documents.blocks(tmp_path / "page.md")] == found
