"""A finished run's folder as values: summary, rounds and relevance. All that is drawn comes from here."""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError
from pydantic import model_validator as pydantic_check
from pydantic.dataclasses import dataclass as checked_dataclass

from emulator.results.energy import EnergySummary
from emulator.results.privacy import Privacy
from emulator.results.real_links import LINK_ROW, LinkRow, Real
from emulator.results.timeline import TIMELINE_ROW, TimelineRow, Virtual
from fedstrata.errors import DataError
from fedstrata.experiment.yaml_files import read_yaml

Link = Literal["device-gps", "device-lps", "lps-gps"]
LINKS: tuple[Link, ...] = ("device-gps", "device-lps", "lps-gps")
Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Seconds = Annotated[NonNegativeFloat, Field(allow_inf_nan=False)]
Rounds = tuple["RoundRow", ...]
T = TypeVar("T")


@checked_dataclass(frozen=True, kw_only=True)
class LinkBytes:
    """Bytes of one link: `up` towards the GPS, `down` towards the devices."""

    up: NonNegativeInt = 0
    down: NonNegativeInt = 0

    @property
    def total(self) -> int:
        return self.up + self.down


@checked_dataclass(frozen=True, kw_only=True)
class Exclusion:
    """A device that took no part from some point on (`stage`: enrolment, or a round), and why."""

    device: str
    stage: str = Field(alias="from")
    reason: str


@checked_dataclass(frozen=True, kw_only=True)
class Adoption:
    """A cluster that changed hands: `by` which LPS it was served from some point on."""

    cluster: str
    by: str
    stage: str = Field(alias="from")


@checked_dataclass(frozen=True, kw_only=True)
class Replanning:
    """A plan made in training, and how many devices it moved to another cluster."""

    global_round: PositiveInt
    clusters: NonNegativeInt
    moved: NonNegativeInt


@checked_dataclass(frozen=True, kw_only=True)
class Moved:
    """A device that hangs on another LPS from a global round on, by the schedule."""

    device: str
    came_from: str = Field(alias="from")
    to: str
    global_round: PositiveInt


@checked_dataclass(frozen=True, kw_only=True)
class Summary:
    """`summary.json`. A failed run may leave out what it never came to; unknown keys are passed over."""

    run_id: str
    seed: int
    method: str
    status: Literal["completed", "failed"]
    reason: str | None = None
    devices: NonNegativeInt
    clusters: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    clusters_rule: str | None = None
    adjusted_rand_index: Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)] | None = None
    rounds: NonNegativeInt = 0
    accuracy: dict[str, Ratio | None] = Field(default_factory=dict)
    task_accuracy: dict[str, Ratio | None] | None = None
    device_accuracy: dict[str, Ratio | None] = Field(default_factory=dict)
    wall_seconds: dict[str, Seconds] = Field(default_factory=dict)
    bytes: dict[Link, LinkBytes] = Field(default_factory=dict)
    bytes_by_kind: dict[Link, dict[str, LinkBytes]] = Field(default_factory=dict)
    model_sha256: dict[str, str] = Field(default_factory=dict)
    experiment_sha256: str | None = None
    excluded: tuple[Exclusion, ...] = ()
    adoptions: tuple[Adoption, ...] = ()
    replanned: tuple[Replanning, ...] = ()
    moves: tuple[Moved, ...] = ()
    lost_state: tuple[str, ...] = ()
    device_tasks: dict[str, str] | None = None
    homes: dict[str, tuple[str, ...]] | None = None  # devices by LPS, where clusters span LPSs
    received_accuracy: dict[str, Ratio | None] | None = None  # where devices use models of their own
    newcomers: tuple[str, ...] = ()  # devices that joined once the others were grouped
    kernels: dict[str, NonNegativeInt] = Field(default_factory=dict)
    virtual: Virtual | None = None  # on the virtual clock
    real: Real | None = None  # on the real clock
    energy: EnergySummary | None = None  # where the experiment counts it
    privacy: Privacy | None = None

    @pydantic_check(mode="after")
    def _consistent(self) -> Self:
        if self.status == "completed" and not self.clusters:
            raise ValueError("a completed run has clusters, and here are none")
        members = [device for ids in self.clusters.values() for device in ids]
        if len(set(members)) != len(members):
            raise ValueError("a device is in one cluster only, and here one stands in two")
        unknown = set(self.accuracy) - set(self.clusters) - {"mean"}
        if unknown:
            raise ValueError(f"accuracy names {sorted(unknown)[0]!r}, which is not a cluster")
        return self

    @property
    def mean_accuracy(self) -> float | None:
        return self.accuracy.get("mean")

    @property
    def cluster_of_device(self) -> dict[str, str]:
        return {device: lps_id for lps_id, ids in self.clusters.items() for device in ids}

    @property
    def by_lps(self) -> dict[str, tuple[str, ...]]:
        """The devices of each LPS: those of its cluster, or, where clusters span LPSs, those that hang on it."""
        return self.clusters if self.homes is None else self.homes

    @property
    def total_seconds(self) -> float | None:
        return self.wall_seconds.get("total")

    @property
    def total_bytes(self) -> int:
        return sum(link.total for link in self.bytes.values())

    def link(self, name: Link) -> LinkBytes:
        """The bytes of a link; zero where nothing was counted."""
        return self.bytes.get(name, LinkBytes())


@checked_dataclass(frozen=True, kw_only=True)
class RoundRow:
    """One LPS round as `rounds.csv` has it; `loss` and `accuracy` are None where it was not evaluated."""

    global_round: PositiveInt
    lps_round: PositiveInt
    lps_id: str
    devices: NonNegativeInt
    num_examples: NonNegativeInt
    loss: float | None
    accuracy: Ratio | None
    seconds: Seconds
    bytes_up: NonNegativeInt
    bytes_down: NonNegativeInt
    lowest_accuracy: Ratio | None = None  # of a device; records of earlier versions do not say
    highest_accuracy: Ratio | None = None


ROUND_COLUMNS = [field.name for field in dataclasses.fields(RoundRow) if field.default is dataclasses.MISSING]
SUMMARY, ROUND_ROW = TypeAdapter(Summary), TypeAdapter(RoundRow)


def summary_fields(summary: Summary) -> dict[str, Any]:
    """A summary as JSON has it."""
    fields: dict[str, Any] = SUMMARY.dump_python(summary, mode="json", by_alias=True)
    return fields


@dataclass(frozen=True, kw_only=True, eq=False)
class Relevance:
    """The relevance matrix R, shape (N, N), symmetric, values in [0, 1]; row and column i are `ids[i]`."""

    ids: tuple[str, ...]
    matrix: NDArray[np.float64]

    def __post_init__(self) -> None:
        size = len(self.ids)
        if self.matrix.shape != (size, size):
            raise DataError(f"{size} device ids need a matrix of {size} × {size}, not {self.matrix.shape}")
        if len(set(self.ids)) != size:
            raise DataError("a device id stands twice in the header")
        if not np.isfinite(self.matrix).all() or self.matrix.min() < -1e-9 or self.matrix.max() > 1 + 1e-9:
            raise DataError("relevance is a number from 0 to 1, and here one is not")
        if not np.allclose(self.matrix, self.matrix.T, rtol=0, atol=1e-6):
            raise DataError("the relevance matrix is not symmetric")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run record; `relevance` is None for methods that group devices by no such matrix."""

    folder: Path
    name: str  # the experiment's
    experiment: Mapping[str, Any]  # as resolved; not checked against today's keys, so that old records still open
    experiment_yaml: str
    summary: Summary
    rounds: Rounds
    relevance: Relevance | None
    timeline: tuple[TimelineRow, ...] = ()  # on the virtual clock
    links: tuple[LinkRow, ...] = ()  # on the real clock

    def __post_init__(self) -> None:
        for row in self.rounds:
            if row.lps_id not in self.summary.by_lps:
                raise DataError(
                    f"rounds.csv names {row.lps_id!r}, which is neither a cluster nor an LPS of summary.json"
                )


def load_record(folder: Path) -> RunRecord:
    """The record that a run left in `folder`.

    Raises:
        DataError: a file is missing or malformed; the message is one line and names the file.
    """
    summary = _parse_summary(_read(folder / "summary.json"), folder / "summary.json")
    text = _read(folder / "experiment.yaml")
    experiment = _parse_experiment(text, folder / "experiment.yaml")
    relevance = folder / "relevance.csv"
    rounds, timeline, links = (folder / f"{name}.csv" for name in ("rounds", "timeline", "links"))
    is_cut_short = summary.status == "failed" and not rounds.exists()
    return RunRecord(
        folder=folder,
        name=str(experiment.get("name", summary.run_id)),
        experiment=experiment,
        experiment_yaml=text,
        summary=summary,
        rounds=() if is_cut_short else parse_rows(rounds, ROUND_ROW, ROUND_COLUMNS),
        relevance=_parse_relevance(_read(relevance), relevance) if relevance.exists() else None,
        timeline=parse_rows(timeline, TIMELINE_ROW, TimelineRow.__dataclass_fields__) if timeline.exists() else (),
        links=parse_rows(links, LINK_ROW, LinkRow.__dataclass_fields__) if links.exists() else (),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"{path} is missing; give the folder that a run wrote its record to") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def _parse_summary(text: str, path: Path) -> Summary:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise DataError(f"{path} must be an object of keys and values, not {type(document).__name__}")
    return _checked(SUMMARY, document, str(path))


def _parse_experiment(text: str, path: Path) -> Mapping[str, Any]:
    try:
        document = read_yaml(text)
    except ValueError as error:
        raise DataError(f"{path} {error}") from None
    if not isinstance(document, dict):
        raise DataError(f"{path} must be a mapping of keys to values, not {type(document).__name__}")
    return document


def parse_rows(path: Path, kind: TypeAdapter[T], columns: Iterable[str]) -> tuple[T, ...]:
    """The rows of a table, each empty field as None."""
    text = _read(path)
    table = _csv_rows(text, path)
    if not table:
        raise DataError(f"{path} is empty; at least its header row is expected")
    header, rows = table[0], table[1:]
    missing = [name for name in columns if name not in header]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r}")
    parsed = []
    for line, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise DataError(f"{path} row {line}: {len(row)} fields where the header has {len(header)}")
        fields = {name: field if field else None for name, field in zip(header, row, strict=True)}
        parsed.append(_checked(kind, fields, f"{path} row {line}"))
    return tuple(parsed)


def _parse_relevance(text: str, path: Path) -> Relevance | None:
    """The matrix; None where it has no device."""
    table = _csv_rows(text, path)
    ids = tuple(table[0][1:]) if table else ()
    if not ids:
        return None
    if tuple(row[0] for row in table[1:]) != ids:
        raise DataError(f"{path}: the first column must name the devices of the header, in its order")
    for line, row in enumerate(table[1:], start=2):
        if len(row) != len(ids) + 1:
            raise DataError(f"{path} row {line}: {len(row) - 1} numbers where the header has {len(ids)} devices")
    try:
        matrix = np.array([row[1:] for row in table[1:]], dtype=np.float64)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    try:
        return Relevance(ids=ids, matrix=matrix)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _csv_rows(text: str, path: Path) -> list[list[str]]:
    """All rows that are not blank."""
    try:
        return [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    except csv.Error as error:
        raise DataError(f"{path} is not CSV: {error}") from None


def _checked(kind: TypeAdapter[T], fields: Mapping[str, Any], where: str) -> T:
    """A `kind` built from `fields`, or a DataError naming the first key that is wrong."""
    try:
        return kind.validate_python(fields)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        said = f"{key}: {message}" if key else message
        raise DataError(f"{where}: {' '.join(said.split())}") from None


def is_number(value: float | None) -> TypeGuard[float]:
    """Whether a value is there and finite, so that it can be drawn."""
    return value is not None and math.isfinite(value)
