"""Who misses a deadline over a link up that all share: with numbers that a reader can redo, and against fractions."""

import math
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.timeline import DeviceTimeline, Part, Round
from fedstrata.experiment.rates import AnyRate, RateSchedule
from fedstrata.links.shared_link import Flow, carried_by, fair_ends
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.link_accounts import fluid
from tests.support.shared_deadline import NAMES, S, shared_experiment

# The third trains for half a second longer than the two others, and its update is twice as large.
SENT = {
    name: Exchanged(down_bytes=0, up_bytes=size, work=pb.Work(examples=examples))
    for name, size, examples in zip(NAMES, (1_000, 1_000, 2_000), (0, 0, 50), strict=True)
}


def shared_round(*overrides: str, there: Mapping[str, int] | None = None) -> Round:
    """Return a round that begins at zero, in which all have the model then, or listen from a time on."""
    opened = DeviceTimeline(shared_experiment(*overrides)).round(0, 0, there)
    opened.send_models(dict.fromkeys(NAMES, Exchanged()))
    return opened


def late_by(ends_ns: int, sent: Mapping[str, Exchanged] = SENT, *overrides: str) -> dict[str, Part]:
    return {part.name: part for part in shared_round(*overrides).late_updates(sent, ends_ns, dropped={})}


def test_a_late_ones_share_of_the_link_is_its_own_until_the_deadline() -> None:
    # Two at 12 kbit/s send 6,000 bits of 8,000 by 0.5 s. Then three share: at 8 kbit/s they are over at 0.75 s, and the
    # third has sent 2,000 bits. Alone the two would have been over at 0.667 s.
    assert set(late_by(S * 3 // 4)) == {"device-002"}
    assert set(late_by(S * 3 // 4 - 1)) == set(NAMES)
    assert late_by(S * 7 // 10, {name: SENT[name] for name in NAMES[:2]}) == {}
    # then the third alone at 24 kbit/s, 14,000 bits: at 1.333 s
    assert late_by(1_333_333_334) == {}
    assert set(late_by(1_333_333_333)) == {"device-002"}


def test_what_is_on_its_way_is_broken_off_and_its_sender_is_free() -> None:
    missed = late_by(S)["device-002"]
    # half a second of computing, then 2,000 bits in 0.25 s and 6,000 in 0.25 s: 1,000 of 2,000 bytes
    assert missed.ended_ns == S
    assert missed.flow == pb.Flow(
        child=2, up_bytes=2_000, examples=50, compute_ns=S // 2, up_ns=S // 2, unsent_bytes=1_000
    )


def test_a_part_of_a_byte_that_has_left_is_none() -> None:
    # three at 8 kbit/s since 0.5 s: in 1.7 ms 13.6 bits each
    flow = late_by(S // 2 + 1_700_000)["device-002"].flow
    assert flow.unsent_bytes == 2_000 - 1


def test_who_is_still_computing_is_busy_until_it_has_computed_and_sends_nothing() -> None:
    missed = late_by(S // 4)
    assert missed["device-002"].ended_ns == S // 2
    assert missed["device-002"].flow == pb.Flow(
        child=2, up_bytes=2_000, examples=50, compute_ns=S // 2, unsent_bytes=2_000
    )
    assert missed["device-000"].ended_ns == S // 4


def test_who_is_still_receiving_is_busy_until_it_has_received_and_computed() -> None:
    (missed,) = shared_round(there={"device-002": 2 * S}).late_updates(SENT, S, dropped={})
    assert (missed.name, missed.ended_ns) == ("device-002", 2 * S + S // 2)
    assert (missed.flow.down_ns, missed.flow.up_ns) == (2 * S, 0)


def test_a_latency_after_the_last_bit_counts_and_the_link_is_free_meanwhile() -> None:
    links = "links={device-lps: {latency: 100ms}, shared: {device-lps: {up_rate: 24kbit/s}}}"
    assert set(late_by(S * 17 // 20, SENT, links)) == {"device-002"}
    missed = late_by(S * 8 // 10, SENT, links)
    assert set(missed) == set(NAMES)
    # all bytes have left by then, and it is free although they are not there yet
    assert (missed["device-000"].flow.unsent_bytes, missed["device-000"].ended_ns) == (0, S * 8 // 10)


def test_a_link_that_slows_down_under_way_makes_late() -> None:
    slower = "schedule=[{at: 500ms, set: {link: shared, up_rate: 12kbit/s}}]"
    assert set(late_by(S, SENT)) == {"device-002"}
    assert set(late_by(S, SENT, slower)) == {"device-002"}  # the two need 2,000 bits at 4 kbit/s: 1 s
    assert set(late_by(S - 1, SENT, slower)) == set(NAMES)
    cut = "schedule=[{at: 700ms, cut: {link: shared, for: 10s}}]"
    assert set(late_by(S, SENT, cut)) == set(NAMES)
    assert late_by(S, SENT, cut)["device-000"].flow.unsent_bytes == 50  # as it was cut


def test_answers_share_the_link_until_their_deadline() -> None:
    asked = {name: Exchanged(down_bytes=0, up_bytes=0, work=each.work) for name, each in SENT.items()}
    for name, size in zip(NAMES, (1_000, 1_000, 2_000), strict=True):
        asked[name].work.answer_bytes, asked[name].work.answer_examples = size, asked[name].work.examples
    late = {part.name: part for part in shared_round().late_answers(asked, S)}
    assert set(late) == {"device-002"}
    assert late["device-002"].ended_ns == S
    flow = late["device-002"].flow
    assert (flow.answer_bytes, flow.up_bytes, flow.unsent_bytes, flow.up_ns) == (2_000, 0, 1_000, S // 2)


def test_a_round_row_has_the_others_as_the_late_one_let_them_through() -> None:
    taken = {name: SENT[name] for name in NAMES[:2]}
    times = shared_round().times(taken, ends_ns=S, dropped={NAMES[2]: SENT[NAMES[2]]})
    assert [flow.up_ns for flow in times.flows] == [S * 3 // 4, S * 3 // 4]
    assert (times.ends_ns, times.children, times.waiting_ns) == (S, 2, S // 2)
    alone = shared_round().times(taken, ends_ns=S)
    assert [flow.up_ns for flow in alone.flows] == [666_666_667, 666_666_667]


# --- against exact fractions ----------------------------------------------------------------------------------


RATES = st.integers(1_000, 50_000)
SCHEDULES = st.builds(
    lambda second, rates: RateSchedule((0, second), rates),
    st.integers(1, 3 * S),
    st.tuples(st.sampled_from([0, 9_000]), RATES),
)
FLOWS = st.lists(
    st.builds(
        lambda start, size, rate: Flow(start_ns=start, bits=8 * size, rate=rate),
        st.integers(0, 2 * S), st.integers(1, 3_000), st.one_of(st.none(), RATES, SCHEDULES),
    ),
    min_size=1,
    max_size=6,
)  # fmt: skip


@given(flows=FLOWS, capacity=st.one_of(RATES, SCHEDULES), until_ns=st.integers(0, 4 * S))
def test_what_a_link_has_carried_by_a_time_is_what_exact_fractions_say(
    flows: list[Flow], capacity: AnyRate, until_ns: int
) -> None:
    found = carried_by(flows, capacity, until_ns)
    for (end_ns, bits), (exact_ns, exact_bits) in zip(found, fluid(flows, capacity, until_ns), strict=True):
        assert bits == math.floor(exact_bits)
        assert end_ns == (None if exact_ns is None else math.ceil(exact_ns))
    # and what is over by then is over when it would be, did nobody stop
    ends = fair_ends(flows, capacity)
    assert [end for end, _ in found] == [end if end <= until_ns else None for end in ends]
