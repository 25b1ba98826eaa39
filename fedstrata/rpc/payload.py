"""Convert headers of payloads to and from messages. A receiver checks the header before it reads the payload."""

from collections.abc import Mapping, Sequence

from fedstrata.errors import PayloadError
from fedstrata.process.quoting import quoted, shown
from fedstrata.rpc.messages import checked_number
from fedstrata.tensors import Layout, PayloadCodec
from fedstrata.tensors.codec import SCALED, AnyEncoding
from fedstrata.v1 import tensors_pb2 as pb

KNOWN_HEADERS = 256  # most headers of a link that are kept; they differ only in numbers of examples
MOST_EXAMPLES = (1 << 63) - 1
LARGEST_SCALE = 3.4e38  # about the largest float32 number
PartLayouts = Sequence[tuple[str, Layout]]  # the parts of a payload: names, and the tensors of each
_TO_PROTO: Mapping[AnyEncoding, pb.Encoding] = {
    "float32": pb.ENCODING_FLOAT32,
    "float16": pb.ENCODING_FLOAT16,
    "bfloat16": pb.ENCODING_BFLOAT16,
    "int8": pb.ENCODING_INT8,
    "exact": pb.ENCODING_EXACT,
}


def payload_header(codec: PayloadCodec, *, name: str, num_examples: int = 0) -> pb.PayloadHeader:
    """Return the header of a payload with one part. The part has the codec's tensors. Its weight is the number of
    examples.
    """
    return parts_header(codec, [(name, codec.layout)], [num_examples])


def parts_header(codec: PayloadCodec, parts: PartLayouts, weights: Sequence[int]) -> pb.PayloadHeader:
    """Return the header of a payload with several parts and their weights. The parts follow each other in the codec's
    vector.
    """
    scales = iter(codec.scales or [0.0] * len(codec.layout.tensors))
    announced = [
        pb.WeightedTensors(
            name=name,
            num_examples=weight,
            tensors=[pb.TensorHeader(name=t.name, shape=t.shape, scale=next(scales)) for t in layout.tensors],
        )
        for (name, layout), weight in zip(parts, weights, strict=True)
    ]
    return pb.PayloadHeader(encoding=_TO_PROTO[codec.encoding], parts=announced, payload_bytes=codec.payload_bytes)


def accepted_parts(
    header: pb.PayloadHeader, *, layout: Layout, parts: PartLayouts, encoding: AnyEncoding
) -> tuple[PayloadCodec, tuple[int, ...]]:
    """Check a payload's header, which must announce exactly `parts`. Return the codec and the weights of the parts. The
    codec decodes the payload into a vector with `layout`.

    Raises:
        PayloadError: the header announces another encoding, part, tensor name, order, shape or length, or an impossible
            scale.
    """
    if header.encoding != _TO_PROTO[encoding]:
        raise PayloadError(
            f"the payload has encoding {header.encoding}; this link uses {encoding} ({_TO_PROTO[encoding]})"
        )
    if [part.name for part in header.parts] != [name for name, _ in parts]:
        found = quoted(*(part.name for part in header.parts))
        raise PayloadError(f"the payload has parts [{found}]; expected {quoted(*(name for name, _ in parts))}")
    for part, (_, expected) in zip(header.parts, parts, strict=True):
        check_tensors(part.tensors, expected)
    scales = [tensor.scale for part in header.parts for tensor in part.tensors] if encoding in SCALED else []
    for scale in scales:
        checked_number(scale, 0, LARGEST_SCALE, "the sender's tensor contains NaN or Inf: it has the int8 scale")
    codec = PayloadCodec(layout, encoding, scales)
    if header.payload_bytes != codec.payload_bytes:
        raise PayloadError(f"the header announces {header.payload_bytes} bytes; expected {codec.payload_bytes}")
    return codec, tuple(part.num_examples for part in header.parts)


class Acceptance:
    """Check the headers of the payloads on one link. Headers rarely differ, so a header that was accepted before is not
    checked again.
    """

    def __init__(self, layout: Layout, encoding: AnyEncoding, parts: str | PartLayouts) -> None:
        """Set `parts`, the names of the parts in their order in `layout`, or the name of the only part."""
        self._layout, self._encoding = layout, encoding
        self._parts: PartLayouts = [(parts, layout)] if isinstance(parts, str) else parts
        self._codec = PayloadCodec(layout, encoding)  # for payloads without scales
        self._known: dict[bytes, tuple[int, ...]] = {}  # weights by accepted header, for headers without scales
        longest = parts_header(self._codec, self._parts, [MOST_EXAMPLES] * len(self._parts))
        self._longest = longest.ByteSize()  # a longer header has unknown fields and is not kept

    def of(self, header: pb.PayloadHeader) -> tuple[PayloadCodec, tuple[int, ...]]:
        """Check the header of a payload, and return the codec and the weights. Raises PayloadError like
        `accepted_parts`.
        """
        written = header.SerializeToString()
        known = self._known.get(written)
        if known is not None:
            return self._codec, known
        codec, weights = accepted_parts(header, layout=self._layout, parts=self._parts, encoding=self._encoding)
        if codec.scales or len(written) > self._longest:
            return codec, weights
        if len(self._known) == KNOWN_HEADERS:
            self._known.clear()
        self._known[written] = weights
        return self._codec, weights


def check_tensors(tensors: Sequence[pb.TensorHeader], layout: Layout) -> None:
    """Raise PayloadError if tensors have other names, another order or other shapes than the layout."""
    if len(tensors) != len(layout.tensors):
        raise PayloadError(
            f"a part has {len(tensors)} tensors; expected {len(layout.tensors)}: {', '.join(layout.names)}"
        )
    for got, expected in zip(tensors, layout.tensors, strict=True):
        if got.name != expected.name or tuple(got.shape) != expected.shape:
            raise PayloadError(
                f"a part has a tensor {quoted(got.name)} of shape {shown(got.shape)}; "
                f"expected {expected.name!r} of shape {list(expected.shape)}"
            )
