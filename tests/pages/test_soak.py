"""Fifty clients of the stream: the server's memory stays, and over a restart nobody misses an event.

LOCKSTEP_SOAK_SECONDS=300 .venv/bin/pytest -m pages tests/pages/test_soak.py        as long as wanted
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import httpx2
import pytest

from coordinator.db import Database
from coordinator.models import EventRow

pytestmark = [pytest.mark.slow, pytest.mark.pages, pytest.mark.timeout(1200)]

CLIENTS = 50
SECONDS = float(os.environ.get("LOCKSTEP_SOAK_SECONDS", "30"))
PERIOD_SECONDS = 0.25
GROWTH_BYTES = 8 << 20
"""What the server may grow by between the first and the last quarter of its time: less than the events it has sent."""
ROOT = Path(__file__).parents[2]


class Server:
    """A coordinator's API over an index, in a process of its own; it may be killed."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.folder = folder
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [sys.executable, "-m", "tests.support.pages", str(self.folder), str(self.port)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 120
        while time.monotonic() < until:
            try:
                httpx2.get(f"http://127.0.0.1:{self.port}/healthz")
                return
            except httpx2.TransportError:
                time.sleep(0.2)
        raise AssertionError("the server does not answer")

    def stop(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()

    @property
    def resident(self) -> int:
        """Bytes in memory."""
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found is not None
        return int(found[1]) << 10


def add(database: Database, block: int) -> str:
    """One event; returns its id."""
    with database.session() as session:
        session.add(
            EventRow(
                block=block, log_index=0, block_hash="0x" + "ab" * 32, tx="0x" + "01" * 32, time=block,
                contract="JobMarket", name="Joined", job=None, args={"long": "x" * 2000},
            )
        )  # fmt: skip
    return f"{block}-0-abababab"


async def client(server: Server, got: list[str], first: str) -> None:
    """Takes events for good, as a browser does: it comes back with the last id that it had."""
    last = first
    async with httpx2.AsyncClient(timeout=httpx2.Timeout(10, read=60)) as session:
        while True:
            try:
                url = f"http://127.0.0.1:{server.port}/api/v1/stream"
                async with session.stream("GET", url, headers={"Last-Event-ID": last}) as answer:
                    event = ""
                    async for line in answer.aiter_lines():
                        if line.startswith("event: "):
                            event = line[7:]
                        if line.startswith("data: ") and event == "chain":
                            last = json.loads(line[6:])["id"]
                            got.append(last)
                        assert event != "reset", "nobody is told to read anew"
            except httpx2.TransportError:
                await asyncio.sleep(0.2)


def test_fifty_clients_miss_nothing_over_a_restart_and_cost_no_memory(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    database = Database(f"sqlite:///{tmp_path / 'index.sqlite'}")
    database.migrate()
    blocks = count(1)
    sent = [add(database, next(blocks))]
    server, got = Server(tmp_path), [list[str]() for _ in range(CLIENTS)]
    resident: list[int] = []

    async def soak() -> None:
        clients = [asyncio.create_task(client(server, mine, sent[0])) for mine in got]
        begun, restarted = time.monotonic(), False
        while (past := time.monotonic() - begun) < SECONDS:
            if past > SECONDS / 8 and not restarted:
                restarted = True
                await asyncio.to_thread(server.stop)
                sent.extend([add(database, next(blocks)) for _ in range(3)])
                await asyncio.to_thread(server.start)
            sent.append(await asyncio.to_thread(add, database, next(blocks)))
            if restarted:
                resident.append(server.resident)
            await asyncio.sleep(PERIOD_SECONDS)
        until = time.monotonic() + 60
        while any(len(mine) < len(sent) - 1 for mine in got) and time.monotonic() < until:
            await asyncio.sleep(0.2)
        for task in clients:
            assert not task.done(), task.exception()
            task.cancel()

    try:
        asyncio.run(soak())
    finally:
        server.stop()
        database.close()
    for mine in got:
        assert mine == sent[1:], "every event once, in order"
    quarter = len(resident) // 4
    most = [max(resident[i * quarter : (i + 1) * quarter]) for i in range(4)]
    grown = most[3] - most[1]
    told = ", ".join(f"{x / (1 << 20):.1f}" for x in most)
    print(f"{CLIENTS} clients, {len(sent)} events, {SECONDS:.0f} s, none missed: {told} MiB by quarter")
    assert grown < GROWTH_BYTES
