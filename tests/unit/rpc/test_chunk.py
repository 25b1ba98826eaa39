"""Payloads without protobuf's copies: the bytes are protobuf's own, and what is written otherwise goes by protobuf."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.rpc.chunk import Chunk, Whole, part_parser, serialised_chunk, serialised_whole
from fedstrata.tensors import CHUNK_BYTES, SMALL_BYTES
from fedstrata.v1 import rounds_pb2 as pb

PARTS = [pb.UpdatePart, pb.ModelPart]
both_kinds = pytest.mark.parametrize("part", PARTS, ids=lambda part: part.DESCRIPTOR.name)


@both_kinds
@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, 1 << 18, CHUNK_BYTES])
def test_a_chunk_is_written_as_protobuf_writes_it_and_read_back(part: Any, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    message = part(data=data).SerializeToString()
    assert serialised_chunk(part, data) == message
    assert serialised_chunk(part, memoryview(data)) == message
    read = part_parser(part)(message)
    assert isinstance(read, Chunk)
    assert bytes(read.data) == data
    assert (read.WhichOneof("part"), read.HasField("data"), read.HasField("header")) == ("data", True, False)


def header_for(part: Any) -> Any:
    """A header that has something in it."""
    return pb.UpdateHeader(run_id="r" * 200, round=3) if part is pb.UpdatePart else pb.ModelHeader(run_id="r", round=3)


@both_kinds
@pytest.mark.parametrize("size", [1, 127, 128, SMALL_BYTES])
def test_a_small_payload_is_one_to_protobuf_and_to_us_whoever_wrote_it(part: Any, size: int) -> None:
    small = bytes(range(256)) * (size // 256) + bytes(size % 256)
    meant = part(header=header_for(part), small=small)
    ours = serialised_whole(part, header_for(part), small)
    assert serialised_whole(part, header_for(part), memoryview(small)) == ours
    assert part.FromString(ours) == meant
    for message in (ours, meant.SerializeToString()):
        read = part_parser(part)(message)
        assert isinstance(read, Whole)
        assert (read.header, bytes(read.chunk.data)) == (header_for(part), small)
        assert (read.WhichOneof("part"), read.HasField("header"), read.HasField("data")) == ("header", True, False)


@pytest.mark.parametrize("size", [1, 127, 128, 16_383, 16_384, SMALL_BYTES])
def test_the_elements_of_a_small_payload_are_where_they_are_read_fastest(size: int) -> None:
    small = bytes(size)
    for header_bytes in (*range(1, 9), *range(120, 136), *range(16_376, 16_384)):
        header = pb.UpdateHeader(base_digest=b"d" * (header_bytes - 3))
        message = serialised_whole(pb.UpdatePart, header, small)
        assert (len(message) - size) % 4 == 0
        assert pb.UpdatePart.FromString(message) == pb.UpdatePart(header=header, small=small)


def test_after_a_long_header_a_small_payload_begins_anywhere() -> None:
    headers = [pb.UpdateHeader(run_id="r" * length) for length in range(20_000, 20_004)]
    for header in headers:
        message = serialised_whole(pb.UpdatePart, header, b"1234")
        assert pb.UpdatePart.FromString(message) == pb.UpdatePart(header=header, small=b"1234")
        assert isinstance(part_parser(pb.UpdatePart)(message), Whole)


@both_kinds
def test_a_small_payload_that_comes_before_its_header_is_the_same(part: Any) -> None:
    small, header = part(small=b"1234").SerializeToString(), part(header=header_for(part)).SerializeToString()
    for message in (small + header, small + small + header, header + small + small):
        read = part_parser(part)(message)
        assert isinstance(read, Whole)
        assert (read.header, bytes(read.chunk.data)) == (header_for(part), b"1234")


@both_kinds
def test_without_bytes_or_without_a_header_there_is_no_small_payload(part: Any) -> None:
    bare = serialised_whole(part, header_for(part), b"")
    assert part_parser(part)(bare) == part(header=header_for(part))
    alone = part(small=b"1234")
    assert part_parser(part)(alone.SerializeToString()) == alone


@both_kinds
def test_other_parts_are_protobufs_messages(part: Any) -> None:
    header = {"header": pb.UpdateHeader(run_id="r")} if part is pb.UpdatePart else {"header": pb.ModelHeader(round=3)}
    made = part(**header)
    assert part_parser(part)(made.SerializeToString()) == made
    assert part_parser(part)(b"") == part()


@both_kinds
@given(message=st.binary(max_size=40))
def test_whatever_bytes_come_mean_what_protobuf_makes_of_them(part: Any, message: bytes) -> None:
    data_tag = serialised_chunk(part, b"")[:1]
    header_tag = serialised_whole(part, header_for(part), b"")[:1]
    with_header = part(header=header_for(part)).SerializeToString()
    small_tag = part(small=b"1").SerializeToString()[:1]
    for candidate in (
        message, data_tag + message, header_tag + message, with_header + message, with_header + small_tag + message
    ):  # fmt: skip
        try:
            expected = part.FromString(candidate)
        except Exception as error:
            with pytest.raises(type(error)):
                part_parser(part)(candidate)
            continue
        read = part_parser(part)(candidate)
        assert read.WhichOneof("part") == expected.WhichOneof("part")
        if isinstance(read, Whole):
            assert (read.header, bytes(read.chunk.data)) == (expected.header, expected.small)
        else:
            assert bytes(read.data) == expected.data
            assert not (expected.small and expected.HasField("header"))


@both_kinds
def test_two_chunks_in_one_message_are_the_last_of_them(part: Any) -> None:
    message = serialised_chunk(part, b"first") + serialised_chunk(part, b"last")
    assert part_parser(part)(message).data == b"last"
