"""summary.json: what a run came to."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, Field, NonNegativeInt, PositiveInt, TypeAdapter
from pydantic import model_validator as pydantic_check
from pydantic.dataclasses import dataclass as checked_dataclass

from fedstrata.errors import DataError
from fedstrata.experiment.links import Link
from fedstrata.process.json_text import json_text
from fedstrata.record.energy import EnergySummary
from fedstrata.record.links import Real
from fedstrata.record.privacy import Privacy
from fedstrata.record.tables import Amount, Ratio, checked, read_text
from fedstrata.record.timeline import Virtual

From = Annotated[str, Field(validation_alias=AliasChoices("from", "stage", "came_from"), serialization_alias="from")]


@checked_dataclass(frozen=True, kw_only=True)
class LinkBytes:
    """Bytes of one link: `up` towards the GPS, `down` towards the devices."""

    up: NonNegativeInt
    down: NonNegativeInt

    @property
    def total(self) -> int:
        return self.up + self.down


@checked_dataclass(frozen=True, kw_only=True)
class Exclusion:
    """A device or LPS that took no part from some point on (`stage`: enrolment, or a round), and why."""

    device: str
    stage: From
    reason: str


@checked_dataclass(frozen=True, kw_only=True)
class Adoption:
    """A cluster that changed hands: `by` which LPS it was served from some point on."""

    cluster: str
    by: str
    stage: From


@checked_dataclass(frozen=True, kw_only=True)
class Replanning:
    """A plan made in training, and how many devices it moved to another cluster."""

    global_round: PositiveInt
    clusters: NonNegativeInt
    moved: NonNegativeInt


@checked_dataclass(frozen=True, kw_only=True)
class Moved:
    """A device that the schedule has moved to another LPS from a global round on."""

    device: str
    came_from: From
    to: str
    global_round: PositiveInt


@checked_dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run came to; docs/record.md says what each key holds. Unknown keys are passed over.

    A field with a default is left out of the file if the experiment does not ask for it.
    """

    run_id: str
    name: str
    experiment_sha256: str
    seed: int
    method: str
    status: Literal["completed", "failed"]
    reason: str | None
    devices: NonNegativeInt
    clusters: dict[str, tuple[str, ...]]
    clusters_rule: str
    replanned: tuple[Replanning, ...]
    adjusted_rand_index: Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)] | None
    device_tasks: dict[str, str] | None
    rounds: NonNegativeInt
    accuracy: dict[str, Ratio | None]
    received_accuracy: dict[str, Ratio | None] | None  # None unless devices use models of their own
    device_accuracy: dict[str, Ratio | None]
    newcomers: tuple[str, ...]
    task_accuracy: dict[str, Ratio | None] | None
    wall_seconds: dict[str, Amount]
    virtual: Virtual | None  # None without a virtual clock
    real: Real | None  # None without a real clock
    energy: EnergySummary | None = None
    bytes: dict[Link, LinkBytes]
    bytes_by_kind: dict[Link, dict[str, LinkBytes]]
    excluded: tuple[Exclusion, ...]
    adoptions: tuple[Adoption, ...]
    kernels: dict[str, NonNegativeInt]
    homes: dict[str, tuple[str, ...]] | None  # devices by LPS, if clusters span LPSs
    moves: tuple[Moved, ...]
    lost_state: tuple[str, ...]
    personal_sha256: dict[str, str]
    model_sha256: dict[str, str]
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
        """The devices of each LPS: those of its cluster or, if clusters span LPSs, those that it serves."""
        return self.clusters if self.homes is None else self.homes

    @property
    def total_seconds(self) -> float | None:
        return self.wall_seconds.get("total")

    @property
    def total_bytes(self) -> int:
        return sum(link.total for link in self.bytes.values())

    def link(self, name: Link) -> LinkBytes:
        """The bytes of a link; zero if none were counted."""
        return self.bytes.get(name, LinkBytes(up=0, down=0))

    def document(self) -> dict[str, Any]:
        """The summary as JSON has it."""
        document: dict[str, Any] = SUMMARY.dump_python(self, mode="json", by_alias=True, exclude_defaults=True)
        return document

    def text(self) -> str:
        """The text of summary.json."""
        return json_text(self.document(), indent=2) + "\n"


SUMMARY = TypeAdapter(Summary)


def read_summary(path: Path) -> Summary:
    """Return the summary in a file. Raises DataError."""
    try:
        document = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise DataError(f"{path} must be an object of keys and values, not {type(document).__name__}")
    return checked(SUMMARY, document, str(path))
