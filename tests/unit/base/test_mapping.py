"""A file is mapped without a descriptor, for as long as anything views it."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from lockstep.base import mapping
from lockstep.base.mapping import file_of, mapped
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


def test_an_array_that_is_a_file_is_found_as_that_file_while_it_is_there(path: Path) -> None:
    with open(path, "rb") as file:
        whole = np.frombuffer(mapped(file.fileno(), 16), np.int32).reshape(2, 2)
        part = mapped(file.fileno(), 8)
    handle = file_of(whole)
    assert handle is not None
    assert os.read(handle, 99) == whole.tobytes()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(handle, b"0")
    os.close(handle)
    for other in (part, whole[:1], whole.T, whole.copy(), np.zeros(4, np.int32)):
        assert file_of(other) is None
    path.rename(path.with_name("before"))
    assert file_of(whole) is None, "it is not there under its name"
    path.write_bytes(bytes(16))
    assert file_of(whole) is None, "another one is"
    path.with_name("before").rename(path)
    again = file_of(whole)
    assert again is not None
    os.close(again)


def test_a_mapping_that_has_ended_is_no_file(path: Path) -> None:
    with open(path, "rb") as file:
        address = (gone := mapped(file.fileno(), 16)).ctypes.data
    del gone
    gc.collect()
    assert address not in mapping._FILES
