"""Images to rows, and the pinned MNIST."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from lockstep.protocol.errors import DoctorError, Mismatch, PayloadInvalid, UsageError
from lockstep.training import images
from lockstep.training.data import find_package


@pytest.fixture(scope="module")
def mnist(repository: Path) -> Path:
    return find_package(images.MNIST_FOLDER, "the images of MNIST", repository)


def test_mnist_is_the_pinned_one_and_its_rows_end_in_the_class(mnist: Path) -> None:
    corpus = images.mnist_corpus(train=300, held_out=100, folder=mnist)
    assert corpus.train.rows.shape == (300, 28 * 28 + 1)
    assert corpus.held_out.row_count == 100
    assert corpus.train.rows[:5, -1].tolist() == [5, 0, 4, 1, 9], "the first digits that everybody has seen"
    assert set(corpus.held_out.rows[:, -1].tolist()) == set(range(10))
    assert corpus.train.rows[:, :-1].max() == 255


def test_other_images_are_refused(mnist: Path, tmp_path: Path) -> None:
    for name in images.MNIST_SHA256:
        shutil.copy(mnist / name, tmp_path / name)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1] + b"\x00")
    with pytest.raises(Mismatch, match="train-labels"):
        images.mnist_corpus(folder=tmp_path)


def test_missing_images_are_named(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match="MNIST"):
        find_package(Path("no such folder"), "the images of MNIST", tmp_path)


@pytest.mark.parametrize("count", [0, 60_001])
def test_more_images_than_there_are_is_a_usage_error(count: int) -> None:
    with pytest.raises(UsageError):
        images.mnist_corpus(train=count)


def test_idx_file_of_bytes_becomes_an_array() -> None:
    data = b"\x00\x00\x08\x02\x00\x00\x00\x02\x00\x00\x00\x03" + bytes(range(6))
    assert images.read_idx(data).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("data", [b"", b"\x00\x00\x08", b"\x00\x00\x08\x00", b"\x00\x00\x0d\x01\x00\x00\x00\x00"])
def test_file_of_another_kind_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadInvalid):
        images.read_idx(data)


def test_truncated_idx_file_is_refused() -> None:
    with pytest.raises(PayloadInvalid):
        images.read_idx(b"\x00\x00\x08\x01\x00\x00\x00\x05" + b"abcd")


def test_row_is_the_image_then_its_class() -> None:
    rows = images.rows_of_images(np.arange(8, dtype=np.uint8).reshape(2, 2, 2), np.array([9, 7], np.uint8))
    assert rows.dtype == np.int32
    assert rows.tolist() == [[0, 1, 2, 3, 9], [4, 5, 6, 7, 7]]
