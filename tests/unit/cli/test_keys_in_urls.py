"""The key in an RPC URL reaches no screen, log or trace, whatever fails."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from lockstep.base.log import configure_now
from lockstep.base.redaction import hide
from lockstep.chain import rpc
from lockstep.chain.addresses import CONTRACTS, Addresses
from lockstep.chain.devnet import CHAIN_ID, Devnet
from lockstep.chain.keys import KEYSTORE, create_account
from lockstep.protocol.types import Address
from lockstep.runtime import logs
from tests.support.rpc_proxy import RpcProxy

from .conftest import Lockstep

pytestmark = pytest.mark.chain

PATH, USER, TOKEN = "deadbeefcafe", "some-body:pass-word", "t0k3n-value"
SECRETS = (PATH, *USER.split(":"), TOKEN)
CLAIM = "ab" * 32

COMMANDS = [
    ("worker", "up", "--max-stake", "1"), ("worker", "status"), ("worker", "why"), ("worker", "earnings"),
    ("worker", "guard", "export", "all.json"),
    ("verifier", "up"), ("verifier", "void", CLAIM), ("replay", CLAIM),
    ("worker", "doctor"), ("verifier", "doctor"),
    ("coordinator", "up"), ("coordinator", "reindex"), ("coordinator", "doctor"),
    ("coordinator", "guard", "export", "g.json"),
    ("train", "list"), ("train", "status", CLAIM), ("train", "watch", CLAIM), ("train", "cancel", CLAIM),
]  # fmt: skip
FAULTS = ("nobody", "refused", "nonsense", "busy", "other chain", "no contracts", "no url")


@pytest.fixture(scope="module")
def anvil(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Devnet]:
    with Devnet(tmp_path_factory.mktemp("chain"), block_seconds=0) as chain:
        yield chain


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of a party, with its keys, and a deployment beside it."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "password").write_text("correct horse")
    create_account(home / KEYSTORE, "correct horse", b"\1" * 32, work=2)
    places = {name: Address(f"0x{i:040x}") for i, name in enumerate(CONTRACTS, 1)}
    Addresses(chain_id=CHAIN_ID, **places).save(home / "deployment.json")
    return home


def url_of(fault: str, proxy: RpcProxy) -> str:
    tail = f"/v3/{PATH}?token={TOKEN}"
    if fault == "nobody":
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            return f"http://{USER}@127.0.0.1:{taken.getsockname()[1]}{tail}"
    if fault == "no url":
        return f"{USER}@127.0.0.1{tail}"
    proxy.status = {"refused": 401, "busy": 429, "nonsense": 200}.get(fault, 0)
    proxy.chain_id = 5 if fault == "other chain" else None
    return proxy.url.replace("://", f"://{USER}@")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fault", FAULTS)
def test_no_command_tells_the_key(
    lockstep: Lockstep, home: Path, anvil: Devnet, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "WAIT_SECONDS", (0.01, 0.05))
    monkeypatch.setenv("LOCKSTEP_DEPLOYMENT", str(home / "deployment.json"))
    monkeypatch.setenv("LOCKSTEP_STORAGE", f"dir://{home}/blocks")
    monkeypatch.setenv("LOCKSTEP_PASSWORD_FILE", str(home / "password"))
    monkeypatch.setenv("LOCKSTEP_HOME", str(home))
    ended = {}
    with RpcProxy(anvil.url, path=f"/v3/{PATH}?token={TOKEN}") as proxy:
        monkeypatch.setenv("LOCKSTEP_RPC", url_of(fault, proxy))
        for arguments in COMMANDS:
            for options in ((), ("--json",)):
                done = lockstep(*arguments, *options)
                ended[" ".join(arguments)] = done.code
                told = done.out + done.err
                # A chain without the contracts is one without events; `why` says that the chain does not answer.
                assert done.code != 0 or fault == "no contracts" or arguments[1] == "why", f"{arguments} cannot succeed"
                assert not [secret for secret in SECRETS if secret in told], (arguments, told)
    for trace in home.parent.rglob("*.trace"):
        assert not [secret for secret in SECRETS if secret in trace.read_text()], trace.read_text()
    if fault not in ("no contracts", "other chain"):
        # What is no URL is a fault of the command line; what answers wrongly, of the chain.
        reached = {name for name, code in ended.items() if code == (2 if fault == "no url" else 9)}
        assert {"worker up --max-stake 1", "verifier up", "worker status", f"replay {CLAIM}"} <= reached, ended


def test_the_trace_of_a_bug_has_no_key(lockstep: Lockstep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = f"https://{USER}@a.io/v3/{PATH}?token={TOKEN}"
    monkeypatch.setenv("LOCKSTEP_RPC", url)

    def bug(*_: object, **__: object) -> None:
        raise RuntimeError(f"cannot read {url}") from OSError(f"no route to /v3/{PATH}")

    monkeypatch.setattr("lockstep.cli.doctor.cache_location", bug)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = lockstep("doctor", "--device", "cpu")
    assert ended.code == 1
    trace = next(tmp_path.glob("*.trace")).read_text()
    assert "RuntimeError" in trace
    assert not [secret for secret in SECRETS if secret in trace + ended.out + ended.err]


@pytest.mark.parametrize("configure", [logs.configure, logs.only_warnings])
def test_no_line_of_a_log_has_the_key(configure: object, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"https://{USER}@a.io/v3/{PATH}?token={TOKEN}"
    hide(url)
    # Of commands that ran in this process, with a stderr that is gone.
    logging.getLogger().handlers[:] = []
    try:
        configure()  # type: ignore[operator]
        configure_now()
        try:
            raise OSError(f"no route to {url}")
        except OSError as error:
            structlog.get_logger("x").error("a failure", exc_info=error, where=url, nested={"urls": [url]})
        logging.getLogger("urllib3").warning("Connection broken: /v3/%s", PATH)
        told = capsys.readouterr().err
    finally:
        structlog.reset_defaults()
        logging.getLogger().handlers[:] = []
    assert "a failure" in told
    assert not [secret for secret in SECRETS if secret in told], told


def test_settings_are_shown_without_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep.base.settings import resolve

    assert PATH not in repr(resolve(rpc=f"https://a.io/{PATH}"))
