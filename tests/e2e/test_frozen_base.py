"""Adapters on a frozen base of 300 M parameters: its download killed three times, a round trained, merged and paid."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import lockstep
from lockstep.protocol.jobs import JobStatus
from lockstep.protocol.types import Seconds
from lockstep.storage.dataset import Dataset
from lockstep.training.export import load_model
from lockstep.training.job import Batch, training_job
from lockstep.training.models import GPT, GPTConfig, LoRA
from lockstep.training.models.lora import adapt
from lockstep.training.strategies import diloco
from tests.support import toyjob
from tests.support.waiting import PATIENCE, wait

from .test_worker import Market, Process, arguments, homes_of

pytestmark = [pytest.mark.slow, pytest.mark.chain, pytest.mark.timeout(3600)]

MIB = 1 << 20
CONFIG = GPTConfig(vocabulary=256, context=16, layers=24, heads=16, width=1024, tied=False)
KILLED_AT = (0.2, 0.45, 0.7)
"""Parts of the base that were fetched when the worker is killed."""
TERMS = replace(
    toyjob.TOY_TERMS,
    join_seconds=Seconds(600),
    train_seconds=Seconds(900),
    reveal_seconds=Seconds(120),
    attest_seconds=Seconds(60),
    merge_seconds=Seconds(120),
    challenge_seconds=Seconds(120),
    clock_seconds=Seconds(1200),
    step_seconds=Seconds(100),
)


class Counted:
    """A proxy before a server on this machine; counts what the server's clients are sent."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.sent = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._to))
            # As much in flight as a wire would hold, so that what a kill loses is small.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
            for source, to, counted in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass, args=(source, to, counted), daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                to.sendall(data)
                if counted:
                    with self._lock:
                        self.sent += len(data)
        except OSError:
            pass
        for end in (source, to):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def memory(pid: int | str, field: str) -> int:
    """Bytes of a line of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field + ":"))


@contextmanager
def most_memory(pid: int | str, most: list[int]) -> Iterator[None]:
    """Appends the most that a process held in memory of its own, files left out, while the block ran."""
    done, seen = threading.Event(), [memory(pid, "RssAnon")]

    def watch() -> None:
        while not done.wait(0.02):
            try:
                seen.append(memory(pid, "RssAnon"))
            except (OSError, StopIteration):
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    most.append(max(seen))


def mapped_base(path: Path) -> tuple[GPT, int]:
    """(a GPT of random weights that lie in a file, their bytes)."""
    with torch.device("meta"):
        model = GPT(CONFIG)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    words = np.memmap(path, np.float32, "w+", shape=(sum(p.numel() for p in model.parameters()),))
    weights, at = {}, 0
    for k, (name, shape) in enumerate(shapes.items()):
        part = words[at : at + int(np.prod(shape))]
        at += part.size
        rng = np.random.Generator(np.random.Philox(key=k))
        part[:] = 1.0 if len(shape) < 2 else 0.02 * rng.standard_normal(part.size, np.float32)
        weights[name] = torch.from_numpy(part.reshape(shape))
    words.flush()
    model.load_state_dict(weights, assign=True)
    return model, 4 * at


def fetched(cache: Path) -> int:
    """Bytes of blobs that are on disk, whole or in part."""
    total = 0
    for path in (cache / "blobs").glob("*"):
        # A part becomes whole between two looks.
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def test_adapters_on_a_base_of_300_million(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    market = Market.build(tmp_path)
    try:
        figures = play(market, tmp_path)
    finally:
        market.close()
    with capsys.disabled():
        print("\n" + ", ".join(f"{name} {value}" for name, value in figures.items()))


def play(market: Market, folder: Path) -> dict[str, object]:
    base, size = mapped_base(folder / "base")
    assert size >= 1200 * 10**6
    rows = np.random.default_rng(0).integers(0, CONFIG.vocabulary, (40, CONFIG.row_length), dtype=np.int32)
    market.fund("tuner")
    net = lockstep.connect(
        rpc=market.devnet.url, storage=f"dir://{folder}/blocks", deployment=folder / "deployment.json",
        account=market.devnet.account("tuner"), home=folder / "tuner",
    )  # fmt: skip

    # Published from the file in which it lies.
    before, most = memory("self", "RssAnon"), []
    with most_memory("self", most):
        job = training_job(
            adapt(base, rank=4), diloco.DiLoCo(inner_steps=2, payload="int8-block"), Dataset(rows, CONFIG.vocabulary),
            batch=Batch(2, CONFIG.row_length), rounds=1, slots=2, min_slots=2, terms=TERMS,
        )  # fmt: skip
        quote = net.quote(job)
        handle = net.submit(quote, budget=quote.debit)
    publishing = most[0] - before
    assert publishing < size / 2, f"{publishing >> 20} MiB of its own to publish {size >> 20}"

    # Fetched once by all workers of the machine, however often one of them is killed.
    serving = market.start("storage", ["storage", "serve", "--home", str(folder / "blocks")])
    proxy = Counted(int(serving.wait_for("ready")["url"].rpartition(":")[2]))
    homes, cache = homes_of(market, "w0", "w1"), folder / "cache"
    env = {"LOCKSTEP_CACHE": str(cache)}

    def worker(home: Path) -> Process:
        where = ["--storage", f"http://127.0.0.1:{proxy.port}", "--once"]
        return market.start(home.name, arguments(market, home, *where), env)

    for part in KILLED_AT:
        process = worker(homes[0])
        wait(lambda part=part: fetched(cache) >= part * size, "download", every=0.005)  # type: ignore[misc]
        process.popen.send_signal(signal.SIGKILL)
        process.popen.wait()
        assert fetched(cache) < size, "killed while it fetched"
    workers, own = [worker(homes[0]), worker(homes[1])], []
    with most_memory(workers[0].popen.pid, own):
        assert [w.popen.wait(PATIENCE) for w in workers] == [0, 0], [w.log.read_text()[-2000:] for w in workers]
    proxy.close()
    # What lay in sockets at each kill was lost.
    assert size <= proxy.sent < 1.1 * size, f"{proxy.sent} bytes were fetched of {size}"
    assert own[0] < size / 2, f"{own[0] >> 20} MiB of a worker's own memory"

    books = market.contracts.market.job(handle.id)
    assert books.status == JobStatus.DONE
    assert books.paid == quote.params.round_pay, "both slots and the merge are paid"
    assert sum(int(w.named("done")[0]["earned"]) for w in workers) == books.paid

    # The adapter, and the base with it.
    most.clear()
    before = memory("self", "RssAnon")
    with most_memory("self", most):
        handle.download(folder / "model")
    pulling = most[0] - before
    assert pulling < size / 2, f"{pulling >> 20} MiB of its own to pull {size >> 20}"
    model = load_model(folder / "model")
    assert isinstance(model, LoRA)
    adapted = dict(model.named_parameters())
    for name, weight in base.named_parameters():
        assert torch.equal(adapted["base." + name.replace("qkv", "qkv.layer")], weight), f"{name} is frozen"
    assert adapted["base.blocks.0.attn.qkv.lora_B.weight"].any(), "B began at zero and was trained"
    return {
        "parameters": size // 4,
        "base MiB": size >> 20,
        "fetched MiB": proxy.sent >> 20,
        "kills": len(KILLED_AT),
        "publisher's own MiB": publishing >> 20,
        "worker's own MiB": own[0] >> 20,
        "puller's own MiB": pulling >> 20,
        "cores": os.cpu_count(),
    }
