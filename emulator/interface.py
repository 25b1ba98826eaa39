"""Use Fedstrata from Python. `run` and `load` return a `Record`, and `sweep` returns a `SweepRecord`."""

import html
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray

from emulator.console.units import decimal, human_bytes, human_seconds, measured
from emulator.results.columns import Matrix, Table, html_table, table_of
from emulator.results.output import unused_folder
from emulator.results.read_record import RunRecord, load_record
from emulator.results.trained import TrainedModels
from emulator.results.weights import Weights, read_weights
from emulator.shipped.experiments import find_experiment
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment.links import LINKS
from fedstrata.experiment_file import load_experiment, override_of, parse_experiment
from fedstrata.plugins import check_may_start, forget_changed
from fedstrata.record.rounds import RoundsTable
from fedstrata.store.own_code import with_digests
from fedstrata.tasks import Metric

if TYPE_CHECKING:
    from emulator.sweeps.results import SweepResults
    from emulator.sweeps.tuning import SweepSource
    from emulator.tracking.tracker import Tracker

__all__ = ["Matrix", "Models", "Record", "SweepRecord", "Table", "load", "run", "sweep"]

FACTS: Mapping[str, type] = {
    "run_id": str, "name": str, "seed": int, "method": str, "status": str, "devices": int, "clusters": int,
    "rounds": int,
}  # fmt: skip
COSTS: Mapping[str, type] = {"adjusted_rand_index": float, "seconds": float, "bytes": int}


def run(
    experiment: str | PathLike[str] | Mapping[str, Any],
    *,
    out: str | PathLike[str] | None = None,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    seed: int | None = None,
    device_processes: int | None = None,
    track: Sequence["str | Tracker"] = (),
    quiet: bool = False,
) -> "Record":
    """Run an experiment on this machine, as `fedstrata run` does, and return its record.

    Args:
        experiment: A file, the name of an example (`fedstrata examples`), or the content of a file as a mapping.
        out: New folder for the record, report, state and logs. By default `runs/EXPERIMENT`, numbered from the
            second on.
        overrides: Keys to change, as `{"training.global_rounds": 3}` or `["training.global_rounds=3"]`.
        seed: Seed to use instead of the experiment's seed.
        device_processes: Number of processes that share the devices. By default one per core.
        track: Tools that show the run while it goes on, such as `["tensorboard", "mlflow:http://lab:5000"]`, and
            objects of your own with the methods of `emulator.tracking.tracker.Tracker`.
        quiet: If true, show no progress.

    Raises:
        FedstrataError: The run cannot start, or fails. The message is one line with advice.
        KeyboardInterrupt: The run was interrupted. Its processes have ended.
    """
    from emulator.runs.run import RunRequest, execute, make_display
    from emulator.tracking.registry import trackings

    check_may_start("fedstrata.run")
    forget_changed()
    loaded, name = _experiment(experiment, [*_overrides(overrides)], seed)
    folder = unused_folder(Path("runs"), name) if out is None else Path(out)
    tracking = trackings([each if isinstance(each, str) else _giving(each) for each in track])()
    request = RunRequest(experiment=loaded, out=folder, device_processes=device_processes, tracking=tracking)
    outcome = execute(request, make_display(is_json=False, is_quiet=quiet))
    if outcome.failure is not None:
        raise outcome.failure
    return load(folder)


def _giving(tracker: "Tracker") -> "Callable[[], Tracker]":
    return lambda: tracker


def load(folder: str | PathLike[str]) -> "Record":
    """Open the record in a folder. Raises DataError if the folder has no record, or a damaged record."""
    return _record_of(load_record(Path(folder)))


def sweep(
    sweep: str | PathLike[str] | Mapping[str, Any],
    *,
    out: str | PathLike[str],
    jobs: int | None = None,
    track: Sequence["str | Callable[[], Tracker]"] = (),
    quiet: bool = False,
) -> "SweepRecord":
    """Do the missing runs of a sweep, as `fedstrata sweep` does, and return the records of all runs.

    Args:
        sweep: A file, or the content of a file as a mapping.
        out: New folder, or the folder of this sweep to continue it.
        jobs: Number of runs at the same time. By default the number of cores plus one.
        track: Tools that show each run while it goes on, as in `run`. Instead of an object of your own, give a
            function that makes one for each run.
        quiet: If true, show no progress.

    Raises:
        FedstrataError: Nothing was started because something is wrong, or a run failed. The same call tries failed runs
            again.
        KeyboardInterrupt: The sweep was interrupted. Its processes have ended, and the same call continues the sweep.
    """
    from emulator.console.console_tables import make_console
    from emulator.sweeps.store import SharedFolder
    from emulator.sweeps.sweep import SweepRequest
    from emulator.sweeps.sweep import sweep as do_sweep
    from emulator.sweeps.sweep_progress import make_display
    from emulator.sweeps.tuning import tuned_sweep
    from emulator.tracking.registry import trackings

    check_may_start("fedstrata.sweep")
    forget_changed()
    store, display = SharedFolder(Path(out)), make_display(make_console(), is_json=False, is_quiet=quiet)
    tuned = tuned_sweep(_sweep_source(sweep, Path(out).name), store, jobs, display)
    request = SweepRequest(sweep=tuned, store=store, jobs=jobs, tracking=trackings(track))
    outcome = do_sweep(request, display)
    if outcome.failure is not None:
        raise outcome.failure
    return SweepRecord(folder=Path(out), _results=outcome.results)


@dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """Hold the result of a run: its facts, tables and models."""

    folder: Path
    """Folder of the record."""
    name: str
    """Name of the experiment."""
    run_id: str
    """Name of the experiment and the first twelve digits of its SHA-256."""
    seed: int
    """Seed of the experiment."""
    status: Literal["completed", "failed"]
    """Outcome of the run: `completed`, or `failed` without a result."""
    reason: str | None
    """Reason for which the run failed. None if the run did not fail."""
    _record: RunRecord

    @property
    def accuracy(self) -> float:
        """Mean accuracy of the clusters' final models. NaN if it was not measured, or if the task has no accuracy."""
        return self.metrics.get("accuracy", math.nan)

    @property
    def metrics(self) -> Mapping[str, float]:
        """Each metric of the task by its name, as the mean over clusters. The main metric is the first. NaN if a metric
        was not measured.
        """
        summary = self._record.summary
        return {metric.name: _number(summary.mean_of(metric)) for metric in summary.metrics}

    @property
    def headline(self) -> Metric:
        """Main metric, by which devices and runs are compared. It has a name, a unit, and `higher_is_better`."""
        return self._record.headline

    @property
    def adjusted_rand_index(self) -> float:
        """Agreement of the clusters with the true tasks: 1 if both are equal. NaN if the partition has no tasks."""
        return _number(self._record.summary.adjusted_rand_index)

    @property
    def experiment(self) -> Mapping[str, Any]:
        """The experiment with every key and its value, including all defaults."""
        return self._record.experiment

    @property
    def experiment_yaml(self) -> str:
        """The content of experiment.yaml: the experiment with all defaults, as text."""
        return self._record.experiment_yaml

    @property
    def report(self) -> Path:
        """Path of the page that `fedstrata report` draws."""
        return self.folder / "report.html"

    @cached_property
    def summary(self) -> Table:
        """One row with the facts of the run. Rows of several runs can be put together into one table."""
        return table_of([_summary_row(self._record)], _summary_columns([self._record]))

    @cached_property
    def rounds(self) -> Table:
        """One row for each LPS round of each LPS, with the columns of rounds.csv."""
        table = RoundsTable(self._record.summary.metrics)
        rows = [dict(zip(table.columns, table.values(row), strict=True)) for row in self._record.rounds]
        return table_of(rows, table.types)

    @cached_property
    def clusters(self) -> Table:
        """One row per cluster. The columns are `cluster`, `devices` (the number of its devices), the metrics of its
        final model, such as `accuracy`, and `model_sha256`.
        """
        summary = self._record.summary
        rows = [
            {
                "cluster": name,
                "devices": len(devices),
                **{metric.name: summary.measured[metric.name].clusters.get(name) for metric in summary.metrics},
                "model_sha256": summary.model_sha256.get(name),
            }
            for name, devices in summary.clusters.items()
        ]
        return table_of(
            rows, {"cluster": str, "devices": int, **dict.fromkeys(self.metrics, float), "model_sha256": str}
        )

    @cached_property
    def devices(self) -> Table:
        """One row per device that is in a cluster. The columns are `device`, `cluster`, `task` (the true task) and the
        metrics, such as `accuracy`, of the model that the device uses, on its held-out examples. `task` is empty if the
        partition has no tasks. A metric is NaN if the device did not measure it.
        """
        summary = self._record.summary
        tasks, found = summary.device_tasks or {}, sorted(summary.cluster_of_device.items())
        rows = [
            {
                "device": device,
                "cluster": cluster,
                "task": tasks.get(device),
                **{metric.name: summary.measured[metric.name].devices.get(device) for metric in summary.metrics},
            }
            for device, cluster in found
        ]
        return table_of(rows, {"device": str, "cluster": str, "task": str, **dict.fromkeys(self.metrics, float)})

    @cached_property
    def bytes(self) -> Table:
        """One row per link. The columns are `link`, `up` (bytes sent towards the GPS) and `down` (bytes sent towards
        the devices).
        """
        counted = {link: self._record.summary.link(link) for link in LINKS}
        rows = [{"link": link, "up": of_link.up, "down": of_link.down} for link, of_link in counted.items()]
        return table_of(rows, {"link": str, "up": int, "down": int})

    @cached_property
    def relevance(self) -> Matrix | None:
        """Relevance matrix R. None if the method computes no relevance."""
        found = self._record.relevance
        return None if found is None else Matrix(ids=found.ids, values=found.matrix)

    @cached_property
    def models(self) -> Mapping[str, Weights]:
        """Final model of each cluster by the cluster's name. A model is a mapping of tensor names to float32 arrays.
        Each access reads the model's file again.
        """
        return Models(_record=self._record)

    def predict(self, name: str, inputs: ArrayLike, /, **more: ArrayLike) -> NDArray[np.float32]:
        """Return the outputs of a trained model in eval mode. `name` is a cluster, or a device. For a device, the model
        that the device uses is taken.

        Inputs must have the form of the run's data. Inputs of type uint8 are pixels. Raises FedstrataError if layers of
        the model never left the devices, if the user's own code is missing, or if inputs do not fit the model.
        """
        return self._trained.of(name).predict(inputs, more)

    @cached_property
    def _trained(self) -> TrainedModels:
        return TrainedModels(self._record)

    def __repr__(self) -> str:
        return f"<fedstrata.Record {self.run_id}, {self.status}, in {fspath(self.folder)}>"

    def _repr_html_(self) -> str:
        """Return the result and the clusters as HTML, which notebooks show."""
        summary, metric, clusters = self._record.summary, self.headline, self._record.summary.of_headline.clusters
        facts = {
            metric.name: measured(summary.mean, metric), "adjusted Rand index": decimal(summary.adjusted_rand_index),
            "devices": str(summary.devices), "global rounds": str(summary.rounds),
            "bytes": human_bytes(summary.total_bytes), "time": human_seconds(summary.total_seconds),
            "report": str(self.report),
        }  # fmt: skip
        said = f" {html.escape(summary.status)}" + (f": {html.escape(summary.reason)}" if summary.reason else "")
        rows = [(name, len(ids), measured(clusters.get(name), metric)) for name, ids in summary.clusters.items()]
        return (
            f"<p><b>{html.escape(self.name)}</b>{said}</p>{html_table(list(facts), [list(facts.values())])}"
            + html_table(["cluster", "devices", metric.name], rows)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepRecord:
    """Hold the results of a sweep: its tables and the records of its runs."""

    folder: Path
    """Folder of the sweep."""
    _results: "SweepResults"

    @property
    def page(self) -> Path:
        """Path of the page with links to the reports of all runs."""
        return self.folder / "index.html"

    @cached_property
    def table(self) -> Table:
        """One row per cell, setting and measure, with the columns of table.csv."""
        return table_of(self._results.rows(), self._results.columns)

    @cached_property
    def runs(self) -> Table:
        """One row per run: the column `cell`, a column for each axis, and the columns of `Record.summary`. A column of
        an axis replaces a column of the same name.
        """
        rows = [
            {"cell": place.cell, **_summary_row(record), **dict(place.setting)}
            for (place, _), record in self._results.records.items()
        ]
        axes = dict.fromkeys(self._results.sweep.axes, str)
        columns = _summary_columns(self._results.records.values())
        return table_of([dict.fromkeys(columns) | row for row in rows], {"cell": str, **axes, **columns, **axes})

    def record(self, cell: str, seed: int, setting: Mapping[str, str] | None = None) -> Record:
        """Return the record of one run. `setting` maps each axis to its choice. Raises KeyError if the sweep has no
        such completed run.
        """
        for (place, number), record in self._results.records.items():
            if (place.cell, number, dict(place.setting)) == (cell, seed, dict(setting or {})):
                return _record_of(record)
        raise KeyError(f"no run of cell {cell!r}, seed {seed}, setting {dict(setting or {})}")

    def __repr__(self) -> str:
        return f"<fedstrata.SweepRecord, {len(self._results.records)} runs, in {fspath(self.folder)}>"

    def _repr_html_(self) -> str:
        """Return the sweep's table as HTML, which notebooks show."""
        from emulator.sweeps import text_tables

        return html_table(*text_tables.means(self._results))


def _record_of(record: RunRecord) -> Record:
    summary = record.summary
    return Record(
        folder=record.folder, name=record.name, run_id=summary.run_id, seed=summary.seed, status=summary.status,
        reason=summary.reason, _record=record,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Models(Mapping[str, Weights]):
    """Map each cluster of a record to its model. Each access reads the model's file."""

    _record: RunRecord

    def __getitem__(self, cluster: str) -> Weights:
        clusters = self._record.summary.clusters
        if cluster not in clusters:
            raise KeyError(f"no cluster {cluster!r}; there are {', '.join(clusters)}")
        return read_weights(self._record, cluster)

    def __iter__(self) -> Iterator[str]:
        return iter(self._record.summary.clusters)

    def __len__(self) -> int:
        return len(self._record.summary.clusters)


def _experiment(
    given: str | PathLike[str] | Mapping[str, Any], overrides: Sequence[str], seed: int | None
) -> tuple[Experiment, str]:
    """Return the experiment that the argument of `run` gives, and a name for the run's folder."""
    if isinstance(given, Mapping):
        try:
            text = yaml.safe_dump(dict(given))
        except (yaml.YAMLError, RecursionError) as error:
            said = " ".join(map(str, error.args))
            raise ExperimentError(f"experiment: {said}; give only texts, numbers, lists and mappings") from None
        parsed = parse_experiment(text, overrides=overrides, seed=seed)
        return with_digests(parsed), parsed.name
    path = find_experiment(Path(given))
    return with_digests(load_experiment(path, overrides, seed)), path.stem


def _overrides(given: Mapping[str, Any] | Sequence[str]) -> Iterator[str]:
    """Yield the overrides as KEY=VALUE texts, as `--set` takes them."""
    if isinstance(given, Mapping):
        yield from (override_of(key, value) for key, value in given.items())
    else:
        yield from [given] if isinstance(given, str) else given


def _sweep_source(given: str | PathLike[str] | Mapping[str, Any], name: str) -> "SweepSource":
    from emulator.sweeps.tuning import SweepSource

    if isinstance(given, Mapping):
        return SweepSource(document=given, name=name, where="sweep", beside=Path())
    return SweepSource.of_file(Path(given))


def _summary_row(record: RunRecord) -> Mapping[str, Any]:
    summary = record.summary
    return {
        "run_id": summary.run_id, "name": record.name, "seed": summary.seed, "method": summary.method,
        "status": summary.status, "devices": summary.devices, "clusters": len(summary.clusters),
        "rounds": summary.rounds, **{metric.name: summary.mean_of(metric) for metric in summary.metrics},
        "adjusted_rand_index": summary.adjusted_rand_index, "seconds": summary.total_seconds,
        "bytes": summary.total_bytes,
    }  # fmt: skip


def _summary_columns(records: Iterable[RunRecord]) -> Mapping[str, type]:
    """Return the columns of a table with the `_summary_row` of each of these records, and the type of each column."""
    metrics = dict.fromkeys((metric.name for record in records for metric in record.summary.metrics), float)
    return {**FACTS, **metrics, **COSTS}


def _number(value: float | None) -> float:
    return math.nan if value is None else value
