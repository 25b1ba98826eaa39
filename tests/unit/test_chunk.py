"""Chunks without protobuf's copies: the bytes are protobuf's own, and whatever is no plain chunk goes by protobuf."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.rpc.chunk import Chunk, chunk_parser, serialised_chunk
from fedstrata.tensors import CHUNK_BYTES
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
    read = chunk_parser(part)(message)
    assert isinstance(read, Chunk)
    assert bytes(read.data) == data
    assert (read.WhichOneof("part"), read.HasField("data"), read.HasField("header")) == ("data", True, False)


@both_kinds
def test_other_parts_are_protobufs_messages(part: Any) -> None:
    header = {"header": pb.UpdateHeader(run_id="r")} if part is pb.UpdatePart else {"header": pb.ModelHeader(round=3)}
    made = part(**header)
    assert chunk_parser(part)(made.SerializeToString()) == made
    assert chunk_parser(part)(b"") == part()


@both_kinds
@given(message=st.binary(max_size=40))
def test_whatever_bytes_come_mean_what_protobuf_makes_of_them(part: Any, message: bytes) -> None:
    tag = serialised_chunk(part, b"")[:1]
    for candidate in (message, tag + message):
        try:
            expected = part.FromString(candidate)
        except Exception as error:
            with pytest.raises(type(error)):
                chunk_parser(part)(candidate)
            continue
        read = chunk_parser(part)(candidate)
        assert bytes(read.data) == expected.data
        assert read.WhichOneof("part") == expected.WhichOneof("part")


@both_kinds
def test_two_chunks_in_one_message_are_the_last_of_them(part: Any) -> None:
    message = serialised_chunk(part, b"first") + serialised_chunk(part, b"last")
    assert chunk_parser(part)(message).data == b"last"
