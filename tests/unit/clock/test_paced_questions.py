"""Questions in rounds on the real clock, by a clock that the test sets: the times are those of the virtual one."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstrata.clock import device_side, lps_side
from fedstrata.clock.clocks import clock_of
from fedstrata.clock.device_side import Done
from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.gps_side import RealGpsClock
from fedstrata.clock.timeline import DeviceTimeline, LpsTimeline
from fedstrata.errors import PayloadError
from fedstrata.experiment import Experiment, TierDeadline
from fedstrata.experiment_file import parse_experiment
from fedstrata.links.tier_links import device_links
from fedstrata.links.transfers import Transfers
from fedstrata.methods import Moment, Plan, Question
from fedstrata.process.waiting import Changes
from fedstrata.rounds import Intake, Offer, OpenRound, RoundServer
from fedstrata.rpc.answer_messages import answer_to_proto
from fedstrata.store import ModelInMemory
from fedstrata.tensors import Layout
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1.gps_service_pb2 import Cluster
from gps.journal.answers import BEFORE
from tests.support.gatherings import one_stream
from tests.support.gps_bundles import bundles_of
from tests.support.gps_parts import GpsParts
from tests.support.rounds_setting import RUN_ID, asking, asking_of, held_back_parent
from tests.support.set_time import MS, TEXT, S, SetTime

QUESTION = Question(name="sketch", moment=Moment.RECEIVED, arrays={"sketch": ("float64", (1_000,))}, fewer_rows=True)
IDS = [f"device-00{index}" for index in range(3)]
LINKS = (
    "links={device-lps: {up_rate: 80kbit/s, latency: 1s, jitter: 500ms}, overrides: [{devices: [1], up_rate: 8kbit/s}],"
    " lps-gps: {up_rate: 8kbit/s, latency: 1s, jitter: 300ms}, shared: {device-lps: {up_rate: 60kbit/s}}}"
)
LAYOUT = Layout.of({"w": (3,)})


def real(*changes: str) -> Experiment:
    return parse_experiment(TEXT, overrides=[LINKS, *changes])


def asked(clock: SetTime, number: int = 2) -> RoundServer:
    """A parent with a round open in which three devices are asked."""
    server = held_back_parent(Transfers(device_links(real()), clock), LAYOUT)
    intake = Intake(children=IDS, wait=TierDeadline())
    model = ModelInMemory(LAYOUT, np.zeros(3, np.float32))
    stages = [asking(QUESTION)]
    server.open(OpenRound(offers={0: Offer(model)}, number=number, global_round=number, intake=intake, stages=stages))
    return server


def sketch(length: int, value: float = 0.5) -> answers_pb2.Answer:
    return answer_to_proto(QUESTION, {"sketch": np.full(length, value)})


async def send(server: RoundServer, clock: SetTime, child: int, answer: answers_pb2.Answer, start: int = 0) -> int:
    """When the answer of a device is there."""
    await clock.until(start)
    await server.hear(pb.RoundAnswer(run_id=RUN_ID, child_id=IDS[child], round=2, answer=answer))
    return clock.now


async def told(server: RoundServer, clock: SetTime, child: int, start: int = 0) -> int:
    """When a device that has answered hears that the round goes on."""
    await clock.until(start)
    request = pb.FetchModelRequest(run_id=RUN_ID, child_id=IDS[child], sent_round=-1, resume_round=-1, answered_round=2)
    async for part in server.fetch(request):
        assert isinstance(part, pb.ModelPart)
        assert part.HasField("go_on")
    return clock.now


async def together(clock: SetTime, *work: Any) -> list[int]:
    jobs = [asyncio.ensure_future(each) for each in work]
    await clock.run(*jobs)
    return [job.result() for job in jobs]


async def test_answers_share_links_as_updates_do_and_a_latency_later_devices_go_on() -> None:
    clock = SetTime()
    server = asked(clock)
    answers = [sketch(1_000), sketch(300), sketch(900)]
    there = await together(clock, *(send(server, clock, child, answer) for child, answer in enumerate(answers)))
    timed, offered = DeviceTimeline(real()).round(2, 0), {}
    for name, answer in zip(IDS, answers, strict=True):
        work = pb.Work(answer_bytes=answer.ByteSize())
        offered[name] = Exchanged(down_bytes=0, up_bytes=0, work=work)
    assert abs(max(there) - timed.answered_ns(offered)) <= 100  # of rounding
    assert set(await asking_of(server).gathered()) == set(IDS)

    went_on = clock.now
    server.go_on(dict.fromkeys(IDS, 0), one_stream(LAYOUT.size, dict.fromkeys(IDS, 1)))
    heard = await together(clock, *(told(server, clock, child) for child in range(3)))
    timed.go_on(went_on)
    times = timed.times(offered)
    assert [at - went_on for at in heard] == [flow.down_ns for flow in times.flows]
    assert len(set(heard)) == 3  # each by its own draw
    # and whoever asks later, as after it was killed, waits for nothing
    assert await together(clock, told(server, clock, 0, start=went_on + 9 * S)) == [went_on + 9 * S]

    carried = server.terms.clock.take(2)
    assert [(each.child, each.direction, each.bytes, each.is_answer) for each in carried] == [
        line
        for child, answer in enumerate(answers)
        for line in ((child, "down", 0, True), (child, "up", answer.ByteSize(), True))
    ]
    assert [each.achieved_latency_ns for each in carried if each.direction == "down"] == [at - went_on for at in heard]


async def test_an_answer_and_the_update_after_it_are_two_transfers_of_a_round() -> None:
    clock = SetTime()
    held = Transfers(device_links(real("links={device-lps: {up_rate: 80kbit/s}}")), clock)

    async def both() -> None:
        for size, is_answer in ((100, True), (1_000, False)):
            with held.under_way(IDS[0], 1, 2, size, is_answer=is_answer) as transfer:
                await transfer.all_arrived()
                await transfer.over()

    await clock.run(both())
    assert [(each.bytes, each.link_ns, each.is_answer) for each in held.take(2)] == [
        (1_000, 100 * MS, False),
        (100, 10 * MS, True),
    ]


async def test_an_answer_that_is_sent_again_is_a_new_transfer_and_one_too_late_none() -> None:
    clock = SetTime()
    server = asked(clock)
    [first] = await together(clock, send(server, clock, 1, sketch(1_000)))
    [again] = await together(clock, send(server, clock, 1, sketch(1_000, 0.25), start=first))
    assert again == 2 * first
    asking = asking_of(server)
    assert asking.answers[IDS[1]] == sketch(1_000)  # the first counts
    server.go_on({}, one_stream(LAYOUT.size, {}))
    assert await together(clock, send(server, clock, 2, sketch(1_000), start=again)) == [again]
    assert set(asking.answers) == {IDS[1]}


async def test_a_round_that_goes_on_meanwhile_takes_no_answer_that_is_on_its_way() -> None:
    clock = SetTime()
    server = asked(clock)
    sending = asyncio.ensure_future(send(server, clock, 1, sketch(1_000)))

    async def decide() -> None:
        await clock.until(S)
        server.go_on({}, one_stream(LAYOUT.size, {}))

    await clock.run(sending, decide())
    asking = asking_of(server)
    assert not asking.answers


async def test_what_is_no_answer_is_refused_before_it_takes_time() -> None:
    clock = SetTime()
    server = asked(clock)
    with pytest.raises(PayloadError, match="expected float64 and at most"):
        await server.hear(pb.RoundAnswer(run_id=RUN_ID, child_id=IDS[1], round=2, answer=sketch(1_001)))
    assert (clock.now, IDS[1] in server.refused) == (0, True)


# --- between an LPS and the GPS ----------------------------------------------------------------------------


async def test_the_answers_of_an_lps_take_their_way_to_the_gps_before_they_are_taken(tmp_path: Path) -> None:
    changes = ("method={name: ifca, clusters: 2}", "topology={lps: 2, devices: [[0, 1], [2, 3, 4]]}")
    gps = GpsParts(tmp_path, *changes, "clock=real", LINKS)
    gps.enrol(*range(5))
    gps.places.make(BEFORE, Plan(clusters=((0, 2, 4), (1, 3)), rule="2 as given"))
    clock = SetTime()
    asking = bundles_of(gps, Changes(), set, RealGpsClock(gps.experiment, gps.journal.clock, clock))
    assert asking.question is not None
    answers = {index: answer_to_proto(asking.question, {"losses": np.float64((1, 2))}) for index in (2, 3, 4)}
    header = answers_pb2.BundleHeader(home_id="lps-1", global_round=0, answers=3)
    size = sum(answer.ByteSize() for answer in answers.values())
    there_ns, kept = LpsTimeline(gps.experiment).bundled_ns("lps-1", 0, 0, size), list[set[str]]()

    async def look() -> None:
        for at_ns in (there_ns - 1, there_ns + 1):
            await clock.until(at_ns)
            kept.append(gps.journal.answers.bundled(0))

    await clock.run(asking.take(header, answers), look())
    assert kept == [set(), {"lps-1"}]  # nothing is kept before it is there
    header.home_id = "lps-0"
    with pytest.raises(Exception, match="sends answers of 3 devices that are not its own"):
        await asking.take(header, answers)


@pytest.mark.parametrize("clock", ["real", "virtual", "none"])
async def test_an_lps_has_heard_of_a_plan_a_latency_after_it_was_told(
    clock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []

    async def until(at_ns: int) -> None:
        waited.append(at_ns)

    monkeypatch.setattr(lps_side, "until_ns", until)
    monkeypatch.setattr(lps_side.time, "monotonic_ns", lambda: 7 * S)
    experiment = real(f"clock={clock}")
    await clock_of(experiment).lps(Cluster(home_id="lps-1")).plan_came(3)
    expected = 7 * S + LpsTimeline(experiment).told_ns("lps-1", 3, 0)
    assert waited == ([expected] if clock == "real" else [])


# --- at a device -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "examples", "first_ms"), [("ifca", 5, 50), ("cfl", 20, 1_200)])
async def test_a_device_computes_for_its_answer_as_long_as_its_board_would(
    method: str, examples: int, first_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []

    async def until(at_ns: int) -> None:
        waited.append(at_ns)

    monkeypatch.setattr(device_side, "until_ns", until)
    monkeypatch.setattr(device_side.time, "monotonic_ns", lambda: 9 * S)
    # before an answer that is trained for, the device does all that it does in a round
    changes = (f"method={method}", "training.lps_rounds_per_global_round=1")
    clock = clock_of(real(*changes, "compute={per_example: 10ms, minimum: 1s}")).device()
    done = Done(began_ns=8 * S, device_index=0, lps_round=2, examples=examples)
    assert await clock.answered(answers_pb2.Answer(), done) == S
    assert waited == [8 * S + first_ms * MS]
