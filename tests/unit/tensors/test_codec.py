"""The codec: what each encoding keeps of a value, and chunks that may begin and end anywhere."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedstrata.errors import PayloadError
from fedstrata.experiment import Encoding
from fedstrata.tensors import CHUNK_BYTES, Flat, Layout, PayloadCodec
from fedstrata.tensors.codec import ELEMENT_BYTES, decode, encode, int8_scale

SUBNORMAL = 1e-38  # below the smallest normal float32 a scale has few bits or none

ENCODINGS: tuple[Encoding, ...] = ("float32", "float16", "bfloat16", "int8")
LAYOUT = Layout.of({"w": (3, 4), "none": (0,), "b": (3,), "s": ()})

elements: st.SearchStrategy[Any] = st.floats(-60000, 60000, width=32)
vectors = hnp.arrays(np.float32, LAYOUT.size, elements=elements)


def f32(*values: float) -> Flat:
    return np.array(values, np.float32)


def payload(codec: PayloadCodec, flat: Flat, offset: int = 0) -> bytes:
    return b"".join(codec.chunks(lambda start, stop: flat[start:stop], offset))


def decoded(codec: PayloadCodec, data: bytes, cuts: list[int]) -> Flat:
    """The vector from chunks that end at these elements."""
    bounds = sorted({0, *cuts, codec.layout.size})
    size = codec.element_bytes
    parts = [codec.decode(data[a * size : b * size], a * size) for a, b in pairwise(bounds) if b > a]
    return np.concatenate(parts)


# --- one encoding at a time --------------------------------------------------------------------------------


def test_float32_is_kept_as_it_is() -> None:
    values = f32(1.5, -0.0, 1e-45, 3.4e38)
    data = encode(values, "float32")
    assert bytes(data) == values.astype("<f4").tobytes()
    assert np.array_equal(decode(data, "float32"), values)


def test_float32_is_little_endian() -> None:
    assert bytes(encode(f32(1.0), "float32")) == b"\x00\x00\x80\x3f"


def test_float16_rounds_to_nearest_even() -> None:
    between = f32(1 + 2**-11, 1 + 3 * 2**-11)  # half-way between two float16 numbers
    assert decode(encode(between, "float16"), "float16").tolist() == [1.0, 1 + 2**-9]


def test_bfloat16_rounds_to_nearest_even() -> None:
    between = f32(1 + 2**-8, 1 + 3 * 2**-8)
    assert decode(encode(between, "bfloat16"), "bfloat16").tolist() == [1.0, 1 + 2**-6]
    assert bytes(encode(f32(1.0), "bfloat16")) == b"\x80\x3f"


def test_bfloat16_agrees_with_torch() -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32) * 1e3
    expected = torch.from_numpy(values).to(torch.bfloat16).to(torch.float32).numpy()
    assert np.array_equal(decode(encode(values, "bfloat16"), "bfloat16"), expected)


def test_int8_is_a_byte_times_the_scale() -> None:
    values = f32(-127, 0, 63.4, 127)
    scale = int8_scale(values)
    assert scale == 1.0
    assert np.frombuffer(encode(values, "int8", scale), np.int8).tolist() == [-127, 0, 63, 127]
    assert decode(encode(values, "int8", scale), "int8", scale).tolist() == [-127, 0, 63, 127]


def test_a_tensor_of_zeros_needs_no_int8_scale() -> None:
    assert int8_scale(f32(0, 0)) == 0.0
    assert int8_scale(f32()) == 0.0
    assert decode(encode(f32(0, 0), "int8", 0.0), "int8", 0.0).tolist() == [0.0, 0.0]


def test_what_does_not_fit_float16_is_refused() -> None:
    with pytest.raises(PayloadError, match=r"65536 does not fit float16 .* choose bfloat16"):
        encode(f32(1, -65536), "float16")


@given(vectors)
def test_each_encoding_is_as_close_as_it_promises(flat: Flat) -> None:
    steps = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}
    for encoding, relative in steps.items():
        codec = PayloadCodec.for_vector(LAYOUT, encoding, flat)  # type: ignore[arg-type]
        error = np.abs(decoded(codec, payload(codec, flat), []).astype(np.float64) - flat)
        assert np.all(error <= relative * np.abs(flat) + 2.0**-25)
    codec = PayloadCodec.for_vector(LAYOUT, "int8", flat)
    got = LAYOUT.views(decoded(codec, payload(codec, flat), []))
    for (name, view), scale in zip(LAYOUT.views(flat).items(), codec.scales, strict=True):
        assert np.all(np.abs(got[name].astype(np.float64) - view) <= scale * 0.5001 + SUBNORMAL)


# --- chunks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(flat=vectors, cuts=st.lists(st.integers(0, LAYOUT.size), max_size=5))
def test_where_chunks_are_cut_changes_nothing(encoding: Encoding, flat: Flat, cuts: list[int]) -> None:
    codec = PayloadCodec.for_vector(LAYOUT, encoding, flat)
    data = payload(codec, flat)
    assert len(data) == codec.payload_bytes
    assert decoded(codec, data, cuts).tobytes() == decoded(codec, data, []).tobytes()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_payload_continues_from_any_element(encoding: Encoding) -> None:
    flat = np.linspace(-3, 5, LAYOUT.size, dtype=np.float32)
    codec = PayloadCodec.for_vector(LAYOUT, encoding, flat)
    whole = payload(codec, flat)
    for element in range(LAYOUT.size + 1):
        offset = element * codec.element_bytes
        assert payload(codec, flat, offset) == whole[offset:]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_no_chunk_is_larger_than_a_mebibyte(encoding: Encoding) -> None:
    per_chunk = CHUNK_BYTES // ELEMENT_BYTES[encoding]
    layout = Layout.of({"a": (per_chunk - 1,), "b": (per_chunk + 2,)})
    flat = np.ones(layout.size, np.float32)
    codec = PayloadCodec.for_vector(layout, encoding, flat)
    sizes = [len(chunk) for chunk in codec.chunks(lambda start, stop: flat[start:stop])]
    assert sizes == [CHUNK_BYTES, CHUNK_BYTES, codec.element_bytes]


@pytest.mark.parametrize(
    ("size", "offset"), [(0, 0), (3, 0), (4 * LAYOUT.size + 4, 0), (8, 4 * LAYOUT.size - 4), (CHUNK_BYTES + 4, 0)]
)
def test_a_chunk_that_is_empty_ragged_or_beyond_the_payload_is_refused(size: int, offset: int) -> None:
    with pytest.raises(PayloadError, match="a chunk must have whole elements"):
        PayloadCodec(LAYOUT, "float32").decode(bytes(size), offset)


def test_a_chunk_within_the_payload_but_above_a_mebibyte_is_refused() -> None:
    codec = PayloadCodec(Layout.of({"w": (CHUNK_BYTES,)}), "float32")
    assert len(codec.decode(bytes(CHUNK_BYTES), 0)) == CHUNK_BYTES // 4
    with pytest.raises(PayloadError, match="1 to 1048576 bytes"):
        codec.decode(bytes(CHUNK_BYTES + 4), 0)


def test_scales_are_one_a_tensor() -> None:
    with pytest.raises(PayloadError, match="2 scales for 4 tensors"):
        PayloadCodec(LAYOUT, "int8", [1.0, 2.0])
