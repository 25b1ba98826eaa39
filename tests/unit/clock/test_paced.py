"""Models and updates held back at a parent, by a clock that the test sets: in what pieces, and when they are there."""

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from fedstrata.errors import SupersededError
from fedstrata.experiment import TierDeadline
from fedstrata.rounds import Intake, Offer, OpenRound, RoundServer
from fedstrata.rpc.chunk import part_parser
from fedstrata.rpc.payload import payload_header
from fedstrata.rules import Gathering
from fedstrata.store.model_file import ModelInMemory
from fedstrata.tensors import Layout, PayloadCodec
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.gatherings import one_stream, sums_in
from tests.support.rounds_setting import PART, RUN_ID, held_back_parent
from tests.support.set_time import MS, SetTime, transfers

SIZE = 300_000  # bytes; too many for one message
LAYOUT = Layout.of({"fc1.weight": (SIZE // 4,)})
LINK = "device-lps: {down_rate: 8Mbit/s, up_rate: 8Mbit/s}"  # a kilobyte a millisecond
DEVICE = "device-000"


def opened(clock: SetTime, *links: str) -> tuple[RoundServer, Gathering]:
    """A parent with a round of one device open."""
    server = held_back_parent(transfers(clock, *(links or (LINK,))), LAYOUT)
    sums = one_stream(LAYOUT.size, {DEVICE: 1})
    intake = Intake(children=[DEVICE], sums=sums, wait=TierDeadline())
    model = ModelInMemory(LAYOUT, np.arange(LAYOUT.size, dtype=np.float32))
    server.open(OpenRound(offers={0: Offer(model)}, number=0, global_round=0, intake=intake))
    return server, sums


def fetched(server: RoundServer, offset: int = 0, digest: bytes = b"") -> AsyncIterator[Any]:
    return server.fetch(
        pb.FetchModelRequest(
            run_id=RUN_ID, child_id=DEVICE, sent_round=-1, resume_round=0 if offset else -1, resume_offset=offset,
            resume_digest=digest,
        )
    )  # fmt: skip


async def test_a_large_model_comes_in_pieces_and_at_once_what_was_missed() -> None:
    clock, sizes, data = SetTime(), [], bytearray()
    server, _ = opened(clock)

    async def hear() -> None:
        async for part in fetched(server):
            read = part_parser(pb.ModelPart)(part) if isinstance(part, bytes) else part
            if read.WhichOneof("part") == "header":
                continue
            data.extend(read.data)
            sizes.append(len(read.data))
            if len(sizes) == 3:
                clock.now += 100 * MS  # this end of the stream has been held up

    await clock.run(hear())
    assert sizes[:3] == [10_000] * 3
    assert 100_000 <= sizes[3] < 110_000
    assert set(sizes[4:-1]) == {10_000}
    assert np.array_equal(np.frombuffer(bytes(data), np.float32), np.arange(LAYOUT.size))
    assert 300 * MS < clock.now < 301 * MS  # late once, it was not late at the end


async def test_a_download_that_was_cut_goes_on_with_what_is_left() -> None:
    clock, parts = SetTime(), list[Any]()
    server, _ = opened(clock)

    async def hear() -> None:
        async for header in fetched(server):
            digest = header.header.digest
            break
        async for part in fetched(server, offset=299_000, digest=digest):
            parts.append(part)

    await clock.run(hear())
    assert parts[0].header.offset == 299_000
    assert len(parts) == 2
    assert 1 * MS <= clock.now < 2 * MS


async def test_an_update_is_there_when_its_last_bit_is_and_not_begun_before_its_first_piece() -> None:
    clock = SetTime()
    server, sums = opened(clock)
    codec, states = PayloadCodec(LAYOUT, "float32"), list[bool]()
    header = pb.UpdateHeader(
        run_id=RUN_ID, child_id=DEVICE, round=0, payload=payload_header(codec, name=PART, num_examples=1)
    )
    update = np.ones(LAYOUT.size, np.float32)

    async def parts() -> AsyncIterator[pb.UpdatePart]:
        intake = server.opened().intake
        for start in range(0, SIZE, 10_000):
            states.append(intake._children[DEVICE].upload is not None)
            yield pb.UpdatePart(data=update.tobytes()[start : start + 10_000])

    async def send() -> None:
        assert (await server.submit(header, parts())).accepted

    await clock.run(send())
    assert 300 * MS < clock.now < 301 * MS
    assert states == [False] + [True] * 29
    assert sums_in(sums)[0].mean()[5] == 1.0


async def test_an_update_without_bytes_still_takes_its_latency() -> None:
    clock = SetTime()
    server = held_back_parent(transfers(clock, "device-lps: {latency: 70ms}"), Layout(()))
    intake = Intake(children=[DEVICE], sums=one_stream(0, {DEVICE: 1}), wait=TierDeadline())
    model = ModelInMemory(Layout(()), np.empty(0, np.float32))
    server.open(OpenRound(offers={0: Offer(model)}, number=0, global_round=0, intake=intake))
    codec = PayloadCodec(Layout(()), "float32")
    header = pb.UpdateHeader(
        run_id=RUN_ID, child_id=DEVICE, round=0, payload=payload_header(codec, name=PART, num_examples=1)
    )

    async def parts() -> AsyncIterator[pb.UpdatePart]:
        return
        yield

    async def send() -> None:
        assert (await server.submit(header, parts())).accepted

    await clock.run(send())
    assert clock.now == 70 * MS


async def test_who_is_given_up_half_way_leaves_a_shared_link_to_the_others_within_a_piece() -> None:
    clock, names, codec = SetTime(), ("device-000", "device-001"), PayloadCodec(LAYOUT, "float32")
    server, _ = opened(clock, "shared: {device-lps: {up_rate: 8Mbit/s}}")  # a kilobyte a millisecond
    sums = one_stream(LAYOUT.size, dict.fromkeys(names, 1))
    intake = Intake(children=names, sums=sums, wait=TierDeadline(quorum_ratio=0.5))
    model = ModelInMemory(LAYOUT, np.arange(LAYOUT.size, dtype=np.float32))
    server.open(OpenRound(offers={0: Offer(model)}, number=1, global_round=1, intake=intake))

    async def parts() -> AsyncIterator[pb.UpdatePart]:
        for start in range(0, SIZE, 10_000):
            yield pb.UpdatePart(data=np.ones(LAYOUT.size, np.float32).tobytes()[start : start + 10_000])

    async def send(name: str) -> None:
        payload = payload_header(codec, name=PART, num_examples=1)
        header = pb.UpdateHeader(run_id=RUN_ID, child_id=name, round=1, payload=payload)
        with pytest.raises(SupersededError):  # what is summed up of one that is given up voids the sum
            await server.submit(header, parts())
        assert 100 * MS <= clock.now < 125 * MS
        assert (await server.submit(header, parts())).accepted == (name == names[0])

    clock.call_at(100 * MS, lambda: intake.exclude(names[1]))
    await clock.run(*(send(name) for name in names))
    # sent again from then on, and alone: in 300 ms
    assert 400 * MS < clock.now < 450 * MS
