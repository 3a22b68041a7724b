"""The libraries of the pages against npm: every file that is copied into coordinator/static is its package's own.

    python tools/vendored.py [--update]     fetches the packages by npm and compares; --update copies them

tests/unit/coordinator/test_assets.py holds the files to the digests below, without the network.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

STATIC = Path(__file__).parents[1] / "coordinator/static"
PACKAGES = {"htmx.org": "4.0.1", "uplot": "1.6.32"}
FILES = {
    "htmx.min.js": ("htmx.org", "dist/htmx.min.js", "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"),
    "htmx.LICENSE": ("htmx.org", "LICENSE", "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38"),
    "uPlot.iife.min.js": (
        "uplot",
        "dist/uPlot.iife.min.js",
        "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    ),
    "uPlot.min.css": (
        "uplot",
        "dist/uPlot.min.css",
        "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    ),
    "uPlot.LICENSE": ("uplot", "LICENSE", "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd"),
}
"""By name in coordinator/static: package, file in it, SHA-256."""


def differing(packages: Path) -> list[str]:
    """Names of files that differ from those of the packages installed under a folder, or from their digests."""
    found = []
    for name, (package, path, digest) in FILES.items():
        ours = (STATIC / name).read_bytes()
        theirs = (packages / "node_modules" / package / path).read_bytes()
        if ours != theirs or sha256(theirs).hexdigest() != digest:
            found.append(name)
    return found


def main() -> int:
    """Compare, or copy; 1 if a file differs."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = [f"{name}@{version}" for name, version in PACKAGES.items()]
        subprocess.run(
            ["npm", "install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error",
             "--prefix", folder, *wanted],
            check=True,
        )  # fmt: skip
        if "--update" in sys.argv[1:]:
            for name, (package, path, _) in FILES.items():
                body = (Path(folder) / "node_modules" / package / path).read_bytes()
                (STATIC / name).write_bytes(body)
                print(f"{name}: {sha256(body).hexdigest()}")
            return 0
        found = differing(Path(folder))
    print("\n".join(f"{name} is not its package's" for name in found) or f"{len(FILES)} files are their packages' own")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
