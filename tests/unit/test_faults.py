"""The faults of an experiment: what may be said, what a run is a function of, and when a fault is due."""

import json
from pathlib import Path

import pytest

from emulator.local.faults import FaultDriver, is_due, refuse_faults
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment.faults import Moment
from fedstrata.experiment_file import parse_experiment
from fedstrata.process.fault_points import VARIABLE
from fedstrata.v1 import gps_service_pb2 as pb

BASE = "name: x\npartition: {kind: iid, devices: 3, examples_per_device: 5}\n"


def experiment(*faults: str) -> Experiment:
    return parse_experiment(BASE, overrides=[f"faults=[{', '.join(faults)}]"])


def test_faults_are_no_part_of_what_a_run_is_a_function_of() -> None:
    disturbed = experiment("{do: kill, process: lps-0, at: {point: upload, round: 3}}")
    assert disturbed.run_id == parse_experiment(BASE).run_id
    assert parse_experiment(disturbed.to_yaml()).faults == disturbed.faults


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("{do: burn, process: gps}", "burn"),
        ("{do: kill, process: device-003, at: {phase: training}}", "no process is called 'device-003'"),
        ("{do: kill, process: gps, at: {}}", "give exactly one of phase, global_round and point"),
        (
            "{do: kill, process: gps, at: {phase: training, global_round: 1}}",
            "give exactly one of phase, global_round and point",
        ),
        ("{do: kill, process: gps, at: {phase: training, count: 2}}", "round and count need the key point"),
        ("{do: kill, process: gps, at: {point: nowhere}}", "faults.0.at.point"),
        ("{do: pause, process: gps, for_s: 1, at: {point: upload}}", "only kill can use the key point"),
        ("{do: pause, process: gps, for_s: 0, at: {phase: training}}", "faults.0.for_s"),
        ("{do: cut, link: gps-lps, for_s: 1, at: {phase: training}}", "faults.0.link"),
    ],
)
def test_nonsense_is_refused_with_its_key(fault: str, said: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        experiment(fault)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("at", "phase", "global_round", "due"),
    [
        (Moment(phase="grouping"), "relevance", 0, False),
        (Moment(phase="grouping"), "training", 0, True),  # a phase may pass between two statuses
        (Moment(global_round=1), "grouping", 0, False),
        (Moment(global_round=1), "training", 0, True),
        (Moment(global_round=3), "training", 1, False),
        (Moment(global_round=3), "training", 2, True),
        (Moment(phase="training"), "completed", 3, False),
        (Moment(phase="training"), "failed", 3, False),
    ],
)
def test_a_fault_is_due_once_the_run_is_there(at: Moment, phase: str, global_round: int, due: bool) -> None:
    assert is_due(at, pb.RunStatus(phase=phase, global_round=global_round)) is due


def test_a_process_is_told_only_of_its_own_points(tmp_path: Path) -> None:
    faults = experiment(
        "{do: kill, process: gps, at: {point: aggregation, round: 1}}",
        "{do: kill, process: device-001, at: {point: upload, count: 2}}",
    ).faults
    driver = FaultDriver(faults, tmp_path, lambda told: None)
    (order,) = json.loads(driver.environment(["device-000", "device-001"])[VARIABLE])
    assert (order["point"], order["round"], order["count"]) == ("upload", None, 2)
    assert driver.environment(["lps-0"]) == {}


def test_a_fault_that_never_came_about_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    faults = experiment("{do: kill, process: lps-9, at: {global_round: 1}}").faults
    driver = FaultDriver(faults, tmp_path, told.append)
    driver.observe(pb.RunStatus(phase="training"))
    driver.close()
    assert told == ["did not happen: kill lps-9 in global round 1"]


def test_where_faults_cannot_be_had_they_are_refused() -> None:
    with pytest.raises(ExperimentError, match="Kubernetes cannot cause faults"):
        refuse_faults(experiment("{do: kill, process: gps, at: {phase: training}}"), "Kubernetes")
    refuse_faults(parse_experiment(BASE), "Kubernetes")
