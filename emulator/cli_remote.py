"""The commands for a run on Kubernetes: up, status, collect, down."""

from pathlib import Path
from typing import Annotated

import typer

ReleaseName = Annotated[str, typer.Option("--release", metavar="NAME", help="The Helm release.")]
Namespace = Annotated[str, typer.Option(metavar="NAME", help="The Kubernetes namespace.")]


def up(
    *,
    experiment: Annotated[Path, typer.Argument(metavar="EXPERIMENT.yaml", help="The experiment file.")],
    release: ReleaseName = "fedstrata",
    namespace: Namespace = "default",
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one key of the experiment. Repeatable."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Take this seed instead of the file's.")] = None,
    values: Annotated[
        list[Path] | None, typer.Option("--values", metavar="FILE", help="Values for the chart. Repeatable.")
    ] = None,
    chart: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Another chart than the project's.")] = None,
    timeout: Annotated[int, typer.Option(min=1, help="Seconds that the pods may take to be ready.")] = 300,
) -> None:
    """Install or upgrade the chart with an experiment, and wait until all pods are ready."""
    from rich.console import Console

    from emulator import remote

    loaded = remote.load_for_cluster(experiment, overrides or (), seed)
    where = remote.Release(name=release, namespace=namespace)
    console = Console(highlight=False)
    remote.up(where, loaded, values=values or (), chart=chart, timeout_s=timeout, console=console)


def status(
    *,
    release: ReleaseName = "fedstrata",
    namespace: Namespace = "default",
    is_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    is_once: Annotated[bool, typer.Option("--once", help="Show how the run stands now, and end.")] = False,
) -> None:
    """Watch the run on Kubernetes until it ends."""
    from emulator import remote
    from emulator.run import make_display

    where = remote.Release(name=release, namespace=namespace)
    found = remote.status(where, make_display(is_json=is_json, is_quiet=is_once), once=is_once)
    if is_once:
        print(remote.as_json(found))


def collect(
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder for the record and report.")],
    release: ReleaseName = "fedstrata",
    namespace: Namespace = "default",
    is_quiet: Annotated[bool, typer.Option("--quiet", help="No progress, the result only.")] = False,
) -> None:
    """Wait for the end of the run on Kubernetes and fetch its record."""
    from rich.console import Console

    from emulator import remote
    from emulator.record import load_record
    from emulator.result import print_result
    from emulator.run import make_display

    where = remote.Release(name=release, namespace=namespace)
    report = remote.collect(where, out, make_display(is_json=False, is_quiet=is_quiet))
    print_result(load_record(out), report, Console(highlight=False))


def down(
    *,
    release: ReleaseName = "fedstrata",
    namespace: Namespace = "default",
    delete_records: Annotated[
        bool, typer.Option("--delete-records", help="Delete the volume claims too, with all records in them.")
    ] = False,
) -> None:
    """Uninstall the release. Records stay on its volume unless told otherwise."""
    from emulator import remote

    claims = remote.down(remote.Release(name=release, namespace=namespace), delete_records=delete_records)
    print(f"uninstalled {release}" + (f"; deleted {', '.join(claims)}" if claims else ""))
