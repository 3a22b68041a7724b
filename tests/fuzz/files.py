"""Fuzz targets: files that a person is given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.fuzz.target import Run, refusals


def export() -> tuple[Iterable[bytes], Run]:
    from lockstep.runtime.guard import interchange
    from tests.unit.runtime.guard.promising import SCOPE, place, promise

    good = interchange.dumps(SCOPE, [(place(1), promise(1)), (place(2), promise(2))])

    def run(data: bytes) -> None:
        with refusals():
            found = interchange.loads(data.decode("utf-8", "surrogateescape"), SCOPE)
            assert interchange.loads(interchange.dumps(SCOPE, found), SCOPE) == found, "promises come back"

    return [
        good.encode(),
        good.replace('"version": 1', '"version": 2').encode(),
        good.replace("31337", "1").encode(),
    ], run


def deployment() -> tuple[Iterable[bytes], Run]:
    import json
    from dataclasses import asdict

    from lockstep.chain.addresses import CONTRACTS, Addresses
    from lockstep.protocol.types import Address

    good = Addresses(1, **{name: Address(f"0x{k:040x}") for k, name in enumerate(CONTRACTS)}, block=7)

    def run(data: bytes) -> None:
        with refusals():
            found = Addresses.loads(data)
            assert Addresses.loads(json.dumps(asdict(found)).encode()) == found, "a deployment comes back"
            assert all(len(getattr(found, name)) == 42 for name in CONTRACTS), "contracts have addresses"
            assert type(found.block) is int, "and a block"

    return [json.dumps(asdict(good)).encode()], run


def keystore() -> tuple[Iterable[bytes], Run]:
    import json

    from lockstep.chain.keys import keystore_of

    # As eth-account writes them, salts and all the same in every run.
    word, half = "ab" * 32, "cd" * 16
    crypto = {
        "cipher": "aes-128-ctr", "cipherparams": {"iv": half}, "ciphertext": word, "mac": word, "kdf": "scrypt",
        "kdfparams": {"dklen": 32, "n": 2, "r": 8, "p": 1, "salt": half},
    }  # fmt: skip
    by_sha = {"kdf": "pbkdf2", "kdfparams": {"c": 2, "dklen": 32, "prf": "hmac-sha256", "salt": half}}
    scrypt: dict[str, object] = {"address": "Ab" * 20, "crypto": crypto, "id": "0c363e85", "version": 3}
    pbkdf = {**scrypt, "crypto": {**crypto, **by_sha}}
    geth = {("Crypto" if k == "crypto" else k): v for k, v in scrypt.items()}

    def run(data: bytes) -> None:
        with refusals():
            found = keystore_of(data)
            parameters = found["crypto"]["kdfparams"]
            assert len(bytes.fromhex(found["address"].removeprefix("0x"))) == 20, "a keystore names its address"
            if found["crypto"]["kdf"] == "scrypt":
                assert parameters["n"].bit_count() == 1, "scrypt takes it"
                assert 128 * parameters["n"] * parameters["r"] <= 1 << 31, "memory is bounded"

    return [json.dumps(k).encode() for k in (scrypt, pbkdf, geth)], run


def job() -> tuple[Iterable[bytes], Run]:
    """Everything but the building: models, data and traces are stand-ins."""
    from pathlib import Path
    from types import SimpleNamespace
    from typing import cast

    import numpy as np

    from lockstep.base.decoding import from_toml
    from lockstep.storage.dataset import Dataset
    from lockstep.training import describe
    from lockstep.training.models import ModelKind

    patched = cast(Any, describe)
    patched.MODELS = {k: ModelKind(row.config, SimpleModel, row.loss) for k, row in describe.MODELS.items()}
    # One folder's model is of images, which a text cannot train.
    patched.load_model = lambda folder: SimpleModel(
        SimpleNamespace() if folder.name == "images" else describe.MODELS["gpt"].config()
    )
    patched.adapt = lambda model, **settings: model
    patched._texts = lambda folder: SimpleNamespace(train=b"text", held_out=b"text")
    patched._all = lambda folder: b"text"
    patched.byte_dataset = lambda text, row_tokens: Dataset(np.zeros((1, 2), np.int32), 256)
    patched.flat_parameters = lambda model: None
    patched.training_job = patched.evaluation_job = lambda *values, slots, terms, **settings: SimpleJob(slots, terms)
    patched.at_price = lambda job, price: job

    def run(data: bytes) -> None:
        with refusals():
            described = describe.job_of(from_toml(data, 4096), Path())
            assert described.slots >= 0, "a job has slots"

    plain = b'texts = "texts"\nrounds = 6\nslots = 3\nmin_slots = 2\nseed = 0\nterms = "devnet"\naggregator = ""\n'
    tables = b'[model]\nkind = "gpt"\nlayers = 2\n[batch]\nrows = 4\naccumulation = 1\n[strategy]\ninner_steps = 5\n'
    inner = b"[strategy.inner]\nbeta1 = 0.9\nclip = 1\n"
    known = b'aggregator = "0x' + b"ab" * 20 + b'"\n'
    return [
        plain + tables + inner,
        plain.replace(b'aggregator = ""\n', known) + b"[batch]\nrows = 4\n",
        b'texts = "texts"\nprice = "0.5"\n[terms]\npreset = "local"\nmax_fail = 3\ngas_price = "5 wei"\n',
        b'texts = "texts"\n[adapters]\nbase = "model"\nrank = 4\nalpha = 8.0\ntargets = ".*"\n',
        b'texts = "texts"\n[evaluation]\nmodel = "model"\nbatches = 4\ndocuments = "all"\n',
        b'texts = "texts"\n[adapters]\nbase = "images"\n',
        b'texts = "texts"\naggregator = "0x' + b"aB" * 20 + b'"\n',
        b'texts = "texts"\n[evaluation]\nmodel = "model"\n',
        # Training goes on from a model of the same parameters, and refuses one of others.
        b'texts = "texts"\nstart = "model"\n[model]\nkind = "gpt"\n',
        b'texts = "texts"\nstart = "model"\n[model]\nkind = "llama"\n',
        b'texts = "texts"\n[model]\nkind = "encoder"\nvocabulary = 256\n',
        # What is refused far from where it is written: two prices, two kinds for one key, a length that follows.
        b'texts = "texts"\nprice = "0.5"\n[terms]\nslot_price = "5 wei"\n',
        b'texts = "texts"\nstart = 5\ngas_price = "2 LST"\n',
        b'texts = "texts"\ngas_price = "2 LST"\n[strategy]\ninner = 5\n',
        b'texts = "texts"\nstart = "model"\n[batch]\nrow_length = 3\n[strategy]\ninner = 5\n',
        b'texts = "texts"\n[strategy]\ninner = 5\n',
    ], run


@dataclass(frozen=True)
class SimpleJob:
    """A job without its model and data: the fields that a description sets directly."""

    slots: int
    terms: Any


class SimpleModel:
    """A model that is its configuration, which names its only parameter."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def named_parameters(self) -> Iterable[tuple[str, SimpleModel]]:
        """The name and shape of what is trained."""
        return [(repr(self.config), self)]

    @property
    def shape(self) -> tuple[int, ...]:
        """A scalar's."""
        return ()
