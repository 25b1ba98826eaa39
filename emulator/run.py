"""One run from an experiment file to a finished record, on this machine."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.client import RunClient
from emulator.follow import Outcome, follow
from emulator.interrupts import run_interruptibly
from emulator.local import LocalBackend
from emulator.output import check_unused, prepare_folder, resume_folder
from emulator.progress import Display, JsonLines, LiveTables, LogLines, Quiet, print_json
from fedstrata.datasets import load_dataset
from fedstrata.experiment import Experiment, LocalPartition, load_experiment
from fedstrata.partitions import check_partition
from fedstrata.v1 import gps_service_pb2 as pb

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What the user asked for: a new run of an experiment, or (None) to go on with the one in `out`."""

    experiment: Path | None
    out: Path
    overrides: tuple[str, ...] = ()
    seed: int | None = None
    device_processes: int | None = None  # None: one a core
    is_json: bool = False
    is_quiet: bool = False


def run(request: RunRequest) -> None:
    """Run the experiment and leave its record, report, state and logs in the folder.

    Raises:
        FedstrataError: nothing was started because something is wrong, or the run ended without a result.
        KeyboardInterrupt: a signal came; all processes are gone, and what was written stays.
    """
    experiment = _prepared(request)
    console = _console()
    outcome = run_interruptibly(
        _on_this_machine(request, experiment, make_display(is_json=request.is_json, is_quiet=request.is_quiet))
    )
    if outcome.status.has_record:
        _finish(request, console)
    if outcome.failure is not None:
        raise outcome.failure


def _prepared(request: RunRequest) -> Experiment:
    """The experiment, checked, with its folder ready."""
    if request.experiment is None:
        experiment = resume_folder(request.out)
        check_data(experiment)
        return experiment
    experiment = load_experiment(request.experiment, request.overrides, request.seed)
    check_unused(request.out)
    check_data(experiment)
    prepare_folder(request.out, experiment)
    return experiment


def check_data(experiment: Experiment) -> None:
    """Raise a DataError where the data set is missing or holds less than the partition asks for."""
    # with a local partition each device has data of its own, which is not seen from here
    if not isinstance(experiment.partition, LocalPartition):
        check_partition(experiment, load_dataset(experiment.data))


async def _on_this_machine(request: RunRequest, experiment: Experiment, display: Display) -> Outcome:
    backend = LocalBackend(request.out, device_processes=request.device_processes, on_restart=display.restarted)

    def show(status: pb.RunStatus) -> None:
        display.show(status)
        backend.observe(status)

    with display.open():
        async with backend:
            address = await backend.start(experiment)
            async with RunClient(address) as client:
                outcome = await follow(client, backend, show)
                if outcome.status.has_record:
                    await client.fetch_record(outcome.status.run_id, request.out)
    return outcome


def _finish(request: RunRequest, console: "Console") -> None:
    """Write the report and tell the result."""
    from emulator.record import load_record
    from emulator.report import write_report
    from emulator.result import print_result

    record = load_record(request.out)
    report = write_report(request.out)
    if request.is_json:
        summary = json.loads((request.out / "summary.json").read_text(encoding="utf-8"))
        print_json({"event": "summary", "folder": str(request.out), "summary": summary})
    else:
        print_result(record, report, console)


def make_display(*, is_json: bool, is_quiet: bool) -> Display:
    """How progress is shown: as asked, or as the terminal allows."""
    console = _console()
    if is_quiet:
        return Quiet()
    if is_json:
        return JsonLines()
    return LiveTables(console) if console.is_terminal else LogLines(console)


def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False)
