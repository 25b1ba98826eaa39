"""150 devices on six LPSs, two that never start, five killed while a round is open and started again: the run
completes by its deadlines, and names who was missing and when."""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from emulator.local.processes import LocalBackend
from emulator.results.output import prepare_folder
from emulator.runs.follow import follow
from emulator.runs.run_client import RunClient
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.process.fault_points import VARIABLE
from fedstrata.trust.security import OPEN
from fedstrata.v1 import gps_service_pb2 as pb
from tests.support.programs import Program, events
from tests.support.records import rows_of, summary_of

pytestmark = pytest.mark.kills

EXPERIMENT = parse_experiment("""
name: many-devices
partition:
  kind: tasks
  minority_ratio: 0.0
  tasks:
    - {name: a, labels: [0, 1], devices: 25, examples_per_device: 8}
    - {name: b, labels: [2, 3], devices: 25, examples_per_device: 8}
    - {name: c, labels: [4, 5], devices: 25, examples_per_device: 8}
    - {name: d, labels: [6, 7], devices: 25, examples_per_device: 8}
    - {name: e, labels: [8], devices: 25, examples_per_device: 5}
    - {name: f, labels: [9], devices: 25, examples_per_device: 5}
model: {name: mlp, hidden: [16]}
method: {name: one_shot, clusters: 6}
training: {global_rounds: 30, lps_rounds_per_global_round: 1, local_steps: 1, batch_size: 8}
deadlines:
  enrolment: {deadline_s: 12, quorum_ratio: 0.9}
  lps: {deadline_s: 8, quorum_ratio: 0.5}
""")
ABSENT = (148, 149)
KILLED = (24, 25, 74, 99, 147)
KILLED_IN = 3  # the LPS round, counted from 0, in which each dies when the first of the model has arrived
BACK_AFTER = 5  # global rounds done when they are started again
LAST_ROUND = f"round {EXPERIMENT.training.lps_rounds}"


class Troubled(LocalBackend):
    """Leaves two devices out and has five in processes that nobody starts again before some rounds have passed."""

    def __init__(self, folder: Path, programs: ExitStack) -> None:
        super().__init__(folder, device_processes=None, on_restart=lambda restart: None)
        self._out = folder
        self._programs = programs
        self.first_lives: list[Program] = []
        self.second_lives: list[Program] = []

    async def start(self, experiment: Experiment) -> str:
        """Devices first: the deadline of enrolment is for enrolling, not for starting ten Python processes."""
        proxy = await self._faults.proxy("device-gps")
        self._to_gps = proxy.address
        hosts = [self._start(self._devices(part, self._to_gps), []) for part in left_alone(experiment)]
        self.first_lives = [self._program(index, "first") for index in KILLED]
        self._watch(hosts)
        for host in hosts:
            await self._unless_failure(host.addresses())
        await asyncio.gather(*(asyncio.to_thread(program.addresses) for program in self.first_lives))
        gps = self._start(self._server("gps", "gps"), ["gps"])
        proxy.lead_to(gps.addresses)
        self._gps_address = (await self._unless_failure(gps.addresses()))["grpc"]
        return self._gps_address

    def observe(self, status: pb.RunStatus) -> None:
        """Start the killed ones again when the run has gone on without them for a while."""
        if status.global_round >= BACK_AFTER and not self.second_lives:
            self.second_lives = [self._program(index, "second") for index in KILLED]

    def _program(self, index: int, life: str) -> Program:
        marker = self._out / f"killed-{index}"
        order = {"point": "download", "round": KILLED_IN, "count": 1, "marker": str(marker)}
        words = (*self._common(), "--gps", self._to_gps, "--devices", str(index))
        log = self._out / "logs" / f"{life}-{index}.log"
        return self._programs.enter_context(
            Program("device", *words, log=log, environment={VARIABLE: json.dumps([order])})
        )


def left_alone(experiment: Experiment) -> list[range]:
    """The devices between those of `KILLED` and `ABSENT`, in three processes or so."""
    edges = [-1, *sorted((*KILLED, *ABSENT)), experiment.device_count]
    between = (range(before + 1, after) for before, after in pairwise(edges))
    return [part for part in between if part]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What is left of the run."""

    folder: Path
    summary: dict[str, Any]
    first_exits: list[int]
    second_exits: list[int]

    def excluded(self, names: Sequence[str]) -> dict[str, list[str]]:
        """From what each of these devices was excluded."""
        return {name: [gone["from"] for gone in self.summary["excluded"] if gone["device"] == name] for name in names}


def names_of(indexes: Sequence[int]) -> list[str]:
    return [EXPERIMENT.device_ids()[index] for index in indexes]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """The run, once."""
    folder = tmp_path_factory.mktemp("many") / "run"
    prepare_folder(folder, EXPERIMENT)
    with ExitStack() as programs:
        backend = asyncio.run(conducted(folder, programs))
        yield Ended(
            folder=folder,
            summary=summary_of(folder),
            first_exits=[program.end() for program in backend.first_lives],
            second_exits=[program.end() for program in backend.second_lives],
        )


async def conducted(folder: Path, programs: ExitStack) -> Troubled:
    async with Troubled(folder, programs) as backend:
        async with RunClient(await backend.start(EXPERIMENT), OPEN) as client:
            outcome = await follow(client, backend, backend.observe)
            await client.fetch_record(outcome.status.run_id, folder)
        for program in backend.second_lives:  # their LPSs are still there to tell them that the run is over
            await asyncio.to_thread(program.process.wait)
    return backend


def test_it_completes_with_six_models_of_148_devices(ended: Ended) -> None:
    assert (ended.summary["status"], ended.summary["reason"]) == ("completed", None)
    assert len(ended.summary["model_sha256"]) == 6
    assert len(list((ended.folder / "models").glob("lps-*.safetensors"))) == 6
    members = {device for cluster in ended.summary["clusters"].values() for device in cluster}
    assert members == set(EXPERIMENT.device_ids()) - set(names_of(ABSENT))


def test_the_log_of_the_gps_names_the_two_missing_once_and_nobody_else(ended: Ended) -> None:
    log = events(ended.folder / "logs" / "gps.log")
    missing = [(event["device"], event["reason"]) for event in log if event["event"] == "device_missing"]
    assert missing == [(name, "not enrolled by the deadline") for name in names_of(ABSENT)]
    assert sum(event["event"] == "device_enrolled" for event in log) == 148


def test_the_record_says_who_was_left_out_of_what(ended: Ended) -> None:
    absent, killed = names_of(ABSENT), names_of(KILLED)
    assert {gone["device"] for gone in ended.summary["excluded"]} == {*absent, *killed}
    assert ended.excluded(absent) == {name: ["enrolment"] for name in absent}
    for stages in ended.excluded(killed).values():
        assert stages[:2] == [f"round {KILLED_IN + 1}", f"round {KILLED_IN + 2}"]
        assert len(set(stages)) == len(stages)


def test_the_killed_died_in_the_open_round_and_took_part_again_when_they_were_back(ended: Ended) -> None:
    assert ended.first_exits == [-signal.SIGKILL] * len(KILLED)
    assert ended.second_exits == [0] * len(KILLED)
    assert all(LAST_ROUND not in stages for stages in ended.excluded(names_of(KILLED)).values())
    rows = rows_of(ended.folder, "rounds.csv")
    by_round = Counter[str]()
    for row in rows:
        by_round[row["lps_round"]] += int(row["devices"])
    assert by_round[str(KILLED_IN)] == 148
    assert by_round[str(KILLED_IN + 1)] == 148 - len(KILLED)
    assert by_round[str(EXPERIMENT.training.lps_rounds)] == 148
