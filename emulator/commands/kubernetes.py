"""Define the commands for a run on Kubernetes: up, status, collect and down."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from emulator.commands.options import Changes, Contents, Place, Tracked, with_groups
from emulator.commands.package import EXPERIMENT

ReleaseName = Annotated[str, typer.Option("--release", metavar="NAME", help="The name of the Helm release.")]


@with_groups
def up(
    *,
    experiment: Annotated[Path, EXPERIMENT],
    release: ReleaseName = "fedstrata",
    place: Place,
    changes: Changes,
    contents: Contents,
    begins_again: Annotated[
        bool, typer.Option("--again", help="Begin a failed run again. The old record is kept aside.")
    ] = False,
    replaces_run: Annotated[
        bool,
        typer.Option("--replace", help="Interrupt a run of another experiment, and keep its state."),
    ] = False,
    timeout: Annotated[int, typer.Option(min=1, help="Wait at most this many seconds until the pods are ready.")] = 300,
) -> None:
    """Install or upgrade a release with an experiment, and wait until all pods are ready."""
    from emulator.cluster.up import UpRequest, load_for_cluster
    from emulator.cluster.up import up as do_up
    from emulator.console.console_tables import make_console
    from emulator.shipped.experiments import find_experiment
    from emulator.shipped.share import CHART
    from fedstrata.plugins import look_also_in

    console = make_console()
    look_also_in(file.parent for file in contents.code or ())
    tell = partial(console.print, soft_wrap=True, markup=False)
    request = UpRequest(
        experiment=load_for_cluster(find_experiment(experiment), changes.overrides or (), changes.seed, tell),
        values=contents.values or (),
        value_overrides=contents.value_overrides or (),
        resets_values=contents.resets_values,
        begins_again=begins_again,
        replaces_run=replaces_run,
        code=contents.code or (),
        chart=contents.chart or CHART,
        timeout_s=timeout,
    )
    do_up(place.release(release), request, console)


@with_groups
def status(
    *,
    release: ReleaseName = "fedstrata",
    place: Place,
    is_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    shows_page: Annotated[
        bool, typer.Option("--page", help="Print the live page's address, and open it if this machine has a screen.")
    ] = False,
    is_once: Annotated[bool, typer.Option("--once", help="Show the run's present state, and end.")] = False,
) -> None:
    """Watch the run on Kubernetes until it ends."""
    from emulator.cluster import remote
    from emulator.console.console_tables import make_console
    from emulator.runs.progress import drawn
    from emulator.runs.run import make_display

    if shows_page and is_once:
        raise typer.BadParameter("--page follows the run, and --once does not; leave one of them out")
    where = place.release(release)
    display = make_display(is_json=is_json, is_quiet=is_once and not is_json)
    found = remote.status(where, display, once=is_once, shows_page=shows_page)
    if is_once and not is_json:
        make_console().print(drawn(found, [], seconds=found.seconds))


@with_groups
def collect(
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Write the record and the report to this new folder.")],
    release: ReleaseName = "fedstrata",
    place: Place,
    tracked: Tracked,
    is_quiet: Annotated[bool, typer.Option("--quiet", help="Print only the result, no progress.")] = False,
) -> None:
    """Wait for the end of the run on Kubernetes, and fetch the record of the run."""
    from emulator.cluster import remote
    from emulator.console.console_tables import make_console
    from emulator.results.read_record import load_record
    from emulator.results.result_lines import print_result
    from emulator.runs.run import make_display

    where = place.release(release)
    report = remote.collect(where, out, make_display(is_json=False, is_quiet=is_quiet), tracked.tracking())
    print_result(load_record(out), report, make_console())


@with_groups
def down(
    *,
    release: ReleaseName = "fedstrata",
    place: Place,
    deletes_records: Annotated[
        bool, typer.Option("--delete-records", help="Also delete the volume claims with all records in them.")
    ] = False,
    is_sure: Annotated[bool, typer.Option("--yes", help="Do not ask before records are deleted.")] = False,
) -> None:
    """Uninstall the release. Records stay on its volume, unless --delete-records is given."""
    from emulator.cluster import remote
    from emulator.cluster.release_objects import InstalledRelease
    from emulator.cluster.rollout import listed
    from emulator.console.console_tables import make_console

    where = place.release(release)
    if deletes_records and not is_sure:
        _ask_to_delete(InstalledRelease(where).claims())
    done = remote.down(where, deletes_records=deletes_records, console=make_console(stderr=True))
    print(f"uninstalled {release}" if done.was_installed else f"{release} was already uninstalled")
    if done.certificates and not done.was_installed:
        print(f"deleted the certificates {listed(done.certificates)}")
    if done.deleted:
        print(f"deleted {', '.join(done.deleted)}")
    if done.kept:
        print(f"records stay on {', '.join(done.kept)}; fedstrata down --delete-records deletes them, too")


def _ask_to_delete(claims: list[str]) -> None:
    """Ask the user whether to delete these volume claims. Return if the user agrees.

    Raises:
        typer.BadParameter: there is no terminal, so the user cannot be asked.
        typer.Abort: the user says no.
    """
    if not claims:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"--delete-records deletes {', '.join(claims)} with all records; add --yes to confirm")
    typer.confirm(f"Delete {', '.join(claims)} with all records in them?", abort=True)
