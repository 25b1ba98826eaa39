"""Write what a paper needs of a sweep: the table, paired tests, curves with bands, and the accuracy of each device."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from emulator.results.curves import ABSCISSAE, Abscissa, BandPoint, band
from emulator.results.report.bands_figure import KINDS, BandsFigure
from emulator.sweeps import paired_tests, paper_table
from emulator.sweeps.file import Place
from emulator.sweeps.results import SweepResults

Bands = Mapping[Place, list[BandPoint]]


def write_paper_files(results: SweepResults, out: Path) -> None:
    """Write paper.md, paper.tex, pairs.csv, devices.csv, curves.csv, and the figures rounds, bytes and time as PNG, SVG
    and PDF. A figure without curves is not written, and the earlier file of this figure is removed. Raises OSError if a
    file cannot be written.
    """
    bands = {over: bands_of(results, over) for over in ABSCISSAE}
    texts = {
        "paper.md": paper_table.markdown(results),
        "paper.tex": paper_table.as_latex(results),
        "pairs.csv": paired_tests.csv_text(results),
        "devices.csv": devices_csv(results),
        "curves.csv": curves_csv(results, {over.name: each for over, each in bands.items()}),
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8", newline="")
    for over, found in bands.items():
        if found:
            BandsFigure(panels=_panels(found), metric=results.of.metric, over=over).write(out)
        else:
            for kind in KINDS:
                (out / f"{over.name}.{kind}").unlink(missing_ok=True)


def bands_of(results: SweepResults, over: Abscissa) -> Bands:
    """Return the band of each cell and setting that has a curve. Runs with another main metric are left out."""
    found: dict[Place, list[BandPoint]] = {}
    for place in results.sweep.places:
        records = ((seed, results.records.get((place, seed))) for seed in results.sweep.seeds)
        curves = {seed: over.of(run) for seed, run in records if run is not None and run.headline == results.of.metric}
        if points := band(curves):
            found[place] = points
    return found


def _panels(bands: Bands) -> dict[str, dict[str, list[BandPoint]]]:
    panels: dict[str, dict[str, list[BandPoint]]] = {}
    for place, points in bands.items():
        panels.setdefault(", ".join(place.words[1:]), {})[place.cell] = points
    return panels


def curves_csv(results: SweepResults, bands: Mapping[str, Bands]) -> str:
    """Return the points of all bands as CSV. The column `over` says whether `x` is global rounds, bytes or seconds of
    virtual time.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*results.head, "over", "x", "seeds", "mean", "std"])
    for over, found in bands.items():
        for place, points in found.items():
            for point in points:
                spread = point.spread
                writer.writerow([*place.words, over, point.x, spread.count, spread.mean, spread.deviation])
    return text.getvalue()


def devices_csv(results: SweepResults) -> str:
    """Return the main metric of each device's final model in each run as CSV. A missing value is empty."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*results.head, "seed", "cluster", "device", results.of.metric.name])
    for (place, seed), run in results.records.items():
        clusters = {device: name for name, devices in run.summary.clusters.items() for device in devices}
        if run.headline == results.of.metric:
            for device, value in run.summary.of_headline.devices.items():
                writer.writerow([*place.words, seed, clusters.get(device, ""), device, value])
    return text.getvalue()
