"""What a sweep measures of its runs, by the name that stands above a column."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from emulator.results.comparison import MEAN, accuracy_of
from emulator.results.device_costs import bytes_in_all, bytes_until_grouped, bytes_until_nearly_final
from emulator.results.record import RunRecord

# names of tasks are in small letters
ARI, DEVICES, LOWEST, RECEIVED, NEWCOMERS = "ARI", "Devices", "Lowest", "Received", "Newcomers"
PERCENT, INDEX, MEGABYTES = (100.0, 1, " %"), (1.0, 2, ""), (1e-6, 2, " MB")  # factor, digits, unit


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number of each run: its column in table.csv, how it is computed, and how it is printed."""

    column: str
    of: Callable[[RunRecord], float | None]
    form: tuple[float, int, str] = PERCENT

    def said(self, mean: float, deviation: float | None, *, sign: str = "") -> str:
        """Return the value as 73.5 ± 1.2 in percent; an adjusted Rand index as 0.98 ± 0.03."""
        factor, digits, _ = self.form
        spread = "" if deviation is None else f" ± {factor * deviation:.{digits}f}"
        return f"{factor * mean:{sign}.{digits}f}{spread}".replace("-", "−")


def device_mean_accuracy(run: RunRecord) -> float | None:
    """Return the plain mean over devices, whatever their clusters and however many examples each is tested on."""
    return _mean(run.summary.device_accuracy.values())


def newcomers_accuracy(run: RunRecord) -> float | None:
    """Return the plain mean over the devices that joined once the others were grouped."""
    return _mean(run.summary.device_accuracy.get(device) for device in run.summary.newcomers)


def lowest_accuracy(run: RunRecord) -> float | None:
    """Return the accuracy of the device with the lowest."""
    return min(_known(run.summary.device_accuracy.values()), default=None)


def received_accuracy(run: RunRecord) -> float | None:
    """Return the accuracy of models as they were received, if devices use models of their own beside them."""
    return (run.summary.received_accuracy or {}).get("mean")


ACCURACIES: Mapping[str, Measure] = {
    ARI: Measure(column="adjusted_rand_index", of=lambda run: run.summary.adjusted_rand_index, form=INDEX),
    MEAN: Measure(column="mean_accuracy", of=lambda run: run.summary.mean_accuracy),
    DEVICES: Measure(column="device_mean_accuracy", of=device_mean_accuracy),
    LOWEST: Measure(column="lowest_accuracy", of=lowest_accuracy),
    RECEIVED: Measure(column="received_accuracy", of=received_accuracy),
    NEWCOMERS: Measure(column="newcomers_accuracy", of=newcomers_accuracy),
}
COSTS: Mapping[str, Measure] = {
    "until grouped": Measure(column="bytes_until_grouped", of=bytes_until_grouped, form=MEGABYTES),
    "until 95 %": Measure(column="bytes_until_95_percent", of=bytes_until_nearly_final, form=MEGABYTES),
    "in all": Measure(column="device_bytes", of=bytes_in_all, form=MEGABYTES),
}


def measure(name: str) -> Measure:
    """Return a measure by its name. A name that is none of the above names a true task."""
    return (
        ACCURACIES.get(name)
        or COSTS.get(name)
        or Measure(column=f"accuracy_{name}", of=lambda run: accuracy_of(run, name))
    )


def heading(name: str) -> str:
    """Return the heading of a measure's column, with the unit."""
    return f"{name}{measure(name).form[2]}"


def is_number(heading: str) -> bool:
    """Return whether a table's column of this heading holds numbers."""
    return heading in ("seeds", ARI) or heading.endswith(("%", "MB"))


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return fmean(known) if known else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
