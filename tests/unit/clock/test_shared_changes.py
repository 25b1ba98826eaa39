"""A shared link whose rates change, on the real clock: its shares are the virtual one's. The test sets the clock."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.experiment.rates import RateSchedule, Trace
from fedstrata.experiment_file import parse_experiment
from fedstrata.links.shared_link import Flow, SharedFlow, SharedLink, fair_ends
from fedstrata.links.tier_links import DOWN, HEADER_BYTES, device_links
from fedstrata.links.transfers import Transfers
from tests.support.link_accounts import course_from
from tests.support.set_time import MS, TEXT, S, SetTime, arrivals, carry

STEPS = st.lists(st.tuples(st.integers(1, 300 * MS), st.integers(0, 10**6)), max_size=4)


def scheduled(clock: SetTime, links: str, *entries: str) -> Transfers:
    said = [f"links={{{links}}}", f"schedule=[{', '.join(entries)}]"]
    return Transfers(device_links(parse_experiment(TEXT, overrides=said)), clock)


async def test_what_is_under_way_has_other_shares_from_a_change_on() -> None:
    clock = SetTime()
    held = scheduled(
        clock,
        "shared: {device-lps: {up_rate: 1Mbit/s}}",
        "{at: 100ms, set: {devices: 0, up_rate: 100kbit/s}}",
        "{at: 200ms, set: {link: shared, up_rate: 500kbit/s}}",
        "{at: 300ms, cut: {link: shared, for: 1s}}",
    )
    # device 0 has 50 kbit after 100 ms, 60 after 200, 70 after 300; device 1 50, 140, 180, and the last 8 after the cut
    found = await arrivals(clock, carry(held, clock, 0, 8_750), carry(held, clock, 1, 23_500))
    assert found == [[300 * MS], [S + 300 * MS + 16 * MS]]


async def test_a_link_that_began_before_changes_when_its_run_says() -> None:
    clock = SetTime()
    clock.now = 7 * S
    held = scheduled(
        clock, "shared: {device-lps: {up_rate: 1Mbit/s}}", "{at: 3s, set: {link: shared, up_rate: 500kbit/s}}"
    )
    held.began(2 * S)
    [times] = await arrivals(clock, carry(held, clock, 0, 187_500, start=7 * S))
    assert times == [7 * S + 2 * S]  # a second at 1 Mbit/s, one at half of it


async def test_a_broadcast_goes_on_after_a_cut_of_its_link_or_of_a_receivers_own() -> None:
    clock = SetTime()
    held = scheduled(
        clock,
        "shared: {device-lps: {down_rate: 1Mbit/s, broadcast: true}}",
        "{at: 40ms, cut: {link: shared, for: 100ms}}",
        "{at: 100ms, cut: {devices: 1, for: 1s}}",
        "{at: 0s, set: {devices: 1, down_rate: 500kbit/s}}",
    )

    async def hear(child: int) -> list[int]:
        with held.under_way(f"device-00{child}", DOWN, 0, 10_000, model=0) as transfer:
            await transfer.all_arrived()
        return [clock.now]

    assert await arrivals(clock, hear(0), hear(1)) == [[180 * MS], [S + 160 * MS]]


def test_calls_are_given_the_time_of_the_slowest_rates_and_cuts_of_what_is_shared() -> None:
    links = scheduled(
        SetTime(),
        "shared: {device-lps: {up_rate: 1Mbit/s}}",
        "{at: 1s, set: {link: shared, up_rate: 100kbit/s}}",
        "{at: 5s, cut: {link: shared, for: 7s}}",
    ).links
    assert links.slowest_s(0, 100_000, 4) >= 4 * 8 * (100_000 + HEADER_BYTES) / 100_000 + 7


async def send(link: SharedLink, clock: SetTime, flow: Flow) -> int:
    """When all of a flow has passed, of which half is asked after, too."""
    await clock.until(flow.start_ns)
    flow_there = SharedFlow(sorted({flow.bits // 2, flow.bits} - {0}))
    number, _ = link.begin(flow_there, flow.rate)
    ends_ns = await flow_there.passed_ns(flow.bits, lambda: None)
    link.drop(number)
    return ends_ns


@given(
    st.lists(
        st.tuples(st.integers(0, 500 * MS), st.integers(1, 100_000), STEPS, st.integers(1_000, 10**6)),
        min_size=1,
        max_size=5,
    ),
    STEPS,
    st.integers(1_000, 2 * 10**6),
)
async def test_shares_are_those_of_the_virtual_clock(
    flows: list[tuple[int, int, list[tuple[int, int]], int]], steps: list[tuple[int, int]], last: int
) -> None:
    clock, capacity = SetTime(), course_from(steps, last)
    link, expected = SharedLink(capacity, clock), list[Flow]()

    jobs = []
    for start_ns, bits, own, then in flows:
        expected.append(Flow(start_ns=start_ns, bits=bits, rate=course_from(own, then)))
        jobs.append(asyncio.ensure_future(send(link, clock, expected[-1])))
    await clock.run(*jobs)
    for job, ends_ns in zip(jobs, fair_ends(expected, capacity), strict=True):
        assert job.result() == ends_ns


class Counted(RateSchedule):
    """A rate that counts how often it is asked for."""

    asked = 0

    def at(self, now_ns: int) -> tuple[int | None, int | None]:
        type(self).asked += 1
        return super().at(now_ns)


async def test_a_link_that_nothing_has_gone_over_for_long_does_not_go_through_all_its_changes_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Counted, "asked", 0)
    clock = SetTime()
    each_millisecond = Counted((0,), (Trace((0, MS), (10**6, 3 * 10**6), 2 * MS),))
    link = SharedLink(each_millisecond, clock)

    long = 100 * S
    flows = [Flow(start_ns=at_ns, bits=4_000, rate=None) for at_ns in (0, long + MS)]
    jobs = [asyncio.ensure_future(send(link, clock, flow)) for flow in flows]
    await clock.run(*jobs)
    assert [job.result() for job in jobs] == [2 * MS, long + 3 * MS]
    assert Counted.asked < 20


async def test_what_is_to_change_for_flows_that_are_gone_is_not_kept() -> None:
    clock = SetTime()
    link, slows_down = SharedLink(10**6, clock), RateSchedule((0, 10 * 3600 * S), (10**6, 10**5))
    for _ in range(100):
        number, _ = link.begin(SharedFlow([1_000]), slows_down)
        link.drop(number)
    assert len(link._link._changes) <= 1
