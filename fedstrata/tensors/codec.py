"""The tensor codec. It converts float32 elements to the bytes of an encoding, in chunks of at most `CHUNK_BYTES`, and
back.

All encodings are little-endian. `float32` needs no copy, because the bytes are a view of the elements. `float16` and
`bfloat16` round to the nearest value, and ties to even. `int8` divides each element by the tensor's scale, max|x| /
127, and rounds it to a signed byte.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import PayloadError
from fedstrata.experiment import Encoding
from fedstrata.tensors.layout import SMALL_BYTES, Flat, Layout

CHUNK_BYTES = 1 << 20
# Besides the encodings of the experiment file: `exact`, for partial sums between servers, as int64 on the grid of sums.
AnyEncoding = Encoding | Literal["exact"]
ELEMENT_BYTES: dict[AnyEncoding, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "exact": 8}
SCALED: frozenset[AnyEncoding] = frozenset({"int8"})  # encodings with a scale for each tensor
FLOAT16_MAX = 65504.0


def int8_scale(tensor: Flat) -> float:
    """Return the scale of a tensor for the encoding `int8`: max|x| / 127, rounded to float32; 0 for a
    tensor of zeros.
    """
    return float(np.float32(np.max(np.abs(tensor)) / np.float32(127))) if tensor.size else 0.0


def encode(values: NDArray[Any], encoding: AnyEncoding, scale: float = 0.0) -> memoryview:
    """Return the encoded bytes of some elements of one tensor.

    Raises:
        PayloadError: a value is larger than the encoding can hold.
    """
    match encoding:
        case "float32":
            return _bytes_of(values.astype("<f4", copy=False))
        case "float16":
            _check_float16(values)
            return _bytes_of(values.astype("<f2"))
        case "bfloat16":
            bits = np.ascontiguousarray(values, "<f4").view("<u4")
            rounded = bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))
            return _bytes_of((rounded >> 16).astype("<u2"))
        case "exact":
            return _bytes_of(values.astype("<i8", copy=False))
        case "int8":
            return _bytes_of(np.rint(values / np.float32(scale)).astype(np.int8) if scale else values.astype(np.int8))


def decode(data: bytes | memoryview, encoding: AnyEncoding, scale: float = 0.0) -> NDArray[Any]:
    """Return the elements of encoded bytes: int64 for the encoding `exact`, float32 for all others. For `float32` and
    `exact`, the result is a read-only view.
    """
    match encoding:
        case "float32":
            return np.frombuffer(data, "<f4")
        case "float16":
            return np.frombuffer(data, "<f2").astype(np.float32)
        case "bfloat16":
            return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        case "exact":
            return np.frombuffer(data, "<i8")
        case "int8":
            return np.frombuffer(data, np.int8).astype(np.float32) * np.float32(scale)


def _check_float16(values: NDArray[Any]) -> None:
    largest = float(np.max(np.abs(values), initial=0.0))
    if largest > FLOAT16_MAX:
        raise PayloadError(f"the value {largest:g} does not fit float16 (at most {FLOAT16_MAX:g}); choose bfloat16")


def _bytes_of(array: NDArray[np.generic]) -> memoryview:
    return np.ascontiguousarray(array).data.cast("B")


class PayloadCodec:
    """Encode and decode a flat vector chunk by chunk. With the encoding `int8`, each tensor has its own scale."""

    def __init__(self, layout: Layout, encoding: AnyEncoding, scales: Sequence[float] = ()) -> None:
        """Set `scales`: one number per tensor for the encoding `int8`, and none for any other encoding."""
        if len(scales) not in {0, len(layout.tensors)}:
            raise PayloadError(f"the payload has {len(scales)} scales for {len(layout.tensors)} tensors")
        self.layout = layout
        self.encoding: AnyEncoding = encoding
        self.scales = tuple(scales)
        self.element_bytes = ELEMENT_BYTES[encoding]
        self.payload_bytes = layout.size * self.element_bytes

    @property
    def is_small(self) -> bool:
        """Return whether the payload is so small that one message carries the header and the whole payload."""
        return self.payload_bytes <= SMALL_BYTES

    @classmethod
    def for_vector(cls, layout: Layout, encoding: AnyEncoding, flat: Flat) -> "PayloadCodec":
        """Return the codec for one vector, with int8 scales computed from its values."""
        if encoding not in SCALED:
            return cls(layout, encoding)
        return cls(layout, encoding, [int8_scale(view) for view in layout.views(flat).values()])

    def check_fits(self, pieces: Iterable[Flat]) -> None:
        """Raise PayloadError if the encoding cannot hold a value of a vector, which is given in pieces. `chunks` raises
        the same error, but perhaps only after it has yielded chunks.
        """
        if self.encoding == "float16":
            for piece in pieces:
                _check_float16(piece)

    def chunks(self, read: Callable[[int, int], NDArray[Any]], offset: int = 0) -> Iterator[bytes | memoryview]:
        """Yield the payload in chunks, beginning at byte `offset`. `read(start, stop)` returns the elements
        to encode.
        """
        step = CHUNK_BYTES // self.element_bytes
        for start in range(offset // self.element_bytes, self.layout.size, step):
            stop = min(start + step, self.layout.size)
            yield self._encode(read(start, stop), start, stop)

    def _encode(self, values: NDArray[Any], start: int, stop: int) -> bytes | memoryview:
        if self.encoding not in SCALED:
            return encode(values, self.encoding)
        spans = self._spans(start, stop)
        return b"".join(encode(values[a - start : b - start], self.encoding, scale) for a, b, scale in spans)

    def decode(self, data: bytes | memoryview, offset: int) -> NDArray[Any]:
        """Return the elements in a chunk that begins at byte `offset` of the payload.

        Raises:
            PayloadError: the chunk is empty, is larger than allowed, or ends inside an element or beyond the payload.
        """
        count, rest = divmod(len(data), self.element_bytes)
        start = offset // self.element_bytes
        if rest or not count or len(data) > CHUNK_BYTES or start + count > self.layout.size:
            raise PayloadError(
                f"a chunk has {len(data)} bytes at byte {offset} of {self.payload_bytes}; a chunk must have whole "
                f"elements of {self.element_bytes} bytes, 1 to {CHUNK_BYTES} bytes, within the payload"
            )
        if self.encoding not in SCALED:
            return decode(data, self.encoding)
        view = memoryview(data)
        spans = self._spans(start, start + count)
        return np.concatenate([decode(view[a - start : b - start], self.encoding, scale) for a, b, scale in spans])

    def _spans(self, start: int, stop: int) -> Iterator[tuple[int, int, float]]:
        """Split the elements from `start` to `stop` (exclusive) of the flat vector by tensor. For each part, yield its
        start and its stop in the flat vector, and the scale of its tensor.
        """
        index = bisect_right(self.layout.starts, start) - 1
        while start < stop:
            tensor_stop = self.layout.starts[index] + self.layout.tensors[index].size
            if tensor_stop > start:
                yield start, min(stop, tensor_stop), self.scales[index]
            start, index = max(start, min(stop, tensor_stop)), index + 1
