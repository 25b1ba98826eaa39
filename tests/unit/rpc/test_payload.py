"""Payload headers: a receiver takes exactly what was declared and says what else it was given."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedstrata.errors import PayloadError
from fedstrata.experiment import Encoding
from fedstrata.rpc.payload import KNOWN_HEADERS, Acceptance, accepted_parts, parts_header, payload_header
from fedstrata.tensors import Layout, PayloadCodec
from fedstrata.v1 import tensors_pb2 as pb

LAYOUT = Layout.of({"fc1.weight": (2, 3), "fc1.bias": (2,)})


def header(encoding: Encoding = "float32") -> pb.PayloadHeader:
    codec = PayloadCodec.for_vector(LAYOUT, encoding, np.arange(8, dtype=np.float32))
    return payload_header(codec, name="fed_avg", num_examples=40)


def accept(message: pb.PayloadHeader, encoding: Encoding = "float32") -> tuple[PayloadCodec, int]:
    codec, (weight,) = accepted_parts(message, layout=LAYOUT, parts=[("fed_avg", LAYOUT)], encoding=encoding)
    return codec, weight


@pytest.mark.parametrize("encoding", ["float32", "float16", "bfloat16", "int8"])
def test_what_was_announced_is_accepted(encoding: Encoding) -> None:
    sent = header(encoding)
    codec, examples = accept(pb.PayloadHeader.FromString(sent.SerializeToString()), encoding)
    assert (codec.layout, codec.encoding, examples) == (LAYOUT, encoding, 40)
    assert codec.payload_bytes == sent.payload_bytes


def test_int8_scales_arrive_as_they_were_sent() -> None:
    codec, _ = accept(header("int8"), "int8")
    assert codec.scales == (np.float32(5) / np.float32(127), np.float32(7) / np.float32(127))


def _turned(part: Any) -> None:
    tensors = list(part.tensors)
    del part.tensors[:]
    part.tensors.extend(reversed(tensors))


# What is changed of a header, and how it is told.
ALTERED: list[tuple[Callable[[pb.PayloadHeader], object], str]] = [
    (
        lambda header: setattr(header.parts[0].tensors[1], "name", "fc2.bias"),
        "tensor 'fc2.bias' of shape [2]; expected 'fc1.bias' of shape [2]",
    ),
    (
        lambda header: header.parts[0].tensors[0].shape.reverse(),
        "tensor 'fc1.weight' of shape [3, 2]; expected 'fc1.weight' of shape [2, 3]",
    ),
    (
        lambda header: _turned(header.parts[0]),
        "tensor 'fc1.bias' of shape [2]; expected 'fc1.weight' of shape [2, 3]",
    ),
    (lambda header: header.parts[0].tensors.pop(), "a part has 1 tensors; expected 2: fc1.weight, fc1.bias"),
    (
        lambda header: setattr(header.parts[0], "name", "momentum"),
        "the payload has parts ['momentum']; expected 'fed_avg'",
    ),
    (lambda header: header.parts.append(header.parts[0]), "parts ['fed_avg', 'fed_avg']; expected 'fed_avg'"),
    (lambda header: header.parts.pop(), "the payload has parts []; expected 'fed_avg'"),
    (lambda header: setattr(header, "payload_bytes", 36), "the header announces 36 bytes; expected 32"),
    (
        lambda header: setattr(header, "encoding", pb.ENCODING_FLOAT16),
        "the payload has encoding 2; this link uses float32 (1)",
    ),
]


@pytest.mark.parametrize(("alter", "reason"), ALTERED, ids=[reason for _, reason in ALTERED])
def test_anything_else_is_refused_with_what_was_expected_also_after_one_that_was_right(
    alter: Callable[[pb.PayloadHeader], object], reason: str
) -> None:
    acceptance, message = Acceptance(LAYOUT, "float32", "fed_avg"), header()
    assert acceptance.of(message)[1] == (40,)
    alter(message)
    for takes in (accept, acceptance.of):
        with pytest.raises(PayloadError) as raised:
            takes(message)
        assert reason in str(raised.value)


def test_one_like_the_last_is_taken_for_as_many_examples_as_it_says() -> None:
    acceptance, message = Acceptance(LAYOUT, "float32", "fed_avg"), header()
    codec, _ = acceptance.of(message)
    message.parts[0].num_examples = 7
    assert acceptance.of(message) == (codec, (7,))


def test_a_header_with_more_in_it_than_is_ours_is_not_kept() -> None:
    acceptance, message = Acceptance(LAYOUT, "float32", "fed_avg"), header()
    unknown = b"\xfa\x01\x80\x01" + bytes(128)  # a field that a payload's header does not have
    large = pb.PayloadHeader.FromString(message.SerializeToString() + unknown)
    assert acceptance.of(large)[1] == (40,)
    assert not acceptance._known
    for num_examples in range(1, 2 * KNOWN_HEADERS):
        message.parts[0].num_examples = num_examples
        assert acceptance.of(message)[1] == (num_examples,)
    assert len(acceptance._known) <= KNOWN_HEADERS


def test_scales_are_those_of_each_payload() -> None:
    acceptance, message = Acceptance(LAYOUT, "int8", "fed_avg"), header("int8")
    acceptance.of(message)
    message.parts[0].tensors[0].scale = 0.5
    assert acceptance.of(message)[0].scales[0] == 0.5


@pytest.mark.parametrize("scale", [math.nan, math.inf, -1.0])
def test_a_scale_that_is_no_step_is_refused(scale: float) -> None:
    message = header("int8")
    message.parts[0].tensors[0].scale = scale
    with pytest.raises(PayloadError, match="it has the int8 scale"):
        accept(message, "int8")


def test_a_long_name_is_cut_in_the_reason() -> None:
    message = header()
    message.parts[0].tensors[0].name = "x" * 10_000
    with pytest.raises(PayloadError) as raised:
        accept(message)
    assert len(str(raised.value)) < 200


# two streams of one vector: (2, 3) is everybody's, (2,) a cluster's
PARTS = [("shared", LAYOUT.select(["fc1.weight"])), ("0/head", LAYOUT.select(["fc1.bias"]))]


def test_several_parts_have_a_weight_each_and_one_vector() -> None:
    message = parts_header(PayloadCodec(LAYOUT, "float32"), PARTS, [40, 0])
    codec, weights = Acceptance(LAYOUT, "float32", PARTS).of(message)
    assert (codec.layout, codec.payload_bytes, weights) == (LAYOUT, 32, (40, 0))


def test_of_several_parts_each_tensor_has_the_scale_that_was_announced() -> None:
    sent = PayloadCodec.for_vector(LAYOUT, "int8", np.arange(8, dtype=np.float32))
    codec, _ = Acceptance(LAYOUT, "int8", PARTS).of(parts_header(sent, PARTS, [1, 1]))
    assert codec.scales == sent.scales


def test_exact_partial_sums_have_eight_bytes_an_element() -> None:
    sent = PayloadCodec(LAYOUT, "exact")
    codec, weights = Acceptance(LAYOUT, "exact", PARTS).of(parts_header(sent, PARTS, [1 << 40, 3]))
    assert (codec.encoding, codec.payload_bytes, weights) == ("exact", 64, (1 << 40, 3))


def test_parts_in_another_order_or_fewer_of_them_are_refused() -> None:
    acceptance, codec = Acceptance(LAYOUT, "float32", PARTS), PayloadCodec(LAYOUT, "float32")
    acceptance.of(parts_header(codec, PARTS, [1, 1]))
    for wrong in (PARTS[::-1], PARTS[:1]):
        with pytest.raises(PayloadError, match="expected 'shared', '0/head'"):
            acceptance.of(parts_header(codec, wrong, [1] * len(wrong)))
