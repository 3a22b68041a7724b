"""slither over contracts/: every high or medium finding is explained in tools/slither.toml, no explanation is idle.

python tools/check_slither.py        exit 1 with what has no explanation, or with an explanation of nothing
"""

import fnmatch
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SLITHER = ROOT / ".venv-slither/bin/slither"
EXPLAINED = ROOT / "tools/slither.toml"
WORK = ROOT / "out/slither"
GRAVE = ("High", "Medium")
LEFT_OUT = "node_modules|tests|contracts/test"


def findings() -> list[dict[str, Any]]:
    """Returns slither's findings. Exits with its words when it cannot analyse the contracts."""
    (forge,) = (ROOT / "node_modules/@foundry-rs").glob("forge-*/bin/forge")
    for folder in (WORK / "bin", WORK / "home"):
        folder.mkdir(parents=True, exist_ok=True)
    (WORK / "bin/forge").unlink(missing_ok=True)
    (WORK / "bin/forge").symlink_to(forge)
    report = WORK / "report.json"
    report.unlink(missing_ok=True)
    environment = os.environ | {
        "HOME": str(WORK / "home"), "PATH": f"{WORK / 'bin'}:{os.environ['PATH']}",
        "FOUNDRY_OUT": "out/slither/artifacts", "FOUNDRY_CACHE_PATH": "out/slither/cache",
    }  # fmt: skip
    command = [SLITHER, ".", "--foundry-out-directory", "out/slither/artifacts", "--filter-paths", LEFT_OUT]
    run = subprocess.run(
        [*command, "--json", report], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if not report.exists():
        sys.exit(f"slither failed:\n{run.stdout[-2000:]}{run.stderr[-4000:]}")
    answer = json.loads(report.read_text())
    if not answer["success"]:
        sys.exit(f"slither failed:\n{answer['error']}")
    return list(answer["results"].get("detectors", []))


def place_of(finding: dict[str, Any]) -> str:
    """Contract.function of what a finding is about."""
    element = finding["elements"][0]
    names = [element["name"]]
    while parent := element.get("type_specific_fields", {}).get("parent"):
        element = parent
        if element["type"] in ("function", "contract"):
            names.append(element["name"])
    return ".".join(reversed(names))


def calls_of(finding: dict[str, Any]) -> list[str]:
    """A reentrancy's external calls: the innermost of each branch."""
    text = finding["description"].partition("External calls:\n")[2].partition("State variables written")[0]
    lines = [line for line in text.splitlines() if line.strip()]
    depths = [len(line) - len(line.lstrip("\t")) for line in lines]
    leaves = [line for line, own, following in zip(lines, depths, [*depths[1:], 0], strict=True) if following <= own]
    return [re.sub(r"^\s*- (?:[\w.]+ = )?", "", line).partition(" (contracts/")[0] for line in leaves]


def explains(entry: dict[str, Any], finding: dict[str, Any]) -> bool:
    """Returns True if an entry explains this finding: the check, the place, and for a reentrancy every call in it."""
    if entry["check"] != finding["check"] or not fnmatch.fnmatchcase(place_of(finding), entry["where"]):
        return False
    return "calls" not in entry or all(call.startswith(tuple(entry["calls"])) for call in calls_of(finding))


def main() -> None:
    """Prints the counts by severity, then what is wrong."""
    found = findings()
    entries = tomllib.loads(EXPLAINED.read_text())["explained"]
    for impact, count in Counter(f["impact"] for f in found).most_common():
        print(f"{impact:16}{count:>5}")
    grave = [f for f in found if f["impact"] in GRAVE]
    unexplained = [f for f in grave if not any(explains(e, f) for e in entries)]
    idle = [e for e in entries if not any(explains(e, f) for f in grave)]
    print(f"{len(grave)} high or medium, {len(grave) - len(unexplained)} of them explained by {len(entries)} entries")
    for finding in unexplained:
        print(f"\nunexplained: {finding['impact']} {finding['check']} at {place_of(finding)}\n{finding['description']}")
    for entry in idle:
        print(f"\nexplains nothing: {entry['check']} at {entry['where']}")
    if unexplained or idle:
        sys.exit(1)


if __name__ == "__main__":
    main()
