"""The faults of an experiment: what may be said, what a run is a function of, and when a fault is due."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from emulator.local import faults as module
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
        ("{do: kill, process: lps-one, at: {phase: training}}", "no process is called 'lps-one'"),
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


def test_a_kill_at_a_point_is_told_once_the_process_has_noted_it(tmp_path: Path) -> None:
    told: list[str] = []
    faults = experiment(
        "{do: kill, process: gps, at: {point: aggregation, round: 1}}",
        "{do: kill, process: gps, at: {point: upload}}",
        "{do: kill, process: gps, at: {point: download}}",
    ).faults
    driver = FaultDriver(faults, tmp_path, told.append)
    first, second, _ = (Path(order["marker"]) for order in json.loads(driver.environment(["gps"])[VARIABLE]))
    first.touch()
    driver.observe(pb.RunStatus(phase="training"))
    assert told == ["kill gps at aggregation in round 1"]
    second.touch()
    driver.close()
    assert told[1:] == ["kill gps at upload", "did not happen: kill gps at download"]


def test_a_continued_run_does_not_tell_of_its_earlier_kills_again_nor_take_a_new_fault_for_one(tmp_path: Path) -> None:
    kill = "{do: kill, process: gps, at: {point: upload}}"
    driver = FaultDriver(experiment(kill).faults, tmp_path, print)
    (order,) = json.loads(driver.environment(["gps"])[VARIABLE])
    Path(order["marker"]).touch()
    told: list[str] = []
    FaultDriver(experiment(kill).faults, tmp_path, told.append).close()
    assert told == []
    FaultDriver(experiment("{do: kill, process: gps, at: {global_round: 1}}").faults, tmp_path, told.append).close()
    assert told == ["did not happen: kill gps in global round 1"]


class Timers:
    """The event loop of a driver: what is to happen later happens when a test says so."""

    def __init__(self) -> None:
        self._calls: list[tuple[float, Callable[..., object], tuple[Any, ...]]] = []

    def call_later(self, delay_s: float, call: Callable[..., object], *arguments: Any) -> None:
        self._calls.append((delay_s, call, arguments))

    def next(self) -> None:
        self._calls.sort(key=lambda each: each[0])
        _, call, arguments = self._calls.pop(0)
        call(*arguments)


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    made = Timers()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made)
    return made


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals that processes get."""
    made: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: made.append(number))
    return made


class Process:
    pid = 4711
    has_started = True


class Proxy:
    is_cut = False

    async def start(self, address: str | None) -> None: ...

    def cut(self) -> None:
        self.is_cut = True

    def mend(self) -> None:
        self.is_cut = False


def test_a_process_that_is_paused_twice_goes_on_at_the_end_of_the_longer_pause(
    timers: Timers, sent: list[int], tmp_path: Path
) -> None:
    faults = experiment(
        "{do: pause, process: device-000, for_s: 1, at: {phase: training}}",
        "{do: pause, process: device-001, for_s: 4, at: {phase: training}}",
    ).faults
    driver = FaultDriver(faults, tmp_path, lambda told: None)
    driver.add(Process(), ["device-000", "device-001"])  # type: ignore[arg-type]
    driver.observe(pb.RunStatus(phase="training"))
    timers.next()
    assert sent == [signal.SIGSTOP, signal.SIGSTOP]
    timers.next()
    assert sent[2:] == [signal.SIGCONT]


def test_a_process_that_starts_is_paused_afterwards(timers: Timers, sent: list[int], tmp_path: Path) -> None:
    driver = FaultDriver(
        experiment("{do: pause, process: lps-0, for_s: 1, at: {phase: training}}").faults, tmp_path, lambda told: None
    )
    process = Process()
    driver.add(process, ["lps-0"])  # type: ignore[arg-type]
    for process.has_started, signals in ((False, []), (True, [signal.SIGSTOP])):
        driver.observe(pb.RunStatus(phase="training"))
        assert sent == signals


def test_what_is_paused_at_the_end_goes_on_once(timers: Timers, sent: list[int], tmp_path: Path) -> None:
    fault = "{do: pause, process: gps, for_s: 1, at: {phase: training}}"
    driver = FaultDriver(experiment(fault, fault).faults, tmp_path, lambda told: None)
    driver.add(Process(), ["gps"])  # type: ignore[arg-type]
    driver.observe(pb.RunStatus(phase="training"))
    driver.close()
    timers.next()
    timers.next()
    assert sent[2:] == [signal.SIGCONT]


def test_a_process_that_has_just_died_is_paused_when_it_is_back(
    timers: Timers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def gone(pid: int, number: int) -> None:
        raise ProcessLookupError

    told: list[str] = []
    faults = experiment("{do: pause, process: gps, for_s: 1, at: {phase: training}}").faults
    driver = FaultDriver(faults, tmp_path, told.append)
    driver.add(Process(), ["gps"])  # type: ignore[arg-type]
    with monkeypatch.context() as reaped:
        reaped.setattr(os, "kill", gone)
        driver.observe(pb.RunStatus(phase="training"))
    assert told == []
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    driver.observe(pb.RunStatus(phase="training"))
    assert told == ["pause gps for 1 s in training"]


async def test_a_link_is_cut_until_its_longest_cut_ends_also_for_an_lps_that_starts_meanwhile(
    timers: Timers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "LinkProxy", Proxy)
    faults = experiment(
        "{do: cut, link: lps-gps, for_s: 1, at: {phase: training}}",
        "{do: cut, link: lps-gps, for_s: 4, at: {phase: training}}",
    ).faults
    driver = FaultDriver(faults, tmp_path, lambda told: None)
    first = await driver.proxy("lps-gps")
    driver.observe(pb.RunStatus(phase="training"))
    proxies: Any = (first, await driver.proxy("lps-gps"))
    timers.next()
    assert [proxy.is_cut for proxy in proxies] == [True, True]
    timers.next()
    assert [proxy.is_cut for proxy in proxies] == [False, False]


def test_where_faults_cannot_be_had_they_are_refused() -> None:
    with pytest.raises(ExperimentError, match="Kubernetes cannot cause faults"):
        refuse_faults(experiment("{do: kill, process: gps, at: {phase: training}}"), "Kubernetes")
    refuse_faults(parse_experiment(BASE), "Kubernetes")
