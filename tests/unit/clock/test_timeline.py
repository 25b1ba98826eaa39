"""The virtual clock at a parent: rounds whose times a reader can work out by hand, and what holds of all of them."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.clock.device_times import Boards
from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.round_side import CountingChild
from fedstrata.clock.timeline import Asked, DeviceTimeline, LpsTimeline, before_training
from fedstrata.errors import RunStoppedError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.links.shared_link import Flow
from fedstrata.rpc.payload import payload_header
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.link_accounts import fluid_ends

MS, S = 10**6, 10**9
TIMED = "name: timed\npartition: {kind: iid, devices: 20, examples_per_device: 10}\nclock: virtual\n"
SLOW_LINK = "links.device-lps={down_rate: 8kbit/s, up_rate: 4kbit/s, latency: 100ms}"


@cache
def timed(*overrides: str, seed: int = 0) -> Experiment:
    return parse_experiment(TIMED, overrides=overrides, seed=seed)


def sent(down: int = 1_000, up: int = 1_000, examples: int = 10, busy_ns: int = 0) -> Exchanged:
    return Exchanged(down_bytes=down, up_bytes=up, work=pb.Work(examples=examples, busy_ns=busy_ns))


def lps_round(
    experiment: Experiment, exchanged: Mapping[str, Exchanged], number: int = 0, begins: int = 0
) -> pb.RoundTimes:
    return DeviceTimeline(experiment).round(number, begins).times(exchanged)


# --- by hand ------------------------------------------------------------------------------------------------


def test_a_round_is_its_slowest_device() -> None:
    experiment = timed(SLOW_LINK, "compute={per_example: 50ms, profiles: {old: 3}, devices: {old: [1]}}")
    times = lps_round(experiment, {"device-000": sent(), "device-001": sent()}, begins=7 * S)
    # down 1,000 bytes at 8 kbit/s and 100 ms; up at 4 kbit/s and 100 ms; 10 examples of 50 ms, of the second 150 ms
    assert times == pb.RoundTimes(
        begins_ns=7 * S, ends_ns=7 * S + 1_100 * MS + 1_500 * MS + 2_100 * MS, ready_ns=7 * S + 4_700 * MS,
        down_ns=2 * 1_100 * MS, compute_ns=2_000 * MS, up_ns=2 * 2_100 * MS, waiting_ns=1_000 * MS, children=2,
        slowest="device-001",
        flows=[
            pb.Flow(
                child=index, down_bytes=1_000, up_bytes=1_000, examples=10, down_ns=1_100 * MS,
                compute_ns=(500 + 1_000 * index) * MS, up_ns=2_100 * MS,
            )
            for index in (0, 1)
        ],
    )  # fmt: skip


def test_a_shared_link_is_divided() -> None:
    experiment = timed("links={device-lps: {up_rate: 80kbit/s}, shared: {device-lps: {up_rate: 80kbit/s}}}")
    exchanged = {"device-000": sent(up=1_000), "device-001": sent(up=3_000)}
    times = lps_round(experiment, exchanged)
    assert times.ends_ns == 400 * MS  # 32,000 bits at 80 kbit/s: the first has 40 until 200 ms, the second the rest
    assert (times.up_ns, times.waiting_ns, times.slowest) == (600 * MS, 200 * MS, "device-001")


@given(
    st.lists(
        st.tuples(st.integers(1, 3_000), st.integers(1, 3_000), st.integers(1_000, 90_000)), min_size=1, max_size=5
    ),
    st.integers(1_000, 90_000),
    st.integers(1_000, 90_000),
)
def test_rounds_over_shared_links_follow_each_other_as_exact_fractions_say(
    devices: list[tuple[int, int, int]], down_rate: int, up_rate: int
) -> None:
    own = [f"{{devices: [{n}], up_rate: {rate}bit/s, down_rate: {rate}bit/s}}" for n, (*_, rate) in enumerate(devices)]
    shared = f"{{device-lps: {{up_rate: {up_rate}bit/s, down_rate: {down_rate}bit/s}}}}"
    experiment = timed(f"links={{overrides: [{', '.join(own)}], shared: {shared}}}")
    exchanged = {f"device-{n:03d}": sent(down, up) for n, (down, up, _) in enumerate(devices)}
    begins = 0
    for number in range(4):
        models = [Flow(start_ns=begins, bits=8 * down, rate=rate) for down, _, rate in devices]
        there = [math.ceil(end) for end in fluid_ends(models, down_rate)]
        updates = [Flow(start_ns=at, bits=8 * up, rate=rate) for at, (_, up, rate) in zip(there, devices, strict=True)]
        back = [math.ceil(end) for end in fluid_ends(updates, up_rate)]
        begins = lps_round(experiment, exchanged, number, begins).ends_ns
        assert begins == max(back)


def test_a_broadcast_carries_each_model_once() -> None:
    shared = "links={shared: {device-lps: {down_rate: 24kbit/s, broadcast: BROADCAST}}}"
    streams = {"device-000": 0, "device-001": 1, "device-002": 1}
    exchanged = {name: replace(sent(down=3_000, up=0), stream=stream) for name, stream in streams.items()}
    one_each, once = (lps_round(timed(shared.replace("BROADCAST", said)), exchanged) for said in ("false", "true"))
    assert (one_each.ends_ns, once.ends_ns) == (3 * S, 2 * S)
    slow = "links.overrides=[{devices: [2], down_rate: 6kbit/s}]"  # 4 s on its own link
    assert lps_round(timed(shared.replace("BROADCAST", "true"), slow), exchanged).down_ns == (2 + 2 + 4) * S


def test_an_override_is_of_its_devices_alone() -> None:
    experiment = timed(SLOW_LINK, "links.overrides=[{devices: [1-2], up_rate: 8kbit/s}]")
    ends = [lps_round(experiment, {f"device-{n:03d}": sent()}).ends_ns for n in range(4)]
    assert ends == [3_200 * MS, 2_200 * MS, 2_200 * MS, 3_200 * MS]


def test_a_global_round_is_its_slowest_lps() -> None:
    experiment = timed("links.lps-gps={down_rate: 8kbit/s, up_rate: 4kbit/s, latency: 100ms}")
    timeline = LpsTimeline(experiment)
    assert timeline.arrival_ns("lps-1", 3, 5 * S, 1_000) == 5 * S + 1_100 * MS
    times = timeline.round(3, 5 * S).times({"lps-0": sent(busy_ns=S), "lps-1": sent(busy_ns=4 * S)})
    assert times.ends_ns == 5 * S + 1_100 * MS + 4 * S + 2_100 * MS
    assert (times.compute_ns, times.waiting_ns, times.slowest) == (5 * S, 3 * S, "lps-1")


@given(st.integers(0, 9), st.integers(0, 50), st.integers(0, 3 * S), st.integers(1, 10**5))
def test_an_lps_and_the_gps_agree_when_a_model_arrives(number: int, global_round: int, begins: int, size: int) -> None:
    timeline = LpsTimeline(timed("links.lps-gps={preset: lte, jitter: 20ms}", seed=3))
    times = timeline.round(global_round, begins).times({f"lps-{number}": sent(down=size)})
    assert times.begins_ns + times.down_ns == timeline.arrival_ns(f"lps-{number}", global_round, begins, size)


# --- asked in a round -----------------------------------------------------------------------------------------

ASKED = (SLOW_LINK, "links.overrides=[{devices: [1], up_rate: 8kbit/s}]", "compute={per_example: 50ms, minimum: 1s}")


def asked(examples: int, answer_examples: int = 0) -> Exchanged:
    """A model of 1,000 bytes down, an answer of 100, an update of 1,000."""
    work = pb.Work(examples=examples, answer_bytes=100, answer_examples=answer_examples)
    return Exchanged(down_bytes=1_000, up_bytes=1_000, work=work)


def test_a_device_answers_what_it_received_and_trains_once_the_plan_is_made() -> None:
    opened = DeviceTimeline(timed("method=ifca", *ASKED)).round(0, 7 * S)
    exchanged = dict.fromkeys(("device-000", "device-001"), asked(examples=10))
    # 1.1 s down; 800 bits at 4 kbit/s and 100 ms, of the second at 8
    assert opened.answered_ns(exchanged) == 7 * S + 1_100 * MS + 300 * MS
    opened.go_on(12 * S)
    times = opened.times(exchanged)
    # told after 100 ms, 10 examples of 50 ms and T_min, 2.1 s up, of the second 1.1 s
    assert (times.ends_ns, times.slowest) == (12 * S + 100 * MS + 1_500 * MS + 2_100 * MS, "device-000")
    assert [(flow.down_ns, flow.compute_ns, flow.up_ns) for flow in times.flows] == [
        (1_200 * MS, 1_500 * MS, 300 * MS + 2_100 * MS),
        (1_200 * MS, 1_500 * MS, 200 * MS + 1_100 * MS),
    ]
    assert [flow.answer_bytes for flow in times.flows] == [100, 100]
    parts = times.down_ns + times.compute_ns + times.up_ns + times.waiting_ns
    assert parts == (times.ends_ns - times.begins_ns) * times.children


def test_a_device_that_is_asked_what_it_has_trained_computes_before_it_answers() -> None:
    opened = DeviceTimeline(timed("method=cfl", "training.lps_rounds_per_global_round=1", *ASKED)).round(0, 0)
    exchanged = {"device-000": asked(examples=10, answer_examples=10)}
    assert opened.answered_ns(exchanged) == 1_100 * MS + 1_500 * MS + 300 * MS
    opened.go_on(5 * S)
    times = opened.times(exchanged)
    assert times.ends_ns == 5 * S + 100 * MS + 2_100 * MS


def test_what_is_trained_for_an_answer_comes_before_it_and_the_rest_after() -> None:
    opened = DeviceTimeline(timed("method=ifca", *ASKED)).round(0, 0)
    exchanged = {"device-000": asked(examples=10, answer_examples=4)}
    assert opened.answered_ns(exchanged) == 1_100 * MS + 200 * MS + 300 * MS
    opened.go_on(5 * S)
    times = opened.times(exchanged)
    assert times.ends_ns == 5 * S + 100 * MS + 1_300 * MS + 2_100 * MS
    assert times.compute_ns == 1_500 * MS


def test_answers_go_to_the_gps_in_one_bundle_and_the_plan_comes_back_a_latency_later() -> None:
    timeline = LpsTimeline(timed("links.lps-gps={down_rate: 8kbit/s, up_rate: 4kbit/s, latency: 100ms}"))
    assert timeline.bundled_ns("lps-1", 3, 2 * S, 1_000) == 2 * S + 2_100 * MS
    assert timeline.told_ns("lps-1", 3, 5 * S) == 5 * S + 100 * MS


# --- what always holds --------------------------------------------------------------------------------------

MIXED = (
    "links={device-lps: {preset: lte, jitter: 30ms}, overrides: [{devices: [3-5], preset: nb-iot}], "
    "shared: {device-lps: {up_rate: 3Mbit/s, down_rate: 5Mbit/s}}}",
    "compute={per_example: 2ms, devices: {pi4: [0-9]}, spread: {lognormal: 0.78}, minimum: 10ms, exponential: 300ms}",
)
ROUNDS = st.dictionaries(
    st.integers(0, 19).map(lambda n: f"device-{n:03d}"),
    st.builds(sent, st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 10**4)),
    min_size=1,
)


@given(ROUNDS, st.integers(0, 9), st.integers(0, 10**12))
def test_the_parts_of_all_devices_make_up_the_round(exchanged: dict[str, Exchanged], number: int, begins: int) -> None:
    times = lps_round(timed(*MIXED), exchanged, number, begins)
    parts = times.down_ns + times.compute_ns + times.up_ns + times.waiting_ns
    assert parts == (times.ends_ns - times.begins_ns) * times.children
    assert min(times.down_ns, times.compute_ns, times.up_ns, times.waiting_ns) >= 0


@given(ROUNDS, st.randoms(use_true_random=False))
def test_the_order_of_arrival_changes_nothing(exchanged: dict[str, Exchanged], rng: "object") -> None:
    names = list(exchanged)
    rng.shuffle(names)  # type: ignore[attr-defined]
    assert lps_round(timed(*MIXED), {name: exchanged[name] for name in names}) == lps_round(timed(*MIXED), exchanged)


def test_another_seed_draws_other_times() -> None:
    ends = {lps_round(timed(*MIXED, seed=seed), {"device-000": sent()}).ends_ns for seed in range(5)}
    assert len(ends) == 5


def test_a_device_has_one_factor_and_a_draw_for_every_round() -> None:
    timeline = Boards(timed("compute={per_example: 1ms, spread: {lognormal: 0.5}}"))
    factors = {timeline.compute_ns(index, 0, 1_000) for index in range(20)}
    assert len(factors) == 20
    assert timeline.compute_ns(7, 5, 1_000) == timeline.compute_ns(7, 0, 1_000) == 2 * timeline.compute_ns(7, 0, 500)
    drawn = Boards(timed("compute.exponential=1s"))
    assert len({drawn.compute_ns(0, number, 10) for number in range(20)}) == 20


def test_the_mean_round_of_the_exponential_model_is_that_of_the_slowest_of_m() -> None:
    devices, rounds = 20, 200
    experiment = timed("compute={minimum: 1s, exponential: 1s}")
    exchanged = {f"device-{n:03d}": sent() for n in range(devices)}
    mean_s = fmean(lps_round(experiment, exchanged, number).ends_ns / S for number in range(rounds))
    expected_s = 1 + math.fsum(1 / n for n in range(1, devices + 1))  # T_min + H_m / μ
    assert abs(mean_s / expected_s - 1) < 0.03


def test_a_timeline_that_int64_does_not_hold_ends_the_run() -> None:
    with pytest.raises(RunStoppedError, match="the virtual clock passes 73 years"):
        lps_round(timed("links.device-lps.up_rate=1bit/s"), {"device-000": sent(up=10**9)})


@pytest.mark.parametrize("work", [pb.Work(answer_bytes=2**52), pb.Work(examples=2**40 - 1, answer_examples=2**40 - 1)])
def test_so_does_what_is_said_of_an_answer_which_the_end_of_its_round_does_not_show(work: pb.Work) -> None:
    experiment = timed("method=ifca", "links.device-lps.up_rate=8kbit/s", "compute.per_example=1h")
    opened = DeviceTimeline(experiment).round(0, 0)
    opened.go_on(5 * S)
    exchanged = {"device-000": Exchanged(down_bytes=0, up_bytes=0, work=work)}
    with pytest.raises(RunStoppedError, match="the virtual clock passes 73 years"):
        opened.times(exchanged)


# --- before training ----------------------------------------------------------------------------------------


def test_a_question_that_is_relayed_is_heard_one_answer_after_the_other() -> None:
    experiment = timed(SLOW_LINK, "compute={per_example: 50ms}")
    sizes = {0: 1_000, 1: 1_000, 2: 500}
    first = Asked(answer_bytes=sizes, examples={0: 0, 1: 4, 2: 0}, relayed=(0, 1, 2))
    # at the GPS after 2.1, 0.2 + 2.1 and 1.1 s; the third hears the first from 2.1 s on, 1 s, and the second after it
    alone = before_training(experiment, [first])
    assert (alone.ends_ns, alone.slowest) == (4_100 * MS + 100 * MS, "device-002")
    second = Asked(answer_bytes=dict.fromkeys(sizes, 500), examples=dict.fromkeys(sizes, 0))
    both = before_training(experiment, [first, second])
    assert both.ends_ns == alone.ends_ns + 1_100 * MS
    assert (both.children, both.compute_ns) == (3, 200 * MS)
    assert both.up_ns == (2_100 + 2_100 + 1_100 + 3 * 1_100) * MS
    assert both.down_ns == ((1_000 + 500) + (1_000 + 500) + 2_000 + 3 * 100) * MS
    assert both.down_ns + both.compute_ns + both.up_ns + both.waiting_ns == 3 * both.ends_ns


def test_nothing_asked_takes_no_time() -> None:
    assert before_training(timed(SLOW_LINK), []) == pb.RoundTimes()


def test_more_examples_for_an_answer_than_the_clock_holds_end_the_run_with_a_line() -> None:
    question = Asked(answer_bytes={0: 100, 1: 100}, examples={0: 2**40 - 1, 1: 10})
    with pytest.raises(RunStoppedError, match="the virtual clock passes 73 years"):
        before_training(timed("compute.per_example=10ms"), [question])


# --- bytes --------------------------------------------------------------------------------------------------


def test_an_updates_bytes_do_not_depend_on_how_it_was_sent() -> None:
    from tests.support.rounds_setting import CODEC

    header = pb.UpdateHeader(
        run_id="run-1", child_id="device-000", round=4, train_loss=0.5, work=pb.Work(examples=70),
        payload=payload_header(CODEC, name="fed_avg", num_examples=9),
    )  # fmt: skip
    alone = Exchanged.of_update(header)
    assert alone.work.examples == 70
    assert alone.up_bytes > CODEC.payload_bytes
    header.offset = 8
    header.then_fetch.sent_round = 4
    header.link_bytes.add(link="device-lps", bytes=10**9)
    header.lps_rounds.add(seconds=0.123)
    header.exclusions.add(device_id="x")
    header.lps_id, header.term = "lps-0", 3
    assert Exchanged.of_update(header).up_bytes == alone.up_bytes


def test_a_model_has_the_same_size_however_many_newcomers_have_enrolled_and_wherever_a_download_begins() -> None:
    header = pb.ModelHeader(run_id="run", round=3, plan_version=1, cluster=2)
    header.payload.payload_bytes = 1000
    whole = Exchanged.of_model(header)
    assert (whole.down_bytes, whole.stream) == (header.ByteSize() + 1000, 2)
    header.plan_version, header.offset = 128, 500  # one byte more for the version, and three for the offset
    assert header.ByteSize() + 1000 == whole.down_bytes + 4
    assert Exchanged.of_model(header) == whole
    assert CountingChild().whole_bytes(header) == whole.down_bytes
