"""Starts a PostgreSQL cluster and a Redis server for tests, in a folder under /tmp that is removed with the process."""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

REQUIRED = "LOCKSTEP_SERVERS"
"""Environment variable: "required" fails the tests instead of skipping them if a server is not installed."""
START_SECONDS = 30.0


@contextmanager
def postgres_cluster() -> Iterator[str]:
    """Yields the URL of a running cluster without a database, as `postgresql://postgres@/{}?host=...`."""
    binaries = _binaries()
    with _folder("postgres") as folder:
        # PostgreSQL refuses to run as root.
        user = _owner() if os.geteuid() == 0 else None
        as_user: dict[str, Any] = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
        if user:
            os.chown(folder, user.pw_uid, user.pw_gid)
        data, log = folder / "data", folder / "log"
        subprocess.run(
            [binaries / "initdb", "--pgdata", data, "--username=postgres", "--auth=trust", "--no-sync",
             "--encoding=UTF8", "--locale=C"],
            check=True, capture_output=True, cwd=folder, **as_user,
        )  # fmt: skip
        with log.open("w") as output:
            server = subprocess.Popen(
                [binaries / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"],
                stdout=output, stderr=output, cwd=folder, preexec_fn=_die_with_parent, **as_user,
            )  # fmt: skip
        try:
            _wait(server, lambda: "ready to accept connections" in log.read_text(), log)
            yield f"postgresql://postgres@/{{}}?host={folder}"
        finally:
            server.send_signal(signal.SIGQUIT)
            server.wait()


@contextmanager
def redis_server() -> Iterator[str]:
    """Yields the URL of a running Redis without persistence."""
    binary = shutil.which("redis-server")
    if binary is None:
        _missing("redis-server")
    with _folder("redis") as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        log = folder / "log"
        with log.open("w") as output:
            server = subprocess.Popen(
                [str(binary), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)],
                stdout=output, stderr=output, preexec_fn=_die_with_parent,
            )  # fmt: skip
        try:
            _wait(server, lambda: "Ready to accept connections" in log.read_text(), log)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
            server.wait()


def create_database(cluster: str, name: str, template: str = "template1") -> str:
    """Creates a database in a cluster, empty or as a copy of `template` (without connections); returns its URL."""
    import psycopg

    with psycopg.connect(cluster.format("postgres"), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'.encode())
    return cluster.format(name)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)


def _binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: float(p.parent.parent.name))
    initdb = str(found[-1]) if found else shutil.which("initdb")
    if initdb is None:
        _missing("postgresql")
    return Path(str(initdb)).resolve().parent


def _missing(package: str) -> None:
    reason = f"{package} is not installed (apt-get install {package})"
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(reason)
    pytest.skip(reason)


def _owner() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


@contextmanager
def _folder(name: str) -> Iterator[Path]:
    # Not pytest's folder: only its user can access it, and a socket's path has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix=f"lockstep-{name}-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(server: subprocess.Popen[bytes], holds: Any, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while not holds():
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)
