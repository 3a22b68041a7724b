"""The picture of the README: what `lockstep demo` says, drawn as a terminal.

python benchmarks/picture.py                  runs the demo, writes docs/demo.svg
python benchmarks/picture.py --log FILE       draws what a run said, instead of running one
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 132
TOLD = ("chain ", "the training step", "job ", "lies", "round 0", "replayed", "challenges", " challenger ",
        " defender ", "fraud: claimed", "won game", "slashed: ", "round 1: merged", "held-out",
        "game:", "escrow")  # fmt: skip
"""Texts by which a line is chosen to be drawn."""
NEXT = re.compile(r" \((challenger|defender) to .*\)$")
"""The end of a move's line: whose turn it is, and what is left of the clock."""
COLOURS = {"lies": "red", "fraud: claimed": "bold green", "slashed": "red", "won": "green", "held-out": "bold"}


def drawn(lines: list[str]) -> str:
    """An SVG of the lines that matter."""
    with (ROOT / "out/picture.txt").open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere)
        console.print(Text("$ lockstep demo", style="bold"))
        for line in lines:
            if any(words in line for words in TOLD):
                style = next((colour for words, colour in COLOURS.items() if words in line), "")
                line = NEXT.sub("", line)
                cut = line if len(line) <= WIDTH else line[: WIDTH - 3] + "..."
                console.print(Text(cut, style=style))
        return console.export_svg(title="lockstep demo", unique_id="demo")


def main() -> None:
    """Write docs/demo.svg."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path)
    asked = parser.parse_args()
    if asked.log is None:
        command = [sys.executable, "-m", "lockstep.cli.main", "demo", "--no-browser"]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        said = run.stderr + run.stdout
    else:
        said = asked.log.read_text()
    (ROOT / "docs/demo.svg").write_text(drawn(said.splitlines()))


if __name__ == "__main__":
    main()
