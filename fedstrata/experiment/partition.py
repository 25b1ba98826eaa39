"""The section `partition` of an experiment file, which says which examples each device owns. `fedstrata.partitions`
divides the examples accordingly.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from fedstrata.experiment.quantities import DeviceList
from fedstrata.experiment.sections import MAX_DEVICES, Settings

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]
Size = Annotated[int, Field(ge=1)]


def _distinct_labels(value: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(value)) != len(value) or min(value) < 0:
        raise ValueError(f"labels must be different numbers of 0 or more, not {list(value)}")
    return value


Labels = Annotated[tuple[int, ...], Field(min_length=1), AfterValidator(_distinct_labels)]


class PublicSettings(Settings):
    """Hold the settings of the public examples. No device owns a public example, and every device has a copy of all.
    There are nearly equally many public examples of each label.
    """

    examples: int = Field(ge=1)
    """Number of public examples, which no device owns and of which every device has a copy."""
    labels: Labels | None = None
    """Labels of the public examples; without this key all labels."""
    source: Literal["train", "test"] = "train"
    """Part of the data set from which the public examples are taken."""
    labelled: bool = False
    """If true, devices know the labels of the public examples."""
    tests: bool = False
    """If true, devices are tested on the public examples with labels that the device has, instead of other tests."""


class SplitPartition(Settings):
    """Hold the settings that are common to all kinds of partition that divide one data set among devices."""

    kind: str
    """Kind of the partition."""
    test_share: float | None = Field(default=None, gt=0, lt=1)
    """Share of each device's own examples on which it is tested; without this key devices are tested on the data set's
    tests.
    """
    test_from: Literal["random", "end"] = "random"
    """Choice of the examples of `test_share`: at `random`, or the last ones in the order of the data (`end`)."""
    public: PublicSettings | None = None
    """Public examples, which no device owns."""

    @model_validator(mode="after")
    def _one_kind_of_tests(self) -> Self:
        if self.test_share is not None and self.public is not None and self.public.tests:
            raise ValueError("test_share and public.tests both choose the examples for tests; remove one")
        return self

    @property
    def most_examples(self) -> int | None:
        """The number of training examples of the largest device. It is None if it is known only from the data. Then
        `bounds.max_examples` can set a limit.
        """
        return None

    @property
    def least_examples(self) -> int | None:
        """The number of examples of the smallest device, including its test examples; None if it is known only from the
        data.
        """
        return None

    @property
    def true_groups(self) -> list[str] | None:
        """The name of each device's true group, in index order. It is None if the partition has no groups."""
        return None


class Task(Settings):
    """Define a learning task: its labels, and the devices that learn it."""

    name: Name
    """Name of the task: small letters, digits, `-` and `_`."""
    labels: Labels
    """Labels of the task; a label belongs to one task only."""
    devices: int = Field(ge=1, le=MAX_DEVICES)
    """Number of devices that learn the task; devices are numbered task by task."""
    examples_per_device: int = Field(ge=1)
    """Number of training examples of each device, including the examples of other tasks."""


class TaskPartition(SplitPartition):
    """Give each device examples of which most belong to its own task, and a minority to the other tasks."""

    kind: Literal["tasks"] = "tasks"
    """`tasks`: each device has most examples from its own task and a minority from other tasks."""
    tasks: tuple[Task, ...] = Field(min_length=1)
    """Learning tasks, and the devices that learn each."""
    by: str | None = None
    """Column that replaces the labels in this partition; without it the labels are used."""
    minority_ratio: float = Field(default=0.1, ge=0, lt=0.5)
    """Share of a device's training examples that come from other tasks."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [task.name for task in self.tasks]
        if len(set(names)) != len(names):
            raise ValueError(f"each task needs a different name, and these are {names}; rename one")
        labels = [label for task in self.tasks for label in task.labels]
        if len(set(labels)) != len(labels):
            raise ValueError("a label is listed in two tasks; remove it from one")
        return self

    @property
    def device_count(self) -> int:
        return sum(task.devices for task in self.tasks)

    @property
    def most_examples(self) -> int:
        """The number of training examples of the largest device."""
        return max(task.examples_per_device for task in self.tasks)

    @property
    def least_examples(self) -> int:
        """The number of examples of the smallest device, its test examples included."""
        return min(task.examples_per_device for task in self.tasks)

    @property
    def true_groups(self) -> list[str] | None:
        """The name of each device's task, in index order."""
        return [task.name for task in self.tasks for _ in range(task.devices)]


class Group(Settings):
    """Define a group of devices with data from one distribution: their labels, and the changes to their examples."""

    name: Name
    """Name of the group: small letters, digits, `-` and `_`."""
    devices: int = Field(ge=1, le=MAX_DEVICES)
    """Number of devices; devices are numbered group by group."""
    examples_per_device: Size | tuple[Size, Size]
    """Number of training examples of each device, or a range such as `[32, 128]` from which each device draws its
    number.
    """
    labels: Labels | None = None
    """Labels of the group's devices, before `label_permutation`; without this key all labels."""
    labels_per_device: int | None = Field(default=None, ge=1)
    """Number of labels that each device draws from `labels`; without this key a device has all of them."""
    disjoint_labels: bool = False
    """Whether two devices of the group never draw the same label."""
    concentration: float | None = Field(default=None, gt=0)
    """Concentration of the Dirichlet distribution from which label shares are drawn; without this key labels are as
    even as possible.
    """
    same_shares: bool = False
    """If true, all devices of the group have the same label shares, from one Dirichlet draw."""
    rotation: Literal[0, 90, 180, 270] = 0
    """Degrees by which images are rotated counter-clockwise."""
    label_permutation: Annotated[int, Field(ge=0)] | tuple[int, ...] | None = None
    """Change of labels: a list with the new label for each label, or a number that selects a random permutation."""

    @field_validator("examples_per_device", mode="before")
    @classmethod
    def _number_or_range(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and len(value) != 2:
            raise ValueError(f"give a number or a range [least, most], not {list(value)}")
        return value

    @field_validator("examples_per_device")
    @classmethod
    def _ordered(cls, value: int | tuple[int, int]) -> int | tuple[int, int]:
        if isinstance(value, tuple) and value[0] > value[1]:
            raise ValueError(f"a range must have the smaller number first, not {list(value)}")
        return value

    @field_validator("label_permutation")
    @classmethod
    def _permutation(cls, value: int | tuple[int, ...] | None) -> int | tuple[int, ...] | None:
        if isinstance(value, tuple) and sorted(value) != list(range(len(value))):
            raise ValueError(f"a permutation must have each label from 0 on once, such as [1, 2, 0], not {list(value)}")
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.disjoint_labels and self.labels_per_device is None:
            raise ValueError("disjoint_labels needs labels_per_device, which is missing; add it")
        if self.same_shares and self.concentration is None:
            raise ValueError("same_shares needs concentration, which is missing; add it")
        if self.same_shares and self.labels_per_device is not None:
            raise ValueError("same_shares needs devices with the same labels; remove labels_per_device")
        return self


class GroupPartition(SplitPartition):
    """Divide devices into groups that differ in labels, label shares, orientation of images or meaning of labels."""

    kind: Literal["groups"]
    """`groups`: devices of a group draw their data from one distribution."""
    groups: tuple[Group, ...] = Field(min_length=1)
    """Groups of devices."""
    by: str | None = None
    """Column that replaces the labels in this partition; without it the labels are used."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [group.name for group in self.groups]
        if len(set(names)) != len(names):
            raise ValueError(f"each group needs a different name, and these are {names}; rename one")
        return self

    @property
    def device_count(self) -> int:
        return sum(group.devices for group in self.groups)

    @property
    def most_examples(self) -> int:
        """The largest number of training examples that a device can have."""
        sizes = [group.examples_per_device for group in self.groups]
        return max(size if isinstance(size, int) else size[1] for size in sizes)

    @property
    def least_examples(self) -> int:
        """The smallest number of examples that a device can have, its test examples included."""
        sizes = [group.examples_per_device for group in self.groups]
        return min(size if isinstance(size, int) else size[0] for size in sizes)

    @property
    def true_groups(self) -> list[str] | None:
        """The name of each device's group, in index order. With a single group it is None, because then there are no
        groups to find.
        """
        if len(self.groups) == 1:
            return None
        return [group.name for group in self.groups for _ in range(group.devices)]


class EvenPartition(SplitPartition):
    """Give every device the same number of examples, without groups of devices."""

    devices: int = Field(ge=1, le=MAX_DEVICES)
    """Number of devices."""
    examples_per_device: int = Field(ge=1)
    """Training examples of each device."""

    @property
    def device_count(self) -> int:
        return self.devices

    @property
    def most_examples(self) -> int:
        """The number of training examples of every device."""
        return self.examples_per_device

    @property
    def least_examples(self) -> int:
        """The number of examples of every device, its test examples included."""
        return self.examples_per_device


class DirichletPartition(EvenPartition):
    """Draw each device's label shares from Dirichlet(concentration), so that devices differ in their labels."""

    kind: Literal["dirichlet"]
    """`dirichlet`: each device draws its label shares from a symmetric Dirichlet distribution."""
    concentration: float = Field(default=0.5, gt=0)
    """Concentration of the distribution: small values give skewed label shares, large values give even shares."""
    by: str | None = None
    """Column that replaces the labels in this partition; without it the labels are used."""


class IidPartition(EvenPartition):
    """Let every device draw from all examples in the same way."""

    kind: Literal["iid"]
    """`iid`: every device draws from all examples in the same way."""


SERVER = re.compile(r"gps|lps-\d+")
LONGEST_ID = 63


def _distinct_names(value: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if value is not None and len(set(value)) != len(value):
        raise ValueError("a name is listed twice; give each device a different name")
    if server := next(filter(SERVER.fullmatch, value or ()), None):
        raise ValueError(f"{server} is the name of a server, in faults and certificates, too; rename this device")
    return value


def _distinct_values(value: tuple[str, ...] | None) -> tuple[str, ...] | None:
    known: dict[str, str] = {}
    for name in value or ():
        found = device_id(name)
        if not found or len(found) > LONGEST_ID:
            raise ValueError(
                f"{name!r:.80} gives no device id, which needs 1 to {LONGEST_ID} letters (a to z) or digits; rename it"
            )
        if known.setdefault(found, name) != name:
            raise ValueError(f"{known[found]!r} and {name!r} give the same device id, {found}; rename one")
    _distinct_names(tuple(map(device_id, value or ())))
    return value


def device_id(name: str) -> str:
    """Return the device id for a name: in small letters, and with hyphens for all characters except letters from a to
    z, digits and dots. A name that can be an id is returned unchanged. The chart has the same rule for certificates.
    """
    return re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip(".-")


Names = tuple[Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")], ...]


class NaturalPartition(SplitPartition):
    """Give each device the examples with one value of a column, such as a user, a sensor or a file."""

    kind: Literal["natural"]
    """`natural`: each device owns the examples with its value of a column."""
    by: str = "device"
    """Column that names the owner of an example; `device` is the file's or sub-folder's name, if a `folder` has one per
    device.
    """
    devices: int | None = Field(default=None, ge=1, le=MAX_DEVICES)
    """Number of devices, equal to the column's number of different values; devices are in the order of the sorted
    values.
    """
    names: Annotated[tuple[str, ...] | None, AfterValidator(_distinct_values)] = Field(default=None, min_length=1)
    """In place of `devices`: the values of the column, in index order; devices are called like them (`Hospital A`:
    `hospital-a`).
    """

    @model_validator(mode="after")
    def _either(self) -> Self:
        if (self.devices is None) == (self.names is None):
            raise ValueError("natural: give exactly one of devices (their number) and names (values of the column)")
        return self

    @property
    def device_count(self) -> int:
        return self.devices or len(self.names or ())

    @property
    def device_ids(self) -> tuple[str, ...]:
        """The ids of the devices, if the experiment names them."""
        return tuple(map(device_id, self.names or ()))


class GivenPartition(SplitPartition):
    """Give each device the training examples that the experiment or a file lists."""

    kind: Literal["given"]
    """`given`: each device owns the training examples that are listed here or in a file."""
    examples: tuple[DeviceList, ...] | None = Field(default=None, min_length=1)
    """Indexes of each device's training examples, with ranges: `[[0, 1, "5-9"], [2, 3]]`."""
    file: Path | None = None
    """In place of `examples`: a text file with one line per training example, the index of its owner, or -1 for no
    owner.
    """
    file_sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """SHA-256 of the file `file`, a part of the run's id; it is computed when the experiment is read."""
    devices: int | None = Field(default=None, ge=1, le=MAX_DEVICES)
    """With `file`: the number of devices."""

    @model_validator(mode="after")
    def _either(self) -> Self:
        if (self.examples is None) == (self.file is None) or (self.file is None) != (self.devices is None):
            raise ValueError("given: give either examples (a list for each device), or file and devices")
        if (self.file is None) != (not self.file_sha256):
            raise ValueError("given: file and file_sha256 need each other; give both or none")
        owned = [index for indexes in self.examples or () for index in indexes]
        if len(set(owned)) != len(owned):
            raise ValueError("the index of an example is listed twice; each example has one owner, remove one")
        return self

    @property
    def device_count(self) -> int:
        return self.devices or len(self.examples or ())


def without_path(partition: dict[str, Any]) -> dict[str, Any]:
    """Return a partition for the experiment's digest: with the SHA-256 of its file, but without the file's path."""
    left_out = "file_sha256" if partition.get("file") is None else "file"
    return {key: value for key, value in partition.items() if key != left_out}


class LocalPartition(Settings):
    """Let each device, such as a real board, own all examples in its own data folder. `names` has the ids of the
    devices, in index order.
    """

    kind: Literal["local"]
    """`local`: each device owns all examples in its own folder; `data.name: folder` is required."""
    names: Annotated[Names, AfterValidator(_distinct_names)] = Field(min_length=1)
    """Names of the devices, in index order."""
    test_share: float | None = Field(default=None, gt=0, lt=1)
    """Share of each device's own examples on which it is tested; without this key devices use the tests in their
    folders.
    """
    test_from: Literal["random", "end"] = "random"
    """Choice of the examples of `test_share`: at `random`, or the last ones in the order of the data (`end`)."""

    @property
    def device_count(self) -> int:
        return len(self.names)

    @property
    def device_ids(self) -> tuple[str, ...]:
        """The ids of the devices."""
        return self.names

    @property
    def most_examples(self) -> int | None:
        """None, because the number of a board's examples is unknown. `bounds.max_examples` can set a limit."""
        return None

    @property
    def true_groups(self) -> list[str] | None:
        """None, because the true groups of the boards are unknown."""
        return None


Partition = Annotated[
    TaskPartition
    | GroupPartition
    | DirichletPartition
    | IidPartition
    | NaturalPartition
    | GivenPartition
    | LocalPartition,
    Field(discriminator="kind"),
]
