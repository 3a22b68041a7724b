"""Processes of pytest, forked from one that has imported the large packages: each begins seconds sooner."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

PRELOADED = (
    "pytest", "numpy", "torch", "torch._dynamo", "torch.fx.experimental.proxy_tensor", "eth_account", "hypothesis",
    "fastapi.testclient", "jsonschema", "rich.console", "sqlalchemy.orm", "structlog", "typer", "web3",
    "transformers.models.gpt2.modeling_gpt2",
)  # fmt: skip
"""Packages of others that many tests import; of this repository nothing, which a test may want to import anew. One that
is not installed is left out."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Read when numpy and torch are imported (tests/conftest.py)."""


@cache
def _server() -> ForkServerContext:
    for name in ONE_THREAD:
        os.environ.setdefault(name, "1")
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(list(PRELOADED))
    return server


def start(arguments: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> ForkServerProcess:
    """A process that runs pytest in `folder` and prints to `log`; its exit code is pytest's status."""
    process = _server().Process(target=_run, args=(list(arguments), folder, dict(environment), log))
    process.start()
    return process


def _run(arguments: list[str], folder: Path, environment: dict[str, str], log: Path) -> None:
    nothing, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for own, standard in ((nothing, 0), (file, 1), (file, 2)):
        os.dup2(own, standard)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["pytest", *arguments]
    import pytest

    status = pytest.main(arguments)
    atexit._run_exitfuncs()  # which a forked process leaves out
    sys.exit(status)
