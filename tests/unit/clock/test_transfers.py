"""Transfers on the real clock, by a clock that the test sets: when what has arrived, alone and on a shared link."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from fedstrata.errors import SupersededError, UnknownChildError
from fedstrata.experiment.links import LinkTimes
from fedstrata.experiment.rates import Trace
from fedstrata.experiment_file import parse_experiment
from fedstrata.links.shared_link import Flow, fair_ends
from fedstrata.links.tier_links import DOWN, HEADER_BYTES, UP, Link, device_links, lps_links
from fedstrata.links.transfers import LEAD_STEP_NS, MOST_LEAD_NS, Lead, Transfers
from fedstrata.tensors import CHUNK_BYTES
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.set_time import MS, TEXT, S, SetTime, arrivals, carry, paced, transfers


async def test_ten_kilobytes_at_a_megabit_take_eighty_milliseconds_and_latency_is_no_pause() -> None:
    clock = SetTime()
    held = transfers(clock, "device-lps: {up_rate: 1Mbit/s, latency: 30ms}")
    [times] = await arrivals(clock, carry(held, clock, 0, 10_000, at=(20_000, 40_000)))
    assert times == [50 * MS, 70 * MS, 110 * MS]


SCHEDULE = "{at: 1s, set: {devices: 0, up_rate: 500kbit/s, latency: 30ms}}, {at: 1500ms, cut: {devices: 0, for: 2s}}"


def scheduled(clock: SetTime, schedule: str = SCHEDULE) -> Transfers:
    links = "links={device-lps: {up_rate: 1Mbit/s}}"
    return Transfers(device_links(parse_experiment(TEXT, overrides=[links, f"schedule=[{schedule}]"])), clock)


async def test_a_transfer_goes_on_at_the_rate_of_its_time_and_over_a_cut() -> None:
    clock = SetTime()
    held = scheduled(clock)
    # 1 Mbit until one second, 250 kbit until the cut, the last 750 kbit after it
    [times, other] = await arrivals(
        clock, carry(held, clock, 0, 250_000, at=(10**6, 1_125_000)), carry(held, clock, 1, 125_000)
    )
    assert times == [S, 1_250 * MS, 5 * S]
    assert other == [S]
    [achieved] = [each for each in held.take(0) if each.child == 0]
    assert (achieved.link_ns, achieved.achieved_link_ns) == (5 * S, 5 * S)


async def test_latency_is_that_of_when_a_transfer_begins() -> None:
    clock = SetTime()
    [times] = await arrivals(clock, carry(scheduled(clock), clock, 0, 0, start=2 * S))
    assert times == [2 * S + 30 * MS]


async def test_how_much_has_come_is_seen_in_the_time_of_the_run() -> None:
    clock, seen = SetTime(), list[int]()
    held = scheduled(clock)
    clock.now = 10 * S
    held.began(S)

    async def look() -> None:
        with held.under_way("device-000", UP, 0, 125_000) as transfer:
            for after in (MS, 500 * MS, 2 * S, 3 * S):
                await clock.until(10 * S + after)
                seen.append(transfer.come())

    await clock.run(asyncio.ensure_future(look()))
    assert seen == [0, 235_000, 250_000, 485_000]  # the first bits are 30 ms old; nothing comes over the cut


def test_calls_are_given_the_time_of_the_slowest_part_and_of_the_cuts() -> None:
    links = scheduled(SetTime()).links
    bits = 8 * (1_000_000 + HEADER_BYTES)
    assert links.slowest_s(0, 1_000_000, 1) >= bits / 500_000 + 2 + 2 * 0.03
    assert links.slowest_s(1, 1_000_000, 1) == pytest.approx(bits / 1_000_000)


async def test_rates_follow_a_trace_again_and_again() -> None:
    clock, changing = SetTime(), Trace((0, S), (10**6, 0), 2 * S)  # a megabit, nothing, a megabit, …
    bus = Link(((0, LinkTimes(up_trace=changing)),))
    held = Transfers(replace(device_links(paced("device-lps: {up_rate: 1Mbit/s}")), link_of=lambda index: bus), clock)
    [times] = await arrivals(clock, carry(held, clock, 0, 187_500, at=(10**6,)))
    assert times == [S, 2 * S + 500 * MS]


async def test_each_device_has_a_link_of_its_own() -> None:
    clock = SetTime()
    held = transfers(clock, "device-lps: {up_rate: 1Mbit/s}", "overrides: [{devices: [3], up_rate: 2Mbit/s}]")
    found = await arrivals(clock, *(carry(held, clock, child, 10_000) for child in (0, 3, 4)))
    assert found == [[80 * MS], [40 * MS], [80 * MS]]


async def test_a_shared_link_is_divided_as_the_virtual_clock_divides_it() -> None:
    clock = SetTime()
    held = transfers(
        clock,
        "device-lps: {up_rate: 1Mbit/s, latency: 5ms}",
        "overrides: [{devices: [0], up_rate: 100kbit/s}]",
        "shared: {device-lps: {up_rate: 900kbit/s}}",
    )
    sizes, starts = (3_000, 50_000, 20_000, 70_000), (0, 0, 90 * MS, 200 * MS)
    work = (carry(held, clock, n, size, start=at) for n, (size, at) in enumerate(zip(sizes, starts, strict=True)))
    found = await arrivals(clock, *work)
    flows = [
        Flow(start_ns=at, bits=8 * size, rate=100_000 if not n else 10**6)
        for n, (size, at) in enumerate(zip(sizes, starts, strict=True))
    ]
    assert found == [[end + 5 * MS] for end in fair_ends(flows, 900_000)]


async def test_flows_that_begin_together_on_a_shared_link_do_not_come_in_bursts() -> None:
    clock = SetTime()
    held = transfers(clock, "shared: {device-lps: {up_rate: 8Mbit/s}}")
    step = 8 * held.piece_bytes("device-000", UP)
    pieces = range(step, 40 * step, step)
    found = await arrivals(clock, *(carry(held, clock, n, 5 * step, at=pieces) for n in range(8)))
    times = Counter(time for one in found for time in one[:-1])
    assert max(times.values()) == 1


async def test_one_that_is_cut_off_leaves_the_shared_link_to_the_others() -> None:
    clock = SetTime()
    held = transfers(clock, "shared: {device-lps: {up_rate: 1Mbit/s}}")
    cut = asyncio.ensure_future(carry(held, clock, 1, 1_000_000))

    async def cut_off() -> None:
        await clock.until(80 * MS)
        cut.cancel()

    [times], _ = await arrivals(clock, carry(held, clock, 0, 10_000), cut_off())
    assert times == 120 * MS  # 40 ms' worth in the first 80, and the rest alone


@pytest.mark.parametrize("links", ["device-lps: {up_rate: 1Mbit/s}", "shared: {device-lps: {up_rate: 1Mbit/s}}"])
async def test_a_child_that_begins_anew_has_one_transfer_on_its_link(links: str) -> None:
    clock = SetTime()
    held = transfers(clock, links)

    async def given_up() -> None:
        with pytest.raises(SupersededError, match="another transfer has begun"):
            await carry(held, clock, 0, 100_000)

    [_, times] = await arrivals(clock, given_up(), carry(held, clock, 0, 10_000, start=40 * MS))
    assert times == [120 * MS]
    assert [each.bytes for each in held.take(0)] == [10_000]


async def test_what_was_configured_and_achieved_is_noted_by_round() -> None:
    clock = SetTime()
    held = transfers(clock, "device-lps: {up_rate: 1Mbit/s, latency: 30ms}")

    async def late() -> None:
        with held.under_way("device-002", UP, 4, 10_000) as transfer:
            await transfer.all_arrived()
            await clock.until(clock.now + 8 * MS)
            await transfer.over()

    await clock.run(late())
    assert held.take(3) == []
    assert held.take(4) == [
        pb.Carried(
            link="device-lps", direction="up", child=2, bytes=10_000, link_ns=80 * MS, achieved_link_ns=88 * MS,
            latency_ns=30 * MS, achieved_latency_ns=38 * MS,
        )
    ]  # fmt: skip
    assert held.take(4) == []


async def test_jitter_is_the_virtual_clocks() -> None:
    clock = SetTime()
    held = transfers(clock, "device-lps: {latency: 30ms, jitter: 20ms}")
    found = await arrivals(clock, *(carry(held, clock, child, 9, way=DOWN) for child in range(3)))
    assert len({each for [each] in found}) == 3
    assert all(10 * MS <= each <= 50 * MS for [each] in found)


async def test_messages_that_follow_each_other_pay_one_latency() -> None:
    clock = SetTime()
    relay = transfers(clock, "device-lps: {down_rate: 1Mbit/s, latency: 30ms}").relay("device-001", 0)
    times = []

    async def hear() -> None:
        for _ in range(2):
            await relay.carry(0, 10_000)
            times.append(clock.now)

    await clock.run(hear())
    assert times == [110 * MS, 190 * MS]


def test_pieces_are_ten_milliseconds_of_ones_own_link_or_a_quarter_of_a_shared_ones_and_whole_elements() -> None:
    links = device_links(
        paced(
            "device-lps: {up_rate: 26kbit/s, down_rate: 50Mbit/s}",
            "overrides: [{devices: [1], up_rate: 7Mbit/s}, {devices: [2], up_rate: 100Gbit/s}]",
            "shared: {device-lps: {down_rate: 10Mbit/s}}",
        )
    )
    assert [links.piece_bytes(index, UP) for index in (0, 1, 2)] == [1024, 8_744, CHUNK_BYTES]
    assert links.piece_bytes(0, DOWN) == 3_120
    assert lps_links(paced()).piece_bytes(0, UP) == CHUNK_BYTES


def test_calls_are_given_the_time_that_links_take() -> None:
    links = device_links(
        paced("device-lps: {up_rate: 80kbit/s, latency: 1s}", "shared: {device-lps: {down_rate: 100kbit/s}}")
    )
    # 1,000,000 bytes and headers: 100.4 s up, and as one of ten 803.3 s down; twice a second of latency
    assert round(links.slowest_s(0, 1_000_000, 10), 1) == 905.7


def test_nobody_unknown_has_a_link() -> None:
    held = transfers(SetTime())
    with pytest.raises(UnknownChildError, match="has no child"):
        held.piece_bytes("device-9999", UP)
    for name in ("lps-", "lps--1", "x", "lps-1 "):
        with pytest.raises(UnknownChildError):
            Transfers(lps_links(paced()), SetTime()).piece_bytes(name, UP)


async def test_what_is_sent_leaves_as_much_before_its_time_as_sending_takes() -> None:
    clock = SetTime()
    held = transfers(clock, "device-lps: {down_rate: 1Mbit/s, up_rate: 1Mbit/s, latency: 30ms}")

    async def send() -> list[int]:
        late = []
        for number in range(20):
            began = clock.now
            with held.under_way("device-000", DOWN, number, 10_000) as transfer:
                await transfer.all_arrived()
                clock.now += 300_000  # what writing it takes here
                await transfer.over()
            late.append(clock.now - began - 110 * MS)
        return late

    job = asyncio.ensure_future(send())
    await clock.run(job)
    late = job.result()
    assert late[0] == 300_000
    assert max(map(abs, late[-5:])) <= LEAD_STEP_NS
    [times] = await arrivals(clock, carry(held, clock, 0, 10_000, at=(40_000,), start=clock.now))
    assert times[1] - times[0] == 40 * MS  # what is received is there at its own time


def test_one_message_that_took_long_moves_the_lead_by_a_step() -> None:
    lead = Lead()
    lead.note(50 * MS)
    assert lead.ns == LEAD_STEP_NS
    for _ in range(100):
        lead.note(50 * MS)
    assert lead.ns == MOST_LEAD_NS
    for _ in range(100):
        lead.note(0)
    assert lead.ns == 0
