"""Define the command `bench-device`, which measures how fast this machine trains as a device."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emulator.commands.options import only_json
from emulator.commands.package import EXPERIMENT
from emulator.console.json_lines import print_json

if TYPE_CHECKING:
    from device.pace import Pace
    from fedstrata.experiment import Experiment


def bench_device(
    experiment: Annotated[Path, EXPERIMENT],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one key, e.g. model.name=cnn. Repeatable."),
    ] = None,
    device: Annotated[int, typer.Option(min=0, help="Measure the training of the device with this index.")] = 0,
    rounds: Annotated[
        int, typer.Option(min=1, max=10_000, help="Measure this many LPS rounds, after one to warm up.")
    ] = 9,
    is_json: Annotated[
        bool, typer.Option("--json", callback=only_json, help="Print the result as one JSON object.")
    ] = False,
) -> None:
    """Measure how long this machine trains an example, for the key compute.per_example."""
    from device.pace import data_here, measured_pace, training_job
    from emulator.shipped.experiments import find_experiment
    from fedstrata.experiment_file import load_experiment

    loaded = load_experiment(find_experiment(experiment), overrides or ())
    pace = measured_pace(training_job(loaded, data_here(loaded), device), rounds)
    if is_json:
        print_json(pace_fields(pace, loaded))
    else:
        print(said_of(pace, loaded))


def pace_fields(pace: "Pace", experiment: "Experiment") -> dict[str, object]:
    """Return the measured values as a mapping for JSON. The key `profile` has this machine's time per example divided
    by the experiment's compute.per_example. If the experiment does not set compute.per_example, `profile` is null.
    """
    return {
        "per_example_ns": pace.per_example_ns,
        "fastest_ns": round(min(pace.seconds) * 1e9),
        "slowest_ns": round(max(pace.seconds) * 1e9),
        "rounds": len(pace.seconds),
        "examples": pace.examples,
        "model": experiment.model.name,
        "profile": _profile(pace, experiment),
    }


def said_of(pace: "Pace", experiment: "Experiment") -> str:
    """Return a text with the measured values, and with lines for an experiment file."""
    from emulator.console.units import counted
    from fedstrata.experiment.quantities import DURATION

    shown = [DURATION.written(_three_digits(seconds * 1e9)) for seconds in (min(pace.seconds), max(pace.seconds))]
    lines = [
        f"{DURATION.written(_three_digits(pace.per_example_ns))} per example of {experiment.model.name}: the median of "
        f"{counted(len(pace.seconds), 'round')} of {counted(pace.examples, 'example')}, {shown[0]} to {shown[1]}",
        f"compute: {{per_example: {DURATION.written(_three_digits(pace.per_example_ns))}}}",
    ]
    profile = _profile(pace, experiment)
    if profile is not None:
        lines.append(f"or, if the file's per_example stays, profiles: {{here: {profile:g}}}")
    return "\n".join(lines)


def _profile(pace: "Pace", experiment: "Experiment") -> float | None:
    """Return this machine's time per example divided by the experiment's compute.per_example. If the experiment does
    not set this key, return None.
    """
    compute = experiment.compute
    if compute is None or not compute.per_example:
        return None
    return float(f"{pace.per_example_ns / compute.per_example:.3g}")


def _three_digits(duration_ns: float) -> int:
    """Return a duration rounded to three digits, which is the precision of the measurement."""
    return round(float(f"{duration_ns:.3g}"))
