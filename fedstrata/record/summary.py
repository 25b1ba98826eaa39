"""summary.json: the result of a run."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, Field, NonNegativeInt, PositiveInt, TypeAdapter
from pydantic import model_validator as pydantic_check
from pydantic.dataclasses import dataclass as checked_dataclass

from fedstrata.errors import DataError, ExperimentError
from fedstrata.experiment.links import LINKS, Link
from fedstrata.experiment.partition import TestSetName
from fedstrata.process.json_text import json_text
from fedstrata.record.attacks import Attacked
from fedstrata.record.contributions import Asynchronous
from fedstrata.record.energy import EnergySummary
from fedstrata.record.factors import Kept
from fedstrata.record.links import Real
from fedstrata.record.made_by import MadeBy
from fedstrata.record.privacy import Privacy
from fedstrata.record.rounds import RoundRow
from fedstrata.record.tables import Amount, checked, read_text
from fedstrata.record.timeline import Virtual
from fedstrata.tasks import CLASSIFICATION, Metric

From = Annotated[str, Field(validation_alias=AliasChoices("from", "stage", "came_from"), serialization_alias="from")]


@checked_dataclass(frozen=True, kw_only=True)
class LinkBytes:
    """Hold the bytes of one link."""

    up: NonNegativeInt
    """Bytes towards the GPS."""
    down: NonNegativeInt
    """Bytes towards the devices."""

    @property
    def total(self) -> int:
        return self.up + self.down


@checked_dataclass(frozen=True, kw_only=True)
class Exclusion:
    """Name a device or an LPS that was excluded at some point of the run, and give the reason. If it only missed a
    deadline, it may take part again in the next round.
    """

    device: str
    """Device or LPS."""
    stage: From
    """Enrolment, training, evaluation, or a round counted from 1. From then on the device or LPS took no part or, if it
    missed the deadline, in this round only.
    """
    reason: str
    """Reason of the exclusion."""


@checked_dataclass(frozen=True, kw_only=True)
class Adoption:
    """Name a cluster that another LPS took over."""

    cluster: str
    """Cluster."""
    by: str
    """LPS that took the cluster over, and served it from then on."""
    stage: From
    """Global round in which the other LPS took the cluster over, counted from 1, or the evaluation after the last
    round.
    """


@checked_dataclass(frozen=True, kw_only=True)
class Replanning:
    """Describe a plan that the GPS made during training."""

    global_round: PositiveInt
    """Global round of the plan, counted from 1."""
    clusters: NonNegativeInt
    """Number of clusters in this plan."""
    moved: NonNegativeInt
    """Number of devices that the plan put into another cluster."""


@checked_dataclass(frozen=True, kw_only=True)
class Moved:
    """Name a device that the schedule has moved to another LPS."""

    device: str
    """Device."""
    came_from: From
    """LPS that the device left."""
    to: str
    """LPS that the device joined."""
    global_round: PositiveInt
    """First global round of the device at the new LPS, counted from 1."""


@checked_dataclass(frozen=True, kw_only=True)
class Measured:
    """Hold the values of one metric. Each device measures the model that it uses, on its held-out examples."""

    clusters: Annotated[dict[str, float | None], Field(serialization_alias="METRIC")]
    """Value of the metric by cluster, over the held-out examples of all its devices. `mean` is the plain mean over
    clusters.
    """
    received: Annotated[dict[str, float | None] | None, Field(serialization_alias="received_METRIC")]
    """Value of the metric of the received models, by cluster, if devices use other models than they receive (such as
    with ditto).
    """
    devices: Annotated[dict[str, float | None], Field(serialization_alias="device_METRIC")]
    """Value of the metric by device."""
    tasks: Annotated[dict[str, float | None] | None, Field(serialization_alias="task_METRIC")]
    """Value of the metric by true task, over the held-out examples of all its devices; null if the partition has no
    tasks.
    """

    def all_values(self, metric: str) -> Iterator[tuple[str, float | None]]:
        """Yield pairs: the key of a value in summary.json, such as `device_accuracy.device-003`, and the value."""
        for part, prefix in PREFIXES.items():
            yield from ((f"{prefix}{metric}.{name}", value) for name, value in (getattr(self, part) or {}).items())


TEST_SETS: Mapping[TestSetName, str] = {
    "own": "each device's own tests",
    "global": "all tests of the data set",
    "alike": "the data set's tests, divided like the training data",
    "validation": "examples for validation, which are no tests",
    "public": "public examples",
}


@checked_dataclass(frozen=True, kw_only=True)
class TestSet:
    """Name the examples on which devices measured the final models."""

    __test__ = False  # pytest would take the class for a test

    name: TestSetName
    """Name of the test set: `partition.tests`, or `public` with `partition.public.tests`."""
    examples: NonNegativeInt
    """Number of examples of the devices that measured."""
    devices: NonNegativeInt
    """Number of devices that measured. With fewer devices than the experiment has, a part of the test set is missing.
    """


PREFIXES = {"clusters": "", "received": "received_", "devices": "device_", "tasks": "task_"}
# names at /metrics, without `fedstrata_`, except those that are also in the record
GAUGES = {
    "awaited", "global_rounds", "link_bytes", "phase", "progress_timestamp_seconds", "refused", "round",
    "round_duration_seconds", "run_info", "update_staleness_rounds", "updates", "waits_seconds",
}  # fmt: skip


@checked_dataclass(frozen=True, kw_only=True)
class Summary:
    """Hold the result of a run: the content of summary.json. When a file is read, unknown keys are ignored.

    A field that has its default value is left out of the file.
    """

    run_id: str
    """The experiment's name and the first twelve digits of `experiment_sha256`."""
    name: str
    """Name of the experiment."""
    experiment_sha256: str
    """SHA-256 of the resolved experiment, without keys that do not change the result, such as `faults`, `energy` and
    paths.
    """
    seed: int
    """Seed of the experiment."""
    method: str
    """`method.name` of the experiment."""
    status: Literal["completed", "failed"]
    """Whether the run ended with a result. The record of a failed run has the values up to the failure."""
    reason: str | None
    """Reason for which the run failed, in one line; null for a completed run."""
    devices: NonNegativeInt
    """Number of devices in the experiment."""
    clusters: dict[str, tuple[str, ...]]
    """Device ids by cluster, at the end of the run. A cluster has the name of its LPS or, if clusters span LPSs, the
    name `cluster-0` and so on. A late device is listed in the cluster that it joined.
    """
    clusters_rule: str
    """Rule that chose the number of clusters."""
    replanned: tuple[Replanning, ...]
    """Plans that the GPS made during training."""
    adjusted_rand_index: Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)] | None
    """Agreement of the clusters with the true tasks. It is 1 if both are equal, and about 0 if they are unrelated. Null
    if the partition has no tasks.
    """
    device_tasks: dict[str, str] | None
    """True task of each device; null if the partition has no tasks."""
    rounds: NonNegativeInt
    """Number of completed global rounds."""
    measured: dict[str, Measured]
    """Values of each metric, by its name. In the file, they are top-level keys that contain the metric's name, such as
    `device_METRIC`.
    """
    test_set: TestSet | None = None
    """Test set of all values of metrics; absent if devices measured on their own tests (`own`)."""
    newcomers: tuple[str, ...]
    """Devices that joined after all other devices had been grouped."""
    wall_seconds: dict[str, Amount]
    """Duration of each phase in seconds, measured by the GPS. Phases are `enrol` (with data loading and the first
    question), `relevance` (the other questions), `group`, `train` (with the final measurement), and `total`.
    """
    virtual: Virtual | None
    """Times of the run on the virtual clock; null without `clock: virtual`."""
    real: Real | None
    """Accuracy of the links on the real clock; null without `clock: real`."""
    energy: EnergySummary | None = None
    """Energy of the devices; absent if the experiment has no section `energy`."""
    bytes: dict[Link, LinkBytes]
    """Bytes by link, as counted by the parents."""
    bytes_by_kind: dict[Link, dict[str, LinkBytes]]
    """Bytes by link, then by kind of call, as counted by the parents."""
    training_bytes: LinkBytes | None = None
    """The part of `bytes` on the link device-lps up to the end of the last LPS round: the sum of `rounds.csv`. The rest
    sends models to all devices, which only measure them. `virtual.seconds` leaves it out, too.
    """
    repeated_bytes: LinkBytes | None = None
    """The part of `bytes` on the link device-gps that repeats earlier messages, because a process was restarted. The
    result does not need this part. Absent if nothing was repeated.
    """
    excluded: tuple[Exclusion, ...]
    """LPSs and devices that took no part in a round, or from some point of the run on. LPSs come first, then devices,
    both in the order of rounds.
    """
    adoptions: tuple[Adoption, ...]
    """Clusters that another LPS took over."""
    kernels: dict[str, NonNegativeInt]
    """Number of devices by kernel: the variant of OpenBLAS, and six digits that depend on torch's bits, such as
    `SkylakeX-2d315b`; on a GPU, also its name and the versions of its libraries. With another kernel, relevances and
    models may differ in their last bits.
    """
    homes: dict[str, tuple[str, ...]] | None
    """Device ids by LPS; null unless clusters span LPSs."""
    moves: tuple[Moved, ...]
    """Devices that the schedule moved to another LPS."""
    lost_state: tuple[str, ...]
    """Devices that restarted without the state that they had kept, and began with a new state."""
    personal_sha256: dict[str, str]
    """Digest of each device's kept state at the end of the run, by device. The state has the layers that never leave
    the device, arrays of the method such as the device's own model, and the optimiser's kept state.
    """
    model_sha256: dict[str, str]
    """Digest of each cluster's model in `models/`, by cluster. A digest depends only on the weights, so runs can be
    compared by it.
    """
    privacy: Privacy | None = None
    """Noise of the run; absent if the experiment has no section `privacy`."""
    asynchronous: Asynchronous | None = None
    """Updates of asynchronous rounds; absent if all rounds are synchronous."""
    attacks: Attacked | None = None
    """Attacks on the run; absent if the experiment has no section `attacks`."""
    kept: dict[Literal["lps", "gps"], Kept] | None = None
    """Result of each tier's rule under attack; absent without attacks, or if rules choose no factors."""
    made_by: MadeBy | None = None
    """Software, commands and times of the result, to cite it; absent in records from before this key existed."""
    metrics: tuple[Metric, ...] = CLASSIFICATION.metrics
    """Metrics of the task, each with name, unit, direction and title. The first is the main metric (headline). Absent
    for a classification.
    """

    @pydantic_check(mode="after")
    def _consistent(self) -> Self:
        if self.status == "completed" and not self.clusters:
            raise ValueError("a completed run must have clusters, and this record has none")
        members = [device for ids in self.clusters.values() for device in ids]
        if len(set(members)) != len(members):
            raise ValueError("a device is in two clusters; it must be in only one")
        if self.repeated_bytes is not None and self.repeated_bytes.total > self.link("device-gps").total:
            raise ValueError(f"repeated_bytes are {self.repeated_bytes.total}, more than all bytes of device-gps")
        for metric in self.metrics:
            found = self.measured[metric.name]
            if unknown := set(found.clusters) - set(self.clusters) - {"mean"}:
                raise ValueError(f"{metric.name} names {sorted(unknown)[0]!r}, which is not a cluster")
            for key, value in found.all_values(metric.name):
                if value is not None and not metric.range[0] <= value <= metric.range[1]:
                    raise ValueError(f"{key} is {value}; expected {metric.range[0]:g} to {metric.range[1]:g}")
        return self

    @property
    def headline(self) -> Metric:
        """The main metric, by which devices and runs are compared."""
        return self.metrics[0]

    @property
    def of_headline(self) -> Measured:
        """The values of the main metric."""
        return self.measured[self.headline.name]

    def mean_of(self, metric: Metric) -> float | None:
        """Return the mean of a metric over clusters. If the task lacks the metric, or no device measured it, return
        None.
        """
        return self.measured[metric.name].clusters.get("mean") if metric.name in self.measured else None

    @property
    def mean(self) -> float | None:
        """The mean of the main metric over clusters; None if no device measured it."""
        return self.mean_of(self.headline)

    @property
    def test_set_name(self) -> TestSetName:
        return "own" if self.test_set is None else self.test_set.name

    @property
    def cluster_of_device(self) -> dict[str, str]:
        return {device: lps_id for lps_id, ids in self.clusters.items() for device in ids}

    @property
    def by_lps(self) -> dict[str, tuple[str, ...]]:
        """The devices of each LPS. They are the devices of the LPS's cluster or, if clusters span LPSs, the devices
        that the LPS serves.
        """
        return self.clusters if self.homes is None else self.homes

    @property
    def total_seconds(self) -> float | None:
        return self.wall_seconds.get("total")

    @property
    def total_bytes(self) -> int:
        return sum(link.total for link in self.bytes.values())

    def link(self, name: Link) -> LinkBytes:
        """Return the bytes of a link in its two directions. If no bytes were counted, both numbers are 0."""
        return self.bytes.get(name, LinkBytes(up=0, down=0))

    @property
    def traffic(self) -> dict[str, LinkBytes]:
        """The bytes of each link, and the part of device-lps that is for training, if it is known."""
        links = {str(link): self.link(link) for link in LINKS}
        return links if self.training_bytes is None else {**links, "device-lps, training": self.training_bytes}

    def document(self) -> dict[str, Any]:
        """Return the summary as a mapping for JSON."""
        document = SUMMARY.dump_python(self, mode="json", by_alias=True, exclude_defaults=True)
        measured = document.pop("measured")
        flat = {key.replace("METRIC", name): part for name, parts in measured.items() for key, part in parts.items()}
        if "metrics" in document:
            document["metrics"] = [asdict(metric) for metric in self.metrics]
        before = list(document)[: list(document).index("newcomers")]
        return {**{key: document.pop(key) for key in before}, **flat, **document}

    def text(self) -> str:
        """Return the text of summary.json."""
        return json_text(self.document(), indent=2) + "\n"


SUMMARY = TypeAdapter(Summary)


def measured_on(summary: Summary) -> str:
    """Return the test set in words. If some devices did not measure, the words say so."""
    said, found = TEST_SETS[summary.test_set_name], summary.test_set
    if found is None or not found.devices:
        return said
    missing = summary.devices - found.devices
    without = f", without the part of {missing} of {summary.devices} devices" if missing else ""
    return f"{said} ({found.examples}){without}"


def summary_parts(summary: Summary) -> dict[str, Any]:
    """Return the parts of the page of a run that come from the summary: its keys, and the test set in words."""
    keys = {f"summary/{key}": value for key, value in summary.document().items()}
    return {**keys, "measured_on": measured_on(summary)}


def read_summary(path: Path) -> Summary:
    """Return the summary in a file. Raises DataError if the file is missing or malformed."""
    try:
        document = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise DataError(f"{path} must be an object of keys and values, not {type(document).__name__}")
    return checked(SUMMARY, _nested(document, path), str(path))


def _nested(document: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the content of summary.json in the form that `Summary` needs. In the file, the keys of metrics are at the
    top level. In the returned mapping, they are under `measured`.
    """
    rest = dict(document)
    listed = rest.get("metrics", [{"name": metric.name} for metric in CLASSIFICATION.metrics])
    if not (isinstance(listed, list) and listed and all(isinstance(each, dict) for each in listed)):
        raise DataError(f"{path}: metrics must be a list of objects, each with a name")
    measured = {}
    for name in (str(each.get("name")) for each in listed):
        keys = {part: f"{prefix}{name}" for part, prefix in PREFIXES.items()}
        missing = next((key for key in keys.values() if key not in rest), None)
        if missing is not None:
            raise DataError(f"{path}: {missing}: is missing")
        measured[name] = {part: rest.pop(key) for part, key in keys.items()}
    return {**rest, "measured": measured}


def check_names(metrics: Sequence[Metric]) -> None:
    """Check the names of metrics. Raise ExperimentError if another value or another metric has the same key or column
    in the record, or the same name at `/metrics`.
    """
    taken = {each.name for kind in (Summary, RoundRow) for each in fields(kind)} - {"measured", "metrics"}
    taken |= GAUGES | {f"{end}_{metrics[0].name}" for end in ("lowest", "highest")}
    for metric in metrics:
        keys = {metric.gauge, *(f"{prefix}{metric.name}" for prefix in PREFIXES.values())}
        if keys & taken:
            raise ExperimentError(
                f"task: the record or /metrics uses the name {metric.name} already; give this metric another name"
            )
        taken |= keys
