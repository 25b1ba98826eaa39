"""The `partition` section of an experiment file: which examples each device owns. `fedstrata.partitions` obeys it."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from fedstrata.experiment.sections import MAX_DEVICES, Settings

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]
Size = Annotated[int, Field(ge=1)]


def _distinct_labels(value: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(value)) != len(value) or min(value) < 0:
        raise ValueError(f"labels are distinct numbers from 0 up, not {list(value)}")
    return value


Labels = Annotated[tuple[int, ...], Field(min_length=1), AfterValidator(_distinct_labels)]


class PublicSettings(Settings):
    """Examples that belong to nobody, as even over labels as what devices leave allows; every device has them."""

    examples: int = Field(ge=1)
    labels: Labels | None = None  # of the data set; null: all
    source: Literal["train", "test"] = "train"  # of what no device owns in this part of the data set
    labelled: bool = False  # whether devices see their labels
    tests: bool = False  # whether devices are tested on those of the labels that they own, and on nothing else


class SplitPartition(Settings):
    """What all partitions say that split one data set among devices."""

    kind: str
    test_share: float | None = Field(default=None, gt=0, lt=1)  # of a device's own; null: of the data set's tests
    public: PublicSettings | None = None

    @model_validator(mode="after")
    def _one_kind_of_tests(self) -> Self:
        if self.test_share is not None and self.public is not None and self.public.tests:
            raise ValueError("test_share and public.tests both say what devices are tested on; leave one out")
        return self


class Task(Settings):
    """A learning task: the labels it is about and the devices that learn it."""

    name: Name
    labels: Labels
    devices: int = Field(ge=1, le=MAX_DEVICES)
    examples_per_device: int = Field(ge=1)


class TaskPartition(SplitPartition):
    """Devices take most examples from their own task and a minority from the others (methods.md section 1)."""

    kind: Literal["tasks"] = "tasks"
    tasks: tuple[Task, ...] = Field(min_length=1)
    minority_ratio: float = Field(default=0.1, ge=0, lt=0.5)  # share of a device's examples from other tasks

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [task.name for task in self.tasks]
        if len(set(names)) != len(names):
            raise ValueError(f"task names must differ, and these do not: {names}")
        labels = [label for task in self.tasks for label in task.labels]
        if len(set(labels)) != len(labels):
            raise ValueError("a label belongs to one task only")
        return self

    @property
    def device_count(self) -> int:
        return sum(task.devices for task in self.tasks)

    @property
    def most_examples(self) -> int:
        """The training examples of the largest device."""
        return max(task.examples_per_device for task in self.tasks)

    @property
    def least_examples(self) -> int:
        """The examples of the smallest device, its own tests included."""
        return min(task.examples_per_device for task in self.tasks)

    @property
    def true_groups(self) -> list[str] | None:
        """For each device by index the name of its task."""
        return [task.name for task in self.tasks for _ in range(task.devices)]


class Group(Settings):
    """Devices whose data come from one distribution: which labels they have, and what is done to the examples."""

    name: Name
    devices: int = Field(ge=1, le=MAX_DEVICES)
    examples_per_device: Size | tuple[Size, Size]  # [least, most]: each device's own uniform draw
    labels: Labels | None = None  # of the data set, before label_permutation; null: all
    labels_per_device: int | None = Field(default=None, ge=1)  # each device's own draw of so many of them
    disjoint_labels: bool = False  # no label of that draw goes to two devices of the group
    concentration: float | None = Field(default=None, gt=0)  # Dirichlet label shares; null: as many of each label
    same_shares: bool = False  # one Dirichlet draw for the whole group
    rotation: Literal[0, 90, 180, 270] = 0  # degrees, counter-clockwise
    label_permutation: Annotated[int, Field(ge=0)] | tuple[int, ...] | None = None  # number of a draw, or new labels

    @field_validator("examples_per_device", mode="before")
    @classmethod
    def _number_or_range(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and len(value) != 2:
            raise ValueError(f"give a number, or a range as [least, most], not {list(value)}")
        return value

    @field_validator("examples_per_device")
    @classmethod
    def _ordered(cls, value: int | tuple[int, int]) -> int | tuple[int, int]:
        if isinstance(value, tuple) and value[0] > value[1]:
            raise ValueError(f"a range goes from the least to the most examples, not {list(value)}")
        return value

    @field_validator("label_permutation")
    @classmethod
    def _permutation(cls, value: int | tuple[int, ...] | None) -> int | tuple[int, ...] | None:
        if isinstance(value, tuple) and sorted(value) != list(range(len(value))):
            raise ValueError(f"a permutation has every label from 0 up once, e.g. [1, 2, 0], and {list(value)} has not")
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.disjoint_labels and self.labels_per_device is None:
            raise ValueError("disjoint_labels goes with labels_per_device, which is not given")
        if self.same_shares and self.concentration is None:
            raise ValueError("same_shares goes with concentration, which is not given")
        if self.same_shares and self.labels_per_device is not None:
            raise ValueError("same_shares is for devices with the same labels; leave labels_per_device out")
        return self


class GroupPartition(SplitPartition):
    """Groups of devices that differ in labels, label shares, orientation of images or meaning of labels."""

    kind: Literal["groups"]
    groups: tuple[Group, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [group.name for group in self.groups]
        if len(set(names)) != len(names):
            raise ValueError(f"group names must differ, and these do not: {names}")
        return self

    @property
    def device_count(self) -> int:
        return sum(group.devices for group in self.groups)

    @property
    def most_examples(self) -> int:
        """The most training examples that a device can have."""
        sizes = [group.examples_per_device for group in self.groups]
        return max(size if isinstance(size, int) else size[1] for size in sizes)

    @property
    def least_examples(self) -> int:
        """The fewest examples that a device can have, its own tests included."""
        sizes = [group.examples_per_device for group in self.groups]
        return min(size if isinstance(size, int) else size[0] for size in sizes)

    @property
    def true_groups(self) -> list[str] | None:
        """For each device by index the name of its group; None with one group, for then nothing is to be found."""
        if len(self.groups) == 1:
            return None
        return [group.name for group in self.groups for _ in range(group.devices)]


class EvenPartition(SplitPartition):
    """As many examples for every device, and no groups of them."""

    devices: int = Field(ge=1, le=MAX_DEVICES)
    examples_per_device: int = Field(ge=1)

    @property
    def device_count(self) -> int:
        return self.devices

    @property
    def most_examples(self) -> int:
        """The training examples of every device."""
        return self.examples_per_device

    @property
    def least_examples(self) -> int:
        """The examples of every device, its own tests included."""
        return self.examples_per_device

    @property
    def true_groups(self) -> list[str] | None:
        """None: devices form no groups."""
        return None


class DirichletPartition(EvenPartition):
    """Label skew: each device's label shares are drawn from Dirichlet(concentration)."""

    kind: Literal["dirichlet"]
    concentration: float = Field(default=0.5, gt=0)


class IidPartition(EvenPartition):
    """Every device draws from all examples alike."""

    kind: Literal["iid"]


class LocalPartition(Settings):
    """Real boards: each device owns the whole of what its data folder holds. `names` gives each its index."""

    kind: Literal["local"]
    names: tuple[Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")], ...] = Field(min_length=1)

    @field_validator("names")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("every device has a name of its own, and here one stands twice")
        return value

    @property
    def device_count(self) -> int:
        return len(self.names)

    @property
    def most_examples(self) -> int | None:
        """None: nobody knows how many a board has; `bounds.max_examples` may say what is too many."""
        return None

    @property
    def true_groups(self) -> list[str] | None:
        """None: nobody knows which boards are alike."""
        return None


Partition = Annotated[
    TaskPartition | GroupPartition | DirichletPartition | IidPartition | LocalPartition, Field(discriminator="kind")
]
