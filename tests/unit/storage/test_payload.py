"""Payloads and checkpoints on the wire."""

from __future__ import annotations

import dag_cbor
import numpy as np
import pytest

from lockstep.protocol.errors import Mismatch, PayloadInvalid
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.program import F32, I32
from lockstep.storage.payload import (
    BLOCK,
    Checkpoint,
    decode_checkpoint,
    decode_payload,
    encode_checkpoint,
    encode_payload,
    wire_length,
)

N = 4 * BLOCK
LAYOUT = [TensorHeader(F32, (N,)), None]
RNG = np.random.default_rng(7)


def quantised(values: np.ndarray) -> np.ndarray:
    """As the strategy's encode leaves them: scales of 16 significant bits, codes of 8."""
    blocks = values.astype(np.float32).reshape(-1, BLOCK)
    scales = (np.abs(blocks).max(1) / np.float32(127)).view(np.uint32) & np.uint32(0xFFFFFF00)
    scales = scales.view(np.float32)[:, None]
    codes = np.where(scales > 0, np.rint(blocks / np.where(scales > 0, scales, 1)), 0).astype(np.int8)
    return (codes.astype(np.float32) * scales).reshape(-1)


def test_words_come_back_bit_for_bit() -> None:
    values = RNG.standard_normal(N).astype(np.float32)
    values[:4] = [np.nan, -0.0, np.inf, 1e-42]
    (back,) = decode_payload(encode_payload([values]), LAYOUT)
    assert back.tobytes() == values.tobytes()


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30, 3.7e-5])
def test_quantised_tensors_travel_as_bytes_and_come_back_bit_for_bit(scale: float) -> None:
    values = quantised(RNG.standard_normal(N) * scale)
    values[BLOCK : 2 * BLOCK] = 0
    data = encode_payload([values], "int8-block")
    assert len(data) == wire_length(LAYOUT, "int8-block") < N * 1.1
    (back,) = decode_payload(data, LAYOUT)
    assert back.tobytes() == values.tobytes()


@pytest.mark.parametrize("values", [RNG.standard_normal(N), np.full(N, np.inf), np.full(N, -0.0)])
def test_what_bytes_cannot_carry_travels_as_words(values: np.ndarray) -> None:
    values = values.astype(np.float32)
    data = encode_payload([values], "int8-block")
    assert len(data) == wire_length(LAYOUT, "f32")
    assert decode_payload(data, LAYOUT)[0].tobytes() == values.tobytes()


@pytest.mark.parametrize("cut", [0, 1, 100, -1, -1000])
def test_truncated_payload_is_refused_before_parsing(cut: int) -> None:
    data = encode_payload([np.zeros(N, np.float32)])
    with pytest.raises(PayloadInvalid, match="bytes"):
        decode_payload(data[:cut], LAYOUT)


def test_payload_of_another_shape_is_refused() -> None:
    data = encode_payload([np.zeros(N - BLOCK, np.float32)])
    with pytest.raises(PayloadInvalid) as caught:
        decode_payload(data, LAYOUT)
    assert caught.value.hint, "a refusal says what to do"


def test_payload_of_the_right_length_that_is_no_payload_is_refused() -> None:
    length = wire_length(LAYOUT, "f32")
    with pytest.raises(PayloadInvalid):
        decode_payload(bytes(length), LAYOUT)
    longer = dag_cbor.encode({"format": "f33", "tensors": [bytes(4 * N)]})
    assert len(longer) == length
    with pytest.raises(PayloadInvalid):
        decode_payload(longer, LAYOUT)


def test_integer_tensors_travel_as_words() -> None:
    layout = [TensorHeader(I32, (3,)), TensorHeader(F32, ())]
    tensors = (np.array([1, -2, 3], np.int32), np.array(2.5, np.float32))
    back = decode_payload(encode_payload(tensors, "int8-block"), layout)
    assert [b.tobytes() for b in back] == [t.tobytes() for t in tensors]
    assert back[1].shape == ()


def test_checkpoint_comes_back() -> None:
    values = RNG.standard_normal(N).astype(np.float32)
    back = decode_checkpoint(encode_checkpoint(Checkpoint((values,), (values * 2, values))))
    assert [len(back.shared), len(back.outer)] == [1, 2]
    assert back.outer[0].tobytes() == (values * 2).tobytes()


@pytest.mark.parametrize(
    "data",
    [b"", b"\xa0", dag_cbor.encode({"shared": [b"abc"], "outer": []}), dag_cbor.encode({"shared": 3, "outer": []})],
)
def test_what_is_no_checkpoint_is_refused(data: bytes) -> None:
    with pytest.raises(Mismatch):
        decode_checkpoint(data)


@pytest.mark.parametrize("filling", [b"\x81" * (N * 4) + b"\x80" * 99, b"\x01" * (N * 5), b"\xd8\x2a\x40" * (N * 2)])
def test_payload_of_the_right_length_with_any_content_is_refused(filling: bytes) -> None:
    with pytest.raises(PayloadInvalid, match="does not parse"):
        decode_payload(filling[: wire_length(LAYOUT, "f32")], LAYOUT)


@pytest.mark.parametrize(
    "data",
    [
        b"\x81" * 5000 + b"\x80",
        dag_cbor.encode({"shared": [], "outer": [b"123"]}),
        dag_cbor.encode({"shared": None, "outer": []}),
        dag_cbor.encode({"shared": ["x"], "outer": []}),
        dag_cbor.encode([]),
    ],
    ids=["nested", "odd", "no list", "no bytes", "no map"],
)
def test_checkpoint_that_is_none_is_a_mismatch(data: bytes) -> None:
    with pytest.raises(Mismatch, match="a checkpoint does not parse"):
        decode_checkpoint(data)
