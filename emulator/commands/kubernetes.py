"""The commands for a run on Kubernetes: up, status, collect, down."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from emulator.commands.package import EXPERIMENT

ReleaseName = Annotated[str, typer.Option("--release", metavar="NAME", help="The name of the Helm release.")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", metavar="NAME", help="The Kubernetes namespace.")]
Context = Annotated[
    str | None,
    typer.Option(
        "--context", metavar="NAME", help="Use this context of the kubeconfig.", show_default="the current one"
    ),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig", metavar="FILE", help="Use this kubeconfig.", show_default="$KUBECONFIG, ~/.kube/config"
    ),
]


def up(
    *,
    experiment: Annotated[Path, EXPERIMENT],
    release: ReleaseName = "fedstrata",
    namespace: Namespace = "default",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one key of the experiment. Repeatable."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Take this seed instead of the file's.")] = None,
    values: Annotated[
        list[Path] | None,
        typer.Option("--values", metavar="FILE", help="Give the chart the values of this file. Repeatable."),
    ] = None,
    value_overrides: Annotated[
        list[str] | None,
        typer.Option("--set-value", metavar="KEY=VALUE", help="Change one of the chart's values. Repeatable."),
    ] = None,
    resets_values: Annotated[bool, typer.Option("--reset-values", help="Forget the values of earlier calls.")] = False,
    begins_again: Annotated[
        bool, typer.Option("--again", help="Begin a failed run anew, and put its record aside.")
    ] = False,
    replaces_run: Annotated[
        bool,
        typer.Option("--replace", help="Interrupt a run of another experiment, and keep its state."),
    ] = False,
    code: Annotated[
        list[Path] | None,
        typer.Option(
            "--code", metavar="FILE", help="Upload this file of own code, which the experiment names. Repeatable."
        ),
    ] = None,
    chart: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Use the chart in this folder, not the project's.")
    ] = None,
    timeout: Annotated[int, typer.Option(min=1, help="Wait at most so many seconds until the pods are ready.")] = 300,
) -> None:
    """Install or upgrade the chart with an experiment, and wait until all pods are ready."""
    from rich.console import Console

    from emulator.cluster import remote
    from emulator.cluster.release import Release
    from emulator.shipped.examples import find_experiment
    from fedstrata.plugins import look_also_in

    console = Console(highlight=False)
    look_also_in(file.parent for file in code or ())
    tell = partial(console.print, soft_wrap=True, markup=False)
    request = remote.UpRequest(
        experiment=remote.load_for_cluster(find_experiment(experiment), overrides or (), seed, tell),
        values=values or (),
        value_overrides=value_overrides or (),
        resets_values=resets_values,
        begins_again=begins_again,
        replaces_run=replaces_run,
        code=code or (),
        chart=chart,
        timeout_s=timeout,
    )
    where = Release(name=release, namespace=namespace, context=context, kubeconfig=kubeconfig)
    remote.up(where, request, console)


def status(
    *,
    release: ReleaseName = "fedstrata",
    namespace: Namespace = "default",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    shows_page: Annotated[
        bool, typer.Option("--page", help="Print the live page's address, and open it if this machine has a screen.")
    ] = False,
    is_once: Annotated[bool, typer.Option("--once", help="Show the run's present state, and end.")] = False,
) -> None:
    """Watch the run on Kubernetes until it ends."""
    from rich.console import Console

    from emulator.cluster import remote
    from emulator.cluster.release import Release
    from emulator.runs.progress import drawn
    from emulator.runs.run import make_display

    if shows_page and is_once:
        raise typer.BadParameter("--page follows the run, and --once does not; leave one of them out")
    where = Release(name=release, namespace=namespace, context=context, kubeconfig=kubeconfig)
    display = make_display(is_json=is_json, is_quiet=is_once and not is_json)
    found = remote.status(where, display, once=is_once, shows_page=shows_page)
    if is_once and not is_json:
        Console(highlight=False).print(drawn(found, [], seconds=found.seconds))


def collect(
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Write the record and the report to this new folder.")],
    release: ReleaseName = "fedstrata",
    namespace: Namespace = "default",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    is_quiet: Annotated[bool, typer.Option("--quiet", help="Print only the result, no progress.")] = False,
) -> None:
    """Wait for the end of the run on Kubernetes and fetch its record."""
    from rich.console import Console

    from emulator.cluster import remote
    from emulator.cluster.release import Release
    from emulator.results.record import load_record
    from emulator.results.result import print_result
    from emulator.runs.run import make_display

    where = Release(name=release, namespace=namespace, context=context, kubeconfig=kubeconfig)
    report = remote.collect(where, out, make_display(is_json=False, is_quiet=is_quiet))
    print_result(load_record(out), report, Console(highlight=False))


def down(
    *,
    release: ReleaseName = "fedstrata",
    namespace: Namespace = "default",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    deletes_records: Annotated[
        bool, typer.Option("--delete-records", help="Delete the volume claims, too, with all records in them.")
    ] = False,
    is_sure: Annotated[bool, typer.Option("--yes", help="Do not ask before records are deleted.")] = False,
) -> None:
    """Uninstall the release. Records stay on its volume, unless --delete-records is given."""
    from rich.console import Console

    from emulator.cluster import remote
    from emulator.cluster.release import Release
    from emulator.cluster.rollout import listed

    where = Release(name=release, namespace=namespace, context=context, kubeconfig=kubeconfig)
    if deletes_records and not is_sure:
        _ask_to_delete(remote.claims_of(where))
    done = remote.down(where, deletes_records=deletes_records, console=Console(highlight=False, stderr=True))
    print(f"uninstalled {release}" if done.was_installed else f"{release} was not installed any more")
    if done.certificates and not done.was_installed:
        print(f"deleted the certificates {listed(done.certificates)}")
    if done.deleted:
        print(f"deleted {', '.join(done.deleted)}")
    if done.kept:
        print(f"records stay on {', '.join(done.kept)}; fedstrata down --delete-records deletes them, too")


def _ask_to_delete(claims: list[str]) -> None:
    """Ask the user whether to delete these volume claims.

    Raises:
        typer.BadParameter: there is no terminal to ask in.
        typer.Abort: the user says no.
    """
    if not claims:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"--delete-records deletes {', '.join(claims)} with all records; say --yes to do so")
    typer.confirm(f"Delete {', '.join(claims)} with all records in them?", abort=True)
