"""The experiment: all settings that define a run, as plain data.

`fedstrata.experiment_file` reads an experiment from YAML and checks rules between sections. Each section has its own
module, which checks its values.
"""

import hashlib
import re
from collections.abc import Container, Mapping
from functools import cached_property
from typing import Annotated, Any, Self

import yaml
from pydantic import Field, SerializeAsAny, SerializerFunctionWrapHandler, model_serializer, model_validator

from fedstrata.experiment.attacks import AttackSettings
from fedstrata.experiment.energy import EnergySettings
from fedstrata.experiment.faults import Fault, KillFault, PauseFault
from fedstrata.experiment.links import Clock, ComputeSettings, Links, check_known
from fedstrata.experiment.newcomers import NewcomerSettings
from fedstrata.experiment.partition import PartitionSettings, PublicSettings
from fedstrata.experiment.privacy import PrivacySettings, SecureAggregation
from fedstrata.experiment.schedule import Entries
from fedstrata.experiment.sections import (
    AggregationSettings,
    ArchitectureSettings,
    Bounds,
    DataSettings,
    Deadlines,
    DeviceSettings,
    MethodSettings,
    ModelSettings,
    Settings,
    TaskSettings,
    TopologySettings,
    TrainingSettings,
)

# Most examples of all devices together. With so many, values of updates in the exact sum are limited to ±1. With fewer
# examples, larger values fit. Without this limit, one device that claims too many could get all updates refused.
MOST_EXAMPLES = 1 << 30
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Experiment(Settings):
    """Hold all settings that define a run."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")
    """Name at the start of the run's id: small letters, digits and hyphens, at most 40."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Number that determines all random draws of the run, except noise that protects data."""
    data: DataSettings = DataSettings()
    """The data set."""
    partition: SerializeAsAny[PartitionSettings]
    """Division of the examples among devices; each kind of partition has its own keys."""
    model: ModelSettings = ModelSettings()
    """The model and its shared layers."""
    task: SerializeAsAny[TaskSettings] = TaskSettings()
    """The loss and the metrics: a name, or a mapping with a name and the task's options."""
    architectures: tuple[ArchitectureSettings, ...] = ()
    """Devices with another model than `model`; if several entries have begun for a device, the latest applies."""
    method: SerializeAsAny[MethodSettings]
    """The method, which groups devices and chooses the tensors that are sent: a name, or a mapping with a name and
    options.
    """
    topology: TopologySettings | None = None
    """Number of LPSs, and the devices that each serves; without this key each cluster has its own LPS."""
    devices: DeviceSettings = DeviceSettings()
    """The processor on which devices compute."""
    training: TrainingSettings = TrainingSettings()
    """Rounds, the local optimiser, and the optimisers of the servers."""
    aggregation: AggregationSettings = AggregationSettings()
    """Rules by which the servers combine updates."""
    clock: Clock = "none"
    """`virtual` calculates how long the run would take on its links, `real` slows the run down to this time, and `none`
    does neither.
    """
    links: Links = Links()
    """Encodings of tensors and, with a clock, how long transfers take."""
    compute: ComputeSettings | None = None
    """Time that devices need to compute, for runs with a clock; without this key computing takes no time."""
    schedule: Entries = ()
    """Changes during training: of links, of the presence of devices, and of the LPS that serves a device."""
    energy: EnergySettings | None = None
    """Radios and power of devices, from which the record's energy is calculated; this section changes neither the run
    nor its id.
    """
    deadlines: Deadlines = Deadlines()
    """Deadlines after which a parent stops waiting for its children; without deadlines a parent waits for all its
    children.
    """
    bounds: Bounds | None = None
    """Limits on the numbers that a device may report; a device that reports a larger number is excluded from the run.
    """
    secure_aggregation: SecureAggregation | None = None
    """Masks on updates, so that an LPS learns only the sum of the updates; `{}` turns them on."""
    privacy: PrivacySettings | None = None
    """Noise on the values that devices send, for differential privacy."""
    newcomers: NewcomerSettings | None = None
    """Devices that join after the other devices have been grouped."""
    attacks: tuple[SerializeAsAny[AttackSettings], ...] = ()
    """Devices and LPSs that attack on purpose; each entry names one attack."""
    faults: tuple[Fault, ...] = ()
    """Failures that the run causes on purpose; they do not change the run's id."""
    files: dict[str, Sha256] = Field(default_factory=dict)
    """SHA-256 of each file of own code and own data, which commands add; a file that has changed since then is refused.
    """

    @model_serializer(mode="wrap")
    def _without_empty_files(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = serialise(self)
        return found if self.files else {key: value for key, value in found.items() if key != "files"}

    @model_validator(mode="after")
    def _has_own_folders(self) -> Self:
        if self.partition.is_local and self.data.name != "folder":
            raise ValueError(
                "partition.kind local needs data.name folder, because each device has its own folder; set both"
            )
        return self

    @model_validator(mode="after")
    def _faults_hit_something(self) -> Self:
        known = {"gps", *self.device_ids()}
        for fault in self.faults:
            if isinstance(fault, KillFault | PauseFault) and not re.fullmatch(r"lps-\d+", fault.process):
                _member(fault.process, known)
        return self

    @model_validator(mode="after")
    def _names_known_devices(self) -> Self:
        check_known(self.links, self.compute, self.device_count)
        if self.energy is not None and self.clock != "none":
            self.energy.check_known(self.compute, self.device_count)
        return self

    @property
    def is_paced(self) -> bool:
        """Return whether the run slows links and computing down to their configured times (`clock: real`)."""
        return self.clock == "real"

    @property
    def timed_key(self) -> str:
        """The first key that has an effect only with a clock, or "" if the experiment has no such key."""
        sections = ("compute", "schedule", "energy")
        return self.links.timed_key or next((key for key in sections if getattr(self, key)), "")

    @cached_property
    def limits(self) -> Bounds:
        """The largest values that a device may report: the limits in the section `bounds`. Without
        `bounds.max_examples`, the limit for examples is the number of training examples of the partition's largest
        device.
        """
        bounds = self.bounds or Bounds()
        if bounds.max_examples is not None:
            return bounds
        return bounds.model_copy(update={"max_examples": self.partition.most_examples})

    @property
    def most_examples(self) -> int:
        """The largest number of training examples that a device may report."""
        return self.limits.max_examples or max(1 << 20, MOST_EXAMPLES // self.device_count)

    @property
    def least_in_sum(self) -> int:
        """The smallest number of updates that an LPS sees as one sum: `min_devices` of the section `secure_aggregation`
        or, without this section, 1.
        """
        return 1 if self.secure_aggregation is None else self.secure_aggregation.min_devices

    @property
    def device_count(self) -> int:
        return self.partition.device_count

    def device_ids(self) -> list[str]:
        """Return the device ids in index order. The partition gives the ids. If it does not, the ids are `device-000`
        and so on.
        """
        return list(self._ids)

    @cached_property
    def _ids(self) -> tuple[str, ...]:
        if self.partition.device_ids:
            return self.partition.device_ids
        width = max(3, len(str(self.device_count - 1)))
        return tuple(f"device-{index:0{width}d}" for index in range(self.device_count))

    @cached_property
    def newcomer_indexes(self) -> frozenset[int]:
        """The indexes of the devices that join after the grouping."""
        if self.newcomers is None:
            return frozenset()
        return self.newcomers.indexes(self.task_of_devices() or ["all"] * self.device_count, self.seed)

    def task_of_devices(self) -> list[str] | None:
        """Return the true task or group of each device, in index order. If the partition has none, return None."""
        return self.partition.true_groups

    def model_of(self, device_index: int, global_round: int) -> ModelSettings:
        """Return the settings of the model that a device trains in a global round. The first round has the number 0."""
        own = [each for each in self.architectures if device_index in each.devices]
        begun = [each for each in own if each.from_global_round <= global_round + 1]
        return max(begun, key=lambda each: each.from_global_round).model if begun else self.model

    @property
    def public(self) -> PublicSettings | None:
        """The settings of the public examples, which no device owns. They are None if the experiment has no public
        examples.
        """
        return self.partition.public_examples

    def to_yaml(self) -> str:
        """Return the resolved experiment file as YAML: every key with its value, in a fixed order."""
        return yaml.safe_dump(self.model_dump(mode="json", by_alias=True), sort_keys=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with changed fields. Values that were computed from the fields, such as the digest, are
        computed again.
        """
        copy = super().model_copy(update=update, deep=deep)
        for derived in ("digest", "limits", "newcomer_indexes", "_ids"):
            copy.__dict__.pop(derived, None)
        return copy

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the experiment with all defaults. Faults, energy, and paths on this machine are left out, because
        they do not change the result.

        With `clock: virtual` or `real`, the digest also depends on the configured times and rates. Presets are first
        replaced by their numbers.
        """
        return hashlib.sha256(yaml.safe_dump(_that_decides(self)).encode()).hexdigest()

    @property
    def run_id(self) -> str:
        """The id of the run. It is the same in every process with the same experiment."""
        return f"{self.name}-{self.digest[:12]}"


def _member(value: str, known: Container[str]) -> None:
    if value not in known:
        raise ValueError(f"faults: no process is called {value!r}; use gps, lps-0 …, or a device such as device-000")


def _that_decides(experiment: Experiment) -> dict[str, Any]:
    """Return the part of the resolved experiment from which the digest is computed. It has no keys that cannot change
    the result. Keys that were added later are left out if they have their default. So the ids of earlier runs stay the
    same.
    """
    resolved = experiment.model_dump(mode="json", by_alias=True)
    resolved["data"] = experiment.data.drawn(experiment.seed).model_dump(mode="json", by_alias=True)
    del resolved["faults"], resolved["energy"], resolved["schedule"]
    if experiment.aggregation == AggregationSettings():
        del resolved["aggregation"]
    if experiment.devices == DeviceSettings():
        del resolved["devices"]
    if not experiment.attacks:
        del resolved["attacks"]
    links = {"device-lps": experiment.links.device_lps, "lps-gps": experiment.links.lps_gps}
    resolved["links"] = {name: {"down": link.down, "up": link.up} for name, link in links.items()}
    if experiment.clock != "none":
        resolved["links"]["times"] = experiment.links.times()
        if experiment.schedule:
            resolved["schedule"] = [entry.of_digest(experiment.links.traces) for entry in experiment.schedule]
    else:
        del resolved["clock"], resolved["compute"]
    del resolved["data"]["folder"], resolved["data"]["download"]
    for model in (resolved["model"], *(entry["model"] for entry in resolved["architectures"])):
        del model["weights"]
    if experiment.training.last_batch == "kept":
        del resolved["training"]["last_batch"]
    rounds = experiment.training.rounds.asynchronous
    if rounds is None:
        del resolved["training"]["rounds"]
    elif rounds.concurrency is None:
        del resolved["training"]["rounds"]["lps"]["concurrency"]
    if experiment.training.evaluate_all_every is None:
        del resolved["training"]["evaluate_all_every"]
    resolved["partition"] = experiment.partition.of_digest()
    updates = experiment.privacy.updates if experiment.privacy is not None else None
    sets_noise = updates is not None and updates.covers == "sum"  # then min_devices decides how much
    if experiment.secure_aggregation is None or (experiment.clock == "none" and not sets_noise):
        del resolved["secure_aggregation"]  # masks change no model, only bytes and times
    return resolved


def has_leavers(experiment: Experiment) -> bool:
    """Return whether the schedule makes devices leave. Without a clock, the schedule does nothing."""
    return experiment.clock != "none" and any(entry.leave is not None for entry in experiment.schedule)
