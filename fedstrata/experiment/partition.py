"""The keys of the section `partition` that all kinds of partition have. Each kind declares its own keys in
`fedstrata.partitions`.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from fedstrata.experiment.sections import Settings


def _distinct_labels(value: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(value)) != len(value) or min(value) < 0:
        raise ValueError(f"labels must be different numbers of 0 or more, not {list(value)}")
    return value


TestSetName = Literal["own", "global", "alike", "validation", "public"]
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


class PartitionSettings(Settings):
    """Hold the kind of a partition. Each kind declares its keys in a subclass of this class."""

    is_local: ClassVar[bool] = False
    """True if each device has its own data set, so that no data set is divided."""

    kind: str
    """Kind of the partition, or own code as `module:Class`."""

    @property
    def device_count(self) -> int:
        """The number of devices."""
        raise NotImplementedError

    @property
    def device_ids(self) -> tuple[str, ...]:
        """The ids of the devices in index order, if the partition names its devices. Otherwise empty."""
        return ()

    @property
    def most_examples(self) -> int | None:
        """The number of training examples of the largest device. It is None if only the data can tell the number. Then
        `bounds.max_examples` can set a limit.
        """
        return None

    @property
    def least_examples(self) -> int | None:
        """The number of examples of the smallest device, including its test examples. It is None if only the data can
        tell the number.
        """
        return None

    @property
    def true_groups(self) -> list[str] | None:
        """The name of each device's true group, in index order. It is None if the partition has no groups."""
        return None

    @property
    def test_set(self) -> TestSetName:
        """The name of the test set, on which devices measure models."""
        return "own"

    @property
    def public_examples(self) -> PublicSettings | None:
        """The settings of the public examples, which no device owns; None if the section `public` is missing."""
        return None

    def of_digest(self) -> dict[str, Any]:
        """Return the keys and values on which the run's id depends."""
        return self.model_dump(mode="json", by_alias=True)
