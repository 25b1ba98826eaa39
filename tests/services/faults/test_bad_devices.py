"""A device that sends what it must not: it is refused by name, and the run goes on or stops by its quorum."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from device.agent import DeviceAgent
from device.training import LocalResult, TrainingJob
from device.work import DeviceProcess
from emulator.results.read_record import RunRecord
from fedstrata.datasets import Dataset, Examples
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import GpsServiceStub
from tests.support.attempts import attempt_of
from tests.support.programs import Program, of_mark
from tests.support.tiers import SMALL, Tiers, outcome, run_in_process, small

LIAR = 2
NARROW = (
    "the answer to profile has eigenvectors of 'float32' and shape [5, 56]; expected float32 and at most (5, 64); "
    "check the device's data and feature map"
)
ONE_CLUSTER = ("method.clusters=1", "training.global_rounds=2")


def narrower(host: DeviceProcess, index: int) -> DeviceAgent:
    """A device whose images lack a column."""

    def cropped(examples: Examples) -> Examples:
        return Examples(inputs=examples.inputs[..., :7].copy(), labels=examples.labels)

    data = host.dataset
    own = Dataset(train=cropped(data.train), test=cropped(data.test), num_classes=data.num_classes)
    return DeviceAgent(replace(host, dataset=own), index)


class PoisonedThread:
    """A bench whose training ends in one NaN, at a place of its own."""

    def __init__(self, bench: Any, place: int) -> None:
        self.compute, self.evaluate, self.listening = bench.compute, bench.evaluate, bench.listening
        self._bench = bench
        self._place = place

    async def train(self, job: TrainingJob, group: str) -> LocalResult:
        result: LocalResult = await self._bench.train(job, group)
        weights = result.weights.copy()
        weights[self._place] = np.nan
        return replace(result, weights=weights)


def poisoned(place: int) -> Callable[[DeviceProcess, int], DeviceAgent]:
    """A device that diverges in its first round."""
    return lambda host, index: DeviceAgent(
        replace(host, compute_thread=PoisonedThread(host.compute_thread, place)), index
    )


class BoastingThread:
    """A bench whose training ends in a loss that is a number, and of which a hundred are none."""

    def __init__(self, bench: Any) -> None:
        self.compute, self.evaluate, self.listening = bench.compute, bench.evaluate, bench.listening
        self._bench = bench

    async def train(self, job: TrainingJob, group: str) -> LocalResult:
        return replace(await self._bench.train(job, group), train_loss=1.7e308)


def boasting(host: DeviceProcess, index: int) -> DeviceAgent:
    """A device that reports the largest loss there is."""
    return DeviceAgent(replace(host, compute_thread=BoastingThread(host.compute_thread)), index)


class LoudThread(PoisonedThread):
    """A bench whose training ends far from where it began, everywhere, within what a sum can hold."""

    async def train(self, job: TrainingJob, group: str) -> LocalResult:
        result: LocalResult = await self._bench.train(job, group)
        return replace(result, weights=result.weights + np.float32(1 << 17))


def loud(host: DeviceProcess, index: int) -> DeviceAgent:
    """A device that drowns all others out."""
    return DeviceAgent(replace(host, compute_thread=LoudThread(host.compute_thread, 0)), index)


def excluded(record: RunRecord) -> list[tuple[str, str]]:
    return [(gone.device, gone.stage) for gone in record.summary.excluded]


# --- the wrong number of features -----------------------------------------------------------------


def test_a_device_with_other_features_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    experiment = small("deadlines.enrolment.quorum_ratio=0.8")
    record = run_in_process(experiment, tmp_path / "run", liars={LIAR: narrower})
    assert record.summary.status == "completed"
    assert excluded(record) == [("device-002", "enrolment")]
    reason = record.summary.excluded[0].reason
    assert reason == f"refused: {NARROW}"
    assert sorted(record.summary.cluster_of_device) == ["device-000", "device-001", "device-003", "device-004"]
    assert record.relevance is not None
    assert record.relevance.matrix.shape == (4, 4)


def test_with_a_full_quorum_one_device_with_other_features_stops_the_run(tmp_path: Path) -> None:
    record = run_in_process(small(), tmp_path / "run", liars={LIAR: narrower})
    assert record.summary.status == "failed"
    assert record.summary.reason == (
        f"4 of 5 devices take part, but the quorum is 5; missing: device-002 (refused: {NARROW})"
    )
    assert excluded(record) == [("device-002", "enrolment")]


# --- NaN ------------------------------------------------------------------------------------------

HALVES = [pytest.param(name, marks=pytest.mark.runs) for name in ("float16", "bfloat16")]


@pytest.mark.parametrize("encoding", ["float32", "int8", *HALVES])
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")  # the device's own, of its NaN
def test_a_device_that_sends_nan_is_refused_and_the_others_go_on(tmp_path: Path, encoding: str) -> None:
    experiment = small(*ONE_CLUSTER, "deadlines.lps.quorum_ratio=0.8", f"links.device-lps.up={encoding}")
    record = run_in_process(experiment, tmp_path / "run", liars={LIAR: poisoned(0)})
    assert [path.name for path in tmp_path.rglob("*.refused.pb")] == ["lps-0.refused.pb"]
    assert record.summary.status == "completed"
    assert record.summary.rounds == 2
    assert excluded(record) == [("device-002", "training")]
    reason = record.summary.excluded[0].reason
    assert reason.startswith("refused: ")
    assert "finite" in reason
    assert [row.devices for row in record.rounds] == [4, 4, 4, 4]
    assert record.summary.mean is not None


def test_a_device_whose_update_does_not_fit_its_encoding_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    experiment = small(*ONE_CLUSTER, "deadlines.lps.quorum_ratio=0.8", "links.device-lps.up=float16")
    record = run_in_process(experiment, tmp_path / "run", liars={LIAR: loud})
    assert record.summary.status == "completed"
    assert excluded(record) == [("device-002", "training")]
    assert "does not fit float16 (at most 65504); choose bfloat16" in record.summary.excluded[0].reason


async def test_an_lps_learns_from_the_gps_which_devices_were_refused_before_it(tmp_path: Path) -> None:
    experiment = small(*ONE_CLUSTER, "deadlines.lps.quorum_ratio=0.8")
    async with Tiers(experiment, tmp_path / "run") as tiers, grpc.aio.insecure_channel(tiers.address) as channel:
        host = await tiers.host()
        for index in range(experiment.device_count):
            tiers.start_device(host, index, poisoned(0) if index == LIAR else DeviceAgent)
        await tiers.ended()
        request = pb.FetchClustersRequest(run_id=attempt_of(experiment), lps_id="lps-0")
        (cluster,) = (await GpsServiceStub(channel).FetchClusters(request)).clusters
    assert [(gone.device_id, gone.stage) for gone in cluster.refused] == [("device-002", "training")]
    assert cluster.refused[0].reason.startswith("refused: values go from nan to nan")


def test_a_device_that_reports_an_impossible_loss_is_refused_and_its_lps_is_not(tmp_path: Path) -> None:
    experiment = small(*ONE_CLUSTER, "deadlines.lps.quorum_ratio=0.8")
    record = run_in_process(experiment, tmp_path / "run", liars={LIAR: boasting})
    assert record.summary.status == "completed"
    assert excluded(record) == [("device-002", "training")]
    assert all(row.loss is not None and row.loss < 10 for row in record.rounds)


def test_what_a_refused_device_had_sent_before_its_nan_leaves_no_trace(tmp_path: Path) -> None:
    two_chunks = (*ONE_CLUSTER, "model.hidden=[4000]", "deadlines.lps.quorum_ratio=0.8")  # 1.2 MB
    at_once = run_in_process(small(*two_chunks), tmp_path / "at_once", liars={LIAR: poisoned(0)})
    at_last = run_in_process(small(*two_chunks), tmp_path / "at_last", liars={LIAR: poisoned(-1)})
    assert excluded(at_once) == excluded(at_last) == [("device-002", "training")]
    assert outcome(at_once.folder) == outcome(at_last.folder)


def test_with_a_full_quorum_one_nan_stops_the_run(tmp_path: Path) -> None:
    record = run_in_process(small(*ONE_CLUSTER), tmp_path / "run", liars={LIAR: poisoned(0)})
    assert record.summary.status == "failed"
    assert record.summary.reason is not None
    assert record.summary.reason.startswith(
        "lps-0: 4 of 5 have reported, but the quorum is 5; absent: device-002 (device-002 was refused: values go from "
        "nan to nan"
    )
    assert "\n" not in record.summary.reason
    assert not list(tmp_path.rglob("*.refused.pb"))  # if the run is continued, the device may try again


# --- numbers that are none of a lie by themselves -------------------------------------------------


def test_a_device_whose_updates_go_too_far_is_named_and_leaves_no_trace(tmp_path: Path) -> None:
    bounded = (*ONE_CLUSTER, "deadlines.lps.quorum_ratio=0.8", "bounds.max_update_norm=1000")
    record = run_in_process(small(*bounded), tmp_path / "loud", liars={LIAR: loud})
    without = run_in_process(small(*bounded), tmp_path / "without", liars={LIAR: poisoned(0)})
    assert excluded(record) == [("device-002", "training")]
    assert "norm of" in record.summary.excluded[0].reason
    assert "above bounds.max_update_norm, 1000" in record.summary.excluded[0].reason
    assert outcome(record.folder) == outcome(without.folder)


@pytest.mark.runs
def test_a_run_whose_devices_all_diverge_ends_with_exit_code_4_and_a_reason(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    words = ("run", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out"), "--device-processes", "1", "--quiet")
    diverging = ("--set", "training.optimiser.learning_rate=1e30", "--set", "method=fedavg")
    with Program("emulator", *words, *diverging, log=tmp_path / "log") as run:
        assert run.end() == 4
    (line,) = run.errors()
    assert line.startswith("error: lps-")
    assert "training has diverged" in line
    assert of_mark(run.mark) == []
    assert (tmp_path / "out" / "summary.json").exists()
    assert (tmp_path / "out" / "logs" / "gps.log").exists()
