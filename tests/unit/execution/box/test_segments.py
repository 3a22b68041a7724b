"""Tensors reach a child and come back through memory that both see."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from lockstep.base.mapping import mapped
from lockstep.execution.box import segments as module
from lockstep.execution.box.segments import KEPT, Segments, array_at
from lockstep.numerics.arrays import Array, is_frozen
from tests.support.descriptors import open_files

WORDS = np.dtype(np.float32)


def frozen(values: list[float]) -> Array:
    array = np.array(values, np.float32)
    return np.frombuffer(array.tobytes(), np.float32)


def test_a_tensor_that_nobody_can_change_is_copied_once() -> None:
    segments, tensor = Segments(), frozen([1, 2, 3])
    first, _ = segments.given([tensor, None, tensor])
    again, copies = segments.given([tensor])
    assert first == [again[0], None, again[0]]
    assert copies == []
    assert len(segments.news) == 1


def test_a_tensor_that_somebody_may_change_is_copied_each_time() -> None:
    segments, tensor = Segments(), np.zeros(3, np.float32)
    segments.given([tensor])
    tensor[0] = 5
    places, copies = segments.given([tensor])
    assert places[0] is not None
    assert copies[0].tolist() == [5, 0, 0]


def test_what_the_child_writes_is_read_and_cannot_be_written_here() -> None:
    segments = Segments()
    places, (one, two) = segments.room([(WORDS, (2, 2)), (WORDS, ())])
    memory = segments.news[0].memory
    array_at(memory, places[0])[:] = [[1, 2], [3, 4]]
    array_at(memory, places[1])[()] = 7
    assert (one.tolist(), two.tolist()) == ([[1, 2], [3, 4]], 7)
    assert is_frozen(one)
    assert segments.given([two, one]) == ([places[1], places[0]], []), "the child has them"


def test_a_segment_is_used_again_once_nobody_holds_a_tensor_in_it() -> None:
    segments = Segments()
    places, made = segments.room([(WORDS, (4,)), (WORDS, (4,))])
    part = made[1][1:3]
    made.clear()
    gc.collect()
    assert segments.room([(WORDS, (4,))])[0][0].segment != places[0].segment, "a view of it is held"
    del part
    gc.collect()
    assert places[0].segment in {segments.room([(WORDS, (4,))])[0][0].segment for _ in range(2)}


def test_segments_that_are_too_many_are_let_go_of() -> None:
    others, segments = open_files("memfd:"), Segments()
    held = [segments.room([(WORDS, (4,))]) for _ in range(KEPT + 2)]
    own = open_files("memfd:") - others
    segments.news.clear()  # as an order does
    held.clear()
    gc.collect()
    segments.room([(WORDS, (4,))])
    assert len(segments.gone) == 2
    assert len(open_files("memfd:") & own) == len(own) - 2


def test_what_a_child_was_not_told_of_it_does_not_let_go_of() -> None:
    segments = Segments()
    held = [segments.room([(WORDS, (4,))]) for _ in range(KEPT + 2)]
    held.clear()
    gc.collect()
    segments.room([(WORDS, (4,))])
    assert segments.gone == []
    assert len(segments.news) == KEPT


def test_segments_that_wait_to_be_used_again_end_with_the_others() -> None:
    before, segments = open_files("memfd:"), Segments()
    held = [segments.room([(WORDS, (4,))]) for _ in range(3)]
    segments.news.clear()  # as an order does
    del held[1:]
    gc.collect()
    segments._take_back()
    segments.close()
    assert open_files("memfd:") <= before
    assert held[0][1][0].tolist() == [0, 0, 0, 0], "a tensor outlives its child"


def test_no_child_changes_a_segments_size() -> None:
    segments = Segments()
    segments.room([(WORDS, (4,))])
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(segments.news[0].handle, size)


def test_a_large_tensor_that_is_a_file_is_handed_over_as_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGE", 16)
    path, segments = tmp_path / "rows", Segments()
    path.write_bytes(np.arange(4, dtype=np.int32).tobytes())
    with open(path, "rb") as file:
        rows = np.frombuffer(mapped(file.fileno(), 16).data, np.int32).reshape(2, 2)
    (place,), copies = segments.given([rows])
    assert copies == []
    assert place is not None
    (news,) = segments.news
    assert news.memory is None
    with pytest.raises(PermissionError):
        mapped(news.handle, news.size, writes=True)
    assert array_at(mapped(news.handle, news.size), place).tolist() == rows.tolist()
    assert segments.given([rows, rows]) == ([place, place], []), "the child has it"
    assert len(segments.news) == 1
    news.shut()
    segments.news.clear()
    del rows
    gc.collect()
    segments.room([(WORDS, (4,))])
    assert segments.gone == [place.segment]
