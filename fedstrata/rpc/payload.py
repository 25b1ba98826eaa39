"""Payload headers to and from messages: what a sender announces and a receiver checks before any byte."""

import math
from collections.abc import Mapping, Sequence

from fedstrata.errors import PayloadError
from fedstrata.experiment import Encoding
from fedstrata.tensors import Layout, PayloadCodec
from fedstrata.v1 import tensors_pb2 as pb

KNOWN_HEADERS = 256  # of a link's payloads; they differ in their numbers of examples only
MOST_EXAMPLES = (1 << 63) - 1
PROFILE_PART = "eigenvectors"  # the one part of a profile, as device and GPS both name it
_TO_PROTO: Mapping[Encoding, pb.Encoding] = {
    "float32": pb.ENCODING_FLOAT32,
    "float16": pb.ENCODING_FLOAT16,
    "bfloat16": pb.ENCODING_BFLOAT16,
    "int8": pb.ENCODING_INT8,
}


def payload_header(codec: PayloadCodec, *, name: str, num_examples: int = 0) -> pb.PayloadHeader:
    """Announces one part: the codec's tensors, and how many examples they stand for."""
    scales = codec.scales or [0.0] * len(codec.layout.tensors)
    tensors = [
        pb.TensorHeader(name=tensor.name, shape=tensor.shape, scale=scale)
        for tensor, scale in zip(codec.layout.tensors, scales, strict=True)
    ]
    part = pb.WeightedTensors(name=name, num_examples=num_examples, tensors=tensors)
    return pb.PayloadHeader(encoding=_TO_PROTO[codec.encoding], parts=[part], payload_bytes=codec.payload_bytes)


def accepted_codec(
    header: pb.PayloadHeader, *, layout: Layout, encoding: Encoding, name: str
) -> tuple[PayloadCodec, int]:
    """The codec and number of examples of a payload that is exactly what was declared.

    Raises:
        PayloadError: another encoding, part, tensor name, order, shape, scale or length.
    """
    if header.encoding != _TO_PROTO[encoding]:
        raise PayloadError(f"encoding {header.encoding}, expected {encoding} ({_TO_PROTO[encoding]}) on this link")
    if [part.name for part in header.parts] != [name]:
        raise PayloadError(f"parts {[part.name for part in header.parts][:4]}, expected one called {name!r}")
    part = header.parts[0]
    check_tensors(part.tensors, layout)
    scales = [tensor.scale for tensor in part.tensors] if encoding == "int8" else []
    if not all(math.isfinite(scale) and scale >= 0 for scale in scales):
        raise PayloadError("an int8 scale is negative or not finite; the sender's tensor holds NaN or Inf")
    codec = PayloadCodec(layout, encoding, scales)
    if header.payload_bytes != codec.payload_bytes:
        raise PayloadError(f"{header.payload_bytes} bytes announced, expected {codec.payload_bytes}")
    return codec, part.num_examples


class Acceptance:
    """Checks the headers of one link's payloads, which hardly ever differ: one seen before needs no second look."""

    def __init__(self, layout: Layout, encoding: Encoding, name: str) -> None:
        self._layout, self._encoding, self._name = layout, encoding, name
        self._codec = PayloadCodec(layout, encoding)  # of what has no scales, which are each payload's own
        self._known: dict[bytes, int] = {}  # headers without scales, and their numbers of examples
        longest = payload_header(self._codec, name=name, num_examples=MOST_EXAMPLES)
        self._longest = longest.ByteSize()  # with nothing in it that is not ours

    def of(self, header: pb.PayloadHeader) -> tuple[PayloadCodec, int]:
        """As `accepted_codec`."""
        written = header.SerializeToString()
        known = self._known.get(written)
        if known is not None:
            return self._codec, known
        codec, num_examples = accepted_codec(header, layout=self._layout, encoding=self._encoding, name=self._name)
        if codec.scales or len(written) > self._longest:
            return codec, num_examples
        if len(self._known) == KNOWN_HEADERS:
            self._known.clear()
        self._known[written] = num_examples
        return self._codec, num_examples


def check_tensors(tensors: Sequence[pb.TensorHeader], layout: Layout) -> None:
    """Refuse tensors whose names, order or shapes are not the layout's."""
    if len(tensors) != len(layout.tensors):
        raise PayloadError(f"{len(tensors)} tensors, expected {len(layout.tensors)}: {', '.join(layout.names)}")
    for got, expected in zip(tensors, layout.tensors, strict=True):
        if got.name != expected.name or tuple(got.shape) != expected.shape:
            raise PayloadError(
                f"tensor {got.name[:80]!r} of shape {list(got.shape)[:8]}, "
                f"expected {expected.name!r} of shape {list(expected.shape)}"
            )
