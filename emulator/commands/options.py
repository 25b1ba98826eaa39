"""Define groups of options that several commands share. A group is a data class with a field for each option."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emulator.console.json_lines import json_alone

if TYPE_CHECKING:
    from emulator.cluster.release import Release
    from emulator.local.processes import LocalBackend
    from emulator.runs.run import Check
    from emulator.tracking.tracking import Tracking
    from fedstrata.experiment import Experiment


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command in a form that Typer accepts: each parameter that is a group is replaced by the group's
    options.
    """
    parameters = inspect.signature(command).parameters.values()
    groups: dict[str, Any] = {each.name: each.annotation for each in parameters if is_dataclass(each.annotation)}

    @wraps(command)
    def run(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **made)

    options = [option for each in parameters for option in _options(each)]
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # which Typer reads
    return run


def _options(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    if not is_dataclass(parameter.annotation):
        yield parameter
        return
    for field in fields(parameter.annotation):
        default = parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(field.name, parameter.KEYWORD_ONLY, default=default, annotation=field.type)


Jobs = Annotated[int | None, typer.Option(min=1, help="Do this many runs at once.", show_default="one more than cores")]


@dataclass(frozen=True, kw_only=True)
class Folders:
    """Hold the options with folders of runs."""

    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write the record, report, state and logs to this new folder.",
            show_default="runs/EXPERIMENT, then runs/EXPERIMENT-2, …",
        ),
    ] = None
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Continue the interrupted or failed run in this folder.")
    ] = None
    arrivals: Annotated[
        Path | None, typer.Option(metavar="RECORD", help="Repeat the asynchronous rounds of this record, bit for bit.")
    ] = None

    def of_run(self, experiment: Path | None, *, is_changed: bool) -> Path:
        """Return the folder of the run: the folder in `--resume` or `--out`, or otherwise a new folder. `--resume`
        excludes other arguments.
        """
        if self.resume is not None:
            if is_changed or (experiment, self.out, self.arrivals) != (None, None, None):
                raise typer.BadParameter(
                    "--resume DIR continues the run in DIR; leave out the experiment and its options"
                )
            return self.resume
        if experiment is None:
            raise typer.BadParameter("give an experiment file or the name of an example, or --resume DIR")
        from emulator.results.output import unused_folder

        return self.out or unused_folder(Path("runs"), experiment.stem)


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Hold the options that change an experiment."""

    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change one key of the experiment, e.g. training.global_rounds=3. Repeatable.",
        ),
    ] = None
    seed: Annotated[int | None, typer.Option(min=0, help="Use this seed instead of the file's.")] = None

    def load(self, experiment: Path) -> "Experiment":
        """Load an experiment from a file, or an example by its name. Return it with the changes that these options
        make.
        """
        from emulator.shipped.experiments import find_experiment
        from fedstrata.experiment_file import load_experiment
        from fedstrata.store.own_code import with_digests

        return with_digests(load_experiment(find_experiment(experiment), self.overrides or (), self.seed))


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Hold the options that decide where the devices of a run are."""

    device_processes: Annotated[
        int | None,
        typer.Option(min=1, help="Share the devices among this many processes.", show_default="one per core"),
    ] = None
    fleet: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Run the devices on the boards of the fleet at this address."),
    ] = None
    fleet_tls: Annotated[
        Path, typer.Option(metavar="DIR", help="Use the operator's certificate in this folder for the fleet.")
    ] = Path("certs/operator")
    boards: Annotated[
        int | None, typer.Option(min=1, help="Use at most this many boards of the fleet.", show_default="all")
    ] = None

    def backend(self) -> "Callable[..., LocalBackend]":
        """Return a function that constructs the backend of a run. The backend runs the devices on this machine, or on
        the boards of a fleet.

        Raises:
            ExperimentError: an option is given that has no meaning for this backend.
        """
        from fedstrata.errors import ExperimentError

        if self.fleet is not None and self.device_processes is not None:
            raise ExperimentError(
                "--device-processes does not go with --fleet: each board has one device process per run; leave one out"
            )
        if self.fleet is None and self.boards is not None:
            raise ExperimentError("--boards needs a fleet; give the fleet's address with --fleet")
        if self.fleet is None:
            from emulator.local.processes import LocalBackend

            return LocalBackend
        from emulator.boards.boards_backend import FleetBackend
        from emulator.boards.fleet_client import FleetPlace

        place = FleetPlace(address=self.fleet, tls=self.fleet_tls)
        return partial(FleetBackend, fleet=place, most_boards=self.boards)

    def check(self) -> "Check":
        """Return the function that checks an experiment before its run: for devices here, or for devices on boards."""
        from emulator.runs.run import check_devices_here, check_devices_on_boards

        return check_devices_here if self.fleet is None else check_devices_on_boards


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """Hold the option that shows runs in other tools while they go on."""

    track: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOOL", help="Show curves in tensorboard[:FOLDER], mlflow[:URI] or wandb[:PROJECT]. Repeatable."
        ),
    ] = None

    def tracking(self) -> "Tracking":
        """Return the trackers of one run. Raises MissingPackageError if a tracker's library is not installed."""
        return self.trackings()()

    def trackings(self) -> "Callable[[], Tracking]":
        """Return a function that makes the trackers of one run. Raises the errors of `tracking`."""
        from emulator.tracking.registry import trackings

        return trackings(self.track or ())


@dataclass(frozen=True, kw_only=True)
class Watching(Tracked):
    """Hold the options that show a run on this machine while it goes on."""

    shows_page: Annotated[
        bool, typer.Option("--page", help="Print the live page's address, and open it if this machine has a screen.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class Place:
    """Hold the options that say in which Kubernetes and in which namespace a release is."""

    namespace: Annotated[str, typer.Option("--namespace", "-n", metavar="NAME", help="The Kubernetes namespace.")] = (
        "default"
    )
    context: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Use this context of the kubeconfig.", show_default="the current one"),
    ] = None
    kubeconfig: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Use this kubeconfig.", show_default="$KUBECONFIG, ~/.kube/config"),
    ] = None

    def release(self, name: str) -> "Release":
        """Return the description of the release with this name. Raises ExperimentError if no release can have this
        name.
        """
        from emulator.cluster.release import Release

        return Release(name=name, namespace=self.namespace, context=self.context, kubeconfig=self.kubeconfig)


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Hold the options that give a release its values, the user's own code and its chart."""

    values: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Give the chart the values of this file. Repeatable."),
    ] = None
    value_overrides: Annotated[
        list[str] | None,
        typer.Option("--set-value", metavar="KEY=VALUE", help="Change one of the chart's values. Repeatable."),
    ] = None
    resets_values: Annotated[bool, typer.Option("--reset-values", help="Forget the values of earlier calls.")] = False
    code: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Upload this file of own code, which the experiment names. Repeatable."),
    ] = None
    chart: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Use the chart in this folder, not the project's.")
    ] = None


def only_json(context: typer.Context, is_json: bool) -> bool:
    """If a command prints JSON, keep other text off standard output until the command ends."""
    if is_json:
        context.with_resource(json_alone())
    return is_json


@dataclass(frozen=True, kw_only=True)
class Output:
    """Hold the options for the output of a command."""

    is_json: Annotated[
        bool,
        typer.Option("--json", callback=only_json, help="Print one JSON object per line; the last is the summary."),
    ] = False
    is_quiet: Annotated[bool, typer.Option("--quiet", help="Print only the result, no progress.")] = False
