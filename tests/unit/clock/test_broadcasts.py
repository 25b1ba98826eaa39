"""A broadcast on the real clock, by a clock that the test sets: what goes once for all, and what goes again."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.timeline import DeviceTimeline
from fedstrata.errors import SupersededError
from fedstrata.experiment import TierDeadline
from fedstrata.links.tier_links import DOWN
from fedstrata.links.transfers import Transfers
from fedstrata.rounds import Intake, Offer, OpenRound, RoundServer
from fedstrata.rpc.chunk import part_parser
from fedstrata.store.model_file import ModelInMemory
from fedstrata.tensors import Layout
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.gatherings import one_stream
from tests.support.rounds_setting import RUN_ID, held_back_parent
from tests.support.set_time import MS, SetTime, arrivals, carry, paced, transfers

ONCE = "shared: {device-lps: {down_rate: 1Mbit/s, broadcast: true}}"
STEP = 9_984  # bits in a piece: ten milliseconds of the link, whole elements
SIZE = 10_000  # bytes: 80 ms


async def hear(
    held: Transfers, clock: SetTime, child: int, size: int = SIZE, *, model: int | None = 0, start: int = 0,
    at: Sequence[int] = (),
) -> list[int]:  # fmt: skip
    """When so many bits, and then all of a model, have arrived."""
    return await carry(held, clock, child, size, at=at, way=DOWN, start=start, model=model)


async def cut_off(clock: SetTime, receiving: "asyncio.Future[Any]", at_ns: int) -> list[int]:
    """Give up what a device receives at a time."""
    await clock.until(at_ns)
    receiving.cancel()
    return []


async def test_a_model_goes_once_however_many_devices_receive_it_and_each_ones_own_link_comes_after() -> None:
    clock = SetTime()
    held = transfers(
        clock, "device-lps: {latency: 5ms}", "overrides: [{devices: [2], down_rate: 500kbit/s, latency: 0ms}]", ONCE
    )
    found = await arrivals(clock, *(hear(held, clock, child) for child in range(3)))
    assert found == [[85 * MS], [85 * MS], [160 * MS]]
    carried = held.take(0)
    assert [(each.child, each.bytes, each.link_ns) for each in carried] == [
        (0, SIZE, 80 * MS), (1, SIZE, 80 * MS), (2, SIZE, 160 * MS),
    ]  # fmt: skip


async def test_who_asks_while_it_is_under_way_has_at_once_what_has_gone_and_the_rest_with_the_others() -> None:
    clock = SetTime()
    held = transfers(clock, "overrides: [{devices: [2], down_rate: 2Mbit/s}]", ONCE)
    first, late, slower = await arrivals(
        clock,
        hear(held, clock, 0, at=(STEP,)),
        hear(held, clock, 1, start=40 * MS, at=(STEP, 4 * STEP, 5 * STEP)),
        hear(held, clock, 2, start=70 * MS),
    )
    assert first == [STEP * 1_000, 80 * MS]
    assert late == [40 * MS, 40 * MS, 5 * STEP * 1_000, 80 * MS]
    assert slower == [110 * MS]  # by its own link, since it asked


async def test_who_asks_when_it_is_over_has_it_by_its_own_link() -> None:
    clock = SetTime()
    held = transfers(clock, "overrides: [{devices: [2], down_rate: 500kbit/s}]", ONCE)
    found = await arrivals(clock, *(hear(held, clock, child, start=child * 100 * MS) for child in range(3)))
    assert found == [[80 * MS], [100 * MS], [360 * MS]]


async def test_each_model_is_another_transfer_and_both_share_the_link() -> None:
    clock = SetTime()
    held = transfers(clock, ONCE)
    found = await arrivals(clock, *(hear(held, clock, child, model=child % 2) for child in range(4)))
    assert found == [[160 * MS]] * 4


async def test_a_device_that_asks_again_is_sent_it_again_alone() -> None:
    clock = SetTime()
    held = transfers(clock, ONCE)

    async def killed() -> list[int]:
        with pytest.raises(SupersededError):
            await hear(held, clock, 1)
        return []

    first, _, again = await arrivals(clock, hear(held, clock, 0), killed(), hear(held, clock, 1, start=40 * MS))
    # 40,000 bits are left of the broadcast, which has half of the link from 40 ms on, and 80,000 go again
    assert (first, again) == ([120 * MS], [160 * MS])
    assert await arrivals(clock, hear(held, clock, 0, start=200 * MS)) == [[280 * MS]]


async def test_what_is_left_of_a_download_that_was_cut_goes_alone() -> None:
    clock = SetTime()
    held = transfers(clock, ONCE)
    found = await arrivals(clock, hear(held, clock, 0), hear(held, clock, 1, SIZE // 4, model=None))
    assert found == [[100 * MS], [40 * MS]]


async def test_one_that_nobody_receives_any_more_ends_and_begins_again_with_who_asks_next() -> None:
    clock = SetTime()
    held = transfers(clock, ONCE)
    cut = asyncio.ensure_future(hear(held, clock, 0))

    _, one, other = await arrivals(
        clock, cut_off(clock, cut, 40 * MS), hear(held, clock, 1, start=60 * MS), hear(held, clock, 0, start=70 * MS)
    )
    assert (one, other) == ([140 * MS], [140 * MS])


async def test_one_that_is_cut_off_takes_nothing_from_the_others() -> None:
    clock = SetTime()
    held = transfers(clock, ONCE)
    cut = asyncio.ensure_future(hear(held, clock, 0))

    _, other = await arrivals(clock, cut_off(clock, cut, 40 * MS), hear(held, clock, 1, start=20 * MS))
    assert other == [80 * MS]


async def test_another_rounds_models_go_anew_and_what_is_under_way_goes_on() -> None:
    clock = SetTime()
    held = transfers(clock, ONCE)

    async def opened() -> list[int]:
        await clock.until(40 * MS)
        held.open_round()
        return []

    before, _, after = await arrivals(clock, hear(held, clock, 0), opened(), hear(held, clock, 1, start=40 * MS))
    assert (before, after) == ([120 * MS], [160 * MS])
    assert await arrivals(clock, hear(held, clock, 1, start=200 * MS), carry(held, clock, 1, SIZE, start=200 * MS)) == [
        [280 * MS],
        [200 * MS],  # upwards nothing is shared
    ]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 200), st.integers(1, 40)), min_size=1, max_size=9),
    st.tuples(*[st.integers(1, 20_000)] * 3),
)
async def test_it_is_the_virtual_clocks_broadcast(
    devices: list[tuple[int, int, int]], sizes: tuple[int, int, int]
) -> None:
    """Devices of three models, who listen from some time on, on links of their own."""
    links = [f"{{devices: [{index}], down_rate: {100 * rate}kbit/s}}" for index, (_, _, rate) in enumerate(devices)]
    said = ("device-lps: {latency: 5ms}", f"overrides: [{', '.join(links)}]", ONCE)
    free = {f"device-00{index}": start * MS for index, (_, start, _) in enumerate(devices)}
    # there all models begin as the first device listens; here each as its first one asks
    first = min(free.values())
    for model in {model for model, _, _ in devices}:
        index = next(index for index, each in enumerate(devices) if each[0] == model)
        free[f"device-00{index}"] = first
    clock = SetTime()
    held = Transfers(transfers(clock, *said).links, clock)
    work = (
        hear(held, clock, index, sizes[model], model=model, start=free[f"device-00{index}"])
        for index, (model, _, _) in enumerate(devices)
    )
    found = await arrivals(clock, *work)
    offered = {
        f"device-00{index}": Exchanged(down_bytes=sizes[model], up_bytes=0, work=pb.Work(), stream=model)
        for index, (model, _, _) in enumerate(devices)
    }
    expected = DeviceTimeline(paced(*said)).round(0, 0, free).send_models(offered)
    for index, name in enumerate(offered):
        assert found[index][0] == expected[name]


def test_its_pieces_are_ten_milliseconds_of_the_link_or_of_ones_own() -> None:
    links = transfers(SetTime(), "overrides: [{devices: [1], down_rate: 900kbit/s}]", ONCE).links
    assert [links.piece_bytes(index, DOWN) for index in (None, 0, 1)] == [STEP // 8, STEP // 8, 1_120]


# --- a round's models --------------------------------------------------------------------------------------

LAYOUT = Layout.of({"fc1.weight": (75_000,)})  # 300,000 bytes: in pieces
IDS = [f"device-00{index}" for index in range(3)]


def opened(clock: SetTime) -> RoundServer:
    """A parent with a round open, whose first two devices have one model and whose third has another."""
    links = transfers(clock, "shared: {device-lps: {down_rate: 8Mbit/s, broadcast: true}}")
    server = held_back_parent(links, LAYOUT)
    server.open(round_of(0))
    return server


def round_of(number: int) -> OpenRound:
    offers = {
        cluster: Offer(ModelInMemory(LAYOUT, np.full(LAYOUT.size, cluster, np.float32)), cluster=cluster)
        for cluster in (0, 1)
    }
    intake = Intake(children=IDS, sums=one_stream(LAYOUT.size, dict.fromkeys(IDS, 1)), wait=TierDeadline())
    return OpenRound(number=number, global_round=number, offers=offers, intake=intake, clusters={IDS[2]: 1})


async def fetched(server: RoundServer, clock: SetTime, child: int, *, stop_at: int | None = None) -> tuple[int, bytes]:
    """When the model of a child is there, and all that came."""
    data = bytearray()
    request = pb.FetchModelRequest(run_id=RUN_ID, child_id=IDS[child], sent_round=-1, resume_round=-1)
    async for part in server.fetch(request):
        read: Any = part_parser(pb.ModelPart)(part) if isinstance(part, bytes) else part
        data += read.data
        if stop_at is not None and len(data) >= stop_at:
            break
    return clock.now, bytes(data)


async def test_each_group_of_a_round_has_its_model_and_the_next_round_has_others() -> None:
    clock = SetTime()
    server = opened(clock)
    for number in (0, 1):
        began, jobs = clock.now, [asyncio.ensure_future(fetched(server, clock, child)) for child in range(3)]
        await clock.run(*jobs)
        for child, job in enumerate(jobs):
            at_ns, data = job.result()
            assert 600 * MS < at_ns - began < 601 * MS  # two models of 300 ms share the link
            assert np.array_equal(np.frombuffer(data, np.float32), np.full(LAYOUT.size, child // 2, np.float32))
        server.open(round_of(number + 1))


async def test_a_device_that_begins_its_download_anew_is_sent_it_alone() -> None:
    clock = SetTime()
    server = opened(clock)

    async def twice() -> tuple[int, bytes]:
        await fetched(server, clock, 1, stop_at=150_000)
        return await fetched(server, clock, 1)

    jobs = [asyncio.ensure_future(fetched(server, clock, 0)), asyncio.ensure_future(twice())]
    await clock.run(*jobs)
    (first, _), (again, data) = (job.result() for job in jobs)
    assert len(data) == 300_000
    assert 445 * MS < first < 455 * MS  # from 150 ms on it has half of the link
    assert 600 * MS < again < 601 * MS
