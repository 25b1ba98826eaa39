"""Fedstrata from Python: `fedstrata.run` and `fedstrata.load` give a `fedstrata.Record`, `fedstrata.sweep` many."""

import html
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray

from emulator.console.units import decimal, human_bytes, human_seconds, percent
from emulator.results.output import unused_folder
from emulator.results.record import RunRecord, load_record
from emulator.results.tables import Matrix, Table, html_table, table_of
from emulator.shipped.examples import find_experiment
from fedstrata.experiment import Experiment
from fedstrata.experiment.links import LINKS
from fedstrata.experiment_file import load_experiment, parse_experiment
from fedstrata.record.rounds import ROUNDS
from fedstrata.record.summary import Summary

if TYPE_CHECKING:
    from emulator.sweeps.file import Sweep
    from emulator.sweeps.results import SweepResults

__all__ = ["Matrix", "Models", "Record", "SweepRecord", "Table", "load", "run", "sweep"]

Weights = Mapping[str, NDArray[np.float32]]
SUMMARY_COLUMNS: Mapping[str, type] = {
    "run_id": str, "name": str, "seed": int, "method": str, "status": str, "devices": int, "clusters": int,
    "rounds": int, "accuracy": float, "adjusted_rand_index": float, "seconds": float, "bytes": int,
}  # fmt: skip


def run(
    experiment: str | PathLike[str] | Mapping[str, Any],
    *,
    out: str | PathLike[str] | None = None,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    seed: int | None = None,
    device_processes: int | None = None,
    quiet: bool = False,
) -> "Record":
    """Run an experiment on this machine, as `fedstrata run` does, and give its record.

    Args:
        experiment: a file, the name of an example, or what a file holds as a mapping.
        out: a new folder for the record, report, state and logs; by default one in `runs/`.
        overrides: keys to change, `{"training.global_rounds": 3}` or `["training.global_rounds=3"]`.
        seed: instead of the experiment's.
        device_processes: how many processes share the devices; by default one a core.
        quiet: show nothing while it runs.

    Raises:
        FedstrataError: of `fedstrata.errors`, with one line that says what to do.
        KeyboardInterrupt: the run was interrupted; its processes are gone.
    """
    from emulator.runs.run import RunRequest, execute, make_display

    loaded, name = _experiment(experiment, [*_overrides(overrides)], seed)
    folder = unused_folder(Path("runs"), name) if out is None else Path(out)
    request = RunRequest(experiment=loaded, out=folder, device_processes=device_processes)
    outcome = execute(request, make_display(is_json=False, is_quiet=quiet))
    if outcome.failure is not None:
        raise outcome.failure
    return load(folder)


def load(folder: str | PathLike[str]) -> "Record":
    """The record that a run left in a folder. Raises DataError where there is none, or one that is damaged."""
    return Record(_record=load_record(Path(folder)))


def sweep(
    sweep: str | PathLike[str] | Mapping[str, Any],
    *,
    out: str | PathLike[str],
    jobs: int | None = None,
    quiet: bool = False,
) -> "SweepRecord":
    """Do the runs of a sweep that are not done yet, as `fedstrata sweep` does, and give the records of all.

    Args:
        sweep: a file, or what a file holds as a mapping.
        out: a new folder, or that of the sweep, to go on in.
        jobs: how many runs at once; by default one more than there are cores.
        quiet: show nothing while it runs.

    Raises:
        FedstrataError: something is wrong, or a run has failed; the same call tries that again.
        KeyboardInterrupt: it was interrupted; its processes are gone, and the same call goes on.
    """
    from rich.console import Console

    from emulator.sweeps.progress import make_display
    from emulator.sweeps.sweep import SweepRequest
    from emulator.sweeps.sweep import sweep as do_sweep

    request = SweepRequest(sweep=_sweep(sweep, Path(out).name), out=Path(out), jobs=jobs)
    outcome = do_sweep(request, make_display(Console(highlight=False), is_json=False, is_quiet=quiet))
    if outcome.failure is not None:
        raise outcome.failure
    return SweepRecord(folder=request.out, _results=outcome.results)


@dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """What a run came to: its tables, its models, and where it lies."""

    _record: RunRecord

    @property
    def folder(self) -> Path:
        return self._record.folder

    @property
    def name(self) -> str:
        """The experiment's."""
        return self._record.name

    @property
    def run_id(self) -> str:
        return self._summary.run_id

    @property
    def seed(self) -> int:
        return self._summary.seed

    @property
    def status(self) -> Literal["completed", "failed"]:
        return self._summary.status

    @property
    def reason(self) -> str | None:
        """Why the run failed; None where it did not."""
        return self._summary.reason

    @property
    def accuracy(self) -> float:
        """Of the final models, the mean over clusters; NaN where it was not measured."""
        return _number(self._summary.mean_accuracy)

    @property
    def adjusted_rand_index(self) -> float:
        """Agreement of the clusters with the true tasks; NaN where the partition has no tasks."""
        return _number(self._summary.adjusted_rand_index)

    @property
    def experiment(self) -> Mapping[str, Any]:
        """The experiment file, every key with its value."""
        return self._record.experiment

    @property
    def experiment_yaml(self) -> str:
        """The same as the text of experiment.yaml."""
        return self._record.experiment_yaml

    @property
    def report(self) -> Path:
        """The page that `fedstrata report` draws."""
        return self.folder / "report.html"

    @cached_property
    def summary(self) -> Table:
        """One row with what tells runs apart, so that rows of many runs make a table."""
        return table_of([_summary_row(self._record)], SUMMARY_COLUMNS)

    @cached_property
    def rounds(self) -> Table:
        """One row an LPS round of a cluster: the columns of rounds.csv."""
        rows = [dict(zip(ROUNDS.columns, ROUNDS.values(row), strict=True)) for row in self._record.rounds]
        return table_of(rows, ROUNDS.types)

    @cached_property
    def clusters(self) -> Table:
        """One row a cluster: its devices' number, its final model's accuracy and SHA-256."""
        summary = self._summary
        rows = [
            {
                "cluster": name,
                "devices": len(devices),
                "accuracy": summary.accuracy.get(name),
                "model_sha256": summary.model_sha256.get(name),
            }
            for name, devices in summary.clusters.items()
        ]
        return table_of(rows, {"cluster": str, "devices": int, "accuracy": float, "model_sha256": str})

    @cached_property
    def devices(self) -> Table:
        """One row a device that is in a cluster; `task` is its true task, '' where the partition has none."""
        tasks = self._summary.device_tasks or {}
        found = sorted(self._summary.cluster_of_device.items())
        rows = [{"device": device, "cluster": cluster, "task": tasks.get(device)} for device, cluster in found]
        return table_of(rows, {"device": str, "cluster": str, "task": str})

    @cached_property
    def bytes(self) -> Table:
        """One row a link: bytes towards the GPS (`up`) and towards the devices (`down`)."""
        counted = {link: self._summary.link(link) for link in LINKS}
        rows = [{"link": link, "up": of_link.up, "down": of_link.down} for link, of_link in counted.items()]
        return table_of(rows, {"link": str, "up": int, "down": int})

    @cached_property
    def relevance(self) -> Matrix | None:
        """The relevance matrix R; None for methods without profiles."""
        found = self._record.relevance
        return None if found is None else Matrix(ids=found.ids, values=found.matrix)

    @cached_property
    def models(self) -> Mapping[str, Weights]:
        """Each cluster's final model, read when it is asked for: float32 arrays by name."""
        return Models(folder=self.folder / "models", clusters=tuple(self._summary.clusters))

    @property
    def _summary(self) -> Summary:
        return self._record.summary

    def __repr__(self) -> str:
        return f"<fedstrata.Record {self.run_id}, {self.status}, in {fspath(self.folder)}>"

    def _repr_html_(self) -> str:
        """Result and clusters, for a notebook."""
        summary = self._summary
        facts = {
            "accuracy": percent(summary.mean_accuracy), "adjusted Rand index": decimal(summary.adjusted_rand_index),
            "devices": str(summary.devices), "global rounds": str(summary.rounds),
            "bytes": human_bytes(summary.total_bytes), "time": human_seconds(summary.total_seconds),
            "report": str(self.report),
        }  # fmt: skip
        said = f" {html.escape(summary.status)}" + (f": {html.escape(summary.reason)}" if summary.reason else "")
        rows = [(name, len(devices), percent(summary.accuracy.get(name))) for name, devices in summary.clusters.items()]
        return (
            f"<p><b>{html.escape(self.name)}</b>{said}</p>{html_table(list(facts), [list(facts.values())])}"
            + html_table(["cluster", "devices", "accuracy"], rows)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepRecord:
    """What a sweep came to."""

    folder: Path
    _results: "SweepResults"

    @property
    def page(self) -> Path:
        """The page that leads to every run's report."""
        return self.folder / "index.html"

    @cached_property
    def table(self) -> Table:
        """One row a cell, setting and measure: the columns of table.csv."""
        return table_of(self._results.rows(), self._results.columns)

    @cached_property
    def runs(self) -> Table:
        """One row a run: its cell, the choice of each axis, and the columns of a record's summary."""
        rows = [
            {"cell": place.cell, **dict(place.setting), **_summary_row(record)}
            for (place, _), record in self._results.records.items()
        ]
        axes = dict.fromkeys(self._results.sweep.axes, str)
        return table_of(rows, {"cell": str, **axes, **SUMMARY_COLUMNS})

    def record(self, cell: str, seed: int, setting: Mapping[str, str] | None = None) -> Record:
        """The record of one run; `setting` says the choice of each axis. Raises KeyError for any that is not there."""
        for (place, number), record in self._results.records.items():
            if (place.cell, number, dict(place.setting)) == (cell, seed, dict(setting or {})):
                return Record(_record=record)
        raise KeyError(f"no run of cell {cell!r}, seed {seed}, setting {dict(setting or {})}")

    def __repr__(self) -> str:
        return f"<fedstrata.SweepRecord, {len(self._results.records)} runs, in {fspath(self.folder)}>"

    def _repr_html_(self) -> str:
        """The table, for a notebook."""
        return html_table(*self._results.table())


@dataclass(frozen=True, kw_only=True)
class Models(Mapping[str, Weights]):
    """The models of a record by cluster; each is read from its file every time that it is asked for."""

    folder: Path
    clusters: tuple[str, ...]

    def __getitem__(self, cluster: str) -> Weights:
        from safetensors.numpy import load_file

        if cluster not in self.clusters:
            raise KeyError(f"no cluster {cluster!r}; there are {', '.join(self.clusters)}")
        weights: dict[str, NDArray[np.float32]] = load_file(self.folder / f"{cluster}.safetensors")
        return weights

    def __iter__(self) -> Iterator[str]:
        return iter(self.clusters)

    def __len__(self) -> int:
        return len(self.clusters)


def _experiment(
    given: str | PathLike[str] | Mapping[str, Any], overrides: Sequence[str], seed: int | None
) -> tuple[Experiment, str]:
    """The experiment, and what to call its folder."""
    if isinstance(given, Mapping):
        parsed = parse_experiment(yaml.safe_dump(dict(given)), overrides=overrides, seed=seed)
        return parsed, parsed.name
    path = find_experiment(Path(given))
    return load_experiment(path, overrides, seed), path.stem


def _overrides(given: Mapping[str, Any] | Sequence[str]) -> Iterator[str]:
    """As `--set` takes them; JSON is YAML."""
    if isinstance(given, Mapping):
        yield from (f"{key}={json.dumps(value)}" for key, value in given.items())
    else:
        yield from given


def _sweep(given: str | PathLike[str] | Mapping[str, Any], name: str) -> "Sweep":
    from emulator.sweeps.file import load_sweep, sweep_of

    if isinstance(given, Mapping):
        return sweep_of(given, name=name, where="sweep", beside=Path())
    return load_sweep(Path(given))


def _summary_row(record: RunRecord) -> Mapping[str, Any]:
    summary = record.summary
    return {
        "run_id": summary.run_id, "name": record.name, "seed": summary.seed, "method": summary.method,
        "status": summary.status, "devices": summary.devices, "clusters": len(summary.clusters),
        "rounds": summary.rounds, "accuracy": summary.mean_accuracy,
        "adjusted_rand_index": summary.adjusted_rand_index, "seconds": summary.total_seconds,
        "bytes": summary.total_bytes,
    }  # fmt: skip


def _number(value: float | None) -> float:
    return math.nan if value is None else value
