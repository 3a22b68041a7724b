"""Say what this machine lacks for `make setup`, each with the command that installs it; exit 1 if anything lacks."""

import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

missing: list[str] = []

version = f"{sys.version_info.major}.{sys.version_info.minor}"
if sys.version_info < (3, 11):
    missing.append(f"Python 3.11 or later, this is {version}: apt-get install python3.11, then make PYTHON=python3.11")
if importlib.util.find_spec("ensurepip") is None:
    missing.append(f"Python's venv: apt-get install python{version}-venv")
if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
    missing.append(f"Python's headers: apt-get install python{version}-dev")
if not any(shutil.which(compiler) for compiler in ("c++", "g++", "clang++")):
    missing.append("a C++ compiler: apt-get install g++")
if shutil.which("node") is None or shutil.which("npm") is None:
    missing.append("Node 20 or later with npm: https://nodejs.org")
else:
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout
    major = re.match(r"v(\d+)", node)
    if major is None or int(major[1]) < 20:
        missing.append(f"Node 20 or later, this is {node.strip()}: https://nodejs.org")

for line in missing:
    print(f"missing: {line}", file=sys.stderr)
sys.exit(1 if missing else 0)
