"""Do one run on this machine, from an experiment to a finished record."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.console.browser import show_page
from emulator.console.interrupts import run_interruptibly
from emulator.console.json_lines import print_json
from emulator.estimates.check import check_data, check_here
from emulator.estimates.device_processes import process_count
from emulator.estimates.sizing import lacking_room
from emulator.local.processes import LocalBackend, nurseries
from emulator.results.output import check_current_folder, check_unused, run_folder
from emulator.runs.arrivals import check_arrivals, keep_arrivals
from emulator.runs.follow import Outcome, follow
from emulator.runs.progress import Display, JsonLines, LiveTables, LogLines, can_draw_over
from emulator.runs.run_client import RunClient
from emulator.tracking.tracker import TrackedRun
from emulator.tracking.tracking import Tracking
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.plugins import check_may_start
from fedstrata.process.address import loopback
from fedstrata.process.descriptors import raise_limit
from fedstrata.process.starting import Starter
from fedstrata.v1 import gps_service_pb2 as pb

if TYPE_CHECKING:
    from rich.console import Console


Check = Callable[[Experiment, int | None], None]  # takes the experiment and the wanted number of device processes


def check_devices_here(experiment: Experiment, device_processes: int | None) -> None:
    """Check that the devices of an experiment can run on this machine, in `device_processes` processes (by default one
    per core).

    Raises FedstrataError if the data or deadlines allow no run. Also raises it if this machine lacks the processor
    that the experiment names, or if this processor has too little memory.
    """
    dataset = check_here(experiment)
    if said := lacking_room(experiment, dataset, process_count(experiment, device_processes)):
        raise ExperimentError(said)


def check_devices_on_boards(experiment: Experiment, _: int | None) -> None:
    """Check the data and the deadlines of an experiment that trains on boards. This machine's processor is not
    checked. A board checks its own processor when its device starts. Raises FedstrataError if the data or deadlines
    allow no run.
    """
    check_data(experiment)


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """Hold the user's request for a run of `experiment` in the folder `out`. If `experiment` is None, the run in this
    folder continues.
    """

    experiment: Experiment | None
    out: Path
    device_processes: int | None = None  # None: one per core
    shows_page: bool = False  # whether to show the live page in a browser
    has_tls: bool = True  # whether its processes speak TLS to each other
    backend: Callable[..., LocalBackend] = LocalBackend  # starts the run's processes
    check: Check = check_devices_here  # raises FedstrataError if the experiment cannot run where its devices are
    tracking: Tracking = field(default_factory=Tracking)  # shows the run in other tools
    arrivals: Path | None = None  # record with the asynchronous rounds that the run repeats

    def __post_init__(self) -> None:
        if self.device_processes is not None and self.device_processes < 1:
            raise ExperimentError(f"device_processes: must be at least 1, not {self.device_processes}")


def run(request: RunRequest, *, is_json: bool = False, is_quiet: bool = False) -> None:
    """Run the experiment, and show its progress and its result.

    Raises:
        FedstrataError, KeyboardInterrupt: the errors of `execute`. The result of a failed run is shown, too.
    """
    outcome = execute(request, make_display(is_json=is_json, is_quiet=is_quiet))
    if outcome.status.has_record:
        _tell(request.out, is_json=is_json)
    if outcome.failure is not None:
        raise outcome.failure


def execute(request: RunRequest, display: Display) -> Outcome:
    """Run the experiment, and return how the run ended. Its record, report, state and logs are then in the folder
    `request.out`.

    Raises:
        FedstrataError: nothing was started because something is wrong.
        KeyboardInterrupt: a signal interrupted the run. All processes have ended, and written files stay.
    """
    from emulator.results.report import write_report

    check_may_start("fedstrata run")
    check_current_folder()
    raise_limit()
    loopback()  # raises now if there is no loopback address
    with _prepared(request) as experiment:
        display.begins(request.experiment or experiment)
        try:
            outcome = run_interruptibly(_alone(request, experiment, display))
        finally:
            request.tracking.end(request.out)
    if outcome.status.has_record:
        write_report(request.out)
    return outcome


@contextmanager
def _prepared(request: RunRequest) -> Iterator[Experiment]:
    """Check the experiment of a request, prepare the folder, and yield the experiment. During the block, the folder is
    reserved for this process.
    """
    if request.experiment is not None:
        check_unused(request.out)
        request.check(request.experiment, request.device_processes)
        if request.arrivals is not None:
            check_arrivals(request.arrivals, request.experiment)
    with run_folder(request.out, request.experiment) as experiment:
        if request.experiment is None:
            request.check(experiment, request.device_processes)
        if request.arrivals is not None:
            keep_arrivals(request.arrivals, request.out)
        yield experiment


async def _alone(request: RunRequest, experiment: Experiment, display: Display) -> Outcome:
    async with nurseries() as starter:
        return await on_this_machine(request, experiment, display, starter)


async def on_this_machine(request: RunRequest, experiment: Experiment, display: Display, starter: Starter) -> Outcome:
    """Run the experiment in its prepared folder, and return how the run ended. `starter` starts its processes. If this
    call is cancelled, it ends all processes before it returns.
    """
    backend = request.backend(
        request.out,
        device_processes=request.device_processes,
        on_restart=display.restarted,
        has_tls=request.has_tls,
        starter=starter,
    )
    starter.prepare(backend.programs)

    def show(status: pb.RunStatus) -> None:
        display.show(status)
        backend.observe(status)

    with display.open():
        async with backend:
            address = await backend.start(experiment)
            tracked = TrackedRun.of(experiment.to_yaml(), experiment.run_id, request.out)
            request.tracking.watch(tracked, backend.http_address)
            if request.shows_page:
                show_page(display.page, backend.http_address)
            async with RunClient(address, backend.security) as client:
                outcome = await follow(client, backend, show)
                if outcome.status.has_record:
                    await client.fetch_record(outcome.status.run_id, request.out)
    return outcome


def _tell(folder: Path, *, is_json: bool) -> None:
    """Print the result of a finished run, as text or as JSON."""
    from emulator.results.read_record import load_record
    from emulator.results.result_lines import print_result

    if is_json:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        print_json({"event": "summary", "folder": str(folder), "summary": summary})
    else:
        print_result(load_record(folder), folder / "report.html", _console())


def make_display(*, is_json: bool, is_quiet: bool) -> Display:
    """Return the display that the user asked for, or by default the best display for this terminal."""
    console = _console()
    if is_quiet:
        return Display()
    if is_json:
        return JsonLines()
    return LiveTables(console) if can_draw_over(console) else LogLines(console)


def _console() -> "Console":
    from emulator.console.console_tables import make_console

    return make_console()
