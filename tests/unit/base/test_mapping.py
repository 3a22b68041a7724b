"""A file is mapped without a descriptor, for as long as anything views it."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from lockstep.base.mapping import mapped
from tests.support.descriptors import open_files


def places(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "words"
    made.write_bytes(bytes(range(16)))
    return made


def test_a_mapping_outlives_its_file_and_ends_with_its_last_view(path: Path) -> None:
    with open(path, "rb") as file:
        view = np.frombuffer(memoryview(mapped(file.fileno(), 16))[4:8], np.uint8)[1:]
    assert not open_files(str(path))
    gc.collect()
    assert view.tolist() == [5, 6, 7]
    assert places(path) == 1
    del view
    gc.collect()
    assert places(path) == 0


def test_what_is_written_is_the_files_if_it_may_be_written(path: Path) -> None:
    with open(path, "r+b") as file:
        mapped(file.fileno(), 16, writes=True)[3] = 99
        read = mapped(file.fileno(), 16)
    assert path.read_bytes()[3] == 99
    assert memoryview(read).readonly
    with pytest.raises(ValueError, match="read-only"):
        read[3] = 1


def test_no_more_is_mapped_than_there_is(path: Path) -> None:
    with open(path, "rb") as file:
        with pytest.raises(ValueError, match="17 bytes"):
            mapped(file.fileno(), 17)
        with pytest.raises(OSError, match="Permission denied"):
            mapped(file.fileno(), 16, writes=True)
