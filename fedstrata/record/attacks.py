"""The key `attacks` of summary.json: the attackers of the run, and the results of honest devices."""

from collections.abc import Callable, Collection, Mapping
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass

from fedstrata.attacks import attacks_of
from fedstrata.experiment import Experiment


@checked_dataclass(frozen=True, kw_only=True)
class Attacked:
    """Describe the attacks of a run: the key `attacks` of summary.json."""

    devices: tuple[str, ...]
    """Devices that attack in some round."""
    lps: tuple[str, ...]
    """LPSs that attack in some round."""
    share_of_examples: Annotated[float, Field(ge=0, le=1)] | None
    """Share of `devices` in all training examples, as stated: their weight in a mean; null before devices enrol."""
    honest: dict[str, float | None]
    """Value of each metric of the final models, over the held-out examples of all other devices."""


def attacks_summary(
    experiment: Experiment,
    examples: Mapping[str, int],
    metrics_without: Callable[[Collection[str]], dict[str, float | None]],
) -> Attacked | None:
    """Return the attacks of a run. If the experiment has no attacks, return None. `examples` has numbers of training
    examples by device. `metrics_without` takes device ids, and returns the metrics of all other devices.
    """
    if not experiment.attacks:
        return None
    ids, entries = experiment.device_ids(), attacks_of(experiment)
    devices = [ids[index] for index in sorted({index for entry in entries for index in entry.devices})]
    weight = sum(examples.values())
    return Attacked(
        devices=tuple(devices),
        lps=tuple(f"lps-{number}" for number in sorted({number for entry in entries for number in entry.lps})),
        share_of_examples=sum(examples.get(device, 0) for device in devices) / weight if weight else None,
        honest=metrics_without(devices),
    )
