"""Define the command line. Commands parse arguments, and call functions that do the work. A command imports heavy
libraries only when it needs them.
"""

import atexit
import errno
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from emulator.commands import (
    bench_device,
    calibrate,
    certs,
    export,
    fleet,
    kubernetes,
    package,
    partition,
    plan,
    reproduce,
    retime,
    sweep,
)
from emulator.commands.options import Changes, Devices, Folders, Output, Watching, with_groups
from emulator.commands.package import EXPERIMENT
from emulator.console.discarded_output import discard, discard_blocked, lasting
from fedstrata.errors import EXIT_INTERRUPTED, EXIT_OUTPUT, EXIT_USAGE, FedstrataError
from fedstrata.process.forks import end_children, kill_children, spare_forks
from fedstrata.process.logs import print_whatever_comes

if TYPE_CHECKING:
    from fedstrata.datasets import Dataset
    from fedstrata.experiment import Experiment

EXIT_FAULT = 1  # the exit code of a bug in Fedstrata
END_S = 10.0  # the longest wait for what own code has left behind
INCOMPLETE = {
    errno.ENOSPC: "a disk is full, so output is not complete; free space and run again",
    errno.EIO: "a terminal is gone or a disk fails, so output is not complete; run again",
}
UsageError = typer.BadParameter.__base__

app = typer.Typer(
    help="Hierarchical federated learning: one experiment file, three tiers, one record.",
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from fedstrata.process.machine import installed

        print(f"fedstrata {installed('fedstrata')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Hierarchical federated learning: one experiment file, three tiers, one record."""


@app.command()
@with_groups
def run(
    *,
    experiment: Annotated[Path | None, EXPERIMENT] = None,
    folders: Folders,
    changes: Changes,
    devices: Devices,
    watching: Watching,
    has_tls: Annotated[
        bool, typer.Option("--tls/--no-tls", help="Let the processes speak TLS to each other, or not.")
    ] = True,
    output: Output,
) -> None:
    """Run an experiment on this machine."""
    from emulator.runs.run import RunRequest
    from emulator.runs.run import run as run_request

    folder = folders.of_run(experiment, is_changed=bool(changes.overrides) or changes.seed is not None)
    loaded = None if experiment is None else changes.load(experiment)
    request = RunRequest(
        experiment=loaded,
        out=folder,
        device_processes=devices.device_processes,
        shows_page=watching.shows_page,
        has_tls=has_tls,
        backend=devices.backend(),
        check=devices.check(),
        tracking=watching.tracking(),
        arrivals=folders.arrivals,
    )
    run_request(request, is_json=output.is_json, is_quiet=output.is_quiet)


@app.command()
@with_groups
def check(
    *,
    experiment: Annotated[Path, EXPERIMENT],
    changes: Changes,
    is_tried: Annotated[
        bool,
        typer.Option(
            "--try",
            help="Try the model and the task, check that training two steps twice gives the same bits, propose "
            "bounds.max_update_norm, and measure what a round costs on this machine. For a sweep, only measure seconds "
            "of training.",
        ),
    ] = False,
) -> None:
    """Validate an experiment. Print its topology, and an estimate of the bytes that it sends. For a sweep file, print
    what its runs cost.
    """
    from emulator.console.console_tables import make_console
    from emulator.estimates.check import check_data, print_check
    from emulator.sweeps.file import is_sweep

    if is_sweep(experiment):
        _check_sweep(experiment, changes, is_tried=is_tried)
        return
    loaded = changes.load(experiment)
    dataset = check_data(loaded)
    print_check(loaded, dataset, make_console())
    if is_tried:
        _try(loaded, dataset)


def _try(experiment: "Experiment", dataset: "Dataset | None") -> None:
    """Try the model and the task, and print what a round costs on this machine. Raises ExperimentError if only boards
    have the data.
    """
    from device.repeat import pace_here, try_experiment
    from device.update_norms import first_norms
    from emulator.estimates.device_processes import usable_cores
    from emulator.estimates.round_cost import round_cost
    from fedstrata.errors import ExperimentError
    from fedstrata.partitions.local_data import ON_BOARDS
    from fedstrata.processors import with_memory_to_try

    if dataset is None:
        raise ExperimentError(ON_BOARDS)
    with with_memory_to_try(experiment):
        try_experiment(experiment, dataset)
        print("two steps, trained twice, give the same bits")
        if (norms := first_norms(experiment, dataset)) is not None:
            print(norms.said(experiment))
        pace = pace_here(experiment, dataset)
    cost = round_cost(experiment, dataset, per_example_s=pace.per_example_ns / 1e9, cores=usable_cores())
    print(cost.of_device)
    if experiment.training.rounds.asynchronous is None:
        print(cost.of_run)


def _check_sweep(path: Path, changes: Changes, *, is_tried: bool) -> None:
    """Print what the runs of a sweep file cost. With `is_tried`, also measure seconds of training."""
    from emulator.console.console_tables import make_console
    from emulator.estimates.device_processes import usable_cores
    from emulator.sweeps.sweep_cost import print_costs, row_costs
    from emulator.sweeps.tuning import SweepSource, sweeps_to_do

    if changes.overrides or changes.seed is not None:
        raise typer.BadParameter(f"{path} is a sweep file, which has its own seeds and cells; change them in the file")
    measure = _example_s if is_tried else None
    first, table = sweeps_to_do(SweepSource.of_file(path))
    sweeps = [("cell", first)] if table is None else [("candidate of tune", first), ("cell", table)]
    parts = [(title, row_costs(each, measure)) for title, each in sweeps]
    print_costs(parts, cores=usable_cores(), console=make_console())


def _example_s(experiment: "Experiment", dataset: "Dataset") -> float:
    """Return the measured seconds in which one core trains an example."""
    from device.repeat import pace_here
    from fedstrata.processors import with_memory_to_try

    with with_memory_to_try(experiment):
        return pace_here(experiment, dataset).per_example_ns / 1e9


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")],
    global_round: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Draw this global round of a run with a clock. By default the longest is drawn."
        ),
    ] = None,
) -> None:
    """Write the page report.html of a finished run again."""
    from emulator.results.report import write_report

    print(write_report(folder, global_round))


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="The folders of finished runs.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the table and the figure to this folder.")
    ] = None,
) -> None:
    """Compare finished runs: a table, and a figure in --out. Or compare a plan with a run of it."""
    from emulator.console.console_tables import make_console
    from emulator.planner.against import is_plan
    from emulator.results.compare import compare as compare_records
    from emulator.results.compare import show

    if is_plan(folders[0]):
        plan.compare_with_run(folders, out, make_console())
        return
    show(compare_records(folders, out), make_console())


for _command in (
    sweep.sweep,
    reproduce.reproduce,
    reproduce.verify,
    package.examples,
    package.schema,
    package.data,
    export.export,
    bench_device.bench_device,
    retime.retime,
    calibrate.calibrate,
    plan.plan,
    partition.partition,
    kubernetes.up,
    kubernetes.status,
    kubernetes.collect,
    kubernetes.down,
):
    app.command()(_command)


app.add_typer(certs.certs, name="certs")
app.add_typer(fleet.fleet, name="fleet")


def execute(arguments: Sequence[str]) -> int:
    """Run one command, and return its exit code. A failure is reported as one line on standard error."""
    try:
        code = int(app(list(arguments) or ["--help"], standalone_mode=False, prog_name="fedstrata") or 0)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        discard(sys.stdout)  # the reader of our output has ended
        return EXIT_FAULT
    except Exception as error:  # every other error is printed, not raised
        return _told_error(error)
    return _end("interrupted", code) if code == EXIT_INTERRUPTED else code


def _told_error(error: Exception) -> int:
    from fedstrata.process.quoting import printable

    if isinstance(error, FedstrataError):
        return _end(f"error: {printable(str(error))}", error.exit_code)
    if isinstance(error, OSError) and error.errno in INCOMPLETE:
        discard(sys.stdout)
        return _end(f"error: {INCOMPLETE[error.errno]}", EXIT_OUTPUT)
    if isinstance(error, OSError) and error.errno in {errno.EACCES, errno.ENAMETOOLONG} and error.filename:
        return _end(printable(f"error: {error.filename!s:.300}: {error.strerror}; give another path"), EXIT_USAGE)
    if isinstance(error, FileNotFoundError) and not error.filename:
        return _end(f"error: {_missing_folder()}", EXIT_OUTPUT)
    if UsageError is not None and isinstance(error, UsageError):
        from fedstrata.experiment.error_lines import in_plain_words

        said = " ".join(str(error.format_message()).split())  # type: ignore[attr-defined]  # of Click's class
        message = in_plain_words(said).removeprefix("Invalid value: ")
        return _end(f"error: {message}{'' if message[-1:] in '.?' else '.'} See fedstrata --help.", EXIT_USAGE)
    reason = printable(f"{type(error).__name__}: {error}")[:300]
    return _end(f"error: a bug in Fedstrata: {reason}; the traceback is in {_keep_traceback(error)}", EXIT_FAULT)


def _missing_folder() -> str:
    """Return a text that explains a FileNotFoundError without a file name: the current folder is deleted, or there is
    no folder for temporary files.
    """
    from emulator.results.output import check_current_folder

    try:
        check_current_folder()
    except FedstrataError as error:
        return str(error)
    return "no folder for temporary files can be written; name one in TMPDIR"  # raised by the module `tempfile`


def _end(line: str, code: int) -> int:
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:  # such as a reader that has ended
        discard(sys.stderr)
    return code


def _keep_traceback(error: Exception) -> str:
    descriptor, path = tempfile.mkstemp(prefix="fedstrata-", suffix=".log")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.writelines(traceback.format_exception(error))
    return path


def _end_with(codes: list[int]) -> None:
    """Flush all output, and end the process at once with the exit code in `codes`. If `codes` is empty, do nothing."""
    for code in codes:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _end_overdue(code: int) -> None:
    """End the process although the user's own code, such as a pool or a function of `atexit`, has not ended."""
    kill_children()
    _end_with([code])


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    discard_blocked()
    raise KeyboardInterrupt


def main() -> None:
    """Run the `fedstrata` command."""
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    spare_forks(ending)
    for number in ending:
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` ignores SIGHUP
            signal.signal(number, _interrupt)
    sys.stdout, sys.stderr = map(lasting, (sys.stdout, sys.stderr))
    print_whatever_comes()
    ended: list[int] = []
    atexit.register(_end_with, ended)  # registered first, so called last
    code = execute(sys.argv[1:])
    # The interpreter would end by SIGINT, not with this code, if Ctrl-C comes while it removes its modules, or if a
    # signal came while it compiled a data class.
    ended.append(code)
    end_children()
    for number in ending:  # everything is done; another signal ends silently
        signal.signal(number, lambda *_: os._exit(code))
    overdue = threading.Timer(END_S, _end_overdue, (code,))
    overdue.daemon = True
    overdue.start()
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        atexit._run_exitfuncs()  # the interpreter would first wait for this thread, which own code has left behind
    sys.exit(code)
