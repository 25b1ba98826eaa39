"""The virtual clock at an LPS: what its report says between rounds, and what it cannot go on without."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fedstrata.errors import StateError
from fedstrata.experiment import Experiment, parse_experiment
from fedstrata.logs import EventLog
from fedstrata.metrics import ProcessMetrics
from fedstrata.rounds import ReceivedModel
from fedstrata.streams import streams_of
from fedstrata.timeline import Exchanged
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1.gps_service_pb2 import Cluster, Member, ReportHeader
from lps.cluster import ClusterSession, LpsParts
from lps.members import Members
from lps.times import Times

S = 10**9
TEXT = """
name: times
partition: {kind: iid, devices: 2, examples_per_device: 10}
method: fedavg
"""
TIMED = ("clock=virtual", "links={device-lps: {up_rate: 8kbit/s}, lps-gps: {down_rate: 16kbit/s, latency: 1s}}")


def times_of(experiment: Experiment) -> Times:
    """The clock of lps-0, whose two devices send 1,000 bytes each round."""
    one = Exchanged(down_bytes=0, up_bytes=1_000, work=pb.Work())
    server = SimpleNamespace(exchanged=lambda gathered: {"device-000": one, "device-001": one})
    return Times(experiment, "lps-0", cast(Any, server))


def members_of(experiment: Experiment) -> Members:
    members = [Member(device_id=f"device-00{index}", device_index=index) for index in (0, 1)]
    return Members(experiment, Cluster(cluster_id="lps-0", members=members))


def test_lps_rounds_follow_each_other_and_the_next_model_is_there_a_link_later() -> None:
    experiment = parse_experiment(TEXT, overrides=TIMED)
    times, members, report = times_of(experiment), members_of(experiment), ReportHeader()
    for number in (0, 1):
        report.lps_rounds.add(lps_round=number, global_round=0)
        times.of_round(report, cast(Any, None), members)
    assert [(row.times.begins_ns, row.times.ends_ns) for row in report.lps_rounds] == [(0, S), (S, 2 * S)]
    assert times.work(report, 0) == pb.Work(busy_ns=2 * S)
    model = ReceivedModel(
        round=1, global_round=1, evaluate_only=False, plan_version=1, flat=np.zeros(1, np.float32), begins_ns=5 * S,
        whole_bytes=4_000,
    )  # fmt: skip
    for _ in range(2):  # heard again after a restart it changes nothing
        times.received(report, model)
        assert report.now_ns == 5 * S + 2 * S + S
        assert [row.times.ready_ns for row in report.lps_rounds] == [S, 8 * S]
    report.lps_rounds.add(lps_round=2, global_round=1)
    times.of_round(report, cast(Any, None), members)
    assert times.work(report, 1) == pb.Work(busy_ns=S)


def test_without_a_clock_nothing_is_noted() -> None:
    experiment = parse_experiment(TEXT)
    times, report = times_of(experiment), ReportHeader()
    report.lps_rounds.add()
    before = report.SerializeToString()
    times.of_round(report, cast(Any, None), members_of(experiment))
    assert times.work(report, 0) is None
    assert report.SerializeToString() == before


async def test_a_lost_state_is_lost_where_devices_cannot_tell_the_time(tmp_path: Path) -> None:
    experiment = parse_experiment(TEXT, overrides=TIMED)
    from fedstrata.datasets import dataset_info
    from fedstrata.methods import make_method
    from fedstrata.models import build_model

    method, model = make_method(experiment), build_model(experiment.model, dataset_info(experiment.data))
    around = LpsParts(
        experiment=experiment, method=method, streams=streams_of(experiment, method, model), model=model,
        state_folder=tmp_path, metrics=ProcessMetrics("lps"), executor=cast(Any, None),
    )  # fmt: skip
    gps = SimpleNamespace(identity=SimpleNamespace(run_id=experiment.run_id))
    session = ClusterSession(around, Cluster(cluster_id="lps-0", global_round=2), cast(Any, gps), EventLog("lps"))
    with pytest.raises(StateError, match="clock: virtual a time that devices do not have; put the files back"):
        await session.take_over(session.gathering())
