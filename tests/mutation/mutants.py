"""Single-line mutants of Solidity sources: what a slip of the hand makes of a line.

The operators follow the usual set (Offutt et al., "An experimental determination of sufficient mutant operators", 1996:
relational, logical and arithmetic replacement, statement deletion), with those for Yul's functions and for modifiers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One line of a source replaced by another."""

    path: str
    number: int
    """The line's, from 1."""
    operator: str
    before: str
    after: str

    def apply(self, source: str) -> str:
        """The source with this line in it. ValueError if the line is not what it was."""
        lines = source.split("\n")
        if lines[self.number - 1] != self.before:
            raise ValueError(f"{self.path}:{self.number} has changed")
        lines[self.number - 1] = self.after
        return "\n".join(lines)

    def __str__(self) -> str:
        return (
            f"{self.path}:{self.number} {self.operator}: {self.before.strip()}  ->  {self.after.strip() or '(nothing)'}"
        )


REPLACED = {
    "relational": {
        r"(?<![<>=!])<(?![<=])": "<=", r"<=": "<", r"(?<![<>=])>(?![>=])": ">=", r"(?<!>)>=": ">",
        r"==": "!=", r"!=": "==",
    },
    "logical": {r"&&": "||", r"\|\|": "&&", r"\btrue\b": "false", r"\bfalse\b": "true", r"!(?=[\w(])": ""},
    "arithmetic": {
        r"(?<=[\w)\]])\s\+\s": " - ", r"(?<=[\w)\]])\s-\s": " + ", r"\s\*\s": " / ", r"\s/\s": " * ", r"\s%\s": " * ",
        r"\+=": "-=", r"-=": "+=", r"\+\+": "--",
    },
    "bits": {r"(?<!&)&(?!&)": "|", r"(?<!\|)\|(?!\|)": "&", r"\^": "|", r"<<": ">>", r">>": "<<"},
    "yul": {
        r"\badd\(": "sub(", r"\bsub\(": "add(", r"\bmul\(": "add(", r"\bdiv\(": "mul(", r"\band\(": "or(",
        r"\bor\(": "and(", r"\bxor\(": "or(", r"\bshl\(": "shr(", r"\bshr\(": "shl(", r"\bsar\(": "shr(",
        r"\blt\(": "gt(", r"\bgt\(": "lt(", r"\bslt\(": "lt(", r"\beq\(": "lt(",
    },
}  # fmt: skip
"""Operator -> what is found in code -> what replaces it, one place at a time."""

ISZERO = re.compile(r"\biszero\(")
NUMBER = re.compile(r"(?<![\w.\"'x])(0x[0-9a-fA-F]+|\d+)(?![\w.\"'])")
ADDRESS = 42
"""Characters of an address, whose letters are a checksum: no other literal compiles."""
GUARD = re.compile(r"^\s*if \((.*)\) (revert |return |continue|break)")
CONDITION = re.compile(r"^\s*(?:\} else |else )?if \(")
COMMUTATIVE = "".join(rf"(?<!\b{name}\()" for name in ("add", "mul", "and", "or", "xor", "eq", "fma", "_anyNaN"))
CALL = re.compile(COMMUTATIVE + r"(?<=\()(\w[\w.\[\]]*), (\w[\w.\[\]]*)(?=[,)])")
TYPED = re.compile(
    r"\b(?:(u?int)\d*|(bytes\d*|address|bool|string|[A-Z]\w*))((?:\[\])*)"
    r"(?: (?:memory|storage|calldata|public|private|internal|constant|immutable))* (\w+)(?=[,;)]| =)"
)
"""A declaration: a number's type or another, whether an array, the name."""
MODIFIERS = re.compile(r" (onlyMarket|onlyGame|nonReentrant|onlyKeeper|only\w+)(?= |$)")
STATEMENT = re.compile(r"^\s+(\w.*;|\S+ := .*[^{])$")
DECLARATION = re.compile(
    r"^\s*(import|pragma|using|error|event|struct|enum|function|modifier|constructor|mapping|library|contract|interface"
    r"|return|_|let|u?int\d*|bytes\d*|bool|address|string|\w+ (public|private|internal|immutable)"
    r"|\w[\w.\[\]]* (memory|storage|calldata))\b"
)
"""Without these lines others would not compile, or what they return would be 0."""


def of_source(path: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a source, in order."""
    lines = source.split("\n")
    types: dict[str, set[str]] = {}
    for number, word, arrays, name in TYPED.findall(source):
        types.setdefault(name, set()).add((number or word) + arrays)
    in_comment = False
    for number, line in enumerate(lines, 1):
        code = line.split("//")[0].rstrip()
        in_comment = (in_comment or code.strip().startswith("/*")) and "*/" not in code
        if in_comment or not code.strip() or re.match(r"\s*(\*|import|pragma|error |event |using )", code):
            continue
        seen = {line}
        for operator, after in _of_line(code, types):
            if not after and any(other.strip().startswith("else") for other in lines[number : number + 1]):
                continue
            if after not in seen:
                seen.add(after)
                yield Mutant(path, number, operator, line, after)


def _of_line(code: str, types: Mapping[str, set[str]]) -> Iterator[tuple[str, str]]:
    for found in MODIFIERS.finditer(code):
        yield "modifier", code[: found.start()] + code[found.end() :]
    if re.match(r"\s*function ", code):
        return
    text = re.sub(r'"[^"]*"|hex"[^"]*"', lambda m: "\0" * len(m[0]), code)
    for operator, pairs in REPLACED.items():
        for pattern, new in pairs.items():
            for found in re.finditer(pattern, text):
                yield operator, code[: found.start()] + new + code[found.end() :]
    for found in ISZERO.finditer(text):
        if end := _closing(code, found.end()):
            yield "yul", f"{code[: found.end()]}iszero({code[found.end() : end]}){code[end:]}"
    for found in NUMBER.finditer(text):
        if len(found[0]) == ADDRESS:
            continue
        value = int(found[0], 0)
        for other in (value + 1, value - 1):
            if other >= 0:
                written = f"0x{other:0{len(found[0]) - 2}x}" if found[0].startswith("0x") else str(other)
                yield "constant", code[: found.start()] + written + code[found.end() :]
    for found in CALL.finditer(text):
        if _is_typed_alike(found[1], found[2], types):
            yield "arguments", f"{code[: found.start()]}{found[2]}, {found[1]}{code[found.end() :]}"
    if (opened := CONDITION.match(code)) and (end := _closing(code, opened.end())):
        yield "negation", f"{code[: opened.end()]}!({code[opened.end() : end]}){code[end:]}"
    if _is_balanced(code) and (GUARD.match(code) or STATEMENT.match(code)) and not DECLARATION.match(code):
        yield "deletion", ""


def _is_typed_alike(first: str, second: str, types: Mapping[str, set[str]]) -> bool:
    """False if one cannot stand where the other does, as far as the declarations of this source tell."""
    both = [_types_of(text, types) for text in (first, second)]
    return not all(both) or bool(both[0] & both[1])


def _types_of(text: str, types: Mapping[str, set[str]]) -> set[str]:
    if text[0].isdigit() or text == "block.timestamp":
        return {"uint"}
    if text == "msg.sender":
        return {"address"}
    kind, _, member = text.partition(".")
    if kind[0].isupper() and not member.isupper():
        return {kind}
    return types.get(text.rpartition(".")[2], set())


def _closing(code: str, at: int) -> int:
    """Where the parenthesis that was opened before `at` is closed; 0: on another line."""
    depth = 1
    for i, character in enumerate(code[at:], at):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return i
    return 0


def _is_balanced(code: str) -> bool:
    return code.count("(") == code.count(")") and code.count("{") == code.count("}")


def shuffled(path: str, source: str, seed: int) -> list[Mutant]:
    """The source's mutants in an order that the seed gives: the operators by turns, each in a random order."""
    rng = random.Random(f"{seed} {path}")
    by_operator: dict[str, list[Mutant]] = {}
    for mutant in of_source(path, source):
        by_operator.setdefault(mutant.operator, []).append(mutant)
    rows = [rng.sample(own, len(own)) for own in by_operator.values()]
    return [row[i] for i in range(max(map(len, rows))) for row in rows if i < len(row)]
