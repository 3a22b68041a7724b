"""The RPC server as a process: what it answers, what it refuses, how it starts and ends."""

from __future__ import annotations

import hashlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from lockstep.protocol.errors import BlobCorrupt, PayloadInvalid, Unreachable
from lockstep.storage import cid_of, cid_of_block, open_store
from lockstep.storage.dagpb import FileNode
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.server import application
from tests.support.serving import Served
from tests.support.waiting import PATIENCE

SERVE = "from lockstep.cli.storage import storage_app; storage_app()"
LAYOUT = {"cid-version": "1", "raw-leaves": "true"}
MIB = 1 << 20


def start(home: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SERVE, "serve", "--home", str(home), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ready(server: subprocess.Popen[str]) -> dict[str, Any]:
    assert server.stdout is not None
    return dict(json.loads(server.stdout.readline()))


def end(server: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str, str]:
    server.send_signal(number)
    out, err = server.communicate(timeout=PATIENCE)
    return server.returncode, out, err


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def line(home: Path) -> Iterator[dict[str, Any]]:
    with Served(application(DirectoryStore(home), max_bytes=2 * MIB)) as url:
        yield {"url": url, "multiaddr": f"/ip4/127.0.0.1/tcp/{url.rpartition(':')[2]}/http"}


@pytest.fixture
def api(line: dict[str, Any]) -> str:
    return f"{line['url']}/api/v0"


@pytest.mark.slow
def test_ready_line_says_where(tmp_path: Path) -> None:
    server = start(tmp_path, "--max-mib", "2")
    line = ready(server)
    port = line["url"].rsplit(":", 1)[1]
    assert line["event"] == "ready"
    assert line["multiaddr"] == f"/ip4/127.0.0.1/tcp/{port}/http"
    assert line["home"] == str(tmp_path)
    with open_store(line["url"]) as store:
        store.check()
    code, out, _ = end(server)
    assert (code, out) == (0, ""), "one line on stdout, a clean end"


def test_stock_ipfshttpclient_adds_cats_and_pins(line: dict[str, Any]) -> None:
    import ipfshttpclient

    data = hashlib.shake_256(b"stock").digest(600_000)
    with ipfshttpclient.Client(line["multiaddr"]) as client:
        assert client.version()["Version"].startswith("0."), "version"
        assert "ID" in client.id(), "id"
        added = client.add(__file__, cid_version=1, raw_leaves=True)
        assert added["Hash"] == cid_of(Path(__file__).read_bytes()), "CID of a file added by name"
        cid = client.add_bytes(data, opts=dict(LAYOUT))
        assert cid == cid_of(data), "CID"
        assert client.cat(cid) == data, "cat"
        assert client.cat(cid, offset=262_100, length=100) == data[262_100:262_200], "a window over two chunks"
        assert client.cat(cid, offset=700_000) == b"", "a window beyond the end"
        assert cid_of_block(client.block.get(cid), "dag-pb") == cid, "block get"
        assert client.block.stat(cid)["Size"] == len(client.block.get(cid)), "block stat"
        assert client.pin.add(cid)["Pins"] == [cid], "pin"
        assert client.pin.ls(cid)["Keys"][cid]["Type"] == "recursive", "pin ls of one"
        assert cid in client.pin.ls()["Keys"], "pin ls of all"
        with pytest.raises(ipfshttpclient.exceptions.ErrorResponse, match="not pinned"):
            client.pin.ls(cid_of(b"unknown"))
        with pytest.raises(ipfshttpclient.exceptions.ErrorResponse, match="could not find"):
            client.pin.add(cid_of(b"unknown"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cid-version": "1"},
        {"raw-leaves": "true"},
        {**LAYOUT, "cid-version": "0"},
        {**LAYOUT, "raw-leaves": "false"},
        {**LAYOUT, "chunker": "rabin"},
        {**LAYOUT, "trickle": "true"},
        {**LAYOUT, "only-hash": "True"},
        {**LAYOUT, "hash": "blake3"},
        {**LAYOUT, "wrap-with-directory": "true"},
    ],
)
def test_add_that_would_give_another_name_is_refused(api: str, options: dict[str, str]) -> None:
    answer = requests.post(f"{api}/add", params=options, files={"file": b"named otherwise"}, timeout=PATIENCE)
    assert answer.status_code == 500, "refused"
    assert "this store adds content with" in answer.json()["Message"], "and says why"


@pytest.mark.parametrize(
    "files",
    [
        None,
        [("file", b"a"), ("file", b"b")],
        {"file": ("folder", b"", "application/x-directory")},
    ],
)
def test_add_takes_exactly_one_file(api: str, files: Any) -> None:
    answer = requests.post(f"{api}/add", params=LAYOUT, files=files, timeout=PATIENCE)
    assert answer.status_code in (400, 500), "refused"


def test_block_put_takes_known_codecs_alone(api: str) -> None:
    for params, status in (
        ({"cid-codec": "raw"}, 200),
        ({"cid-codec": "dag-cbor"}, 200),
        ({"cid-codec": "dag-json"}, 500),
        ({"mhtype": "blake3"}, 500),
    ):
        answer = requests.post(f"{api}/block/put", params=params, files={"file": b"\xf6"}, timeout=PATIENCE)
        assert answer.status_code == status, params
    too_large = requests.post(f"{api}/block/put", files={"file": bytes(MIB + 1)}, timeout=PATIENCE)
    assert too_large.status_code == 500, "1 MiB is the most"


@pytest.mark.parametrize("verb", ["cat", "block/get", "block/stat", "pin/add"])
def test_what_is_no_cid_is_refused(api: str, verb: str) -> None:
    for arg in ("", "../../x", "Qm" + "a" * 44):
        answer = requests.post(f"{api}/{verb}", params={"arg": arg}, timeout=PATIENCE)
        assert (answer.status_code, answer.json()["Type"]) == (500, "error"), arg


@pytest.mark.parametrize("value", ["-1", "x", "1.5", ""])
def test_window_that_is_no_count_is_refused(api: str, value: str) -> None:
    cid = requests.post(f"{api}/add", params=LAYOUT, files={"file": b"abc"}, timeout=PATIENCE).json()["Hash"]
    answer = requests.post(f"{api}/cat", params={"arg": cid, "offset": value}, timeout=PATIENCE)
    assert answer.status_code == 500


def test_only_post_is_served(api: str) -> None:
    assert requests.get(f"{api}/version", timeout=PATIENCE).status_code == 405, "as Kubo"
    assert requests.post(f"{api}/repo/gc", timeout=PATIENCE).status_code == 404, "other verbs do not exist"


def test_web_pages_are_refused(api: str) -> None:
    page = {"Origin": "https://page.example"}
    answer = requests.post(f"{api}/add", params=LAYOUT, files={"file": b"junk"}, headers=page, timeout=PATIENCE)
    assert answer.status_code == 403


def test_request_above_the_limit_is_refused_and_keeps_nothing(line: dict[str, Any], home: Path) -> None:
    store = open_store(line["multiaddr"])
    assert store.put(bytes(2 * MIB)), "the limit itself is allowed"
    before = len(list(DirectoryStore(home).blocks()))
    for size in (2 * MIB + 100_000, 3 * MIB, 12 * MIB):
        with pytest.raises(PayloadInvalid, match="more than 2097152 bytes"):
            store.put(hashlib.shake_256(b"large").digest(size))
    assert len(list(DirectoryStore(home).blocks())) == before, "nothing was kept"
    assert store.put(b"still serving"), "the next request is served"


@pytest.mark.slow
def test_damage_in_the_middle_of_a_stream_breaks_it_off_and_is_logged(tmp_path: Path) -> None:
    server = start(tmp_path)
    url = ready(server)["url"]
    store = open_store(url)
    cid = store.put(hashlib.shake_256(b"damage").digest(MIB))
    leaf = FileNode.decode(store.fetch_block(cid)).links[2].cid
    (tmp_path / "blocks" / leaf[-3:-1] / leaf).write_bytes(b"damaged")
    answer = requests.post(f"{url}/api/v0/cat", params={"arg": cid}, timeout=PATIENCE, stream=True)
    with pytest.raises(requests.RequestException):
        list(answer.iter_content(65536))
    pieces = store.get_stream(cid, max_bytes=MIB)
    assert len(next(pieces)) == 262_144, "what is whole is read"
    with pytest.raises(BlobCorrupt, match=leaf):
        list(pieces)
    code, _, err = end(server)
    assert code == 0, "still ends cleanly"
    assert "Traceback" not in err, err
    assert leaf in err, "the log names the block"


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_server_with_code_0(tmp_path: Path, number: int) -> None:
    server = start(tmp_path)
    ready(server)
    assert end(server, number) == (0, "", ""), "silent and clean"


@pytest.mark.slow
def test_request_in_flight_is_answered_before_the_end(tmp_path: Path) -> None:
    server = start(tmp_path)
    host, port = ready(server)["url"].removeprefix("http://").split(":")
    body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nslow\r\n--x--\r\n'
    head = (
        f"POST /api/v0/add?cid-version=1&raw-leaves=true HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as client:
        client.sendall(head.encode() + body[:30])
        time.sleep(0.3)
        server.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        client.sendall(body[30:])
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert cid_of(b"slow").encode() in answer, "the upload was kept"
    assert server.wait(timeout=PATIENCE) == 0, "then it ended"
    server.communicate()


@pytest.mark.slow
def test_two_servers_run_side_by_side(tmp_path: Path) -> None:
    servers = [start(tmp_path / name) for name in "ab"]
    stores = [open_store(ready(server)["url"]) for server in servers]
    cid = stores[0].put(b"mine")
    assert (stores[0].has(cid), stores[1].has(cid)) == (True, False), "each has its own blocks"
    for server in servers:
        assert end(server)[0] == 0


def test_taken_port_is_an_error_of_the_set_up(tmp_path: Path) -> None:
    from lockstep.protocol.errors import DoctorError
    from lockstep.storage.server import serve

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(DoctorError, match="cannot listen"):
        serve(
            DirectoryStore(tmp_path),
            host="127.0.0.1",
            port=taken.getsockname()[1],
            max_bytes=MIB,
            on_ready=lambda host, port: pytest.fail("it is not ready"),
        )


@pytest.mark.slow
def test_a_failure_that_nobody_foresaw_is_told_by_its_kind(tmp_path: Path) -> None:
    program = (
        "from lockstep.cli.storage import storage_app; from lockstep.storage.directory import DirectoryStore;"
        "DirectoryStore.put_stream = lambda *_: {}['a path of this machine']; storage_app()"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", program, "serve", "--home", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    store = open_store(ready(server)["multiaddr"])
    with pytest.raises(Unreachable, match="KeyError") as error:
        store.put(b"content")
    assert "a path" not in error.value.message
    assert store.get(store.put_node({}), max_bytes=1) == b"\xa0", "it serves on"
    assert "a path of this machine" in end(server)[2], "the log has all of it"
