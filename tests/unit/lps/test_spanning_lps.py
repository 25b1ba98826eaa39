"""What an LPS holds where clusters span LPSs: its members and their routes, the vector of all streams, its reports."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import numpy as np
import pytest

from fedstrata.clock.device_times import Presence
from fedstrata.errors import NotReadyError, StateError
from fedstrata.experiment_file import parse_experiment
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import LinkKey, ProcessMetrics
from fedstrata.rounds import ReceivedModel, RoundResult
from fedstrata.rpc.payload import payload_header
from fedstrata.rules import Gathering, Route
from fedstrata.store import ModelFile, ModelInMemory, write_model
from fedstrata.store.model_view import ModelView
from fedstrata.streams.streams import UPDATE_PART
from fedstrata.tasks import CLASSIFICATION
from fedstrata.tensors import Flat, Layout, PayloadCodec
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1 import rounds_pb2
from lps.holding import Upward
from lps.members import Members
from lps.notes import Notes
from lps.question import LateAnswers
from lps.report_files import FINAL, RefusedDevices, RoundReports, report_if_whole, write_report
from lps.spanning.received_streams import ReceivedStreams, UpdateLayouts
from lps.spanning.stream_vector import StreamVector, changes, partial_sums
from lps.to_gps import NewestPlan
from tests.support.gatherings import planned
from tests.support.gps_parts import TEXT
from tests.support.two_layers import MODEL, STREAMS

ALL = np.float32([1, 2, 3, 10, 11, 20, 21])  # the shared layer, then two clusters' heads


def f32(*values: float) -> Flat:
    return np.array(values, np.float32)


# --- some stretches of a vector, as a model -------------------------------------------------------


def test_a_view_reads_the_stretches_of_its_source_one_after_the_other() -> None:
    view = ModelView(ModelInMemory(STREAMS.vector(2).tensors, ALL), STREAMS.vector(2).of_cluster(1), MODEL)
    assert view.read_all().tolist() == [1, 2, 3, 20, 21]
    for start in range(6):
        for stop in range(start, 6):
            assert view.read(start, stop).tolist() == [1, 2, 3, 20, 21][start:stop]


def test_a_view_has_the_digest_of_a_file_of_what_it_shows(tmp_path: Path) -> None:
    metadata = {"format": "fedstrata", "run_id": "run-1"}
    view = ModelView(ModelInMemory(STREAMS.vector(2).tensors, ALL, metadata), STREAMS.vector(2).of_cluster(0), MODEL)
    path = tmp_path / "cluster-0.safetensors"
    write_model(path, MODEL, view.pieces(), view.metadata)
    written = ModelFile(path, MODEL)
    written.verify()
    assert written.digest == view.digest
    assert written.scales() == view.scales()
    written.close()
    other = ModelView(ModelInMemory(STREAMS.vector(2).tensors, ALL, metadata), STREAMS.vector(2).of_cluster(1), MODEL)
    assert other.digest != view.digest


def test_an_empty_stretch_is_passed_over() -> None:
    source = ModelInMemory(Layout.of({"w": (4,)}), f32(0, 1, 2, 3))
    view = ModelView(source, [slice(0, 0), slice(3, 4), slice(2, 2), slice(0, 2)], Layout.of({"w": (3,)}))
    assert view.read_all().tolist() == [3, 0, 1]
    assert view.read(1, 1).tolist() == []


# --- the vector of all streams --------------------------------------------------------------------


def vector() -> StreamVector:
    return StreamVector(STREAMS, 2, ALL)


def test_each_cluster_is_offered_its_own_model() -> None:
    offers = vector().offers(of_all=False)
    assert {cluster: offer.model.read_all().tolist() for cluster, offer in offers.items()} == {
        0: [1, 2, 3, 10, 11],
        1: [1, 2, 3, 20, 21],
    }
    assert [(offer.cluster, offer.clusters) for offer in offers.values()] == [(0, 0), (1, 0)]


def test_who_fetches_all_is_offered_every_stream_and_told_which_cluster_it_is_in() -> None:
    offers = vector().offers(of_all=True)
    assert [(offer.cluster, offer.clusters) for offer in offers.values()] == [(0, 2), (1, 2)]
    assert all(offer.model.read_all().tolist() == ALL.tolist() for offer in offers.values())
    assert [name for name, _ in STREAMS.vector(2).parts] == ["shared", "0/head", "1/head"]


def test_who_is_offered_some_streams_gets_these_alone_and_is_told_which_they_are() -> None:
    flat = np.concatenate([ALL, f32(30, 31)])
    moved = StreamVector(STREAMS, 3, flat, [(0, 2), (1,), (0, 1, 2)]).moved(planned([3, 2, 2, 2], {}, {}))
    offers = moved.offers(of_all=True)  # of the next LPS round, too
    assert [offer.model.read_all().tolist() for offer in offers.values()] == [
        [1, 2, 3, 10, 11, 30, 31],
        [1, 2, 3, 20, 21],
        [1, 2, 3, 10, 11, 20, 21, 30, 31],
    ]
    for offer in offers.values():
        offer.announce(rounds_pb2.ModelHeader(), "float32")
    assert [list(offer.header.offered) for offer in offers.values()] == [[0, 2], [1], [0, 1, 2]]
    assert [part.name for part in offers[0].header.payload.parts] == ["shared", "0/head", "2/head"]
    assert len({offer.header.digest for offer in offers.values()}) == 3


def test_an_lps_that_is_back_asks_for_patience_until_it_knows_what_travels() -> None:
    layouts = UpdateLayouts("float32")
    with pytest.raises(NotReadyError, match="try again"):
        layouts.of(3)
    for number, withdrawn in enumerate([[], [], ["head"], ["head"]]):
        layouts.begin(number, STREAMS.without(withdrawn).travelling)
    sizes = [
        layouts.of(number).of(payload_header(PayloadCodec(layout, "float32"), name=UPDATE_PART))[0].payload_bytes
        for number, layout in enumerate([MODEL, MODEL, *[MODEL.select(["base"])] * 3])
    ]
    assert sizes == [20, 20, 12, 12, 12]


def sums_of(**updates: tuple[int, int, Flat]) -> Gathering:
    """The sums of devices, by name their cluster, examples and update."""
    routes = {name: STREAMS.vector(2).routes(cluster, examples, {}) for name, (cluster, examples, _) in updates.items()}
    sums = planned([3, 2, 2], routes, {name: examples for name, (_, examples, _) in updates.items()})
    for name, (_, examples, update) in updates.items():
        sums.take(name, 0, update, (examples,))
        sums.accept(name, (examples,))
    return sums


def test_a_vector_moves_by_the_mean_update_of_each_stream_and_one_without_stays() -> None:
    sums = sums_of(a=(0, 1, f32(4, 4, 4, 8, 8)), b=(0, 3, f32(0, 0, 0, 0, 4)))
    moved = vector().moved(sums)
    assert moved.flat.tolist() == [2, 3, 4, 12, 16, 20, 21]
    assert vector().flat.tolist() == ALL.tolist()


def weights_of(upward: Upward) -> list[tuple[str, int]]:
    assert upward.payload is not None
    return [(part.name, part.num_examples) for part in upward.payload.parts]


def test_partial_sums_go_up_as_they_stand_with_the_weight_of_each_stream() -> None:
    sums = sums_of(a=(0, 1, f32(4, 4, 4, 8, 8)), b=(0, 3, f32(0, 0, 0, 0, 4)))
    upward = partial_sums(STREAMS.vector(2), sums)
    assert (upward.codec.encoding, upward.codec.payload_bytes) == ("exact", 7 * 8)
    assert weights_of(upward) == [("shared", 4), ("0/head", 4), ("1/head", 0)]
    grid = 2**32
    expected = [4 * grid, 4 * grid, 4 * grid, 8 * grid, 20 * grid, 0, 0]
    assert upward.read(0, 7).tolist() == expected
    assert np.concatenate([upward.read(0, 2), upward.read(2, 4), upward.read(4, 7)]).tolist() == expected


def test_after_rounds_of_its_own_an_lps_sends_how_far_each_stream_has_moved() -> None:
    moved = vector().moved(sums_of(a=(1, 2, f32(127, 0, 0, 0, 254))))
    whole, scaled = (
        changes(moved, vector(), STREAMS.vector(2).parts, "float32"),
        changes(moved, vector(), STREAMS.vector(2).parts, "int8"),
    )
    assert whole.read(0, 7).tolist() == scaled.read(0, 7).tolist() == [127, 0, 0, 0, 0, 0, 254]
    assert (whole.codec.scales, scaled.codec.scales) == ((), (1.0, 0.0, 2.0))


def test_a_stream_that_moved_in_one_of_several_lps_rounds_counts_by_those_who_moved_it() -> None:
    first = sums_of(a=(0, 1, f32(4, 4, 4, 8, 8)), b=(0, 3, f32(0, 0, 0, 0, 4)))
    second = sums_of(c=(1, 2, f32(1, 0, 0, 5, 5)))  # nobody of cluster 0
    moved = vector().moved(first).moved(second)
    assert moved.flat.tolist() == [3, 3, 4, 12, 16, 25, 26]
    upward = changes(moved, vector(), STREAMS.vector(2).parts, "float32")
    assert upward.read(0, 7).tolist() == [2, 1, 1, 2, 5, 5, 5]
    assert weights_of(upward) == [("shared", 6), ("0/head", 4), ("1/head", 2)]


def test_a_stream_that_nobody_moved_in_any_lps_round_has_no_weight() -> None:
    nobody = sums_of()
    moved = vector().moved(nobody).moved(nobody)
    assert (moved.flat.tolist(), moved.weights) == (ALL.tolist(), [0, 0, 0])


# --- members --------------------------------------------------------------------------------------


def members_of(*members: pb.Member, participation: float | None = None, mixed: tuple[str, ...] = ()) -> Members:
    overrides = [] if participation is None else [f"training.participation={participation}"]
    experiment = parse_experiment(TEXT, overrides=overrides)
    return Members(
        experiment, pb.Cluster(home_id="lps-0", members=members, clusters=2, mixed=mixed), Presence(experiment)
    )


def member(index: int, **fields: int) -> pb.Member:
    return pb.Member(device_id=f"device-{index:03d}", device_index=index, **{"num_examples": 10, **fields})


def test_a_late_member_takes_part_from_its_first_global_round_on() -> None:
    members = members_of(member(0), member(1, num_examples=20, from_global_round=2))
    assert members.in_round(1, 1) == {"device-000": 10}
    assert members.in_round(2, 2) == {"device-000": 10, "device-001": 20}
    assert members.ids == {"device-000", "device-001"}


def test_of_many_members_those_take_part_that_are_drawn_and_all_measure() -> None:
    members = members_of(*(member(index) for index in range(5)), participation=0.4)
    drawn = [set(members.in_round(0, lps_round)) for lps_round in range(40)]
    assert {len(each) for each in drawn} == {2}
    assert set().union(*drawn) == members.ids
    assert members.in_round(0, 7) == members.in_round(0, 7)
    assert len(members.in_global_round(0)) == 5


def test_a_global_round_stands_for_the_examples_of_all_its_lps_rounds() -> None:
    members, told = members_of(member(0), member(1, num_examples=30)), pb.ReportHeader()
    for lps_round, examples in ((3, 99), (4, 10), (5, 30)):  # 3 is of the global round before
        told.lps_rounds.add(lps_round=lps_round, num_examples=examples)
    assert members.examples(told, 2, 2) == 40


def test_an_lps_round_of_which_no_row_is_here_stands_for_the_devices_that_were_asked() -> None:
    devices = [member(index, num_examples=10**index) for index in range(3)]
    members = members_of(*devices, member(3, num_examples=1000, from_global_round=3), participation=1)
    told = pb.ReportHeader()
    told.lps_rounds.add(lps_round=8, num_examples=7)
    (sixth,), (seventh,) = (members.in_round(2, number).values() for number in (6, 7))
    assert sixth != seventh
    assert members.examples(told, 2, 3) == sixth + seventh + 7


def test_updates_go_to_the_streams_of_the_members_cluster_by_its_examples() -> None:
    members = members_of(member(0, cluster=1, num_examples=7))
    assert members.clusters_of() == {"device-000": 1}
    assert members.index_of("device-000") == 0
    assert members.shares(STREAMS, members.in_round(0, 0)).routes["device-000"] == [
        Route(place=slice(0, 3), stream=0, offset=0, weight=7),
        Route(place=slice(3, 5), stream=2, offset=0, weight=7),
    ]


def test_updates_go_into_mixed_streams_by_the_members_shares() -> None:
    shares = [pb.Share(channel="head", stream=0, weight=3), pb.Share(channel="head", stream=1, weight=5)]
    one = member(0, cluster=1)
    one.shares.extend(shares)
    members = members_of(one, member(1), mixed=("head",))
    routes = members.shares(STREAMS, members.in_round(0, 0)).routes
    assert [(route.stream, route.weight) for route in routes["device-000"]] == [(0, 10), (1, 3), (2, 5)]
    assert [(route.stream, route.weight) for route in routes["device-001"]] == [(0, 10)]  # it has no share in any head


def test_a_new_list_of_devices_changes_the_streams_of_their_updates() -> None:
    members = members_of(member(0, cluster=1))
    asked = members.in_round(0, 0)
    before = members.shares(STREAMS, asked)
    assert members.shares(STREAMS, dict(asked)) is before  # calculated once for all rounds that ask these devices
    members.take(pb.Cluster(home_id="lps-0", members=[member(0, cluster=0)], clusters=2))
    now = members.shares(STREAMS, asked).routes["device-000"]
    assert ([route.stream for route in before.routes["device-000"]], [route.stream for route in now]) == (
        [0, 2],
        [0, 1],
    )


def test_a_round_of_other_devices_or_other_examples_has_other_shares() -> None:
    members = members_of(member(0), member(1))
    asked = members.in_round(0, 0)
    assert set(members.shares(STREAMS, asked).routes) == {"device-000", "device-001"}
    assert set(members.shares(STREAMS, {"device-001": asked["device-001"]}).routes) == {"device-001"}
    assert members.shares(STREAMS, dict.fromkeys(asked, 5)).routes["device-000"][0].weight == 5


def test_a_round_under_way_does_not_go_on_with_other_devices_and_one_that_is_over_does() -> None:
    members, now = members_of(member(0), member(1)), pb.Cluster(home_id="lps-0", members=[member(0)])
    assert members.goes_on_with(now)
    members.begin_global_round(3)
    assert not members.goes_on_with(now)
    now.members.append(member(1))
    now.members.append(member(2, from_global_round=4))  # a late one, in none that is under way
    assert members.goes_on_with(now)
    assert not members.goes_on_with(pb.Cluster(home_id="lps-0", members=now.members, term=1))
    assert not members.goes_on_with(None)


# --- reports --------------------------------------------------------------------------------------

LOG = EventLog("test_spanning_lps")


def report(lps_round: int) -> pb.ReportHeader:
    told = pb.ReportHeader(run_id="run-1", home_id="lps-0")
    told.lps_rounds.add(lps_round=lps_round)
    return told


def test_what_was_not_told_outlives_the_lps_by_global_round(tmp_path: Path) -> None:
    files = RoundReports(tmp_path, LOG)
    assert RoundReports(tmp_path / "lps-1", LOG).at(0) is None
    for number in range(4):
        files.save(number, report(number))
    again = RoundReports(tmp_path, LOG)
    assert [again.at(number) for number in range(5)] == [
        None,
        report(1),
        report(2),
        report(3),
        None,
    ]  # the GPS may still be in round 2, and go back one
    (tmp_path / "round-000003.pb").write_bytes(b"\0" * 50)
    assert again.at(3) is None


async def test_devices_of_which_no_report_is_here_have_no_bytes_from_before_and_no_times_either(tmp_path: Path) -> None:
    metrics = ProcessMetrics("lps")
    metrics.links.counter(LinkKey(link="device-lps", direction="up", kind="update", end="parent"))(1_000)
    notes = Notes("lps-1", CLASSIFICATION, metrics, LOG, RefusedDevices(tmp_path, "lps-1", LOG), has_member=bool)
    layout = STREAMS.vector(2).tensors
    received = ReceivedModel(
        round=2, global_round=2, evaluate_only=True, plan_version=0, flat=np.zeros(layout.size, np.float32), clusters=2
    )
    gps = SimpleNamespace(newest_plan=NewestPlan(None), model=AsyncMock(return_value=received))
    parts = SimpleNamespace(
        lps=SimpleNamespace(streams=STREAMS), cluster=pb.Cluster(home_id="lps-1", term=1), gps=gps, notes=notes,
        rounds=1, clock=Mock(kept_here=""), members=None, folder=tmp_path, log=LOG, update_encoding="float32",
        empty_report=pb.ReportHeader,
    )  # fmt: skip
    streams = ReceivedStreams(cast(Any, parts))
    number, begun = await streams.begin()
    gathered = RoundResult(children=0, num_examples=0, train_loss=0.0, missing=(), evaluations=())
    noted = notes.of_round(begun, number, gathered, global_round=2, seconds=1.0, everybody=())
    assert noted.lps_rounds[0].bytes_up == 0
    parts.clock.kept_here = "the times of clock: virtual"
    for step in (streams.begin(), streams.go_back(received)):
        with pytest.raises(StateError, match="no report of lps-1 at the start of global round 3, and only this report"):
            await step


def test_a_complete_report_outlives_the_lps_and_a_damaged_one_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / FINAL
    assert report_if_whole(path, LOG) is None
    write_report(path, report(9))
    assert report_if_whole(path, LOG) == report(9)
    path.write_bytes(b"\0" * 50)
    assert report_if_whole(path, LOG) is None


def test_who_has_answered_too_late_outlives_the_lps_by_global_round(tmp_path: Path) -> None:
    files, late = LateAnswers(tmp_path), [rounds_pb2.Flow(child=3, up_ns=7)]
    for number in range(4):
        files.save(number, late if number % 2 else [])
    again = LateAnswers(tmp_path)
    assert [again.read(number) for number in (2, 3)] == [[], late]
    with pytest.raises(StateError, match=r"late-000001\.pb is missing"):  # the folder alone knows who was late
        again.read(1)
    (tmp_path / "late-000003.pb").write_bytes(b"\0" * 50)
    with pytest.raises(StateError, match=r"late-000003\.pb"):  # or those would go on who were left out
        again.read(3)
