"""A run whose programs a test starts, stops and starts again one by one."""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc

from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import RunServiceStub
from tests.support.programs import Program, events, wait_for_record


class Processes:
    """The programs of one run, started by the test one by one. A context manager that leaves none behind."""

    def __init__(self, folder: Path, experiment: str, gps: Mapping[str, str] | None = None) -> None:
        """`gps` is the environment of the GPS's first life."""
        self.folder = folder
        self._gps_environment = gps
        folder.mkdir()
        (folder / "experiment.yaml").write_text(experiment)
        self._common = ("--experiment", str(folder / "experiment.yaml"))
        self._stack = ExitStack()
        self._started: Counter[str] = Counter()

    def __enter__(self) -> "Processes":
        self.first_gps = self._start_gps(environment=self._gps_environment)
        addresses = self.first_gps.addresses()
        self.gps, self.http = addresses["grpc"], addresses["http"]
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)

    def _start(self, module: str, name: str, *words: str, environment: Mapping[str, str] | None = None) -> Program:
        self._started[name] += 1
        log = self.folder / f"{name}.{self._started[name]}.log"
        return self._stack.enter_context(Program(module, *words, log=log, environment=environment))

    def _start_gps(self, *words: str, environment: Mapping[str, str] | None = None) -> Program:
        state = ("--state", str(self.folder / "gps"))
        return self._start("gps", "gps", *self._common, *state, *words, environment=environment)

    def gps_again(self, *words: str) -> Program:
        """Start the GPS once more, where it was."""
        program = self._start_gps("--listen", self.gps, *words)
        program.addresses()
        return program

    def lps(self, number: int, *, environment: Mapping[str, str] | None = None) -> Program:
        name = f"lps-{number}"
        words = (*self._common, "--gps", self.gps, "--lps-id", name, "--state", str(self.folder / name))
        return self._start("lps", name, *words, environment=environment)

    def devices(
        self,
        indexes: str,
        *,
        keeps_state: bool = False,
        stays: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Program:
        """`stays`: it can be scraped when the run is over, too."""
        name = f"devices-{indexes}"
        words = [*self._common, "--gps", self.gps, "--devices", indexes]
        words += ["--state", str(self.folder / name)] if keeps_state else []
        words += ["--stay"] if stays else []
        return self._start("device", name, *words, environment=environment)

    def until(self, is_so: Callable[[pb.RunStatus], bool]) -> None:
        """Wait for a status of the run."""
        with grpc.insecure_channel(self.gps) as channel:
            assert any(is_so(status) for status in RunServiceStub(channel).WatchRun(pb.WatchRunRequest(), timeout=90))

    def until_round(self, global_round: int) -> None:
        """Wait until so many global rounds are done; the run must train still, so that it can be disturbed."""
        with grpc.insecure_channel(self.gps) as channel:
            told = RunServiceStub(channel).WatchRun(pb.WatchRunRequest(), timeout=90)
            status = next(status for status in told if status.global_round >= global_round or status.has_record)
        assert status.phase == "training", f"over too soon: {status}"

    def until_said(self, log: str, event: str) -> None:
        """Wait for an event in a log; the run's statuses, of which there is one a round, are when it is looked for."""
        self.until(lambda status: any(told["event"] == event for told in events(self.folder / log)))

    def record(self) -> Path:
        return self.folder / "gps" / wait_for_record(self.gps) / "record"
