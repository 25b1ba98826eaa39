"""Calibrate the virtual clock by the record of a run on the real clock: fit links and computing to the times that the
run measured, and predict the run again.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from emulator.estimates.fits import ComputeFit, Fitted, LinkFit, Transfers, fit_compute, fit_link
from emulator.estimates.retime import Flows, Retiming
from emulator.results.output import new_file
from emulator.results.read_record import RunRecord, load_record
from fedstrata.clock.clocks import clock_of
from fedstrata.errors import DataError, OutputError
from fedstrata.experiment import Experiment
from fedstrata.experiment.links import WAYS, Link
from fedstrata.experiment.quantities import DURATION, RATE, written_devices
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import make_method
from fedstrata.record.links import LinkRow
from fedstrata.record.timeline import FlowRow
from fedstrata.record.timing import Timing
from fedstrata.streams.homes import asks_in_training


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """Hold the experiment of a record with fitted links and computing, and sentences about the fit."""

    experiment: Experiment
    sections: Mapping[str, Any]  # the fitted sections of the experiment file
    said: tuple[str, ...]

    def text(self, *, is_whole: bool) -> str:
        """Return YAML: the sentences as comments, followed by the fitted sections or, with `is_whole`, by the whole
        experiment file.
        """
        document = self.experiment.to_yaml() if is_whole else yaml.safe_dump(self.sections, sort_keys=False)
        return "".join(f"# {line}\n" for line in self.said) + document


def calibrate(folder: Path) -> Calibrated:
    """Return the experiment of a record with links and computing that give the record's times on the virtual clock.

    Raises:
        DataError: the record is missing or damaged, or does not have the times.
        ExperimentError: the experiment does not run on the virtual clock.
    """
    record = load_record(folder)
    experiment = parse_experiment(record.experiment_yaml, where=str(folder / "experiment.yaml"))
    _check_can_tell(record, experiment)
    calibration = _Calibration(record, experiment)
    try:
        return calibration.result()
    except (KeyError, IndexError, ValueError) as error:
        raise DataError(
            f"{folder}: a round or a child is missing in waits.csv or links.csv ({error}), so the run cannot be "
            "predicted; calibrate by a run in which no device failed"
        ) from None


def write_calibrated(calibrated: Calibrated, path: Path) -> None:
    """Write the whole experiment file to a new file. Raises OutputError if the file exists, or cannot be written."""
    try:
        with new_file(path) as file:
            file.write(calibrated.text(is_whole=True).encode())
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; choose another file") from None


def _check_can_tell(record: RunRecord, experiment: Experiment) -> None:
    """Raise DataError if the values of links and of computing cannot be found from the record."""
    links, folder = experiment.links, record.folder
    if record.summary.status != "completed":
        raise DataError(f"{folder} is the record of a failed run; calibrate by a completed run")
    clock = clock_of(experiment)
    if clock.has_timeline or not clock.has_links:
        what = "calculated, not measured" if clock.has_timeline else "not in the record"
        raise DataError(
            f"{folder}: with clock: {experiment.clock} the times of transfers and computing are {what}; "
            "run it with --set clock=real"
        )
    for is_set, key, why in (
        (experiment.training.rounds.asynchronous is not None, "training.rounds", "rounds overlap"),
        (experiment.deadlines.lps.deadline_s is not None, "deadlines.lps.deadline_s", "late devices have no times"),
        (bool(experiment.schedule), "schedule", "links and devices change in the run"),
        (links.has_trace, "links", "rates of traces change in the run"),
        (links.shared is not None, "links.shared", "a device's own rate cannot be told from its share"),
        (asks_in_training(make_method(experiment)) is not None, "method", "answers in rounds are part of their times"),
        (experiment.energy is not None, "energy", "powers depend on the profiles in compute, which are replaced"),
    ):
        if is_set:
            raise DataError(f"{folder}: the record cannot tell links and computing with this {key}: {why}")
    if not record.waits or not record.links or not record.rounds:
        raise DataError(f"{folder} has no rounds in waits.csv, links.csv and rounds.csv; fetch the record again")
    if any(row.examples is None for row in record.waits if row.tier == "lps"):
        raise DataError(
            f"{folder}: waits.csv does not say on how many examples devices trained; run the experiment again with "
            "this release"
        )


class _Calibration:
    """Fit the links and the computing of one record."""

    def __init__(self, record: RunRecord, experiment: Experiment) -> None:
        self._record, self._experiment = record, experiment
        self._indexes = {name: index for index, name in enumerate(experiment.device_ids())}
        self._bytes: dict[tuple[Link, str, str], int] = {
            (row.link, row.direction, row.child): round(row.bytes / row.transfers)
            for row in record.links
            if row.transfers and row.direction in WAYS
        }

    def result(self) -> Calibrated:
        groups = self._groups()
        fits = [self._fit_devices(each) for each in groups]
        uplink, compute = self._fit_uplink(), self._fit_compute()
        sections: dict[str, Any] = {
            "clock": "virtual",
            "links": self._links(groups, fits, uplink),
            "compute": _compute_section(compute, 0.0),
        }
        remainder = Fitted.of(self._remainders(self._with(sections)))
        sections["compute"] = _compute_section(compute, max(0.0, remainder.value))
        rest = Fitted.of(self._rests(self._with(sections)))
        sections["links"]["lps-gps"]["latency"] = _duration(uplink.latency_s + max(0.0, rest.value))
        found = self._with(sections)
        rests = (*_compute_said(compute, remainder), _rest_said(rest))
        said = (*self._said(groups, fits, uplink), *rests, *self._predicted(found))
        return Calibrated(experiment=found, sections=sections, said=said)

    def _with(self, sections: Mapping[str, Any]) -> Experiment:
        """Return the experiment with these sections."""
        text = yaml.safe_dump({**self._record.experiment, **sections}, sort_keys=False)
        return parse_experiment(text, where=str(self._record.folder / "experiment.yaml"))

    def _groups(self) -> list[list[int]]:
        """Return the indexes of the devices with equal configured links. First come the devices without an entry in
        `links.overrides`.
        """
        links = self._experiment.links
        common, own, groups = links.common(), links.of_devices(), defaultdict(list)
        for index in self._indexes.values():
            groups[own.get(index, common)].append(index)
        return sorted(groups.values(), key=lambda group: (group[0] in own, group))

    def _measured(self, way: str, tier: str, children: Collection[str]) -> list[Transfers]:
        """Return the measured transfers of these children in one direction. They are models and updates of rounds and,
        for devices, also answers before training, which cross the same links.
        """
        seconds = defaultdict(list)
        for row in self._record.waits:
            if row.tier == tier and row.child in children and (took_s := dict(row.parts)[way]):
                seconds[row.child].append(took_s)
        link: Link = "device-lps" if tier == "lps" else "lps-gps"
        found = [
            Transfers(child=child, mean_bytes=self._bytes[link, way, child], seconds=float(np.median(took)))
            for child, took in seconds.items()
        ]
        answers = [row for row in self._record.links if row.link == "device-gps" and row.direction == way]
        return found + [_transfers(row) for row in answers if row.child in children and row.transfers]

    def _fit_devices(self, group: Sequence[int]) -> LinkFit:
        ids, links = self._experiment.device_ids(), self._experiment.links
        children = {ids[index] for index in group}
        configured = links.of_devices().get(group[0], links.common())
        return fit_link({way: self._measured(way, "lps", children) for way in WAYS}, configured.latency / 1e9)

    def _fit_uplink(self) -> LinkFit:
        children = {row.child for row in self._record.waits if row.tier == "gps"}
        configured = self._experiment.links.uplink()
        return fit_link({way: self._measured(way, "gps", children) for way in WAYS}, configured.latency / 1e9)

    def _fit_compute(self) -> ComputeFit:
        seconds = defaultdict(list)
        for row in self._record.waits:
            if row.examples:
                seconds[self._indexes[row.child]].append(row.compute_s / row.examples)
        return fit_compute(seconds)

    def _links(self, groups: Sequence[Sequence[int]], fits: Sequence[LinkFit], uplink: LinkFit) -> dict[str, Any]:
        """Return the section `links` of the experiment file: the encodings of the run, and the fitted times."""
        links, common = self._experiment.links, fits[0]
        section: dict[str, Any] = {
            name: {"down": of.down, "up": of.up, **_times(fit)}
            for name, of, fit in (("device-lps", links.device_lps, common), ("lps-gps", links.lps_gps, uplink))
        }
        if len(groups) > 1:
            unlimited = {f"{way}_rate": RATE.written(RATE.most) for way in common.rates}
            section["overrides"] = [
                {"devices": written_devices(group), **unlimited, **_times(fit)}
                for group, fit in zip(groups[1:], fits[1:], strict=True)
            ]
        return section

    def _flows(self) -> Iterator[FlowRow]:
        """Yield the transfers of the run. A child's transfers of one kind have their mean size."""
        last = self._experiment.training.global_rounds
        for row in self._record.waits:
            link: Link = "device-lps" if row.tier == "lps" else "lps-gps"
            index = self._indexes[row.child] if row.tier == "lps" else None
            down, up = (self._bytes.get((link, way, row.child), 0) for way in WAYS)
            flow = FlowRow(
                tier=row.tier,
                global_round=row.global_round,
                lps_round=row.lps_round,
                lps_id=row.lps_id,
                child=_number(row.child) if index is None else index,
                down_bytes=down if row.down_s else 0,
                up_bytes=up,
                examples=row.examples or 0,
                stream=0,
                answer_bytes=0,
                answer_examples=0,
            )
            yield flow
            if index is None and row.global_round == last:
                yield replace(flow, global_round=last + 1, down_bytes=down, up_bytes=0)

    def _retimed(self, experiment: Experiment) -> Timing:
        """Return the times of the run's transfers and training on the virtual clock."""
        return Retiming(experiment, Flows.of(list(self._flows()), self._record.lps_prefix)).timing()

    def _remainders(self, experiment: Experiment) -> list[float]:
        """Return how much longer each LPS round took than its links and devices explain, in seconds."""
        took = {(row.lps_round, row.lps_id): row.seconds for row in self._record.rounds}
        return [
            took[row.lps_round + 1, row.home_id] - (row.times.ends_ns - row.times.begins_ns) / 1e9
            for row in self._retimed(experiment).rows
        ]

    def _rests(self, experiment: Experiment) -> list[float]:
        """Return how much longer each global round took than links and LPS rounds explain, in seconds per crossing of
        LPSs' links. The update crosses them and, unless LPSs compute it themselves, the model.
        """
        took = global_rounds_s(self._record)
        crossings = {row.global_round: 2 if row.down_s else 1 for row in self._record.waits if row.tier == "gps"}
        return [
            (took[number] - predicted_s) / crossings[number]
            for number, predicted_s in enumerate(self._predicted_s(experiment), 1)
        ]

    def _predicted_s(self, experiment: Experiment) -> list[float]:
        """Return how long each global round of the run takes on the virtual clock, in seconds."""
        closed = self._retimed(experiment).times.global_rounds.values()
        return [(times.ends_ns - times.begins_ns) / 1e9 for times in closed]

    def _predicted(self, experiment: Experiment) -> list[str]:
        """Return sentences about the prediction of the run's own global rounds."""
        predicted = Fitted.of(self._predicted_s(experiment))
        took = global_rounds_s(self._record)
        own = Fitted.of(took.values())
        besides = self._record.summary.wall_seconds.get("train", 0.0) - sum(took.values())
        off = round(100 * (predicted.value / own.value - 1), 1) + 0.0  # never -0.0
        return [
            f"predicted again: a global round takes {_short(predicted.value)}, "
            f"{off:+.1f} % from the run: {own.said(_short, 'global round')}",
            f"not in the prediction: {_short(max(0.0, besides) / len(took))} per global round between the rounds "
            "and in the final measurement",
        ]

    def _said(self, groups: Sequence[Sequence[int]], fits: Sequence[LinkFit], uplink: LinkFit) -> Iterator[str]:
        """Yield sentences about the links."""
        yield f"calibrated by {self._record.folder}"
        for group, fit in zip(groups, fits, strict=True):
            names = ", ".join(map(str, written_devices(group)))
            yield from _link_said(fit, f"device-lps, devices {names}", "device")
        yield from _link_said(uplink, "lps-gps", "LPS")
        links = self._experiment.links
        if any(link.jitter for link in (links.common(), links.uplink(), *links.of_devices().values())):
            yield "links, jitter: left out, because a latency is the median of its transfers"


def global_rounds_s(record: RunRecord) -> dict[int, float]:
    """Return how long each global round of a run took, in seconds."""
    took: dict[int, float] = defaultdict(float)
    for row in record.waits:
        if row.tier == "gps":
            took[row.global_round] = max(took[row.global_round], row.busy_s)
    return took


def _transfers(row: LinkRow) -> Transfers:
    """Return the measured transfers of a row. The achieved latency is the time of a transfer that the configured rate
    does not explain.
    """
    mean_bytes = row.bytes / row.transfers
    on_link_s = 8 * mean_bytes / row.bits_per_s if row.bits_per_s else 0.0
    return Transfers(child=row.child, mean_bytes=mean_bytes, seconds=on_link_s + row.achieved_latency_s)


def _number(lps: str) -> int:
    return int(lps.rpartition("-")[2])


def _times(fit: LinkFit) -> dict[str, str]:
    """Return the keys of the experiment file for the times of a link."""
    rates = {f"{way}_rate": _rate(fitted.value) for way, fitted in fit.rates.items()}
    return {**rates, "latency": _duration(fit.latency_s)}


def _compute_section(fit: ComputeFit, minimum_s: float) -> dict[str, Any]:
    """Return the section `compute` of the experiment file. A profile has the devices with equal factors."""
    section: dict[str, Any] = {"per_example": _duration(fit.per_example.value)}
    by_factor: dict[float, list[int]] = defaultdict(list)
    for index, factor in sorted(fit.factors.items()):
        by_factor[factor].append(index)
    if set(by_factor) - {1.0}:
        names = {factor: f"times-{factor}" for factor in sorted(by_factor)}
        section["profiles"] = {name: factor for factor, name in names.items()}
        section["devices"] = {name: written_devices(by_factor[factor]) for factor, name in names.items()}
    return {**section, "minimum": _duration(minimum_s)}


def _link_said(fit: LinkFit, name: str, of: str) -> Iterator[str]:
    for way in WAYS:
        fitted = fit.rates.get(way)
        said = "no rate, because transfers were too short to tell" if fitted is None else fitted.said(_rate, of)
        yield f"{name}, {way}_rate: {said}"
    if fit.latency is None:
        assumed = _duration(fit.latency_s)
        yield f"{name}, latency: assumed {assumed}, as configured, because all transfers have one size or are too short"
    else:
        yield f"{name}, latency: {fit.latency.said(lambda each: _duration(max(0.0, each)), 'transfer pair')}"


def _compute_said(fit: ComputeFit, remainder: Fitted) -> Iterator[str]:
    yield f"compute.per_example: {fit.per_example.said(_duration, 'round')}"
    if fit.spread:
        yield f"compute.spread: for other devices, {{lognormal: {fit.spread:.2g}}} in place of profiles and devices"
    said = remainder.said(_short, "LPS round")
    yield f"compute.minimum: what links and computing leave of an LPS round, at least 0: {said}"


def _rest_said(rest: Fitted) -> str:
    said = rest.said(_short, "global round")
    return f"lps-gps, latency: added for what links and LPS rounds leave of a global round, at least 0: {said}"


def _rate(bits_per_s: float) -> str:
    return RATE.written(min(RATE.most, max(1, round(float(f"{bits_per_s:.4g}")))))


def _duration(seconds: float) -> str:
    return DURATION.written(round(float(f"{seconds * 1e9:.4g}")))


def _short(seconds: float) -> str:
    return f"{seconds:.4g} s"
