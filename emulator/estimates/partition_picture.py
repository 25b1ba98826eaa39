"""Show how an experiment divides its data among devices: numbers, a table of devices and labels, and a picture of this
table.

`fedstrata partition` prints the numbers, and writes the table and the picture.
"""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from emulator.console.console_tables import plain_table
from emulator.console.units import grouped
from emulator.results.labels import Counts, counts_of, drift_said
from emulator.results.output import new_folder
from emulator.results.report.style import COLOURS, MUTED, drawing, save
from fedstrata.datasets import load_dataset
from fedstrata.errors import DataError, ExperimentError, OutputError
from fedstrata.experiment import Experiment
from fedstrata.partitions import held_out_counts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "partition"  # of the written files
LARGEST_POINT = 180.0  # area of the largest circle, in square points
POINTS = 64  # with more devices, circles would cover each other: the picture is a map of colours


def show_partition(experiment: Experiment, console: Console, out: Path | None) -> None:
    """Print numbers about the partition. With `out`, write partition.csv, partition.png and partition.svg there.

    Raises:
        ExperimentError: the data are on the devices, or have no labels.
        FedstrataError: the data cannot be divided in this way, or `out` exists.
    """
    if experiment.partition.is_local:
        raise ExperimentError("partition.kind local: only the devices have the data, so nothing is known of them here")
    dataset = load_dataset(experiment.data, experiment.seed)
    if not dataset.train.has_labels:
        raise DataError(f"data.name {experiment.data.name}: the data have no labels; fedstrata check shows their sizes")
    counts = counts_of(experiment, dataset)
    table = plain_table("of a device", numbers=["least", "median", "most"])
    for name, values in numbers(counts, held_out_counts(experiment, dataset)).items():
        table.add_row(name, *map(_said, (min(values), float(np.median(values)), max(values))))
    left = len(dataset.train) - int(counts.sum())
    console.print(f"{experiment.device_count} devices, {counts.shape[1]} labels, partition {experiment.partition.kind}")
    console.print(table)
    console.print(f"no device trains on {grouped(left)} of {grouped(len(dataset.train))} training examples")
    if said := drift_said(experiment, dataset):
        console.print(f"label shares: {said}", soft_wrap=True)
    if out is not None:
        new_folder(out)
        _write(counts, experiment.device_ids(), out)
        console.print(str(out), soft_wrap=True)


def numbers(counts: Counts, tests: Iterable[int]) -> dict[str, list[float]]:
    """Return the columns of a table with a row per device: the numbers of training examples, test examples and labels,
    and the distance between the device's label shares and the shares of all devices together (total variation, from 0
    to 1).
    """
    shares = counts / counts.sum(axis=1, keepdims=True)
    together = counts.sum(axis=0) / counts.sum()
    return {
        "training examples": counts.sum(axis=1).tolist(),
        "test examples": list(tests),
        "labels": (counts > 0).sum(axis=1).tolist(),
        "distance from all": (np.abs(shares - together).sum(axis=1) / 2).tolist(),
    }


def _said(value: float) -> str:
    return grouped(int(value)) if value == int(value) else f"{value:.2f}"


def _write(counts: Counts, devices: Sequence[str], folder: Path) -> None:
    try:
        with (folder / f"{NAME}.csv").open("x", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["device", *range(counts.shape[1])])
            writer.writerows([device, *row] for device, row in zip(devices, counts.tolist(), strict=True))
        draw_counts(counts, folder)
    except OSError as error:
        raise OutputError(f"cannot write the partition to {folder}: {error.strerror}") from None


def draw_counts(counts: Counts, folder: Path) -> None:
    """Draw devices from left to right and labels from bottom to top. Each pair of device and label has a circle, with
    an area that grows with the number of examples. With many devices, draw a map of colours instead.
    """
    from matplotlib.figure import Figure

    devices, labels = counts.shape
    with drawing():
        figure = Figure(figsize=(min(12.0, 2.2 + 0.22 * devices), 1.2 + 0.26 * min(labels, 30)), facecolor="white")
        _draw(figure, counts)
        save(figure, folder, NAME)


def _draw(figure: "Figure", counts: Counts) -> None:
    axes = figure.add_subplot()
    if len(counts) > POINTS:
        shown = axes.imshow(counts.T, aspect="auto", origin="lower", cmap="Blues", interpolation="nearest")
        figure.colorbar(shown, label="training examples")
    else:
        device, label = np.nonzero(counts)
        area = LARGEST_POINT * counts[device, label] / counts.max()
        axes.scatter(device, label, s=area, color=COLOURS[0], linewidths=0)
        axes.set_title(f"largest circle: {counts.max()} training examples", fontsize=8, color=MUTED)
    axes.set_xlabel("device")
    axes.set_ylabel("label")
    axes.set_ylim(-0.6, counts.shape[1] - 0.4)
    figure.tight_layout()
