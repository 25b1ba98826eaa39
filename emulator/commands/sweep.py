"""Define the command `sweep`, which does many runs."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from emulator.commands.options import Jobs, Output, Place, Tracked, with_groups

if TYPE_CHECKING:
    from rich.console import Console

    from emulator.sweep_jobs.objects import JobRequest
    from emulator.sweep_jobs.storage import PodStorage
    from emulator.sweeps.store import SweepStore
    from emulator.sweeps.sweep import SweepOutcome
    from emulator.tracking.tracking import Tracking


@dataclass(frozen=True, kw_only=True)
class Pods:
    """Hold the options for the pods of a sweep on Kubernetes."""

    on: Annotated[
        Literal["kubernetes"] | None,
        typer.Option(
            help="Do the runs in a Job on Kubernetes. The options below are for this Job.", show_default=False
        ),
    ] = None
    claim: Annotated[
        str | None, typer.Option(metavar="NAME", help="Keep the runs on this volume claim, which all pods mount.")
    ] = None
    secret: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only with --to: set the variables of this Secret in the pods.")
    ] = None
    parallelism: Annotated[int, typer.Option(min=1, help="Do this many runs at once, each in its own pod.")] = 4
    cores: Annotated[int, typer.Option(min=1, help="Give each pod this many cores.")] = 1
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Give each pod this much memory.")] = "2Gi"
    image: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Run this image.", show_default="localhost/fedstrata/emulator:VERSION"),
    ] = None
    code: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Upload this file of own code, which an experiment names. Repeatable."),
    ] = None
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Set Kueue's label for this local queue.")] = None
    priority_class: Annotated[
        str | None, typer.Option("--priority-class", metavar="NAME", help="Give the pods this priority class.")
    ] = None
    retries: Annotated[int, typer.Option(min=0, help="Replace this many failed pods before the Job fails.")] = 6
    pod: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Merge this YAML into the pods' template, such as spec.nodeSelector."),
    ] = None

    def given(self) -> list[str]:
        """Return the options that differ from their defaults, in the form in which a user types them."""
        changed = (each.name for each in fields(self) if getattr(self, each.name) not in (each.default, []))
        return [f"--{name.replace('_', '-')}" for name in changed]

    def storage(self, to: str | None) -> "PodStorage":
        """Return where the pods keep the runs: on a volume claim or in a bucket. Raises BadParameter if neither is
        given.
        """
        from emulator.sweep_jobs.storage import BucketStorage, ClaimStorage

        if to is not None and self.claim is None:
            return BucketStorage(to, self.secret)
        if to is not None or self.claim is None:
            raise typer.BadParameter(
                "--on kubernetes needs a volume claim that all pods mount, or a bucket; give either --claim (kubectl "
                "get pvc lists claims) or --to"
            )
        if self.secret is not None:
            raise typer.BadParameter("--secret is only for a bucket; add --to, or leave --secret out")
        return ClaimStorage(self.claim)

    def job(self, to: str | None) -> "JobRequest":
        """Return the request for a Kubernetes Job with pods that do the sweep.

        Raises:
            BadParameter: neither a volume claim nor a bucket is given.
            ExperimentError: a value is not allowed.
        """
        from emulator.cluster.chart_values import load_values
        from emulator.sweep_jobs.objects import JobRequest, memory_of

        return JobRequest(
            storage=self.storage(to), parallelism=self.parallelism, cores=self.cores, memory_mib=memory_of(self.memory),
            image=self.image or "", queue=self.queue, priority_class=self.priority_class, retries=self.retries,
            pod=load_values(self.pod) if self.pod else {},
        )  # fmt: skip


@with_groups
def sweep(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A sweep file, as docs/sweep.md describes it.")],
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Write the runs and tables to this folder: a new folder, or this sweep's, to continue the sweep.",
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="s3://BUCKET/PREFIX",
            help="Share the runs with other machines through this bucket. It gets a copy of each record.",
        ),
    ] = None,
    jobs: Jobs = None,
    pods: Pods,
    place: Place,
    tracked: Tracked,
    output: Output,
) -> None:
    """Run an experiment with several variants (cells), settings and seeds. A stopped sweep is continued."""
    from emulator.console.console_tables import make_console

    console = make_console()
    if pods.on is None:
        if given := pods.given():
            raise typer.BadParameter(f"{', '.join(given)}: only for pods; add --on kubernetes, or leave this out")
        outcome = _here(file, _place(to, out), jobs, tracked.trackings(), console, output)
    elif tracked.track:
        raise typer.BadParameter("--track is only for runs on this machine; fedstrata export takes finished runs")
    elif jobs is not None:
        raise typer.BadParameter("--jobs is only for runs on this machine; for pods set --parallelism")
    else:
        outcome = _on_kubernetes(file, to, out, pods, place, console, output)
    _tell(outcome, out, console, is_json=output.is_json)
    if outcome.failure is not None:
        raise outcome.failure


def _place(to: str | None, out: Path) -> "SweepStore":
    from emulator.sweeps.bucket import SharedBucket
    from emulator.sweeps.s3 import Bucket
    from emulator.sweeps.store import SharedFolder

    return SharedFolder(out) if to is None else SharedBucket(Bucket(to), out)


def _here(  # noqa: PLR0917
    file: Path, store: "SweepStore", jobs: int | None, tracking: "Callable[[], Tracking]", console: "Console",
    output: Output,
) -> "SweepOutcome":  # fmt: skip
    from emulator.sweeps.sweep import SweepRequest
    from emulator.sweeps.sweep import sweep as do_sweep
    from emulator.sweeps.sweep_progress import make_display
    from emulator.sweeps.tuning import SweepSource, tuned_sweep

    display = make_display(console, is_json=output.is_json, is_quiet=output.is_quiet)
    tuned = tuned_sweep(SweepSource.of_file(file), store, jobs, display)
    request = SweepRequest(sweep=tuned, store=store, jobs=jobs, tracking=tracking)
    return do_sweep(request, display)


def _on_kubernetes(  # noqa: PLR0917
    file: Path, to: str | None, out: Path, pods: Pods, place: Place, console: "Console", output: Output
) -> "SweepOutcome":
    from emulator.console.console_tables import make_console
    from emulator.sweep_jobs.finished import BucketRuns, ClaimRuns
    from emulator.sweep_jobs.objects import job_name
    from emulator.sweep_jobs.sweep_job import ClusterSweepRequest, sweep_on_kubernetes
    from emulator.sweeps.bucket import SharedBucket
    from emulator.sweeps.file import load_sweep
    from emulator.sweeps.sweep_progress import make_display
    from fedstrata.plugins import look_also_in

    job, code = pods.job(to), pods.code or ()
    look_also_in(path.parent for path in code)
    loaded = load_sweep(file)
    where = place.release(job_name(loaded.name))
    store = _place(to, out)
    runs = (lambda *_: BucketRuns(store)) if isinstance(store, SharedBucket) else partial(ClaimRuns, folder=out)
    request = ClusterSweepRequest(sweep=loaded, store=store, runs=runs, job=job, where=where, code=code)
    is_apart = output.is_json or output.is_quiet
    beside = make_console(stderr=True, quiet=output.is_quiet) if is_apart else console
    display = make_display(console, is_json=output.is_json, is_quiet=output.is_quiet)
    return sweep_on_kubernetes(request, display, partial(beside.print, soft_wrap=True, markup=False))


def _tell(outcome: "SweepOutcome", out: Path, console: "Console", *, is_json: bool) -> None:
    """Print the result of a sweep."""
    from emulator.console.json_lines import print_json
    from emulator.console.units import counted, human_seconds
    from emulator.sweeps import text_tables

    cost, results = outcome.cost, outcome.results
    if is_json:
        print_json({
            "event": "sweep", "folder": str(out), "runs": len(results.sweep.runs), "completed": len(results.records),
            "done_now": cost.runs, "seconds": round(cost.seconds, 3), "cpu_seconds": round(cost.cpu_seconds, 3),
            "cores": cost.cores,
        })  # fmt: skip
        return
    show = partial(print_table, console, results.of.is_number)
    show(f"Mean ± sample standard deviation over seeds, on {results.measured_on}", text_tables.means(results))
    for title, given in text_tables.titled(results):
        show(title, given)
    if cost.runs:
        busy = f", {cost.ratio:.2f} × their CPU time shared by {counted(cost.cores, 'core')}" if cost.ratio else ""
        console.print(f"{counted(cost.runs, 'run')} in {human_seconds(cost.seconds)}{busy}")
    console.print(
        f"tables  {out / 'table.csv'}, table.md, paper.md, paper.tex\npage    {out / 'index.html'}",
        soft_wrap=True,
        markup=False,
    )


def print_table(
    console: "Console", is_number: Callable[[str], bool], title: str, given: tuple[list[str], list[list[str]]]
) -> None:
    """Print a table at its full width, so that no column is cut."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from fedstrata.process.quoting import printable

    head, rows = given
    table = Table(title=Text(title, style="bold"), box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for name, *column in zip(head, *rows, strict=True):
        if is_number(name):
            table.add_column(name, justify="right", min_width=max(map(len, (name, *column))))
        else:
            table.add_column(name, min_width=12, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table, crop=False)
