"""The SDK on the chain in memory: a requester's way from a quote to a model, and back out of a job."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import lockstep as sdk
from lockstep.base.amounts import tokens
from lockstep.chain.devnet import key_of
from lockstep.chain.events import Event
from lockstep.chain.keys import KEYSTORE, create_account
from lockstep.client import Network
from lockstep.execution.jobs import TrainingJob
from lockstep.protocol.errors import (
    BlobCorrupt,
    BudgetExceeded,
    ChainError,
    FundsError,
    NotFoundError,
    ProgramInvalid,
    TryLater,
    Unreachable,
    UsageError,
)
from lockstep.protocol.jobs import JobStatus
from lockstep.protocol.types import Address, JobId, Wei
from lockstep.storage.directory import DirectoryStore
from tests.adversarial.court import WALLET, Court
from tests.support import broken, toyjob

from .conftest import Lockstep

PARAMETERS = ({"name": "weight", "offset": 0, "shape": [2, 4]},)


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Court]:
    running = Court.in_memory(tmp_path_factory.mktemp("sdk"))
    running.contracts.addresses.save(running.folder / "deployment.json")
    yield running
    running.stop()


def network(market: Court, name: str) -> Network:
    """A funded requester's, with a store of its own."""
    account = market.devnet.account(name)
    me = Address(account.address)
    if market.contracts.token.balance_of(me) == 0:
        market.send(market.contracts.token.mint(me, WALLET), "requester")
    return sdk.connect(
        rpc=market.devnet.url,
        storage=f"dir://{market.folder}/store-{name}",
        deployment=market.folder / "deployment.json",
        account=account,
        home=market.folder / f"home-{name}",
    )


def small(**changes: object) -> TrainingJob:
    return toyjob.training_job(model={"model": "toy"}, parameters=PARAMETERS, rounds=1, min_slots=3, **changes)


def untouched(net: Network) -> tuple[object, ...]:
    """Returns what a refused submission leaves as it was: balance, transactions, blocks kept."""
    store = net.store
    assert isinstance(store, DirectoryStore)
    count = net.w3.eth.get_transaction_count(net.account.address)
    return net.contracts.token.balance_of(net.account.address), count, sorted(store.blocks())


def test_quote_binds_the_whole_job_and_touches_nothing(market: Court) -> None:
    net = network(market, "quoter")
    before = untouched(net)
    quote = net.quote(toyjob.training_job())
    assert quote.params == toyjob.publish(DirectoryStore(market.folder / "elsewhere")), "as written out by hand"
    assert quote.escrow == 3 * (3 * 10**18 + 10**17)
    assert untouched(net) == before


def test_over_budget_and_over_balance_store_and_send_nothing(market: Court) -> None:
    net = network(market, "poor")
    dear = net.quote(toyjob.training_job(rounds=400))
    before = untouched(net)
    with pytest.raises(BudgetExceeded, match=tokens(dear.debit)) as refused:
        net.submit(dear, budget=Wei(dear.debit - 1))
    assert (refused.value.exit_code, bool(refused.value.hint)) == (6, True)
    assert dear.escrow > WALLET
    with pytest.raises(FundsError, match=tokens(WALLET)) as refused:
        net.submit(dear, budget=dear.debit)
    assert (refused.value.exit_code, refused.value.code) == (6, "funds")
    assert untouched(net) == before
    assert not (net.home / "outbox.sqlite").exists(), "no transaction was begun"


def test_what_could_not_be_defended_or_paid_is_refused_by_the_quote(market: Court) -> None:
    net = network(market, "quoter")
    before = untouched(net)
    with pytest.raises(ProgramInvalid, match=r"step: op 1 \(map scale tokens.*33 instructions") as invalid:
        net.quote(toyjob.training_job(programs=broken.schedule()))
    assert (invalid.value.exit_code, bool(invalid.value.hint)) == (2, True)
    with pytest.raises(ChainError, match="slots") as refused:
        net.quote(toyjob.training_job(min_slots=4))
    assert "min_slots" in refused.value.hint
    assert untouched(net) == before


@pytest.mark.slow
def test_a_job_from_submit_to_download(market: Court, tmp_path: Path, lockstep: Lockstep) -> None:
    net = network(market, "trainer")
    quote = net.quote(small())
    handle = net.submit(quote, budget=quote.debit, nonce=7)
    spent = WALLET - quote.escrow - quote.deposit
    assert net.contracts.token.balance_of(Address(market.devnet.account("trainer").address)) == spent

    again = net.submit(quote, budget=quote.debit, nonce=7)
    assert again.id == handle.id, "the same nonce is the same job"
    assert net.contracts.token.balance_of(Address(market.devnet.account("trainer").address)) == spent, (
        "and is paid once"
    )
    assert net.job(handle.id).status() == {
        "job": handle.id.hex(), "status": "active", "rounds": 1, "started": 0, "settled": 0, "failed": 0,
        "escrow": str(quote.escrow), "paid": "0", "refunded": "0",
    }  # fmt: skip
    with pytest.raises(TryLater):
        handle.download(tmp_path / "early")
    assert not (tmp_path / "early").exists()

    merge = play(market, net, handle.id)
    checkpoint, source = handle.checkpoint()
    assert (source["round"], source["claim"]) == (0, merge)
    assert checkpoint.shared[0].shape == (toyjob.SIZE,)
    assert not np.array_equal(checkpoint.shared[0], toyjob.genesis().shared[0]), "it was trained"

    events = list(handle.watch(poll_seconds=0.1))
    names = [e.name for e in events]
    assert [names[0], names[-1]] == ["JobCreated", "JobDone"]
    assert names.count("Revealed") == 3
    assert all(e.args["job"] == handle.id for e in events)
    done: Event = events[-1]
    assert done.args["paid"] + done.args["refunded"] == quote.escrow
    assert handle.status()["status"] == JobStatus.DONE.name.lower()

    path = handle.download(tmp_path / "model")
    assert path == tmp_path / "model/model.safetensors"
    weight = load_file(path)["weight"]
    assert weight.tobytes() == checkpoint.shared[0].tobytes(), "bit for bit"
    assert weight.shape == (2, 4)
    assert json.loads((tmp_path / "model/config.json").read_text()) == {"model": "toy"}
    provenance = json.loads((tmp_path / "model/provenance.json").read_text())
    assert provenance["job"] == handle.id.hex()
    assert provenance["programs"]["step"] == toyjob.step_program().root.hex()
    assert provenance["shared_root"] == source["shared_root"]
    by_command(lockstep, market, handle.id, merge, path, tmp_path)

    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="file"):
        handle.download(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    (block,) = (market.folder / "store-trainer").rglob(source["checkpoint"])
    os.truncate(block, block.stat().st_size // 2)
    with pytest.raises(BlobCorrupt) as corrupt:
        handle.download(tmp_path / "cut")
    assert (corrupt.value.exit_code, bool(corrupt.value.hint)) == (10, True)
    assert not (tmp_path / "cut").exists(), "nothing half-written"


def play(market: Court, net: Network, job: JobId) -> str:
    """The job's one round by the market's workers, to the end; the merge's claim."""
    store = net.store
    assert isinstance(store, DirectoryStore)
    market.job_id, market.params, market.store, market.job = (
        job,
        net.contracts.market.params(job),
        store,
        net.job(job).parts,
    )
    market.seal()
    market.claim()
    claim = market.merge()
    market.advance(market.params.windows.challenge_seconds + 1)
    market.send(net.contracts.market.finalize(job, 0), "requester")
    market.send(net.contracts.market.finish(job), "requester")
    market.devnet.mine(64)
    return claim.hex()


def by_command(lockstep: Lockstep, market: Court, job: JobId, merge: str, model: Path, folder: Path) -> None:
    """`lockstep` says what the SDK said."""
    home = market.folder / "keys"
    create_account(home / KEYSTORE, "correct horse", key_of(market.devnet.seed, "trainer"), work=2)
    (home / "password").write_text("correct horse")
    public = ["--rpc", market.devnet.url, "--storage", market.store.url]
    public += ["--deployment", str(market.folder / "deployment.json"), "--json"]
    options = [*public, "--home", str(home), "--password-file", str(home / "password")]
    pulled = lockstep("train", "pull", job.hex(), "--out", folder / "pulled", *options)
    assert pulled.data == {"model_path": str(folder / "pulled/model.safetensors")}
    for name in ("model.safetensors", "config.json", "provenance.json"):
        assert (folder / "pulled" / name).read_bytes() == (model.parent / name).read_bytes(), name
    audit = ("train", "audit", folder / "pulled", "--claims", "0", *public)
    assert lockstep(*audit).data["ok"]
    (folder / "pulled/config.json").write_text('{"model": "another"}')
    audited = lockstep(*audit)
    assert audited.code == 10, "a file differs"
    last = json.loads(audited.out)["data"]["findings"][-1]
    assert (last["check"], last["verdict"]) == ("files", "differs")
    watched = lockstep("train", "watch", job.hex(), *options)
    assert watched.code == 0
    events = [json.loads(line) for line in watched.out.splitlines()]
    assert [events[0]["event"], events[-1]["event"]] == ["JobCreated", "JobDone"]
    assert {event["job"] for event in events} == {job.hex()}
    replayed = lockstep("replay", merge, *public)
    assert (replayed.code, replayed.data["verdict"]) == (0, "match")


def test_cancel_gives_the_escrow_back(market: Court) -> None:
    net = network(market, "waverer")
    handle = net.submit(quote := net.quote(small()), budget=quote.debit)
    assert (
        net.contracts.token.balance_of(Address(market.devnet.account("waverer").address))
        == WALLET - quote.escrow - quote.deposit
    )
    handle.cancel()
    status = handle.status()
    assert (status["status"], status["paid"], status["refunded"]) == ("cancelled", "0", str(quote.escrow))
    assert (
        net.contracts.token.balance_of(Address(market.devnet.account("waverer").address)) == WALLET - quote.deposit
    ), "to the last wei"
    handle.cancel()
    assert handle.status() == status, "a second time changes nothing"
    assert net.withdraw() == 0, "and nothing is owed"
    market.send(net.contracts.market.finish(handle.id), "mallory")
    market.devnet.mine(64)
    assert net.withdraw() == quote.deposit, "which is owed when the job is over"
    assert net.contracts.token.balance_of(Address(market.devnet.account("waverer").address)) == WALLET
    assert [e.name for e in handle.watch()] == ["JobCreated", "JobCancelled", "JobDone"]


def test_a_stranger_cannot_cancel(market: Court) -> None:
    net, stranger = network(market, "owner"), network(market, "stranger")
    handle = net.submit(quote := net.quote(small()), budget=quote.debit)
    with pytest.raises(ChainError) as refused:
        stranger.job(handle.id).cancel()
    assert refused.value.hint
    assert handle.status()["status"] == "active"


def test_connect_and_job_say_what_is_not_there(market: Court, tmp_path: Path) -> None:
    net = network(market, "quoter")
    with pytest.raises(NotFoundError):
        net.job(JobId(bytes(32)))
    there = {
        "rpc": market.devnet.url, "storage": f"dir://{tmp_path}/blocks", "account": net.account,
        "deployment": market.folder / "deployment.json", "home": tmp_path / "home",
    }  # fmt: skip
    nobody = "http://127.0.0.1:9"
    for wrong, expected in (
        ({"rpc": nobody}, Unreachable),
        ({"storage": nobody}, Unreachable),
        ({"storage": "nonsense"}, UsageError),
        ({"deployment": tmp_path / "none.json"}, NotFoundError),
    ):
        with pytest.raises(expected) as refused:
            sdk.connect(**{**there, **wrong})  # type: ignore[arg-type]
        assert refused.value.hint, wrong
        assert not (tmp_path / "home").exists(), "nothing is begun"
