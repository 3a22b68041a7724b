"""A coordinator publishes its market: a stranger with a URL checks it, and no key leaves the coordinator."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from starlette.testclient import TestClient

from coordinator.api import create_app
from coordinator.context import ApiContext
from coordinator.db import Database
from coordinator.indexer import Indexer
from coordinator.nonces import Nonces
from coordinator.published import PublishedMarket, command
from coordinator.settings import CoordinatorSettings, resolve_coordinator
from lockstep.base import trust
from lockstep.base.settings import DEFAULTS
from lockstep.chain.addresses import Addresses
from lockstep.chain.devnet import CHAIN_ID
from lockstep.cli.main import main
from lockstep.demo.cheats.lies import cheat_of
from lockstep.execution.jobs import ClaimRun
from lockstep.numerics.trace import StepTrace
from lockstep.protocol.dispute.moves import Convicted
from lockstep.protocol.errors import BlobMissing, UsageError
from lockstep.protocol.types import Address, Cid, GameId
from lockstep.storage import cid_of
from lockstep.storage.gateway import MEDIA_TYPE, PROBE, GatewayStore
from lockstep.storage.unixfs import CHUNK_BYTES
from tests.adversarial.court import Court
from tests.support.pages import ADDRESSES, LONG, Seeded, seeded
from tests.support.serving import Served

from .conftest import Api

KEYED = "https://rpc.example/v3/0123456789abcdef0123456789abcdef"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CoordinatorSettings:
    for name in DEFAULTS:
        monkeypatch.delenv(f"LOCKSTEP_{name.upper()}", raising=False)
    monkeypatch.setenv("LOCKSTEP_LOCAL", str(tmp_path / "local"))
    monkeypatch.chdir(tmp_path)
    return resolve_coordinator()


# -- what is published ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rpc", "public", "shown"),
    [
        (KEYED, "", ()),
        (KEYED, "https://public.example", ("https://public.example",)),
        ("http://127.0.0.1:8545", "", ("http://127.0.0.1:8545",)),
        ("http://127.0.0.1:8545/", "", ("http://127.0.0.1:8545/",)),
        (f"{KEYED},http://[::1]:8545", "", ("http://[::1]:8545",)),
        ("http://localhost:8545/0123456789abcdef", "", ()),
        ("http://127.0.0.1:8545?key=0123456789", "", ()),
        ("http://me:secret@127.0.0.1:8545", "", ()),
        ("http://10.0.0.7:8545", "", ()),
    ],
)
def test_an_endpoint_that_may_hold_a_key_is_shown_only_if_its_operator_says_so(
    settings: CoordinatorSettings, rpc: str, public: str, shown: tuple[str, ...]
) -> None:
    given = replace(settings, shared=replace(settings.shared, rpc=rpc), public_rpc=public)
    assert PublishedMarket.of(given, ADDRESSES).rpc_urls == shown


def test_settings_say_what_is_public(
    tmp_path: Path, settings: CoordinatorSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_CONFIG", str(tmp_path / "config"))
    file = tmp_path / "lockstep.toml"
    file.write_text(
        f'rpc = "{KEYED}"\nstorage = "http://127.0.0.1:5001"\ncoordinator_public_url = "https://lockstep.example/"\n'
        'coordinator_public_rpc = "https://a.example, https://b.example/v3/for-everybody"\n'
        'coordinator_public_gateways = "https://ipfs.example"\n'
    )
    trust.accept(file, file.read_bytes())
    market = PublishedMarket.of(resolve_coordinator(), ADDRESSES)
    said = market.document().model_dump_json()
    assert market.url == "https://lockstep.example"
    assert market.rpc_urls == ("https://a.example", "https://b.example/v3/for-everybody")
    assert market.gateways == ("https://ipfs.example",)
    assert "0123456789abcdef" not in said
    assert "5001" not in said, "a store that takes content is nobody's business"
    assert Addresses.loads(json.dumps(json.loads(said)["deployment"]).encode()) == ADDRESSES


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("public_url", "lockstep.example", "is not a URL"),
        ("public_url", "https://a.example,https://b.example", "several"),
        ("public_rpc", "https://me:secret@rpc.example", "a user name"),
        ("public_rpc", "ws://rpc.example", "is not a URL"),
        ("public_gateways", "ipfs.example", "is not a URL"),
    ],
)
def test_what_cannot_be_shown_to_everybody_is_refused(
    settings: CoordinatorSettings, monkeypatch: pytest.MonkeyPatch, name: str, value: str, named: str
) -> None:
    monkeypatch.setenv(f"LOCKSTEP_COORDINATOR_{name.upper()}", value)
    with pytest.raises(UsageError, match=named) as refused:
        resolve_coordinator()
    assert "secret" not in refused.value.message + refused.value.hint


# -- the server's own URL -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeded]:
    made = seeded(tmp_path_factory.mktemp("network"), rounds=4, slots=2)
    yield made
    made.court.arena.stop()  # type: ignore[union-attr]
    made.database.close()


def shown(client: TestClient, path: str, host: str) -> str:
    answer = client.get(path, headers={"Host": host})
    assert answer.status_code == 200
    return answer.text


@pytest.mark.slow
def test_the_command_names_the_url_that_was_asked_and_nobody_elses(made: Seeded) -> None:
    with TestClient(create_app(made.context())) as client:
        for path in (f"/runs/{LONG}", "/status"):
            for host in ("evil.example", "127.0.0.1:8700", "evil.example"):
                assert f"--network http://{host}</code>" in shown(client, path, host), "kept pages are kept by URL"
    published = PublishedMarket(ADDRESSES, url="https://lockstep.example")
    with TestClient(create_app(made.context(published=published))) as client:
        assert "--network https://lockstep.example</code>" in shown(client, "/status", "evil.example")
        assert "evil.example" not in shown(client, f"/runs/{LONG}", "evil.example")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "host", ["a;reboot", "$(reboot)", "a b", "`x`", "a|b", "a&b", "'", '"', "<b>", "-x", "a/../b", "a@b", "a:99999999"]
)
def test_a_host_that_means_something_to_a_shell_is_not_shown(made: Seeded, host: str) -> None:
    with TestClient(create_app(made.context())) as client:
        assert "--network http://testserver:80</code>" in shown(client, "/status", host)


def test_a_command_is_one_line_of_a_shell() -> None:
    assert command("replay ab", "http://[::1]:8700") == "lockstep replay ab --network 'http://[::1]:8700'"


def test_without_an_endpoint_the_page_says_what_to_add(made: Seeded) -> None:
    for urls, told in (((), True), (("https://rpc.example",), False)):
        published = PublishedMarket(ADDRESSES, rpc_urls=urls)
        with TestClient(create_app(made.context(published=published))) as client:
            assert ("publishes no RPC endpoint" in client.get("/status").text) is told


# -- blocks ---------------------------------------------------------------------------------------------


def test_blocks_are_given_as_a_trustless_gateway_gives_them(api: Api) -> None:
    content = bytes(range(256)) * (CHUNK_BYTES // 128)
    cid = api.context.store.put(content)
    block = api.client.get(f"/ipfs/{cid}?format=raw")
    assert (block.status_code, block.headers["content-type"]) == (200, MEDIA_TYPE)
    assert block.content == api.context.store.fetch_block(cid)
    assert "immutable" in block.headers["cache-control"]
    assert api.client.get(f"/ipfs/{cid}", headers={"Accept": MEDIA_TYPE}).content == block.content
    assert api.client.get(f"/ipfs/{PROBE}?format=raw").content == b""
    for path, status in (
        (f"/ipfs/{cid}", 406), (f"/ipfs/{cid}?format=car", 422), (f"/ipfs/{cid_of(b'absent')}?format=raw", 404),
        ("/ipfs/..%2F..%2Fsecret?format=raw", 404), ("/ipfs/abc?format=raw", 400),
    ):  # fmt: skip
        assert api.client.get(path).status_code == status, path
    with Served(api.client.app) as url:
        store = GatewayStore(url)
        store.check()
        assert store.get(cid, max_bytes=len(content)) == content, "several blocks"
        with pytest.raises(BlobMissing):
            store.fetch_block(Cid(cid_of(b"absent")))
        store.close()


# -- a bystander with a URL -----------------------------------------------------------------------------


@dataclass
class Lie:
    """A market in which a lie was convicted, and its coordinator's URL."""

    url: str
    game: GameId
    event: Convicted
    court: Court


def lying(court: Court) -> ClaimRun:
    honest = court.run(0)
    for seed in range(100):
        run = cheat_of("one-ulp", court.job.programs, court.job.params, seed, CHAIN_ID).run(honest)
        if run.root(1, run.advance(1, honest.start)) != honest.root(1, honest.advance(1, honest.start)):
            return run
    raise AssertionError("no lie shows")


@pytest.fixture(scope="module")
def lie(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lie]:
    folder = tmp_path_factory.mktemp("convicted")
    court = Court.in_memory(folder / "market")
    court.reset()
    court.claim({0: lying(court)})
    [game] = court.audit_and_play()
    [event] = [event for event in court.log(game) if isinstance(event, Convicted)]
    database = Database(f"sqlite:///{folder / 'index.sqlite'}")
    database.migrate()
    addresses = court.contracts.addresses
    Indexer(database, court.devnet.w3, addresses).catch_up()
    context = ApiContext(
        database, Nonces(folder / "nonces.sqlite"), court.store, Address("0x" + "44" * 20), max_blob_bytes=1 << 20,
        published=PublishedMarket(addresses, (court.devnet.url,)), signed_for=lambda *_: False, notify=lambda _: None,
    )  # fmt: skip
    with Served(create_app(context)) as url:
        yield Lie(url, game, event, court)
    database.close()
    court.stop()


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Types a command in an empty folder, without a setting; returns (exit code, data, what was said)."""
    for name in [*DEFAULTS, "network"]:
        monkeypatch.setenv(f"LOCKSTEP_{name.upper()}", "")
        monkeypatch.delenv(f"LOCKSTEP_{name.upper()}")
    for name in ("CONFIG", "LOCAL", "CACHE"):
        monkeypatch.setenv(f"LOCKSTEP_{name}", str(tmp_path / name.lower()))
    monkeypatch.chdir(tmp_path)

    def typed(line: str) -> tuple[int, Any, str]:
        capsys.readouterr()
        program, *arguments = shlex.split(line)
        assert program == "lockstep"
        with pytest.raises(SystemExit) as left:
            main([*arguments, "--json"])
        out, err = capsys.readouterr()
        envelope = json.loads(out)
        return int(left.value.code or 0), envelope.get("data", envelope.get("error")), err

    return typed


def test_whoever_has_a_url_computes_the_contracts_number_by_the_pages_command(lie: Lie, stranger: Any) -> None:
    finding = lie.event.finding
    word = f"0x{finding.contract_word:08x}"
    shown = httpx2.get(f"{lie.url}/api/v1/games/0x{lie.game.hex()}").json()
    page = httpx2.get(f"{lie.url}/disputes/0x{lie.game.hex()}").text
    assert shown["check"] == f"lockstep dispute check {lie.game.hex()} --network {lie.url}"
    assert f">{shown['check']}</code>" in page
    code, data, err = stranger(shown["check"])
    assert (code, data.get("verdict")) == (0, "match"), f"{data} {err}"
    assert data["computed_bits"] == data["contract_bits"] == word == shown["contract_bits"]
    assert data["claimed_bits"] == shown["claimed_bits"] != word
    assert (data["step"], data["op"]["index"], data["element"]) == (finding.t, finding.position, finding.element)
    assert (data["program"], data["chunk"]) == (shown["program"], shown["chunk"])


def test_a_contract_that_computes_another_number_is_no_match(
    lie: Lie, stranger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: what this machine computes differs by one ulp from what the contract said."""
    plain = StepTrace.chunk_results
    monkeypatch.setattr(StepTrace, "chunk_results", lambda *given: plain(*given) + np.uint32(1))
    code, data, _ = stranger(f"lockstep dispute check {lie.game.hex()} --network {lie.url}")
    assert (code, data["verdict"]) == (10, "mismatch")
    assert int(data["computed_bits"], 16) == int(data["contract_bits"], 16) + 1


def test_a_replay_by_a_url_shows_the_three_numbers(lie: Lie, stranger: Any) -> None:
    code, data, err = stranger(f"lockstep replay {lie.event.claim.hex()} --network {lie.url}")
    assert (code, data["verdict"], data["seen_in"]) == (10, "mismatch", "game"), err
    assert data["computed_bits"] == data["contract_bits"] != data["claimed_bits"]


@pytest.mark.slow
def test_every_other_page_is_checked_by_a_url(lie: Lie, stranger: Any) -> None:
    honest = lie.court.contracts.market.claim_id_of(lie.court.job_id, 0, 1).hex()
    for path, asked in (
        (f"/claims/0x{honest}", lambda data: data["verdict"] == "match"),
        ("/disputes", lambda data: [game["game"] for game in data["games"]] == [lie.game.hex()]),
        ("/", lambda data: [job["job"] for job in data] == [lie.court.job_id.hex()]),
        ("/economy", lambda data: data["events"] > 0),
    ):
        page = httpx2.get(lie.url + path).text
        line = re.search(r'<code id="command"[^>]*>([^<]*)</code>', page)
        assert line is not None, path
        code, data, err = stranger(html.unescape(line[1]))
        assert code == 0, f"{line[1]}: {data} {err}"
        assert asked(data), f"{line[1]}: {data}"


def test_a_game_without_a_number_is_told(lie: Lie, stranger: Any) -> None:
    code, data, _ = stranger(f"lockstep dispute check {'ab' * 32} --network {lie.url}")
    assert (code, data["code"]) == (7, "not_found")
