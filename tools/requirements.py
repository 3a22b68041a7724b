"""The project's dependencies with the extras named, one a line: pip installs them before it can build the project."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
name = project["name"]


def expand(requirement: str) -> list[str]:
    """`lockstep-compute[a,b]` is what the extras a and b list; anything else is itself."""
    if not requirement.startswith(f"{name}["):
        return [requirement]
    extras = requirement.removeprefix(f"{name}[").removesuffix("]").split(",")
    return [line for extra in extras for inner in project["optional-dependencies"][extra] for line in expand(inner)]


wanted = [*project["dependencies"], *expand(f"{name}[{','.join(sys.argv[1:])}]")]
print("\n".join(wanted))
