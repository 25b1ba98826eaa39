"""The interface of a kind of partition: its keys in the experiment file, and how it divides a data set."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedstrata.datasets import Dataset
from fedstrata.experiment.partition import PartitionSettings, PublicSettings, TestSetName
from fedstrata.partitions.assignment import Assignment

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]


class Partition(PartitionSettings):
    """Divide one data set among devices. Each kind is a subclass, with its keys as fields."""

    test_share: float | None = Field(default=None, gt=0, lt=1)
    """Share of each device's own examples on which it is tested; without this key devices are tested on the data set's
    tests.
    """
    test_from: Literal["random", "end"] = "random"
    """Choice of the examples of `test_share`: at `random`, or the last ones in the order of the data (`end`)."""
    tests: Literal["own", "global", "alike", "validation"] = "own"
    """Test set: `own` is like each device's data, `global` the whole, `alike` divides it like the training data,
    `validation` has the examples of `validation_share`.
    """
    validation_share: float | None = Field(default=None, gt=0, lt=1)
    """Share of each device's training examples that it keeps for `tests: validation`, and never trains on."""
    public: PublicSettings | None = None
    """Public examples, which no device owns."""

    @model_validator(mode="after")
    def _one_kind_of_tests(self) -> Self:
        on_public = self.public is not None and self.public.tests
        if on_public and self.test_share is not None:
            raise ValueError("test_share and public.tests both choose the examples for tests; remove one")
        if on_public and self.tests != "own":
            raise ValueError(f"tests: {self.tests} and public.tests both choose the examples for tests; remove one")
        if self.tests in {"global", "alike"} and self.test_share is not None:
            raise ValueError(f"tests: {self.tests} takes the data set's tests, so test_share is unused; remove one")
        if self.tests in {"global", "alike"} and self.public is not None and self.public.source == "test":
            raise ValueError(f"tests: {self.tests} leaves no tests for public.source test; take them from train")
        if self.tests == "validation" and self.validation_share is None:
            raise ValueError("tests: validation needs examples for validation; set validation_share, such as 0.1")
        return self

    def of_digest(self) -> dict[str, Any]:
        """Return the keys and values on which the run's id depends. Keys that later versions added are left out if they
        have their default.
        """
        later = {"tests": "own", "validation_share": None}
        return {key: value for key, value in super().of_digest().items() if key not in later or value != later[key]}

    @property
    def test_set(self) -> TestSetName:
        """The name of the test set: `tests`, or `public` with `public.tests`."""
        return "public" if self.public is not None and self.public.tests else self.tests

    @property
    def public_examples(self) -> PublicSettings | None:
        """The settings of the public examples, which no device owns; None if the section `public` is missing."""
        return self.public

    def divide(self, dataset: Dataset, seed: int) -> Assignment:
        """Return which examples each device owns. The result depends only on the partition's keys, on the seed, and on
        the labels and columns of the data set. It does not depend on inputs.

        Random draws come from `default_rng([seed, purpose, index])`. Each kind chooses its own purposes. They are above
        100,000, because smaller numbers are indexes of devices, which draw in training.

        Raises:
            ExperimentError: a key does not fit the data set.
            DataError: the data set has too few examples.
        """
        raise NotImplementedError
